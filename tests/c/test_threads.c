#define _POSIX_C_SOURCE 200809L
/* The thread pool: every piece runs once, callers share it, and no kernel's bits depend on the number of threads. */
#include "check.h"
#include "internal.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- pieces ---- */

enum { MOST_PIECES = 257, CALLERS = 4 };

typedef struct {
    int runs[MOST_PIECES];
    _Atomic int inside[RL_MAX_THREADS]; /* a worker number is one thread at a time */
    _Atomic int clashes;
} counted_job;

static void count_piece(void *raw, int64_t piece, int worker) {
    counted_job *job = raw;
    if (atomic_fetch_add(&job->inside[worker], 1) != 0) atomic_fetch_add(&job->clashes, 1);
    job->runs[piece]++;
    atomic_fetch_sub(&job->inside[worker], 1);
}

static int run_pieces(int64_t count) {
    static _Thread_local counted_job job;
    memset(&job, 0, sizeof job);
    rl_ctx ctx = {.threads = rl_get_num_threads()};
    rl_parallel(&ctx, count_piece, &job, count);
    int wrong = atomic_load(&job.clashes);
    for (int64_t i = 0; i < MOST_PIECES; i++) wrong += job.runs[i] != (i < count);
    return wrong;
}

static void test_pieces(void) {
    for (int threads = 1; threads <= 8; threads++) {
        rl_set_num_threads(threads);
        for (int64_t count = 0; count <= MOST_PIECES; count++) {
            int wrong = run_pieces(count);
            CHECK(wrong == 0, "%d of %d pieces wrong with %d threads", wrong, (int)count, threads);
        }
    }
    static const int asked[] = {-5, 0, 1, 3, RL_MAX_THREADS, 100000};
    for (int i = 0; i < 6; i++) {
        rl_set_num_threads(asked[i]);
        CHECK(rl_get_num_threads() >= 1 && rl_get_num_threads() <= RL_MAX_THREADS, "%d threads", rl_get_num_threads());
    }
    rl_set_num_threads(3);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* the workers fall asleep, and a job must wake them */
    CHECK(run_pieces(MOST_PIECES) == 0, "pieces wrong after a pause");
}

/* ---- several callers at once ---- */

typedef struct {
    int seed, wrong;
} caller;

static rl_status call_kernels(rl_ctx *ctx, float *x, float *y, float *product, int64_t n) {
    rl_view a = VIEW(x, RL_FLOAT32, n), b = VIEW(y, RL_FLOAT32, n), total = VIEW(product, RL_FLOAT32, 1);
    rl_view row = VIEW(x, RL_FLOAT32, 1, n), column = VIEW(y, RL_FLOAT32, n, 1), dot = VIEW(product + 1, RL_FLOAT32, 1, 1);
    rl_status status = rl_add(ctx, &b, &a, &a);
    if (status == RL_OK) status = rl_sum(ctx, &total, &b, 1);
    return status == RL_OK ? rl_gemm(ctx, &dot, &row, &column, NULL, NULL, NULL, NULL, 1, 0, 0) : status;
}

static void *call_often(void *raw) {
    caller *self = raw;
    rl_ctx *ctx = rl_ctx_new();
    int64_t n = 40000 + self->seed;
    float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y), result[2];
    for (int round = 0; round < 60; round++) {
        float value = (float)(1 + (self->seed + round) % 3);
        for (int64_t i = 0; i < n; i++) x[i] = value;
        self->wrong += call_kernels(ctx, x, y, result, n) != RL_OK;
        self->wrong += result[0] != 2 * value * (float)n || y[0] != 2 * value || y[n - 1] != 2 * value;
        self->wrong += fabs(result[1] / (2.0 * value * value * (double)n) - 1) > 1e-4;
        for (int k = 0; k < 20; k++) self->wrong += run_pieces(1 + (round * 20 + k) % MOST_PIECES);
    }
    free(x);
    free(y);
    rl_ctx_free(ctx);
    return NULL;
}

static void test_callers(void) {
    for (int threads = 1; threads <= 4; threads++) {
        rl_set_num_threads(threads);
        pthread_t ids[CALLERS];
        caller callers[CALLERS];
        for (int t = 0; t < CALLERS; t++) {
            callers[t] = (caller){t, 0};
            pthread_create(&ids[t], NULL, call_often, &callers[t]);
        }
        for (int t = 0; t < CALLERS; t++) {
            pthread_join(ids[t], NULL);
            CHECK(callers[t].wrong == 0, "caller %d saw %d wrong results with %d threads", t, callers[t].wrong, threads);
        }
    }
}

