/* ordered.c - stream-ordered memory (cuMemAllocAsync) of a tenant that may be parked, from memory that can leave.
 *
 * The driver's own pools cannot move. So here an allocation is memory of movable.c, there when the call returns. A free
 * records an event on its stream, and the memory is kept: it is handed out again, also for a little less than it has,
 * once the event is done, or at once on the same stream, which is made to wait for the event. What is kept counts as the
 * pool's, and is given back as the driver does it: by a trim, at a wait beyond the pool's release threshold, when the quota
 * or the card is full; and before the memory leaves, because nobody needs it.
 *
 * Only in the device's own context, which the events belong to, and for pools that no other process can know. All else
 * goes to the driver's pool, which the daemon names as the reason why it stays on the card.
 */
#include "ordered.h"

#define SMALL   (1ull << 20)

struct alq_ordered_pool alq_ordered_pools[ALQ_ORDERED_POOLS];
int alq_ending[ALQ_CARDS];
pthread_mutex_t alq_ordered_lock = PTHREAD_MUTEX_INITIALIZER;

/* Few sizes, so that what was freed fits: of small ones four for each power of two, then whole units. */
static uint64_t size_of(uint64_t n)
{
    if (n > SMALL)
        return (n + ALQ_UNIT - 1) / ALQ_UNIT * ALQ_UNIT;
    uint64_t step = 512;
    while (step * 8 < n)
        step *= 2;
    return (n + step - 1) / step * step;
}

/* ---- with the lock held ---- */

/* 0: none is left. */
static uint64_t pool_of(CUmemoryPool handle, int card)
{
    uint64_t none = 0;
    for (unsigned i = 0; i < ALQ_ORDERED_POOLS; i++) {
        if (alq_ordered_pools[i].handle == handle && alq_ordered_pools[i].card == card)
            return i + 1;
        if (!none && !alq_ordered_pools[i].handle && !alq_ordered_pools[i].used && !alq_ordered_pools[i].kept)
            none = i + 1;
    }
    if (none)
        alq_ordered_pools[none - 1] = (struct alq_ordered_pool){ .handle = handle, .card = card };
    return none;
}

void alq_ordered_count(uint64_t from, int64_t used, int64_t kept)
{
    struct alq_ordered_pool *pool = &alq_ordered_pools[from - 1];
    pool->used += (uint64_t)used;
    pool->kept += (uint64_t)kept;
    if (pool->used + pool->kept > pool->reserved_high)
        pool->reserved_high = pool->used + pool->kept;
}

/* A block is handed out (1), or freed (-1). */
static void hand(const struct alq_entry *entry, int by)
{
    struct alq_ordered_pool *pool = &alq_ordered_pools[entry->from - 1];
    alq_ordered_count(entry->from, by * (int64_t)entry->size, 0);
    pool->asked += (uint64_t)(by * (int64_t)entry->file);
    if (pool->asked > pool->asked_high)
        pool->asked_high = pool->asked;
}

/* What the driver counts as used. */
static uint64_t asked_for(uint64_t n) { return (n + 511) / 512 * 512; }

/* ---- streams ---- */

static int record(CUevent event, CUstream stream, int ptsz)
{
    return ptsz ? ALQ_REAL(cuEventRecord_ptsz)(event, stream) : ALQ_REAL(cuEventRecord)(event, stream);
}

static int wait_for(CUstream stream, CUevent event, int ptsz)
{
    return ptsz ? ALQ_REAL(cuStreamWaitEvent_ptsz)(stream, event, 0) : ALQ_REAL(cuStreamWaitEvent)(stream, event, 0);
}

static int finish(CUstream stream, int ptsz)
{
    return ptsz ? ALQ_REAL_AS(cuStreamSynchronize, cuStreamSynchronize_ptsz)(stream) : ALQ_REAL(cuStreamSynchronize)(stream);
}

/* ---- allocating ---- */

static bool reuse(const struct alq_ordered *r, uint64_t size)
{
    struct alq_block block;
    CUstream key = alq_stream_key(r->stream, r->ptsz);
    pthread_mutex_lock(&alq_ordered_lock);
    bool found = alq_find_block(r, size, key, &block);
    pthread_mutex_unlock(&alq_ordered_lock);
    if (!found)
        return false;
    block.entry.file = asked_for(r->n);
    /* The number of a stream may be that of one that was destroyed: the new one has to wait for what the old one did. */
    bool ordered = !wait_for(r->stream, block.event, r->ptsz);
    pthread_mutex_lock(&alq_ordered_lock);
    if (ordered) {
        alq_give_event(r->card, block.event);
        hand(&block.entry, 1);
    } else {
        alq_add_block(&block);      /* its place in the list is still there */
    }
    pthread_mutex_unlock(&alq_ordered_lock);
    if (!ordered)
        return false;
    alq_book(block.entry);
    *r->p = block.entry.key;
    return true;
}

static void mark(struct alq_entry *entry, void *with)
{
    const struct alq_entry *made = with;
    entry->from = made->from;
    entry->file = made->file;
    entry->owner = 0;           /* memory of pools is the device's, not a context's */
}

