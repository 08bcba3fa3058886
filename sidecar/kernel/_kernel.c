/* Reads OTLP requests on the wire, by tables that Python makes from the descriptors.
 *
 * Schema.scan counts the items of a request and says whether there is anything in it that needs a look. Filter.run copies
 * a request without the attributes that are not allowed, and without what the schema does not know. Reader.read makes
 * Python objects of a request. All give up at the first doubt: the caller then decodes the request with protobuf, which decides.
 *
 * Every byte is hostile. The rules that keep this safe: a length is compared with what is left before it is used
 * (`next`), nothing is allocated by a length that was only claimed, and messages nest at most MAX_DEPTH deep.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "filter.h"
#include "objects.h"
#include "reader.h"
#include "walk.h"

#if PY_BIG_ENDIAN
#error "numbers are read as they lie in memory, which the wire format has in little-endian order"
#endif

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

/* Whether a message that holds only a text, in field 1, is in order when the text is. */
static bool holds_text(const Message *message) {
    const Field *first = &message->fields[1];
    return first->kind == STRING && (first->role == PLAIN || first->role == TEXT) && !message->required
           && !message->is_item;
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
        Message *message = &schema->messages[i];
        const Field *second = &message->fields[2];
        message->is_value = holds_text(message);
        message->is_pair = message->is_value && second->kind == MESSAGE && second->role == PLAIN
                           && holds_text(second->message);
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

typedef struct {
    PyObject_HEAD
    Schema *schema;
    Filter filter;
    bool is_busy;
} FilterObject;

static bool read_filter(FilterObject *self, PyObject *args, PyTypeObject *schema_type) {
    Filter *filter = &self->filter;
    PyObject *schema, *owners;
    const char *stack;
    int scalars_only;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "O!O!y#nnnipK", schema_type, &schema, &PyTuple_Type, &owners, &stack, &filter->stack_size,
                          &filter->max_body, &filter->max_stack, &filter->max_value, &filter->body, &scalars_only,
                          &seed)) {
        return false;
    }
    if (filter->max_body < 0 || filter->max_stack < 0 || filter->max_value < 0 || PyTuple_Size(owners) != MAX_OWNERS) {
        PyErr_SetString(PyExc_ValueError, "a filter that the kernel can't be");
        return false;
    }
    self->schema = (Schema *)Py_NewRef(schema);
    filter->scalars_only = scalars_only;
    filter->stack = PyMem_Malloc((size_t)filter->stack_size + 1);
    if (filter->stack == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(filter->stack, stack, (size_t)filter->stack_size);
    for (int i = 0; i < MAX_OWNERS; i++) {
        PyObject *names, *allows;
        if (!PyArg_ParseTuple(PyTuple_GetItem(owners, i), "O!O", &PyTuple_Type, &names, &allows)
            || !set_up_keys(&filter->keys[i], names, allows, seed)) {
            return false;
        }
    }
    return true;
}

static PyObject *filter_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names)) {
    PyTypeObject **schema_type = PyType_GetModuleState(type);
    FilterObject *self = schema_type == NULL ? NULL : allocated(type);
    if (self != NULL && !read_filter(self, args, *schema_type)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void filter_dealloc(PyObject *self) {
    FilterObject *filter = (FilterObject *)self;
    for (int i = 0; i < MAX_OWNERS; i++) {
        clear_keys(&filter->filter.keys[i]);
    }
    PyMem_Free(filter->filter.stack);
    Py_XDECREF((PyObject *)filter->schema);
    release(self);
}

/* The outcome of a run: a tuple, or None where there was a doubt. */
static PyObject *run(FilterObject *self, const uint8_t *p, size_t size) {
    Filter *filter = &self->filter;
    bool done = filter_request(filter, self->schema->messages, p, size);
    PyObject *counts = done ? PyDict_New() : NULL, *outcome = NULL;
    bool counted = counts != NULL;
    for (int i = 0; i < MAX_OWNERS; i++) {
        counted = take_denied(&filter->keys[i], counts) && counted;
    }
    if (counted) {
        outcome = Py_BuildValue("y#On", (const char *)filter->out.data, (Py_ssize_t)filter->out.size, counts,
                                (Py_ssize_t)filter->cut);
    } else if (!PyErr_Occurred()) {
        outcome = Py_NewRef(Py_None);
    }
    Py_XDECREF(counts);
    PyMem_Free(filter->out.data);
    filter->out = (Output){0};
    return outcome;
}

static PyObject *filter_run(PyObject *object, PyObject *data) {
    FilterObject *self = (FilterObject *)object;
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &start, &size) < 0) {
        return NULL;
    }
    if (self->is_busy) { /* in another thread, or further down in this one */
        Py_RETURN_NONE;
    }
    self->is_busy = true;
    PyObject *outcome = run(self, (const uint8_t *)start, (size_t)size);
    self->is_busy = false;
    return outcome;
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
    .basicsize = sizeof(FilterObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = filter_slots,
};

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return added;
}

static int add_all(PyObject *module) {
    PyTypeObject **schema_type = PyModule_GetState(module);
    PyObject *schema = PyType_FromModuleAndSpec(module, &schema_spec, NULL);
    if (schema == NULL || PyModule_AddType(module, (PyTypeObject *)schema) < 0) {
        return -1;
    }
    *schema_type = (PyTypeObject *)schema;
    return add_type(module, &filter_spec) < 0 ? -1 : add_type(module, &reader_spec);
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
