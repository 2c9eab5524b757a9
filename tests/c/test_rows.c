/* Softmax and its relatives, layer norm and RMS norm, against plain loops in double. */
#include "check.h"

static const int64_t lengths[] = {1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 100, 1000, 9000};
static const int64_t row_counts[] = {1, 2, 5, 33, 300};
#define COUNT(table) (sizeof(table) / sizeof *(table))

typedef void test_case(rl_ctx *ctx, rl_dtype dtype, int64_t rows, int64_t n);

static void for_every_size(rl_ctx *ctx, rl_dtype dtype, test_case *run) {
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (size_t r = 0; r < COUNT(row_counts); r++) {
            if (lengths[i] * row_counts[r] > 100000) continue;
            run(ctx, dtype, row_counts[r], lengths[i]);
            free_arrays();
        }
    run(ctx, dtype, 0, 5);
    run(ctx, dtype, 0, 0);
}

/* ---- softmax ---- */

static void run_softmax(rl_ctx *ctx, rl_dtype dtype, int64_t rows, int64_t n) {
    rl_view x = ARRAY(dtype, rows, n), y = ARRAY(dtype, rows, n), log_y = ARRAY(dtype, rows, n), total = ARRAY(dtype, rows);
    fill_uniform(&x, -20, 20);
    for (int64_t i = 0; i + 1 < rows * n; i += 7) put(&x, i, i % 3 ? -1000 : 900);
    double *xs = values_of(&x), *probability = values_of(&x), *logarithm = values_of(&x), *sums = values_of(&total);
    for (int64_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) top = fmax(top, xs[i]);
        for (int64_t i = r * n; i < (r + 1) * n; i++) sum += exp(xs[i] - top);
        for (int64_t i = r * n; i < (r + 1) * n; i++) {
            logarithm[i] = xs[i] - top - log(sum);
            probability[i] = exp(xs[i] - top) / sum;
        }
        sums[r] = top + log(sum);
    }
    RUN(rl_softmax(ctx, &y, &x));
    RUN(rl_log_softmax(ctx, &log_y, &x));
    RUN(rl_logsumexp(ctx, &total, &x));
    check_values("softmax", &y, probability, epsilon(dtype) * (32 + sqrt((double)n)));
    check_values("log_softmax", &log_y, logarithm, epsilon(dtype) * 128);
    check_values("logsumexp", &total, sums, epsilon(dtype) * 32);
}

static void run_softmax_backward(rl_ctx *ctx, rl_dtype dtype, int64_t rows, int64_t n) {
    rl_view x = ARRAY(dtype, rows, n), y = ARRAY(dtype, rows, n), total = ARRAY(dtype, rows), g = ARRAY(dtype, rows, n);
    rl_view gx = ARRAY(dtype, rows, n), g_row = ARRAY(dtype, rows);
    double tolerance = epsilon(dtype) * (32 + sqrt((double)n)), *expected = values_of(&x);
    RUN(rl_softmax(ctx, &y, &x));
    RUN(rl_softmax_backward(ctx, &gx, &g, &y));
    for (int64_t r = 0; r < rows; r++) {
        double dot = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) dot += get(&g, i) * get(&y, i);
        for (int64_t i = r * n; i < (r + 1) * n; i++) expected[i] = get(&y, i) * (get(&g, i) - dot);
    }
    check_values("softmax_backward", &gx, expected, tolerance);
    RUN(rl_log_softmax(ctx, &y, &x));
    RUN(rl_log_softmax_backward(ctx, &gx, &g, &y));
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) sum += get(&g, i);
        for (int64_t i = r * n; i < (r + 1) * n; i++) expected[i] = get(&g, i) - exp(get(&y, i)) * sum;
    }
    check_values("log_softmax_backward", &gx, expected, tolerance);
    RUN(rl_logsumexp(ctx, &total, &x));
    RUN(rl_logsumexp_backward(ctx, &gx, &g_row, &x, &total));
    for (int64_t i = 0; i < rows * n; i++) expected[i] = get(&g_row, i / n) * exp(get(&x, i) - get(&total, i / n));
    check_values("logsumexp_backward", &gx, expected, tolerance);
}

static void test_softmax(rl_ctx *ctx, rl_dtype dtype) {
    for_every_size(ctx, dtype, run_softmax);
    for_every_size(ctx, dtype, run_softmax_backward);
    rl_view x = ARRAY(dtype, 2, 19), y = ARRAY(dtype, 2, 19), total = ARRAY(dtype, 2), g = ARRAY(dtype, 2), empty = ARRAY(dtype, 2, 0);
    for (int64_t i = 0; i < 19; i++) put(&x, i, -INFINITY);
    put(&x, 19 + 4, -INFINITY);
    RUN(rl_logsumexp(ctx, &total, &x));
    CHECK(get(&total, 0) == -INFINITY && isfinite(get(&total, 1)), "logsumexp of -inf is %g", get(&total, 0));
    RUN(rl_logsumexp_backward(ctx, &y, &g, &x, &total));
    for (int64_t i = 0; i < 24; i++) CHECK(i > 18 && i < 23 ? get(&y, i) != 0 : get(&y, i) == 0, "gx[%d] is %g", (int)i, get(&y, i));
    RUN(rl_softmax(ctx, &y, &x));
    CHECK(get(&y, 19 + 4) == 0, "softmax of -inf is %g", get(&y, 19 + 4));
    RUN(rl_logsumexp(ctx, &total, &empty));
    CHECK(get(&total, 0) == -INFINITY && get(&total, 1) == -INFINITY, "logsumexp of nothing is %g", get(&total, 0));
    put(&x, 19 + 7, NAN);
    RUN(rl_logsumexp(ctx, &total, &x));
    CHECK(isnan(get(&total, 1)), "logsumexp with NaN is %g", get(&total, 1));
}

