/* Random numbers: distribution, range, offsets, and a call of n numbers that begins as a call of more does. */
#include "check.h"

#define MANY 200000

typedef struct {
    double mean, variance, correlation, fourth; /* correlation: of neighbours; fourth: mean((x - mean)^4) / variance^2 */
} moments;

static moments moments_of(const rl_view *x) {
    int64_t n = size_of(x);
    moments m = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; i++) m.mean += get(x, i) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        double d = get(x, i) - m.mean;
        m.variance += d * d / (double)n;
        m.fourth += d * d * d * d / (double)n;
        if (i > 0) m.correlation += d * (get(x, i - 1) - m.mean) / (double)n;
    }
    m.correlation /= m.variance;
    m.fourth /= m.variance * m.variance;
    return m;
}

static rl_view state_of(uint64_t seed, uint64_t offset) {
    rl_view state = ARRAY(RL_UINT64, 2);
    ((uint64_t *)state.data)[0] = seed;
    ((uint64_t *)state.data)[1] = offset;
    return state;
}

static uint64_t offset_of(const rl_view *state) { return ((uint64_t *)state->data)[1]; }

static void test_uniform(rl_ctx *ctx, rl_dtype dtype) {
    rl_view y = ARRAY(dtype, MANY), state = state_of(7, 0);
    RUN(rl_random_uniform(ctx, &y, &state, -3, 5));
    moments m = moments_of(&y);
    CHECK(fabs(m.mean - 1) < 0.03, "mean %g", m.mean);
    CHECK(fabs(m.variance - 64.0 / 12) < 0.05, "variance %g", m.variance);
    CHECK(fabs(m.correlation) < 0.01 && fabs(m.fourth - 1.8) < 0.02, "correlation %g, fourth moment %g", m.correlation, m.fourth);
    /* where the dtype has few numbers, rounding must not reach the end that is left out */
    double low = dtype == RL_FLOAT32 ? 1e6 : 1e15;
    RUN(rl_random_uniform(ctx, &y, &state, low, low + 1));
    int64_t outside = 0;
    for (int64_t i = 0; i < MANY; i++) outside += !(get(&y, i) >= low && get(&y, i) < low + 1);
    CHECK(outside == 0, "%lld numbers outside [low, high)", (long long)outside);
}

static void test_normal(rl_ctx *ctx, rl_dtype dtype) {
    rl_view y = ARRAY(dtype, MANY), state = state_of(8, 0);
    RUN(rl_random_normal(ctx, &y, &state, 2, 3));
    moments m = moments_of(&y);
    CHECK(fabs(m.mean - 2) < 0.04, "mean %g", m.mean);
    CHECK(fabs(m.variance - 9) < 0.15, "variance %g", m.variance);
    CHECK(fabs(m.correlation) < 0.01 && fabs(m.fourth - 3) < 0.08, "correlation %g, fourth moment %g", m.correlation, m.fourth);
    for (int64_t i = 0; i < MANY; i++)
        if (!isfinite(get(&y, i))) CHECK(0, "y[%lld] is %g", (long long)i, get(&y, i));
}

static void test_integers(rl_ctx *ctx, rl_dtype dtype) {
    (void)dtype;
    rl_view y = ARRAY(RL_INT64, MANY), state = state_of(9, 0);
    int64_t counts[10] = {0}, *values = y.data, negative = 0;
    RUN(rl_random_integers(ctx, &y, &state, -4, 6));
    for (int64_t i = 0; i < MANY; i++) {
        CHECK(values[i] >= -4 && values[i] < 6, "%lld is outside [-4, 6)", (long long)values[i]);
        if (values[i] >= -4 && values[i] < 6) counts[values[i] + 4]++;
    }
    for (int k = 0; k < 10; k++) CHECK(llabs(counts[k] - MANY / 10) < 800, "%lld of %d", (long long)counts[k], k - 4);
    RUN(rl_random_integers(ctx, &y, &state, INT64_MIN, INT64_MAX));
    for (int64_t i = 0; i < MANY; i++) negative += values[i] < 0;
    CHECK(llabs(negative - MANY / 2) < 2000, "%lld of %d are negative", (long long)negative, MANY);
    RUN(rl_random_integers(ctx, &y, &state, 3, 4));
    CHECK(values[0] == 3 && values[MANY - 1] == 3, "%lld", (long long)values[0]);
    FAILS(RL_VALUE_ERROR, rl_random_integers(ctx, &y, &state, 4, 4));
}

