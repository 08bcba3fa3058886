/* Makes Python objects of a request: of each message a named tuple, of its attributes a dictionary. */
#ifndef SIDECAR_READ_H
#define SIDECAR_READ_H

#include <Python.h>
#include <math.h>

#include "keys.h"
#include "walk.h"

enum {
    MAX_SLOTS = 24, /* of one message */
    NAMES = 1024,
    MAX_NAME = 60,
};

/* What the value of a field becomes. */
enum reading { NOTHING, UNSIGNED, SIGNED32, SIGNED64, ZIGZAG, NUMBER, TRUTH, CHARACTERS, OCTETS, TUPLE, RAW, VALUE, PAIRS, INSIDE };

typedef struct {
    uint8_t reading, slot;
    bool is_list;
} Place;

/* How one message is read. */
typedef struct {
    PyTypeObject *type;
    PyObject *defaults; /* by slot: what an absent field is; Ellipsis stands for an empty one of its own */
    Place places[MAX_NUMBER + 1];
    int slots;
    int flat; /* the slot that says whether the values of all its attributes are plain, or -1 */
} Layout;

/* The names of attributes come again and again: each is one object, which saves making and hashing it. */
typedef struct {
    PyObject *name;
    uint8_t size, bytes[MAX_NAME];
} Name;

typedef struct {
    const Message *messages;
    Layout *layouts; /* one for each of the messages */
    Name *names;     /* a later one takes the place of an earlier one that it collides with */
} Reading;

static PyObject *object_of(Reading *r, const Message *message, const uint8_t *p, const uint8_t *end, int depth);
static PyObject *value_of(Reading *r, const Message *any, const uint8_t *p, const uint8_t *end, int depth, bool *flat);

static const Layout *layout_of(const Reading *r, const Message *message) {
    return &r->layouts[message - r->messages];
}

static PyObject *text(const uint8_t *p, const uint8_t *end) {
    return PyUnicode_DecodeUTF8((const char *)p, end - p, NULL);
}

static PyObject *octets(const uint8_t *p, const uint8_t *end) {
    return PyBytes_FromStringAndSize((const char *)p, end - p);
}

static PyObject *name_of(Reading *r, const uint8_t *p, const uint8_t *end) {
    size_t size = (size_t)(end - p);
    if (size > MAX_NAME) {
        return text(p, end);
    }
    Name *known = &r->names[hash_of(0, p, size) % NAMES];
    if (known->name == NULL || known->size != size || memcmp(known->bytes, p, size) != 0) {
        PyObject *made = text(p, end);
        if (made == NULL) {
            return NULL;
        }
        Py_XDECREF(known->name);
        known->name = made;
        known->size = (uint8_t)size;
        memcpy(known->bytes, p, size);
    }
    return Py_NewRef(known->name);
}

static uint64_t number_at(const Part *part) {
    uint64_t number = 0;
    if (part->type == 0) {
        return part->varint;
    }
    memcpy(&number, part->value, (size_t)(part->end - part->value));
    return number;
}

/* The number, text or bytes of a field whose type on the wire is its own. */
static PyObject *scalar_of(int reading, const Part *part) {
    uint64_t number;
    double fraction;
    switch (reading) {
    case CHARACTERS:
        return text(part->value, part->end);
    case OCTETS:
        return octets(part->value, part->end);
    case UNSIGNED:
        return PyLong_FromUnsignedLongLong(number_at(part));
    case SIGNED32:
        return PyLong_FromLong((int32_t)number_at(part));
    case SIGNED64:
        return PyLong_FromLongLong((int64_t)number_at(part));
    case ZIGZAG:
        number = number_at(part);
        return PyLong_FromLongLong((int64_t)(number >> 1) ^ -(int64_t)(number & 1));
    case NUMBER:
        number = number_at(part);
        memcpy(&fraction, &number, 8);
        return PyFloat_FromDouble(fraction);
    case TRUTH:
        return PyBool_FromLong(part->varint != 0);
    default:
        return NULL;
    }
}

