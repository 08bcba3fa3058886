/* Reads OTLP requests on the wire, by tables that Python makes from the descriptors.
 *
 * Two uses of one walk. Schema.scan counts the items of a request and says whether there is anything in it that needs a
 * look. Filter.run copies a request without the attributes that are not allowed, and without what the schema does not
 * know. Both give up at the first doubt: the caller then decodes the request with protobuf, which decides.
 *
 * Every byte is hostile. The rules that keep this safe: a length is compared with what is left before it is used
 * (`next`), nothing is allocated by a length that was only claimed, and messages nest at most MAX_DEPTH deep.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#if PY_BIG_ENDIAN
#error "numbers are read as they lie in memory, which the wire format has in little-endian order"
#endif

#ifdef __GNUC__
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

enum {
    MAX_NUMBER = 31, /* of known fields; `seen` has one bit for each */
    MAX_DEPTH = 64,  /* protobuf's decoder refuses more than 100; nobody sends that */
    MAX_OWNERS = 3,
    MAX_KEY = 256,
    MAX_REMEMBERED = 10000, /* keys beyond those that were given: senders choose them */
    MAX_PROBES = 64,        /* where more keys collide, somebody has made them so */
};

enum kind { UNKNOWN, BOOL, VARINT32, VARINT64, FIXED32, FIXED64, BYTES, STRING, MESSAGE };

/* What a field means beyond its kind. */
enum role {
    PLAIN,
    TRACE_ID,     /* 16 bytes, not all zeros; empty is absent */
    SPAN_ID,      /* 8 bytes, likewise */
    NOT_ZERO,     /* a fixed64 */
    RATIO,        /* a double from 0 to 1 */
    NOT_NEGATIVE, /* a double */
    BOUNDS,       /* doubles that increase; one fewer than ... */
    COUNTS,       /* ... these, or none of both */
    ATTRIBUTES,   /* a KeyValue, to filter */
    BODY,         /* an AnyValue, to filter */
    TEXT,         /* the kinds of an AnyValue */
    ARRAY,
    MAP,
    REFUSED, /* to be looked at by somebody else */
};

enum body { KEEP_BODY, TEXT_BODY, DROP_BODY };

/* --- tables ------------------------------------------------------------------------------------------------------- */

typedef struct message Message;

typedef struct {
    uint8_t kind;
    uint8_t type; /* on the wire */
    uint8_t role;
    uint8_t owner;    /* whose attributes: an index of the filter's key tables */
    bool is_packed;   /* repeated numbers, which may come packed */
    uint32_t bit;     /* in `seen`; the fields of a oneof share one */
    uint32_t once;    /* the same where a second one is a doubt, of which decoders take the last or merge them; else 0 */
    uint64_t highest; /* varint */
    const Message *message;
} Field;

struct message {
    Field fields[MAX_NUMBER + 1];
    uint32_t required; /* bits of fields */
    bool is_item;
};

typedef struct {
    PyObject_HEAD
    Message *messages; /* the first is the request */
    Py_ssize_t count;
} Schema;

/* --- the wire format ---------------------------------------------------------------------------------------------- */

/* One field of a message: where it starts, where its value lies, and where it ends. */
typedef struct {
    const uint8_t *start, *length, *value, *end;
    uint64_t varint;
    uint32_t number;
    unsigned type;
} Part;

/* A varint of several bytes, in its shortest form, so that nothing hides in it. */
static bool read_long_varint(const uint8_t **at, const uint8_t *end, uint64_t *result) {
    const uint8_t *p = *at;
    uint64_t number = 0;
    for (unsigned shift = 0; shift < 70 && p < end; shift += 7) {
        uint8_t byte = *p++;
        number |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *result = number;
            *at = p;
            return byte != 0 && (shift < 63 || byte == 1);
        }
    }
    return false;
}

static inline bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *result) {
    if (*at < end && **at < 0x80) {
        *result = *(*at)++;
        return true;
    }
    return read_long_varint(at, end, result);
}

/* The field at `*at`, which moves behind it. Groups are a doubt. */
static ALWAYS_INLINE bool next(const uint8_t **at, const uint8_t *end, Part *part) {
    uint64_t tag, size;
    const uint8_t *p = *at;
    part->start = p;
    if (!read_varint(&p, end, &tag) || tag > UINT32_MAX || tag < 8) {
        return false;
    }
    part->number = (uint32_t)tag >> 3;
    part->type = tag & 7;
    part->varint = 0;
    part->length = p;
    if (part->type == 2) {
        if (!read_varint(&p, end, &size)) {
            return false;
        }
    } else if (part->type == 0) {
        if (!read_varint(&p, end, &part->varint)) {
            return false;
        }
        size = 0;
    } else if (part->type == 1) {
        size = 8;
    } else if (part->type == 5) {
        size = 4;
    } else {
        return false;
    }
    if (size > (size_t)(end - p)) {
        return false;
    }
    part->value = p;
    part->end = *at = p + size;
    return true;
}

