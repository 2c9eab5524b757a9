/* The CPython door, in the stable ABI: arrays over pool blocks, one call into the kernels, recording. */
#include "module.h"

#include "internal.h"
#include "pool.h"
#include "program.h"

#define RELEASE_GIL_ELEMENTS 32768 /* work below this is shorter than handing the lock over twice */
#define MAX_CONTEXTS 16

enum { FLOAT32, FLOAT64, INT64, BOOL, UINT64, BFLOAT16, DTYPES };
static const char *const formats[DTYPES] = {"f", "d", "lq", "?", "LQ", "H"};
static const int item_bytes[DTYPES] = {4, 8, 8, 1, 8, 2};

static PyObject *ndarray; /* numpy.ndarray */
static PyObject *dtype_objects[DTYPES];
static PyObject *exceptions; /* tuple indexed by rl_status - 1 */
static PyTypeObject *block_type, *program_type;

static rl_pool *main_pool;
static rl_ctx *idle_contexts[MAX_CONTEXTS];
static int idle_count;

/* ---- Program: what is recorded ---- */

typedef struct {
    PyObject_HEAD rl_program *program;
    rl_pool *pool;
    PyObject *pinned; /* arrays outside the private pool that the calls point into */
} Program;

static Program *recorded;         /* the program being recorded, */
static unsigned long recorded_by; /* and by which thread: the others compute as ever */

static bool recording_here(void) { return recorded && recorded_by == PyThread_get_thread_ident(); }

/* ---- Block: pool memory with a buffer, the base object of an array ---- */

typedef struct {
    PyObject_HEAD void *data;
    size_t bytes;
    rl_pool *pool;
} Block;

static void block_dealloc(PyObject *self) {
    Block *block = (Block *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (block->data) rl_pool_give(block->pool, block->data, block->bytes);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int block_buffer(PyObject *self, Py_buffer *view, int flags) {
    Block *block = (Block *)self;
    return PyBuffer_FillInfo(view, self, block->data, (Py_ssize_t)block->bytes, 0, flags);
}

static PyType_Slot block_slots[] = {{Py_tp_dealloc, block_dealloc}, {Py_bf_getbuffer, block_buffer}, {0, NULL}};
static PyType_Spec block_spec = {"rushlight._core.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 block_slots};

static int dtype_index(PyObject *dtype) {
    for (int i = 0; i < DTYPES; i++)
        if (dtype_objects[i] == dtype) return i;
    for (int i = 0; i < DTYPES; i++) /* an equal dtype that is not NumPy's own object */
        if (PyObject_RichCompareBool(dtype_objects[i], dtype, Py_EQ) == 1) return i;
    if (!PyErr_Occurred())
        PyErr_Format(PyTuple_GetItem(exceptions, RL_DTYPE_ERROR - 1), "no kernel computes with %R; use float32 or float64", dtype);
    return -1;
}

static PyObject *empty(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2 || !PyTuple_Check(args[0])) return PyErr_Format(PyExc_TypeError, "empty(shape, dtype): shape must be a tuple");
    int dtype = dtype_index(args[1]);
    if (dtype < 0) return NULL;
    size_t bytes = (size_t)item_bytes[dtype];
    for (Py_ssize_t d = 0; d < PyTuple_Size(args[0]); d++) {
        Py_ssize_t length = PyLong_AsSsize_t(PyTuple_GetItem(args[0], d));
        bool overflow = length == -1 && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError);
        if (overflow) PyErr_Clear();
        else if (length == -1 && PyErr_Occurred()) return NULL;
        else if (length < 0) return PyErr_Format(PyExc_ValueError, "empty: negative size in shape %R", args[0]);
        if (overflow || __builtin_mul_overflow(bytes, (size_t)length, &bytes))
            return PyErr_Format(PyExc_MemoryError, "empty: shape %R is too large", args[0]);
    }
    Block *block = PyObject_New(Block, block_type);
    if (!block) return NULL;
    rl_pool *pool = recording_here() ? recorded->pool : main_pool;
    block->pool = pool;
    block->bytes = bytes;
    block->data = rl_pool_take(pool, &block->bytes);
    PyObject *array = NULL;
    if (block->data) array = PyObject_CallFunctionObjArgs(ndarray, args[0], args[1], (PyObject *)block, NULL);
    else PyErr_Format(PyExc_MemoryError, "no memory for an array of shape %R (%zu bytes)", args[0], bytes);
    Py_DECREF(block);
    return array;
}

/* ---- arrays to views ---- */

/* NumPy's array struct, a public part of its binary interface.  Reading it is ten times as fast as the buffer protocol, which stands in
 * for other types and wherever `check_fields` has not found the struct to be this one. */
typedef struct {
    PyObject_HEAD char *data;
    int ndim;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;
} array_fields;

#define WRITEABLE 0x0400

static bool fields_known;

/* Fill a view; false when the kernels cannot use such an array. */
static bool fill_view(rl_view *view, int dtype, void *data, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides) {
    bool fits = dtype >= 0 && ndim <= RL_MAX_DIMS && (uintptr_t)data % (uintptr_t)item_bytes[dtype] == 0;
    if (!fits) return false;
    view->data = data;
    view->dtype = dtype;
    view->ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        view->shape[d] = shape[d];
        view->stride[d] = strides[d] / item_bytes[dtype];
        fits = fits && strides[d] % item_bytes[dtype] == 0;
    }
    int64_t step = 1; /* NumPy's strides may be anything where there are no elements */
    for (int d = ndim - 1; d >= 0 && rl_size(view) == 0; d--) {
        view->stride[d] = step;
        step *= RL_MAX(shape[d], 1);
    }
    return fits;
}

