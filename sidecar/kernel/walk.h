/* The walk over a message: whether everything in it is ordinary, by a table of what its fields are and mean. */
#ifndef SIDECAR_WALK_H
#define SIDECAR_WALK_H

#include <math.h>

#include "wire.h"

enum {
    MAX_NUMBER = 31, /* of known fields */
    MAX_DEPTH = 64,  /* protobuf's decoder refuses more than 100; nobody sends that */
    MAX_OWNERS = 3,
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
    bool is_value; /* field 1 is its text: an AnyValue */
    bool is_pair;  /* field 1 is a text, and field 2 such a value: a KeyValue */
};

/* What copies while it is walked; see filter.h. */
typedef struct filter Filter;

typedef struct {
    size_t items;
    /* Of what was walked since they were last set to 0: the bytes of the longest text, and whether there was what only
     * somebody else can copy, which is a map or a field that is not known. */
    size_t longest;
    bool is_odd;
    Filter *filter;
} Walk;

static bool look(Walk *w, const Message *message, const uint8_t *p, const uint8_t *end, int depth);

/* Copy what may stay of a field that holds a message. `list` numbers the attributes of the message around it. */
static bool copy_field(Walk *w, const Field *field, const Part *part, int depth, uint64_t *list);

static bool leave_out(Filter *filter, const Part *part);

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

/* The value of a pair whose key is an ASCII text of less than 128 bytes, and which holds nothing else; else NULL. */
static ALWAYS_INLINE const uint8_t *value_of_short_key(const uint8_t *p, const uint8_t *end) {
    if (end - p < 4 || p[0] != 0x0A || p[1] >= 128 || p[1] > end - p - 4) {
        return NULL;
    }
    const uint8_t *tag = p + 2 + p[1];
    bool is_last = tag[0] == 0x12 && tag[1] < 128 && tag[1] == end - tag - 2;
    return is_last && is_ascii(p + 2, p[1]) ? tag + 2 : NULL;
}

/* Whether a value is an ASCII text of less than 128 bytes. */
static ALWAYS_INLINE bool is_short_text(const uint8_t *p, const uint8_t *end) {
    size_t size = (size_t)(end - p);
    return size >= 2 && size < 2 + 128 && p[0] == 0x0A && p[1] == size - 2 && is_ascii(p + 2, size - 2);
}

/* As `look`. It sees at a glance what nearly all attributes are, which saves half of the time of a request. */
static ALWAYS_INLINE bool glance(Walk *w, const Message *message, const uint8_t *p, const uint8_t *end, int depth) {
    const uint8_t *value = message->is_pair ? value_of_short_key(p, end) : NULL;
    if (value != NULL) {
        w->longest = p[1] > w->longest ? p[1] : w->longest;
        message = message->fields[2].message;
        p = value;
        depth++;
    }
    if (message->is_value && is_short_text(p, end)) {
        w->longest = p[1] > w->longest ? p[1] : w->longest;
        return true;
    }
    return look(w, message, p, end, depth);
}

/* Whether everything in a message is ordinary; with `copies`, what may stay of it is copied to the filter's output. */
static ALWAYS_INLINE bool walk(Walk *w, const Message *message, const uint8_t *p, const uint8_t *end, int depth,
                               bool copies) {
    static const Field unknown = {0};
    uint32_t seen = 0;
    uint64_t list = 0; /* the number of this message's attributes, once there are some */
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
                if (!copy_field(w, field, &part, depth, &list)) {
                    return false;
                }
            } else {
                w->is_odd |= field->role == MAP;
                if (!glance(w, field->message, part.value, part.end, depth + 1)) {
                    return false;
                }
            }
        } else if (field->kind == UNKNOWN) {
            w->is_odd = true;
            if (copies && !leave_out(w->filter, &part)) {
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

#endif
