/* memory.c - memory that a program asks for outright: of the card, managed, and of the host. */
#define _GNU_SOURCE
#include "driver.h"
#include <stdlib.h>
#include <sys/mman.h>

#define GRAIN 512ull /* the card hands out no less */

/* Memory of the current context's card. */
static CUresult allocate(CUdeviceptr *address, size_t bytes)
{
    CUcontext context;
    struct range range;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || (result = capture_permits()) != CUDA_SUCCESS) return result;
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    uint64_t charged = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    if (charged < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    if ((result = ledger_reserve(context->device, charged)) != CUDA_SUCCESS) return result;
    result = range_make(bytes, GRAIN, RANGE_DEVICE, &range);
    if (result != CUDA_SUCCESS) {
        ledger_release(context->device, charged);
        return result;
    }
    range.charged = charged;
    range.context = context;
    *address = range.base;
    return range_enter(&range);
}

API cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    return allocate(address, bytes);
}

API cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + GRAIN - 1) / GRAIN * GRAIN;
    if (row < width || row > SIZE_MAX / height) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate(address, row * height);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

/* Memory of this process, entered as a range. `device`: its bytes are taken from the card as far as it has them. */
static CUresult allocate_here(void **pointer, size_t bytes, enum range_kind kind)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!pointer || !bytes) return CUDA_ERROR_INVALID_VALUE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    struct range range = { .base = (CUdeviceptr)(uintptr_t)memory, .size = bytes, .kind = kind, .context = context,
                           .bytes = memory };
    if (kind == RANGE_MANAGED && ledger_reserve(context->device, bytes) == CUDA_SUCCESS) range.charged = bytes;
    result = range_enter(&range);
    if (result == CUDA_SUCCESS) *pointer = memory;
    else munmap(memory, bytes);
    return result;
}

API cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
    void *memory = NULL;
    if (!address || (flags != 1 && flags != 2)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate_here(&memory, bytes, RANGE_MANAGED);
    if (result == CUDA_SUCCESS) *address = (CUdeviceptr)(uintptr_t)memory;
    return result;
}

API cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    (void)flags;
    return allocate_here(pointer, bytes, RANGE_HOST);
}

API cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return allocate_here(pointer, bytes, RANGE_HOST);
}

API cuMemFreeHost(void *pointer)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)pointer;
    if (!range_find(address, &range) || range.base != address || range.kind != RANGE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (!range.context->dead) lane_wait_all(range.context);
    range_remove(address, &range);
    munmap(range.bytes, range.size);
    return CUDA_SUCCESS;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned int flags)
{
    struct range range;
    if (flags || !address || !range_find((CUdeviceptr)(uintptr_t)pointer, &range)) return CUDA_ERROR_INVALID_VALUE;
    *address = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

API cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    (void)flags;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return pointer && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemHostUnregister(void *pointer)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return pointer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As on a real card it waits for the work under way first: a paused program stands still in it. */
API cuMemFree_v2(CUdeviceptr address)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS || !address) return result;
    if (!range_find(address, &range) || range.base != address) return CUDA_ERROR_INVALID_VALUE;
    if (range.kind != RANGE_DEVICE && range.kind != RANGE_MANAGED && range.kind != RANGE_POOL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = capture_permits()) != CUDA_SUCCESS) return result;
    result = lane_wait_all(range.context);
    if (!range_remove(address, &range)) return CUDA_ERROR_INVALID_VALUE;
    ledger_release(range.context->device, range.charged);
    if (range.kind == RANGE_POOL) pool_give(range.pool, range.size);
    if (range.kind == RANGE_MANAGED) munmap(range.bytes, range.size);
    else free(range.bytes);
    return result;
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUcontext context;
    struct sim_memory memory;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) result = ledger_read(context->device, &memory);
    if (result != CUDA_SUCCESS) return result;
    if (free_bytes) *free_bytes = memory.total - memory.used;
    if (total) *total = memory.total;
    return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!range_find(address, &range)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = range.base;
    if (size) *size = range.size;
    return CUDA_SUCCESS;
}

/* The few attributes of a pointer that programs ask for: context, type, both pointers, managed, device. */
API cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!data || !range_find(address, &range)) return CUDA_ERROR_INVALID_VALUE;
    if (!range.context && (attribute == 1 || attribute == 9)) return CUDA_ERROR_INVALID_VALUE;   /* of cuMemMap */
    switch ((int)attribute) {
    case 1: *(CUcontext *)data = range.context; return CUDA_SUCCESS;
    case 2: *(unsigned *)data = range.kind == RANGE_HOST ? 1 : 2; return CUDA_SUCCESS;
    case 3: *(CUdeviceptr *)data = address; return CUDA_SUCCESS;
    case 4: *(void **)data = range.kind == RANGE_HOST ? (void *)(uintptr_t)address : NULL; return CUDA_SUCCESS;
    case 8: *(unsigned *)data = range.kind == RANGE_MANAGED; return CUDA_SUCCESS;
    case 9: *(int *)data = ordinal_of(range.context->device); return CUDA_SUCCESS;
    case 11: *(CUdeviceptr *)data = range.base; return CUDA_SUCCESS;
    case 12: *(size_t *)data = range.size; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}