static bool view_of_fields(PyObject *array, rl_view *view, bool written) {
    const array_fields *fields = (const array_fields *)array;
    int dtype = DTYPES - 1;
    while (dtype >= 0 && fields->dtype != dtype_objects[dtype]) dtype--;
    return (!written || fields->flags & WRITEABLE) && fill_view(view, dtype, fields->data, fields->ndim, fields->shape, fields->strides);
}

static int dtype_of_format(const char *format) {
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (format[0] == 0 || format[1] != 0) return -1;
    for (int i = 0; i < DTYPES; i++)
        if (strchr(formats[i], *format)) return i;
    return -1;
}

/* The array outlives the call that uses the view, so its buffer need not be held. */
static int view_of_buffer(PyObject *array, rl_view *view, bool written, const char *kernel) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0))) {
        PyErr_Clear();
        const char *why = written ? "cannot be written: it is read-only, as what expand gives, or holds no numbers" : "cannot be read";
        PyErr_Format(PyExc_TypeError, "%s: an argument of type %R %s", kernel, (PyObject *)Py_TYPE(array), why);
        return -1;
    }
    const char *format = buffer.format ? buffer.format : "B";
    bool fits = buffer.ndim == 0 || (buffer.shape && buffer.strides); /* ctypes gives no strides although asked */
    fits = fits && fill_view(view, dtype_of_format(format), buffer.buf, buffer.ndim, buffer.shape, buffer.strides);
    if (!fits)
        PyErr_Format(PyExc_TypeError,
                     "%s: an array of format '%s' and %d axes cannot be used (unknown dtype, misaligned, no strides, or more than %d axes)",
                     kernel, format, buffer.ndim, RL_MAX_DIMS);
    PyBuffer_Release(&buffer);
    return fits ? 0 : -1;
}

static int view_of(PyObject *array, rl_view *view, bool written, const char *kernel) {
    if (fields_known && Py_TYPE(array) == (PyTypeObject *)ndarray && view_of_fields(array, view, written)) return 0;
    return view_of_buffer(array, view, written, kernel);
}

/* Whether the struct says of a new array, and of one that is read-only, what the buffer protocol says. */
static bool check_fields(void) {
    PyObject *array = PyObject_CallFunction(ndarray, "(nn)O", (Py_ssize_t)2, (Py_ssize_t)3, dtype_objects[FLOAT64]);
    rl_view view, expected;
    bool same = array && view_of_buffer(array, &expected, true, "setup") == 0 && view_of_fields(array, &view, true) &&
                view.data == expected.data && view.dtype == expected.dtype && view.ndim == 2 && view.shape[0] == 2 && view.shape[1] == 3 &&
                view.stride[0] == 3 && view.stride[1] == 1;
    PyObject *done = same ? PyObject_CallMethod(array, "setflags", "i", 0) : NULL;
    same = done && !view_of_fields(array, &view, true) && view_of_fields(array, &view, false);
    Py_XDECREF(done);
    Py_XDECREF(array);
    PyErr_Clear();
    return same;
}

