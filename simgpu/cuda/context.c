/* context.c - contexts: made, made current, destroyed. */
#include "driver.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STACK 64
static __thread CUcontext stack[STACK];
static __thread int depth;

/* The thread's current context. One that died under it (its card fell off the bus, say) is good for nothing. */
CUresult context_current(CUcontext *context)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    *context = depth ? stack[depth - 1] : NULL;
    if (!*context) return CUDA_ERROR_INVALID_CONTEXT;
    if ((*context)->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return __atomic_load_n(&(*context)->lane->dead, __ATOMIC_ACQUIRE) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult context_check(CUcontext context)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return handle_is(context, H_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* The pages of a lane stay mapped after a failure only until here. */
static void unmap(CUcontext context)
{
    if (context->lane) munmap(context->lane, sizeof *context->lane);
    context->lane = NULL;
}

static CUresult make(struct device *device, unsigned flags, CUcontext *made)
{
    static uint64_t ids;
    CUcontext context = calloc(1, sizeof *context);
    if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
    context->device = device;
    context->flags = flags;
    context->id = __atomic_add_fetch(&ids, 1, __ATOMIC_SEQ_CST);
    context->effects_end = &context->effects;
    pthread_mutex_init(&context->lock, NULL);
    while (context->results_free < LANE_RESULTS) {
        context->result_free[context->results_free] = LANE_RESULTS - context->results_free;
        context->results_free++;
    }
    pthread_mutex_lock(&driver.lock);
    CUresult result = rm_make_device(device);
    pthread_mutex_unlock(&driver.lock);
    if (result == CUDA_SUCCESS) result = rm_make_groups(context);
    if (result == CUDA_SUCCESS && !(context->legacy = stream_make(context, 0, 0))) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS || !handle_add(context, H_CONTEXT)) {
        rm_free_groups(context);
        unmap(context);
        free(context);
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = context;
    return CUDA_SUCCESS;
}

/* Ends a context and frees what it allocated. The struct stays: events and other threads may still point to it. */
static void destroy(CUcontext context)
{
    struct range range;
    handle_drop(context, H_CONTEXT);
    context->dead = true;
    rm_free_groups(context);
    hosts_stop(context);
    pthread_mutex_lock(&context->lock);
    lane_forget(context);
    pthread_mutex_unlock(&context->lock);
    streams_free(context);
    while (range_first_of(context, &range)) {
        range_remove(range.base, &range);
        if (range.kind == RANGE_POOL) pool_give(range.pool, range.size);
        ledger_release(context->device, range.charged);
        if (range.kind == RANGE_MANAGED || range.kind == RANGE_HOST) munmap(range.bytes, range.size);
        else free(range.bytes);
    }
    pools_trim(context->device);
    unmap(context);
    if (depth && stack[depth - 1] == context) depth--;
}

static CUresult create(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!context || !device) return context ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    if (depth == STACK) return CUDA_ERROR_OUT_OF_MEMORY;
    result = make(device, flags, context);
    if (result == CUDA_SUCCESS) stack[depth++] = *context;
    return result;
}

API cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create(context, flags, device);
}

API cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device)
{
    if (affinity && count) return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device);
}

API cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    if (params) return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device);
}

API cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = context_check(context);
    if (result != CUDA_SUCCESS) return result;
    if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    destroy(context);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!context || !device) return context ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&once);
    if (!device->primary) result = make(device, device->primary_flags, &device->primary);
    if (result == CUDA_SUCCESS) {
        device->primary->primary = true;
        device->primary_users++;
        *context = device->primary;
    }
    pthread_mutex_unlock(&once);
    return result;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!device->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_users == 0) {
        destroy(device->primary);
        device->primary = NULL;
    }
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary) destroy(device->primary);
    device->primary = NULL;
    device->primary_users = 0;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (flags) *flags = device->primary_flags;
    if (active) *active = device->primary != NULL;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    device->primary_flags = flags;
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context)
{
    CUresult result = context ? context_check(context) : driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!context) depth -= depth > 0;
    else if (depth) stack[depth - 1] = context;
    else stack[depth++] = context;
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = context_check(context);
    if (result != CUDA_SUCCESS) return result;
    if (depth == STACK) return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return CUDA_SUCCESS;
}

/* The one that is given, or the current one. */
static CUresult given(CUcontext *context)
{
    return *context ? context_check(*context) : context_current(context);
}

API cuCtxSynchronize_v2(CUcontext context)
{
    CUresult result = given(&context);
    if (result != CUDA_SUCCESS || (result = capture_permits_wait(context)) != CUDA_SUCCESS) return result;
    result = lane_wait_all(context);
    pools_trim(context->device);
    return result;
}

API cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(NULL);
}

API cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    CUresult result = given(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal_of(context->device);
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device)
{
    return cuCtxGetDevice_v2(device, NULL);
}

API cuCtxGetFlags(unsigned int *flags)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = given(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    CUresult result = given(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

API cuCtxGetLimit(size_t *value, CUlimit limit)
{
    static const size_t LIMITS[] = { 1024, 1 << 20, 8 << 20, 2, 2048, 64, 0 };
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if ((size_t)limit >= sizeof LIMITS / sizeof *LIMITS) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = LIMITS[limit];
    return CUDA_SUCCESS;
}

API cuCtxSetLimit(CUlimit limit, size_t value)
{
    (void)value;
    size_t unused;
    return cuCtxGetLimit(&unused, limit);
}
