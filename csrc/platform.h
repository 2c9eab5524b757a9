/* Everything that differs between operating systems; platform.c is the only file that calls them. */
#ifndef RUSHLIGHT_PLATFORM_H
#define RUSHLIGHT_PLATFORM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fresh zeroed pages, huge where the system can; *bytes is rounded up to what was mapped.  They end at `end` where that is free and not
 * NULL.  NULL when memory is short. */
void *rl_os_reserve(void *end, size_t *bytes);
void rl_os_release(void *start, size_t bytes);
/* Give the pages of a range back but keep its addresses; they read as zero afterwards. */
void rl_os_discard(void *start, size_t bytes);

/* Start a detached thread with all signals blocked.  False when the system refuses. */
bool rl_os_thread(void (*body)(intptr_t argument), intptr_t argument);
int rl_os_thread_id(void);
/* Processors this process may use. */
int rl_os_processors(void);

/* Sleep while *word == value; wake all sleepers. */
void rl_os_wait(_Atomic uint32_t *word, uint32_t value);
void rl_os_wake(_Atomic uint32_t *word);
void rl_os_yield(void);
/* Keep thread `id` off the processor the caller runs on: a woken thread lands there by default and would wait behind the caller's spinning.
 */
void rl_os_move_away(int id);
/* Have `reset` run in the child after every fork. */
void rl_os_after_fork(void (*reset)(void));

static inline void rl_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
