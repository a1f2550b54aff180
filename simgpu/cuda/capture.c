/* capture.c - streams whose work goes into a graph.
 *
 * Some calls break a capture: they answer 900, and so does it at its end (901). Seen on an H200 with driver 580, and what
 * CUDA's documentation says of the modes: calls that may be unsafe (cuMemAlloc, cuMemFree, a pool that grows, waits and
 * questions) break the captures of their own thread that are not relaxed; and unless their thread chose a looser mode, every
 * capture in the mode `global`. A wait for a whole context breaks every capture in it, whoever calls in whichever mode.
 */
#include "driver.h"
#include <stdlib.h>

struct capture { struct capture *next; CUgraph graph; CUcontext context; pthread_t thread; CUstreamCaptureMode mode; bool broken; };
static struct capture *captures;
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread CUstreamCaptureMode own_mode;

static bool is_unsafe(const struct capture *one)
{
    if (own_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (pthread_equal(one->thread, pthread_self())) return one->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return own_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && one->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* Breaks the captures of this context, or of this graph, or those for which the call is unsafe. */
static CUresult break_where(CUcontext context, CUgraph graph)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&captures_lock);
    for (struct capture *one = captures; one; one = one->next)
        if (context ? one->context == context : graph ? one->graph == graph : is_unsafe(one)) {
            one->broken = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&captures_lock);
    return result;
}

CUresult capture_permits(void)
{
    return break_where(NULL, NULL);
}

CUresult capture_permits_wait(CUcontext context)
{
    CUresult result = capture_permits();
    return break_where(context, NULL) != CUDA_SUCCESS ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : result;
}

CUresult capture_misused(CUgraph graph)
{
    break_where(NULL, graph);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_state(CUgraph graph)
{
    bool broken = false;
    pthread_mutex_lock(&captures_lock);
    for (struct capture *one = captures; one; one = one->next)
        if (one->graph == graph) broken = one->broken;
    pthread_mutex_unlock(&captures_lock);
    return broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static bool remember(CUgraph graph, CUcontext context, CUstreamCaptureMode mode)
{
    struct capture *one = graph ? malloc(sizeof *one) : NULL;
    if (!one) return false;
    pthread_mutex_lock(&captures_lock);
    *one = (struct capture){ .next = captures, .graph = graph, .context = context, .thread = pthread_self(), .mode = mode };
    captures = one;
    pthread_mutex_unlock(&captures_lock);
    return true;
}

void capture_forget(CUgraph graph)
{
    pthread_mutex_lock(&captures_lock);
    for (struct capture **link = &captures; *link; link = &(*link)->next)
        if ((*link)->graph == graph) {
            struct capture *one = *link;
            *link = one->next;
            free(one);
            break;
        }
    pthread_mutex_unlock(&captures_lock);
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    if (!stream->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return capture_state(stream->capture) == CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                          : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if ((unsigned)mode > 2) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    CUgraph graph = graph_make();
    if (!remember(graph, stream->context, mode)) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->capture = graph;
    stream->capture_origin = true;
    return CUDA_SUCCESS;
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
    CUgraph made = stream->capture;
    result = capture_state(made);
    *graph = result == CUDA_SUCCESS ? made : NULL;
    stream->capture_origin = false;
    pthread_mutex_lock(&stream->context->lock);
    for (CUstream other = stream->context->streams; other; other = other->next)
        if (other->capture == made) other->capture = NULL;
    pthread_mutex_unlock(&stream->context->lock);
    capture_forget(made);
    return result;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

static CUresult info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
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
    if (!mode || (unsigned)*mode > 2) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = own_mode;
    own_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
