/* event.c - events: a mark in a stream, with the time at which the stream came to it. */
#include "driver.h"
#include <stdlib.h>

/* One user less; the last one frees it. */
void event_release(CUevent event)
{
    if (__atomic_sub_fetch(&event->users, 1, __ATOMIC_SEQ_CST) == 0) free(event);
}

static CUresult event_of(CUevent event)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return handle_is(event, H_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuEventCreate(CUevent *event, unsigned int flags)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!event || flags > (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    CUevent made = calloc(1, sizeof *made);
    if (!made || !handle_add(made, H_EVENT)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUevent_st){ .context = context, .flags = flags, .users = 1 };
    *event = made;
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent event)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_drop(event, H_EVENT)) return CUDA_ERROR_INVALID_HANDLE;
    event_release(event);
    return CUDA_SUCCESS;
}

API cuEventRecord(CUevent event, CUstream handle)
{
    CUstream stream;
    CUresult result = event_of(event);
    if (result == CUDA_SUCCESS) result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (stream->capture) {
        event->captured = stream->capture;
        return CUDA_SUCCESS;
    }
    event->captured = NULL;
    return lane_submit(stream->context, stream, &(struct op){ .kind = OP_EVENT, .event = { event } }, NULL);
}

API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    (void)flags;
    return cuEventRecord(event, stream);
}

API cuEventQuery(CUevent event)
{
    CUresult result = event_of(event);
    if (result != CUDA_SUCCESS || (result = capture_permits()) != CUDA_SUCCESS) return result;
    if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
    if (!event->seq) return CUDA_SUCCESS;
    if (event->context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!lane_reached(event->context, event->slot, event->seq)) {
        lane_poke(event->context);
        return event->context->fault != CUDA_SUCCESS ? event->context->fault : CUDA_ERROR_NOT_READY;
    }
    lane_retire(event->context);
    return event->context->fault;
}

API cuEventSynchronize(CUevent event)
{
    CUresult result = event_of(event);
    if (result != CUDA_SUCCESS || (result = capture_permits()) != CUDA_SUCCESS) return result;
    if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
    if (!event->seq) return CUDA_SUCCESS;
    if (event->context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    result = lane_wait(event->context, event->slot, event->seq);
    lane_retire(event->context);
    if (result == CUDA_SUCCESS) pools_trim(event->context->device);
    return result == CUDA_SUCCESS ? event->context->fault : result;
}

API cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    CUresult result = event_of(start);
    if (result == CUDA_SUCCESS) result = event_of(end);
    if (result != CUDA_SUCCESS) return result;
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if (!start->seq || !end->seq || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (start->context->dead || end->context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    lane_retire(start->context);
    lane_retire(end->context);
    if (!start->time_ns || !end->time_ns) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
