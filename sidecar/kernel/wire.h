/* The protobuf wire format: fields, and the text in them. */
#ifndef SIDECAR_WIRE_H
#define SIDECAR_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __GNUC__
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

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

/* Whether no byte has its highest bit set. */
static ALWAYS_INLINE bool is_ascii(const uint8_t *p, size_t size) {
    uint64_t any = 0, word;
    if (size < 8) {
        while (size > 0) {
            any |= p[--size];
        }
        return !(any & 0x80);
    }
    for (size_t i = 0; i < size - 8; i += 8) {
        memcpy(&word, p + i, 8);
        any |= word;
    }
    memcpy(&word, p + size - 8, 8); /* some of it once more, instead of byte by byte */
    return !((any | word) & UINT64_C(0x8080808080808080));
}

/* Whether text is UTF-8 as Unicode defines it (Table 3-7, "Well-Formed UTF-8 Byte Sequences"). */
static bool is_utf8(const uint8_t *p, const uint8_t *end) {
    if (is_ascii(p, (size_t)(end - p))) {
        return true;
    }
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

#endif
