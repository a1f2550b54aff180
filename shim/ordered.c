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
#include "movable.h"

#define BUCKETS 256             /* four for each power of two */
#define LOOKS   16              /* kept blocks that are asked whether they are done, at most */
#define POOLS   32
#define EVENTS  256             /* that are kept for later, of a card */
#define LITTLE  (32ull << 20)   /* bytes that a pool may keep over a wait, whatever its threshold: making them again takes long */
#define SMALL   (1ull << 20)
enum { DISABLE_TIMING = 2, THRESHOLD = 4, RESERVED_HIGH = 6, USED_HIGH = 8 };

/* A pool, as far as it is ours. `.from` of an entry is its place here, from 1 on. `asked` of what is `used` the program knows of:
 * blocks have a little more. */
struct pool { CUmemoryPool handle; int card; uint64_t used, kept, asked, asked_high, reserved_high; };

/* Memory that is free, and where. */
struct block { struct alq_entry entry; CUevent event; CUstream stream; uint32_t next, before; };

static struct pool pools[POOLS];                /* .card is valid while .handle is set, or something is left of it */
static struct alq_list blocks = { .size = sizeof(struct block) };
static struct { uint32_t first, last; } bucket[BUCKETS] = { [0 ... BUCKETS - 1] = { ALQ_NONE, ALQ_NONE } };   /* the oldest is first */
static uint32_t spare_block = ALQ_NONE;
static CUevent spare_event[ALQ_CARDS][EVENTS];
static unsigned spare_events[ALQ_CARDS];
static int ending[ALQ_CARDS];                   /* threads that are ending the device's own context, and its events with it */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* taken before that of movable.c, never after it */

static struct block *block_at(uint32_t i) { return alq_list_at(&blocks, i); }

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

/* Sizes of a bucket differ by less than a quarter, and those of the next are larger. None is below 512. */
static unsigned bucket_of(uint64_t size)
{
    unsigned power = 63 - (unsigned)__builtin_clzll(size);
    return power * 4 + (unsigned)(size >> (power - 2) & 3);
}

/* What a block may have at most that serves so many bytes. The driver splits its blocks; ours are pieces of their own, so a
 * program whose sizes vary would find none of its own and make a new one each time. A quarter is what may be lost. */
static uint64_t fits_within(uint64_t size) { return size > UINT64_MAX - size / 4 ? UINT64_MAX : size + size / 4; }

/* ---- with `lock` held ---- */

/* 0: none is left. */
static uint64_t pool_of(CUmemoryPool handle, int card)
{
    uint64_t none = 0;
    for (unsigned i = 0; i < POOLS; i++) {
        if (pools[i].handle == handle && pools[i].card == card)
            return i + 1;
        if (!none && !pools[i].handle && !pools[i].used && !pools[i].kept)
            none = i + 1;
    }
    if (none)
        pools[none - 1] = (struct pool){ .handle = handle, .card = card };
    return none;
}

static void count(uint64_t from, int64_t used, int64_t kept)
{
    struct pool *pool = &pools[from - 1];
    pool->used += (uint64_t)used;
    pool->kept += (uint64_t)kept;
    if (pool->used + pool->kept > pool->reserved_high)
        pool->reserved_high = pool->used + pool->kept;
}

/* A block is handed out (1), or freed (-1). */
static void hand(const struct alq_entry *entry, int by)
{
    struct pool *pool = &pools[entry->from - 1];
    count(entry->from, by * (int64_t)entry->size, 0);
    pool->asked += (uint64_t)(by * (int64_t)entry->file);
    if (pool->asked > pool->asked_high)
        pool->asked_high = pool->asked;
}

/* What the driver counts as used. */
static uint64_t asked_for(uint64_t n) { return (n + 511) / 512 * 512; }

static CUevent take_event(int card)
{
    CUevent event = NULL;
    if (spare_events[card])
        return spare_event[card][--spare_events[card]];
    return ALQ_REAL(cuEventCreate)(&event, DISABLE_TIMING) ? NULL : event;
}

static void give_event(int card, CUevent event)
{
    if (spare_events[card] < EVENTS)
        spare_event[card][spare_events[card]++] = event;
    else
        ALQ_REAL(cuEventDestroy_v2)(event);
}

