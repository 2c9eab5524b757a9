/* Element-wise kernels against libm in double, for every layout of memory, broadcast, and in place. */
#include "check.h"

#define ROOT_HALF 0.70710678118654752440
#define PI 3.14159265358979323846

typedef rl_status unary(rl_ctx *ctx, rl_real *y, const rl_real *x);
typedef rl_status binary(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);

static double negative(double x) { return -x; }
static double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double relu(double x) { return x < 0 ? 0 : x; }
static double silu(double x) { return x * sigmoid(x); }
static double gelu(double x) { return x * (1 + erf(x * ROOT_HALF)) / 2; }
static double gelu_tanh(double x) { return x * sigmoid(2 * sqrt(2 / PI) * (x + 0.044715 * x * x * x)); }

static double tanh_slope(double y) { return 1 - y * y; }
static double sigmoid_slope(double y) { return y * (1 - y); }
static double relu_slope(double x) { return x > 0; }
static double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }
static double gelu_slope(double x) { return (1 + erf(x * ROOT_HALF)) / 2 + x * exp(-x * x / 2) / sqrt(2 * PI); }
static double gelu_tanh_slope(double x) {
    double s = sigmoid(2 * sqrt(2 / PI) * (x + 0.044715 * x * x * x));
    return s + x * s * (1 - s) * 2 * sqrt(2 / PI) * (1 + 3 * 0.044715 * x * x);
}

static double plus(double x, double y) { return x + y; }
static double minus(double x, double y) { return x - y; }
static double times(double x, double y) { return x * y; }
static double over(double x, double y) { return x / y; }

static const struct {
    const char *name;
    unary *run;
    double (*expected)(double);
    double low, high;
} unaries[] = {
    {"neg", rl_neg, negative, -9, 9},
    {"abs", rl_abs, fabs, -9, 9},
    {"sign", rl_sign, sign, -9, 9},
    {"exp", rl_exp, exp, -80, 5},
    {"log", rl_log, log, 1e-30, 9},
    {"sqrt", rl_sqrt, sqrt, 0, 100},
    {"sin", rl_sin, sin, -100, 100},
    {"cos", rl_cos, cos, -100, 100},
    {"erf", rl_erf, erf, -7, 7},
    {"tanh", rl_tanh, tanh, -12, 12},
    {"sigmoid", rl_sigmoid, sigmoid, -40, 40},
    {"relu", rl_relu, relu, -9, 9},
    {"silu", rl_silu, silu, -40, 40},
    {"gelu", rl_gelu, gelu, -9, 9},
    {"gelu_tanh", rl_gelu_tanh, gelu_tanh, -9, 9},
};

static const struct {
    const char *name;
    binary *run;
    double (*slope)(double);
    double low, high;
} backwards[] = {
    {"tanh_backward", rl_tanh_backward, tanh_slope, -1, 1}, {"sigmoid_backward", rl_sigmoid_backward, sigmoid_slope, 0, 1},
    {"relu_backward", rl_relu_backward, relu_slope, -3, 3}, {"silu_backward", rl_silu_backward, silu_slope, -30, 30},
    {"gelu_backward", rl_gelu_backward, gelu_slope, -9, 9}, {"gelu_tanh_backward", rl_gelu_tanh_backward, gelu_tanh_slope, -9, 9},
};

static const struct {
    const char *name;
    binary *run;
    double (*expected)(double, double);
    double low, high;
} binaries[] = {
    {"add", rl_add, plus, -9, 9}, {"sub", rl_sub, minus, -9, 9},        {"mul", rl_mul, times, -9, 9},        {"div", rl_div, over, 0.5, 9},
    {"pow", rl_pow, pow, 0.1, 3}, {"maximum", rl_maximum, fmax, -9, 9}, {"minimum", rl_minimum, fmin, -9, 9},
};
#define COUNT(table) (sizeof(table) / sizeof *(table))

static const int64_t shapes[][3] = {{1, 1, 1}, {2, 3, 4}, {1, 5, 17}, {3, 7, 33}, {0, 3, 2}, {2, 0, 2}, {2, 3, 0}, {2, 130, 129}};

