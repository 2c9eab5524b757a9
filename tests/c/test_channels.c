/* Batch norm and pooling, against plain loops in double. */
#include "check.h"

/* ---- batch norm ---- */

static void run_batch_norm(rl_ctx *ctx, rl_dtype dtype, int64_t images, int64_t channels, int64_t places, double offset) {
    rl_view x = ARRAY(dtype, images, channels, places), y = copy_of(&x), g = ARRAY(dtype, images, channels, places), gx = copy_of(&x);
    rl_view stats = ARRAY(dtype, channels, 4), weight = ARRAY(dtype, channels), bias = ARRAY(dtype, channels), batches = ARRAY(RL_INT64, 1);
    rl_view mean = ARRAY(dtype, channels), variance = ARRAY(dtype, channels), gweight = ARRAY(dtype, channels),
            gbias = ARRAY(dtype, channels);
    for (int64_t i = 0; i < size_of(&x); i++) put(&x, i, get(&x, i) + offset);
    fill_uniform(&variance, 0.5, 2);
    double *xs = values_of(&x), *gs = values_of(&g), *ys = values_of(&y), *gxs = values_of(&x), *m = values_of(&mean),
           *v = values_of(&variance);
    double *gws = values_of(&gweight), *gbs = values_of(&gbias), count = (double)(images * places), eps = 1e-5;
#define EACH_OF(c)                                                                                                                         \
    for (int64_t n = 0; n < images; n++)                                                                                                   \
        for (int64_t i = (n * channels + (c)) * places; i < (n * channels + (c) + 1) * places; i++)
    for (int64_t c = 0; c < channels; c++) {
        double center = 0, spread = 0, sum = 0, dot = 0, w = get(&weight, c);
        EACH_OF(c) center += xs[i] / count;
        EACH_OF(c) spread += (xs[i] - center) * (xs[i] - center) / count;
        double scale = 1 / sqrt(spread + eps);
        EACH_OF(c) sum += gs[i], dot += gs[i] * (xs[i] - center) * scale;
        EACH_OF(c) {
            ys[i] = (xs[i] - center) * scale * w + get(&bias, c);
            gxs[i] = w * scale * (gs[i] - sum / count - (xs[i] - center) * scale * dot / count);
        }
        m[c] = 0.9 * m[c] + 0.1 * center;
        v[c] = 0.9 * v[c] + 0.1 * spread * count / (count - 1);
        gws[c] = dot;
        gbs[c] = sum;
    }
    double tolerance = epsilon(dtype) * (32 + sqrt(count)) * (1 + fabs(offset)) * 4;
    RUN(rl_batch_norm(ctx, &y, &stats, &mean, &variance, &batches, &x, &weight, &bias, eps, 0.1, 1));
    RUN(rl_batch_norm_backward(ctx, &gx, &gweight, &gbias, &g, &x, &stats, &weight, 1));
    check_values("batch_norm", &y, ys, tolerance);
    check_values("batch_norm's mean", &mean, m, tolerance);
    check_values("batch_norm's variance", &variance, v, tolerance);
    check_values("batch_norm_backward", &gx, gxs, tolerance);
    check_values("batch_norm_backward's gweight", &gweight, gws, tolerance * 4);
    check_values("batch_norm_backward's gbias", &gbias, gbs, tolerance);
    CHECK(get(&batches, 0) == 1, "%g batches counted", get(&batches, 0));
    RUN(rl_batch_norm(ctx, &y, &stats, &mean, &variance, &batches, &x, NULL, NULL, eps, 0.1, 0));
    for (int64_t c = 0; c < channels; c++) EACH_OF(c) ys[i] = (xs[i] - get(&mean, c)) / sqrt(get(&variance, c) + eps);
    check_values("batch_norm of known statistics", &y, ys, tolerance);
    CHECK(get(&batches, 0) == 1, "%g batches counted in evaluation", get(&batches, 0));
    free_arrays();
}

static void test_batch_norm(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t sizes[][3] = {{2, 1, 1}, {1, 3, 2}, {5, 4, 17}, {3, 2, 16}, {2, 70, 100}, {1, 2, 9000}, {0, 3, 4}, {2, 0, 3}};
    for (int i = 0; i < 8; i++) {
        bool empty = sizes[i][0] * sizes[i][1] == 0;
        if (!empty) run_batch_norm(ctx, dtype, sizes[i][0], sizes[i][1], sizes[i][2], i == 4 ? 100 : 0);
    }
    rl_view x = ARRAY(dtype, 1, 3, 1), y = copy_of(&x), stats = ARRAY(dtype, 3, 4), flat = ARRAY(dtype, 3), many = ARRAY(RL_INT64, 2);
    FAILS(RL_SHAPE_ERROR, rl_batch_norm(ctx, &y, &stats, NULL, NULL, NULL, &x, NULL, NULL, 1e-5, 0.1, 1));
    FAILS(RL_VALUE_ERROR, rl_batch_norm(ctx, &y, &stats, NULL, NULL, NULL, &x, NULL, NULL, 1e-5, 0.1, 0));
    FAILS(RL_SHAPE_ERROR, rl_batch_norm(ctx, &y, &stats, &flat, NULL, NULL, &x, NULL, NULL, 1e-5, 0.1, 0));
    FAILS(RL_SHAPE_ERROR, rl_batch_norm(ctx, &y, &stats, &flat, &flat, &many, &x, NULL, NULL, 1e-5, 0.1, 0));
    FAILS(RL_SHAPE_ERROR, rl_batch_norm(ctx, &y, &flat, &flat, &flat, NULL, &x, NULL, NULL, 1e-5, 0.1, 0));
    free_arrays();
}

/* ---- pooling ---- */

