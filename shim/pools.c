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
#include "shim.h"

#define FIRST 64
#define MOST  4096
struct pool { CUmemoryPool handle; int card; uint8_t tag; bool managed, simple; uint64_t charged, handed; };
static struct pool *pools;                  /* [0, count) */
static int count, capacity;
static int leaving[ALQ_CARDS];              /* threads that are ending the device's own context */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* held over reads of attributes and trims, never over waits */
int alq_pools_live;                         /* there are pools or graph memory to settle; read without the lock */

/* ---- with `lock` held ---- */

static struct pool *find(CUmemoryPool handle)
{
    for (int i = 0; i < count; i++)
        if (pools[i].handle == handle)
            return &pools[i];
    return NULL;
}

static bool grow(void)
{
    int larger = capacity ? capacity * 2 : FIRST;
    struct pool *fresh = larger > MOST ? MAP_FAILED : mmap(NULL, (size_t)larger * sizeof *pools, PROT_READ | PROT_WRITE,
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

/* NULL: there are too many. */
static struct pool *enter(CUmemoryPool handle, int card)
{
    struct pool *pool = find(handle);
    if (!pool && (count < capacity || grow())) {
        pool = &pools[count++];
        *pool = (struct pool){ .handle = handle, .card = card };
        __atomic_store_n(&alq_pools_live, 1, __ATOMIC_RELAXED);
    }
    return pool;
}

/* Charges what the pool really holds, and gives `reserved` back, which was a guess about it. Returns how much the pool
 * has spare. An unreadable pool (gone) holds nothing; one that may not be asked just now, what it held. */
static uint64_t settle(struct pool *pool, uint64_t reserved)
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
    return holds > used ? holds - used : 0;
}

/* ---- room ---- */

static void trim_all(int card)
{
    int mode;
    bool relaxed = alq_relax(&mode);
    alq_ordered_trim(card, NULL, 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if (pools[i].card == card && pools[i].charged && !leaving[card]) {
            ALQ_REAL(cuMemPoolTrimTo)(pools[i].handle, 0);
            settle(&pools[i], 0);
        }
    pthread_mutex_unlock(&lock);
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
    if (pthread_mutex_trylock(&lock) == 0) {    /* busy: whoever has it settles */
        for (int i = 0; i < count; i++)
            if (pools[i].charged)           /* one that holds nothing takes something only by an allocation */
                settle(&pools[i], 0);
        pthread_mutex_unlock(&lock);
        for (int card = 0; card < ALQ_CARDS; card++)
            alq_graph_settle(card);
    }
    errno = saved;
}

/* ---- allocation ---- */

/* Not in time for the guess: is this tenant now above its quota because of us? Then spare memory goes. */
static bool settled_within(int card)
{
    for (int tries = 0; alq_limit(card) != ALQ_UNLIMITED && alq_used(card) > alq_limit(card); tries++) {
        if (tries == 1)
            return false;
        trim_all(card);
    }
    return true;
}

/* What differs between the two entry points: which pool the driver will take. */
struct request { CUdeviceptr *p; size_t n; CUmemoryPool pool; CUstream stream; int ptsz; };
typedef int allocate_fn(const struct request *r, void *real);

static int free_real(CUdeviceptr p, CUstream stream, int ptsz)
{
    return ptsz ? ALQ_REAL_AS(cuMemFreeAsync, cuMemFreeAsync_ptsz)(p, stream) : ALQ_REAL(cuMemFreeAsync)(p, stream);
}

static int allocate(const struct request *r, int card, allocate_fn *call, void *real)
{
    uint64_t need = alq_rounded(r->n), more = need, spare = 0, before = 0;
    pthread_mutex_lock(&lock);
    struct pool *pool = enter(r->pool, card);
    if (pool) {
        spare = settle(pool, 0);
        before = pool->charged;
        if (pool->managed)                  /* what it has spare is of the host, for all we know */
            spare = 0;
        more = need > spare ? need - spare : 0;
    }
    pthread_mutex_unlock(&lock);
    if (!pool)
        return alq_refuse(card);
    if (more && !alq_make_room(card, more, more < r->n ? more : r->n, r->stream, r->ptsz, true))
        return alq_refuse(card);

    int result = call(r, real);
    bool grown = false;
    pthread_mutex_lock(&lock);
    pool = find(r->pool);
    if (pool) {
        if (result == CUDA_SUCCESS)
            pool->handed += need;
        settle(pool, more);
        grown = pool->charged > before + more;
    } else if (result != CUDA_SUCCESS) {
        alq_charge(card, -(int64_t)more);
    }
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS || !r->p)
        return result;
    if (grown && !settled_within(card)) {
        free_real(*r->p, r->stream, r->ptsz);
        alq_settle();
        return alq_refuse(card);
    }
    alq_book((struct alq_entry){ .kind = pool ? ALQ_POOLED : ALQ_MEMORY, .key = *r->p, .size = pool ? need : more,
                                 .owner = (uintptr_t)(pool ? r->pool : alq_context()), .card = (int8_t)card });
    return result;
}

/* On a capturing stream nothing is allocated now: it becomes a node of the graph. */
static int capture(const struct request *r, CUdevice device, allocate_fn *call, void *real)
{
    CUgraph graph = alq_graph_of(r->stream, r->ptsz);
    if (!graph)
        return call(r, real);
    int result = alq_graph_may_alloc(graph, alq_rounded(r->n), device);
    if (result)
        return result;
    result = call(r, real);
    if (result == CUDA_SUCCESS && r->p)
        alq_graph_allocates(graph, *r->p, alq_rounded(r->n), device);
    return result;
}

static int call_async(const struct request *r, void *real)
{
    return ((fn_cuMemAllocAsync *)real)(r->p, r->n, r->stream);
}

static int call_from_pool(const struct request *r, void *real)
{
    return ((fn_cuMemAllocFromPoolAsync *)real)(r->p, r->n, r->pool, r->stream);
}

/* Whether memory that can leave may serve it, and with what result; ALQ_NOT_HERE: the driver's pool has to. `simple`: a pool of
 * the program's own that no other process can know, and that has no limit. */
static int allocate_movable(const struct request *r, int card, CUdevice device, bool simple)
{
    CUmemoryPool usual = NULL;
    if (!alq_page()->card[card].parkable || alq_card_of_device(device) != card ||
        (!simple && (ALQ_REAL(cuDeviceGetDefaultMemPool)(&usual, device) || usual != r->pool)))
        return ALQ_NOT_HERE;
    return alq_ordered_alloc(&(struct alq_ordered){ r->p, r->n, r->pool, r->stream, r->ptsz, card, device });
}

int alq_cuMemAllocAsync(fn_cuMemAllocAsync *real, int ptsz, CUdeviceptr *p, size_t n, CUstream stream)
{
    struct request r = { .p = p, .n = n, .stream = stream, .ptsz = ptsz };
    CUdevice device = -1;
    int card = alq_card_of_context(&device);
    if (card == ALQ_NO_CONTEXT)
        return real(p, n, stream);
    if (card < 0)
        return alq_refuse(card);
    if (alq_capturing(stream, ptsz))
        return capture(&r, device, call_async, (void *)real);
    if (ALQ_REAL(cuDeviceGetMemPool)(&r.pool, device))
        return real(p, n, stream);
    pthread_mutex_lock(&lock);
    struct pool *known = find(r.pool);      /* one of the program's own, which may be on another card */
    card = known ? known->card : card;
    bool simple = known && known->simple;
    pthread_mutex_unlock(&lock);
    if (card < 0)
        return real(p, n, stream);
    int result = allocate_movable(&r, card, device, simple);
    return result == ALQ_NOT_HERE ? allocate(&r, card, call_async, (void *)real) : result;
}

int alq_cuMemAllocFromPoolAsync(fn_cuMemAllocFromPoolAsync *real, int ptsz, CUdeviceptr *p, size_t n, CUmemoryPool pool,
                                CUstream stream)
{
    struct request r = { .p = p, .n = n, .pool = pool, .stream = stream, .ptsz = ptsz };
    pthread_mutex_lock(&lock);
    struct pool *known = find(pool);
    int card = known ? known->card : ALQ_CARDS;
    bool simple = known && known->simple;
    pthread_mutex_unlock(&lock);
    CUdevice device = -1;
    int here = alq_card_of_context(&device);
    if (card == ALQ_CARDS)          /* not created under our eyes: a default pool */
        card = here;
    if (card == ALQ_NO_CONTEXT)     /* a pool on the host; or no context, and the driver will say so */
        return real(p, n, pool, stream);
    if (card < 0)
        return alq_refuse(card);
    if (alq_capturing(stream, ptsz))
        return capture(&r, device, call_from_pool, (void *)real);
    int result = allocate_movable(&r, card, device, simple);
    return result == ALQ_NOT_HERE ? allocate(&r, card, call_from_pool, (void *)real) : result;
}

int alq_cuMemFreeAsync(fn_cuMemFreeAsync *real, int ptsz, CUdeviceptr p, CUstream stream)
{
    struct alq_entry entry;
    if (alq_find(ALQ_IN_GRAPH, p, &entry)) {
        CUgraph graph = alq_capturing(stream, ptsz) ? alq_graph_of(stream, ptsz) : NULL;
        int result = real(p, stream);
        if (result == CUDA_SUCCESS && graph)
            alq_graph_frees(graph, p);
        else if (result == CUDA_SUCCESS)
            alq_graph_settle(entry.card);
        return result;
    }
    if (!alq_capturing(stream, ptsz) && alq_take(ALQ_MOVABLE, p, &entry))       /* memory of cuMemAlloc may be freed this way too */
        return entry.from ? alq_ordered_free(&entry, stream, ptsz) : alq_free_movable(&entry);
    bool plain = alq_take(ALQ_MEMORY, p, &entry) || alq_take(ALQ_OPENED, p, &entry);
    bool pooled = !plain && alq_take(ALQ_POOLED, p, &entry);
    int result = real(p, stream);
    if (result != CUDA_SUCCESS && (plain || pooled))
        alq_book(entry);
    else if (plain)
        alq_ended(&entry);
    else if (pooled)
        alq_pool_freed(&entry);
    return result;
}

/* A pointer of a pool was freed, in whichever way. */
void alq_pool_freed(const struct alq_entry *entry)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find((CUmemoryPool)(uintptr_t)entry->owner);
    if (pool)
        pool->handed -= entry->size < pool->handed ? entry->size : pool->handed;
    pthread_mutex_unlock(&lock);
    alq_settle();
}