static void test_unary(rl_ctx *ctx, rl_dtype dtype) {
    for (size_t k = 0; k < COUNT(unaries); k++)
        for (size_t i = 0; i < COUNT(shapes); i++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                rl_view x = laid_out(layout, dtype, 3, shapes[i]), y = laid_out((layout + (int)i) % LAYOUTS, dtype, 3, shapes[i]);
                fill_uniform(&x, unaries[k].low, unaries[k].high);
                double *expected = values_of(&x);
                for (int64_t j = 0; j < size_of(&x); j++) expected[j] = unaries[k].expected(expected[j]);
                RUN(unaries[k].run(ctx, &y, &x));
                check_values(unaries[k].name, &y, expected, 8 * epsilon(dtype));
                RUN(unaries[k].run(ctx, &x, &x));
                check_same(unaries[k].name, &x, &y);
                free_arrays();
            }
}

static void test_backward(rl_ctx *ctx, rl_dtype dtype) {
    for (size_t k = 0; k < COUNT(backwards); k++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            const int64_t *shape = shapes[layout % 2 ? 3 : 7];
            rl_view x = laid_out(layout, dtype, 3, shape), g = laid_out((layout + 1) % LAYOUTS, dtype, 3, shape);
            rl_view gx = laid_out((layout + 2) % LAYOUTS, dtype, 3, shape);
            fill_uniform(&x, backwards[k].low, backwards[k].high);
            double *expected = values_of(&x);
            for (int64_t j = 0; j < size_of(&x); j++) expected[j] = get(&g, j) * backwards[k].slope(expected[j]);
            RUN(backwards[k].run(ctx, &gx, &g, &x));
            check_values(backwards[k].name, &gx, expected, 16 * epsilon(dtype));
            RUN(backwards[k].run(ctx, &g, &g, &x));
            check_same(backwards[k].name, &g, &gx);
            free_arrays();
        }
}

/* element i of z's row-major order, in an operand that broadcasts to z */
static double broadcast_get(const rl_view *x, const rl_view *z, int64_t i) {
    int64_t at = 0;
    for (int d = z->ndim - 1; d >= 0; d--) {
        int own = d - (z->ndim - x->ndim);
        if (own >= 0 && x->shape[own] > 1) at += i % z->shape[d] * x->stride[own];
        i /= z->shape[d];
    }
    char *p = (char *)x->data + at * item_bytes((rl_dtype)x->dtype);
    return x->dtype == RL_BOOL ? *(uint8_t *)p : x->dtype == RL_FLOAT32 ? (double)*(float *)p : *(double *)p;
}

/* an operand of up to z's rank whose axes are z's or 1, in any layout */
static rl_view random_operand(rl_dtype dtype, const rl_view *z) {
    int ndim = (int)pick(z->ndim + 1);
    int64_t shape[RL_MAX_DIMS];
    for (int d = 0; d < ndim; d++) shape[d] = pick(3) ? z->shape[z->ndim - ndim + d] : 1;
    return laid_out((int)pick(LAYOUTS), dtype, ndim, shape);
}

static rl_view random_output(rl_dtype dtype) {
    static const int64_t lengths[] = {1, 2, 3, 5, 8, 16, 17, 40};
    int64_t shape[5];
    int ndim = (int)pick(6);
    for (int d = 0; d < ndim; d++) shape[d] = d < 3 ? pick(5) : lengths[pick(8)];
    return laid_out((int)pick(LAYOUTS), dtype, ndim, shape);
}

static void test_binary(rl_ctx *ctx, rl_dtype dtype) {
    for (int round = 0; round < 70 * (int)COUNT(binaries); round++) {
        size_t k = (size_t)round % COUNT(binaries);
        rl_view z = random_output(dtype), x = random_operand(dtype, &z), y = random_operand(dtype, &z);
        fill_uniform(&x, binaries[k].low, binaries[k].high);
        fill_uniform(&y, binaries[k].low, binaries[k].high);
        double *expected = values_of(&z);
        for (int64_t i = 0; i < size_of(&z); i++) expected[i] = binaries[k].expected(broadcast_get(&x, &z, i), broadcast_get(&y, &z, i));
        RUN(binaries[k].run(ctx, &z, &x, &y));
        check_values(binaries[k].name, &z, expected, 4 * epsilon(dtype));
        rl_view same = copy_of(&z), other = copy_of(&z);
        RUN(binaries[k].run(ctx, &z, &z, &other)); /* in place, once on each side */
        RUN(binaries[k].run(ctx, &same, &other, &same));
        check_same(binaries[k].name, &z, &same);
        free_arrays();
    }
}

