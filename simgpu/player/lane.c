/* lane.c - the work of one context: taken from the shared ring, kept in a queue per stream.
 *
 * Whatever lies in shared memory may be garbage or change while we look: each entry is copied once and checked there.
 * A lane with garbage in it is dead, as a context is after a fault on a real card; nobody else notices.
 */
#define _GNU_SOURCE
#include "player.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DURATION_MAX (1000ull * 1000 * 1000 * 1000 * 1000) /* a million seconds: the sums never overflow */
#define LENIENCE (100 * US) /* how much later than it might somebody with a full queue is woken */
#define STAMP_TRUST (1000ull * 1000 * 1000) /* a stamp further in the future is a lie and counts as now */
static void lists_empty(struct lane *lane)
{
    lane->spare = 0;
    lane->held = 0;
    for (uint16_t i = 0; i < HELD; i++) lane->work[i].next = i + 1 < HELD ? (uint16_t)(i + 1) : NONE;
    for (int i = 0; i < LANE_STREAMS; i++) {
        lane->queue[i].first = lane->queue[i].last = NONE;
        lane->queue[i].channel = NULL;
    }
    memset(lane->active, 0, sizeof lane->active);
}

/* Makes the two files of a lane: ours, and the one that the process shares. Returns NULL with errno. */
struct lane *lane_new(int *file)
{
    uint64_t number = ++player->numbers;
    struct lane *lane = store_map('l', number, sizeof *lane, NULL);
    if (!lane) return NULL;
    lane->number = number;
    lane->shared = store_map('w', number, sizeof *lane->shared, file);
    if (!lane->shared) {
        int error = errno;
        munmap(lane, sizeof *lane);
        store_remove('l', number);
        errno = error;
        return NULL;
    }
    lane->shared->magic = SIM_MAGIC;
    lane->running = -1;
    lists_empty(lane);
    return lane;
}

void lane_cut(uint32_t uid, const struct lane *lane)
{
    store_cut(uid, 'w', lane->number, sizeof *lane->shared);
}

