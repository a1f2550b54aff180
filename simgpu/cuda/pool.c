/* pool.c - stream-ordered memory: pools that take the card's memory in chunks and keep it until a synchronise. */
#include "driver.h"
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t chunks(uint64_t bytes)
{
    return (bytes + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
}

void pools_set_up(struct device *device)
{
    device->pool = (struct CUmemPoolHandle_st){ .device = device, .reuse = { 1, 1, 1 }, .is_default = true };
    device->current_pool = device->pools = &device->pool;
    handle_add(&device->pool, H_POOL);
}

/* Gives memory back to the card until the pool holds no more than `keep`, or what is in use. With the lock held. */
static void shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t least = keep > pool->used.current ? keep : pool->used.current;
    if (pool->reserved.current <= least) return; /* before rounding up: the threshold may be the largest number */
    least = chunks(least);
    if (pool->reserved.current <= least) return;
    uint64_t surplus = pool->reserved.current - least;
    tally_add(&pool->reserved, -(int64_t)surplus);
    ledger_release(pool->device, surplus);
}

void pools_trim(struct device *device)
{
    pthread_mutex_lock(&lock);
    for (CUmemoryPool pool = device->pools; pool; pool = pool->next) shrink(pool, pool->threshold);
    pthread_mutex_unlock(&lock);
}

CUresult pool_take(CUmemoryPool pool, uint64_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    uint64_t needed = pool->used.current + bytes;
    if (needed < bytes || (pool->most && needed > pool->most)) result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (needed > pool->reserved.current) {
        uint64_t more = chunks(needed - pool->reserved.current);
        result = capture_permits();     /* seen where it has to grow; whether it asks where it has not is not known */
        if (result == CUDA_SUCCESS) result = ledger_reserve(pool->device, more);
        if (result == CUDA_SUCCESS) tally_add(&pool->reserved, (int64_t)more);
    }
    if (result == CUDA_SUCCESS) tally_add(&pool->used, (int64_t)bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

void pool_give(CUmemoryPool pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    tally_add(&pool->used, -(int64_t)bytes);
    pthread_mutex_unlock(&lock);
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream handle)
{
    CUstream stream;
    struct range range;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return graph_allocate(stream->capture, stream->context->device, bytes, address);
    if (!pool) pool = stream->context->device->current_pool;
    if ((result = pool_take(pool, bytes)) != CUDA_SUCCESS) return result;
    if ((result = range_make(bytes, 512, RANGE_POOL, &range)) != CUDA_SUCCESS) {
        pool_give(pool, bytes);
        return result;
    }
    range.context = stream->context;
    range.pool = pool;
    *address = range.base;
    return range_enter(&range);
}

API cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate(address, bytes, NULL, stream);
}

API cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!handle_is(pool, H_POOL)) return CUDA_ERROR_INVALID_VALUE;
    return allocate(address, bytes, pool, stream);
}

/* The pool may hand the bytes out again at once; programs see a difference only in when the card gets them back. */
API cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    CUstream stream;
    struct range range;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!range_find(address, &range) || range.base != address) return CUDA_ERROR_INVALID_VALUE;
    if (range.kind == RANGE_GRAPH) return CUDA_SUCCESS;
    if (range.kind != RANGE_POOL && range.kind != RANGE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!range_remove(address, &range)) return CUDA_ERROR_INVALID_VALUE;
    if (range.kind == RANGE_POOL) pool_give(range.pool, range.size);
    ledger_release(range.context->device, range.charged);
    free(range.bytes);
    return CUDA_SUCCESS;
}

API cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!pool || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    struct device *device = device_of(props->location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    CUmemoryPool made = calloc(1, sizeof *made);
    if (!made || !handle_add(made, H_POOL)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUmemPoolHandle_st){ .device = device, .most = props->maxSize, .reuse = { 1, 1, 1 } };
    pthread_mutex_lock(&lock);
    made->next = device->pools;
    device->pools = made;
    pthread_mutex_unlock(&lock);
    *pool = made;
    return CUDA_SUCCESS;
}

/* What is still in use stays counted until it is freed; the pool itself is kept for that. */
API cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(pool, H_POOL) || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    handle_drop(pool, H_POOL);
    if (pool->device->current_pool == pool) pool->device->current_pool = &pool->device->pool;
    pthread_mutex_lock(&lock);
    pool->threshold = 0;
    shrink(pool, 0);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!pool || !device) return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *pool = &device->pool;
    return CUDA_SUCCESS;
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    CUresult result = cuDeviceGetDefaultMemPool(pool, ordinal);
    if (result == CUDA_SUCCESS) *pool = (*pool)->device->current_pool;
    return result;
}

API cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!handle_is(pool, H_POOL) || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
    device->current_pool = pool;
    return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(pool, H_POOL)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    shrink(pool, keep);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Where an attribute of 64 bits is kept, or NULL. */
static uint64_t *attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->reserved.current;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->reserved.high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used.current;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->used.high;
    default: return NULL;
    }
}

API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!value || !handle_is(pool, H_POOL)) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t *kept = attribute_of(pool, attribute);
    if (kept) memcpy(value, kept, sizeof *kept);
    else if ((int)attribute >= 1 && (int)attribute <= 3) *(int *)value = (int)pool->reuse[(int)attribute - 1];
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* The threshold can be set to anything, the high-water marks only back to the present. */
API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = driver_check();
    uint64_t number;
    if (result != CUDA_SUCCESS) return result;
    if (!value || !handle_is(pool, H_POOL)) return CUDA_ERROR_INVALID_VALUE;
    if ((int)attribute >= 1 && (int)attribute <= 3) {
        pool->reuse[(int)attribute - 1] = (uint64_t)*(int *)value;
        return CUDA_SUCCESS;
    }
    memcpy(&number, value, sizeof number);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) pool->threshold = number;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && !number) pool->reserved.high = pool->reserved.current;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && !number) pool->used.high = pool->used.current;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return handle_is(pool, H_POOL) && (map || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