static bool add_block(const struct block *made)
{
    uint32_t i = spare_block != ALQ_NONE ? spare_block : alq_list_add(&blocks);
    unsigned b = bucket_of(made->entry.size);
    if (i == ALQ_NONE)
        return false;
    if (i == spare_block)
        spare_block = block_at(i)->next;
    *block_at(i) = *made;
    block_at(i)->next = ALQ_NONE;
    block_at(i)->before = bucket[b].last;
    *(bucket[b].last != ALQ_NONE ? &block_at(bucket[b].last)->next : &bucket[b].first) = i;
    bucket[b].last = i;
    count(made->entry.from, 0, (int64_t)made->entry.size);
    alq_movable_keep(&made->entry, true);
    return true;
}

static void remove_block(uint32_t i)
{
    struct block *block = block_at(i);
    unsigned b = bucket_of(block->entry.size);
    *(block->before != ALQ_NONE ? &block_at(block->before)->next : &bucket[b].first) = block->next;
    *(block->next != ALQ_NONE ? &block_at(block->next)->before : &bucket[b].last) = block->before;
    count(block->entry.from, 0, -(int64_t)block->entry.size);
    block->next = spare_block;
    spare_block = i;
}

static bool is_done(const struct block *block) { return ALQ_REAL(cuEventQuery)(block->event) == CUDA_SUCCESS; }

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

/* ---- giving back ---- */

/* Of what is done, until the pool (0: each pool of the card) keeps no more than that. The memory must be there. Bytes. */
static uint64_t give_back(int card, uint64_t from, uint64_t keep)
{
    uint64_t bytes = 0;
    int mode;
    bool relaxed = alq_relax(&mode);
    pthread_mutex_lock(&lock);
    for (unsigned b = 0; b < BUCKETS && !ending[card]; b++)
        for (uint32_t i = bucket[b].first, next; i != ALQ_NONE; i = next) {
            const struct block *block = block_at(i);
            const struct alq_entry *entry = &block->entry;
            next = block->next;
            if (entry->card != card || (from && entry->from != from) || pools[entry->from - 1].kept <= keep || !is_done(block))
                continue;
            alq_movable_release(entry);
            alq_charge(card, -(int64_t)alq_rounded(entry->size));
            bytes += entry->size;
            give_event(card, block->event);
            remove_block(i);
        }
    pthread_mutex_unlock(&lock);
    alq_unrelax(relaxed, &mode);
    return bytes;
}

/* Everything that is kept, or what a pool keeps beyond `keep`; not while the memory is away. */
void alq_ordered_trim(int card, CUmemoryPool handle, uint64_t keep)
{
    uint64_t from = 0;
    bool any = false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POOLS; i++)
        if (pools[i].kept && (handle ? pools[i].handle == handle : pools[i].card == card)) {
            card = pools[i].card;
            from = handle ? i + 1 : 0;
            keep = handle && keep > pools[i].used ? keep - pools[i].used : 0;
            any = true;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!any || !alq_enter_resident(card))
        return;
    give_back(card, from, keep);
    alq_exit(card);
}

uint64_t alq_ordered_kept(int card)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POOLS; i++)
        bytes += pools[i].card == card ? pools[i].kept : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* Gives back what is kept as soon as some of it is done; until then at most, and at once where that is over. True: there is more
 * room than before. While the memory is away or on its way nothing is given back. */
bool alq_ordered_wait(int card, uint64_t until)
{
    while (alq_ordered_kept(card)) {
        uint64_t bytes = 0;
        if (alq_enter_resident(card)) {
            bytes = give_back(card, 0, 0);
            alq_exit(card);
        }
        if (bytes || alq_now() >= until)
            return bytes;
        uint32_t call = alq_pause_call();
        alq_sleep_ms(1);
        alq_resume_call(call);
    }
    return false;
}

