/* What the kernels and the runtime share and no user sees: context, parallel loops, workspace, view arithmetic. */
#ifndef RUSHLIGHT_INTERNAL_H
#define RUSHLIGHT_INTERNAL_H

#include "platform.h"
#include "rushlight.h"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RL_MIN(a, b) ((a) < (b) ? (a) : (b))
#define RL_MAX(a, b) ((a) > (b) ? (a) : (b))
#define RL_INLINE static inline __attribute__((always_inline))
#define RL_MAX_THREADS 64

struct rl_ctx {
    void *workspace;
    size_t workspace_bytes;
    int threads;        /* that this call may use, asked for once: workspace is sized by it */
    const char *kernel; /* the one running: rl_fail puts its name before the text */
    rl_status status;
    char error[512];
};

/* One numbered piece of a parallel job.  worker is in [0, ctx->threads) and unique among the threads inside the job. */
typedef void rl_task(void *job, int64_t piece, int worker);

/* Run pieces 0 … count-1, each once, on whichever thread takes it.  What a piece computes may depend on its number only, so results never
 * depend on the thread count.  Returns when all are done.  A task must not call rl_parallel. */
void rl_parallel(rl_ctx *ctx, rl_task *task, void *job, int64_t count);

/* Let the pool's threads run pieces 0 … count-1 while they have no job; `worker` means nothing here.  Returns the offer's number:
 * rl_finish_offer runs the pieces that are left and returns when all are done; until then `job` must stay where it is.  0, and nothing
 * runs, when there is nobody to help or another offer is not done yet. */
uint64_t rl_offer(rl_task *task, void *job, int64_t count);
void rl_finish_offer(uint64_t offer);

/* At least `bytes` of scratch, 64-byte aligned, valid until the next call; NULL (error set) when memory is short.  Call before a
 * parallel region, never inside one. */
void *rl_workspace(rl_ctx *ctx, size_t bytes);

/* Set the error text and return `status`, so that a kernel says `return rl_fail(ctx, RL_SHAPE_ERROR, "…", …)`. */
rl_status rl_fail(rl_ctx *ctx, rl_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* "(2, 3)" in a buffer of the caller's */
typedef struct {
    char text[RL_MAX_DIMS * 22 + 4];
} rl_shape_text;
rl_shape_text rl_shape_of(const rl_view *view);

#define RL_CHECK(condition, status, ...)                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) return rl_fail(ctx, status, __VA_ARGS__);                                                                        \
    } while (0)
#define RL_SHAPE(view) (rl_shape_of(view).text)

RL_INLINE int64_t rl_size(const rl_view *x) {
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++) n *= x->shape[d];
    return n;
}

RL_INLINE bool rl_contiguous(const rl_view *x) {
    int64_t expected = 1;
    for (int d = x->ndim - 1; d >= 0; d--) {
        if (x->shape[d] == 0) return true;
        if (x->shape[d] != 1 && x->stride[d] != expected) return false;
        expected *= x->shape[d];
    }
    return true;
}

RL_INLINE bool rl_same_shape(const rl_view *x, const rl_view *y) {
    if (x->ndim != y->ndim) return false;
    for (int d = 0; d < x->ndim; d++)
        if (x->shape[d] != y->shape[d]) return false;
    return true;
}

RL_INLINE int64_t rl_ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

/* whole cache lines, so that what follows starts on one */
RL_INLINE size_t rl_whole_lines(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

#endif