static int list_of(PyObject *given, PyObject **held, rl_list *list, bool written, const char *kernel) {
    if (!PyList_Check(given)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a list of arrays, got %R", kernel, given);
        return -1;
    }
    PyObject *sequence = *held = PyList_GetSlice(given, 0, PyList_Size(given));
    if (!sequence) return -1;
    list->count = PyList_Size(sequence);
    list->views = malloc(((size_t)list->count + 1) * sizeof(rl_view));
    if (!list->views) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < list->count; i++)
        if (view_of(PyList_GetItem(sequence, (Py_ssize_t)i), &list->views[i], written, kernel)) return -1;
    return 0;
}

/* The arguments of one call, with the storage that its views and lists live in. */
typedef struct {
    rl_argument values[RL_MAX_ARGUMENTS];
    rl_view views[RL_MAX_ARGUMENTS];
    rl_list lists[RL_MAX_ARGUMENTS];
    PyObject *held[RL_MAX_ARGUMENTS]; /* own copies of lists: others may change theirs while the lock is released */
    int64_t elements;                 /* the most that any one view has */
} call_arguments;

static int64_t most_elements(const rl_list *list) {
    int64_t total = 0;
    for (int64_t i = 0; i < list->count; i++) total += rl_size(&list->views[i]);
    return total;
}

