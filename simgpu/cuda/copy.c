/* copy.c - copies and fills. They take their time in the order of their stream: between host and card on an
 * engine beside kernels, within the card like a kernel. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COPY_BASE_NS 2000ull
#define LINK_BYTES_PER_NS 25ull    /* between host and card */
#define CARD_BYTES_PER_NS 1000ull  /* within the card */

uint64_t copy_ns(uint64_t bytes, bool over_link)
{
    return COPY_BASE_NS + bytes / (over_link ? LINK_BYTES_PER_NS : CARD_BYTES_PER_NS);
}

/* Anything that is no range, and host ranges. */
bool is_host(CUdeviceptr address)
{
    struct range range;
    return !range_find(address, &range) || range.kind == RANGE_HOST;
}

static CUresult copy(CUdeviceptr to, bool to_host, CUdeviceptr from, bool from_host, size_t bytes, CUstream handle,
                     bool wait)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!bytes) return CUDA_SUCCESS;
    if (!to || !from || (!to_host && !memory_known(to, bytes)) || (!from_host && !memory_known(from, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = { .kind = OP_COPY, .copy = { to, from, bytes, 1, 0, 0, to_host, from_host } };
    op.duration_ns = copy_ns(bytes, to_host || from_host);
    result = stream_issue(stream, &op);
    return result == CUDA_SUCCESS && wait ? stream_sync(stream) : result;
}

static CUdeviceptr host(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy(to, false, host(from), true, bytes, CU_STREAM_LEGACY, true);
}
API cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy(to, false, host(from), true, bytes, CU_STREAM_PER_THREAD, true);
}
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return copy(host(to), true, from, false, bytes, CU_STREAM_LEGACY, true);
}
API cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes)
{
    return copy(host(to), true, from, false, bytes, CU_STREAM_PER_THREAD, true);
}
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, false, from, false, bytes, CU_STREAM_LEGACY, false); /* not waited for, as documented */
}
API cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, false, from, false, bytes, CU_STREAM_PER_THREAD, false);
}
API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, is_host(to), from, is_host(from), bytes, CU_STREAM_LEGACY, true);
}
API cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, is_host(to), from, is_host(from), bytes, CU_STREAM_PER_THREAD, true);
}
/* A fault to test with: while there is a file SOCKET.copies-fail, large copies over the bus do. */
static bool fails(size_t bytes)
{
    char path[256];
    const char *player = getenv("ALIQUOT_SIMGPU");
    if (bytes < 1u << 20 || !player) return false;
    snprintf(path, sizeof path, "%s.copies-fail", player);
    return access(path, F_OK) == 0;
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    if (fails(bytes)) return CUDA_ERROR_UNKNOWN;
    return copy(to, false, host(from), true, bytes, stream, false);
}
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (fails(bytes)) return CUDA_ERROR_UNKNOWN;
    return copy(host(to), true, from, false, bytes, stream, false);
}
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, false, from, false, bytes, stream, false);
}
API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, is_host(to), from, is_host(from), bytes, stream, false);
}

static CUresult fill(CUdeviceptr to, uint32_t value, uint32_t width, size_t count, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!count) return CUDA_SUCCESS;
    if (count > SIZE_MAX / width || to % width || !memory_known(to, count * width)) return CUDA_ERROR_INVALID_VALUE;
    struct op op = { .kind = OP_FILL, .fill = { to, count, 1, 0, value, width } };
    op.duration_ns = copy_ns(count * width, false);
    return stream_issue(stream, &op);
}

API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    return fill(to, value, 1, count, CU_STREAM_LEGACY);
}
API cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count)
{
    return fill(to, value, 1, count, CU_STREAM_PER_THREAD);
}
API cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count)
{
    return fill(to, value, 2, count, CU_STREAM_LEGACY);
}
API cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count)
{
    return fill(to, value, 2, count, CU_STREAM_PER_THREAD);
}
API cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count)
{
    return fill(to, value, 4, count, CU_STREAM_LEGACY);
}
API cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned int value, size_t count)
{
    return fill(to, value, 4, count, CU_STREAM_PER_THREAD);
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return fill(to, value, 1, count, stream);
}
API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
    return fill(to, value, 2, count, stream);
}
API cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
    return fill(to, value, 4, count, stream);
}

API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr to, cuuint32_t value, unsigned int flags)
{
    return flags ? CUDA_ERROR_NOT_SUPPORTED : cuMemsetD32Async(to, value, 1, stream);
}
