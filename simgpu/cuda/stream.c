/* stream.c - streams: queues of a context, or the notebook of a graph while one is captured. */
#include "driver.h"
#include <stdlib.h>

/* Makes a stream; the first of a context is its legacy default stream. More streams than channels get one more channel,
 * as the real driver does: whoever pauses channels must learn of it. NULL: no memory. */
CUstream stream_make(CUcontext context, unsigned flags, int priority)
{
    CUstream stream = calloc(1, sizeof *stream);
    uint32_t slot = 0;
    if (!stream) return NULL;
    pthread_mutex_lock(&context->lock);
    if (context->streams)
        for (uint32_t i = slot = 1; i < LANE_STREAMS; i++)
            if (context->slot_users[i] < context->slot_users[slot]) slot = i;
    context->slot_users[slot]++;
    bool crowded = slot >= context->channels && context->channels < CHANNELS_MAX;
    *stream = (struct CUstream_st){ .context = context, .slot = slot, .flags = flags, .priority = priority,
                                    .next = context->streams };
    context->streams = stream;
    if (crowded) rm_add_channel(context);
    pthread_mutex_unlock(&context->lock);
    return stream;
}

void streams_free(CUcontext context)
{
    while (context->streams) {
        CUstream stream = context->streams;
        context->streams = stream->next;
        handle_drop(stream, H_STREAM);
        if (stream->capture_origin) capture_forget(stream->capture);
        free(stream);
    }
}

/* The default stream of this thread in this context. NULL: no memory. */
static CUstream per_thread(CUcontext context)
{
    static __thread struct { uint64_t id; CUstream stream; } mine[8];
    static __thread unsigned next;
    for (unsigned i = 0; i < 8; i++)
        if (mine[i].id == context->id) return mine[i].stream;
    CUstream stream = stream_make(context, 0, 0);
    if (!stream) return NULL;
    mine[next % 8].id = context->id;
    mine[next++ % 8].stream = stream;
    return stream;
}

CUresult stream_of(CUstream handle, CUstream *stream)
{
    CUcontext context;
    CUresult result;
    if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        if ((result = driver_check()) != CUDA_SUCCESS) return result;
        if (!handle_is(handle, H_STREAM)) return CUDA_ERROR_INVALID_HANDLE;
        *stream = handle;
        return CUDA_SUCCESS;
    }
    if ((result = context_current(&context)) != CUDA_SUCCESS) return result;
    *stream = handle == CU_STREAM_PER_THREAD ? per_thread(context) : context->legacy;
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_issue(CUstream stream, const struct op *op)
{
    if (stream->capture) {
        CUresult state = capture_state(stream->capture);
        return state == CUDA_SUCCESS ? graph_note(stream->capture, op) : state;
    }
    return lane_submit(stream->context, stream, op, NULL);
}

CUresult stream_sync(CUstream stream)
{
    CUcontext context = stream->context;
    if (stream->capture) return capture_misused(stream->capture);
    pthread_mutex_lock(&context->lock);
    uint64_t seq = context->last[stream->slot];
    pthread_mutex_unlock(&context->lock);
    CUresult result = lane_wait(context, stream->slot, seq);
    lane_retire(context);
    return result == CUDA_SUCCESS ? context->fault : result;
}

API cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!stream || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    CUstream made = stream_make(context, flags, priority);
    if (!made || !handle_add(made, H_STREAM)) return CUDA_ERROR_OUT_OF_MEMORY;
    *stream = made;
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

API cuStreamDestroy_v2(CUstream handle)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_drop(handle, H_STREAM)) return CUDA_ERROR_INVALID_HANDLE;
    CUcontext context = handle->context;
    pthread_mutex_lock(&context->lock); /* what was issued is still done: the queue is the lane's, not ours */
    context->slot_users[handle->slot]--;
    for (CUstream *link = &context->streams; *link; link = &(*link)->next)
        if (*link == handle) {
            *link = handle->next;
            break;
        }
    pthread_mutex_unlock(&context->lock);
    if (handle->capture_origin) capture_forget(handle->capture);
    free(handle);
    return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream handle)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS || (result = capture_permits()) != CUDA_SUCCESS) return result;
    result = stream_sync(stream);
    if (result == CUDA_SUCCESS) pools_trim(stream->context->device);
    return result;
}

API cuStreamQuery(CUstream handle)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    CUcontext context = stream->context;
    if ((result = capture_permits()) != CUDA_SUCCESS) return result;
    if (stream->capture) return capture_misused(stream->capture);
    lane_retire(context);
    if (context->fault != CUDA_SUCCESS) return context->fault;
    if (lane_reached(context, stream->slot, context->last[stream->slot])) return CUDA_SUCCESS;
    lane_poke(context);
    return CUDA_ERROR_NOT_READY;
}

API cuStreamGetPriority(CUstream handle, int *priority)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = stream->context;
    return CUDA_SUCCESS;
}

API cuLaunchHostFunc(CUstream handle, CUhostFn call, void *data)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!call) return CUDA_ERROR_INVALID_VALUE;
    return stream_issue(stream, &(struct op){ .kind = OP_HOST, .host = { call, data } });
}

API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    CUstream stream;
    (void)flags;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(event, H_EVENT)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured) { /* the stream joins the capture that the event belongs to */
        if (stream->capture && stream->capture != event->captured) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        stream->capture = event->captured;
        return CUDA_SUCCESS;
    }
    if (!event->seq) return CUDA_SUCCESS;
    if (event->context != stream->context) /* another card's clock: waited for here instead of there */
        return event->context->dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                    : lane_wait(event->context, event->slot, event->seq);
    return stream_issue(stream, &(struct op){ .kind = OP_AFTER, .after = { event->slot, event->seq } });
}