typedef struct {
    int64_t planes, in[3], out[3], numbers[12];
} shape;

static shape draw_shape(void) {
    shape s = {.planes = 1 + pick(5)};
    int64_t axes = 1 + pick(3);
    for (int d = 0; d < 3; d++) {
        bool there = d >= 3 - axes;
        int64_t stride = there ? 1 + pick(3) : 1, dilation = there ? 1 + pick(2) : 1, window = there ? 1 + pick(4) : 1;
        int64_t pad = there ? pick(window / 2 + 1) : 0, reach = (window - 1) * dilation + 1;
        s.in[d] = there ? reach + pick(d == 2 ? 60 : 5) : 1;
        s.out[d] = (s.in[d] + 2 * pad - reach) / stride + 1;
        s.numbers[d] = stride, s.numbers[3 + d] = pad, s.numbers[6 + d] = dilation, s.numbers[9 + d] = window;
    }
    return s;
}

/* the place in the input that tap t of output pixel p shows, or -1 */
static int64_t place(const shape *s, int64_t p, int64_t t) {
    const int64_t *window = s->numbers + 9;
    int64_t at[3] = {p / (s->out[1] * s->out[2]), p / s->out[2] % s->out[1], p % s->out[2]}, flat = 0;
    int64_t tap[3] = {t / (window[1] * window[2]), t / window[2] % window[1], t % window[2]};
    for (int d = 0; d < 3; d++) {
        int64_t i = at[d] * s->numbers[d] + tap[d] * s->numbers[6 + d] - s->numbers[3 + d];
        if (i < 0 || i >= s->in[d]) return -1;
        flat = flat * s->in[d] + i;
    }
    return flat;
}

static void run_pool(rl_ctx *ctx, rl_dtype dtype, shape *s) {
    rl_view geometry = VIEW(s->numbers, RL_INT64, 4, 3), x = ARRAY(dtype, 1, s->planes, s->in[0], s->in[1], s->in[2]), gx = copy_of(&x);
    rl_view y = ARRAY(dtype, 1, s->planes, s->out[0], s->out[1], s->out[2]),
            g = ARRAY(dtype, 1, s->planes, s->out[0], s->out[1], s->out[2]);
    rl_view index = ARRAY(RL_INT64, 1, s->planes, s->out[0], s->out[1], s->out[2]), divisor = ARRAY(dtype, s->out[0], s->out[1], s->out[2]);
    fill_uniform(&divisor, 1, 3);
    int64_t plane = s->in[0] * s->in[1] * s->in[2], pixels = s->out[0] * s->out[1] * s->out[2];
    int64_t taps = s->numbers[9] * s->numbers[10] * s->numbers[11];
    double *xs = values_of(&x), *gs = values_of(&g), *top = values_of(&y), *mean = values_of(&y), *first = values_of(&y);
    double *gtop = values_of(&x), *gmean = values_of(&x);
    memset(gtop, 0, (size_t)size_of(&x) * sizeof *gtop);
    memset(gmean, 0, (size_t)size_of(&x) * sizeof *gmean);
    for (int64_t i = 0; i < s->planes * pixels; i++) {
        int64_t start = i / pixels * plane, p = i % pixels, best = -1;
        mean[i] = 0;
        for (int64_t t = 0; t < taps; t++) {
            int64_t at = place(s, p, t);
            if (at < 0) continue;
            if (best < 0 || xs[start + at] > xs[start + best]) best = at;
            mean[i] += xs[start + at] / get(&divisor, p);
            gmean[start + at] += gs[i] / get(&divisor, p);
        }
        top[i] = xs[start + best];
        first[i] = (double)best;
        gtop[start + best] += gs[i];
    }
    double tolerance = epsilon(dtype) * (8 + (double)taps);
    RUN(rl_max_pool(ctx, &y, &index, &x, &geometry));
    check_values("max_pool", &y, top, 0);
    check_values("max_pool's index", &index, first, 0);
    RUN(rl_max_pool_backward(ctx, &gx, &g, &index));
    check_values("max_pool_backward", &gx, gtop, tolerance);
    RUN(rl_avg_pool(ctx, &y, &x, &divisor, &geometry));
    check_values("avg_pool", &y, mean, tolerance);
    RUN(rl_avg_pool_backward(ctx, &gx, &g, &divisor, &geometry));
    check_values("avg_pool_backward", &gx, gmean, tolerance);
    free_arrays();
}

static void test_pool(rl_ctx *ctx, rl_dtype dtype) {
    check_state = 11;
    for (int round = 0; round < 150; round++) {
        shape s = draw_shape();
        rl_set_num_threads(1 + round % 3);
        run_pool(ctx, dtype, &s);
    }
    int64_t numbers[12] = {1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
    rl_view geometry = VIEW(numbers, RL_INT64, 4, 3), x = ARRAY(dtype, 1, 2, 1, 3, 3), index = ARRAY(RL_INT64, 1, 2, 1, 3, 3);
    rl_view y = copy_of(&x), flat = ARRAY(dtype, 18), few = ARRAY(dtype, 2);
    FAILS(RL_VALUE_ERROR, rl_max_pool(ctx, &y, NULL, &x, &geometry));
    FAILS(RL_SHAPE_ERROR, rl_max_pool(ctx, &flat, NULL, &x, &geometry));
    numbers[2] = 1;
    FAILS(RL_SHAPE_ERROR, rl_avg_pool(ctx, &y, &x, &few, &geometry));
    put(&index, 7, 9);
    FAILS(RL_INDEX_ERROR, rl_max_pool_backward(ctx, &y, &x, &index));
    free_arrays();
}

int main(void) {
    at_every_level(test_batch_norm);
    at_every_level(test_pool);
    return finish();
}
