/* Convolution and its gradients, against plain loops in double, for shapes drawn at random. */
#include "check.h"

typedef struct {
    int64_t images, groups, channels, filters, in[3], out[3], kernel[3], stride[3], pad[3], dilation[3];
} shape;

static int64_t product(const int64_t *size) { return size[0] * size[1] * size[2]; }

/* one to four windows in each direction at least, with borders of every kind */
static shape draw_shape(void) {
    shape s = {.images = pick(4), .groups = 1 + pick(3), .channels = 1 + pick(5), .filters = 1 + pick(40)};
    int64_t axes = 1 + pick(3);
    for (int d = 0; d < 3; d++) {
        bool there = d >= 3 - axes;
        s.kernel[d] = there ? 1 + pick(4) : 1;
        s.stride[d] = there ? 1 + pick(3) : 1;
        s.dilation[d] = there ? 1 + pick(2) : 1;
        s.pad[d] = there ? pick(4) : 0;
        int64_t reach = (s.kernel[d] - 1) * s.dilation[d] + 1, least = reach > 2 * s.pad[d] ? reach - 2 * s.pad[d] : 1;
        s.in[d] = there ? least + pick(d == 2 ? 40 : 5) : 1;
        s.out[d] = (s.in[d] + 2 * s.pad[d] - reach) / s.stride[d] + 1;
    }
    return s;
}

/* one channel with one to three filters of its own, in images up to 40 x 40 */
static shape draw_depthwise(void) {
    shape s = {.images = 1 + pick(2), .groups = 1 + pick(4), .channels = 1, .filters = 1 + pick(3)};
    for (int d = 0; d < 3; d++) {
        s.kernel[d] = d ? 1 + pick(8) : 1;
        s.stride[d] = d ? 1 + pick(2) + (pick(8) == 0) : 1;
        s.dilation[d] = d ? 1 + (pick(4) == 0) : 1;
        s.pad[d] = d ? pick(5) : 0;
        s.in[d] = d ? (s.kernel[d] - 1) * s.dilation[d] + 1 + pick(40) : 1;
        s.out[d] = (s.in[d] + 2 * s.pad[d] - (s.kernel[d] - 1) * s.dilation[d] - 1) / s.stride[d] + 1;
    }
    return s;
}

