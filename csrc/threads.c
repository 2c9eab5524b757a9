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

/* Pieces that can wait, for threads that have no job.  The rest is read by those who have taken a piece, and replaced when all are done. */
static struct {
    rl_task *task;
    void *argument;
    int64_t count;
    _Alignas(64) _Atomic int64_t left; /* that nobody has taken */
    _Alignas(64) _Atomic int64_t undone;
    _Atomic uint64_t offer; /* which this is */
    atomic_flag busy;       /* while one is made */
} aside = {.busy = ATOMIC_FLAG_INIT};

static _Atomic int wanted_threads;
static _Atomic int started = 1; /* threads alive, the caller included; grows while `busy` is held */
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

static bool take_aside(int self) {
    int64_t left = atomic_load_explicit(&aside.left, memory_order_relaxed);
    while (left > 0) {
        if (!atomic_compare_exchange_weak_explicit(&aside.left, &left, left - 1, memory_order_acquire, memory_order_relaxed)) continue;
        aside.task(aside.argument, aside.count - left, self);
        atomic_fetch_sub_explicit(&aside.undone, 1, memory_order_release);
        return true;
    }
    return false;
}

static void worker(intptr_t self) {
    uint32_t seen = 0, now;
    atomic_store(&thread_id[self], rl_os_thread_id());
    for (;;) {
        for (int spins = 0; (now = atomic_load_explicit(&job.generation, memory_order_acquire)) == seen;) {
            if (take_aside((int)self)) spins = 0;
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
    if (atomic_load(&aside.undone)) { /* what the workers had taken stays as it was here: all of it once more */
        atomic_store(&aside.undone, aside.count);
        atomic_store(&aside.left, aside.count);
    }
    atomic_flag_clear(&aside.busy);
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

static void wake_workers(void) {
    if (atomic_load(&job.sleeping) == 0) return;
    for (int t = 1; t < atomic_load(&started); t++) {
        int id = atomic_load(&thread_id[t]); /* 0 until it has run: that would mean the caller */
        if (id) rl_os_move_away(id);
    }
    rl_os_wake(&job.generation);
}

static void pause_or_yield(int *spins) {
    rl_pause();
    if (++*spins <= YIELD_AFTER) return;
    rl_os_yield();
    *spins = YIELD_AFTER - 50;
}

static void wait_for(uint32_t joined) {
    for (int spins = 0; atomic_load_explicit(&job.left, memory_order_acquire) != joined;) pause_or_yield(&spins);
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
    wake_workers();
    take_pieces(0);
    wait_for(atomic_fetch_or(&job.joined, CLOSED));
    atomic_flag_clear_explicit(&busy, memory_order_release);
}

uint64_t rl_offer(rl_task *task, void *argument, int64_t count) {
    bool alone = rl_get_num_threads() == 1 || atomic_load(&started) == 1;
    if (alone || count < 2 || atomic_flag_test_and_set_explicit(&aside.busy, memory_order_acquire)) return 0;
    uint64_t offer = 0;
    if (atomic_load_explicit(&aside.undone, memory_order_acquire) == 0) {
        aside.task = task;
        aside.argument = argument;
        aside.count = count;
        offer = atomic_fetch_add(&aside.offer, 1) + 1;
        atomic_store(&aside.undone, count);
        atomic_store_explicit(&aside.left, count, memory_order_release);
    }
    atomic_flag_clear_explicit(&aside.busy, memory_order_release);
    if (offer) wake_workers();
    return offer;
}

void rl_finish_offer(uint64_t offer) {
    int spins = 0;
    while (atomic_load(&aside.offer) == offer && atomic_load_explicit(&aside.undone, memory_order_acquire))
        if (!take_aside(0)) pause_or_yield(&spins);
}
