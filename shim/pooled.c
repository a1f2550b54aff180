/* pooled.c - stream-ordered memory: allocations, frees, and pools of the program's own. What they hold of the card: pools.c. */
#include "pools.h"

/* Bytes that a pool hands out from what it has, until the driver is asked again what it holds: of what the tenant has left. */
#define TRUSTED(left) ((left) / 4 < 1ull << 30 ? (left) / 4 : 1ull << 30)

/* ---- allocation ---- */

/* What differs between the two entry points: which pool the driver will take. */
struct request { CUdeviceptr *p; size_t n; CUmemoryPool pool; CUstream stream; int ptsz; };
typedef int allocate_fn(const struct request *r, void *real);

static int free_real(CUdeviceptr p, CUstream stream, int ptsz)
{
    return ptsz ? ALQ_REAL_AS(cuMemFreeAsync, cuMemFreeAsync_ptsz)(p, stream) : ALQ_REAL(cuMemFreeAsync)(p, stream);
}

/* Whether the pool has it, for all we know. It may be in the wrong pieces, and the pool grows: not past the tenant's quota, and
 * the next wait sees it. With the lock held. */
static bool has_spare(struct alq_pool *pool, uint64_t need)
{
    if (need > pool->spare || need > pool->trusted)
        return false;
    pool->spare -= need;
    pool->trusted -= need;
    pool->handed += need;
    return true;
}

static void trust(struct alq_pool *pool)
{
    uint64_t used = alq_used(pool->card), limit = alq_limit(pool->card);
    pool->trusted = used < limit ? TRUSTED(limit - used) : 0;
}

static int allocate_spare(const struct request *r, int card, uint64_t need, allocate_fn *call, void *real)
{
    int result = call(r, real);
    if (result == CUDA_SUCCESS && r->p) {
        alq_book((struct alq_entry){ .kind = ALQ_POOLED, .key = *r->p, .size = need, .owner = (uintptr_t)r->pool, .card = (int8_t)card });
        return result;
    }
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *pool = alq_pool_find(r->pool);
    if (pool)
        alq_pool_returned(pool, need);
    pthread_mutex_unlock(&alq_pools_lock);
    return result;
}

static int allocate(const struct request *r, int card, allocate_fn *call, void *real)
{
    uint64_t need = alq_rounded(r->n), more = need, spare = 0, before = 0;
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *pool = alq_pool_enter(r->pool, card);
    if (pool && has_spare(pool, need)) {
        pthread_mutex_unlock(&alq_pools_lock);
        return allocate_spare(r, card, need, call, real);
    }
    if (pool) {
        spare = alq_pool_settle(pool, 0);
        before = pool->charged;
        more = need > spare ? need - spare : 0;
    }
    pthread_mutex_unlock(&alq_pools_lock);
    if (!pool)
        return alq_refuse(card);
    if (more && !alq_make_room(card, more, more < r->n ? more : r->n, r->stream, r->ptsz, true))
        return alq_refuse(card);

    int result = call(r, real);
    bool grown = false;
    pthread_mutex_lock(&alq_pools_lock);
    pool = alq_pool_find(r->pool);
    if (pool) {
        if (result == CUDA_SUCCESS)
            pool->handed += need;
        alq_pool_settle(pool, more);
        grown = pool->charged > before + more;
        if (pool->card >= 0)
            trust(pool);
    } else if (result != CUDA_SUCCESS) {
        alq_charge(card, -(int64_t)more);
    }
    pthread_mutex_unlock(&alq_pools_lock);
    if (result != CUDA_SUCCESS || !r->p)
        return result;
    if (grown && !alq_pools_within(card)) {
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
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *known = alq_pool_find(r.pool);      /* one of the program's own, which may be on another card */
    card = known ? known->card : card;
    bool simple = known && known->simple;
    pthread_mutex_unlock(&alq_pools_lock);
    if (card < 0)
        return real(p, n, stream);
    int result = allocate_movable(&r, card, device, simple);
    return result == ALQ_NOT_HERE ? allocate(&r, card, call_async, (void *)real) : result;
}

int alq_cuMemAllocFromPoolAsync(fn_cuMemAllocFromPoolAsync *real, int ptsz, CUdeviceptr *p, size_t n, CUmemoryPool pool,
                                CUstream stream)
{
    struct request r = { .p = p, .n = n, .pool = pool, .stream = stream, .ptsz = ptsz };
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *known = alq_pool_find(pool);
    int card = known ? known->card : ALQ_CARDS;
    bool simple = known && known->simple;
    pthread_mutex_unlock(&alq_pools_lock);
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
    bool pooled = alq_take(ALQ_POOLED, p, &entry);
    if (pooled) {       /* nearly always, and no more need be asked then */
        int result = real(p, stream);
        if (result == CUDA_SUCCESS)
            alq_pool_freed(&entry);
        else
            alq_book(entry);
        return result;
    }
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
    int result = real(p, stream);
    if (result != CUDA_SUCCESS && plain)
        alq_book(entry);
    else if (plain)
        alq_ended(&entry);
    return result;
}

/* ---- pools of the program's own ---- */

/* False: there are too many. */
static bool learn(CUmemoryPool handle, int type, const CUmemLocation *where, bool simple)
{
    int card = alq_card_of_location(type, where);
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *pool = alq_pool_enter(handle, card);
    if (pool)
        pool->managed = type == ALLOCATION_MANAGED, pool->simple = simple;
    pthread_mutex_unlock(&alq_pools_lock);
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
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *pool = alq_pool_find(handle);
    if (pool)
        pool->tag = tag;
    pthread_mutex_unlock(&alq_pools_lock);
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
    struct alq_pool gone = { .handle = NULL };
    uint64_t ordered = alq_ordered_pool_ends(handle);
    pthread_mutex_lock(&alq_pools_lock);
    struct alq_pool *pool = alq_pool_find(handle);
    if (pool) {
        gone = *pool;
        alq_pool_remove(pool);
    }
    pthread_mutex_unlock(&alq_pools_lock);
    int result = real(handle);
    struct alq_entry entry;
    size_t at = 0;
    if (result == CUDA_SUCCESS)
        alq_take(ALQ_POOL_IN, (uintptr_t)handle, &entry);
    else
        alq_ordered_pool_stays(ordered, handle);
    if (!gone.handle)
        return result;
    pthread_mutex_lock(&alq_pools_lock);
    if (result != CUDA_SUCCESS && (pool = alq_pool_enter(handle, gone.card)))
        *pool = gone;
    pthread_mutex_unlock(&alq_pools_lock);
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

int alq_cuMemPoolTrimTo(fn_cuMemPoolTrimTo *real, int ptsz, CUmemoryPool pool, size_t keep)
{
    (void)ptsz;
    int result = real(pool, keep);
    if (result == CUDA_SUCCESS)
        alq_ordered_trim(0, pool, keep);
    alq_settle();
    return result;
}
