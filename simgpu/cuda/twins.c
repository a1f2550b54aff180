/* twins.c - the per-thread-stream twins of functions that take a stream: NULL means this thread's default stream. */
#include "api.h"

#define TWIN(name, parameters, arguments) \
    CUresult name parameters; \
    API name##_ptsz parameters \
    { \
        if (!stream) stream = CU_STREAM_PER_THREAD; \
        return name arguments; \
    }

TWIN(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream))
TWIN(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
TWIN(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
TWIN(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
TWIN(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), (to, value, count, stream))
TWIN(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
     (to, value, count, stream))
TWIN(cuMemsetD32Async, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream), (to, value, count, stream))
TWIN(cuMemsetD2D8Async,
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
TWIN(cuMemsetD2D16Async,
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
TWIN(cuMemsetD2D32Async,
     (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
TWIN(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
TWIN(cuMemcpyPeerAsync,
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream),
     (to, to_context, from, from_context, bytes, stream))
TWIN(cuMemPrefetchAsync, (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
     (address, bytes, device, stream))
TWIN(cuMemPrefetchAsync_v2,
     (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags, CUstream stream),
     (address, bytes, location, flags, stream))
TWIN(cuMemAllocAsync, (CUdeviceptr *address, size_t bytes, CUstream stream), (address, bytes, stream))
TWIN(cuMemAllocFromPoolAsync, (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream),
     (address, bytes, pool, stream))
TWIN(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), (address, stream))
TWIN(cuStreamSynchronize, (CUstream stream), (stream))
TWIN(cuStreamQuery, (CUstream stream), (stream))
TWIN(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr to, cuuint32_t value, unsigned int flags), (stream, to, value, flags))
TWIN(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))
TWIN(cuStreamGetPriority, (CUstream stream, int *priority), (stream, priority))
TWIN(cuStreamGetFlags, (CUstream stream, unsigned int *flags), (stream, flags))
TWIN(cuStreamGetCtx, (CUstream stream, CUcontext *context), (stream, context))
TWIN(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
TWIN(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
TWIN(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), (stream, status))
TWIN(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id), (stream, status, id))
TWIN(cuStreamGetCaptureInfo_v2,
     (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
      size_t *count),
     (stream, status, id, graph, after, count))
TWIN(cuStreamGetCaptureInfo_v3,
     (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
      const CUgraphEdgeData **edges, size_t *count),
     (stream, status, id, graph, after, edges, count))
TWIN(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
TWIN(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags))
TWIN(cuLaunchHostFunc, (CUstream stream, CUhostFn call, void *data), (stream, call, data))
TWIN(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, stream))
TWIN(cuGraphUpload, (CUgraphExec exec, CUstream stream), (exec, stream))
