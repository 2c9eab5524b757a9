/* Attention and its gradients against plain loops in double. */
#include "check.h"
#include <float.h>

enum { NO_MASK, KEEP_KEYS, KEEP_ALL, BIAS_ALL, BIAS_HIDES_ROWS, BOTH, KEEP_NOTHING, MASKS };

typedef struct {
    int64_t batch, heads, groups, queries, keys, width;
    int causal, mask;
} shape;

static rl_dtype dtype; /* of the case that runs */
static size_t item(void) { return dtype == RL_FLOAT32 ? sizeof(float) : sizeof(double); }
static double get(const void *data, int64_t i) { return dtype == RL_FLOAT32 ? (double)((const float *)data)[i] : ((const double *)data)[i]; }
static void set(void *data, int64_t i, double x) {
    if (dtype == RL_FLOAT32) ((float *)data)[i] = (float)x;
    else ((double *)data)[i] = x;
}

/* ---- (B, H, T, K) views of (B, T, H, K + GAP) memory; the gap must stay as it was ---- */

#define GAP 3
#define UNTOUCHED 77.0

static rl_view heads_view(int64_t b, int64_t h, int64_t t, int64_t k) {
    rl_view x = VIEW(NULL, dtype, b, h, t, k);
    int64_t row = k + GAP, count = b * h * t * row;
    x.stride[0] = t * h * row, x.stride[1] = row, x.stride[2] = h * row, x.stride[3] = 1;
    x.data = malloc((size_t)(count + 1) * item());
    for (int64_t i = 0; i < count; i++) set(x.data, i, i % row < k ? uniform() : UNTOUCHED);
    return x;
}
static double at(const rl_view *x, int64_t b, int64_t h, int64_t t, int64_t k) {
    return get(x->data, b * x->stride[0] + h * x->stride[1] + t * x->stride[2] + k * x->stride[3]);
}
static int64_t memory_of(const rl_view *x) { return x->shape[0] * x->shape[1] * x->shape[2] * (x->shape[3] + GAP); }
static int gap_is_whole(const rl_view *x) {
    int64_t row = x->shape[3] + GAP;
    for (int64_t i = 0; i < memory_of(x); i++)
        if (i % row >= x->shape[3] && get(x->data, i) != UNTOUCHED) return 0;
    return 1;
}

/* ---- one case ---- */

enum { Q, K, V, O, G, GQ, GK, GV, TENSORS };
static const char *const names[] = {"q", "k", "v", "o", "g", "gq", "gk", "gv"};

typedef struct {
    shape s;
    rl_view x[TENSORS], lse, keep, bias;
    rl_view *keep_used, *bias_used;
    double scale;
} problem;

static void make_masks(problem *p) {
    shape s = p->s;
    int64_t count = s.batch * s.heads * s.queries * s.keys;
    p->keep = VIEW(malloc((size_t)count + 1), RL_BOOL, s.batch, s.heads, s.queries, s.keys);
    p->bias = VIEW(malloc((size_t)(count + 1) * item()), dtype, s.batch, s.heads, s.queries, s.keys);
    double lowest = dtype == RL_FLOAT32 ? -FLT_MAX : -DBL_MAX;
    for (int64_t i = 0; i < count; i++) {
        int64_t query = s.keys ? i / s.keys % s.queries : 0;
        ((uint8_t *)p->keep.data)[i] = s.mask != KEEP_NOTHING && uniform() > -0.3;
        double bias = uniform() > 0.6 ? -INFINITY : uniform();
        if (s.mask == BIAS_HIDES_ROWS) bias = query % 3 == 0 ? -INFINITY : query % 3 == 1 ? lowest : uniform();
        set(p->bias.data, i, bias);
    }
    if (s.mask == KEEP_KEYS) p->keep.stride[1] = p->keep.stride[2] = 0;
    if (s.mask == BOTH) p->bias.stride[0] = p->bias.stride[3] = 0;
    p->keep_used = s.mask == KEEP_KEYS || s.mask == KEEP_ALL || s.mask == BOTH || s.mask == KEEP_NOTHING ? &p->keep : NULL;
    p->bias_used = s.mask == BIAS_ALL || s.mask == BIAS_HIDES_ROWS || s.mask == BOTH ? &p->bias : NULL;
}

