/* Rows: a copy of an array's rows that the pool's idle threads begin and `finish` completes.  Any dtype: bytes are copied. */
#include "module.h"

#include "internal.h"

#define PIECE_BYTES 16384 /* a microsecond or two: so long a job may have to wait for a thread */

typedef struct {
    PyObject_HEAD Py_buffer to, from;
    int64_t *index; /* checked, none negative */
    int64_t count, row_bytes, rows_per_piece;
    uint64_t offer; /* 0: nobody helps */
    bool finished;
} Rows;

static PyTypeObject *rows_type;

static void copy_piece(void *raw, int64_t piece, int worker) {
    (void)worker;
    const Rows *rows = raw;
    const char *from = rows->from.buf;
    char *to = rows->to.buf;
    size_t bytes = (size_t)rows->row_bytes;
    int64_t end = RL_MIN((piece + 1) * rows->rows_per_piece, rows->count);
    for (int64_t i = piece * rows->rows_per_piece; i < end; i++)
        memcpy(to + i * rows->row_bytes, from + rows->index[i] * rows->from.strides[0], bytes);
}

static void complete(Rows *rows) {
    if (rows->offer) {
        rl_finish_offer(rows->offer);
    } else {
        for (int64_t piece = 0; piece * rows->rows_per_piece < rows->count; piece++) copy_piece(rows, piece, 0);
    }
}

static void rows_dealloc(PyObject *self) {
    Rows *rows = (Rows *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (rows->offer && !rows->finished) complete(rows);
    PyBuffer_Release(&rows->to); /* does nothing where there is none */
    PyBuffer_Release(&rows->from);
    free(rows->index);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *rows_finish(PyObject *self, PyObject *unused) {
    (void)unused;
    Rows *rows = (Rows *)self;
    if (!rows->finished) {
        rows->finished = true;
        PyThreadState *state = PyEval_SaveThread();
        complete(rows);
        PyEval_RestoreThread(state);
    }
    Py_INCREF(Py_None);
    return Py_None;
}

/* Whether a row is one stretch of memory. */
static bool whole_rows(const Py_buffer *x) {
    Py_ssize_t expected = x->itemsize;
    for (int d = x->ndim - 1; d > 0; d--) {
        if (x->shape[d] != 1 && x->strides[d] != expected) return false;
        expected *= x->shape[d];
    }
    return true;
}

static bool same_rows(const Py_buffer *x, const Py_buffer *y) {
    bool same = x->ndim == y->ndim && x->ndim > 0 && x->itemsize == y->itemsize;
    for (int d = 1; same && d < x->ndim; d++) same = x->shape[d] == y->shape[d];
    return same;
}

/* The rows' numbers: int64, each counted from the end where it is negative. */
static int read_index(Rows *rows, PyObject *index) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(index, &buffer, PyBUF_C_CONTIGUOUS)) return -1;
    const int64_t *given = buffer.buf;
    int64_t size = rows->from.shape[0], i = 0;
    bool fits = buffer.ndim == 1 && buffer.itemsize == 8 && buffer.shape[0] == rows->to.shape[0];
    rows->count = fits ? buffer.shape[0] : 0;
    rows->index = fits ? malloc(((size_t)rows->count + 1) * sizeof *given) : NULL;
    for (; rows->index && i < rows->count && -size <= given[i] && given[i] < size; i++)
        rows->index[i] = given[i] + (given[i] < 0 ? size : 0);
    if (!fits) PyErr_SetString(PyExc_TypeError, "rows: expected an index (N,) of int64 for N rows");
    else if (!rows->index) PyErr_NoMemory();
    else if (i < rows->count)
        PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for axis 0 with size %lld", (long long)given[i], (long long)size);
    PyBuffer_Release(&buffer);
    return rows->index && i == rows->count ? 0 : -1;
}

static int prepare(Rows *rows, PyObject *const *args) {
    if (PyObject_GetBuffer(args[0], &rows->to, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return -1;
    if (PyObject_GetBuffer(args[1], &rows->from, PyBUF_STRIDES)) return -1;
    if (!same_rows(&rows->to, &rows->from) || !whole_rows(&rows->from)) {
        PyErr_SetString(PyExc_TypeError, "rows: expected y (N, ...) and x (M, ...) of one dtype, every row of x contiguous");
        return -1;
    }
    rows->row_bytes = rows->to.itemsize;
    for (int d = 1; d < rows->to.ndim; d++) rows->row_bytes *= rows->to.shape[d];
    rows->rows_per_piece = RL_MAX(1, PIECE_BYTES / RL_MAX(1, rows->row_bytes));
    return read_index(rows, args[2]);
}

static PyObject *rows_begin(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "rows(y, x, index): 3 arguments expected, got %zd", count);
    Rows *rows = PyObject_New(Rows, rows_type);
    if (!rows) return NULL;
    memset(&rows->to, 0, sizeof *rows - offsetof(Rows, to));
    if (prepare(rows, args)) {
        Py_DECREF(rows);
        return NULL;
    }
    rows->offer = rl_offer(copy_piece, rows, rl_ceil_div(rows->count, rows->rows_per_piece));
    return (PyObject *)rows;
}

static PyMethodDef rows_methods[] = {{"finish", rows_finish, METH_NOARGS, "Return when all rows are copied."}, {NULL, NULL, 0, NULL}};
static PyType_Slot rows_slots[] = {{Py_tp_dealloc, rows_dealloc}, {Py_tp_methods, rows_methods}, {0, NULL}};
static PyType_Spec rows_spec = {"rushlight._core.Rows", sizeof(Rows), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                rows_slots};
static PyMethodDef functions[] = {
    {"rows", (PyCFunction)(void (*)(void))rows_begin, METH_FASTCALL, "rows(y, x, index): begin y[...] = x[index]; returns its Rows."},
    {NULL, NULL, 0, NULL}};

int rl_add_rows(PyObject *module) {
    rows_type = (PyTypeObject *)PyType_FromSpec(&rows_spec);
    return rows_type ? PyModule_AddFunctions(module, functions) : -1;
}