/* Whether text is UTF-8 as Unicode defines it (Table 3-7, "Well-Formed UTF-8 Byte Sequences"). */
static bool is_utf8(const uint8_t *p, const uint8_t *end) {
    for (;;) {
        uint64_t word;
        while (end - p >= 8 && (memcpy(&word, p, 8), !(word & UINT64_C(0x8080808080808080)))) {
            p += 8;
        }
        while (p < end && *p < 0x80) {
            p++;
        }
        if (p == end) {
            return true;
        }
        uint8_t lead = *p, low = 0x80, high = 0xBF;
        int more;
        if (lead >= 0xC2 && lead <= 0xDF) {
            more = 1;
        } else if (lead >= 0xE0 && lead <= 0xEF) {
            more = 2;
            low = lead == 0xE0 ? 0xA0 : low;
            high = lead == 0xED ? 0x9F : high;
        } else if (lead >= 0xF0 && lead <= 0xF4) {
            more = 3;
            low = lead == 0xF0 ? 0x90 : low;
            high = lead == 0xF4 ? 0x8F : high;
        } else {
            return false;
        }
        if (end - p <= more || p[1] < low || p[1] > high) {
            return false;
        }
        for (int i = 2; i <= more; i++) {
            if ((p[i] & 0xC0) != 0x80) {
                return false;
            }
        }
        p += more + 1;
    }
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

typedef struct filter Filter;

typedef struct {
    size_t items;
    /* Of the value that was walked last: the bytes of its longest text, and whether it holds what only somebody else
     * can copy: a map, or a field that is not known. */
    size_t longest;
    bool is_odd;
    /* The filter and its output; NULL while nothing is copied. From `kept` on, the input is not copied yet. */
    Filter *filter;
    const uint8_t *kept;
    uint8_t *out;
    size_t size, room;
    size_t cut;
    bool failed; /* a Python exception is set */
} Walk;

static bool look(Walk *w, const Message *message, const uint8_t *p, const uint8_t *end, int depth);
static bool copy_message(Walk *w, const Field *field, const Part *part, int depth, uint64_t *list);
static bool copy_until(Walk *w, const uint8_t *until, const uint8_t *from);

static inline double double_at(const uint8_t *p) {
    double number;
    memcpy(&number, p, 8);
    return number;
}

static bool is_zero(const uint8_t *p, size_t size) {
    uint8_t any = 0;
    for (size_t i = 0; i < size; i++) {
        any |= p[i];
    }
    return !any;
}

static bool increases(const uint8_t *p, const uint8_t *end) {
    for (const uint8_t *first = p; p < end; p += 8) {
        double number = double_at(p);
        if (isnan(number) || (p != first && number <= double_at(p - 8))) {
            return false;
        }
    }
    return true;
}

static bool is_packed(const Field *field, const uint8_t *p, const uint8_t *end) {
    if (field->type != 0) {
        return (end - p) % (field->type == 1 ? 8 : 4) == 0;
    }
    uint64_t number;
    while (p < end) {
        if (!read_varint(&p, end, &number) || number > field->highest) {
            return false;
        }
    }
    return true;
}

/* Whether the bytes are what the field's kind asks for. Not for messages. */
static ALWAYS_INLINE bool is_sound(const Field *field, const Part *part) {
    if (part->type == field->type) {
        return field->kind == STRING ? is_utf8(part->value, part->end) : part->varint <= field->highest;
    }
    return field->is_packed && part->type == 2 && is_packed(field, part->value, part->end);
}

/* Whether the value of a sound field is what its role asks for. */
static bool is_right(uint8_t role, const uint8_t *value, const uint8_t *end) {
    size_t size = (size_t)(end - value);
    switch (role) {
    case TRACE_ID:
        return size == 0 || (size == 16 && !is_zero(value, size));
    case SPAN_ID:
        return size == 0 || (size == 8 && !is_zero(value, size));
    case NOT_ZERO:
        return !is_zero(value, size);
    case RATIO:
        return double_at(value) >= 0 && double_at(value) <= 1;
    case NOT_NEGATIVE:
        return !(double_at(value) < 0);
    case BOUNDS:
        return increases(value, end);
    default:
        return true;
    }
}

/* Whether a message is one that needs no look; with `copies`, what may stay of it has been copied up to `kept`. */
static ALWAYS_INLINE bool walk(Walk *w, const Message *message, const uint8_t *p, const uint8_t *end, int depth,
                               bool copies) {
    static const Field unknown = {0};
    uint32_t seen = 0;
    uint64_t list = 0; /* of the attributes of this message, as they are numbered in a filter */
    size_t bounds = 0, counts = 0;
    if (depth > MAX_DEPTH) {
        return false;
    }
    w->items += message->is_item;
    while (p < end) {
        Part part;
        if (!next(&p, end, &part)) {
            return false;
        }
        const Field *field = part.number <= MAX_NUMBER ? &message->fields[part.number] : &unknown;
        if (seen & field->once) {
            return false;
        }
        seen |= field->bit;
        if (field->kind == MESSAGE) {
            if (part.type != 2) {
                return false;
            }
            if (copies) {
                Part found = part; /* of which the address is taken: the loop's own stays in registers */
                if (!copy_message(w, field, &found, depth, &list)) {
                    return false;
                }
            } else {
                w->is_odd |= field->role == MAP;
                if (!look(w, field->message, part.value, part.end, depth + 1)) {
                    return false;
                }
            }
        } else if (field->kind == UNKNOWN) {
            w->is_odd = true;
            if (copies && !copy_until(w, part.start, part.end)) {
                return false;
            }
        } else {
            size_t size = (size_t)(part.end - part.value);
            w->longest = size > w->longest ? size : w->longest;
            if (!is_sound(field, &part)) {
                return false;
            }
            if (field->role != PLAIN) {
                if (!is_right(field->role, part.value, part.end)) {
                    return false;
                }
                if (field->role == BOUNDS) {
                    bounds = size / 8;
                } else if (field->role == COUNTS) {
                    counts = size / 8;
                } else if (size == 0 && (field->role == TRACE_ID || field->role == SPAN_ID)) {
                    seen &= ~field->bit; /* as if it were not there */
                }
            }
        }
    }
    return (seen & message->required) == message->required && (counts == bounds + 1 || counts + bounds == 0);
}

static bool look(Walk *w, const Message *message, const uint8_t *p, const uint8_t *end, int depth) {
    return walk(w, message, p, end, depth, false);
}

static bool copy(Walk *w, const Message *message, const uint8_t *p, const uint8_t *end, int depth) {
    return walk(w, message, p, end, depth, true);
}

/* --- the output --------------------------------------------------------------------------------------------------- */

static bool reserve(Walk *w, size_t more) {
    if (more <= w->room - w->size) {
        return true;
    }
    size_t room = w->room + w->room / 2 + more;
    uint8_t *out = PyMem_Realloc(w->out, room);
    if (out == NULL) {
        PyErr_NoMemory();
        w->failed = true;
        return false;
    }
    w->out = out;
    w->room = room;
    return true;
}

static bool put(Walk *w, const uint8_t *data, size_t size) {
    if (!reserve(w, size)) {
        return false;
    }
    memcpy(w->out + w->size, data, size);
    w->size += size;
    return true;
}

static size_t varint_size(uint64_t number) {
    size_t size = 1;
    while (number >= 0x80) {
        number >>= 7;
        size++;
    }
    return size;
}

static void write_varint(uint8_t *at, uint64_t number) {
    while (number >= 0x80) {
        *at++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *at = (uint8_t)number;
}

static bool put_varint(Walk *w, uint64_t number) {
    if (!reserve(w, 10)) {
        return false;
    }
    write_varint(w->out + w->size, number);
    w->size += varint_size(number);
    return true;
}

/* Copy what is kept so far, and go on behind it, at `from`. */
static bool copy_until(Walk *w, const uint8_t *until, const uint8_t *from) {
    bool done = put(w, w->kept, (size_t)(until - w->kept));
    w->kept = from;
    return done;
}

static bool leave_out(Walk *w, const Part *part) {
    return copy_until(w, part->start, part->end);
}

static bool attribute(Walk *w, const Field *field, const Part *part, int depth, uint64_t *list);
static bool body(Walk *w, const Field *field, const Part *part, int depth);

/* Copy what may stay of a message in a field. One that holds others becomes shorter: its length is written at the end. */
static bool copy_message(Walk *w, const Field *field, const Part *part, int depth, uint64_t *list) {
    if (field->role == ATTRIBUTES) {
        return attribute(w, field, part, depth, list);
    }
    if (field->role == BODY) {
        return body(w, field, part, depth);
    }
    size_t width = (size_t)(part->value - part->length);
    if (field->role == ARRAY || field->role == MAP || field->role == REFUSED || !copy_until(w, part->length, part->value) || !reserve(w, width)) {
        return false;
    }
    size_t length_at = w->size;
    w->size += width;
    if (!copy(w, field->message, part->value, part->end, depth + 1) || !copy_until(w, part->end, part->end)) {
        return false;
    }
    size_t start = length_at + width, size = w->size - start, new_width = varint_size(size);
    if (new_width != width) {
        if (!reserve(w, 10)) {
            return false;
        }
        memmove(w->out + length_at + new_width, w->out + start, size);
        w->size = length_at + new_width + size;
    }
    write_varint(w->out + length_at, size);
    return true;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *key;
    uint32_t size;
    uint32_t met;  /* how often it was denied in this run, ... */
    int64_t after; /* ... and the entry that was denied before it, or -1 */
    uint64_t hash;
    uint64_t list; /* the newest list of attributes that has it */
    bool is_allowed, is_stack;
} Entry;

/* What is decided of the keys of one owner: entries in the order in which they came, and a hash table of their numbers
 * plus one. */
typedef struct {
    Entry *entries;
    uint32_t *slots;
    size_t count, given, room, mask;
    int64_t denied; /* the entry that was denied last, or -1 */
    PyObject *allows; /* decides on a key that is not among the entries */
} Keys;

struct filter {
    PyObject_HEAD
    Schema *schema;
    Keys keys[MAX_OWNERS];
    uint64_t seed, lists;
    uint8_t *stack;
    Py_ssize_t stack_size;
    Py_ssize_t max_body, max_stack, max_value; /* bytes; PY_SSIZE_T_MAX is no limit */
    int body;
    bool scalars_only, is_busy;
};

static uint64_t mixed(uint64_t a) {
    a ^= a >> 32;
    a *= UINT64_C(0xD6E8FEB86659FD93);
    a ^= a >> 32;
    a *= UINT64_C(0xD6E8FEB86659FD93);
    return a ^ a >> 32;
}

static uint64_t hash_of(uint64_t seed, const uint8_t *p, size_t size) {
    uint64_t hash = seed ^ size, word;
    for (; size >= 8; p += 8, size -= 8) {
        memcpy(&word, p, 8);
        hash = mixed(hash ^ word) + seed;
    }
    word = 0;
    memcpy(&word, p, size);
    return mixed(hash ^ word);
}

/* The slot of a key, which is 0 where there is no such key; NULL where too many collide. */
static uint32_t *slot_of(const Keys *keys, uint64_t hash, const uint8_t *key, size_t size) {
    size_t at = hash & keys->mask;
    for (int probes = 0; probes < MAX_PROBES; probes++, at = (at + 1) & keys->mask) {
        uint32_t number = keys->slots[at];
        if (number == 0) {
            return &keys->slots[at];
        }
        const Entry *entry = &keys->entries[number - 1];
        if (entry->hash == hash && entry->size == size && memcmp(entry->key, key, size) == 0) {
            return &keys->slots[at];
        }
    }
    return NULL;
}

/* Make the hash table anew, with room for twice the entries. Returns whether there is memory; keys that collide too
 * often are left out, and asked for again. */
static bool rehash(Keys *keys) {
    size_t size = 64;
    while (size < keys->count * 4) {
        size *= 2;
    }
    uint32_t *slots = PyMem_Calloc(size, sizeof *slots);
    if (slots == NULL) {
        PyErr_NoMemory();
        return false;
    }
    PyMem_Free(keys->slots);
    keys->slots = slots;
    keys->mask = size - 1;
    for (size_t i = 0; i < keys->count; i++) {
        const Entry *entry = &keys->entries[i];
        uint32_t *slot = slot_of(keys, entry->hash, entry->key, entry->size);
        if (slot != NULL && *slot == 0) {
            *slot = (uint32_t)i + 1;
        }
    }
    return true;
}

static bool remember(Filter *filter, Keys *keys, const uint8_t *key, size_t size, bool is_allowed) {
    if (keys->count == keys->room) {
        size_t room = keys->room * 2 + 16;
        Entry *entries = PyMem_Realloc(keys->entries, room * sizeof *entries);
        if (entries == NULL) {
            PyErr_NoMemory();
            return false;
        }
        keys->entries = entries;
        keys->room = room;
    }
    uint8_t *copy = PyMem_Malloc(size ? size : 1);
    if (copy == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(copy, key, size);
    Entry *entry = &keys->entries[keys->count++];
    *entry = (Entry){
        .key = copy,
        .size = (uint32_t)size,
        .hash = hash_of(filter->seed, key, size),
        .is_allowed = is_allowed,
        .is_stack = size == (size_t)filter->stack_size && memcmp(key, filter->stack, size) == 0,
    };
    if (keys->count * 2 > keys->mask) {
        return rehash(keys);
    }
    uint32_t *slot = slot_of(keys, entry->hash, key, size);
    if (slot != NULL && *slot == 0) {
        *slot = (uint32_t)keys->count;
    }
    return true;
}

/* Forget what was learnt from senders once it is too much. */
static bool forget(Keys *keys) {
    if (keys->count < keys->given + MAX_REMEMBERED) {
        return true;
    }
    while (keys->count > keys->given) {
        PyMem_Free(keys->entries[--keys->count].key);
    }
    return rehash(keys);
}

/* The entry of a key, decided now if it was not before; NULL is a doubt. */
static Entry *entry_of(Walk *w, Keys *keys, const uint8_t *key, size_t size) {
    Filter *filter = w->filter;
    uint64_t hash = hash_of(filter->seed, key, size);
    uint32_t *slot = slot_of(keys, hash, key, size);
    if (slot == NULL) {
        return NULL;
    }
    if (*slot == 0) {
        if (size > MAX_KEY || keys->count >= keys->given + MAX_REMEMBERED) {
            return NULL;
        }
        PyObject *answer = PyObject_CallFunction(keys->allows, "s#", (const char *)key, (Py_ssize_t)size);
        int is_allowed = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_allowed < 0 || !remember(filter, keys, key, size, is_allowed)) {
            w->failed = true;
            return NULL;
        }
        slot = slot_of(keys, hash, key, size);
        if (slot == NULL || *slot == 0) {
            return NULL;
        }
    }
    return &keys->entries[*slot - 1];
}

/* --- the filter --------------------------------------------------------------------------------------------------- */

static const char MARK[] = "\xE2\x80\xA6";                 /* … */
static const char OTHER_MARK[] = "\n\xE2\x80\xA6 truncated"; /* as the receiver of TelemetryEvents cuts */

static bool ends_in(const uint8_t *p, size_t size, const char *mark, size_t mark_size, size_t limit) {
    return size <= limit + mark_size && size >= mark_size && memcmp(p + size - mark_size, mark, mark_size) == 0;
}

/* Whether a text has at most `limit` bytes, or was cut to that before. */
static bool fits(const uint8_t *p, size_t size, Py_ssize_t limit) {
    return size <= (size_t)limit || ends_in(p, size, MARK, sizeof MARK - 1, (size_t)limit)
           || ends_in(p, size, OTHER_MARK, sizeof OTHER_MARK - 1, (size_t)limit);
}

/* Where a longer text is cut: not within a character. */
static size_t cut_at(const uint8_t *p, size_t limit) {
    while (limit > 0 && (p[limit] & 0xC0) == 0x80) {
        limit--;
    }
    return limit;
}

/* Write the field that starts as `part` does, with a cut text in place of its own; `key`: NULL for a bare value. */
static bool put_cut(Walk *w, const Part *part, const Part *key, const Part *text, Py_ssize_t limit) {
    size_t kept = cut_at(text->value, (size_t)limit), size = kept + sizeof MARK - 1;
    size_t head = (size_t)(text->length - text->start);
    size_t value = head + varint_size(size) + size;
    if (!copy_until(w, part->length, part->end)) {
        return false;
    }
    if (key != NULL) {
        size_t key_size = (size_t)(key->end - key->start);
        if (!put_varint(w, key_size + 1 + varint_size(value) + value) || !put(w, key->start, key_size)
            || !put(w, (const uint8_t *)"\x12", 1)) {
            return false;
        }
    }
    w->cut++;
    return put_varint(w, value) && put(w, text->start, head) && put_varint(w, size) && put(w, text->value, kept)
           && put(w, (const uint8_t *)MARK, sizeof MARK - 1);
}

/* The one field of an AnyValue that was walked and is not odd. Returns the field's row; NULL for an empty value. */
static const Field *kind_of(const Message *message, const Part *value, Part *found) {
    const uint8_t *p = value->value;
    if (p == value->end || !next(&p, value->end, found)) {
        return NULL;
    }
    return &message->fields[found->number];
}

/* A KeyValue, of which key and value are fields 1 and 2. */
static bool attribute(Walk *w, const Field *field, const Part *part, int depth, uint64_t *list) {
    Filter *filter = w->filter;
    Keys *keys = &filter->keys[field->owner];
    Part key = {0}, value = {0}, one;
    bool is_odd = false;
    for (const uint8_t *p = part->value; p < part->end;) {
        if (!next(&p, part->end, &one)) {
            return false;
        }
        if (one.number == 1 || one.number == 2) {
            Part *known = one.number == 1 ? &key : &value;
            if (known->start != NULL || one.type != 2) {
                return false;
            }
            *known = one;
        } else {
            is_odd = true;
        }
    }
    if (key.start == NULL || value.start == NULL || !is_utf8(key.value, key.end)) {
        return false;
    }
    const Message *any = field->message->fields[2].message;
    w->is_odd = false;
    w->longest = 0;
    if (!look(w, any, value.value, value.end, depth + 2)) {
        return false;
    }
    is_odd |= w->is_odd;
    Entry *entry = entry_of(w, keys, key.value, (size_t)(key.end - key.value));
    if (*list == 0) {
        *list = ++filter->lists;
    }
    /* Of equal keys the last one stays, which is not decided here; nor are they found where other lists came between. */
    if (entry == NULL || entry->list == *list || filter->lists != *list) {
        return false;
    }
    entry->list = *list;
    bool is_allowed = entry->is_allowed;
    if (is_allowed) {
        if (is_odd) {
            return false;
        }
        const Field *kind = kind_of(any, &value, &one);
        bool is_text = kind != NULL && kind->role == TEXT;
        bool is_stack = is_text && entry->is_stack;
        Py_ssize_t limit = is_stack ? filter->max_stack : filter->max_value;
        if (filter->scalars_only && kind != NULL && kind->role == ARRAY) {
            is_allowed = false;
        } else if (w->longest <= (size_t)limit || (is_text && fits(one.value, w->longest, limit))) {
            return true;
        } else if (!is_text) {
            return false;
        } else {
            return put_cut(w, part, &key, &one, limit);
        }
    }
    if (entry->met++ == 0) {
        entry->after = keys->denied;
        keys->denied = entry - keys->entries;
    }
    return leave_out(w, part);
}

static bool body(Walk *w, const Field *field, const Part *part, int depth) {
    Filter *filter = w->filter;
    Part one;
    w->is_odd = false;
    w->longest = 0;
    if (!look(w, field->message, part->value, part->end, depth + 1)) {
        return false;
    }
    if (filter->body == DROP_BODY) {
        return leave_out(w, part);
    }
    if (w->is_odd) {
        return false;
    }
    const Field *kind = kind_of(field->message, part, &one);
    bool is_text = kind != NULL && kind->role == TEXT;
    if (filter->body == TEXT_BODY && !is_text) {
        return leave_out(w, part);
    }
    if (w->longest <= (size_t)filter->max_body || (is_text && fits(one.value, w->longest, filter->max_body))) {
        return true;
    }
    return is_text && put_cut(w, part, NULL, &one, filter->max_body);
}

/* --- Python ------------------------------------------------------------------------------------------------------- */

static void *allocated(PyTypeObject *type) {
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static void release(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static bool is_possible(const Field *field) {
    bool is_number = field->kind == FIXED64 && !field->is_packed;
    switch (field->role) {
    case NOT_ZERO:
    case RATIO:
    case NOT_NEGATIVE:
        return is_number;
    case BOUNDS:
    case COUNTS:
        return field->kind == FIXED64 && field->once != 0;
    case TRACE_ID:
    case SPAN_ID:
        return field->kind == BYTES;
    case TEXT:
        return field->kind == STRING;
    case ATTRIBUTES: {
        const Field *value = field->message == NULL ? NULL : &field->message->fields[2];
        return value != NULL && value->kind == MESSAGE && value->message != NULL;
    }
    case BODY:
    case ARRAY:
    case MAP:
    case REFUSED:
        return field->kind == MESSAGE;
    default:
        return field->role == PLAIN;
    }
}

static bool read_field(Schema *schema, Message *message, PyObject *row) {
    int number, kind, role, owner, is_packed, is_single, is_required, bit;
    Py_ssize_t below;
    if (!PyArg_ParseTuple(row, "iiiipppin", &number, &kind, &role, &owner, &is_packed, &is_single, &is_required, &bit,
                          &below)) {
        return false;
    }
    if (number < 1 || number > MAX_NUMBER || kind <= UNKNOWN || kind > MESSAGE || bit < 0 || bit > 31 || owner < 0
        || owner >= MAX_OWNERS || (kind == MESSAGE) != (below >= 0 && below < schema->count)) {
        PyErr_SetString(PyExc_ValueError, "a field that the kernel can't read");
        return false;
    }
    static const uint8_t types[] = {
        [BOOL] = 0, [VARINT32] = 0, [VARINT64] = 0, [FIXED32] = 5, [FIXED64] = 1, [BYTES] = 2, [STRING] = 2, [MESSAGE] = 2,
    };
    message->fields[number] = (Field){
        .kind = (uint8_t)kind,
        .type = types[kind],
        .role = (uint8_t)role,
        .owner = (uint8_t)owner,
        .is_packed = is_packed,
        .bit = UINT32_C(1) << bit,
        .once = is_single ? UINT32_C(1) << bit : 0,
        .highest = kind == BOOL ? 1 : kind == VARINT32 ? UINT32_MAX : UINT64_MAX,
        .message = kind == MESSAGE ? &schema->messages[below] : NULL,
    };
    message->required |= is_required ? UINT32_C(1) << bit : 0;
    return true;
}

static bool read_message(Schema *schema, Message *message, PyObject *row) {
    int is_item;
    PyObject *fields;
    if (!PyArg_ParseTuple(row, "pO!", &is_item, &PyTuple_Type, &fields)) {
        return false;
    }
    message->is_item = is_item;
    for (Py_ssize_t i = 0; i < PyTuple_Size(fields); i++) {
        if (!read_field(schema, message, PyTuple_GetItem(fields, i))) {
            return false;
        }
    }
    return true;
}

static bool read_schema(Schema *schema, PyObject *messages) {
    schema->count = PyTuple_Size(messages);
    schema->messages = PyMem_Calloc((size_t)schema->count + 1, sizeof *schema->messages);
    if (schema->messages == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < schema->count; i++) {
        if (!read_message(schema, &schema->messages[i], PyTuple_GetItem(messages, i))) {
            return false;
        }
    }
    for (Py_ssize_t i = 0; i < schema->count; i++) {
        for (int number = 0; number <= MAX_NUMBER; number++) {
            if (!is_possible(&schema->messages[i].fields[number])) {
                PyErr_SetString(PyExc_ValueError, "a role that does not fit its field");
                return false;
            }
        }
    }
    return true;
}

static PyObject *schema_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names)) {
    PyObject *messages;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &messages)) {
        return NULL;
    }
    Schema *schema = allocated(type);
    if (schema != NULL && !read_schema(schema, messages)) {
        Py_CLEAR(schema);
    }
    return (PyObject *)schema;
}

