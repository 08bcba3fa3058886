/* Which keys pass, remembered. */
#ifndef SIDECAR_KEYS_H
#define SIDECAR_KEYS_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    MAX_KEY = 256,          /* longer ones are not remembered */
    MAX_REMEMBERED = 10000, /* nor are more than these beside those that were given: senders choose them */
    MAX_PROBES = 64,        /* where more keys collide, somebody has made them so */
};

typedef struct {
    uint8_t *key;
    uint32_t size;
    uint32_t met;  /* how often it was denied in this run, ... */
    int64_t after; /* ... and the entry that was denied before it, or -1 */
    uint64_t hash;
    uint64_t list; /* the newest list of attributes that has it */
    bool is_allowed;
} Entry;

/* What is decided of the keys of one owner: entries in the order in which they came, and a hash table of their numbers
 * plus one. */
typedef struct {
    Entry *entries;
    uint32_t *slots;
    size_t count, given, room, mask;
    uint64_t seed;
    int64_t denied;   /* the entry that was denied last, or -1 */
    PyObject *allows; /* decides on a key that is not among the entries */
} Keys;

/* Good enough where everybody is honest; MAX_PROBES is for the others. */
static uint64_t hash_of(uint64_t seed, const uint8_t *p, size_t size) {
    static const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t hash = seed ^ size, word;
    for (; size >= 8; p += 8, size -= 8) {
        memcpy(&word, p, 8);
        hash = (hash ^ word) * odd;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, p, size);
    for (int i = 0; i < 2; i++, word = 0) { /* until each bit of the key has reached the lowest ones */
        hash = (hash ^ word) * odd;
        hash ^= hash >> 32;
    }
    return hash;
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

static bool remember(Keys *keys, const uint8_t *key, size_t size, bool is_allowed) {
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
        .hash = hash_of(keys->seed, key, size),
        .is_allowed = is_allowed,
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

/* The entry of a key, decided now if it was not before; NULL is a doubt, or an exception. */
static Entry *entry_of(Keys *keys, const uint8_t *key, size_t size) {
    uint64_t hash = hash_of(keys->seed, key, size);
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
        if (is_allowed < 0 || !remember(keys, key, size, is_allowed)) {
            return NULL;
        }
        slot = slot_of(keys, hash, key, size);
        if (slot == NULL || *slot == 0) {
            return NULL;
        }
    }
    return &keys->entries[*slot - 1];
}

static void deny(Keys *keys, Entry *entry) {
    if (entry->met++ == 0) {
        entry->after = keys->denied;
        keys->denied = entry - keys->entries;
    }
}

static bool add_count(PyObject *counts, const Entry *entry) {
    PyObject *key = PyUnicode_DecodeUTF8((const char *)entry->key, (Py_ssize_t)entry->size, NULL);
    if (key == NULL) {
        return false;
    }
    PyObject *others = PyDict_GetItemWithError(counts, key); /* of another owner */
    size_t sum = entry->met + (others == NULL ? 0 : PyLong_AsSize_t(others));
    PyObject *count = PyErr_Occurred() ? NULL : PyLong_FromSize_t(sum);
    bool done = count != NULL && PyDict_SetItem(counts, key, count) == 0;
    Py_XDECREF(count);
    Py_DECREF(key);
    return done;
}

/* Move the counts of denied keys into a dictionary; NULL only forgets them. */
static bool take_denied(Keys *keys, PyObject *counts) {
    bool done = true;
    for (int64_t at = keys->denied; at >= 0; at = keys->entries[at].after) {
        Entry *entry = &keys->entries[at];
        done = done && (counts == NULL || add_count(counts, entry));
        entry->met = 0;
    }
    keys->denied = -1;
    return done;
}

/* Start with these names, which are bytes and pass, and ask `allows` about all others. */
static bool set_up_keys(Keys *keys, PyObject *names, PyObject *allows, uint64_t seed) {
    keys->allows = Py_NewRef(allows);
    keys->seed = seed;
    keys->denied = -1;
    if (!rehash(keys)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        char *name;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(names, i), &name, &size) < 0
            || !remember(keys, (const uint8_t *)name, (size_t)size, true)) {
            return false;
        }
    }
    keys->given = keys->count;
    return true;
}

static void clear_keys(Keys *keys) {
    while (keys->count > 0) {
        PyMem_Free(keys->entries[--keys->count].key);
    }
    PyMem_Free(keys->entries);
    PyMem_Free(keys->slots);
    Py_XDECREF(keys->allows);
}

#endif
