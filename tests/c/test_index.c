/* Kernels that read integers: embedding and cross-entropy, with good and bad indices. */
#include "check.h"

static rl_view indices(int layout, int ndim, const int64_t *shape, int64_t limit) {
    rl_view index = laid_out(layout, RL_INT64, ndim, shape);
    for (int64_t i = 0; i < size_of(&index); i++) put(&index, i, (double)pick(limit));
    return index;
}

/* ---- embedding ---- */

static void run_embedding(rl_ctx *ctx, rl_dtype dtype, int layout, const int64_t *shape, int64_t rows, int64_t width) {
    rl_view index = indices(layout, 2, shape, rows), table = ARRAY(dtype, rows, width), y = ARRAY(dtype, shape[0], shape[1], width);
    double *expected = values_of(&y), *gradient = values_of(&table);
    for (int64_t i = 0; i < size_of(&y); i++) expected[i] = get(&table, (int64_t)get(&index, i / width) * width + i % width);
    RUN(rl_embedding(ctx, &y, &table, &index));
    check_values("embedding", &y, expected, 0);
    for (int64_t skip = -1; skip < 2; skip++) {
        for (int64_t i = 0; i < size_of(&y); i++) {
            int64_t row = (int64_t)get(&index, i / width);
            if (row != skip) gradient[row * width + i % width] += get(&y, i);
        }
        RUN(rl_embedding_backward(ctx, &table, &y, &index, skip));
        check_values("embedding_backward", &table, gradient, epsilon(dtype) * (double)(4 + shape[0] * shape[1]));
    }
    free_arrays();
}

static void test_embedding(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {40, 70}, {0, 4}, {4, 0}}, widths[] = {0, 1, 3, 16, 63, 64, 65, 200};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
            run_embedding(ctx, dtype, (int)(i + k) % LAYOUTS, shapes[i], 1 + (int64_t)k * 4, widths[k]);
}

static void test_bad_index(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t bad[] = {-1, 7, INT64_MAX, INT64_MIN};
    for (size_t k = 0; k < 4; k++) {
        rl_view index = indices(PLAIN, 1, (const int64_t[]){100}, 7), table = ARRAY(dtype, 7, 5), y = ARRAY(dtype, 100, 5);
        rl_view y_before = copy_of(&y), table_before = copy_of(&table);
        ((int64_t *)index.data)[93] = bad[k];
        ((int64_t *)index.data)[97] = -5;
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)bad[k]);
        FAILS(RL_INDEX_ERROR, rl_embedding(ctx, &y, &table, &index));
        CHECK(strstr(rl_error(ctx), "embedding: ") && strstr(rl_error(ctx), text), "%s", rl_error(ctx));
        FAILS(RL_INDEX_ERROR, rl_embedding_backward(ctx, &table, &y, &index, -1));
        CHECK(strstr(rl_error(ctx), "embedding_backward: ") && strstr(rl_error(ctx), text), "%s", rl_error(ctx));
        check_same("y", &y, &y_before);
        check_same("table", &table, &table_before);
    }
}

/* ---- cross-entropy ---- */

typedef struct {
    rl_view logits, target, loss, log_total, reduced, valid;
} losses;

static losses make_losses(rl_dtype dtype, int layout, int64_t rows, int64_t classes, int64_t ignore) {
    losses x;
    x.logits = laid_out(layout, dtype, 2, (const int64_t[]){rows, classes});
    fill_uniform(&x.logits, -9, 9);
    for (int64_t i = 0; i < rows * classes; i += 11) put(&x.logits, i, i % 2 ? 1000 : -1000);
    x.target = indices(rows % 2 ? SPREAD : PLAIN, 1, &rows, classes);
    for (int64_t r = 0; r < rows; r += 3) put(&x.target, r, (double)ignore);
    x.loss = ARRAY(dtype, rows), x.log_total = ARRAY(dtype, rows, 2), x.reduced = ARRAY(dtype, 1), x.valid = ARRAY(dtype, 1);
    return x;
}

/* (rows, classes) probabilities; loss, log_total and the two sums beside them */
static double *loss_reference(const losses *x, int64_t ignore, double *loss, double *log_total, double *total, double *valid) {
    int64_t rows = x->logits.shape[0], classes = x->logits.shape[1];
    double *p = values_of(&x->logits);
    *total = *valid = 0;
    for (int64_t r = 0; r < rows; r++) {
        double *row = p + r * classes, top = -INFINITY, sum = 0;
        int64_t target = (int64_t)get(&x->target, r);
        for (int64_t i = 0; i < classes; i++) top = fmax(top, row[i]);
        for (int64_t i = 0; i < classes; i++) sum += exp(row[i] - top);
        log_total[2 * r] = top;
        log_total[2 * r + 1] = log(sum);
        loss[r] = target == ignore ? 0 : log(sum) + (top - row[target]);
        for (int64_t i = 0; i < classes; i++) row[i] = exp(row[i] - top) / sum;
        *total += loss[r];
        *valid += target != ignore;
    }
    return p;
}

