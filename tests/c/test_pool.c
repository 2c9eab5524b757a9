/* The memory pool: random takes and gives from several threads; blocks never overlap, free neighbours join, trimmed pages come back. */
#include "check.h"
#include "pool.h"
#include <pthread.h>

#define SLOTS 300
#define ROUNDS 20000
#define THREADS 3

typedef struct {
    unsigned char *start;
    size_t bytes;
    unsigned char mark;
} block;

typedef struct {
    rl_pool *pool;
    uint64_t random;
    int errors;
} visitor;

static uint64_t next(visitor *v) {
    v->random = v->random * 6364136223846793005u + 1442695040888963407u;
    return v->random >> 33;
}

/* the ends of a block carry its mark; another block on top would change them */
static void mark(block *b) {
    size_t edge = b->bytes < 256 ? b->bytes : 256;
    memset(b->start, b->mark, edge);
    memset(b->start + b->bytes - edge, b->mark, edge);
}

static int is_marked(const block *b) {
    size_t edge = b->bytes < 256 ? b->bytes : 256;
    for (size_t i = 0; i < edge; i++)
        if (b->start[i] != b->mark || b->start[b->bytes - 1 - i] != b->mark) return 0;
    return 1;
}

static size_t random_size(visitor *v) {
    uint64_t kind = next(v) % 8;
    return (size_t)(kind < 5 ? next(v) % 3000 : kind < 7 ? next(v) % 70000 : next(v) % 3000000);
}

static void *visit(void *raw) {
    visitor *v = raw;
    block *slots = calloc(SLOTS, sizeof *slots);
    for (int round = 0; round < ROUNDS; round++) {
        block *b = &slots[next(v) % SLOTS];
        if (b->start) {
            v->errors += !is_marked(b);
            rl_pool_give(v->pool, b->start, b->bytes);
            b->start = NULL;
            continue;
        }
        size_t asked = b->bytes = random_size(v);
        b->start = rl_pool_take(v->pool, &b->bytes);
        b->mark = (unsigned char)next(v);
        v->errors += !b->start || b->bytes < asked || (uintptr_t)b->start % 64 != 0;
        v->errors += !rl_pool_owns(v->pool, b->start) || !rl_pool_owns(v->pool, b->start + b->bytes - 1);
        mark(b);
        if (round % 5000 == 0) rl_pool_trim(v->pool);
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].start) {
            v->errors += !is_marked(&slots[i]);
            rl_pool_give(v->pool, slots[i].start, slots[i].bytes);
        }
    free(slots);
    return NULL;
}

static void test_random_use(void) {
    rl_pool *pool = rl_pool_new();
    visitor visitors[THREADS];
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        visitors[t] = (visitor){pool, (uint64_t)t + 1, 0};
        pthread_create(&threads[t], NULL, visit, &visitors[t]);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        CHECK(visitors[t].errors == 0, "thread %d met %d broken blocks", t, visitors[t].errors);
    }
    rl_pool_stats stats = rl_pool_measure(pool);
    CHECK(stats.in_use == 0 && stats.peak > 0 && stats.peak <= stats.reserved, "in use %zu, peak %zu, reserved %zu", stats.in_use,
          stats.peak, stats.reserved);
    rl_pool_release(pool);
}

/* Given back in any order, blocks join to what they were cut from: one block of all their bytes needs no new region. */
static void test_coalescing(void) {
    enum { COUNT = 15, BYTES = 4 << 20 };
    rl_pool *pool = rl_pool_new();
    void *blocks_taken[COUNT];
    size_t bytes = BYTES;
    for (int order = 0; order < 4; order++) {
        for (int i = 0; i < COUNT; i++) blocks_taken[i] = rl_pool_take(pool, &bytes);
        size_t reserved = rl_pool_measure(pool).reserved;
        for (int i = 0; i < COUNT; i++) {
            static const int strides[] = {1, 14, 7, 4}; /* all prime to COUNT */
            rl_pool_give(pool, blocks_taken[i * strides[order] % COUNT], bytes);
        }
        size_t whole = (size_t)COUNT * BYTES;
        void *all = rl_pool_take(pool, &whole);
        CHECK(all && rl_pool_measure(pool).reserved == reserved, "%zu bytes reserved, were %zu", rl_pool_measure(pool).reserved, reserved);
        memset(all, 1, whole);
        rl_pool_give(pool, all, whole);
    }
    rl_pool_release(pool);
}

static void test_trim(void) {
    rl_pool *pool = rl_pool_new();
    size_t bytes = 1 << 20, kept_bytes = 1 << 20;
    unsigned char *kept = rl_pool_take(pool, &kept_bytes), *given = rl_pool_take(pool, &bytes);
    memset(kept, 3, kept_bytes);
    memset(given, 4, bytes);
    rl_pool_give(pool, given, bytes);
    rl_pool_trim(pool);
    size_t intact = 0;
    while (intact < kept_bytes && kept[intact] == 3) intact++;
    CHECK(intact == kept_bytes, "trim changed byte %zu of a block in use", intact);
    unsigned char *again = rl_pool_take(pool, &bytes);
    CHECK(again && rl_pool_owns(pool, again), "nothing to take after trim");
    memset(again, 5, bytes);
    rl_pool_give(pool, again, bytes);
    rl_pool_give(pool, kept, kept_bytes);
    rl_pool_release(pool);
}

/* sizes at the edges of the classes, impossible ones, and a pool that outlives its holder by one block */
static void test_edges(void) {
    rl_pool *pool = rl_pool_new();
    static const size_t sizes[] = {
        0, 1, 63, 64, 65, 256, 257, 320, 321, 512, 513, 32767, 32768, 32769, 65536, 65537, (64 << 20) - 1, (64 << 20) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i];
        unsigned char *start = rl_pool_take(pool, &bytes);
        CHECK(start && bytes >= sizes[i] && bytes > 0 && bytes <= sizes[i] + sizes[i] / 4 + 4096, "%zu bytes for %zu", bytes, sizes[i]);
        start[0] = start[bytes - 1] = 1;
        rl_pool_give(pool, start, bytes);
    }
    static const size_t impossible[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 4};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        size_t bytes = impossible[i];
        CHECK(!rl_pool_take(pool, &bytes), "%zu bytes were given", impossible[i]);
    }
    int outside;
    CHECK(!rl_pool_owns(pool, &outside) && !rl_pool_owns(pool, NULL), "the pool owns what is not its own");
    size_t bytes = 1000;
    unsigned char *last = rl_pool_take(pool, &bytes);
    rl_pool_release(pool);
    memset(last, 1, bytes);
    rl_pool_give(pool, last, bytes);
}

int main(void) {
    test_random_use();
    test_coalescing();
    test_trim();
    test_edges();
    return finish();
}
