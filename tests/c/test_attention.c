/* Attention and its gradients against plain loops in double. */
#include "check.h"

enum { NO_MASK, KEEP_KEYS, KEEP_ALL, BIAS_ALL, BIAS_HIDES_ROWS, BOTH, KEEP_NOTHING, MASKS };
enum { Q, K, V, O, G, GQ, GK, GV, TENSORS };
static const char *const names[] = {"q", "k", "v", "o", "g", "gq", "gk", "gv"};
static const int results[] = {O, GQ, GK, GV};

typedef struct {
    int64_t batch, heads, groups, queries, keys, width;
    int causal, mask;
    double p;
} setup;

typedef struct {
    setup s;
    rl_view x[TENSORS], gap[TENSORS], lse, keep, bias, state, drawn;
    bool has_keep, has_bias;
    double scale;
} problem;

/* (B, H, T, K) in (B, T, H, K + 3) memory; `gap` are the last 3 numbers of each row */
static rl_view heads_of(rl_dtype dtype, int64_t batch, int64_t heads, int64_t rows, int64_t width, rl_view *gap) {
    rl_view memory = ARRAY(dtype, batch, rows, heads, width + 3), x = memory;
    x.shape[1] = heads, x.shape[2] = rows, x.shape[3] = width;
    x.stride[1] = memory.stride[2], x.stride[2] = memory.stride[1];
    *gap = x;
    gap->shape[3] = 3;
    gap->data = (char *)x.data + width * item_bytes(dtype);
    return x;
}

static void make_masks(problem *p, rl_dtype dtype) {
    setup s = p->s;
    double lowest = dtype == RL_FLOAT32 ? -FLT_MAX : -DBL_MAX;
    p->keep = ARRAY(RL_BOOL, s.batch, s.heads, s.queries, s.keys);
    p->bias = ARRAY(dtype, s.batch, s.heads, s.queries, s.keys);
    for (int64_t i = 0; i < size_of(&p->keep); i++) {
        int64_t query = i / s.keys % s.queries;
        put(&p->keep, i, s.mask != KEEP_NOTHING && uniform() > -0.3);
        if (uniform() > 0.6) put(&p->bias, i, -INFINITY);
        if (s.mask == BIAS_HIDES_ROWS) put(&p->bias, i, query % 3 == 0 ? -INFINITY : query % 3 == 1 ? lowest : uniform());
    }
    if (s.mask == KEEP_KEYS) p->keep.stride[1] = p->keep.stride[2] = 0;
    if (s.mask == BOTH) p->bias.stride[0] = p->bias.stride[3] = 0;
    p->has_keep = s.mask == KEEP_KEYS || s.mask == KEEP_ALL || s.mask == BOTH || s.mask == KEEP_NOTHING;
    p->has_bias = s.mask == BIAS_ALL || s.mask == BIAS_HIDES_ROWS || s.mask == BOTH;
}

/* where the generator stands: the low word of the offset overflows */
static const uint64_t start[] = {0x123456789abcdef0u, 0xfffffffeu};

static rl_view generator(void) {
    rl_view state = ARRAY(RL_UINT64, 2);
    memcpy(state.data, start, sizeof start);
    return state;
}

static int64_t blocks_per_row(setup s) { return (s.keys + 63) / 64 * 16; }

static problem make_problem(rl_dtype dtype, setup s) {
    problem p = {.s = s, .scale = 1 / sqrt((double)s.width + 1) + 0.1};
    for (int i = 0; i < TENSORS; i++) {
        bool of_keys = i == K || i == V || i == GK || i == GV;
        p.x[i] = heads_of(dtype, s.batch, of_keys ? s.groups : s.heads, of_keys ? s.keys : s.queries, s.width, &p.gap[i]);
    }
    p.lse = ARRAY(dtype, s.batch, s.heads, s.queries);
    make_masks(&p, dtype);
    p.drawn = ARRAY(RL_UINT64, 2);
    p.state = generator();
    return p;
}