static void check_loss_gradient(rl_ctx *ctx, losses *x, const double *p, int64_t ignore, int way) {
    rl_dtype dtype = (rl_dtype)x->logits.dtype;
    int64_t rows = x->logits.shape[0], classes = x->logits.shape[1];
    rl_view g = way == 0 ? ARRAY(dtype, rows) : ARRAY(dtype, 1), out = copy_of(&x->logits);
    double *expected = allocate(rows * classes * 8), divide = way == 2 ? fmax(get(&x->valid, 0), 1) : 1;
    for (int64_t i = 0; i < rows * classes; i++) {
        int64_t target = (int64_t)get(&x->target, i / classes);
        double weight = get(&g, way == 0 ? i / classes : 0) / divide;
        expected[i] = target == ignore ? 0 : weight * (p[i] - (i % classes == target));
    }
    RUN(rl_cross_entropy_backward(ctx, &out, &g, &x->logits, &x->target, &x->log_total, way == 2 ? &x->valid : NULL, ignore));
    check_values("glogits", &out, expected, epsilon(dtype) * 32);
    rl_view logits = copy_of(&x->logits);
    RUN(rl_cross_entropy_backward(ctx, &logits, &g, &logits, &x->target, &x->log_total, way == 2 ? &x->valid : NULL, ignore));
    check_same("glogits in place", &logits, &out);
}

static void run_loss(rl_ctx *ctx, rl_dtype dtype, int layout, int64_t rows, int64_t classes, int64_t ignore) {
    losses x = make_losses(dtype, layout, rows, classes, ignore);
    double *loss = allocate(rows * 8), *log_total = allocate(rows * 16), total, valid;
    double *p = loss_reference(&x, ignore, loss, log_total, &total, &valid);
    RUN(rl_cross_entropy(ctx, &x.loss, &x.log_total, &x.reduced, &x.valid, &x.logits, &x.target, ignore, 0));
    check_values("loss", &x.loss, loss, epsilon(dtype) * 32);
    check_values("log_total", &x.log_total, log_total, epsilon(dtype) * 32);
    check_values("total", &x.reduced, &total, epsilon(dtype) * 64);
    check_values("valid", &x.valid, &valid, 0);
    double mean = total / fmax(valid, 1);
    RUN(rl_cross_entropy(ctx, &x.loss, &x.log_total, &x.reduced, &x.valid, &x.logits, &x.target, ignore, 1));
    check_values("mean", &x.reduced, &mean, epsilon(dtype) * 64);
    for (int way = rows == 1; way < 3; way++) check_loss_gradient(ctx, &x, p, ignore, way);
    free_arrays();
}

static void test_cross_entropy(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t sizes[][2] = {{1, 1}, {2, 3}, {7, 17}, {64, 65}, {300, 10}, {3, 20000}, {0, 5}, {0, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_loss(ctx, dtype, PLAIN, sizes[i][0], sizes[i][1], -100);
        run_loss(ctx, dtype, PADDED, sizes[i][0], sizes[i][1], 0);
        run_loss(ctx, dtype, PADDED, sizes[i][0], sizes[i][1], INT64_C(1) << 40);
    }
}

static void test_bad_target(rl_ctx *ctx, rl_dtype dtype) {
    static const int64_t bad[] = {-1, 5, -101, INT64_MAX};
    for (size_t k = 0; k < 4; k++) {
        losses x = make_losses(dtype, PLAIN, 40, 5, -100);
        rl_view before = copy_of(&x.loss), gradient = ARRAY(dtype, 40, 5), gradient_before = copy_of(&gradient), g = ARRAY(dtype, 1);
        *(int64_t *)element(&x.target, 31) = bad[k];
        FAILS(RL_INDEX_ERROR, rl_cross_entropy(ctx, &x.loss, &x.log_total, &x.reduced, &x.valid, &x.logits, &x.target, -100, 0));
        CHECK(strstr(rl_error(ctx), "cross_entropy: ") && strstr(rl_error(ctx), "31"), "%s", rl_error(ctx));
        FAILS(RL_INDEX_ERROR, rl_cross_entropy_backward(ctx, &gradient, &g, &x.logits, &x.target, &x.log_total, NULL, -100));
        check_same("loss", &x.loss, &before);
        check_same("gradient", &gradient, &gradient_before);
    }
}

/* infinite and NaN logits stay in their rows */
static void test_extreme_logits(rl_ctx *ctx, rl_dtype dtype) {
    losses x = make_losses(dtype, PLAIN, 4, 3, -100);
    const double rows[4][3] = {{-INFINITY, 2, 2}, {INFINITY, 0, 0}, {NAN, 0, 0}, {1e30, -1e30, 0}};
    for (int64_t i = 0; i < 12; i++) put(&x.logits, i, rows[i / 3][i % 3]);
    for (int64_t r = 0; r < 4; r++) put(&x.target, r, 1);
    RUN(rl_cross_entropy(ctx, &x.loss, &x.log_total, &x.reduced, &x.valid, &x.logits, &x.target, -100, 0));
    const double expected[4] = {log(2), INFINITY, NAN, 2e30};
    check_values("loss", &x.loss, expected, 4 * epsilon(dtype));
}

int main(void) {
    at_every_level(test_embedding);
    at_every_level(test_bad_index);
    at_every_level(test_cross_entropy);
    at_every_level(test_bad_target);
    at_every_level(test_extreme_logits);
    return finish();
}