/* ---- offers ---- */

/* Pieces of one after another run while jobs do, and a second offer beside the first is refused or done. */
static int run_offers(int64_t count, int jobs) {
    static _Thread_local counted_job first, second;
    memset(&first, 0, sizeof first);
    memset(&second, 0, sizeof second);
    uint64_t a = rl_offer(count_piece, &first, count);
    int wrong = 0;
    for (int k = 0; k < jobs; k++) wrong += run_pieces(MOST_PIECES);
    uint64_t b = rl_offer(count_piece, &second, count);
    if (b) rl_finish_offer(b);
    if (a) rl_finish_offer(a);
    for (int64_t i = 0; i < MOST_PIECES; i++) wrong += first.runs[i] != (a && i < count) || second.runs[i] != (b && i < count);
    return wrong;
}

static void *offer_often(void *raw) {
    caller *self = raw;
    for (int round = 0; round < 400; round++) self->wrong += run_offers(1 + (round * 20 + self->seed) % MOST_PIECES, round % 3);
    return NULL;
}

static void test_offers(void) {
    static counted_job job;
    rl_set_num_threads(1);
    CHECK(rl_offer(count_piece, &job, 10) == 0, "one thread offers");
    rl_set_num_threads(3);
    run_pieces(MOST_PIECES);
    CHECK(rl_offer(count_piece, &job, 1) == 0, "a single piece is offered");
    uint64_t offer = rl_offer(count_piece, &job, MOST_PIECES);
    CHECK(offer != 0, "nobody takes an offer");
    rl_finish_offer(offer);
    pthread_t ids[CALLERS];
    caller callers[CALLERS];
    for (int t = 0; t < CALLERS; t++) {
        callers[t] = (caller){t, 0};
        pthread_create(&ids[t], NULL, offer_often, &callers[t]);
    }
    for (int t = 0; t < CALLERS; t++) {
        pthread_join(ids[t], NULL);
        CHECK(callers[t].wrong == 0, "caller %d saw %d wrong pieces of offers", t, callers[t].wrong);
    }
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* an offer wakes sleeping workers, who finish it alone */
    memset(&job, 0, sizeof job);
    offer = rl_offer(count_piece, &job, MOST_PIECES);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    uint64_t next = rl_offer(count_piece, &job, MOST_PIECES);
    CHECK(offer && next > offer, "an offer is not done after 0.2 s");
    rl_finish_offer(next);
}

#if !defined(__SANITIZE_THREAD__) /* which does not follow a fork of many threads */
static void write_piece(void *raw, int64_t piece, int worker) {
    (void)worker;
    for (int i = 0; i < 1000; i++) ((int *)raw)[piece] = (int)piece + 1;
}