static double activate(int64_t activation, double x) {
    switch (activation) {
    case RL_RELU: return x < 0 ? 0 : x;
    case RL_GELU: return x * (1 + erf(x / sqrt(2))) / 2;
    case RL_GELU_TANH: return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
    case RL_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

/* y, or with g the gradients of x and w, one element after the other */
static void loop(const shape *s, double *y, const double *x, const double *w, const double *g, double *gx, double *gw) {
    int64_t plane = product(s->in), pixels = product(s->out), taps = product(s->kernel);
    for (int64_t n = 0; n < s->images; n++)
        for (int64_t o = 0; o < s->groups * s->filters; o++)
            for (int64_t p = 0; p < pixels; p++)
                for (int64_t c = 0; c < s->channels; c++)
                    for (int64_t t = 0; t < taps; t++) {
                        int64_t place[3] = {p / (s->out[1] * s->out[2]), p / s->out[2] % s->out[1], p % s->out[2]};
                        int64_t tap[3] = {t / (s->kernel[1] * s->kernel[2]), t / s->kernel[2] % s->kernel[1], t % s->kernel[2]}, at = 0;
                        bool inside = true;
                        for (int d = 0; d < 3; d++) {
                            int64_t i = place[d] * s->stride[d] + tap[d] * s->dilation[d] - s->pad[d];
                            inside = inside && i >= 0 && i < s->in[d];
                            at = at * s->in[d] + i;
                        }
                        if (!inside) continue;
                        int64_t i = ((n * s->groups + o / s->filters) * s->channels + c) * plane + at;
                        int64_t j = (n * s->groups * s->filters + o) * pixels + p, k = (o * s->channels + c) * taps + t;
                        if (y) y[j] += x[i] * w[k];
                        else gx[i] += g[j] * w[k], gw[k] += g[j] * x[i];
                    }
}

static void run_shape(rl_ctx *ctx, rl_dtype dtype, const shape *s) {
    int64_t filters = s->groups * s->filters, numbers[9];
    for (int d = 0; d < 3; d++) numbers[d] = s->stride[d], numbers[3 + d] = s->pad[d], numbers[6 + d] = s->dilation[d];
    rl_view geometry = VIEW(numbers, RL_INT64, 3, 3);
    rl_view x = ARRAY(dtype, s->images, s->groups * s->channels, s->in[0], s->in[1], s->in[2]);
    rl_view w = ARRAY(dtype, filters, s->channels, s->kernel[0], s->kernel[1], s->kernel[2]), bias = ARRAY(dtype, filters);
    rl_view y = ARRAY(dtype, s->images, filters, s->out[0], s->out[1], s->out[2]),
            g = ARRAY(dtype, s->images, filters, s->out[0], s->out[1], s->out[2]);
    rl_view gx = copy_of(&x), gw = copy_of(&w), gbias = ARRAY(dtype, filters);
    double *ys = values_of(&y), *gxs = values_of(&x), *gws = values_of(&w), *sums = values_of(&bias);
    double *xs = values_of(&x), *ws = values_of(&w), *gs = values_of(&g);
    int64_t pixels = product(s->out);
    for (int64_t i = 0; i < size_of(&y); i++) ys[i] = get(&bias, i / pixels % filters);
    memset(gxs, 0, (size_t)size_of(&x) * sizeof *gxs);
    memset(gws, 0, (size_t)size_of(&w) * sizeof *gws);
    memset(sums, 0, (size_t)filters * sizeof *sums);
    loop(s, ys, xs, ws, NULL, NULL, NULL);
    loop(s, NULL, xs, ws, gs, gxs, gws);
    for (int64_t i = 0; i < size_of(&g); i++) sums[i / pixels % filters] += gs[i];
    double tolerance = epsilon(dtype) * 4 * (8 + sqrt((double)(s->images * pixels + (s->channels + s->filters) * product(s->kernel))));
    RUN(rl_conv(ctx, &y, &x, &w, &bias, NULL, NULL, &geometry, s->groups, RL_IDENTITY));
    RUN(rl_conv_backward_input(ctx, &gx, &g, &w, &geometry, s->groups));
    RUN(rl_conv_backward_weight(ctx, &gw, &gbias, &g, &x, &geometry, s->groups));
    check_values("conv", &y, ys, tolerance);
    rl_view scale = ARRAY(dtype, filters), residual = copy_of(&g);
    int64_t activation = pick(RL_SILU + 1);
    RUN(rl_conv(ctx, &y, &x, &w, &bias, &scale, &residual, &geometry, s->groups, activation));
    for (int64_t i = 0; i < size_of(&y); i++) ys[i] = activate(activation, ys[i] * get(&scale, i / pixels % filters) + get(&residual, i));
    check_values("conv with all behind it", &y, ys, 4 * tolerance);
    check_values("conv_backward_input", &gx, gxs, tolerance);
    check_values("conv_backward_weight", &gw, gws, tolerance);
    check_values("conv_backward_weight's gbias", &gbias, sums, tolerance);
    uint64_t drawn = check_state; /* the shapes that follow stay what they are */
    rl_view alone = copy_of(&gw);
    RUN(rl_conv_backward_weight(ctx, &alone, NULL, &g, &x, &geometry, s->groups));
    check_same("conv_backward_weight without gbias", &alone, &gw);
    check_state = drawn;
    free_arrays();
}

static void test_shapes(rl_ctx *ctx, rl_dtype dtype) {
    check_state = 7;
    for (int round = 0; round < 210; round++) {
        shape s = round % 3 ? draw_shape() : draw_depthwise();
        rl_set_num_threads(1 + round % 3);
        run_shape(ctx, dtype, &s);
    }
    for (int round = 0; round < 60; round++) { /* few filters, windows next to each other */
        shape s = {.images = 1 + pick(3), .groups = 1, .channels = 1 + pick(5), .filters = 1 + pick(34), .in = {1}, .out = {1}};
        for (int d = 0; d < 3; d++) {
            s.stride[d] = 1;
            s.kernel[d] = d == 0 ? 1 : 1 + pick(d == 1 ? 4 : 9);
            s.dilation[d] = d == 0 ? 1 : 1 + pick(2);
            s.pad[d] = d == 0 ? 0 : pick(6);
            int64_t reach = (s.kernel[d] - 1) * s.dilation[d] + 1, least = reach > 2 * s.pad[d] ? reach - 2 * s.pad[d] : 1;
            s.in[d] = d == 0 ? 1 : least + pick(d == 1 ? 12 : 30);
            s.out[d] = s.in[d] + 2 * s.pad[d] - reach + 1;
        }
        rl_set_num_threads(1 + round % 3);
        run_shape(ctx, dtype, &s);
    }
    shape tall = {1, 1, 20, 3, {1, 90, 33}, {1, 90, 33}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}}; /* in bands of rows */
    run_shape(ctx, dtype, &tall);
    shape wide = {2, 1, 70, 400, {1, 3, 5}, {1, 3, 5}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}}; /* several blocks of everything */
    run_shape(ctx, dtype, &wide);
    shape deep = {1, 1, 900, 70, {1, 2, 2}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}};
    run_shape(ctx, dtype, &deep);
}