static void test_dropout(rl_ctx *ctx, rl_dtype dtype) {
    static const double chances[] = {0, 0.1, 0.5, 0.9, 1};
    for (int k = 0; k < 5; k++) {
        double p = chances[k], kept = 0;
        rl_view x = ARRAY(dtype, MANY), y = ARRAY(dtype, MANY), keep = ARRAY(RL_BOOL, MANY), gx = ARRAY(dtype, MANY),
                state = state_of(10, 0);
        double *expected = values_of(&x);
        RUN(rl_dropout(ctx, &y, &keep, &x, &state, p));
        for (int64_t i = 0; i < MANY; i++) {
            kept += get(&keep, i) / MANY;
            expected[i] = get(&keep, i) != 0 ? get(&x, i) / (1 - p) : 0;
        }
        CHECK(fabs(kept - (1 - p)) < (p > 0 && p < 1 ? 0.01 : 1e-9), "%g of the numbers kept, p is %g", kept, p);
        check_values("y", &y, expected, 4 * epsilon(dtype));
        RUN(rl_dropout_backward(ctx, &gx, &x, &keep, p));
        check_same("gx", &gx, &y);
        free_arrays();
    }
    rl_view x = ARRAY(dtype, 3), keep = ARRAY(RL_BOOL, 3), state = state_of(10, 0);
    FAILS(RL_VALUE_ERROR, rl_dropout(ctx, &x, &keep, &x, &state, 1.5));
    FAILS(RL_VALUE_ERROR, rl_dropout(ctx, &x, &keep, &x, &state, -0.1));
    FAILS(RL_VALUE_ERROR, rl_dropout(ctx, &x, &keep, &x, &state, NAN));
}

/* the published answer for counter and key 0: 6627e8d5 e169c58d bc57ac4c 9b00dbd8 */
static void test_words(rl_ctx *ctx, rl_dtype dtype) {
    rl_view y = ARRAY(RL_INT64, 2), u = ARRAY(dtype, 4), state = state_of(0, 0), again = state_of(0, 0);
    RUN(rl_random_integers(ctx, &y, &state, 0, INT64_C(1) << 32));
    CHECK(get(&y, 0) == 0x6627e8d5 && get(&y, 1) == 0xbc57ac4c, "%.0f %.0f", get(&y, 0), get(&y, 1));
    RUN(rl_random_uniform(ctx, &u, &again, 0, 1));
    double second =
        dtype == RL_FLOAT32 ? (0xe169c58d >> 8) / 16777216.0 : (double)(UINT64_C(0xbc57ac4c9b00dbd8) >> 11) / 9007199254740992.0;
    CHECK(get(&u, 1) == second, "%.17g, not %.17g", get(&u, 1), second);
}

/* kind 0 uniform, 1 normal, 2 integers, 3 dropout */
static rl_view draw(rl_ctx *ctx, int kind, rl_dtype dtype, int64_t n, rl_view *state) {
    rl_view y = ARRAY(kind == 2 ? RL_INT64 : dtype, n), x = ARRAY(dtype, n), keep = ARRAY(RL_BOOL, n);
    for (int64_t i = 0; i < n; i++) put(&x, i, 1);
    if (kind == 0) RUN(rl_random_uniform(ctx, &y, state, 0, 1));
    if (kind == 1) RUN(rl_random_normal(ctx, &y, state, 0, 1));
    if (kind == 2) RUN(rl_random_integers(ctx, &y, state, 0, INT64_C(1) << 50));
    if (kind == 3) RUN(rl_dropout(ctx, &y, &keep, &x, state, 0.4));
    return y;
}

static void test_offsets(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t counts[] = {0, 1, 3, 4, 5, 31, 64, 65, 1000, 16384, 16385, 50001};
    for (int kind = 0; kind < 4; kind++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            uint64_t start = k % 2 ? 0xfffffffeu : 5; /* the counter's low word overflows */
            rl_view state = state_of(3 + k, start), again = state_of(3 + k, start);
            rl_view few = draw(ctx, kind, dtype, counts[k], &state), many = draw(ctx, kind, dtype, counts[k] + 777, &again);
            many.shape[0] = counts[k];
            check_same("a longer call", &few, &many);
            CHECK(offset_of(&state) >= start + (counts[k] > 0) && offset_of(&again) > offset_of(&state), "offset %llu",
                  (unsigned long long)offset_of(&state));
            /* the next call goes on with other numbers */
            rl_view next = draw(ctx, kind == 3 ? 0 : kind, dtype, 64, &state), first = state_of(3 + k, start);
            rl_view head = draw(ctx, kind == 3 ? 0 : kind, dtype, 64, &first);
            int64_t same = 0;
            for (int64_t i = 0; i < 64; i++) same += get(&next, i) == get(&head, i);
            CHECK(same == 64 * (counts[k] == 0), "%d of 64 numbers repeat", (int)same);
            free_arrays();
        }
}

int main(void) {
    at_every_level(test_words);
    at_every_level(test_uniform);
    at_every_level(test_normal);
    at_every_level(test_integers);
    at_every_level(test_dropout);
    at_every_level(test_offsets);
    return finish();
}