/* ---- pools of the program's own ---- */

/* False: there are too many. */
static bool learn(CUmemoryPool handle, int type, const CUmemLocation *where, bool simple)
{
    int card = alq_card_of_location(type, where);
    pthread_mutex_lock(&lock);
    struct pool *pool = enter(handle, card);
    if (pool)
        pool->managed = type == ALLOCATION_MANAGED, pool->simple = simple;
    pthread_mutex_unlock(&lock);
    return pool;
}

int alq_cuMemPoolCreate(fn_cuMemPoolCreate *real, int ptsz, CUmemoryPool *pool, const CUmemPoolProps *props)
{
    (void)ptsz;
    int result = real(pool, props);
    if (result != CUDA_SUCCESS || !pool || !props)
        return result;
    bool simple = props->type == ALLOCATION_PINNED && props->location.type == LOCATION_DEVICE && !props->handle_types && !props->max_size;
    for (size_t i = 0; i < sizeof props->rest; i++)
        simple = simple && !props->rest[i];
    if (learn(*pool, props->type, &props->location, simple))
        return result;
    ALQ_REAL(cuMemPoolDestroy)(*pool);
    return alq_refuse(alq_card_of_location(props->type, &props->location));
}

/* The pools that a place has from the start, or was given: which card they count on cannot be asked later. */
int alq_cuMemGetDefaultMemPool(fn_cuMemGetDefaultMemPool *real, int ptsz, CUmemoryPool *pool, CUmemLocation *where, int type)
{
    (void)ptsz;
    int result = real(pool, where, type);
    if (result == CUDA_SUCCESS && pool && where)
        learn(*pool, type, where, false);
    return result;
}