static rl_status forward(rl_ctx *ctx, problem *p) {
    return rl_attention(ctx, &p->x[O], &p->lse, &p->x[Q], &p->x[K], &p->x[V], p->has_keep ? &p->keep : NULL, p->has_bias ? &p->bias : NULL,
                        p->scale, p->s.causal, p->s.p > 0 ? &p->state : NULL, p->s.p > 0 ? &p->drawn : NULL, p->s.p);
}

static rl_status backward(rl_ctx *ctx, problem *p) {
    return rl_attention_backward(ctx, &p->x[GQ], &p->x[GK], &p->x[GV], &p->x[G], &p->x[Q], &p->x[K], &p->x[V], &p->x[O], &p->lse,
                                 p->has_keep ? &p->keep : NULL, p->has_bias ? &p->bias : NULL, p->scale, p->s.causal,
                                 p->s.p > 0 ? &p->drawn : NULL, p->s.p);
}

/* ---- the plain loops, on contiguous copies ---- */

typedef struct {
    const problem *p;
    double *x[TENSORS], *lse, *keep, *bias, *weight, *factor;
} reference;

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void add(double *sum, double factor, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += factor * x[i];
}

/* word `word` of a Philox block */
static uint32_t random_word(uint64_t seed, uint64_t block, int64_t word) {
    uint32_t x[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t first = UINT64_C(0xD2511F53) * x[0], second = UINT64_C(0xCD9E8D57) * x[2];
        uint32_t next[] = {(uint32_t)(second >> 32) ^ x[1] ^ key[0], (uint32_t)second, (uint32_t)(first >> 32) ^ x[3] ^ key[1],
                           (uint32_t)first};
        memcpy(x, next, sizeof x);
        key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
    }
    return x[word];
}

/* what dropout multiplies weight s of a row by */
static double dropout_factor(const problem *p, int64_t row, int64_t s) {
    if (p->s.p == 0) return 1;
    uint32_t word = random_word(start[0], start[1] + (uint64_t)(row * blocks_per_row(p->s) + s / 4), s % 4);
    return p->s.p < 1 && word >= p->s.p * 4294967296.0 ? 1 / (1 - p->s.p) : 0;
}

/* one query: `row` among all (b, h, t), keys from `first` on among all (b, g, s) */
static void reference_row(reference *r, int64_t row, int64_t first) {
    const problem *p = r->p;
    int64_t keys = p->s.keys, width = p->s.width, t = row % p->s.queries;
    double *q = r->x[Q] + row * width, *o = r->x[O] + row * width, *g = r->x[G] + row * width, *gq = r->x[GQ] + row * width, sum = 0;
    for (int64_t s = 0; s < keys; s++) {
        double score = p->scale * dot(q, r->x[K] + (first + s) * width, width) + (p->has_bias ? r->bias[row * keys + s] : 0);
        bool hidden = (p->s.causal && s > t) || (p->has_keep && r->keep[row * keys + s] == 0) || score < -1e37;
        sum += r->weight[s] = hidden ? 0 : exp(score);
        r->factor[s] = dropout_factor(p, row, s);
    }
    r->lse[row] = log(sum);
    for (int64_t s = 0; s < keys; s++) {
        r->weight[s] = sum > 0 ? r->weight[s] / sum : 0;
        add(o, r->weight[s] * r->factor[s], r->x[V] + (first + s) * width, width);
    }
    for (int64_t s = 0; s < keys; s++) {
        double gradient = p->scale * r->weight[s] * (r->factor[s] * dot(g, r->x[V] + (first + s) * width, width) - dot(g, o, width));
        add(r->x[GV] + (first + s) * width, r->weight[s] * r->factor[s], g, width);
        add(r->x[GK] + (first + s) * width, gradient, q, width);
        add(gq, gradient, r->x[K] + (first + s) * width, width);
    }
}

