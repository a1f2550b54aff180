/* capture.c - streams whose work goes into a graph. */
#include "driver.h"

API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if ((unsigned)mode > 2) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = graph_make();
    stream->capture_origin = true;
    return stream->capture ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Ends the capture on its first stream; those that joined by an event go back to normal with it. */
API cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (!stream->capture_origin) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    *graph = stream->capture;
    stream->capture_origin = false;
    pthread_mutex_lock(&stream->context->lock);
    for (CUstream other = stream->context->streams; other; other = other->next)
        if (other->capture == *graph) other->capture = NULL;
    pthread_mutex_unlock(&stream->context->lock);
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (id) *id = (cuuint64_t)(uintptr_t)stream->capture;
    if (graph) *graph = stream->capture;
    return CUDA_SUCCESS;
}

API cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return info(stream, status, id, NULL);
}

API cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **after, size_t *count)
{
    if (after) *after = NULL;
    if (count) *count = 0;
    return info(stream, status, id, graph);
}

API cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count)
{
    if (after) *after = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return info(stream, status, id, graph);
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static __thread CUstreamCaptureMode current;
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