int alq_cuMemGetMemPool(fn_cuMemGetMemPool *real, int ptsz, CUmemoryPool *pool, CUmemLocation *where, int type)
{
    return alq_cuMemGetDefaultMemPool(real, ptsz, pool, where, type);
}

/* Others may import it and use what it hands out, as long as it lives. */
int alq_cuMemPoolExportToShareableHandle(fn_cuMemPoolExportToShareableHandle *real, int ptsz, void *out, CUmemoryPool handle,
                                         int type, unsigned long long flags)
{
    (void)ptsz;
    int result = real(out, handle, type, flags);
    if (result != CUDA_SUCCESS || type != HANDLE_FD || !out)
        return result;
    uint8_t tag = alq_tag_file(*(int *)out, (uintptr_t)handle / 64);
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    if (pool)
        pool->tag = tag;
    pthread_mutex_unlock(&lock);
    return result;
}

static bool of_pool(const struct alq_entry *e, const void *pool)
{
    return e->kind == ALQ_POOLED && e->owner == (uintptr_t)pool;
}

/* What was allocated from it lives on until it is freed, and is charged by itself from now on. The pool goes from the list
 * before the real call: after it another thread's wait would ask the driver about a handle that is gone. */
int alq_cuMemPoolDestroy(fn_cuMemPoolDestroy *real, int ptsz, CUmemoryPool handle)
{
    (void)ptsz;
    struct pool gone = { .handle = NULL };
    uint64_t ordered = alq_ordered_pool_ends(handle);
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    if (pool) {
        gone = *pool;
        *pool = pools[--count];
    }
    pthread_mutex_unlock(&lock);
    int result = real(handle);
    struct alq_entry entry;
    size_t at = 0;
    if (result == CUDA_SUCCESS)
        alq_take(ALQ_POOL_IN, (uintptr_t)handle, &entry);
    else
        alq_ordered_pool_stays(ordered, handle);
    if (!gone.handle)
        return result;
    pthread_mutex_lock(&lock);
    if (result != CUDA_SUCCESS && (pool = enter(handle, gone.card)))
        *pool = gone;
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS && gone.tag)
        alq_tag_ended(gone.tag);
    while (result == CUDA_SUCCESS && alq_take_where(of_pool, handle, &at, &entry)) {
        alq_charge(entry.card, (int64_t)entry.size);
        entry.kind = ALQ_MEMORY;
        entry.owner = 0;
        alq_book(entry);
    }
    if (result == CUDA_SUCCESS)
        alq_charge(gone.card, -(int64_t)gone.charged);
    return result;
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
    pthread_mutex_lock(&lock);
    leaving[card] += begin ? 1 : -1;
    pthread_mutex_unlock(&lock);
    alq_ordered_leave(card, begin);
}

/* The device's own context has ended: handles of its pools may mean nothing any more, and are not asked again. */
void alq_pools_drop(int card)
{
    struct alq_entry entry;
    size_t at = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count;) {
        if (pools[i].card == card) {
            alq_charge(card, -(int64_t)pools[i].charged);
            pools[i] = pools[--count];
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&lock);
    while (alq_take_where(pooled_on, &card, &at, &entry))
        ;
    if (card >= 0)
        alq_ordered_drop(card);
}

int alq_cuMemPoolTrimTo(fn_cuMemPoolTrimTo *real, int ptsz, CUmemoryPool pool, size_t keep)
{
    (void)ptsz;
    int result = real(pool, keep);
    if (result == CUDA_SUCCESS)
        alq_ordered_trim(0, pool, keep);
    alq_settle();
    return result;
}

void alq_pools_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL;       /* not unmapped: another thread of the parent may have been growing it */
    count = capacity = 0;
    for (int i = 0; i < ALQ_CARDS; i++)
        leaving[i] = 0;
    alq_pools_live = 0;
}