/* What the driver answers when its pool has to grow, by the thread's mode of captures, which is not to be relaxed here. It grows by
 * 32 MiB, and splits what it keeps: where it might not have to, nothing is asked. */
static int may_grow(uint64_t size, uint64_t from)
{
    pthread_mutex_lock(&alq_ordered_lock);
    uint64_t kept = alq_ordered_pools[from - 1].kept, has = alq_ordered_pools[from - 1].used + kept;
    pthread_mutex_unlock(&alq_ordered_lock);
    if (size <= kept + (ALQ_LITTLE - has % ALQ_LITTLE) % ALQ_LITTLE)
        return CUDA_SUCCESS;
    int entered = alq_enter(), result = entered == ALQ_GONE ? CUDA_SUCCESS : alq_may_allocate();
    alq_leave(entered);
    return result;
}

static int make(const struct alq_ordered *r, uint64_t size, uint64_t from)
{
    uint64_t bytes = alq_rounded(size), began = 0;
    int result;
    if (!alq_make_room(r->card, bytes, r->n, r->stream, r->ptsz, true))
        return alq_refuse(r->card);
    do {
        int entered = alq_enter();
        result = entered == ALQ_GONE ? CUDA_ERROR_UNKNOWN : alq_movable_alloc(r->p, size, r->card, r->device);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && entered >= 0) {      /* what we keep for nothing goes before others do */
            if (!alq_give_back(r->card, 0, 0)) {
                finish(r->stream, r->ptsz);
                alq_give_back(r->card, 0, 0);
            }
            result = alq_movable_alloc(r->p, size, r->card, r->device);
        }
        if (!result) {
            struct alq_entry made = { .size = size, .from = from, .file = asked_for(r->n) };
            alq_change(ALQ_MOVABLE, *r->p, mark, &made);
            pthread_mutex_lock(&alq_ordered_lock);
            hand(&made, 1);
            pthread_mutex_unlock(&alq_ordered_lock);
        }
        alq_leave(entered);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && alq_wait_for_room(r->card, bytes, &began));
    alq_room_done(r->card, began);
    if (result)
        alq_charge(r->card, -(int64_t)bytes);
    return result;
}

int alq_ordered_alloc(const struct alq_ordered *r)
{
    uint64_t size = size_of(r->n);
    int mode, result = CUDA_SUCCESS;
    if (!r->p || !r->n || size < r->n || !alq_is_primary(alq_context(), r->device))
        return ALQ_NOT_HERE;
    bool relaxed = alq_relax(&mode);
    pthread_mutex_lock(&alq_ordered_lock);
    uint64_t from = alq_ending[r->card] ? 0 : pool_of(r->pool, r->card);
    CUevent event = from ? alq_take_event(r->card) : NULL;      /* without events nothing could be freed in order */
    if (event)
        alq_give_event(r->card, event);
    pthread_mutex_unlock(&alq_ordered_lock);
    if (!event) {
        result = ALQ_NOT_HERE;
    } else {
        __atomic_store_n(&alq_pools_live, 1, __ATOMIC_RELAXED);
        int entered = alq_enter();
        bool found = entered != ALQ_GONE && reuse(r, size);
        alq_leave(entered);
        if (!found && __atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST)) {
            alq_unrelax(relaxed, &mode);
            result = may_grow(size, from);
            relaxed = alq_relax(&mode);
        }
        result = found ? CUDA_SUCCESS : result ? result : make(r, size, from);
        if (result && result != CUDA_ERROR_OUT_OF_MEMORY && entered != ALQ_GONE)
            result = ALQ_NOT_HERE;
    }
    alq_unrelax(relaxed, &mode);
    return result;
}

/* ---- freeing ---- */

static bool keep_block(const struct alq_entry *entry, CUstream stream, int ptsz)
{
    int card = entry->card;
    pthread_mutex_lock(&alq_ordered_lock);
    struct alq_block block = { .entry = *entry, .event = alq_ending[card] ? NULL : alq_take_event(card),
                               .stream = alq_stream_key(stream, ptsz) };
    pthread_mutex_unlock(&alq_ordered_lock);
    bool recorded = block.event && !record(block.event, stream, ptsz);      /* it may wait for a full queue: without the lock */
    pthread_mutex_lock(&alq_ordered_lock);
    hand(entry, -1);
    bool kept = recorded && !alq_ending[card] && alq_add_block(&block);
    if (!kept)
        hand(entry, 1);
    if (!kept && block.event && !alq_ending[card])
        alq_give_event(card, block.event);
    pthread_mutex_unlock(&alq_ordered_lock);
    return kept;
}

/* It is out of the book. */
int alq_ordered_free(const struct alq_entry *entry, CUstream stream, int ptsz)
{
    int mode, entered = alq_enter();
    bool relaxed = alq_relax(&mode);
    bool kept = entered != ALQ_GONE && alq_is_primary(alq_context(), (CUdevice)entry->refs) && keep_block(entry, stream, ptsz);
    bool done = kept || !finish(stream, ptsz);      /* that is all that a free on a stream has to wait for */
    alq_unrelax(relaxed, &mode);
    alq_leave(entered);
    if (!done)
        return alq_free_movable(entry);
    if (!kept)
        alq_end_movable(entry);
    return CUDA_SUCCESS;
}

