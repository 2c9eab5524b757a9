/* The one thread pool.  A job is a count of numbered pieces.  Every thread starts on a range of its own (so that the second step of a
 * training run touches the caches the first one filled) and then helps the others.  The caller never waits for a worker that
 * has not joined: a descheduled worker costs nothing, and small jobs end before a sleeping one has woken. */
#include "internal.h"
#include "platform.h"

#define SPIN_PAUSES 50000 /* about a millisecond before an idle worker sleeps */
#define YIELD_AFTER 2000  /* pauses a caller spins for joined workers before it gives its time slice away */
#define CLOSED (1u << 20) /* in `joined`: the job takes nobody any more */

static struct {
    _Alignas(64) _Atomic uint32_t generation; /* bumped per job; what workers watch and sleep on */
    rl_task *task;
    void *argument;
    int64_t count;
    int threads;
    _Alignas(64) _Atomic uint32_t joined;
    _Alignas(64) _Atomic uint32_t left;
    _Alignas(64) _Atomic uint32_t sleeping;
} job = {.joined = CLOSED};

static struct {
    _Alignas(64) _Atomic int64_t next;
} range[RL_MAX_THREADS];

static _Atomic int wanted_threads;
static int started = 1; /* threads alive, the caller included */
static _Atomic int thread_id[RL_MAX_THREADS];
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void take_pieces(int self) {
    int threads = job.threads;
    int64_t count = job.count, share = rl_ceil_div(count, threads);
    for (int d = 0; d < threads; d++) {
        int victim = (self + d) % threads;
        int64_t end = RL_MIN(count, (victim + 1) * share), piece;
        while ((piece = atomic_fetch_add_explicit(&range[victim].next, 1, memory_order_relaxed)) < end) job.task(job.argument, piece, self);
    }
}

static void worker(intptr_t self) {
    uint32_t seen = 0, now;
    atomic_store(&thread_id[self], rl_os_thread_id());
    for (;;) {
        for (int spins = 0; (now = atomic_load_explicit(&job.generation, memory_order_acquire)) == seen;) {
            if (++spins < SPIN_PAUSES) {
                rl_pause();
                continue;
            }
            atomic_fetch_add(&job.sleeping, 1);
            rl_os_wait(&job.generation, seen);
            atomic_fetch_sub(&job.sleeping, 1);
            spins = 0;
        }
        seen = now;
        if (atomic_load_explicit(&job.joined, memory_order_relaxed) & CLOSED) continue;
        if (atomic_fetch_add(&job.joined, 1) & CLOSED) continue;
        if (self < job.threads) take_pieces((int)self);
        atomic_fetch_add_explicit(&job.left, 1, memory_order_release);
    }
}

static void forget_workers(void) {
    started = 1;
    for (int t = 0; t < RL_MAX_THREADS; t++) atomic_store(&thread_id[t], 0);
    atomic_store(&job.joined, CLOSED);
    atomic_store(&job.sleeping, 0);
    atomic_flag_clear(&busy);
}

int rl_get_num_threads(void) {
    int count = atomic_load(&wanted_threads);
    if (count) return count;
    const char *text = getenv("RUSHLIGHT_NUM_THREADS");
    int asked = text ? atoi(text) : 0;
    rl_set_num_threads(asked > 0 ? asked : rl_os_processors());
    return atomic_load(&wanted_threads);
}

void rl_set_num_threads(int count) { atomic_store(&wanted_threads, RL_MAX(1, RL_MIN(count, RL_MAX_THREADS))); }

static void start_workers(int threads) {
    static bool registered;
    if (!registered) rl_os_after_fork(forget_workers);
    registered = true;
    while (started < threads && rl_os_thread(worker, started)) started++;
}

static void wait_for(uint32_t joined) {
    for (int spins = 0; atomic_load_explicit(&job.left, memory_order_acquire) != joined;) {
        rl_pause();
        if (++spins > YIELD_AFTER) {
            rl_os_yield();
            spins = YIELD_AFTER - 50;
        }
    }
}

void rl_parallel(rl_ctx *ctx, rl_task *task, void *argument, int64_t count) {
    int threads = count > 1 ? ctx->threads : 1;
    if (threads == 1 || atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
        for (int64_t piece = 0; piece < count; piece++) task(argument, piece, 0);
        return;
    }
    if (started < threads) start_workers(threads);
    job.task = task;
    job.argument = argument;
    job.count = count;
    job.threads = threads;
    int64_t share = rl_ceil_div(count, threads);
    for (int t = 0; t < threads; t++) atomic_store_explicit(&range[t].next, RL_MIN(count, t * share), memory_order_relaxed);
    atomic_store_explicit(&job.left, 0, memory_order_relaxed);
    atomic_store(&job.joined, 0);
    atomic_fetch_add(&job.generation, 1);
    if (atomic_load(&job.sleeping)) {
        for (int t = 1; t < started; t++) {
            int id = atomic_load(&thread_id[t]); /* 0 until it has run: that would mean the caller */
            if (id) rl_os_move_away(id);
        }
        rl_os_wake(&job.generation);
    }
    take_pieces(0);
    wait_for(atomic_fetch_or(&job.joined, CLOSED));
    atomic_flag_clear_explicit(&busy, memory_order_release);
}