static void schema_dealloc(PyObject *self) {
    PyMem_Free(((Schema *)self)->messages);
    release(self);
}

static PyObject *schema_scan(PyObject *self, PyObject *data) {
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &start, &size) < 0) {
        return NULL;
    }
    Walk w = {0};
    const uint8_t *p = (const uint8_t *)start;
    if (!look(&w, ((Schema *)self)->messages, p, p + size, 1)) {
        Py_RETURN_NONE;
    }
    return PyLong_FromSize_t(w.items);
}

static bool read_keys(Filter *filter, Keys *keys, PyObject *row) {
    PyObject *names, *allows;
    keys->denied = -1;
    if (!PyArg_ParseTuple(row, "O!O", &PyTuple_Type, &names, &allows) || !rehash(keys)) {
        return false;
    }
    keys->allows = Py_NewRef(allows);
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        char *name;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(names, i), &name, &size) < 0
            || !remember(filter, keys, (const uint8_t *)name, (size_t)size, true)) {
            return false;
        }
    }
    keys->given = keys->count;
    return true;
}

static bool read_filter(Filter *filter, PyObject *owners, const char *stack) {
    filter->stack = PyMem_Malloc((size_t)filter->stack_size + 1);
    if (filter->stack == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(filter->stack, stack, (size_t)filter->stack_size);
    if (PyTuple_Size(owners) != MAX_OWNERS) {
        PyErr_Format(PyExc_ValueError, "a filter has the keys of %d owners", MAX_OWNERS);
        return false;
    }
    for (int i = 0; i < MAX_OWNERS; i++) {
        if (!read_keys(filter, &filter->keys[i], PyTuple_GetItem(owners, i))) {
            return false;
        }
    }
    return true;
}

static PyObject *filter_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names)) {
    PyObject *schema, *owners;
    const char *stack;
    Py_ssize_t stack_size, max_body, max_stack, max_value;
    int body, scalars_only;
    unsigned long long seed;
    PyTypeObject *schema_type = PyType_GetModuleState(type) == NULL ? NULL : *(PyTypeObject **)PyType_GetModuleState(type);
    if (schema_type == NULL
        || !PyArg_ParseTuple(args, "O!O!y#nnnipK", schema_type, &schema, &PyTuple_Type, &owners, &stack, &stack_size,
                             &max_body, &max_stack, &max_value, &body, &scalars_only, &seed)) {
        return NULL;
    }
    if (max_body < 0 || max_stack < 0 || max_value < 0) {
        PyErr_SetString(PyExc_ValueError, "lengths are not negative");
        return NULL;
    }
    Filter *filter = allocated(type);
    if (filter == NULL) {
        return NULL;
    }
    filter->schema = (Schema *)Py_NewRef(schema);
    filter->stack_size = stack_size;
    filter->max_body = max_body;
    filter->max_stack = max_stack;
    filter->max_value = max_value;
    filter->body = body;
    filter->scalars_only = scalars_only;
    filter->seed = seed;
    if (!read_filter(filter, owners, stack)) {
        Py_CLEAR(filter);
    }
    return (PyObject *)filter;
}

