/* The memory pool.  Regions of address space come from the system, in huge pages where it has them, and stay until the pool goes: a block
 * costs page faults once in its life.  Large blocks are cut best-fit from the free extents and join their neighbours again when given back;
 * small ones are cut from spans of one size class each, four classes an octave. */
#include "pool.h"
#include "platform.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT ((size_t)64)
#define PAGE ((size_t)4096)
#define REGION ((size_t)64 << 20)
#define SMALL ((size_t)32 << 10) /* up to here blocks come from size classes */
#define SPAN ((size_t)64 << 10)  /* what a size class cuts up at a time (never less than two blocks) */
#define CLASSES 40

typedef struct {
    char *start;
    size_t bytes;
} extent;

typedef struct {
    extent *items;
    size_t count, capacity;
} extent_list;

typedef struct free_block {
    struct free_block *next;
} free_block;

struct rl_pool {
    atomic_flag lock;
    long holders;
    free_block *small[CLASSES];
    extent_list spare;   /* free extents, sorted by address, no two adjacent */
    extent_list regions; /* what was mapped */
    rl_pool_stats stats;
};

static void lock(rl_pool *pool) {
    while (atomic_flag_test_and_set_explicit(&pool->lock, memory_order_acquire)) rl_pause();
}

static void unlock(rl_pool *pool) { atomic_flag_clear_explicit(&pool->lock, memory_order_release); }

/* ---- lists of extents ---- */

static bool insert(extent_list *list, size_t at, extent item) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity * 2 + 16;
        extent *items = realloc(list->items, capacity * sizeof *items);
        if (!items) return false;
        list->items = items;
        list->capacity = capacity;
    }
    memmove(list->items + at + 1, list->items + at, (list->count - at) * sizeof *list->items);
    list->items[at] = item;
    list->count++;
    return true;
}

static void erase(extent_list *list, size_t at) {
    list->count--;
    memmove(list->items + at, list->items + at + 1, (list->count - at) * sizeof *list->items);
}

