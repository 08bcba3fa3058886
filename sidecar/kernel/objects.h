/* What the types that Python sees have in common. */
#ifndef SIDECAR_OBJECTS_H
#define SIDECAR_OBJECTS_H

#include <Python.h>

#include "walk.h"

typedef struct {
    PyObject_HEAD
    Message *messages; /* the first is the request */
    Py_ssize_t count;
} Schema;

static void *allocated(PyTypeObject *type) {
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static void release(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#endif