static void filter_dealloc(PyObject *self) {
    Filter *filter = (Filter *)self;
    for (int i = 0; i < MAX_OWNERS; i++) {
        Keys *keys = &filter->keys[i];
        while (keys->count > 0) {
            PyMem_Free(keys->entries[--keys->count].key);
        }
        PyMem_Free(keys->entries);
        PyMem_Free(keys->slots);
        Py_XDECREF(keys->allows);
    }
    PyMem_Free(filter->stack);
    Py_XDECREF((PyObject *)filter->schema);
    release(self);
}

/* Move the counts of denied keys into a dictionary; NULL only forgets them. */
static bool take_denied(Filter *filter, PyObject *counts) {
    bool done = true;
    for (int i = 0; i < MAX_OWNERS; i++) {
        Keys *keys = &filter->keys[i];
        for (int64_t at = keys->denied; at >= 0; at = keys->entries[at].after) {
            Entry *entry = &keys->entries[at];
            if (counts != NULL && done) {
                PyObject *key = PyUnicode_DecodeUTF8((const char *)entry->key, (Py_ssize_t)entry->size, NULL);
                PyObject *before = key == NULL ? NULL : PyDict_GetItemWithError(counts, key);
                size_t sum = entry->met + (before == NULL ? 0 : PyLong_AsSize_t(before));
                PyObject *after = key == NULL || PyErr_Occurred() ? NULL : PyLong_FromSize_t(sum);
                done = after != NULL && PyDict_SetItem(counts, key, after) == 0;
                Py_XDECREF(key);
                Py_XDECREF(after);
            }
            entry->met = 0;
        }
        keys->denied = -1;
    }
    return done;
}

