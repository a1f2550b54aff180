/* kept.c - stream-ordered memory (ordered.c) that was freed and is kept: which of it serves an allocation, and when it is given
 * back. */
#include "ordered.h"

#define BUCKETS 256             /* four for each power of two */
#define LOOKS   16              /* kept blocks that are asked whether they are done, at most */
#define EVENTS  256             /* that are kept for later, of a card */
enum { DISABLE_TIMING = 2 };

static struct alq_list blocks = { .size = sizeof(struct alq_block) };
/* the oldest is first */
static struct { uint32_t first, last; } bucket[BUCKETS] = { [0 ... BUCKETS - 1] = { ALQ_NONE, ALQ_NONE } };
static uint32_t spare_block = ALQ_NONE;
static CUevent spare_event[ALQ_CARDS][EVENTS];
static unsigned spare_events[ALQ_CARDS];

static struct alq_block *block_at(uint32_t i) { return alq_list_at(&blocks, i); }

/* Sizes of a bucket differ by less than a quarter, and those of the next are larger. None is below 512. */
static unsigned bucket_of(uint64_t size)
{
    unsigned power = 63 - (unsigned)__builtin_clzll(size);
    return power * 4 + (unsigned)(size >> (power - 2) & 3);
}

/* What a block may have at most that serves so many bytes. The driver splits its blocks; ours are pieces of their own, so a
 * program whose sizes vary would find none of its own and make a new one each time. A quarter is what may be lost. */
static uint64_t fits_within(uint64_t size) { return size > UINT64_MAX - size / 4 ? UINT64_MAX : size + size / 4; }

/* ---- with the lock held ---- */

CUevent alq_take_event(int card)
{
    CUevent event = NULL;
    if (spare_events[card])
        return spare_event[card][--spare_events[card]];
    return ALQ_REAL(cuEventCreate)(&event, DISABLE_TIMING) ? NULL : event;
}

void alq_give_event(int card, CUevent event)
{
    if (spare_events[card] < EVENTS)
        spare_event[card][spare_events[card]++] = event;
    else
        ALQ_REAL(cuEventDestroy_v2)(event);
}

bool alq_add_block(const struct alq_block *made)
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
    alq_ordered_count(made->entry.from, 0, (int64_t)made->entry.size);
    alq_movable_keep(&made->entry, true);
    return true;
}

static void remove_block(uint32_t i)
{
    struct alq_block *block = block_at(i);
    unsigned b = bucket_of(block->entry.size);
    *(block->before != ALQ_NONE ? &block_at(block->before)->next : &bucket[b].first) = block->next;
    *(block->next != ALQ_NONE ? &block_at(block->next)->before : &bucket[b].last) = block->before;
    alq_ordered_count(block->entry.from, 0, -(int64_t)block->entry.size);
    block->next = spare_block;
    spare_block = i;
}

static bool is_done(const struct alq_block *block) { return ALQ_REAL(cuEventQuery)(block->event) == CUDA_SUCCESS; }

