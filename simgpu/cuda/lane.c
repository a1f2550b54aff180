/* lane.c - submission is a few stores to shared memory; completion is a counter there; only a wait needs the player. */
#define _GNU_SOURCE
#include "driver.h"
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POKE_NS 20000ull /* a loop of queries rings no more often than this */

void lane_ring(CUcontext context)
{
    if (__atomic_exchange_n(&context->lane->rung, 1, __ATOMIC_SEQ_CST) == 0) sim_bell(driver.rm);
}

void lane_poke(CUcontext context)
{
    static __thread uint64_t last;
    uint64_t now = sim_now();
    if (now - last < POKE_NS) return;
    last = now;
    lane_ring(context);
}

/* Whether the stream has reached `seq`; for LANE_SPACE, whether there is room in the ring. */
static bool over(const struct sim_lane *lane, uint32_t slot, uint64_t seq)
{
    if (slot != LANE_SPACE) return __atomic_load_n(&lane->done[slot], __ATOMIC_ACQUIRE) >= seq;
    return __atomic_load_n(&lane->head, __ATOMIC_RELAXED) - __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE) < LANE_RING;
}

bool lane_reached(CUcontext context, uint32_t slot, uint64_t seq)
{
    return over(context->lane, slot, seq);
}

/* Takes a place to wait at. NULL: all are taken. */
static struct lane_wait *claim(struct sim_lane *lane)
{
    for (int i = 0; i < LANE_WAITS; i++) {
        uint32_t expected = WAIT_FREE;
        if (__atomic_compare_exchange_n(&lane->wait[i].state, &expected, WAIT_CLAIMED, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return &lane->wait[i];
    }
    return NULL;
}

/* Waits once, at most a second. Returns false when that second passed. */
static bool wait_once(CUcontext context, uint32_t slot, uint64_t seq)
{
    struct timespec most = { 1, 0 }, moment = { 0, 200000 };
    struct lane_wait *wait = claim(context->lane);
    if (!wait) {
        lane_ring(context);
        nanosleep(&moment, NULL);
        return true;
    }
    wait->stream = slot;
    wait->seq = seq;
    __atomic_add_fetch(&context->lane->waiters, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&wait->state, WAIT_ARMED, __ATOMIC_SEQ_CST);
    lane_ring(context);
    long result = syscall(SYS_futex, &wait->state, FUTEX_WAIT, WAIT_ARMED, &most, NULL, 0);
    bool late = result < 0 && errno == ETIMEDOUT;
    __atomic_sub_fetch(&context->lane->waiters, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&wait->state, WAIT_FREE, __ATOMIC_SEQ_CST);
    return !late;
}

CUresult lane_wait(CUcontext context, uint32_t slot, uint64_t seq)
{
    while (!over(context->lane, slot, seq)) {
        if (__atomic_load_n(&context->lane->dead, __ATOMIC_ACQUIRE))
            return context->dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_LAUNCH_FAILED;
        if (wait_once(context, slot, seq)) continue;
        /* Again, in case one was lost in a full socket, or with its player. */
        if (sim_bell(driver.rm) != 0) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    return CUDA_SUCCESS;
}

CUresult lane_wait_all(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t slot = 0; slot < LANE_STREAMS && result == CUDA_SUCCESS; slot++) {
        pthread_mutex_lock(&context->lock);
        uint64_t seq = context->last[slot];
        pthread_mutex_unlock(&context->lock);
        result = lane_wait(context, slot, seq);
    }
    lane_retire(context);
    return result == CUDA_SUCCESS ? context->fault : result;
}

/* With the lock held: applies what finished entries leave behind, in the order they were submitted. */
static void retire_locked(CUcontext context)
{
    struct effect **link = &context->effects;
    while (*link) {
        struct effect *effect = *link;
        if (!over(context->lane, effect->slot, effect->seq)) {
            link = &effect->next;
            continue;
        }
        *link = effect->next;
        effect_apply(effect, effect->result ? &context->lane->result[effect->result - 1] : NULL);
        if (effect->result) context->result_free[context->results_free++] = effect->result;
        effect_free(effect);
    }
    context->effects_end = link;
}

void lane_retire(CUcontext context)
{
    pthread_mutex_lock(&context->lock);
    retire_locked(context);
    pthread_mutex_unlock(&context->lock);
}

void lane_forget(CUcontext context)
{
    while (context->effects) {
        struct effect *effect = context->effects;
        context->effects = effect->next;
        effect_free(effect);
    }
    context->effects_end = &context->effects;
}

/* With the lock held (and dropped meanwhile): makes sure of a place in the ring, and one for the times if wanted. */
static CUresult make_room(CUcontext context, bool times, uint32_t *place)
{
    for (;;) {
        uint32_t slot = LANE_SPACE;
        uint64_t seq = 0;
        if (times && !context->results_free) retire_locked(context);
        if (times && !context->results_free) { /* every entry that has a place has an effect */
            slot = context->effects->slot;
            seq = context->effects->seq;
        } else if (over(context->lane, LANE_SPACE, 0)) break;
        pthread_mutex_unlock(&context->lock);
        CUresult result = lane_wait(context, slot, seq);
        pthread_mutex_lock(&context->lock);
        if (result != CUDA_SUCCESS) return result;
    }
    *place = times ? context->result_free[--context->results_free] : 0;
    return CUDA_SUCCESS;
}

/* With the lock held: writes one entry into the ring, in which there is room. Returns its number. */
static uint64_t publish(CUcontext context, const struct CUstream_st *stream, const struct op *op, uint16_t kind,
                        uint32_t result)
{
    struct sim_lane *lane = context->lane;
    struct lane_item *item = &lane->ring[lane->head % LANE_RING];
    uint64_t seq = ++context->seq;
    *item = (struct lane_item){
        .stamp = sim_now(), .seq = seq, .duration_ns = op->duration_ns, .stream = (uint16_t)stream->slot,
        .channel = context->channel[stream->slot % context->channels], .kind = kind, .result = result,
    };
    if (op->kind == OP_AFTER) {
        item->after_stream = (uint16_t)op->after.slot;
        item->after_seq = op->after.seq;
    } else if (stream->slot && !(stream->flags & CU_STREAM_NON_BLOCKING)) item->after_seq = context->legacy_seq;
    if (!stream->slot) {
        item->flags = LANE_BARRIER;
        context->legacy_seq = seq;
    } else if (stream->flags & CU_STREAM_NON_BLOCKING) item->flags = LANE_NONBLOCKING;
    if (op->kind == OP_COPY && op->copy.to_host != op->copy.from_host)
        item->flags |= op->copy.to_host ? LANE_TO_HOST : LANE_TO_CARD;
    context->last[stream->slot] = seq;
    __atomic_store_n(&lane->head, lane->head + 1, __ATOMIC_RELEASE);
    return seq;
}

/* With the lock held: the event stands for this entry from now on. */
static void note_record(CUevent event, const struct CUstream_st *stream, uint64_t seq)
{
    event->context = stream->context;
    event->slot = stream->slot;
    event->seq = seq;
    event->time_ns = 0;
}

CUresult lane_submit(CUcontext context, CUstream stream, const struct op *op, uint64_t *seq)
{
    struct effect *effect = effect_of(op);
    static const struct op NOTHING = { .kind = OP_NOTHING };
    uint32_t place = 0;
    uint64_t entry = 0;
    pthread_mutex_lock(&context->lock);
    CUresult result = context->fault;
    if (result == CUDA_SUCCESS) result = make_room(context, effect_wants_times(op), &place);
    if (result == CUDA_SUCCESS) {
        entry = publish(context, stream, op, op->kind == OP_EVENT || op->kind == OP_AFTER || op->kind == OP_HOST ||
                        op->kind == OP_NOTHING ? LANE_MARK : LANE_RUN, place);
        if (op->kind == OP_EVENT) note_record(op->event.event, stream, entry);
        if (effect) {
            *effect = (struct effect){ .op = effect->op, .staged = effect->staged, .slot = stream->slot,
                                       .seq = entry, .result = place };
            *context->effects_end = effect;
            context->effects_end = &effect->next;
        }
    } else if (effect) effect_free(effect);
    if (result == CUDA_SUCCESS && op->kind == OP_HOST) { /* the stream goes on when the worker says so */
        uint64_t before = entry;
        result = make_room(context, false, &place);
        if (result == CUDA_SUCCESS) {
            entry = publish(context, stream, &NOTHING, LANE_HOST, 0);
            result = hosts_push(context, op, stream->slot, before, entry);
        }
    }
    pthread_mutex_unlock(&context->lock);
    if (seq) *seq = entry;
    return result;
}