static void wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Nothing more will be done on it: everyone who waits learns that. */
void lane_kill(struct lane *lane)
{
    lane->dead = true;
    lane->held = 0;
    lane->running = -1;
    memset(lane->active, 0, sizeof lane->active);
    __atomic_store_n(&lane->shared->dead, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < LANE_WAITS; i++) {
        uint32_t armed = WAIT_ARMED;
        if (__atomic_compare_exchange_n(&lane->shared->wait[i].state, &armed, WAIT_OVER, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            wake(&lane->shared->wait[i].state);
    }
}

void lane_free(struct lane *lane)
{
    if (!lane) return;
    lane_kill(lane);
    store_remove('w', lane->number);
    store_remove('l', lane->number);
    munmap(lane->shared, sizeof *lane->shared);
    munmap(lane, sizeof *lane);
}

/* A channel is gone. Work that was still on it has nowhere to run: a fault. */
void lane_forget_channel(struct lane *lane, const struct object *channel)
{
    for (int i = 0; i < LANE_STREAMS; i++) {
        if (lane->queue[i].channel != channel) continue;
        lane->queue[i].channel = NULL;
        if (lane->active[i / 64] & 1ull << (i % 64)) lane_kill(lane);
    }
}

/* The enabled or disabled channel with this handle in the group, or NULL. */
struct object *channel_of(struct connection *owner, struct group *group, uint32_t handle)
{
    for (struct object *o = owner->objects; o; o = o->next)
        if (o->handle == handle && o->group == group && rm_is_channel(o->class_)) return o;
    return NULL;
}

static bool item_valid(const struct lane *lane, const struct lane_item *item)
{
    return item->stream < LANE_STREAMS && item->after_stream < LANE_STREAMS && item->kind >= LANE_RUN &&
           item->kind <= LANE_HOST && item->result <= LANE_RESULTS && item->seq > lane->seq &&
           item->after_seq < item->seq;
}

/* The channel of the entry becomes that of its stream. Returns false when the group has no such channel. */
static bool bind_channel(struct group *group, const struct lane_item *item)
{
    struct queue *queue = &group->lane->queue[item->stream];
    if (!queue->channel || queue->channel->handle != item->channel)
        queue->channel = channel_of(group->owner, group, item->channel);
    return queue->channel != NULL;
}

/* Puts an entry in its slot at the end of its stream. */
static void append(struct lane *lane, uint16_t slot)
{
    uint16_t stream = lane->work[slot].item.stream;
    struct queue *queue = &lane->queue[stream];
    lane->held++;
    lane->work[slot].next = NONE;
    if (queue->first == NONE) queue->first = slot;
    else lane->work[queue->last].next = slot;
    queue->last = slot;
    lane->active[stream / 64] |= 1ull << (stream % 64);
}

/* Takes a checked entry into a slot. Its number is written last: then the next player has it too. */
static void enqueue(struct lane *lane, const struct lane_item *item)
{
    uint16_t slot = lane->spare;
    struct work *work = &lane->work[slot];
    lane->spare = work->next;
    work->item = *item;
    work->item.seq = 0;
    work->started = 0;
    work->left = item->kind != LANE_RUN ? 0 : item->duration_ns < DURATION_MAX ? item->duration_ns : DURATION_MAX;
    __atomic_store_n(&work->item.seq, item->seq, __ATOMIC_RELEASE);
    lane->seq = item->seq;
    append(lane, slot);
}

unsigned item_engine(const struct lane_item *item)
{
    return item->flags & LANE_TO_CARD ? 1 : item->flags & LANE_TO_HOST ? 2 : 0;
}

static struct lane *sorted; /* qsort has no argument for it */

static int by_seq(const void *left, const void *right)
{
    uint64_t a = sorted->work[*(const uint16_t *)left].item.seq, b = sorted->work[*(const uint16_t *)right].item.seq;
    return a < b ? -1 : a > b;
}

/* Puts what the last player held and had not finished into the queues again. */
static void work_again(struct group *group, struct lane *lane)
{
    uint16_t held[HELD], spare = NONE;
    unsigned count = 0;
    lists_empty(lane);
    for (int i = 0; i < LANE_STREAMS; i++)
        if (lane->queue[i].seq > lane->seq) lane->seq = lane->queue[i].seq;
    for (uint16_t slot = HELD; slot-- > 0;) {
        struct lane_item *item = &lane->work[slot].item;
        if (item->seq > lane->seq) lane->seq = item->seq;
        if (item->seq && item->stream < LANE_STREAMS && item->seq > lane->queue[item->stream].seq) held[count++] = slot;
        else {
            item->seq = 0;
            lane->work[slot].next = spare;
            spare = slot;
        }
    }
    lane->spare = spare;
    sorted = lane;
    qsort(held, count, sizeof *held, by_seq);
    for (unsigned i = 0; i < count; i++) {
        const struct lane_item *item = &lane->work[held[i]].item;
        append(lane, held[i]);
        lane->queue[item->stream].channel = channel_of(group->owner, group, item->channel);
        if (!lane->queue[item->stream].channel) {
            lane_kill(lane);
            return;
        }
    }
    if (lane->running >= LANE_STREAMS || (lane->running >= 0 && lane->queue[lane->running].first == NONE))
        lane->running = -1;
}

struct lane *lane_again(struct group *group)
{
    struct lane *lane = store_map('l', group->lane_number, sizeof *lane, NULL);
    struct sim_lane *shared = lane ? store_map('w', group->lane_number, sizeof *shared, NULL) : NULL;
    if (!shared) {
        if (lane) munmap(lane, sizeof *lane);
        return NULL;
    }
    lane->shared = shared;
    if (lane->dead) return lane;
    work_again(group, lane);
    for (int i = 0; i < LANE_STREAMS; i++)
        if (lane->queue[i].seq) __atomic_store_n(&shared->done[i], lane->queue[i].seq, __ATOMIC_RELEASE);
    uint64_t head = __atomic_load_n(&shared->head, __ATOMIC_ACQUIRE), tail = shared->tail;
    while (tail < head && head - tail <= LANE_RING && shared->ring[tail % LANE_RING].seq <= lane->seq) tail++;
    __atomic_store_n(&shared->tail, tail, __ATOMIC_RELEASE); /* taken, and then the last player died */
    __atomic_store_n(&shared->rung, 0, __ATOMIC_SEQ_CST);
    return lane;
}

/* When the host function at the head of this stream ended; NEVER: it has not. */
static uint64_t host_end(const struct lane *lane, int stream, const struct lane_item *item)
{
    if (__atomic_load_n(&lane->shared->host[stream], __ATOMIC_ACQUIRE) < item->seq) return NEVER;
    uint64_t end = lane->shared->host_ns[stream];
    return end <= player->real_now + STAMP_TRUST ? end : 0;
}

/* When the next host function after `now` ended, or NEVER. */
static uint64_t next_host_end(const struct lane *lane, uint64_t now)
{
    uint64_t next = NEVER;
    for (int word = 0; word < LANE_STREAMS / 64; word++)
        for (uint64_t bits = lane->active[word]; bits; bits &= bits - 1) {
            int stream = word * 64 + __builtin_ctzll(bits);
            const struct lane_item *item = &lane->work[lane->queue[stream].first].item;
            uint64_t end = item->kind == LANE_HOST ? host_end(lane, stream, item) : NEVER;
            if (end > now && end < next) next = end;
        }
    return next;
}

/* Takes what was submitted up to `now`. Returns when the next entry arrives, or NEVER. */
static uint64_t take_arrivals(struct group *group, uint64_t now)
{
    struct lane *lane = group->lane;
    struct sim_lane *shared = lane->shared;
    uint64_t head = __atomic_load_n(&shared->head, __ATOMIC_ACQUIRE), tail = shared->tail;
    uint64_t taken = lane->seq;
    if (head - tail > LANE_RING) {
        lane_kill(lane);
        return NEVER;
    }
    while (tail < head && lane->held < HELD) {
        struct lane_item item = shared->ring[tail % LANE_RING];
        if (item.stamp > now && item.stamp <= player->real_now + STAMP_TRUST) {
            __atomic_store_n(&shared->tail, tail, __ATOMIC_RELEASE);
            return item.stamp;
        }
        if (!item_valid(lane, &item) || !bind_channel(group, &item)) {
            lane_kill(lane);
            return NEVER;
        }
        enqueue(lane, &item);
        tail++;
    }
    if (lane->seq != taken) __atomic_store_n(&shared->tail, tail, __ATOMIC_RELEASE);
    return NEVER;
}

/* Takes what was submitted up to `now`. Returns when the process will change something next, or NEVER. */
uint64_t lane_admit(struct group *group, uint64_t now)
{
    if (!group->lane || group->lane->dead) return NEVER;
    uint64_t arrival = take_arrivals(group, now), host = next_host_end(group->lane, now);
    return arrival < host ? arrival : host;
}

/* Whether the legacy default stream must still wait for another one. */
static bool barred(const struct lane *lane, const struct lane_item *item)
{
    for (int word = 0; word < LANE_STREAMS / 64; word++)
        for (uint64_t bits = lane->active[word]; bits; bits &= bits - 1) {
            int stream = word * 64 + __builtin_ctzll(bits);
            const struct lane_item *other = &lane->work[lane->queue[stream].first].item;
            if (stream != item->stream && other->seq < item->seq && !(other->flags & LANE_NONBLOCKING)) return true;
        }
    return false;
}

/* Whether the first entry of a stream may run now: its channel is enabled and what it comes after is done. */
bool lane_eligible(const struct lane *lane, int stream, uint64_t now)
{
    const struct queue *queue = &lane->queue[stream];
    const struct lane_item *item = &lane->work[queue->first].item;
    if (now >= queue->channel->stop_at) return false;
    if (item->after_seq > lane->queue[item->after_stream].seq) return false;
    if (item->kind == LANE_HOST && host_end(lane, stream, item) > now) return false;
    return !(item->flags & LANE_BARRIER) || !barred(lane, item);
}

/* The one begun goes on; else the oldest that may run and is not an engine's. Returns its stream, -1: none. */
int lane_pick(struct lane *lane, uint64_t now)
{
    int best = -1;
    uint64_t best_seq = NEVER;
    if (lane->running >= 0 && lane_eligible(lane, lane->running, now)) return lane->running;
    for (int word = 0; word < LANE_STREAMS / 64; word++)
        for (uint64_t bits = lane->active[word]; bits; bits &= bits - 1) {
            int stream = word * 64 + __builtin_ctzll(bits);
            uint64_t seq = lane->work[lane->queue[stream].first].item.seq;
            if (seq < best_seq && !copy_engine(lane, stream) && lane_eligible(lane, stream, now)) {
                best = stream;
                best_seq = seq;
            }
        }
    return best;
}

/* The first entry of the stream is done at `now`. */
void lane_finish(struct lane *lane, int stream, uint64_t now)
{
    struct queue *queue = &lane->queue[stream];
    uint16_t slot = queue->first;
    struct work *work = &lane->work[slot];
    if (work->item.result) {
        struct lane_result *result = &lane->shared->result[work->item.result - 1];
        result->start_ns = work->started ? work->started : now;
        result->end_ns = now;
    }
    if (work->item.kind == LANE_RUN) queue->engine = item_engine(&work->item);
    queue->seq = work->item.seq;
    __atomic_store_n(&lane->shared->done[stream], work->item.seq, __ATOMIC_RELEASE);
    queue->first = work->next;
    if (queue->first == NONE) {
        queue->last = NONE;
        lane->active[stream / 64] &= ~(1ull << (stream % 64));
    }
    if (lane->running == stream) lane->running = -1;
    work->item.seq = 0;
    work->next = lane->spare;
    lane->spare = slot;
    lane->held--;
}

/* When to tell somebody that the stream has reached `seq`: at the earliest when its own work allows it, and at once if
 * that is the last of it. With more queued behind, the one who waits only wants to keep the queue full; told a little
 * later, of several entries at a time, he needs a third of the processor time for that. */
static uint64_t reach(const struct lane *lane, uint32_t stream, uint64_t seq, uint64_t now)
{
    uint64_t left = 0, behind = 0;
    for (uint16_t slot = lane->queue[stream].first; slot != NONE; slot = lane->work[slot].next)
        *(lane->work[slot].item.seq <= seq ? &left : &behind) += lane->work[slot].left;
    return now + left + (behind / 4 < LENIENCE ? behind / 4 : LENIENCE);
}

/* How long all that it holds would run. */
uint64_t lane_left(const struct lane *lane, bool copies)
{
    uint64_t left = 0;
    for (int word = 0; word < LANE_STREAMS / 64; word++)
        for (uint64_t bits = lane->active[word]; bits; bits &= bits - 1) {
            int stream = word * 64 + __builtin_ctzll(bits);
            for (uint16_t slot = lane->queue[stream].first; slot != NONE; slot = lane->work[slot].next)
                if (copies || !item_engine(&lane->work[slot].item)) left += lane->work[slot].left;
        }
    return left;
}

/* About when half of the ring will be free: when as many entries are finished as must be taken for that. */
static uint64_t roomy(const struct lane *lane, uint64_t now)
{
    uint64_t waiting = lane->shared->head - lane->shared->tail;
    return waiting > LANE_RING / 2 ? now + lane_left(lane, true) / HELD * (waiting - LANE_RING / 2) : now;
}

/* Ends the waits that are over. Returns when the next one may be, or NEVER. */
uint64_t lane_serve_waits(struct group *group)
{
    struct lane *lane = group->lane;
    uint64_t when = NEVER;
    if (!lane || lane->dead || !__atomic_load_n(&lane->shared->waiters, __ATOMIC_SEQ_CST)) return NEVER;
    uint64_t now = group_earliest(group);
    for (int i = 0; i < LANE_WAITS; i++) {
        struct lane_wait *wait = &lane->shared->wait[i];
        if (__atomic_load_n(&wait->state, __ATOMIC_ACQUIRE) != WAIT_ARMED) continue;
        uint32_t stream = wait->stream;
        uint64_t seq = wait->seq, next;
        bool over;
        if (stream == LANE_SPACE) {
            over = lane->shared->head - lane->shared->tail <= LANE_RING / 2;
            next = roomy(lane, now);
        } else {
            stream %= LANE_STREAMS;
            over = lane->queue[stream].seq >= seq;
            next = reach(lane, stream, seq, copy_engine(lane, (int)stream) ? copies_earliest(group, (int)stream) : now);
        }
        if (over) {
            __atomic_store_n(&wait->state, WAIT_OVER, __ATOMIC_RELEASE);
            wake(&wait->state);
        } else if (next < when) when = next;
    }
    /* Paused, or at a host function: only somebody outside can bring it on, and that will be heard of. */
    return group_runnable(group) || copies_wanted(group) || lane->shared->head != lane->shared->tail ? when : NEVER;
}