static int convert(const rl_kernel *kernel, int i, PyObject *argument, call_arguments *call) {
    int kind = kernel->kinds[i] & KIND_ALONE;
    bool written = kernel->kinds[i] & KIND_WRITTEN;
    if (kind == KIND_INT) {
        call->values[i].integer = PyLong_AsLongLong(argument);
        return call->values[i].integer == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (kind == KIND_DOUBLE) {
        call->values[i].number = PyFloat_AsDouble(argument);
        return call->values[i].number == -1.0 && PyErr_Occurred() ? -1 : 0;
    }
    call->values[i].view = NULL;
    if (argument == Py_None) return 0; /* the kernel's wrapper refuses it where the argument is not optional */
    int64_t elements;
    if (kind == KIND_LIST) {
        call->values[i].list = &call->lists[i];
        if (list_of(argument, &call->held[i], &call->lists[i], written, kernel->name)) return -1;
        elements = most_elements(&call->lists[i]);
    } else {
        call->values[i].view = &call->views[i];
        if (view_of(argument, &call->views[i], written, kernel->name)) return -1;
        elements = rl_size(&call->views[i]);
    }
    call->elements = RL_MAX(call->elements, elements);
    return 0;
}

/* ---- Program ---- */

static void program_dealloc(PyObject *self) {
    Program *program = (Program *)self;
    PyTypeObject *type = Py_TYPE(self);
    rl_program_free(program->program);
    if (program->pool) rl_pool_release(program->pool);
    Py_XDECREF(program->pinned);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int pin(PyObject *argument, const rl_view *view) {
    return rl_pool_owns(recorded->pool, view->data) ? 0 : PyList_Append(recorded->pinned, argument);
}

static int record(int index, PyObject *const *args, const call_arguments *call) {
    const rl_kernel *kernel = &rl_kernels[index];
    for (int i = 0; i < kernel->argument_count; i++) {
        int kind = kernel->kinds[i] & KIND_ALONE;
        if (args[i] == Py_None || kind > KIND_LIST) continue;
        if (kind != KIND_LIST && pin(args[i], &call->views[i])) return -1;
        for (int64_t k = 0; kind == KIND_LIST && k < call->lists[i].count; k++)
            if (pin(PyList_GetItem(call->held[i], (Py_ssize_t)k), &call->lists[i].views[k])) return -1;
    }
    if (rl_program_append(recorded->program, index, call->values)) return 0;
    PyErr_NoMemory();
    return -1;
}

/* ---- the call ---- */

static rl_ctx *take_context(void) { return idle_count > 0 ? idle_contexts[--idle_count] : rl_ctx_new(); }

static void give_context(rl_ctx *ctx) {
    if (idle_count < MAX_CONTEXTS) idle_contexts[idle_count++] = ctx;
    else rl_ctx_free(ctx);
}

static PyObject *finish(rl_ctx *ctx, rl_status status) {
    if (status) PyErr_SetString(PyTuple_GetItem(exceptions, (Py_ssize_t)status - 1), rl_error(ctx));
    give_context(ctx);
    if (status) return NULL;
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *run(const rl_kernel *kernel, const call_arguments *call) {
    rl_ctx *ctx = take_context();
    if (!ctx) return PyErr_NoMemory();
    rl_status status;
    if (call->elements < RELEASE_GIL_ELEMENTS) {
        status = kernel->run(ctx, call->values);
    } else {
        PyThreadState *state = PyEval_SaveThread();
        status = kernel->run(ctx, call->values);
        PyEval_RestoreThread(state);
    }
    return finish(ctx, status);
}

static PyObject *call(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    long index = count > 0 ? PyLong_AsLong(args[0]) : -1;
    if (index < 0 || index >= rl_kernel_count) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "call: no such kernel");
    const rl_kernel *kernel = &rl_kernels[index];
    args++;
    if (count - 1 != kernel->argument_count)
        return PyErr_Format(PyExc_TypeError, "%s: %d arguments expected, got %zd", kernel->name, kernel->argument_count, count - 1);
    call_arguments arguments;
    arguments.elements = 0;
    for (int i = 0; i < kernel->argument_count; i++) {
        arguments.lists[i].views = NULL;
        arguments.held[i] = NULL;
    }
    PyObject *result = NULL;
    bool ready = true;
    for (int i = 0; i < kernel->argument_count && ready; i++) ready = convert(kernel, i, args[i], &arguments) == 0;
    if (ready) result = run(kernel, &arguments);
    if (result && recording_here() && record((int)index, args, &arguments)) Py_CLEAR(result);
    for (int i = 0; i < kernel->argument_count; i++) {
        free(arguments.lists[i].views);
        Py_XDECREF(arguments.held[i]);
    }
    return result;
}

/* ---- recording ---- */

static PyObject *record_start(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    if (recorded) return PyErr_Format(PyExc_RuntimeError, "record_start: a program is being recorded already");
    Program *program = PyObject_New(Program, program_type);
    if (!program) return NULL;
    program->program = rl_program_new();
    program->pool = rl_pool_new();
    program->pinned = PyList_New(0);
    if (!program->program || !program->pool || !program->pinned) {
        Py_DECREF(program);
        return PyErr_NoMemory();
    }
    recorded = program;
    recorded_by = PyThread_get_thread_ident();
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *record_stop(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    if (!recording_here()) return PyErr_Format(PyExc_RuntimeError, "record_stop: nothing is being recorded");
    Program *program = recorded;
    recorded = NULL;
    return (PyObject *)program;
}

static PyObject *recording(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(recording_here());
}

static PyObject *program_run(PyObject *self, PyObject *unused) {
    (void)unused;
    rl_ctx *ctx = take_context();
    if (!ctx) return PyErr_NoMemory();
    PyThreadState *state = PyEval_SaveThread();
    rl_status status = rl_program_run(((Program *)self)->program, ctx);
    PyEval_RestoreThread(state);
    return finish(ctx, status);
}

static Py_ssize_t program_length(PyObject *self) { return (Py_ssize_t)rl_program_length(((Program *)self)->program); }

static PyMethodDef program_methods[] = {{"run", program_run, METH_NOARGS, "Run every recorded call in order."}, {NULL, NULL, 0, NULL}};
static PyType_Slot program_slots[] = {
    {Py_tp_dealloc, program_dealloc}, {Py_sq_length, program_length}, {Py_tp_methods, program_methods}, {0, NULL}};
static PyType_Spec program_spec = {"rushlight._core.Program", sizeof(Program), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   program_slots};

/* ---- settings ---- */

static PyObject *setup(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array, *dtypes, *errors;
    if (!PyArg_ParseTuple(args, "OO!O!", &array, &PyTuple_Type, &dtypes, &PyTuple_Type, &errors)) return NULL;
    if (PyTuple_Size(dtypes) != DTYPES || PyTuple_Size(errors) != RL_MEMORY_ERROR)
        return PyErr_Format(PyExc_ValueError, "setup: %d dtypes and %d exceptions expected", DTYPES, RL_MEMORY_ERROR);
    Py_INCREF(array);
    Py_INCREF(dtypes); /* keeps the single ones */
    Py_INCREF(errors);
    ndarray = array;
    for (int i = 0; i < DTYPES; i++) dtype_objects[i] = PyTuple_GetItem(dtypes, i);
    exceptions = errors;
    fields_known = check_fields();
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *set_num_threads(PyObject *module, PyObject *count) {
    (void)module;
    long threads = PyLong_AsLong(count);
    if (threads == -1 && PyErr_Occurred()) return NULL;
    if (threads < 1) return PyErr_Format(PyExc_ValueError, "set_num_threads: expected at least 1, got %ld", threads);
    rl_set_num_threads((int)RL_MIN(threads, RL_MAX_THREADS));
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *get_num_threads(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLong(rl_get_num_threads());
}

static PyObject *level(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_FromString(rl_level());
}

static PyObject *set_level(PyObject *module, PyObject *name) {
    (void)module;
    PyObject *bytes = PyUnicode_AsUTF8String(name);
    if (!bytes) return NULL;
    int accepted = rl_set_level(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    return PyBool_FromLong(accepted);
}

static PyObject *memory_stats(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    rl_pool_stats stats = rl_pool_measure(main_pool);
    return Py_BuildValue("{s:n,s:n,s:n}", "in_use", (Py_ssize_t)stats.in_use, "peak", (Py_ssize_t)stats.peak, "reserved",
                         (Py_ssize_t)stats.reserved);
}

static PyObject *empty_cache(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    rl_pool_trim(main_pool);
    Py_INCREF(Py_None);
    return Py_None;
}

static PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, "setup(ndarray, dtypes, exceptions): what the door makes and raises."},
    {"empty", (PyCFunction)(void (*)(void))empty, METH_FASTCALL, "empty(shape, dtype): an array over a block of the memory pool."},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, "call(kernel, *arguments): run one kernel of rushlight.h."},
    {"record_start", record_start, METH_NOARGS, "Write down every call from now on, with a private memory pool."},
    {"record_stop", record_stop, METH_NOARGS, "End the recording and return its Program."},
    {"recording", recording, METH_NOARGS, "Whether this thread's calls are being recorded."},
    {"set_num_threads", set_num_threads, METH_O, "Threads of the kernels, the caller included."},
    {"get_num_threads", get_num_threads, METH_NOARGS, "Threads of the kernels, the caller included."},
    {"level", level, METH_NOARGS, "The instruction-set level in use."},
    {"set_level", set_level, METH_O, "Use a level by name; False when the CPU or the build lacks it."},
    {"memory_stats", memory_stats, METH_NOARGS, "Bytes of the memory pool: in_use, peak, reserved."},
    {"empty_cache", empty_cache, METH_NOARGS, "Give the pages of free blocks back to the system."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rushlight._core", "Rushlight's native core.", -1, methods, NULL, NULL, NULL, NULL};

static int add_constants(PyObject *module) {
    PyObject *kernels = PyDict_New(), *levels = PyList_New(0);
    for (int i = 0; kernels && i < rl_kernel_count; i++) {
        PyObject *index = PyLong_FromLong(i);
        if (!index || PyDict_SetItemString(kernels, rl_kernels[i].name, index)) return -1;
        Py_DECREF(index);
    }
    for (const char *const *name = rl_levels(); levels && *name; name++) {
        PyObject *text = PyUnicode_FromString(*name);
        if (!text || PyList_Append(levels, text)) return -1;
        Py_DECREF(text);
    }
    return PyModule_AddObject(module, "KERNELS", kernels) || PyModule_AddObject(module, "LEVELS", levels);
}

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    block_type = (PyTypeObject *)PyType_FromSpec(&block_spec);
    program_type = (PyTypeObject *)PyType_FromSpec(&program_spec);
    main_pool = rl_pool_new();
    if (!module || !block_type || !program_type || !main_pool || add_constants(module) || rl_add_rows(module)) return NULL;
    return module;
}