/* a child finishes what was offered before the fork, whatever the parent's workers had begun */
static void test_fork_beside_offer(void) {
    static int written[1000];
    memset(written, 0, sizeof written);
    uint64_t offer = rl_offer(write_piece, written, 1000);
    pid_t child = fork();
    if (offer) rl_finish_offer(offer);
    int wrong = offer == 0;
    for (int i = 0; i < 1000; i++) wrong += written[i] != i + 1;
    if (child == 0) _exit(wrong != 0);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(wrong == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d wrong beside a fork, the child ended with %d", wrong, status);
}

/* a child process starts workers of its own */
static void test_fork(void) {
    rl_set_num_threads(3);
    run_pieces(MOST_PIECES);
    pid_t child = fork();
    if (child == 0) _exit(run_pieces(MOST_PIECES) != 0 || run_offers(MOST_PIECES, 1) != 0);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %d", status);
    CHECK(run_pieces(MOST_PIECES) == 0, "pieces wrong in the parent after a fork");
    for (int round = 0; round < 20; round++) test_fork_beside_offer();
}
#endif

/* ---- the same bits for any number of threads ---- */

enum { RESULTS = 16 };

static void run_linear(rl_ctx *ctx, rl_dtype dtype, rl_view *results) {
    rl_view a = ARRAY(dtype, 130, 300), b = ARRAY(dtype, 300, 170), bias = ARRAY(dtype, 170), at = VIEW(a.data, dtype, 300, 130);
    results[0] = ARRAY(dtype, 130, 170), results[1] = ARRAY(dtype, 130, 170), results[2] = ARRAY(dtype, 130);
    at.shape[0] = 130, at.shape[1] = 300, at.stride[0] = 1, at.stride[1] = 130;
    RUN(rl_gemm(ctx, &results[0], &a, &b, &bias, NULL, NULL, NULL, 1, 2, 0));
    RUN(rl_gemm(ctx, &results[1], &at, &b, NULL, NULL, NULL, &results[2], 1, 0, 0));
    rl_view x = ARRAY(dtype, 300, 400), whole = VIEW(x.data, dtype, 120000);
    results[3] = ARRAY(dtype, 1), results[4] = ARRAY(dtype, 1, 400), results[5] = ARRAY(dtype, 300, 1);
    RUN(rl_sum(ctx, &results[3], &whole, 1));
    RUN(rl_sum(ctx, &results[4], &x, 1));
    RUN(rl_sum(ctx, &results[5], &x, 1));
}

static void run_layers(rl_ctx *ctx, rl_dtype dtype, rl_view *results) {
    rl_view x = ARRAY(dtype, 300, 70), y = ARRAY(dtype, 300, 70), g = ARRAY(dtype, 300, 70), stats = ARRAY(dtype, 300, 2);
    rl_view weight = ARRAY(dtype, 70), bias = ARRAY(dtype, 70), norm = ARRAY(dtype, 1);
    results[6] = ARRAY(dtype, 300, 70), results[7] = ARRAY(dtype, 70), results[8] = ARRAY(dtype, 70);
    RUN(rl_layer_norm(ctx, &y, &stats, &x, &weight, &bias, 1e-5));
    RUN(rl_layer_norm_backward(ctx, &results[6], &results[7], &results[8], &g, &x, &stats, &weight, NULL));
    rl_view lists[2] = {x, g};
    rl_list gradients = {2, lists};
    RUN(rl_clip_grad_norm(ctx, &norm, &gradients, 1));
    results[9] = norm;
    rl_view q = ARRAY(dtype, 2, 4, 70, 24), k = ARRAY(dtype, 2, 2, 70, 24), v = ARRAY(dtype, 2, 2, 70, 24), lse = ARRAY(dtype, 2, 4, 70);
    rl_view go = ARRAY(dtype, 2, 4, 70, 24), gq = ARRAY(dtype, 2, 4, 70, 24), gk = ARRAY(dtype, 2, 2, 70, 24);
    results[10] = ARRAY(dtype, 2, 4, 70, 24), results[11] = ARRAY(dtype, 2, 2, 70, 24), results[12] = gk;
    rl_view state = ARRAY(RL_UINT64, 2), drawn = ARRAY(RL_UINT64, 2);
    RUN(rl_attention(ctx, &results[10], &lse, &q, &k, &v, NULL, NULL, 0.2, 1, &state, &drawn, 0.3));
    RUN(rl_attention_backward(ctx, &gq, &gk, &results[11], &go, &q, &k, &v, &results[10], &lse, NULL, NULL, 0.2, 1, &drawn, 0.3));
}

static void run_random(rl_ctx *ctx, rl_dtype dtype, rl_view *results) {
    rl_view state = ARRAY(RL_UINT64, 2), keep = ARRAY(RL_BOOL, 60001);
    results[13] = ARRAY(dtype, 60001), results[14] = ARRAY(RL_INT64, 60001), results[15] = ARRAY(dtype, 60001);
    RUN(rl_random_normal(ctx, &results[13], &state, 0, 1));
    RUN(rl_random_integers(ctx, &results[14], &state, 0, 1 << 20));
    RUN(rl_dropout(ctx, &results[15], &keep, &results[13], &state, 0.3));
    RUN(rl_random_uniform(ctx, &results[13], &state, 0, 1));
}

static void test_same_bits(rl_ctx *ctx, rl_dtype dtype) {
    rl_view first[RESULTS], results[RESULTS];
    for (int threads = 1; threads <= 4; threads++) {
        rl_set_num_threads(threads);
        check_state = 99;
        run_linear(ctx, dtype, results);
        run_layers(ctx, dtype, results);
        run_random(ctx, dtype, results);
        if (threads == 1) memcpy(first, results, sizeof first);
        for (int i = 0; i < RESULTS; i++) check_same("with more threads, a result", &results[i], &first[i]);
    }
}

int main(void) {
    test_pieces();
    test_callers();
    test_offers();
#if !defined(__SANITIZE_THREAD__)
    test_fork();
#endif
    at_every_level(test_same_bits);
    return finish();
}