static problem make_problem(shape s) {
    problem p = {.s = s, .scale = 1 / sqrt((double)s.width + 1) + 0.1};
    for (int i = 0; i < TENSORS; i++) {
        int of_keys = i == K || i == V || i == GK || i == GV;
        p.x[i] = heads_view(s.batch, of_keys ? s.groups : s.heads, of_keys ? s.keys : s.queries, s.width);
    }
    p.lse = VIEW(calloc((size_t)(s.batch * s.heads * s.queries + 1), item()), dtype, s.batch, s.heads, s.queries);
    make_masks(&p);
    return p;
}

static void free_problem(problem *p) {
    for (int i = 0; i < TENSORS; i++) free(p->x[i].data);
    free(p->lse.data), free(p->keep.data), free(p->bias.data);
}

static rl_status forward(rl_ctx *ctx, problem *p) {
    return rl_attention(ctx, &p->x[O], &p->lse, &p->x[Q], &p->x[K], &p->x[V], p->keep_used, p->bias_used, p->scale, p->s.causal);
}
static rl_status backward(rl_ctx *ctx, problem *p) {
    return rl_attention_backward(ctx, &p->x[GQ], &p->x[GK], &p->x[GV], &p->x[G], &p->x[Q], &p->x[K], &p->x[V], &p->x[O], &p->lse, p->keep_used,
                                 p->bias_used, p->scale, p->s.causal);
}

/* ---- the plain loops ---- */

static double score_of(const problem *p, int64_t b, int64_t h, int64_t t, int64_t s) {
    if (p->s.causal && s > t) return -INFINITY;
    const int64_t index[] = {b, h, t, s};
    int64_t keep = 0, bias = 0;
    for (int d = 0; d < 4; d++) keep += index[d] * p->keep.stride[d], bias += index[d] * p->bias.stride[d];
    if (p->keep_used && !((const uint8_t *)p->keep.data)[keep]) return -INFINITY;
    double score = p->bias_used ? get(p->bias.data, bias) : 0;
    if (score < -1e37) return -INFINITY;
    for (int64_t k = 0; k < p->s.width; k++) score += p->scale * at(&p->x[Q], b, h, t, k) * at(&p->x[K], b, h / (p->s.heads / p->s.groups), s, k);
    return score;
}

/* contiguous (B, H, T, K)-like results */
static double *expected[TENSORS], *expected_lse;
static double *slot(const problem *p, int which, int64_t b, int64_t h, int64_t t) {
    const int64_t *n = p->x[which].shape;
    return expected[which] + ((b * n[1] + h) * n[2] + t) * n[3];
}

static void reference_row(const problem *p, int64_t b, int64_t h, int64_t t, double *weight) {
    int64_t group = h / (p->s.heads / p->s.groups), width = p->s.width;
    double sum = 0, dot = 0;
    for (int64_t s = 0; s < p->s.keys; s++) sum += weight[s] = exp(score_of(p, b, h, t, s));
    expected_lse[(b * p->s.heads + h) * p->s.queries + t] = log(sum);
    for (int64_t s = 0; s < p->s.keys; s++) {
        weight[s] = sum > 0 ? weight[s] / sum : 0;
        for (int64_t k = 0; k < width; k++) slot(p, O, b, h, t)[k] += weight[s] * at(&p->x[V], b, group, s, k);
    }
    for (int64_t k = 0; k < width; k++) dot += slot(p, O, b, h, t)[k] * at(&p->x[G], b, h, t, k);
    for (int64_t s = 0; s < p->s.keys; s++) {
        double gradient = -dot;
        for (int64_t k = 0; k < width; k++) gradient += at(&p->x[G], b, h, t, k) * at(&p->x[V], b, group, s, k);
        gradient *= weight[s] * p->scale;
        for (int64_t k = 0; k < width; k++) {
            slot(p, GV, b, group, s)[k] += weight[s] * at(&p->x[G], b, h, t, k);
            slot(p, GK, b, group, s)[k] += gradient * at(&p->x[Q], b, h, t, k);
            slot(p, GQ, b, h, t)[k] += gradient * at(&p->x[K], b, group, s, k);
        }
    }
}