/* After a wait. The lock is held over the question, so that the pool does not end meanwhile. */
void alq_ordered_settle(void)
{
    for (unsigned i = 0; i < POOLS; i++) {
        uint64_t little = __atomic_load_n(&pools[i].handle, __ATOMIC_RELAXED) ? LITTLE : 0;     /* of one that ended nothing is used again */
        if (__atomic_load_n(&pools[i].kept, __ATOMIC_RELAXED) <= little || pthread_mutex_trylock(&lock))
            continue;
        struct pool pool = pools[i];
        uint64_t threshold = 0;
        int mode;
        bool relaxed = alq_relax(&mode);
        bool asked = !ending[pool.card] &&
                     (!pool.handle || !ALQ_REAL(cuMemPoolGetAttribute)(pool.handle, THRESHOLD, &threshold));
        alq_unrelax(relaxed, &mode);
        pthread_mutex_unlock(&lock);
        if (!asked || pool.used + pool.kept <= threshold || !alq_enter_resident(pool.card))
            continue;
        uint64_t keep = threshold > pool.used ? threshold - pool.used : 0;
        give_back(pool.card, i + 1, keep > little ? keep : little);
        alq_exit(pool.card);
    }
}

/* The memory is about to leave; its work is done, and no call is under way. */
void alq_ordered_park(int card)
{
    give_back(card, 0, 0);
}

/* ---- allocating ---- */

/* The smallest that fits, and of these the oldest: of those that were freed on this stream (`same`), or that are done. */
static uint32_t best(const struct alq_ordered *r, uint64_t size, CUstream key, bool same)
{
    uint64_t most = fits_within(size), smallest = UINT64_MAX;
    uint32_t found = ALQ_NONE;
    unsigned looks = 0;
    for (unsigned b = bucket_of(size); b <= bucket_of(most) && b < BUCKETS && found == ALQ_NONE; b++)
        for (uint32_t i = bucket[b].first; i != ALQ_NONE && looks < LOOKS && smallest != size; i = block_at(i)->next) {
            const struct block *block = block_at(i);
            uint64_t has = block->entry.size;
            if (has < size || has > most || has >= smallest || block->entry.card != r->card ||
                pools[block->entry.from - 1].handle != r->pool || (same && block->stream != key))
                continue;
            looks += !same;
            if (!same && !is_done(block))
                continue;
            smallest = has;
            found = i;
        }
    return found;
}

/* What was freed on this stream first: that asks the driver nothing. */
static bool find(const struct alq_ordered *r, uint64_t size, CUstream key, struct block *found)
{
    uint32_t i = ending[r->card] ? ALQ_NONE : best(r, size, key, true);
    if (i == ALQ_NONE && !ending[r->card])
        i = best(r, size, key, false);
    if (i == ALQ_NONE)
        return false;
    *found = *block_at(i);
    found->entry.file = asked_for(r->n);
    remove_block(i);
    alq_movable_keep(&found->entry, false);
    return true;
}

static bool reuse(const struct alq_ordered *r, uint64_t size)
{
    struct block block;
    CUstream key = alq_stream_key(r->stream, r->ptsz);
    pthread_mutex_lock(&lock);
    bool found = find(r, size, key, &block);
    pthread_mutex_unlock(&lock);
    if (!found)
        return false;
    /* The number of a stream may be that of one that was destroyed: the new one has to wait for what the old one did. */
    bool ordered = !wait_for(r->stream, block.event, r->ptsz);
    pthread_mutex_lock(&lock);
    if (ordered) {
        give_event(r->card, block.event);
        hand(&block.entry, 1);
    } else {
        add_block(&block);      /* its place in the list is still there */
    }
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    uint64_t kept = pools[from - 1].kept, has = pools[from - 1].used + kept;
    pthread_mutex_unlock(&lock);
    if (size <= kept + (LITTLE - has % LITTLE) % LITTLE)
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
            if (!give_back(r->card, 0, 0)) {
                finish(r->stream, r->ptsz);
                give_back(r->card, 0, 0);
            }
            result = alq_movable_alloc(r->p, size, r->card, r->device);
        }
        if (!result) {
            struct alq_entry made = { .size = size, .from = from, .file = asked_for(r->n) };
            alq_change(ALQ_MOVABLE, *r->p, mark, &made);
            pthread_mutex_lock(&lock);
            hand(&made, 1);
            pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    uint64_t from = ending[r->card] ? 0 : pool_of(r->pool, r->card);
    CUevent event = from ? take_event(r->card) : NULL;      /* without events nothing could be freed in order */
    if (event)
        give_event(r->card, event);
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    struct block block = { .entry = *entry, .event = ending[card] ? NULL : take_event(card), .stream = alq_stream_key(stream, ptsz) };
    pthread_mutex_unlock(&lock);
    bool recorded = block.event && !record(block.event, stream, ptsz);      /* it may wait for a full queue: without the lock */
    pthread_mutex_lock(&lock);
    hand(entry, -1);
    bool kept = recorded && !ending[card] && add_block(&block);
    if (!kept)
        hand(entry, 1);
    if (!kept && block.event && !ending[card])
        give_event(card, block.event);
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    hand(entry, -1);
    pthread_mutex_unlock(&lock);
}