/* index of the first extent at or behind `start` */
static size_t position(const extent_list *list, const char *start) {
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (list->items[middle].start < start) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* ---- large blocks ---- */

/* When the list itself cannot grow, the range is lost to the pool until the pool goes: nothing better can be done without memory. */
static void give_extent(rl_pool *pool, char *start, size_t bytes) {
    extent_list *spare = &pool->spare;
    size_t at = position(spare, start);
    bool joins_left = at > 0 && spare->items[at - 1].start + spare->items[at - 1].bytes == start;
    bool joins_right = at < spare->count && start + bytes == spare->items[at].start;
    if (joins_left && joins_right) {
        spare->items[at - 1].bytes += bytes + spare->items[at].bytes;
        erase(spare, at);
    } else if (joins_left) {
        spare->items[at - 1].bytes += bytes;
    } else if (joins_right) {
        spare->items[at].start = start;
        spare->items[at].bytes += bytes;
    } else {
        insert(spare, at, (extent){start, bytes});
    }
}

static bool grow(rl_pool *pool, size_t bytes) {
    size_t size = bytes > REGION ? bytes : REGION;
    char *last = pool->regions.count ? pool->regions.items[pool->regions.count - 1].start : NULL;
    char *start = rl_os_reserve(last, &size); /* next to the last one, so that blocks can lie across both */
    if (!start) return false;
    if (!insert(&pool->regions, pool->regions.count, (extent){start, size})) {
        rl_os_release(start, size);
        return false;
    }
    pool->stats.reserved += size;
    give_extent(pool, start, size);
    return true;
}

static char *take_extent(rl_pool *pool, size_t bytes) {
    for (int attempt = 0; attempt < 2; attempt++) {
        extent *best = NULL;
        for (size_t i = 0; i < pool->spare.count; i++) {
            extent *item = &pool->spare.items[i];
            if (item->bytes >= bytes && (!best || item->bytes < best->bytes)) best = item;
        }
        if (best) {
            char *start = best->start;
            best->start += bytes;
            best->bytes -= bytes;
            if (best->bytes == 0) erase(&pool->spare, (size_t)(best - pool->spare.items));
            return start;
        }
        if (!grow(pool, bytes)) return NULL;
    }
    return NULL;
}

/* ---- small blocks ---- */

/* Classes 0-3 are 64, 128, 192, 256 bytes; from there each octave has four. */
static int class_of(size_t *bytes) {
    size_t units = (*bytes + ALIGNMENT - 1) / ALIGNMENT;
    if (units < 1) units = 1;
    int class = (int)units - 1;
    if (units > 4) {
        int octave = 63 - __builtin_clzll(units - 1); /* 4 < units: 2^octave < units <= 2^(octave + 1) */
        size_t step = (size_t)1 << (octave - 2);
        size_t quarter = (units - ((size_t)1 << octave) + step - 1) / step;
        units = ((size_t)1 << octave) + quarter * step;
        class = 4 * (octave - 1) + (int)quarter - 1;
    }
    *bytes = units * ALIGNMENT;
    return class;
}

static bool refill(rl_pool *pool, int class, size_t bytes) {
    char *span = take_extent(pool, SPAN);
    if (!span) return false;
    for (size_t at = 0; at + bytes <= SPAN; at += bytes) {
        free_block *block = (free_block *)(span + at);
        block->next = pool->small[class];
        pool->small[class] = block;
    }
    return true;
}

void *rl_pool_take(rl_pool *pool, size_t *bytes) {
    void *block = NULL;
    if (*bytes > SIZE_MAX / 2) return NULL;
    lock(pool);
    if (*bytes <= SMALL) {
        int class = class_of(bytes);
        if (pool->small[class] || refill(pool, class, *bytes)) {
            block = pool->small[class];
            pool->small[class] = pool->small[class]->next;
        }
    } else {
        *bytes = (*bytes + PAGE - 1) & ~(PAGE - 1);
        block = take_extent(pool, *bytes);
    }
    if (block) {
        pool->holders++;
        pool->stats.in_use += *bytes;
        if (pool->stats.in_use > pool->stats.peak) pool->stats.peak = pool->stats.in_use;
    }
    unlock(pool);
    return block;
}

void rl_pool_give(rl_pool *pool, void *block, size_t bytes) {
    lock(pool);
    if (bytes <= SMALL) {
        int class = class_of(&bytes);
        ((free_block *)block)->next = pool->small[class];
        pool->small[class] = block;
    } else {
        give_extent(pool, block, bytes);
    }
    pool->stats.in_use -= bytes;
    unlock(pool);
    rl_pool_release(pool);
}

/* ---- the pool itself ---- */

rl_pool *rl_pool_new(void) {
    rl_pool *pool = calloc(1, sizeof *pool);
    if (pool) pool->holders = 1;
    return pool;
}

void rl_pool_retain(rl_pool *pool) {
    lock(pool);
    pool->holders++;
    unlock(pool);
}

void rl_pool_release(rl_pool *pool) {
    lock(pool);
    bool last = --pool->holders == 0;
    unlock(pool);
    if (!last) return;
    for (size_t i = 0; i < pool->regions.count; i++) rl_os_release(pool->regions.items[i].start, pool->regions.items[i].bytes);
    free(pool->regions.items);
    free(pool->spare.items);
    free(pool);
}

bool rl_pool_owns(rl_pool *pool, const void *address) {
    bool owned = false;
    lock(pool);
    for (size_t i = 0; i < pool->regions.count && !owned; i++) {
        extent region = pool->regions.items[i];
        owned = (const char *)address >= region.start && (const char *)address < region.start + region.bytes;
    }
    unlock(pool);
    return owned;
}

void rl_pool_trim(rl_pool *pool) {
    lock(pool);
    for (size_t i = 0; i < pool->spare.count; i++) rl_os_discard(pool->spare.items[i].start, pool->spare.items[i].bytes);
    unlock(pool);
}

rl_pool_stats rl_pool_measure(rl_pool *pool) {
    lock(pool);
    rl_pool_stats stats = pool->stats;
    unlock(pool);
    return stats;
}
