/* contexts.c - the end of a context frees what was allocated in it, without a call for each. */
#include "shim.h"

#define ORDINALS 64
static CUcontext primary[ORDINALS];     /* each device's own context, as cuDevicePrimaryCtxRetain gave it out */
static uint32_t retained[ORDINALS];     /* how often, less the releases */

CUcontext alq_primary(CUdevice device)
{
    return device >= 0 && device < ORDINALS ? __atomic_load_n(&primary[device], __ATOMIC_RELAXED) : NULL;
}

bool alq_is_primary(CUcontext context, CUdevice device)
{
    return context && alq_primary(device) == context;
}

bool alq_context_lives(CUcontext current)
{
    CUdevice device;
    unsigned flags;
    int active = 1;
    if (ALQ_REAL(cuCtxGetDevice)(&device))
        return false;
    return !alq_is_primary(current, device) || ALQ_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) || active;
}

struct ending { CUcontext context; uint64_t before; };

/* Pieces and pools belong to the device, not to a context: they stay. */
static bool ends(const struct alq_entry *e, const void *with)
{
    const struct ending *ending = with;
    return (e->kind == ALQ_MEMORY || e->kind == ALQ_ARRAY || e->kind == ALQ_OPENED || e->kind == ALQ_HEAP || e->kind == ALQ_MOVABLE) &&
           e->owner == (uintptr_t)ending->context && e->serial < ending->before;
}

static void give_back_all(const struct ending *ending)
{
    struct alq_entry entry;
    size_t at = 0;
    if (!ending->context)
        return;
    alq_wait_ended(ending->context);
    while (alq_take_where(ends, ending, &at, &entry))
        entry.kind == ALQ_MOVABLE ? alq_end_movable(&entry) : alq_ended(&entry);
    alq_movable_trim();
}

#define USUAL_HEAP (8ull << 20)     /* of kernels' malloc(): what every context has, and NVML shows */

/* The driver takes the heap when a kernel that uses it is loaded. It cannot be refused then, so it counts from here. */
int alq_cuCtxSetLimit(fn_cuCtxSetLimit *real, int ptsz, int limit, size_t value)
{
    (void)ptsz;
    uint64_t context = (uintptr_t)alq_context(), bytes = value > USUAL_HEAP ? value - USUAL_HEAP : 0;
    int card = limit == LIMIT_MALLOC_HEAP && context ? alq_card_of_context(NULL) : ALQ_NO_CONTEXT;
    struct alq_entry before = { .size = 0 };
    if (card == ALQ_NO_CONTEXT)
        return real(limit, value);
    alq_find(ALQ_HEAP, context, &before);
    uint64_t more = bytes > before.size ? bytes - before.size : 0;
    if (card < 0 || (more && !alq_make_room(card, more, more, NULL, 0, true)))
        return alq_refuse(card);
    int result = real(limit, value);
    if (result != CUDA_SUCCESS)
        alq_charge(card, -(int64_t)more);
    else if (alq_book((struct alq_entry){ .kind = ALQ_HEAP, .key = context, .size = bytes, .owner = context, .card = (int8_t)card }) &&
             bytes < before.size)
        alq_charge(card, -(int64_t)(before.size - bytes));
    return result;
}

int alq_cuCtxDestroy_v2(fn_cuCtxDestroy_v2 *real, int ptsz, CUcontext context)
{
    (void)ptsz;
    struct ending ending = { .context = context, .before = alq_serial() };
    bool locked = alq_lock_contexts();
    int result = real(context);
    alq_unlock_contexts(locked, result == CUDA_SUCCESS ? context : NULL);
    if (result == CUDA_SUCCESS) {
        give_back_all(&ending);
        alq_settle();
    }
    return result;
}

int alq_cuCtxDestroy(fn_cuCtxDestroy *real, int ptsz, CUcontext context)
{
    return alq_cuCtxDestroy_v2(real, ptsz, context);
}

int alq_cuDevicePrimaryCtxRetain(fn_cuDevicePrimaryCtxRetain *real, int ptsz, CUcontext *context, CUdevice device)
{
    (void)ptsz;
    int result = real(context, device);
    if (result == CUDA_SUCCESS && context && device >= 0 && device < ORDINALS) {
        __atomic_store_n(&primary[device], *context, __ATOMIC_RELAXED);
        __atomic_fetch_add(&retained[device], 1, __ATOMIC_RELAXED);
    }
    return result;
}

int alq_cuGreenCtxDestroy(fn_cuGreenCtxDestroy *real, int ptsz, void *green)
{
    (void)ptsz;
    CUcontext context = NULL;
    if (__atomic_load_n(&alq_parks, __ATOMIC_RELAXED) && ALQ_REAL(cuCtxFromGreenCtx)(&context, green))
        context = NULL;
    bool locked = context && alq_lock_contexts();
    int result = real(green);
    alq_unlock_contexts(locked, result == CUDA_SUCCESS ? context : NULL);
    return result;
}

/* Released by its last holder, or reset: it is gone when it is no longer active. */
static int leave(fn_cuDevicePrimaryCtxRelease *real, CUdevice device, bool reset)
{
    struct ending ending = { .context = alq_primary(device), .before = alq_serial() };
    int card = alq_card_of_device(device);
    uint32_t n = device >= 0 && device < ORDINALS ? __atomic_load_n(&retained[device], __ATOMIC_RELAXED) : 0;
    alq_pools_leave(card, true);
    bool locked = (reset || n <= 1) && alq_lock_contexts();
    int result = real(device);
    unsigned flags = 0;
    int active = 1;
    bool ended = result == CUDA_SUCCESS && ALQ_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && !active;
    alq_unlock_contexts(locked, ended ? ending.context : NULL);
    while (result == CUDA_SUCCESS && !reset && n &&
           !__atomic_compare_exchange_n(&retained[device], &n, n - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    if (ended) {
        give_back_all(&ending);
        alq_pools_drop(card);
    }
    alq_pools_leave(card, false);
    return result;
}

int alq_cuDevicePrimaryCtxRelease(fn_cuDevicePrimaryCtxRelease *real, int ptsz, CUdevice device)
{
    (void)ptsz;
    return leave(real, device, false);
}

int alq_cuDevicePrimaryCtxRelease_v2(fn_cuDevicePrimaryCtxRelease_v2 *real, int ptsz, CUdevice device)
{
    (void)ptsz;
    return leave(real, device, false);
}

int alq_cuDevicePrimaryCtxReset(fn_cuDevicePrimaryCtxReset *real, int ptsz, CUdevice device)
{
    (void)ptsz;
    return leave(real, device, true);
}

int alq_cuDevicePrimaryCtxReset_v2(fn_cuDevicePrimaryCtxReset_v2 *real, int ptsz, CUdevice device)
{
    (void)ptsz;
    return leave(real, device, true);
}