static reference make_reference(const problem *p) {
    setup s = p->s;
    reference r = {.p = p, .lse = values_of(&p->lse), .keep = values_of(&p->keep), .bias = values_of(&p->bias)};
    r.weight = allocate(s.keys * (int64_t)sizeof(double));
    r.factor = allocate(s.keys * (int64_t)sizeof(double));
    for (int i = 0; i < TENSORS; i++) r.x[i] = values_of(&p->x[i]);
    for (int i = 0; i < 4; i++) memset(r.x[results[i]], 0, (size_t)size_of(&p->x[results[i]]) * sizeof(double));
    for (int64_t row = 0; row < s.batch * s.heads * s.queries; row++) {
        int64_t h = row / s.queries % s.heads, b = row / s.queries / s.heads;
        reference_row(&r, row, (b * s.groups + h / (s.heads / s.groups)) * s.keys);
    }
    return r;
}

/* ---- tests ---- */

static void check_case(rl_ctx *ctx, rl_dtype dtype, setup s) {
    problem p = make_problem(dtype, s), one = p;
    reference expected = make_reference(&p);
    double *gaps[TENSORS], tolerance = 16 * epsilon(dtype) * (1 + sqrt((double)(s.heads * s.queries)));
    for (int i = 0; i < TENSORS; i++) gaps[i] = values_of(&p.gap[i]);
    rl_set_num_threads(3);
    CHECK(forward(ctx, &p) == RL_OK && backward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    rl_set_num_threads(1); /* the same once more, into other memory */
    for (int i = 0; i < 4; i++) one.x[results[i]] = copy_of(&p.x[results[i]]);
    one.lse = copy_of(&p.lse);
    one.state = generator();
    CHECK(forward(ctx, &one) == RL_OK && backward(ctx, &one) == RL_OK, "%s", rl_error(ctx));
    int before = failures;
    uint64_t blocks = s.p > 0 ? (uint64_t)(size_of(&p.lse) * blocks_per_row(s)) : 0, *state = p.state.data;
    CHECK(state[0] == start[0] && state[1] == start[1] + blocks, "offset %llu", (unsigned long long)state[1]);
    CHECK(s.p == 0 || !memcmp(p.drawn.data, start, sizeof start), "backward is given another state");
    for (int i = 0; i < 4; i++) {
        check_values(names[results[i]], &p.x[results[i]], expected.x[results[i]], tolerance);
        check_values("memory between rows", &p.gap[results[i]], gaps[results[i]], 0);
        check_same(names[results[i]], &p.x[results[i]], &one.x[results[i]]);
    }
    check_values("lse", &p.lse, expected.lse, tolerance);
    check_same("lse", &p.lse, &one.lse);
    if (failures > before)
        printf("  B %d H %d G %d T %d S %d K %d causal %d mask %d p %g\n", (int)s.batch, (int)s.heads, (int)s.groups, (int)s.queries,
               (int)s.keys, (int)s.width, s.causal, s.mask, s.p);
    free_arrays();
}

static void test_values(rl_ctx *ctx, rl_dtype dtype) {
    static const setup setups[] = {{1, 1, 1, 1, 1, 1, 0, 0, 0},      {2, 2, 1, 3, 5, 2, 0, 0, 0},     {1, 4, 2, 64, 64, 32, 0, 0, 0},
                                   {1, 6, 2, 100, 100, 17, 0, 0, 0}, {2, 3, 3, 49, 13, 33, 0, 0, 0},  {1, 2, 2, 13, 49, 7, 0, 0, 0},
                                   {1, 1, 1, 1, 70, 64, 0, 0, 0},    {1, 1, 1, 250, 130, 9, 0, 0, 0}, {1, 1, 1, 20, 30, 256, 0, 0, 0}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        for (int causal = 0; causal < 2; causal++)
            for (int mask = 0; mask < MASKS; mask++) {
                setup s = setups[i];
                s.causal = causal, s.mask = mask;
                check_case(ctx, dtype, s);
            }
}

static void test_widths(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t widths[] = {4, 6, 8, 12, 15, 16, 24, 31, 48, 63, 65, 80, 96, 100, 127, 128, 129, 130};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int causal = 0; causal < 2; causal++)
            check_case(ctx, dtype, (setup){1, 2, 1, 13, 21, widths[i], causal, causal ? KEEP_KEYS : NO_MASK, 0});
}

/* several tiles of keys: the running maximum rises, and some rows are hidden at first */
static void test_many_keys(rl_ctx *ctx, rl_dtype dtype) {
    for (int mask = 0; mask < MASKS; mask++) check_case(ctx, dtype, (setup){1, 2, 1, 60, 1100, 5, 0, mask, 0});
    check_case(ctx, dtype, (setup){1, 1, 1, 1050, 1050, 3, 1, NO_MASK, 0});
    check_case(ctx, dtype, (setup){1, 1, 1, 700, 1030, 3, 1, BOTH, 0});
    problem p = make_problem(dtype, (setup){1, 1, 1, 50, 1100, 4, 0, KEEP_ALL, 0});
    for (int64_t i = 0; i < size_of(&p.keep); i++)
        if (i % 1100 < 520) put(&p.keep, i, 0);
    reference expected = make_reference(&p);
    CHECK(forward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    check_values("o with its first tile hidden", &p.x[O], expected.x[O], 64 * epsilon(dtype));
}

static void test_dropout(rl_ctx *ctx, rl_dtype dtype) {
    static const double chances[] = {1e-9, 0.2, 0.9, 1};
    static const setup setups[] = {{1, 1, 1, 1, 1, 1, 0, 0, 0},   {2, 2, 1, 3, 5, 2, 0, 0, 0},     {2, 4, 2, 49, 65, 8, 0, 0, 0},
                                   {1, 2, 2, 66, 64, 9, 0, 0, 0}, {1, 2, 1, 20, 1100, 5, 0, 0, 0}, {2, 2, 2, 530, 513, 3, 0, 0, 0}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        for (int k = 0; k < 4; k++)
            for (int mask = 0; mask < MASKS; mask++) {
                setup s = setups[i];
                s.causal = mask % 2, s.mask = mask, s.p = chances[k];
                if (s.queries < 100 || k == 1) check_case(ctx, dtype, s);
            }
    check_case(ctx, dtype, (setup){2, 2, 1, 3, 0, 5, 0, NO_MASK, 0.5});
    check_case(ctx, dtype, (setup){0, 2, 1, 3, 4, 5, 0, NO_MASK, 0.5});
}

static void test_bad_dropout(rl_ctx *ctx, rl_dtype dtype) {
    static const double outside[] = {-0.1, 1.1, NAN};
    problem p = make_problem(dtype, (setup){1, 1, 1, 3, 4, 5, 0, NO_MASK, 0.5});
    rl_view *o = &p.x[O], *q = &p.x[Q], *k = &p.x[K], *v = &p.x[V];
    for (int i = 0; i < 3; i++) {
        FAILS(RL_VALUE_ERROR, rl_attention(ctx, o, &p.lse, q, k, v, NULL, NULL, 1, 0, &p.state, &p.drawn, outside[i]));
        FAILS(RL_VALUE_ERROR, rl_attention_backward(ctx, &p.x[GQ], &p.x[GK], &p.x[GV], &p.x[G], q, k, v, o, &p.lse, NULL, NULL, 1, 0,
                                                    &p.drawn, outside[i]));
    }
    FAILS(RL_SHAPE_ERROR, rl_attention(ctx, o, &p.lse, q, k, v, NULL, NULL, 1, 0, NULL, &p.drawn, 0.5));
    FAILS(RL_SHAPE_ERROR, rl_attention(ctx, o, &p.lse, q, k, v, NULL, NULL, 1, 0, &p.state, NULL, 0.5));
    FAILS(RL_SHAPE_ERROR,
          rl_attention_backward(ctx, &p.x[GQ], &p.x[GK], &p.x[GV], &p.x[G], q, k, v, o, &p.lse, NULL, NULL, 1, 0, NULL, 0.5));
    p.drawn.shape[0] = p.state.shape[0] = 1;
    CHECK(forward(ctx, &p) == RL_SHAPE_ERROR && backward(ctx, &p) == RL_SHAPE_ERROR, "a state of one word passes");
    CHECK(!memcmp(p.state.data, start, sizeof start), "a call that fails moves the generator");
    RUN(rl_attention(ctx, o, &p.lse, q, k, v, NULL, NULL, 1, 0, &p.state, &p.drawn, 0));
    CHECK(!memcmp(p.state.data, start, sizeof start), "nothing is drawn without dropout");
}

static void test_sizes_of_zero(rl_ctx *ctx, rl_dtype dtype) {
    check_case(ctx, dtype, (setup){0, 2, 1, 3, 4, 5, 0, NO_MASK, 0});
    check_case(ctx, dtype, (setup){2, 2, 1, 0, 4, 5, 1, KEEP_ALL, 0});
    check_case(ctx, dtype, (setup){2, 2, 1, 3, 0, 5, 1, BIAS_ALL, 0});
    check_case(ctx, dtype, (setup){2, 2, 1, 3, 4, 0, 0, NO_MASK, 0});
    check_case(ctx, dtype, (setup){2, 0, 1, 3, 4, 5, 0, NO_MASK, 0});
    check_case(ctx, dtype, (setup){1, 0, 0, 3, 4, 5, 0, NO_MASK, 0});
}

/* scores far beyond the range of exp; NaN stays in its row */
static void test_extremes(rl_ctx *ctx, rl_dtype dtype) {
    problem p = make_problem(dtype, (setup){1, 1, 1, 5, 600, 4, 0, NO_MASK, 0});
    p.scale = 1e4;
    CHECK(forward(ctx, &p) == RL_OK && backward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    for (int i = 0; i < 4; i++)
        for (int64_t j = 0; j < size_of(&p.x[results[i]]); j++)
            CHECK(isfinite(get(&p.x[results[i]], j)), "%s is not finite for large scores", names[results[i]]);
    put(&p.x[Q], 0, NAN);
    CHECK(forward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    CHECK(isnan(get(&p.x[O], 0)) && isnan(get(&p.lse, 0)) && isfinite(get(&p.x[O], 4)), "NaN of query 0 belongs to row 0");
}

static void test_bad_shapes(rl_ctx *ctx, rl_dtype dtype) {
    problem p = make_problem(dtype, (setup){2, 4, 2, 6, 7, 8, 0, BOTH, 0});
    CHECK(forward(ctx, &p) == RL_OK && backward(ctx, &p) == RL_OK, "%s", rl_error(ctx));
    rl_view *views[] = {&p.x[O], &p.x[Q], &p.x[K], &p.x[V], &p.lse, &p.keep, &p.bias, &p.x[G], &p.x[GQ], &p.x[GK], &p.x[GV]};
    for (int i = 0; i < 11; i++) {
        rl_view good = *views[i];
        for (int d = 0; d < good.ndim; d++) {
            views[i]->shape[d]--;
            CHECK(backward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with axis %d too short passes backward", i, d);
            CHECK(i >= 7 || forward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with axis %d too short passes forward", i, d);
            *views[i] = good;
        }
        views[i]->ndim--;
        CHECK(backward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with an axis missing passes", i);
        *views[i] = good;
        views[i]->stride[good.ndim - 1] = 2;
        bool mask = views[i] == &p.keep || views[i] == &p.bias;
        CHECK(mask || backward(ctx, &p) == RL_SHAPE_ERROR, "argument %d with last stride 2 passes", i);
        *views[i] = good;
    }
    p.x[GQ].ndim = 3;
    CHECK(backward(ctx, &p) == RL_SHAPE_ERROR && strstr(rl_error(ctx), "attention_backward: "), "error text is %s", rl_error(ctx));
}

static void test_attention(rl_ctx *ctx, rl_dtype dtype) {
    test_values(ctx, dtype);
    test_widths(ctx, dtype);
    test_many_keys(ctx, dtype);
    test_dropout(ctx, dtype);
    test_bad_dropout(ctx, dtype);
    test_sizes_of_zero(ctx, dtype);
    test_extremes(ctx, dtype);
    test_bad_shapes(ctx, dtype);
}

int main(void) {
    at_every_level(test_attention);
    return finish();
}