/* Numbers that come one behind the other. */
static bool put_packed(PyObject *list, const Field *field, int reading, const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        Part part = {.type = field->type, .value = p};
        if (field->type == 0) {
            if (!read_varint(&p, end, &part.varint) || part.varint > field->highest) {
                return false;
            }
        } else {
            p += field->type == 1 ? 8 : 4;
            if (p > end) {
                return false;
            }
        }
        part.end = p;
        PyObject *item = scalar_of(reading, &part);
        int appended = item == NULL ? -1 : PyList_Append(list, item);
        Py_XDECREF(item);
        if (appended < 0) {
            return false;
        }
    }
    return true;
}

/* One attribute, into a dictionary. */
static bool put_pair(Reading *r, const Message *pair, const Part *part, int depth, PyObject *pairs, bool *flat) {
    const Message *any = pair->fields[2].message;
    const uint8_t *p = part->value;
    const uint8_t *value = value_of_short_key(p, part->end), *value_end = part->end;
    PyObject *key = NULL, *item = NULL;
    if (value != NULL) {
        key = name_of(r, p + 2, p + 2 + p[1]);
    } else {
        uint32_t seen = 0;
        value_end = NULL;
        while (p < part->end) {
            Part one;
            if (!next(&p, part->end, &one) || (one.number <= 2 && (one.type != 2 || (seen & (1u << one.number))))) {
                Py_XDECREF(key);
                return false;
            }
            if (one.number == 1) {
                key = name_of(r, one.value, one.end);
                if (key == NULL) {
                    return false;
                }
            } else if (one.number == 2) {
                value = one.value;
                value_end = one.end;
            }
            seen |= one.number <= 2 ? 1u << one.number : 0;
        }
        if (key == NULL) {
            key = PyUnicode_FromString("");
        }
    }
    if (key != NULL) {
        item = value_of(r, any, value, value_end, depth + 1, flat);
    }
    int done = item == NULL ? -1 : PyDict_SetItem(pairs, key, item);
    Py_XDECREF(key);
    Py_XDECREF(item);
    return done == 0;
}

/* All attributes, or all values, of a message that has nothing else. */
static PyObject *inside_of(Reading *r, const Message *message, const Part *part, int depth) {
    PyObject *made = object_of(r, message, part->value, part->end, depth);
    PyObject *inside = made == NULL ? NULL : Py_XNewRef(PyStructSequence_GetItem(made, 0));
    Py_XDECREF(made);
    return inside;
}

/* An AnyValue: None where it holds nothing. `flat` becomes false where that is more than a text or a finite number. */
static PyObject *value_of(Reading *r, const Message *any, const uint8_t *p, const uint8_t *end, int depth, bool *flat) {
    if (p != end && is_short_text(p, end)) {
        return text(p + 2, end);
    }
    const Layout *layout = layout_of(r, any);
    PyObject *value = NULL;
    while (p < end) {
        Part part;
        if (!next(&p, end, &part)) {
            Py_XDECREF(value);
            return NULL;
        }
        if (part.number > MAX_NUMBER || any->fields[part.number].kind == UNKNOWN) {
            continue;
        }
        int reading = layout->places[part.number].reading;
        const Field *field = &any->fields[part.number];
        if (value != NULL || part.type != field->type || part.varint > field->highest || depth > MAX_DEPTH) {
            Py_XDECREF(value);
            return NULL;
        }
        value = reading == INSIDE ? inside_of(r, field->message, &part, depth + 1) : scalar_of(reading, &part);
        if (value == NULL) {
            return NULL;
        }
        *flat = *flat && reading != INSIDE && reading != OCTETS
                && (reading != NUMBER || isfinite(double_at(part.value)));
    }
    if (value == NULL) {
        *flat = false;
        return Py_NewRef(Py_None);
    }
    return value;
}

