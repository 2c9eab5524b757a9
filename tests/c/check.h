/* The few lines that every C test shares.  A test is a main() that ends with `return finish();`. */
#ifndef CHECK_H
#define CHECK_H

#include "rushlight.h"
#include <math.h>
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
#define VIEW(data, dtype, ...)                                                                                                             \
    view_of(data, dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

/* reproducible numbers in [-1, 1) */
static uint64_t check_state = 1;
static inline double uniform(void) {
    check_state = check_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(check_state >> 11) / (double)(1ull << 52) - 1;
}

static inline int finish(void) {
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
#endif
