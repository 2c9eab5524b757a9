/* The few lines that every C test shares.  A test is a main() that ends with `return finish();`. */
#ifndef CHECK_H
#define CHECK_H

#include "rushlight.h"
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

#define CHECK(condition, ...)                                                                                                              \
    do {                                                                                                                                   \
        checks++;                                                                                                                          \
        if (!(condition)) {                                                                                                                \
            failures++;                                                                                                                    \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                                                         \
            printf(__VA_ARGS__);                                                                                                           \
            printf("\n");                                                                                                                  \
        }                                                                                                                                  \
    } while (0)

/* a kernel call that must succeed, or must fail with this status */
#define RUN(call) CHECK((call) == RL_OK, "%s, level %s", rl_error(ctx), rl_level())
#define FAILS(expected, call) CHECK((call) == (expected), "expected status %d, level %s", (int)(expected), rl_level())

/* a contiguous view */
static inline rl_view view_of(void *data, rl_dtype dtype, int ndim, const int64_t *shape) {
    rl_view view = {.data = data, .dtype = (int32_t)dtype, .ndim = ndim};
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        view.shape[d] = shape[d];
        view.stride[d] = stride;
        stride *= shape[d];
    }
    return view;
}
#define SHAPE(...)                                                                                                                         \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
#define VIEW(data, dtype, ...) view_of(data, dtype, SHAPE(__VA_ARGS__))

/* reproducible numbers in [-1, 1) */
static uint64_t check_state = 1;
static inline double uniform(void) {
    check_state = check_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(check_state >> 11) / (double)(1ull << 52) - 1;
}
/* a reproducible integer in [0, count) */
static inline int64_t pick(int64_t count) { return (int64_t)((uniform() + 1) / 2 * (double)count); }

/* ---- memory: every array is a block of its exact size, so that the sanitizer sees one step too far ---- */

static void **arrays;
static size_t array_count;

static inline void *allocate(int64_t bytes) {
    void *block = calloc((size_t)(bytes > 0 ? bytes : 1), 1);
    arrays = realloc(arrays, (array_count + 1) * sizeof *arrays);
    if (!block || !arrays) abort();
    return arrays[array_count++] = block;
}

static inline void free_arrays(void) {
    while (array_count > 0) free(arrays[--array_count]);
    free(arrays);
    arrays = NULL;
}

/* ---- arrays ---- */

static inline int64_t item_bytes(rl_dtype dtype) { return dtype == RL_BOOL ? 1 : dtype == RL_FLOAT32 ? 4 : 8; }

static inline int64_t size_of(const rl_view *x) {
    int64_t size = 1;
    for (int d = 0; d < x->ndim; d++) size *= x->shape[d];
    return size;
}

/* the i-th element in row-major order */
static inline void *element(const rl_view *x, int64_t i) {
    int64_t at = 0;
    for (int d = x->ndim - 1; d >= 0; d--) {
        at += i % x->shape[d] * x->stride[d];
        i /= x->shape[d];
    }
    return (char *)x->data + at * item_bytes((rl_dtype)x->dtype);
}

static inline double get(const rl_view *x, int64_t i) {
    void *p = element(x, i);
    if (x->dtype == RL_FLOAT32) return (double)*(float *)p;
    return x->dtype == RL_FLOAT64 ? *(double *)p : x->dtype == RL_BOOL ? *(uint8_t *)p : (double)*(int64_t *)p;
}

static inline void put(const rl_view *x, int64_t i, double value) {
    void *p = element(x, i);
    if (x->dtype == RL_FLOAT32) *(float *)p = (float)value;
    else if (x->dtype == RL_FLOAT64) *(double *)p = value;
    else if (x->dtype == RL_BOOL) *(uint8_t *)p = value != 0;
    else *(int64_t *)p = (int64_t)value;
}

static inline void fill_uniform(const rl_view *x, double low, double high) {
    int64_t size = size_of(x);
    for (int64_t i = 0; i < size; i++) put(x, i, low + (high - low) * (uniform() + 1) / 2);
}

/* a contiguous array of numbers in [-1, 1); zeros when it is not of floats */
static inline rl_view array_of(rl_dtype dtype, int ndim, const int64_t *shape) {
    rl_view x = view_of(NULL, dtype, ndim, shape);
    x.data = allocate(size_of(&x) * item_bytes(dtype));
    if (dtype == RL_FLOAT32 || dtype == RL_FLOAT64) fill_uniform(&x, -1, 1);
    return x;
}
#define ARRAY(dtype, ...) array_of(dtype, SHAPE(__VA_ARGS__))

