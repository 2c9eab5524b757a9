/* Optimizers and clipping against their formulas in double, over several steps and tensors of many sizes. */
#include "check.h"

#define TENSORS 7
#define STEPS 4
static const int64_t lengths[TENSORS] = {1, 3, 16, 0, 257, 16384, 40001};
static const int64_t one[] = {1};

typedef struct {
    rl_view views[TENSORS];
    rl_list list;
} tensors;

static void make_tensors(tensors *x, rl_dtype dtype, bool single, double low, double high) {
    for (int i = 0; i < TENSORS; i++) {
        x->views[i] = array_of(dtype, 1, single ? one : &lengths[i]);
        fill_uniform(&x->views[i], low, high);
    }
    x->list = (rl_list){TENSORS, x->views};
}

static void check_tensors(const char *name, const tensors *x, double *const *expected, double tolerance) {
    for (int i = 0; i < TENSORS; i++) check_values(name, &x->views[i], expected[i], tolerance);
}

static void values_of_all(double **values, const tensors *x) {
    for (int i = 0; i < TENSORS; i++) values[i] = values_of(&x->views[i]);
}

/* ---- Adam ---- */

typedef struct {
    double lr, beta1, beta2, eps, decay;
    bool decoupled, maximize;
} adam_options;

static void adam_element(const adam_options *o, double t, double g, double *p, double *m, double *v) {
    if (o->maximize) g = -g;
    if (o->decoupled) *p -= o->lr * o->decay * *p;
    else g += o->decay * *p;
    *m = o->beta1 * *m + (1 - o->beta1) * g;
    *v = o->beta2 * *v + (1 - o->beta2) * g * g;
    *p -= o->lr * (*m / (1 - pow(o->beta1, t))) / (sqrt(*v / (1 - pow(o->beta2, t))) + o->eps);
}

static void test_adam(rl_ctx *ctx, rl_dtype dtype) {
    for (int flags = 0; flags < 8; flags++) {
        adam_options o = {0.05, 0.9, 0.95, 1e-6, flags & 1 ? 0.1 : 0, flags & 2, flags & 4};
        tensors p, g, m, v, step;
        double *ps[TENSORS], *ms[TENSORS], *vs[TENSORS], steps[] = {STEPS};
        make_tensors(&p, dtype, false, -1, 1), make_tensors(&m, dtype, false, 0, 0), make_tensors(&v, dtype, false, 0, 0);
        make_tensors(&step, dtype, true, 0, 0);
        rl_view lr = ARRAY(dtype, 1);
        put(&lr, 0, o.lr);
        values_of_all(ps, &p), values_of_all(ms, &m), values_of_all(vs, &v);
        for (int t = 1; t <= STEPS; t++) {
            make_tensors(&g, dtype, false, -1, 1);
            for (int k = 0; k < TENSORS; k++)
                for (int64_t i = 0; i < lengths[k]; i++) adam_element(&o, t, get(&g.views[k], i), &ps[k][i], &ms[k][i], &vs[k][i]);
            RUN(rl_adam(ctx, &p.list, &g.list, &m.list, &v.list, &step.list, &lr, o.beta1, o.beta2, o.eps, o.decay, o.decoupled,
                        o.maximize));
        }
        /* a gradient near 0 makes m / sqrt(v) lose digits of m */
        check_tensors("p", &p, ps, epsilon(dtype) * 256);
        check_tensors("m", &m, ms, epsilon(dtype) * 16);
        check_tensors("v", &v, vs, epsilon(dtype) * 16);
        for (int k = 0; k < TENSORS; k++) check_values("step", &step.views[k], steps, 0);
        free_arrays();
    }
}

/* ---- SGD ---- */

typedef struct {
    double lr, momentum, dampening, decay;
    bool nesterov, maximize;
} sgd_options;

static void sgd_element(const sgd_options *o, bool first, double g, double *p, double *buffer) {
    if (o->maximize) g = -g;
    g += o->decay * *p;
    if (o->momentum != 0) {
        *buffer = first ? g : o->momentum * *buffer + (1 - o->dampening) * g;
        g = o->nesterov ? g + o->momentum * *buffer : *buffer;
    }
    *p -= o->lr * g;
}