static PyObject *run(Filter *filter, const uint8_t *p, size_t size) {
    for (int i = 0; i < MAX_OWNERS; i++) {
        if (!forget(&filter->keys[i])) {
            return NULL;
        }
    }
    Walk w = {.filter = filter, .kept = p};
    bool done = reserve(&w, size + 64) && copy(&w, filter->schema->messages, p, p + size, 1)
                && copy_until(&w, p + size, p + size);
    PyObject *result = NULL, *counts = done ? PyDict_New() : NULL;
    if (take_denied(filter, counts) && counts != NULL) {
        result = Py_BuildValue("y#On", (const char *)w.out, (Py_ssize_t)w.size, counts, (Py_ssize_t)w.cut);
    }
    Py_XDECREF(counts);
    PyMem_Free(w.out);
    return done || w.failed ? result : Py_NewRef(Py_None);
}

static PyObject *filter_run(PyObject *self, PyObject *data) {
    Filter *filter = (Filter *)self;
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &start, &size) < 0) {
        return NULL;
    }
    if (filter->is_busy) { /* with another thread, or below in the same one */
        Py_RETURN_NONE;
    }
    filter->is_busy = true;
    PyObject *result = run(filter, (const uint8_t *)start, (size_t)size);
    filter->is_busy = false;
    return result;
}