/* ---- norms ---- */

typedef struct {
    double *y, *stats, *gx, *gweight, *gbias;
} norm_reference;

/* residual, weight and bias may be NULL */
static norm_reference make_norm_reference(bool centered, const rl_view *x, const rl_view *g, const double *weight, const double *bias,
                                          const double *residual, double eps) {
    int64_t rows = x->shape[0], n = x->shape[1];
    norm_reference p = {values_of(x), allocate(rows * 16), values_of(x), allocate(n * 8), allocate(n * 8)};
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, variance = 0, sum = 0, dot = 0;
        for (int64_t i = r * n; centered && i < (r + 1) * n; i++) mean += get(x, i) / (double)n;
        for (int64_t i = r * n; i < (r + 1) * n; i++) variance += (get(x, i) - mean) * (get(x, i) - mean) / (double)n;
        double scale = 1 / sqrt(variance + eps);
        p.stats[2 * r] = mean, p.stats[2 * r + 1] = scale;
        for (int64_t i = 0; i < n; i++) {
            double normed = (get(x, r * n + i) - mean) * scale, h = get(g, r * n + i) * (weight ? weight[i] : 1);
            p.y[r * n + i] = normed * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
            p.gweight[i] += get(g, r * n + i) * normed;
            p.gbias[i] += get(g, r * n + i);
            sum += centered ? h : 0;
            dot += h * normed;
        }
        for (int64_t i = 0; i < n; i++) {
            double normed = (get(x, r * n + i) - mean) * scale, h = get(g, r * n + i) * (weight ? weight[i] : 1);
            p.gx[r * n + i] = (h - sum / (double)n - normed * dot / (double)n) * scale + (residual ? residual[r * n + i] : 0);
        }
    }
    return p;
}

static void run_norm(rl_ctx *ctx, rl_dtype dtype, int64_t rows, int64_t n, int flags) {
    bool centered = flags & 1, affine = flags & 2, add = flags & 4;
    rl_view x = ARRAY(dtype, rows, n), y = ARRAY(dtype, rows, n), g = ARRAY(dtype, rows, n), gx = ARRAY(dtype, rows, n);
    rl_view stats = ARRAY(dtype, rows, 2), weight = ARRAY(dtype, n), bias = ARRAY(dtype, n), gweight = ARRAY(dtype, n),
            gbias = ARRAY(dtype, n);
    fill_uniform(&x, 1, 4);
    double *weights = affine ? values_of(&weight) : NULL, *biases = affine && centered ? values_of(&bias) : NULL;
    norm_reference p = make_norm_reference(centered, &x, &g, weights, biases, add ? values_of(&gx) : NULL, 1e-3);
    const rl_view *w = affine ? &weight : NULL, *b = affine ? &bias : NULL, *residual = add ? &gx : NULL;
    rl_view *gw = affine ? &gweight : NULL, *gb = affine ? &gbias : NULL;
    if (centered) {
        RUN(rl_layer_norm(ctx, &y, &stats, &x, w, b, 1e-3));
        RUN(rl_layer_norm_backward(ctx, &gx, gw, gb, &g, &x, &stats, w, residual));
    } else {
        RUN(rl_rms_norm(ctx, &y, &stats, &x, w, 1e-3));
        RUN(rl_rms_norm_backward(ctx, &gx, gw, &g, &x, &stats, w, residual));
    }
    double tolerance = epsilon(dtype) * (64 + sqrt((double)n)) * (n < 4 ? 40 : 1); /* two equal numbers normalise to noise over eps */
    check_values("y", &y, p.y, tolerance);
    check_values("stats", &stats, p.stats, tolerance);
    check_values("gx", &gx, p.gx, 16 * tolerance);
    if (affine) check_values("gweight", &gweight, p.gweight, tolerance * (2 + sqrt((double)rows)));
    if (affine && centered) check_values("gbias", &gbias, p.gbias, tolerance);
}

static void run_norms(rl_ctx *ctx, rl_dtype dtype, int64_t rows, int64_t n) {
    for (int flags = 0; flags < 8; flags++) run_norm(ctx, dtype, rows, n, flags);
}

static void test_norms(rl_ctx *ctx, rl_dtype dtype) { for_every_size(ctx, dtype, run_norms); }

/* a large mean costs no digits of the variance */
static void test_offset(rl_ctx *ctx, rl_dtype dtype) {
    rl_view x = ARRAY(dtype, 1, 64), y = ARRAY(dtype, 1, 64), stats = ARRAY(dtype, 1, 2);
    double offset = dtype == RL_FLOAT32 ? 4096 : 1e9;
    for (int64_t i = 0; i < 64; i++) put(&x, i, offset + (double)(i % 2));
    RUN(rl_layer_norm(ctx, &y, &stats, &x, NULL, NULL, 0));
    for (int64_t i = 0; i < 64; i++) CHECK(fabs(get(&y, i) - (i % 2 ? 1 : -1)) < 1e-3, "y[%d] is %g", (int)i, get(&y, i));
}

int main(void) {
    at_every_level(test_softmax);
    at_every_level(test_norms);
    at_every_level(test_offset);
    return finish();
}
