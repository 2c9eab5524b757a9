#define _GNU_SOURCE
#include "platform.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)

/* ---- memory ---- */

static char *map(char *at, size_t bytes) {
    char *start = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static char *map_aligned(size_t size) {
    char *raw = map(NULL, size + HUGE_PAGE);
    if (!raw) return NULL;
    char *start = (char *)(((uintptr_t)raw + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (start > raw) munmap(raw, (size_t)(start - raw));
    munmap(start + size, (size_t)(raw + HUGE_PAGE - start));
    return start;
}

void *rl_os_reserve(void *end, size_t *bytes) {
    size_t size = (*bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    if (size < *bytes) return NULL;
    char *start = NULL, *wanted = (uintptr_t)end > size ? (char *)end - size : NULL;
    if (wanted && (start = map(wanted, size)) && start != wanted) {
        munmap(start, size);
        start = NULL;
    }
    if (!start) start = map_aligned(size);
    if (!start) return NULL;
#if defined(MADV_HUGEPAGE)
    madvise(start, size, MADV_HUGEPAGE);
#endif
    *bytes = size;
    return start;
}

void rl_os_release(void *start, size_t bytes) {
    if (start) munmap(start, bytes);
}

void rl_os_discard(void *start, size_t bytes) { madvise(start, bytes, MADV_DONTNEED); }

/* ---- threads ---- */

typedef struct {
    void (*body)(intptr_t);
    intptr_t argument;
} start_info;

static void *run(void *raw) {
    start_info info = *(start_info *)raw;
    free(raw);
    info.body(info.argument);
    return NULL;
}

bool rl_os_thread(void (*body)(intptr_t), intptr_t argument) {
    start_info *info = malloc(sizeof *info);
    if (!info) return false;
    *info = (start_info){body, argument};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    bool started = pthread_create(&thread, NULL, run, info) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    else free(info);
    return started;
}

void rl_os_yield(void) { sched_yield(); }

void rl_os_after_fork(void (*reset)(void)) { pthread_atfork(NULL, NULL, reset); }

#if defined(__linux__)

int rl_os_thread_id(void) { return (int)syscall(SYS_gettid); }

int rl_os_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void rl_os_wait(_Atomic uint32_t *word, uint32_t value) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); }

void rl_os_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

void rl_os_move_away(int id) {
    cpu_set_t set;
    int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof set, &set) != 0) return;
    CPU_CLR(here, &set);
    if (CPU_COUNT(&set) > 0) sched_setaffinity(id, sizeof set, &set);
}

#else

static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_wake = PTHREAD_COND_INITIALIZER;

int rl_os_thread_id(void) { return 0; }

int rl_os_processors(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

void rl_os_wait(_Atomic uint32_t *word, uint32_t value) {
    pthread_mutex_lock(&sleep_lock);
    while (atomic_load(word) == value) pthread_cond_wait(&sleep_wake, &sleep_lock);
    pthread_mutex_unlock(&sleep_lock);
}

void rl_os_wake(_Atomic uint32_t *word) {
    (void)word;
    pthread_mutex_lock(&sleep_lock);
    pthread_cond_broadcast(&sleep_wake);
    pthread_mutex_unlock(&sleep_lock);
}

void rl_os_move_away(int id) { (void)id; }

#endif