static PyMethodDef schema_methods[] = {{"scan", schema_scan, METH_O, NULL}, {0}};

static PyType_Slot schema_slots[] = {
    {Py_tp_new, schema_new}, {Py_tp_dealloc, schema_dealloc}, {Py_tp_methods, schema_methods}, {0},
};

static PyType_Spec schema_spec = {
    .name = "sidecar.kernel._kernel.Schema",
    .basicsize = sizeof(Schema),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = schema_slots,
};

static PyMethodDef filter_methods[] = {{"run", filter_run, METH_O, NULL}, {0}};

static PyType_Slot filter_slots[] = {
    {Py_tp_new, filter_new}, {Py_tp_dealloc, filter_dealloc}, {Py_tp_methods, filter_methods}, {0},
};

static PyType_Spec filter_spec = {
    .name = "sidecar.kernel._kernel.Filter",
    .basicsize = sizeof(Filter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = filter_slots,
};

static int add_all(PyObject *module) {
    PyTypeObject **schema_type = PyModule_GetState(module);
    PyObject *schema = PyType_FromModuleAndSpec(module, &schema_spec, NULL);
    if (schema == NULL || PyModule_AddType(module, (PyTypeObject *)schema) < 0) {
        return -1;
    }
    *schema_type = (PyTypeObject *)schema;
    PyObject *filter = PyType_FromModuleAndSpec(module, &filter_spec, NULL);
    int added = filter == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)filter);
    Py_XDECREF(filter);
    return added;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_all}, {0}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_size = sizeof(PyTypeObject *),
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__kernel(void) {
    return PyModuleDef_Init(&module);
}
