/* Bytes that are written one after the other. */
#ifndef SIDECAR_OUTPUT_H
#define SIDECAR_OUTPUT_H

#include <Python.h>

#include "wire.h"

typedef struct {
    uint8_t *data;
    size_t size, room;
} Output;

/* These return whether there is memory; where not, an exception is set. */
static bool reserve(Output *out, size_t more) {
    if (more <= out->room - out->size) {
        return true;
    }
    size_t room = out->room + out->room / 2 + more;
    uint8_t *data = PyMem_Realloc(out->data, room);
    if (data == NULL) {
        PyErr_NoMemory();
        return false;
    }
    out->data = data;
    out->room = room;
    return true;
}

static bool put(Output *out, const void *data, size_t size) {
    if (!reserve(out, size)) {
        return false;
    }
    memcpy(out->data + out->size, data, size);
    out->size += size;
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

static bool put_varint(Output *out, uint64_t number) {
    if (!reserve(out, 10)) {
        return false;
    }
    write_varint(out->data + out->size, number);
    out->size += varint_size(number);
    return true;
}

/* Leave room for a length that is known later. Returns false or where it goes, in `at`. */
static bool put_length(Output *out, size_t width, size_t *at) {
    *at = out->size;
    if (!reserve(out, width)) {
        return false;
    }
    out->size += width;
    return true;
}

/* Write the length of all that was put since, into the room that was left for it. */
static bool set_length(Output *out, size_t at, size_t width) {
    size_t start = at + width, size = out->size - start, needed = varint_size(size);
    if (needed != width) {
        if (!reserve(out, 10)) {
            return false;
        }
        memmove(out->data + at + needed, out->data + start, size);
        out->size = at + needed + size;
    }
    write_varint(out->data + at, size);
    return true;
}

#endif