static void test_sgd(rl_ctx *ctx, rl_dtype dtype) {
    for (int flags = 0; flags < 32; flags++) {
        sgd_options o = {0.1, flags & 1 ? 0.9 : 0, flags & 2 ? 0.3 : 0, flags & 4 ? 0.2 : 0, flags & 8, flags & 16};
        tensors p, g, buffer, step;
        double *ps[TENSORS], *buffers[TENSORS];
        make_tensors(&p, dtype, false, -1, 1), make_tensors(&buffer, dtype, false, 5, 6), make_tensors(&step, dtype, true, 0, 0);
        rl_view lr = ARRAY(dtype, 1);
        put(&lr, 0, o.lr);
        values_of_all(ps, &p), values_of_all(buffers, &buffer);
        if (o.momentum == 0) buffer.list.count = 0; /* no buffers are needed then */
        for (int t = 1; t <= STEPS; t++) {
            make_tensors(&g, dtype, false, -1, 1);
            for (int k = 0; k < TENSORS; k++)
                for (int64_t i = 0; i < lengths[k]; i++) sgd_element(&o, t == 1, get(&g.views[k], i), &ps[k][i], &buffers[k][i]);
            RUN(rl_sgd(ctx, &p.list, &g.list, &buffer.list, &step.list, &lr, o.momentum, o.dampening, o.decay, o.nesterov, o.maximize));
        }
        check_tensors("p", &p, ps, epsilon(dtype) * 32);
        check_tensors("buffer", &buffer, buffers, epsilon(dtype) * 32);
        free_arrays();
    }
}

/* ---- clipping ---- */

static void test_clipping(rl_ctx *ctx, rl_dtype dtype) {
    static const double limits[] = {-1, 0, 0.5, 1e9};
    for (int k = 0; k < 4; k++) {
        tensors g;
        double *values[TENSORS], total = 0;
        make_tensors(&g, dtype, false, -2, 3);
        values_of_all(values, &g);
        for (int t = 0; t < TENSORS; t++)
            for (int64_t i = 0; i < lengths[t]; i++) total += values[t][i] * values[t][i];
        total = sqrt(total);
        double factor = limits[k] >= 0 ? fmin(1, limits[k] / (total + 1e-6)) : 1;
        for (int t = 0; t < TENSORS; t++)
            for (int64_t i = 0; i < lengths[t]; i++) values[t][i] *= factor;
        rl_view norm = ARRAY(dtype, 1);
        RUN(rl_clip_grad_norm(ctx, &norm, &g.list, limits[k]));
        check_values("norm", &norm, &total, epsilon(dtype) * 256); /* the plain loop adds 57000 squares in a row */
        check_tensors("g", &g, values, epsilon(dtype) * 16);
        put(&g.views[4], 100, NAN);
        values_of_all(values, &g);
        RUN(rl_clip_grad_norm(ctx, &norm, &g.list, 1e-3));
        CHECK(isnan(get(&norm, 0)), "norm is %g", get(&norm, 0));
        check_tensors("g with NaN", &g, values, 0);
        free_arrays();
    }
}

static void test_nothing(rl_ctx *ctx, rl_dtype dtype) {
    rl_list none = {0, NULL};
    rl_view lr = ARRAY(dtype, 1);
    RUN(rl_adam(ctx, &none, &none, &none, &none, &none, &lr, 0.9, 0.99, 1e-8, 0, 0, 0));
    RUN(rl_sgd(ctx, &none, &none, &none, &none, &lr, 0.9, 0, 0, 0, 0));
    RUN(rl_clip_grad_norm(ctx, &lr, &none, 1));
    CHECK(get(&lr, 0) == 0, "the norm of nothing is %g", get(&lr, 0));
}

int main(void) {
    at_every_level(test_adam);
    at_every_level(test_sgd);
    at_every_level(test_clipping);
    at_every_level(test_nothing);
    return finish();
}
