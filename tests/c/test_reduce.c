/* Reductions over every set of axes against plain loops in double. */
#include "check.h"

enum { SUM, MOST, LEAST, KINDS };
static const char *const names[] = {"sum", "amax", "amin"};

static rl_status reduce(rl_ctx *ctx, int kind, rl_view *y, const rl_view *x, double scale) {
    return kind == SUM ? rl_sum(ctx, y, x, scale) : kind == MOST ? rl_amax(ctx, y, x) : rl_amin(ctx, y, x);
}

/* y's shape decides which axes go */
static double *reference(int kind, const rl_view *y, const rl_view *x, double scale) {
    double *expected = values_of(y);
    for (int64_t i = 0; i < size_of(y); i++) expected[i] = kind == SUM ? 0 : kind == MOST ? -INFINITY : INFINITY;
    for (int64_t i = 0; i < size_of(x); i++) {
        int64_t rest = i, at = 0, step = 1;
        for (int d = x->ndim - 1; d >= 0; d--) {
            if (y->shape[d] > 1) at += rest % x->shape[d] * step;
            step *= y->shape[d];
            rest /= x->shape[d];
        }
        double value = get(x, i), *to = expected + at;
        if (kind == SUM) *to += scale * value;
        else if (!isnan(*to) && (isnan(value) || (kind == MOST ? value > *to : value < *to))) *to = value;
    }
    return expected;
}

static void run(rl_ctx *ctx, const rl_view *x, int axes, int layout) {
    int64_t shape[RL_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) shape[d] = axes >> d & 1 ? 1 : x->shape[d];
    for (int kind = 0; kind < KINDS; kind++) {
        double scale = kind == SUM ? 0.5 : 1;
        rl_view y = laid_out(layout, (rl_dtype)x->dtype, x->ndim, shape);
        double *expected = reference(kind, &y, x, scale);
        if (kind != SUM && size_of(x) == 0 && size_of(&y) > 0) {
            FAILS(RL_VALUE_ERROR, reduce(ctx, kind, &y, x, scale));
            continue;
        }
        RUN(reduce(ctx, kind, &y, x, scale));
        double length = size_of(&y) ? (double)(size_of(x) / size_of(&y)) : 0;
        check_values(names[kind], &y, expected, kind == SUM ? epsilon((rl_dtype)x->dtype) * (8 + sqrt(length) * 4) : 0);
    }
}

static void test_every_axis(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t shapes[][4] = {{3, 4, 5, 6}, {2, 1, 9, 33}, {1, 3, 1, 70}, {2, 0, 3, 4}, {5, 2, 17, 0}, {1, 1, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            rl_view x = laid_out(layout, dtype, 4, shapes[i]), other = x;
            other.shape[0] = x.shape[2], other.shape[2] = x.shape[0]; /* axes in another order */
            other.stride[0] = x.stride[2], other.stride[2] = x.stride[0];
            rl_view wide = repeated(x, 0, 3);
            for (int axes = 0; axes < 16; axes++) {
                run(ctx, &x, axes, axes % LAYOUTS);
                run(ctx, &other, axes, (axes + 1) % LAYOUTS);
                if (shapes[i][0]) run(ctx, &wide, axes, PLAIN);
            }
            free_arrays();
        }
}

static void test_ranks(rl_ctx *ctx, rl_dtype dtype) {
    rl_view scalar = array_of(dtype, 0, NULL), vector = ARRAY(dtype, 1025), eight = ARRAY(dtype, 2, 1, 3, 2, 1, 2, 3, 2);
    run(ctx, &scalar, 0, PLAIN);
    run(ctx, &vector, 0, REVERSED);
    run(ctx, &vector, 1, PLAIN);
    for (int axes = 0; axes < 256; axes += 5) run(ctx, &eight, axes, PLAIN);
}

static void test_large(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t shapes[][2] = {{1, 200000}, {3000, 70}, {5, 9001}, {4100, 3}, {1, 65536}, {1, 65537}, {257, 257}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int layout = (int)i % 2; layout < LAYOUTS; layout += 2) {
            rl_view x = laid_out(layout, dtype, 2, shapes[i]);
            for (int axes = 0; axes < 4; axes++) run(ctx, &x, axes, PLAIN);
            free_arrays();
        }
}

static void test_nan_and_infinity(rl_ctx *ctx, rl_dtype dtype) {
    for (int64_t length = 1; length < 300; length = length * 2 + 1)
        for (int axes = 1; axes < 4; axes++) {
            rl_view x = ARRAY(dtype, 5, length), y = ARRAY(dtype, axes & 1 ? 1 : 5, axes & 2 ? 1 : length);
            put(&x, pick(5 * length), NAN);
            put(&x, pick(5 * length), INFINITY);
            put(&x, pick(5 * length), -INFINITY);
            for (int kind = 0; kind < KINDS; kind++) {
                double *expected = reference(kind, &y, &x, 1);
                RUN(reduce(ctx, kind, &y, &x, 1));
                check_values(names[kind], &y, expected, 64 * epsilon(dtype));
            }
        }
}

int main(void) {
    at_every_level(test_every_axis);
    at_every_level(test_ranks);
    at_every_level(test_large);
    at_every_level(test_nan_and_infinity);
    return finish();
}
