/* The type Reader: see read.h for what it does. */
#ifndef SIDECAR_READER_H
#define SIDECAR_READER_H

#include "objects.h"
#include "read.h"

typedef struct {
    PyObject_HEAD
    Schema *schema;
    Reading reading;
} ReaderObject;

/* A copy of a text that lives as long as the process: objects of a type may live longer than the reader that made it. */
static char *for_ever(PyObject *string) {
    Py_ssize_t size;
    const char *characters = PyUnicode_AsUTF8AndSize(string, &size);
    char *copy = characters == NULL ? NULL : PyMem_Malloc((size_t)size + 1);
    if (copy != NULL) {
        memcpy(copy, characters, (size_t)size + 1);
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    return copy;
}

static PyTypeObject *make_type(PyObject *type_name, PyObject *names) {
    PyStructSequence_Field fields[MAX_SLOTS + 1] = {{0}};
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        fields[i].name = for_ever(PyTuple_GetItem(names, i));
        if (fields[i].name == NULL) {
            return NULL;
        }
    }
    char *name = for_ever(type_name);
    PyStructSequence_Desc description = {.name = name, .fields = fields, .n_in_sequence = (int)PyTuple_Size(names)};
    return name == NULL ? NULL : PyStructSequence_NewType(&description);
}

static bool read_place(Layout *layout, const Message *message, PyObject *row) {
    int number, slot, reading, is_list;
    if (!PyArg_ParseTuple(row, "iiip", &number, &slot, &reading, &is_list)) {
        return false;
    }
    static const uint8_t types[] = {
        [CHARACTERS] = 1 << 2, [OCTETS] = 1 << 2, [TUPLE] = 1 << 2, [RAW] = 1 << 2, [VALUE] = 1 << 2, [PAIRS] = 1 << 2,
        [INSIDE] = 1 << 2, [UNSIGNED] = 1 << 0 | 1 << 1 | 1 << 5, [SIGNED32] = 1 << 0 | 1 << 5,
        [SIGNED64] = 1 << 0 | 1 << 1, [ZIGZAG] = 1 << 0, [NUMBER] = 1 << 1, [TRUTH] = 1 << 0,
    };
    bool possible = number >= 1 && number <= MAX_NUMBER && slot >= 0 && slot < layout->slots && reading > NOTHING
                    && reading <= INSIDE;
    if (possible) {
        const Field *field = &message->fields[number];
        bool is_message = field->kind == MESSAGE;
        possible = field->kind != UNKNOWN && (types[reading] & (1 << field->type))
                   && is_message == (reading >= TUPLE)
                   && (reading != PAIRS || field->message->is_pair) && (reading != VALUE || field->message->is_value);
    }
    if (!possible) {
        PyErr_SetString(PyExc_ValueError, "a field that the kernel can't make an object of");
        return false;
    }
    layout->places[number] = (Place){.reading = (uint8_t)reading, .slot = (uint8_t)slot, .is_list = is_list};
    return true;
}

static bool read_layout(Layout *layout, const Message *message, PyObject *row) {
    PyObject *type_name, *names, *defaults, *places;
    if (!PyArg_ParseTuple(row, "O!O!O!iO!", &PyUnicode_Type, &type_name, &PyTuple_Type, &names, &PyTuple_Type,
                          &defaults, &layout->flat, &PyTuple_Type, &places)) {
        return false;
    }
    layout->slots = (int)PyTuple_Size(names);
    if (layout->slots < 1 || layout->slots > MAX_SLOTS || PyTuple_Size(defaults) != layout->slots
        || layout->flat >= layout->slots) {
        PyErr_SetString(PyExc_ValueError, "a layout that the kernel can't have");
        return false;
    }
    layout->defaults = Py_NewRef(defaults);
    layout->type = make_type(type_name, names);
    for (Py_ssize_t i = 0; layout->type != NULL && i < PyTuple_Size(places); i++) {
        if (!read_place(layout, message, PyTuple_GetItem(places, i))) {
            return false;
        }
    }
    return layout->type != NULL;
}

static bool read_layouts(ReaderObject *self, PyObject *schema, PyObject *layouts) {
    self->schema = (Schema *)Py_NewRef(schema);
    self->reading.messages = self->schema->messages;
    self->reading.layouts = PyMem_Calloc((size_t)self->schema->count + 1, sizeof *self->reading.layouts);
    self->reading.names = PyMem_Calloc(NAMES, sizeof *self->reading.names);
    if (self->reading.layouts == NULL || self->reading.names == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (PyTuple_Size(layouts) != self->schema->count) {
        PyErr_SetString(PyExc_ValueError, "a layout for each message is needed");
        return false;
    }
    for (Py_ssize_t i = 0; i < self->schema->count; i++) {
        if (!read_layout(&self->reading.layouts[i], &self->schema->messages[i], PyTuple_GetItem(layouts, i))) {
            return false;
        }
    }
    return true;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names)) {
    PyTypeObject **schema_type = PyType_GetModuleState(type);
    PyObject *schema, *layouts;
    if (schema_type == NULL || !PyArg_ParseTuple(args, "O!O!", *schema_type, &schema, &PyTuple_Type, &layouts)) {
        return NULL;
    }
    ReaderObject *self = allocated(type);
    if (self != NULL && !read_layouts(self, schema, layouts)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void reader_dealloc(PyObject *object) {
    ReaderObject *self = (ReaderObject *)object;
    for (Py_ssize_t i = 0; self->reading.layouts != NULL && i < self->schema->count; i++) {
        Py_XDECREF((PyObject *)self->reading.layouts[i].type);
        Py_XDECREF(self->reading.layouts[i].defaults);
    }
    for (size_t i = 0; self->reading.names != NULL && i < NAMES; i++) {
        Py_XDECREF(self->reading.names[i].name);
    }
    PyMem_Free(self->reading.layouts);
    PyMem_Free(self->reading.names);
    Py_XDECREF((PyObject *)self->schema);
    release(object);
}

static PyObject *reader_read(PyObject *object, PyObject *data) {
    ReaderObject *self = (ReaderObject *)object;
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &start, &size) < 0) {
        return NULL;
    }
    const uint8_t *p = (const uint8_t *)start;
    PyObject *made = object_of(&self->reading, self->schema->messages, p, p + size, 1);
    if (made == NULL && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return made;
}

static PyMethodDef reader_methods[] = {{"read", reader_read, METH_O, NULL}, {0}};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, reader_new}, {Py_tp_dealloc, reader_dealloc}, {Py_tp_methods, reader_methods}, {0},
};

static PyType_Spec reader_spec = {
    .name = "sidecar.kernel._kernel.Reader",
    .basicsize = sizeof(ReaderObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};

#endif