/* float32 against float64, which goes the direct way: forward and the input's gradient */
static void run_tiles(rl_ctx *ctx, int64_t images, int64_t channels, int64_t filters, int64_t height, int64_t width, int64_t pad) {
    int64_t numbers[9] = {1, 1, 1, 0, pad, pad, 1, 1, 1}, down = height + 2 * pad - 2, right = width + 2 * pad - 2;
    rl_view geometry = VIEW(numbers, RL_INT64, 3, 3), x[2], w[2], bias[2], scale[2], residual[2], y[2], g[2], gx[2];
    rl_activation activation = (rl_activation)pick(RL_SILU + 1);
    for (int i = 0; i < 2; i++) {
        rl_dtype dtype = i ? RL_FLOAT64 : RL_FLOAT32;
        x[i] = ARRAY(dtype, images, channels, 1, height, width), gx[i] = copy_of(&x[i]);
        w[i] = ARRAY(dtype, filters, channels, 1, 3, 3), bias[i] = ARRAY(dtype, filters);
        scale[i] = ARRAY(dtype, filters), residual[i] = ARRAY(dtype, images, filters, 1, down, right);
        y[i] = ARRAY(dtype, images, filters, 1, down, right), g[i] = ARRAY(dtype, images, filters, 1, down, right);
    }
    rl_view *given[6] = {x, w, bias, g, scale, residual};
    for (int v = 0; v < 6; v++)
        for (int64_t i = 0; i < size_of(given[v]); i++) put(&given[v][1], i, get(&given[v][0], i));
    for (int i = 0; i < 2; i++) {
        RUN(rl_conv(ctx, &y[i], &x[i], &w[i], &bias[i], &scale[i], &residual[i], &geometry, 1, activation));
        RUN(rl_conv_backward_input(ctx, &gx[i], &g[i], &w[i], &geometry, 1));
    }
    double tolerance = FLT_EPSILON * 4 * (8 + sqrt((double)(channels + filters) * 9));
    check_values("conv by tiles", &y[0], values_of(&y[1]), tolerance);
    check_values("conv_backward_input by tiles", &gx[0], values_of(&gx[1]), tolerance);
    free_arrays();
}

/* large enough for Winograd's way: transformed inputs or filters shared, edges of every kind */
static void test_tiles(rl_ctx *ctx, rl_dtype dtype) {
    if (dtype != RL_FLOAT32) return;
    check_state = 11;
    run_tiles(ctx, 9, 140, 125, 3, 4, 1);
    for (int round = 0; round < 12; round++) {
        rl_set_num_threads(1 + round % 3);
        run_tiles(ctx, 1 + pick(3), 50 + pick(20), 50 + pick(20), 10 + pick(10), 40 + pick(30), round % 4);
    }
}

