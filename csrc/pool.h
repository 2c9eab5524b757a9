/* The memory pool behind every array the framework makes. */
#ifndef RUSHLIGHT_POOL_H
#define RUSHLIGHT_POOL_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rl_pool rl_pool;

typedef struct {
    size_t in_use;   /* bytes handed out now */
    size_t peak;     /* the most that ever was */
    size_t reserved; /* bytes mapped from the system (touched or not) */
} rl_pool_stats;

/* A pool is counted: it goes when its last holder and its last block have gone. */
rl_pool *rl_pool_new(void);
void rl_pool_retain(rl_pool *pool);
void rl_pool_release(rl_pool *pool);

/* A block of at least *bytes, 64-byte aligned, contents arbitrary; *bytes becomes its true size.  NULL when memory is short. */
void *rl_pool_take(rl_pool *pool, size_t *bytes);
/* Give a block back, with the size that rl_pool_take reported. */
void rl_pool_give(rl_pool *pool, void *block, size_t bytes);

bool rl_pool_owns(rl_pool *pool, const void *address);
/* Hand the pages of free blocks back to the system. */
void rl_pool_trim(rl_pool *pool);
rl_pool_stats rl_pool_measure(rl_pool *pool);

#endif