/* The smallest that fits, and of these the oldest: of those that were freed on this stream (`same`), or that are done. */
static uint32_t best(const struct alq_ordered *r, uint64_t size, CUstream key, bool same)
{
    uint64_t most = fits_within(size), smallest = UINT64_MAX;
    uint32_t found = ALQ_NONE;
    unsigned looks = 0;
    for (unsigned b = bucket_of(size); b <= bucket_of(most) && b < BUCKETS && found == ALQ_NONE; b++)
        for (uint32_t i = bucket[b].first; i != ALQ_NONE && looks < LOOKS && smallest != size; i = block_at(i)->next) {
            const struct alq_block *block = block_at(i);
            uint64_t has = block->entry.size;
            if (has < size || has > most || has >= smallest || block->entry.card != r->card ||
                alq_ordered_pools[block->entry.from - 1].handle != r->pool || (same && block->stream != key))
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
bool alq_find_block(const struct alq_ordered *r, uint64_t size, CUstream key, struct alq_block *found)
{
    uint32_t i = alq_ending[r->card] ? ALQ_NONE : best(r, size, key, true);
    if (i == ALQ_NONE && !alq_ending[r->card])
        i = best(r, size, key, false);
    if (i == ALQ_NONE)
        return false;
    *found = *block_at(i);
    remove_block(i);
    alq_movable_keep(&found->entry, false);
    return true;
}

void alq_kept_drop(int card)
{
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
}

/* ---- giving back ---- */

uint64_t alq_give_back(int card, uint64_t from, uint64_t keep)
{
    uint64_t bytes = 0;
    int mode;
    bool relaxed = alq_relax(&mode);
    pthread_mutex_lock(&alq_ordered_lock);
    for (unsigned b = 0; b < BUCKETS && !alq_ending[card]; b++)
        for (uint32_t i = bucket[b].first, next; i != ALQ_NONE; i = next) {
            const struct alq_block *block = block_at(i);
            const struct alq_entry *entry = &block->entry;
            next = block->next;
            if (entry->card != card || (from && entry->from != from) || alq_ordered_pools[entry->from - 1].kept <= keep ||
                !is_done(block))
                continue;
            alq_movable_release(entry);
            alq_charge(card, -(int64_t)alq_rounded(entry->size));
            bytes += entry->size;
            alq_give_event(card, block->event);
            remove_block(i);
        }
    pthread_mutex_unlock(&alq_ordered_lock);
    alq_unrelax(relaxed, &mode);
    return bytes;
}

/* Everything that is kept, or what a pool keeps beyond `keep`; not while the memory is away. */
void alq_ordered_trim(int card, CUmemoryPool handle, uint64_t keep)
{
    uint64_t from = 0;
    bool any = false;
    pthread_mutex_lock(&alq_ordered_lock);
    for (unsigned i = 0; i < ALQ_ORDERED_POOLS; i++)
        if (alq_ordered_pools[i].kept && (handle ? alq_ordered_pools[i].handle == handle : alq_ordered_pools[i].card == card)) {
            card = alq_ordered_pools[i].card;
            from = handle ? i + 1 : 0;
            keep = handle && keep > alq_ordered_pools[i].used ? keep - alq_ordered_pools[i].used : 0;
            any = true;
            break;
        }
    pthread_mutex_unlock(&alq_ordered_lock);
    if (!any || !alq_enter_resident(card))
        return;
    alq_give_back(card, from, keep);
    alq_exit(card);
}

uint64_t alq_ordered_kept(int card)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&alq_ordered_lock);
    for (unsigned i = 0; i < ALQ_ORDERED_POOLS; i++)
        bytes += alq_ordered_pools[i].card == card ? alq_ordered_pools[i].kept : 0;
    pthread_mutex_unlock(&alq_ordered_lock);
    return bytes;
}

/* Gives back what is kept as soon as some of it is done; until then at most, and at once where that is over. True: there is more
 * room than before. While the memory is away or on its way nothing is given back. */
bool alq_ordered_wait(int card, uint64_t until)
{
    while (alq_ordered_kept(card)) {
        uint64_t bytes = 0;
        if (alq_enter_resident(card)) {
            bytes = alq_give_back(card, 0, 0);
            alq_exit(card);
        }
        if (bytes || alq_now() >= until)
            return bytes;
        alq_sleep_ms(1);
    }
    return false;
}

/* After a wait. The lock is held over the question, so that the pool does not end meanwhile. */
void alq_ordered_settle(void)
{
    for (unsigned i = 0; i < ALQ_ORDERED_POOLS; i++) {
        /* of one that ended nothing is used again */
        uint64_t little = __atomic_load_n(&alq_ordered_pools[i].handle, __ATOMIC_RELAXED) ? ALQ_LITTLE : 0;
        if (__atomic_load_n(&alq_ordered_pools[i].kept, __ATOMIC_RELAXED) <= little || pthread_mutex_trylock(&alq_ordered_lock))
            continue;
        struct alq_ordered_pool pool = alq_ordered_pools[i];
        uint64_t threshold = 0;
        int mode;
        bool relaxed = alq_relax(&mode);
        bool asked = !alq_ending[pool.card] &&
                     (!pool.handle || !ALQ_REAL(cuMemPoolGetAttribute)(pool.handle, THRESHOLD, &threshold));
        alq_unrelax(relaxed, &mode);
        pthread_mutex_unlock(&alq_ordered_lock);
        if (!asked || pool.used + pool.kept <= threshold || !alq_enter_resident(pool.card))
            continue;
        uint64_t keep = threshold > pool.used ? threshold - pool.used : 0;
        alq_give_back(pool.card, i + 1, keep > little ? keep : little);
        alq_exit(pool.card);
    }
}

/* The memory is about to leave; its work is done, and no call is under way. */
void alq_ordered_park(int card)
{
    alq_give_back(card, 0, 0);
}

void alq_kept_forget(void)
{
    blocks.base = NULL;
    blocks.count = 0;
    spare_block = ALQ_NONE;
    for (unsigned i = 0; i < BUCKETS; i++)
        bucket[i].first = bucket[i].last = ALQ_NONE;
    for (unsigned i = 0; i < ALQ_CARDS; i++)
        spare_events[i] = 0;
}