static void reference(const problem *p) {
    double *weight = malloc((size_t)(p->s.keys + 1) * sizeof(double));
    for (int i = 0; i < TENSORS; i++) expected[i] = calloc((size_t)memory_of(&p->x[i]) + 1, sizeof(double));
    expected_lse = calloc((size_t)(p->s.batch * p->s.heads * p->s.queries + 1), sizeof(double));
    for (int64_t b = 0; b < p->s.batch; b++)
        for (int64_t h = 0; h < p->s.heads; h++)
            for (int64_t t = 0; t < p->s.queries; t++) reference_row(p, b, h, t, weight);
    free(weight);
}

static double worst_difference(const problem *p, int which) {
    const int64_t *n = p->x[which].shape;
    double worst = 0;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t t = 0; t < n[2]; t++)
                for (int64_t k = 0; k < n[3]; k++) {
                    double error = fabs(at(&p->x[which], b, h, t, k) - slot(p, which, b, h, t)[k]);
                    if (!(error <= worst)) worst = error; /* NaN too */
                }
    return worst;
}

/* ---- tests ---- */

static const int results[] = {O, GQ, GK, GV};

static void check_against_reference(rl_ctx *ctx, shape s) {
    char text[160];
    snprintf(text, sizeof text, "%s %s B%d H%d G%d T%d S%d K%d causal %d mask %d", rl_level(), dtype == RL_FLOAT32 ? "float32" : "float64", (int)s.batch,
             (int)s.heads, (int)s.groups, (int)s.queries, (int)s.keys, (int)s.width, s.causal, s.mask);
    problem p = make_problem(s);
    reference(&p);
    rl_set_num_threads(3);
    CHECK(forward(ctx, &p) == RL_OK && backward(ctx, &p) == RL_OK, "%s: %s", text, rl_error(ctx));
    double tolerance = (dtype == RL_FLOAT32 ? 2e-6 : 4e-15) * (1 + sqrt((double)(s.heads * s.queries)));
    for (int i = 0; i < 4; i++) {
        double worst = worst_difference(&p, results[i]);
        CHECK(worst <= tolerance, "%s: %s differs by %g", text, names[results[i]], worst);
        CHECK(gap_is_whole(&p.x[results[i]]), "%s: %s written out of bounds", text, names[results[i]]);
    }
    for (int64_t i = 0; i < s.batch * s.heads * s.queries; i++) {
        double lse = get(p.lse.data, i);
        CHECK(lse == expected_lse[i] || fabs(lse - expected_lse[i]) <= tolerance, "%s: lse %g, expected %g", text, lse, expected_lse[i]);
    }
    problem one = p; /* the same with one thread, into other memory */
    for (int i = 0; i < 4; i++) {
        int r = results[i];
        one.x[r] = heads_view(p.x[r].shape[0], p.x[r].shape[1], p.x[r].shape[2], s.width);
    }
    rl_set_num_threads(1);
    CHECK(forward(ctx, &one) == RL_OK && backward(ctx, &one) == RL_OK, "%s: %s", text, rl_error(ctx));
    for (int i = 0; i < 4; i++) {
        int r = results[i];
        CHECK(!memcmp(one.x[r].data, p.x[r].data, (size_t)memory_of(&p.x[r]) * item()), "%s: %s depends on threads", text, names[r]);
        free(one.x[r].data);
    }
    for (int i = 0; i < TENSORS; i++) free(expected[i]);
    free(expected_lse);
    free_problem(&p);
}

