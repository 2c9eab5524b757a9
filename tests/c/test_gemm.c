/* The matrix product against three nested loops in double. */
#include "check.h"

typedef struct {
    int64_t batch, m, n, k;
    int a_layout, b_layout;
    bool share_a, share_b; /* no batch axis: one matrix for all */
    bool bias, residual, pre, row_sum, accumulate, padded_c;
    int activation;
    double scale;
} setup;

static double activate(int activation, double x) {
    switch (activation) {
    case 1: return x > 0 ? x : 0;
    case 2: return x * (1 + erf(x / sqrt(2))) / 2;
    case 3: return x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))) / 2;
    case 4: return x / (1 + exp(-x));
    default: return x;
    }
}

/* (batch, rows, columns), or (rows, columns) when shared */
static rl_view matrix(rl_dtype dtype, int layout, bool shared, int64_t batch, int64_t rows, int64_t columns) {
    const int64_t shape[] = {batch, rows, columns};
    return shared ? laid_out(layout, dtype, 2, shape + 1) : laid_out(layout, dtype, 3, shape);
}

static double *reference(const setup *s, const double *a, const double *b, const double *bias, const double *residual, const double *before,
                         double *pre) {
    double *c = allocate(s->batch * s->m * s->n * (int64_t)sizeof(double));
    for (int64_t at = 0; at < s->batch * s->m * s->n; at++) {
        int64_t j = at % s->n, i = at / s->n % s->m, batch = at / s->n / s->m;
        const double *row = a + ((s->share_a ? 0 : batch) * s->m + i) * s->k;
        const double *column = b + (s->share_b ? 0 : batch) * s->k * s->n + j;
        double sum = 0;
        for (int64_t p = 0; p < s->k; p++) sum += row[p] * column[p * s->n];
        double x = s->scale * sum + (bias ? bias[j] : 0);
        pre[at] = x;
        c[at] = s->accumulate ? before[at] + x : activate(s->activation, x) + (residual ? residual[at] : 0);
    }
    return c;
}

static void check_row_sum(const setup *s, const rl_view *got, const double *a, double tolerance) {
    double *expected = allocate(s->m * (int64_t)sizeof(double));
    for (int64_t i = 0; i < s->m; i++) {
        for (int64_t p = 0; p < s->k; p++) expected[i] += a[i * s->k + p];
        expected[i] *= s->scale;
    }
    check_values("row_sum", got, expected, tolerance);
}

static void run(rl_ctx *ctx, rl_dtype dtype, setup s) {
    rl_view a = matrix(dtype, s.a_layout, s.share_a, s.batch, s.m, s.k);
    rl_view b = matrix(dtype, s.b_layout, s.share_b, s.batch, s.k, s.n);
    rl_view c = matrix(dtype, s.padded_c ? PADDED : PLAIN, s.batch == 1, s.batch, s.m, s.n);
    rl_view residual = matrix(dtype, PADDED, s.batch == 1, s.batch, s.m, s.n);
    rl_view pre = matrix(dtype, PADDED, s.batch == 1, s.batch, s.m, s.n);
    rl_view bias = ARRAY(dtype, s.n), row_sum = ARRAY(dtype, s.m);
    double *a_values = values_of(&a), *bias_values = s.bias ? values_of(&bias) : NULL, *before = values_of(&c);
    double *expected_pre = allocate(s.batch * s.m * s.n * (int64_t)sizeof(double));
    double *expected = reference(&s, a_values, values_of(&b), bias_values, s.residual ? values_of(&residual) : NULL, before, expected_pre);
    rl_status status = rl_gemm(ctx, &c, &a, &b, s.bias ? &bias : NULL, s.residual ? &residual : NULL, s.pre ? &pre : NULL,
                               s.row_sum ? &row_sum : NULL, s.scale, s.activation, s.accumulate);
    CHECK(status == RL_OK, "%s", rl_error(ctx));
    double tolerance = epsilon(dtype) * ((double)s.k + 16);
    int failed = failures;
    check_values("c", &c, expected, tolerance);
    if (s.pre) check_values("pre", &pre, expected_pre, tolerance);
    if (s.row_sum) check_row_sum(&s, &row_sum, a_values, tolerance);
    if (failures > failed)
        printf("  with batch %lld, m %lld, n %lld, k %lld, layouts %d %d\n", (long long)s.batch, (long long)s.m, (long long)s.n,
               (long long)s.k, s.a_layout, s.b_layout);
}

static const int64_t sizes[][3] = {{1, 1, 1},   {2, 3, 4},    {5, 1, 9},    {1, 17, 33},   {7, 16, 8},    {12, 32, 16},
                                   {13, 33, 5}, {25, 65, 31}, {6, 130, 64}, {40, 48, 257}, {64, 10, 512}, {3, 2, 1000},
                                   {0, 5, 3},   {5, 0, 3},    {5, 6, 0},    {0, 0, 0}};