static void test_where_copy_accumulate(rl_ctx *ctx, rl_dtype dtype) {
    for (int round = 0; round < 200; round++) {
        rl_view z = random_output(dtype), condition = random_operand(RL_BOOL, &z);
        rl_view x = random_operand(dtype, &z), y = random_operand(dtype, &z);
        for (int64_t i = 0; i < size_of(&condition); i++) put(&condition, i, pick(2));
        double *expected = values_of(&z), *sum = values_of(&z), *copied = values_of(&z);
        for (int64_t i = 0; i < size_of(&z); i++) {
            expected[i] = broadcast_get(broadcast_get(&condition, &z, i) ? &x : &y, &z, i);
            sum[i] += broadcast_get(&x, &z, i);
            copied[i] = broadcast_get(&x, &z, i);
        }
        RUN(rl_accumulate(ctx, &z, &x));
        check_values("accumulate", &z, sum, 2 * epsilon(dtype));
        RUN(rl_where(ctx, &z, &condition, &x, &y));
        check_values("where", &z, expected, 0);
        RUN(rl_copy(ctx, &z, &x));
        check_values("copy", &z, copied, 0);
        for (int64_t i = 0; i < size_of(&z); i++) expected[i] = -2.5;
        RUN(rl_fill(ctx, &z, -2.5));
        check_values("fill", &z, expected, 0);
        free_arrays();
    }
}

/* a kernel writes its view and nothing between */
static void test_gaps(rl_ctx *ctx, rl_dtype dtype) {
    rl_view memory = ARRAY(dtype, 60, 90), y = memory, before = copy_of(&memory);
    y.shape[0] = 20, y.shape[1] = 30;
    y.stride[0] = 3 * 90, y.stride[1] = 3;
    RUN(rl_fill(ctx, &y, 7));
    for (int64_t i = 0; i < size_of(&memory); i++) {
        bool inside = i / 90 % 3 == 0 && i % 3 == 0;
        CHECK(get(&memory, i) == (inside ? 7 : get(&before, i)), "element %d is %g", (int)i, get(&memory, i));
    }
}

static void test_special(rl_ctx *ctx, rl_dtype dtype) {
    const double tiny = dtype == RL_FLOAT32 ? 1e-40 : 1e-310, values[] = {0, -0.0, INFINITY, -INFINITY, NAN, tiny, -tiny, 1e4, -1e4};
    rl_view x = ARRAY(dtype, 9), y = ARRAY(dtype, 9), z = ARRAY(dtype, 9);
    for (int64_t i = 0; i < 9; i++) put(&x, i, values[i]);
    for (size_t k = 0; k < COUNT(unaries); k++) {
        double expected[9];
        for (int64_t i = 0; i < 9; i++) {
            expected[i] = unaries[k].expected(get(&x, i));
            bool limit = unaries[k].run == rl_silu || unaries[k].run == rl_gelu || unaries[k].run == rl_gelu_tanh;
            if (limit && i == 3) expected[i] = NAN; /* -inf * 0, as the formula says */
            if (dtype == RL_FLOAT32 && fabs(expected[i]) > FLT_MAX) expected[i] = copysign(INFINITY, expected[i]);
        }
        RUN(unaries[k].run(ctx, &y, &x));
        check_values(unaries[k].name, &y, expected, 4 * epsilon(dtype));
    }
    for (int64_t i = 0; i < 9; i++) put(&y, i, 1), put(&z, i, i % 2);
    RUN(rl_maximum(ctx, &z, &x, &y));
    CHECK(isnan(get(&z, 4)) && get(&z, 2) == INFINITY && get(&z, 3) == 1, "maximum of NaN, inf, -inf");
    RUN(rl_minimum(ctx, &z, &y, &x));
    CHECK(isnan(get(&z, 4)) && get(&z, 2) == 1 && get(&z, 3) == -INFINITY, "minimum of NaN, inf, -inf");
}

int main(void) {
    at_every_level(test_unary);
    at_every_level(test_backward);
    at_every_level(test_binary);
    at_every_level(test_where_copy_accumulate);
    at_every_level(test_gaps);
    at_every_level(test_special);
    return finish();
}
