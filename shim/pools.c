/* pools.c - stream-ordered memory. A pool is charged what it holds of the card, which is more than it has handed out:
 * freed memory stays in the pool until it is trimmed, or until a wait when its release threshold is low.
 *
 * So a pool's charge is its attribute "reserved", read again after everything that may change it. Before an allocation
 * the part that the pool cannot serve from its spare memory is reserved; after it the truth is charged. When that is past
 * the quota although the guess was not (the spare memory was in the wrong pieces), the pools are trimmed, and if that
 * does not help the allocation is taken back: for that moment the tenant was above its quota by one allocation.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include "pools.h"

#define FIRST 64
#define MOST  4096
static struct alq_pool *pools;                  /* [0, count) */
static int count, capacity;
static int leaving[ALQ_CARDS];              /* threads that are ending the device's own context */
pthread_mutex_t alq_pools_lock = PTHREAD_MUTEX_INITIALIZER;
int alq_pools_live;                         /* there are pools or graph memory to settle; read without the lock */

/* ---- with the lock held ---- */

struct alq_pool *alq_pool_find(CUmemoryPool handle)
{
    for (int i = 0; i < count; i++)
        if (pools[i].handle == handle)
            return &pools[i];
    return NULL;
}

static bool grow(void)
{
    int larger = capacity ? capacity * 2 : FIRST;
    struct alq_pool *fresh = larger > MOST ? MAP_FAILED : mmap(NULL, (size_t)larger * sizeof *pools, PROT_READ | PROT_WRITE,
                                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        static int said;
        if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
            alq_say("this program has %d memory pools, and no more can be counted: the next one is refused.", count);
        return false;
    }
    for (int i = 0; i < count; i++)
        fresh[i] = pools[i];
    if (pools)
        munmap(pools, (size_t)capacity * sizeof *pools);
    pools = fresh;
    capacity = larger;
    return true;
}

struct alq_pool *alq_pool_enter(CUmemoryPool handle, int card)
{
    struct alq_pool *pool = alq_pool_find(handle);
    if (!pool && (count < capacity || grow())) {
        pool = &pools[count++];
        *pool = (struct alq_pool){ .handle = handle, .card = card };
        __atomic_store_n(&alq_pools_live, 1, __ATOMIC_RELAXED);
    }
    return pool;
}

void alq_pool_remove(struct alq_pool *pool)
{
    *pool = pools[--count];
}

/* Charges what the pool really holds, and gives `reserved` back, which was a guess about it. Returns how much the pool
 * has spare. An unreadable pool (gone) holds nothing; one that may not be asked just now, what it held. */
uint64_t alq_pool_settle(struct alq_pool *pool, uint64_t reserved)
{
    uint64_t holds = 0, used = 0;
    if (pool->card >= 0 && leaving[pool->card]) {
        alq_charge(pool->card, -(int64_t)reserved);
        return 0;
    }
    int mode;
    bool relaxed = alq_relax(&mode);
    int result = ALQ_REAL(cuMemPoolGetAttribute)(pool->handle, POOL_RESERVED_NOW, &holds);
    if (result)
        holds = CAPTURE_FORBIDS(result) ? pool->charged : 0;
    if (ALQ_REAL(cuMemPoolGetAttribute)(pool->handle, POOL_USED_NOW, &used))
        used = 0;
    alq_unrelax(relaxed, &mode);
    if (pool->managed && holds < pool->handed)
        holds = pool->handed;               /* the driver takes managed memory when it is touched; it counts from the start */
    alq_charge(pool->card, (int64_t)(holds - pool->charged - reserved));
    pool->charged = holds;
    pool->spare = holds > used && !pool->managed ? holds - used : 0;   /* of the host, for all we know */
    pool->trusted = 0;
    return pool->spare;
}

/* ---- room ---- */

static void trim_all(int card)
{
    int mode;
    bool relaxed = alq_relax(&mode);
    alq_ordered_trim(card, NULL, 0);
    pthread_mutex_lock(&alq_pools_lock);
    for (int i = 0; i < count; i++)
        if (pools[i].card == card && pools[i].charged && !leaving[card]) {
            ALQ_REAL(cuMemPoolTrimTo)(pools[i].handle, 0);
            alq_pool_settle(&pools[i], 0);
        }
    pthread_mutex_unlock(&alq_pools_lock);
    alq_graph_trim(card);
    alq_unrelax(relaxed, &mode);
}