/* One input that is not finite: what it does not touch stays as it was. */
static void test_not_finite(rl_ctx *ctx, rl_dtype dtype) {
    int64_t numbers[9] = {1, 1, 1, 0, 1, 1, 1, 1, 1}, touched = 0;
    rl_view geometry = VIEW(numbers, RL_INT64, 3, 3), x = ARRAY(dtype, 1, 64, 1, 30, 30), w = ARRAY(dtype, 64, 64, 1, 3, 3);
    rl_view y = ARRAY(dtype, 1, 64, 1, 30, 30), other = copy_of(&y);
    RUN(rl_conv(ctx, &y, &x, &w, NULL, NULL, NULL, &geometry, 1, RL_IDENTITY));
    put(&x, 64 * 900 - 1, INFINITY);
    RUN(rl_conv(ctx, &other, &x, &w, NULL, NULL, NULL, &geometry, 1, RL_IDENTITY));
    for (int64_t i = 0; i < size_of(&y); i++) {
        if (!isfinite(get(&other, i))) touched++;
        else if (fabs(get(&other, i) - get(&y, i)) > epsilon(dtype) * 1000) failures++;
    }
    checks++;
    if (touched != 4 * 64) failures++;
    free_arrays();
}

static void test_refusals(rl_ctx *ctx, rl_dtype dtype) {
    int64_t good[9] = {1, 1, 1, 0, 0, 0, 1, 1, 1}, still[9] = {1, 0, 1, 0, 0, 0, 1, 1, 1}, dense[9] = {1, 1, 1, 0, 0, 0, 1, 1, 0};
    rl_view x = ARRAY(dtype, 2, 4, 1, 5, 5), w = ARRAY(dtype, 6, 4, 1, 3, 3), y = ARRAY(dtype, 2, 6, 1, 3, 3),
            flat = ARRAY(dtype, 2, 4, 25);
    rl_view geometry = VIEW(good, RL_INT64, 3, 3), short_one = VIEW(good, RL_INT64, 2, 3), bias = ARRAY(dtype, 5);
    rl_view at_rest = VIEW(still, RL_INT64, 3, 3), undilated = VIEW(dense, RL_INT64, 3, 3), narrow = ARRAY(dtype, 6, 3, 1, 3, 3);
    RUN(rl_conv(ctx, &y, &x, &w, NULL, NULL, NULL, &geometry, 1, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &flat, &w, NULL, NULL, NULL, &geometry, 1, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &x, &w, NULL, NULL, NULL, &short_one, 1, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &x, &w, &bias, NULL, NULL, &geometry, 1, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &x, &narrow, NULL, NULL, NULL, &geometry, 1, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &x, &w, NULL, NULL, NULL, &geometry, 0, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &x, &w, NULL, NULL, NULL, &geometry, 4, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &x, &w, NULL, &bias, NULL, &geometry, 1, RL_IDENTITY));
    FAILS(RL_SHAPE_ERROR, rl_conv(ctx, &y, &x, &w, NULL, NULL, &x, &geometry, 1, RL_IDENTITY));
    FAILS(RL_VALUE_ERROR, rl_conv(ctx, &y, &x, &w, NULL, NULL, NULL, &geometry, 1, RL_SILU + 1));
    FAILS(RL_VALUE_ERROR, rl_conv(ctx, &y, &x, &w, NULL, NULL, NULL, &at_rest, 1, RL_IDENTITY));
    FAILS(RL_VALUE_ERROR, rl_conv_backward_input(ctx, &x, &y, &w, &undilated, 1));
    FAILS(RL_SHAPE_ERROR, rl_conv_backward_weight(ctx, &w, &bias, &y, &x, &geometry, 1));
    free_arrays();
}

int main(void) {
    at_every_level(test_shapes);
    at_every_level(test_tiles);
    at_every_level(test_not_finite);
    at_every_level(test_refusals);
    return finish();
}
