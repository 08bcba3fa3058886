/* Copies a request without what is not allowed.
 *
 * The input is copied in runs: `kept` is where the run starts that is not copied yet. It ends where something is left
 * out, and at the length of a message, which may change.
 */
#ifndef SIDECAR_FILTER_H
#define SIDECAR_FILTER_H

#include "keys.h"
#include "output.h"
#include "walk.h"

enum body { KEEP_BODY, TEXT_BODY, DROP_BODY };

struct filter {
    /* What it does. Limits are bytes of text; PY_SSIZE_T_MAX is none. */
    Keys keys[MAX_OWNERS];
    uint8_t *stack; /* the key that `max_stack` holds for */
    Py_ssize_t stack_size;
    Py_ssize_t max_body, max_stack, max_value;
    int body;
    bool scalars_only;
    /* One run. */
    Output out;
    const uint8_t *kept;
    size_t cut;
    uint64_t lists; /* the number of the newest list of attributes, of all runs */
};

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

/* Copy what is kept so far, and go on at `from`. */
static bool copy_until(Filter *filter, const uint8_t *until, const uint8_t *from) {
    const uint8_t *start = filter->kept;
    filter->kept = from;
    return put(&filter->out, start, (size_t)(until - start));
}

static bool leave_out(Filter *filter, const Part *part) {
    return copy_until(filter, part->start, part->end);
}

/* Write the field that starts as `part` does, with a cut text in place of its own; `key`: NULL for a bare value. */
static bool put_cut(Filter *filter, const Part *part, const Part *key, const Part *text, Py_ssize_t limit) {
    Output *out = &filter->out;
    size_t kept = cut_at(text->value, (size_t)limit), size = kept + sizeof MARK - 1;
    size_t tag = (size_t)(text->length - text->start);
    size_t value = tag + varint_size(size) + size;
    if (!copy_until(filter, part->length, part->end)) {
        return false;
    }
    if (key != NULL) {
        size_t key_size = (size_t)(key->end - key->start);
        if (!put_varint(out, key_size + 1 + varint_size(value) + value) || !put(out, key->start, key_size)
            || !put(out, "\x12", 1)) {
            return false;
        }
    }
    filter->cut++;
    return put_varint(out, value) && put(out, text->start, tag) && put_varint(out, size) && put(out, text->value, kept)
           && put(out, MARK, sizeof MARK - 1);
}

/* The one field of an AnyValue that was walked and is not odd. Returns the field's row; NULL for an empty value. */
static const Field *kind_of(const Message *message, const Part *value, Part *found) {
    const uint8_t *p = value->value;
    if (p == value->end || !next(&p, value->end, found)) {
        return NULL;
    }
    return &message->fields[found->number];
}

/* Find the key and the value of a KeyValue that holds these alone, as fields 1 and 2, in this order. */
static ALWAYS_INLINE bool read_pair(const Part *part, Part *key, Part *value) {
    const uint8_t *p = part->value;
    return next(&p, part->end, key) && key->number == 1 && key->type == 2 && next(&p, part->end, value)
           && value->number == 2 && value->type == 2 && p == part->end && is_utf8(key->value, key->end);
}

static bool attribute(Walk *w, const Field *field, const Part *part, int depth, uint64_t *list) {
    Filter *filter = w->filter;
    Keys *keys = &filter->keys[field->owner];
    const Message *any = field->message->fields[2].message;
    Part key, value, one;
    w->is_odd = false;
    w->longest = 0;
    if (!read_pair(part, &key, &value) || !glance(w, any, value.value, value.end, depth + 2)) {
        return false;
    }
    size_t key_size = (size_t)(key.end - key.value);
    Entry *entry = entry_of(keys, key.value, key_size);
    if (*list == 0) {
        *list = ++filter->lists;
    }
    /* Of equal keys the last one stays, which is not decided here. They are not found where other lists came between. */
    if (entry == NULL || entry->list == *list || filter->lists != *list) {
        return false;
    }
    entry->list = *list;
    if (!entry->is_allowed) {
        deny(keys, entry);
        return leave_out(filter, part);
    }
    if (w->is_odd) {
        return false;
    }
    const Field *kind = kind_of(any, &value, &one);
    if (filter->scalars_only && kind != NULL && kind->role == ARRAY) {
        deny(keys, entry);
        return leave_out(filter, part);
    }
    bool is_text = kind != NULL && kind->role == TEXT;
    bool is_stack = is_text && key_size == (size_t)filter->stack_size && !memcmp(key.value, filter->stack, key_size);
    Py_ssize_t limit = is_stack ? filter->max_stack : filter->max_value;
    if (w->longest <= (size_t)limit || (is_text && fits(one.value, w->longest, limit))) {
        return true;
    }
    return is_text && put_cut(filter, part, &key, &one, limit);
}

static bool body(Walk *w, const Field *field, const Part *part, int depth) {
    Filter *filter = w->filter;
    Part one;
    w->is_odd = false;
    w->longest = 0;
    if (!glance(w, field->message, part->value, part->end, depth + 1)) {
        return false;
    }
    if (filter->body == DROP_BODY) {
        return leave_out(filter, part);
    }
    if (w->is_odd) {
        return false;
    }
    const Field *kind = kind_of(field->message, part, &one);
    bool is_text = kind != NULL && kind->role == TEXT;
    if (filter->body == TEXT_BODY && !is_text) {
        return leave_out(filter, part);
    }
    if (w->longest <= (size_t)filter->max_body || (is_text && fits(one.value, w->longest, filter->max_body))) {
        return true;
    }
    return is_text && put_cut(filter, part, NULL, &one, filter->max_body);
}

static bool copy_field(Walk *w, const Field *field, const Part *part, int depth, uint64_t *list) {
    Filter *filter = w->filter;
    size_t width = (size_t)(part->value - part->length), length_at;
    switch (field->role) {
    case PLAIN:
        return copy_until(filter, part->length, part->value) && put_length(&filter->out, width, &length_at)
               && copy(w, field->message, part->value, part->end, depth + 1)
               && copy_until(filter, part->end, part->end) && set_length(&filter->out, length_at, width);
    case ATTRIBUTES:
        return attribute(w, field, part, depth, list);
    case BODY:
        return body(w, field, part, depth);
    default:
        return false;
    }
}

/* Whether a whole request was copied to `out`. */
static bool filter_request(Filter *filter, const Message *request, const uint8_t *p, size_t size) {
    Walk w = {.filter = filter};
    filter->kept = p;
    filter->cut = 0;
    for (int i = 0; i < MAX_OWNERS; i++) {
        if (!forget(&filter->keys[i])) {
            return false;
        }
    }
    return reserve(&filter->out, size + 64) && copy(&w, request, p, p + size, 1) && copy_until(filter, p + size, p + size);
}

#endif