static bool trim_and_reserve(int card, uint64_t bytes, uint64_t need, CUstream stream, int ptsz, bool may_wait)
{
    trim_all(card);
    if (alq_reserve(card, bytes, need))
        return true;
    if (!may_wait || alq_capturing(stream, ptsz))
        return false;
    if (ptsz)
        ALQ_REAL_AS(cuStreamSynchronize, cuStreamSynchronize_ptsz)(stream);
    else
        ALQ_REAL(cuStreamSynchronize)(stream);
    trim_all(card);
    uint64_t until = alq_now() + ALQ_KEPT_NS;
    bool done;
    while (!(done = alq_reserve(card, bytes, need)) && alq_now() < until) {     /* what was freed on other streams, if it is enough */
        uint64_t others = alq_used(card) - alq_ordered_kept(card), limit = alq_limit(card);
        if (need > limit || others > limit - need || !alq_ordered_wait(card, until))
            break;
    }
    return done;
}

/* Reserves; when that is past the quota, first takes back what this process's pools hold for nothing. With `may_wait` it
 * waits for the work before, as the driver itself does when a card is full: frees on a stream count only then. */
bool alq_make_room(int card, uint64_t bytes, uint64_t need, CUstream stream, int ptsz, bool may_wait)
{
    if (alq_reserve(card, bytes, need))
        return true;
    if (!__atomic_load_n(&alq_pools_live, __ATOMIC_RELAXED))
        return false;
    int mode;
    bool relaxed = alq_relax(&mode);
    bool done = trim_and_reserve(card, bytes, need, stream, ptsz, may_wait);
    alq_unrelax(relaxed, &mode);
    return done;
}

void alq_settle(void)
{
    if (!__atomic_load_n(&alq_pools_live, __ATOMIC_RELAXED))
        return;
    int saved = errno;
    if (pthread_mutex_trylock(&alq_pools_lock) == 0) {    /* busy: whoever has it settles */
        for (int i = 0; i < count; i++)
            if (pools[i].charged)           /* one that holds nothing takes something only by an allocation */
                alq_pool_settle(&pools[i], 0);
        pthread_mutex_unlock(&alq_pools_lock);
        for (int card = 0; card < ALQ_CARDS; card++)
            alq_graph_settle(card);
    }
    errno = saved;
}

bool alq_pools_within(int card)
{
    for (int tries = 0; alq_limit(card) != ALQ_UNLIMITED && alq_used(card) > alq_limit(card); tries++) {
        if (tries == 1)
            return false;
        trim_all(card);
    }
    return true;
}

/* With the lock held. What it holds of the card stays as it is until somebody waits. */
void alq_pool_returned(struct alq_pool *pool, uint64_t bytes)
{
    pool->handed -= bytes < pool->handed ? bytes : pool->handed;
    pool->spare += pool->managed ? 0 : bytes;
}

/* A pointer of a pool was freed, in whichever way. */
void alq_pool_freed(const struct alq_entry *entry)
{
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *pool = alq_pool_find((CUmemoryPool)(uintptr_t)entry->owner);
    if (pool)
        alq_pool_returned(pool, entry->size);
    pthread_mutex_unlock(&alq_pools_lock);
}

static bool pooled_on(const struct alq_entry *e, const void *card)
{
    return e->kind == ALQ_POOLED && e->card == *(const int *)card;
}

/* Another thread that waits for another card would ask the driver about pools that are just being ended with a context. */
void alq_pools_leave(int card, bool begin)
{
    if (card < 0)
        return;
    pthread_mutex_lock(&alq_pools_lock);
    leaving[card] += begin ? 1 : -1;
    pthread_mutex_unlock(&alq_pools_lock);
    alq_ordered_leave(card, begin);
}

/* The device's own context has ended: handles of its pools may mean nothing any more, and are not asked again. */
void alq_pools_drop(int card)
{
    struct alq_entry entry;
    size_t at = 0;
    pthread_mutex_lock(&alq_pools_lock);
    for (int i = 0; i < count;) {
        if (pools[i].card == card) {
            alq_charge(card, -(int64_t)pools[i].charged);
            pools[i] = pools[--count];
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&alq_pools_lock);
    while (alq_take_where(pooled_on, &card, &at, &entry))
        ;
    if (card >= 0)
        alq_ordered_drop(card);
}

void alq_pools_forget(void)
{
    alq_pools_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL;       /* not unmapped: another thread of the parent may have been growing it */
    count = capacity = 0;
    for (int i = 0; i < ALQ_CARDS; i++)
        leaving[i] = 0;
    alq_pools_live = 0;
}