static void test_layouts(rl_ctx *ctx, rl_dtype dtype) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int layout = 0; layout < LAYOUTS * LAYOUTS; layout++) {
            setup s = {.batch = 1, .m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .scale = 1};
            s.a_layout = layout / LAYOUTS;
            s.b_layout = layout % LAYOUTS;
            s.padded_c = layout % 2;
            s.share_a = s.share_b = true;
            run(ctx, dtype, s);
        }
    free_arrays();
}

static void test_epilogues(rl_ctx *ctx, rl_dtype dtype) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int flags = 0; flags < 16; flags++)
            for (int activation = 0; activation <= 4; activation++) {
                setup s = {.batch = 1, .m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .activation = activation};
                s.share_a = s.share_b = true;
                s.bias = flags & 1;
                s.residual = flags & 2;
                s.pre = flags & 4;
                s.row_sum = flags & 8;
                s.scale = flags % 3 ? 0.75 : 1;
                s.padded_c = activation % 2;
                run(ctx, dtype, s);
            }
    free_arrays();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int flags = 0; flags < 4; flags++) {
            setup s = {.batch = 1, .m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .accumulate = true};
            s.share_a = s.share_b = true;
            s.row_sum = flags & 1;
            s.scale = flags & 2 ? -0.5 : 1;
            s.a_layout = flags & 1 ? TRANSPOSED : PLAIN;
            run(ctx, dtype, s);
        }
    free_arrays();
}

static void test_batches(rl_ctx *ctx, rl_dtype dtype) {
    for (int flags = 0; flags < 16; flags++) {
        setup s = {.batch = flags & 1 ? 3 : 7, .m = 9, .n = 35, .k = 18, .scale = 1};
        s.share_a = flags & 2;
        s.share_b = flags & 4;
        s.b_layout = flags & 8 ? TRANSPOSED : PLAIN;
        s.bias = s.residual = s.pre = flags & 8;
        s.activation = flags & 8 ? 2 : 0;
        s.padded_c = flags & 1;
        run(ctx, dtype, s);
        s.batch = 0;
        run(ctx, dtype, s);
    }
    /* batch axes (2, 3) from a (2, 1) and b (3) */
    rl_view a = ARRAY(dtype, 2, 1, 4, 5), b = ARRAY(dtype, 3, 5, 6), c = ARRAY(dtype, 2, 3, 4, 6);
    double *a_values = values_of(&a), *b_values = values_of(&b), *expected = values_of(&c);
    for (int64_t at = 0; at < 2 * 3 * 4 * 6; at++) {
        int64_t j = at % 6, i = at / 6 % 4, inner = at / 24 % 3, outer = at / 72;
        expected[at] = 0;
        for (int64_t p = 0; p < 5; p++) expected[at] += a_values[(outer * 4 + i) * 5 + p] * b_values[(inner * 5 + p) * 6 + j];
    }
    RUN(rl_gemm(ctx, &c, &a, &b, NULL, NULL, NULL, NULL, 1, 0, 0));
    check_values("c", &c, expected, epsilon(dtype) * 32);
}

/* several blocks of rows and of k in either precision */
static void test_large(rl_ctx *ctx, rl_dtype dtype) {
    setup s = {.batch = 1, .m = 500, .n = 101, .k = 900, .scale = 1, .share_a = true, .share_b = true, .bias = true};
    run(ctx, dtype, s);
    s.a_layout = TRANSPOSED;
    s.row_sum = true;
    run(ctx, dtype, s);
    s = (setup){.batch = 1, .m = 11, .n = 700, .k = 1700, .scale = 1, .share_a = true, .share_b = true, .b_layout = TRANSPOSED};
    s.activation = 3;
    run(ctx, dtype, s);
}

/* a NaN or infinity in one row stays in that row, also through an empty product's zero */
static void test_special(rl_ctx *ctx, rl_dtype dtype) {
    rl_view a = ARRAY(dtype, 7, 3), b = ARRAY(dtype, 3, 9), c = ARRAY(dtype, 7, 9);
    put(&a, 3 * 3 + 1, NAN);
    put(&a, 5 * 3 + 2, INFINITY);
    RUN(rl_gemm(ctx, &c, &a, &b, NULL, NULL, NULL, NULL, 1, 0, 0));
    for (int64_t at = 0; at < 63; at++)
        CHECK((isnan(get(&c, at)) != 0) == (at / 9 == 3) && (isinf(get(&c, at)) != 0) == (at / 9 == 5), "element %d is %g", (int)at,
              get(&c, at));
}

int main(void) {
    at_every_level(test_layouts);
    at_every_level(test_epilogues);
    at_every_level(test_batches);
    at_every_level(test_large);
    at_every_level(test_special);
    return finish();
}