/* ---- pools and contexts ---- */

CUmemoryPool alq_ordered_pool(uint64_t from)
{
    return from ? __atomic_load_n(&pools[from - 1].handle, __ATOMIC_RELAXED) : NULL;
}

static struct pool *known(CUmemoryPool handle)
{
    for (unsigned i = 0; handle && i < POOLS; i++)
        if (pools[i].handle == handle)
            return &pools[i];
    return NULL;
}

/* What was allocated from it lives on until it is freed. Returns its place, or 0. */
uint64_t alq_ordered_pool_ends(CUmemoryPool handle)
{
    alq_ordered_trim(0, handle, 0);
    pthread_mutex_lock(&lock);
    struct pool *pool = known(handle);
    if (pool)
        __atomic_store_n(&pool->handle, NULL, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return pool ? (uint64_t)(pool - pools) + 1 : 0;
}

/* It did not: it was a device's own, which the driver does not end. */
void alq_ordered_pool_stays(uint64_t from, CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    if (from && !pools[from - 1].handle && !known(handle))      /* another thread may have used it, or the place, meanwhile */
        __atomic_store_n(&pools[from - 1].handle, handle, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

/* What the pool holds of the card is what the driver's has, and ours. Of other attributes the value may be as short as an int. */
int alq_cuMemPoolGetAttribute(fn_cuMemPoolGetAttribute *real, int ptsz, CUmemoryPool handle, int attribute, void *value)
{
    (void)ptsz;
    int result = real(handle, attribute, value);
    if (result || !value || attribute < POOL_RESERVED_NOW || attribute > USED_HIGH)
        return result;
    pthread_mutex_lock(&lock);
    const struct pool *pool = known(handle);
    if (pool)
        *(uint64_t *)value += attribute == POOL_RESERVED_NOW ? pool->used + pool->kept : attribute == RESERVED_HIGH ? pool->reserved_high :
                              attribute == POOL_USED_NOW ? pool->asked : pool->asked_high;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Those of the most so far begin anew. */
int alq_cuMemPoolSetAttribute(fn_cuMemPoolSetAttribute *real, int ptsz, CUmemoryPool handle, int attribute, void *value)
{
    (void)ptsz;
    int result = real(handle, attribute, value);
    pthread_mutex_lock(&lock);
    struct pool *pool = result ? NULL : known(handle);
    if (pool && attribute == RESERVED_HIGH)
        pool->reserved_high = pool->used + pool->kept;
    else if (pool && attribute == USED_HIGH)
        pool->asked_high = pool->asked;
    pthread_mutex_unlock(&lock);
    return result;
}

void alq_ordered_leave(int card, bool begin)
{
    pthread_mutex_lock(&lock);
    ending[card] += begin ? 1 : -1;
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    spare_events[card] = 0;
    for (unsigned b = 0; b < BUCKETS; b++)
        for (uint32_t i = bucket[b].first, next; i != ALQ_NONE; i = next) {
            next = block_at(i)->next;
            if (block_at(i)->entry.card != card)
                continue;
            alq_movable_release(&block_at(i)->entry);
            alq_charge(card, -(int64_t)alq_rounded(block_at(i)->entry.size));
            remove_block(i);
        }
    for (unsigned i = 0; i < POOLS; i++)
        if (pools[i].card == card)
            pools[i].handle = NULL;
    pthread_mutex_unlock(&lock);
    alq_leave(entered);
}

void alq_ordered_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    blocks.base = NULL;
    blocks.count = 0;
    spare_block = ALQ_NONE;
    for (unsigned i = 0; i < BUCKETS; i++)
        bucket[i].first = bucket[i].last = ALQ_NONE;
    for (unsigned i = 0; i < POOLS; i++)
        pools[i] = (struct pool){ .handle = NULL };
    for (unsigned i = 0; i < ALQ_CARDS; i++)
        spare_events[i] = 0, ending[i] = 0;
}