static void test_values(rl_ctx *ctx) {
    static const shape shapes[] = {
        {1, 1, 1, 1, 1, 1, 0, 0},    {2, 2, 1, 3, 5, 2, 0, 0},   {1, 4, 2, 64, 64, 32, 0, 0}, {1, 6, 2, 100, 100, 17, 0, 0},
        {2, 3, 3, 49, 13, 33, 0, 0}, {1, 2, 2, 13, 49, 7, 0, 0}, {1, 1, 1, 1, 70, 64, 0, 0},  {1, 1, 1, 250, 130, 16, 0, 0},
        {1, 1, 1, 20, 30, 256, 0, 0}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int causal = 0; causal < 2; causal++)
            for (int mask = 0; mask < MASKS; mask++) {
                shape s = shapes[i];
                s.causal = causal, s.mask = mask;
                check_against_reference(ctx, s);
            }
    /* several tiles of keys: the running maximum rises, and hidden tiles come first */
    for (int mask = 0; mask < MASKS; mask++) check_against_reference(ctx, (shape){1, 2, 1, 60, 1100, 5, 0, mask});
    check_against_reference(ctx, (shape){1, 1, 1, 1100, 1100, 3, 1, NO_MASK});
    check_against_reference(ctx, (shape){1, 1, 1, 700, 1030, 3, 1, BOTH});
}

static void test_sizes_of_zero(rl_ctx *ctx) {
    check_against_reference(ctx, (shape){0, 2, 1, 3, 4, 5, 0, NO_MASK});
    check_against_reference(ctx, (shape){2, 2, 1, 0, 4, 5, 1, KEEP_ALL});
    check_against_reference(ctx, (shape){2, 2, 1, 3, 0, 5, 1, BIAS_ALL});
    check_against_reference(ctx, (shape){2, 2, 1, 3, 4, 0, 0, NO_MASK});
    check_against_reference(ctx, (shape){2, 0, 1, 3, 4, 5, 0, NO_MASK});
    check_against_reference(ctx, (shape){1, 0, 0, 3, 4, 5, 0, NO_MASK});
}

/* scores far beyond the range of exp, and NaN that must not vanish */
static void test_extremes(rl_ctx *ctx) {
    problem p = make_problem((shape){1, 1, 1, 5, 600, 4, 0, NO_MASK});
    p.scale = 1e4;
    CHECK(forward(ctx, &p) == RL_OK && backward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    for (int i = 0; i < 4; i++)
        for (int64_t j = 0; j < memory_of(&p.x[results[i]]); j++)
            CHECK(isfinite(get(p.x[results[i]].data, j)), "%s is not finite for large scores", names[results[i]]);
    set(p.x[Q].data, 0, NAN);
    CHECK(forward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    CHECK(isnan(at(&p.x[O], 0, 0, 0, 0)) && !isnan(at(&p.x[O], 0, 0, 1, 0)), "NaN of query 0 belongs to row 0");
    free_problem(&p);
}

static void test_bad_shapes(rl_ctx *ctx) {
    problem p = make_problem((shape){2, 4, 2, 6, 7, 8, 0, BOTH});
    CHECK(forward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    rl_view *views[] = {&p.x[O], &p.x[Q], &p.x[K], &p.x[V], &p.lse, &p.keep, &p.bias, &p.x[G], &p.x[GQ], &p.x[GK], &p.x[GV]};
    for (int i = 0; i < 11; i++) {
        rl_view good = *views[i];
        for (int d = 0; d < good.ndim; d++) {
            views[i]->shape[d]--;
            CHECK(backward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with axis %d too short passes backward", i, d);
            if (i < 7) CHECK(forward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with axis %d too short passes", i, d);
            *views[i] = good;
        }
        views[i]->ndim--;
        CHECK(backward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with an axis missing passes", i);
        *views[i] = good;
        if (i == 5 || i == 6) continue;
        views[i]->stride[good.ndim - 1] = 2;
        CHECK(backward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with last stride 2 passes", i);
        *views[i] = good;
    }
    CHECK(strstr(rl_error(ctx), "attention_backward: ") != NULL, "error text is %s", rl_error(ctx));
    free_problem(&p);
}

int main(void) {
    rl_ctx *ctx = rl_ctx_new();
    for (const char *const *level = rl_levels(); *level; level++) {
        if (!rl_set_level(*level)) continue;
        for (int d = 0; d < 2; d++) {
            dtype = d ? RL_FLOAT64 : RL_FLOAT32;
            test_values(ctx);
            test_sizes_of_zero(ctx);
            test_extremes(ctx);
            test_bad_shapes(ctx);
        }
    }
    rl_ctx_free(ctx);
    return finish();
}