/* a second array with the contents of the first, contiguous */
static inline rl_view copy_of(const rl_view *x) {
    rl_view y = array_of((rl_dtype)x->dtype, x->ndim, x->shape);
    for (int64_t i = 0; i < size_of(x); i++) put(&y, i, get(x, i));
    return y;
}

/* the elements as doubles, in row-major order */
static inline double *values_of(const rl_view *x) {
    int64_t size = size_of(x);
    double *values = allocate(size * (int64_t)sizeof(double));
    for (int64_t i = 0; i < size; i++) values[i] = get(x, i);
    return values;
}

/* ---- views with other strides ---- */

enum { PLAIN, TRANSPOSED, PADDED, SPREAD, REVERSED, LAYOUTS };

/* An array of this shape whose last two axes (or last one) lie in memory as `layout` says: the last but one innermost, rows with a gap
 * between them, every third element, or backwards. */
static inline rl_view laid_out(int layout, rl_dtype dtype, int ndim, const int64_t *shape) {
    int64_t storage[RL_MAX_DIMS];
    memcpy(storage, shape, (size_t)ndim * sizeof *storage);
    int last = ndim - 1, other = layout == TRANSPOSED && ndim > 1 ? ndim - 2 : last;
    if (ndim == 0) return array_of(dtype, ndim, shape);
    storage[last] = shape[other];
    storage[other] = shape[last];
    if (layout == PADDED) storage[last] += 5;
    if (layout == SPREAD) storage[last] *= 3;
    rl_view x = array_of(dtype, ndim, storage);
    memcpy(x.shape, shape, (size_t)ndim * sizeof *shape);
    int64_t stride = x.stride[last];
    x.stride[last] = x.stride[other];
    x.stride[other] = stride;
    if (layout == SPREAD) x.stride[last] *= 3;
    if (layout == REVERSED && size_of(&x) > 0) {
        for (int d = 0; d < ndim; d++) x.stride[d] *= -1;
        x.data = (char *)x.data + (size_of(&x) - 1) * item_bytes(dtype);
    }
    return x;
}

/* the same memory read as an axis of n repeats */
static inline rl_view repeated(rl_view x, int axis, int64_t n) {
    x.shape[axis] = n;
    x.stride[axis] = 0;
    return x;
}

/* ---- comparing ---- */

/* one rounding of the dtype */
static inline double epsilon(rl_dtype dtype) { return dtype == RL_FLOAT32 ? FLT_EPSILON : DBL_EPSILON; }

static inline bool agree(double got, double expected, double tolerance) {
    if (isnan(expected)) return isnan(got);
    if (isinf(expected)) return got == expected;
    return fabs(got - expected) <= tolerance * (1 + fabs(expected));
}

/* every element within tolerance * (1 + |expected|); the first that is not gets named */
static inline void check_values(const char *name, const rl_view *got, const double *expected, double tolerance) {
    int64_t size = size_of(got), i = 0;
    while (i < size && agree(get(got, i), expected[i], tolerance)) i++;
    CHECK(i == size, "%s[%lld] is %.17g, expected %.17g (dtype %d, level %s)", name, (long long)i, get(got, i), expected[i],
          (int)got->dtype, rl_level());
}

/* bit for bit the same */
static inline void check_same(const char *name, const rl_view *x, const rl_view *y) {
    int64_t size = size_of(x), i = 0;
    size_t bytes = (size_t)item_bytes((rl_dtype)x->dtype);
    while (i < size && !memcmp(element(x, i), element(y, i), bytes)) i++;
    CHECK(i == size, "%s[%lld]: %.17g and %.17g differ (level %s)", name, (long long)i, get(x, i), get(y, i), rl_level());
}

/* ---- running ---- */

/* a test with float32 and float64 at every level of this machine */
static inline void at_every_level(void (*test)(rl_ctx *ctx, rl_dtype dtype)) {
    for (const char *const *level = rl_levels(); *level; level++) {
        if (!rl_set_level(*level)) continue;
        for (int dtype = RL_FLOAT32; dtype <= RL_FLOAT64; dtype++) {
            rl_ctx *ctx = rl_ctx_new();
            test(ctx, (rl_dtype)dtype);
            rl_ctx_free(ctx);
            free_arrays();
        }
    }
}

static inline int finish(void) {
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
#endif