/* Whether a repeated field's list is there now. */
static bool has_list(PyObject **slot) {
    if (*slot == NULL) {
        *slot = PyList_New(0);
    }
    return *slot != NULL;
}

static bool put_field(Reading *r, const Field *field, const Place *place, const Part *part, int depth, PyObject **slot,
                       bool *flat) {
    PyObject *made;
    if (part->type != field->type) {
        return field->is_packed && place->is_list && part->type == 2 && has_list(slot)
               && put_packed(*slot, field, place->reading, part->value, part->end);
    }
    switch (place->reading) {
    case NOTHING:
        return true;
    case PAIRS:
        if (*slot == NULL) {
            *slot = PyDict_New();
        }
        return *slot != NULL && put_pair(r, field->message, part, depth + 1, *slot, flat);
    case TUPLE:
        made = object_of(r, field->message, part->value, part->end, depth + 1);
        break;
    case RAW: {
        Walk w = {0};
        bool is_sound = look(&w, field->message, part->value, part->end, depth + 1); /* so that it can be decoded later */
        made = is_sound ? octets(part->value, part->end) : NULL;
        break;
    }
    case VALUE: {
        bool ignored = true;
        made = value_of(r, field->message, part->value, part->end, depth + 1, &ignored);
        break;
    }
    default:
        made = part->varint <= field->highest ? scalar_of(place->reading, part) : NULL;
    }
    if (made == NULL) {
        return false;
    }
    if (!place->is_list) {
        *slot = made;
        return true;
    }
    int appended = has_list(slot) ? PyList_Append(*slot, made) : -1;
    Py_DECREF(made);
    return appended == 0;
}

static PyObject *absent(Reading *r, const Message *message, const Layout *layout, int slot) {
    PyObject *value = PyTuple_GetItem(layout->defaults, slot);
    if (value != Py_Ellipsis) {
        return Py_XNewRef(value);
    }
    for (int number = 0; number <= MAX_NUMBER; number++) {
        const Place *place = &layout->places[number];
        if (place->reading == NOTHING || place->slot != slot) {
            continue;
        }
        if (place->is_list) {
            return PyList_New(0);
        }
        if (place->reading == PAIRS) {
            return PyDict_New();
        }
        if (place->reading == TUPLE) {
            return object_of(r, message->fields[number].message, NULL, NULL, MAX_DEPTH - 1);
        }
    }
    return NULL;
}

/* A named tuple; NULL is a doubt, or an exception. */
static PyObject *object_of(Reading *r, const Message *message, const uint8_t *p, const uint8_t *end, int depth) {
    const Layout *layout = layout_of(r, message);
    PyObject *values[MAX_SLOTS] = {NULL};
    uint32_t seen = 0;
    bool sound = depth <= MAX_DEPTH, flat = true;
    while (sound && p < end) {
        Part part;
        if (!next(&p, end, &part)) {
            sound = false;
        } else if (part.number <= MAX_NUMBER && message->fields[part.number].kind != UNKNOWN) {
            const Field *field = &message->fields[part.number];
            const Place *place = &layout->places[part.number];
            sound = !(seen & field->once) && put_field(r, field, place, &part, depth, &values[place->slot], &flat);
            seen |= field->bit;
        }
    }
    PyObject *made = sound ? PyStructSequence_New(layout->type) : NULL;
    if (made != NULL && layout->flat >= 0) {
        values[layout->flat] = PyBool_FromLong(flat);
    }
    for (int slot = 0; slot < layout->slots; slot++) {
        PyObject *value = values[slot];
        if (made == NULL) {
            Py_XDECREF(value);
            continue;
        }
        if (value == NULL && (value = absent(r, message, layout, slot)) == NULL) {
            Py_CLEAR(made); /* with what it has been given */
            continue;
        }
        PyStructSequence_SetItem(made, slot, value);
    }
    return made;
}

#endif
