/* copy2d.c - copies and fills in rows, between cards, and hints for managed memory (taken note of and no more). */
#include "driver.h"

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);

/* Where one side of a copy begins. Returns false for memory that is not there; arrays have no contents (`*at` 0). */
static bool side(int type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch, size_t width,
                 size_t rows, CUdeviceptr *at, bool *host_side)
{
    *at = type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)host : device;
    *host_side = type == CU_MEMORYTYPE_HOST;
    if (type == CU_MEMORYTYPE_ARRAY) {
        *at = 0;
        return true;
    }
    if (!*at || type < CU_MEMORYTYPE_HOST || type > CU_MEMORYTYPE_UNIFIED || (rows > 1 && pitch < width)) return false;
    if (type == CU_MEMORYTYPE_UNIFIED) *host_side = is_host(*at);
    *at += y * pitch + x;
    return *host_side || memory_known(*at, (rows - 1) * pitch + width);
}

static CUresult copy(const CUDA_MEMCPY2D *c, CUstream handle, bool wait)
{
    CUstream stream;
    CUdeviceptr to, from;
    bool to_host, from_host;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    if (!c->WidthInBytes || !c->Height) return CUDA_SUCCESS;
    if (!side((int)c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes, c->srcY, c->srcPitch, c->WidthInBytes,
              c->Height, &from, &from_host) ||
        !side((int)c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes, c->dstY, c->dstPitch, c->WidthInBytes,
              c->Height, &to, &to_host))
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = { .kind = OP_COPY, .copy = { to, from, c->WidthInBytes, c->Height, c->dstPitch, c->srcPitch, to_host,
                                                from_host } };
    if (!to || !from) op.copy.rows = 0; /* an array on one side: it takes its time and leaves nothing */
    op.duration_ns = copy_ns(c->WidthInBytes * c->Height, to_host || from_host);
    result = stream_issue(stream, &op);
    return result == CUDA_SUCCESS && wait ? stream_sync(stream) : result;
}

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *c)
{
    return copy(c, CU_STREAM_LEGACY, true);
}
API cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *c)
{
    return copy(c, CU_STREAM_PER_THREAD, true);
}
API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c)
{
    return copy(c, CU_STREAM_LEGACY, true);
}
API cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *c)
{
    return copy(c, CU_STREAM_PER_THREAD, true);
}
API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream)
{
    return copy(c, stream, false);
}

static CUresult fill(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t width, size_t count, size_t rows,
                     CUstream handle)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!count || !rows) return CUDA_SUCCESS;
    if (to % width || (rows > 1 && pitch < count * width) || !memory_known(to, (rows - 1) * pitch + count * width))
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = { .kind = OP_FILL, .fill = { to, count, rows, pitch, value, width } };
    op.duration_ns = copy_ns(count * width * rows, false);
    return stream_issue(stream, &op);
}

#define FILL(bits, type) \
    API cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) \
    { \
        return fill(to, pitch, value, bits / 8, width, height, CU_STREAM_LEGACY); \
    } \
    API cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) \
    { \
        return fill(to, pitch, value, bits / 8, width, height, CU_STREAM_PER_THREAD); \
    } \
    API cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, \
                                 CUstream stream) \
    { \
        return fill(to, pitch, value, bits / 8, width, height, stream); \
    }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)

/* All addresses of a process are in one space: a copy between cards is a copy. */
API cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    (void)to_context, (void)from_context;
    return cuMemcpy(to, from, bytes);
}
API cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    return cuMemcpyPeer(to, to_context, from, from_context, bytes);
}
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                      CUstream stream)
{
    (void)to_context, (void)from_context;
    return cuMemcpyAsync(to, from, bytes, stream);
}

/* A hint about managed memory: checked, and without effect. */
static CUresult hint(CUdeviceptr address, size_t bytes)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return bytes && memory_known(address, bytes) && range_find(address, &range) && range.kind == RANGE_MANAGED
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

API cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
    (void)device, (void)stream;
    return hint(address, bytes);
}
API cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                          CUstream stream)
{
    (void)location, (void)flags, (void)stream;
    return hint(address, bytes);
}
API cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
    (void)advice, (void)device;
    return hint(address, bytes);
}
API cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
    (void)advice, (void)location;
    return hint(address, bytes);
}