void alq_ordered_ended(const struct alq_entry *entry)
{
    pthread_mutex_lock(&alq_ordered_lock);
    hand(entry, -1);
    pthread_mutex_unlock(&alq_ordered_lock);
}

/* ---- pools and contexts ---- */

CUmemoryPool alq_ordered_pool(uint64_t from)
{
    return from ? __atomic_load_n(&alq_ordered_pools[from - 1].handle, __ATOMIC_RELAXED) : NULL;
}

static struct alq_ordered_pool *known(CUmemoryPool handle)
{
    for (unsigned i = 0; handle && i < ALQ_ORDERED_POOLS; i++)
        if (alq_ordered_pools[i].handle == handle)
            return &alq_ordered_pools[i];
    return NULL;
}

/* What was allocated from it lives on until it is freed. Returns its place, or 0. */
uint64_t alq_ordered_pool_ends(CUmemoryPool handle)
{
    alq_ordered_trim(0, handle, 0);
    pthread_mutex_lock(&alq_ordered_lock);
    struct alq_ordered_pool *pool = known(handle);
    if (pool)
        __atomic_store_n(&pool->handle, NULL, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&alq_ordered_lock);
    return pool ? (uint64_t)(pool - alq_ordered_pools) + 1 : 0;
}

/* It did not: it was a device's own, which the driver does not end. */
void alq_ordered_pool_stays(uint64_t from, CUmemoryPool handle)
{
    pthread_mutex_lock(&alq_ordered_lock);
    /* another thread may have used it, or the place, meanwhile */
    if (from && !alq_ordered_pools[from - 1].handle && !known(handle))
        __atomic_store_n(&alq_ordered_pools[from - 1].handle, handle, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&alq_ordered_lock);
}

/* What the pool holds of the card is what the driver's has, and ours. Of other attributes the value may be as short as an int. */
int alq_cuMemPoolGetAttribute(fn_cuMemPoolGetAttribute *real, int ptsz, CUmemoryPool handle, int attribute, void *value)
{
    (void)ptsz;
    int result = real(handle, attribute, value);
    if (result || !value || attribute < POOL_RESERVED_NOW || attribute > USED_HIGH)
        return result;
    pthread_mutex_lock(&alq_ordered_lock);
    const struct alq_ordered_pool *pool = known(handle);
    if (pool)
        *(uint64_t *)value += attribute == POOL_RESERVED_NOW ? pool->used + pool->kept
                            : attribute == RESERVED_HIGH     ? pool->reserved_high
                            : attribute == POOL_USED_NOW     ? pool->asked
                                                             : pool->asked_high;
    pthread_mutex_unlock(&alq_ordered_lock);
    return result;
}

/* Those of the most so far begin anew. */
int alq_cuMemPoolSetAttribute(fn_cuMemPoolSetAttribute *real, int ptsz, CUmemoryPool handle, int attribute, void *value)
{
    (void)ptsz;
    int result = real(handle, attribute, value);
    pthread_mutex_lock(&alq_ordered_lock);
    struct alq_ordered_pool *pool = result ? NULL : known(handle);
    if (pool && attribute == RESERVED_HIGH)
        pool->reserved_high = pool->used + pool->kept;
    else if (pool && attribute == USED_HIGH)
        pool->asked_high = pool->asked;
    pthread_mutex_unlock(&alq_ordered_lock);
    return result;
}

void alq_ordered_leave(int card, bool begin)
{
    pthread_mutex_lock(&alq_ordered_lock);
    alq_ending[card] += begin ? 1 : -1;
    pthread_mutex_unlock(&alq_ordered_lock);
}

static bool ordered_on(const struct alq_entry *e, const void *card)
{
    return e->kind == ALQ_MOVABLE && e->from && e->card == *(const int *)card;
}

/* The device's own context has ended, and with it the events and all work. */
void alq_ordered_drop(int card)
{
    struct alq_entry entry;
    size_t at = 0;
    while (alq_take_where(ordered_on, &card, &at, &entry))
        alq_end_movable(&entry);
    int entered = alq_enter();
    pthread_mutex_lock(&alq_ordered_lock);
    alq_kept_drop(card);
    for (unsigned i = 0; i < ALQ_ORDERED_POOLS; i++)
        if (alq_ordered_pools[i].card == card)
            alq_ordered_pools[i].handle = NULL;
    pthread_mutex_unlock(&alq_ordered_lock);
    alq_leave(entered);
}

void alq_ordered_forget(void)
{
    alq_ordered_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    alq_kept_forget();
    for (unsigned i = 0; i < ALQ_ORDERED_POOLS; i++)
        alq_ordered_pools[i] = (struct alq_ordered_pool){ .handle = NULL };
    for (unsigned i = 0; i < ALQ_CARDS; i++)
        alq_ending[i] = 0;
}
