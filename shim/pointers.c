/* pointers.c - what is known of a pointer or a handle, also while the memory behind it is parked.
 *
 * Memory of cuMemAlloc that may leave is pieces of physical memory, perhaps shared with other allocations. Programs are
 * answered as for plain memory: the allocation, its context, one number for life. Those answers are here, so asking wakes
 * nobody. What is not known here is asked of the driver, which must have the memory mapped then.
 */
#include <string.h>
#include "movable.h"

enum { CONTEXT = 1, MEMORY_TYPE, DEVICE_POINTER, BUFFER_ID = 7, IS_MANAGED, DEVICE_ORDINAL, IPC_CAPABLE, RANGE_START, RANGE_SIZE,
       MAPPED, HANDLE_TYPES, ACCESS_FLAGS = 16, POOL_HANDLE };     /* CUpointer_attribute */
#define OUR_BUFFER (1ull << 63)     /* the driver counts its own from 1 */

struct search { CUdeviceptr p; struct alq_entry found; };

static void look_within(struct alq_entry *entry, void *with)
{
    struct search *s = with;
    if (entry->kind == ALQ_MOVABLE && s->p >= entry->key && s->p - entry->key < entry->size)
        s->found = *entry;
}

/* The allocation of cuMemAlloc, one that may leave, that this address is in. */
static bool allocation_of(CUdeviceptr p, struct alq_entry *out)
{
    struct search s = { .p = p };
    if (!__atomic_load_n(&alq_parks, __ATOMIC_RELAXED))
        return false;
    if (alq_find(ALQ_MOVABLE, p, out))
        return true;
    alq_each(look_within, &s);
    *out = s.found;
    return s.found.kind != 0;
}

static unsigned bool_bytes;     /* how many bytes the driver writes for yes or no, which nothing documents; 0: not known yet */

static void learn(CUdeviceptr p)
{
    uint8_t seen[8];
    unsigned n = 0;
    if (__atomic_load_n(&bool_bytes, __ATOMIC_RELAXED))
        return;
    memset(seen, 0xff, sizeof seen);
    if (ALQ_REAL(cuPointerGetAttribute)(seen, IS_MANAGED, p))
        return;
    while (n < sizeof seen && !seen[n])
        n++;
    __atomic_store_n(&bool_bytes, n, __ATOMIC_RELAXED);
}

static bool yes_or_no(void *data, bool yes)
{
    unsigned n = __atomic_load_n(&bool_bytes, __ATOMIC_RELAXED);
    memset(data, 0, n);
    if (n)
        *(bool *)data = yes;
    return n;
}

/* False: the driver knows. */
static bool answer(void *data, int attribute, CUdeviceptr p, const struct alq_entry *entry)
{
    switch (attribute) {
    case CONTEXT:        *(uint64_t *)data = entry->owner; return true;
    case MEMORY_TYPE:    *(unsigned *)data = 2; return true;            /* on a card */
    case DEVICE_POINTER: *(CUdeviceptr *)data = p; return true;
    case BUFFER_ID:      *(uint64_t *)data = OUR_BUFFER | entry->serial; return true;
    case IS_MANAGED:     return yes_or_no(data, false);
    case DEVICE_ORDINAL: *(int *)data = (int)entry->refs; return true;
    case IPC_CAPABLE:    return yes_or_no(data, false);
    case RANGE_START:    *(CUdeviceptr *)data = entry->key; return true;
    case RANGE_SIZE:     *(size_t *)data = entry->size; return true;
    case MAPPED:         return yes_or_no(data, true);
    case HANDLE_TYPES:   *(uint64_t *)data = 0; return true;
    case ACCESS_FLAGS:   *(int *)data = 3; return true;                 /* read and write */
    case POOL_HANDLE:    *(void **)data = alq_ordered_pool(entry->from); return true;
    default:             return false;
    }
}

int alq_cuPointerGetAttribute(fn_cuPointerGetAttribute *real, int ptsz, void *data, int attribute, CUdeviceptr p)
{
    (void)ptsz;
    struct alq_entry entry;
    if (data && allocation_of(p, &entry))
        return answer(data, attribute, p, &entry) ? CUDA_SUCCESS : ALQ_INSIDE((learn(p), real(data, attribute, p)));
    return alq_may_leave(p) ? ALQ_INSIDE(real(data, attribute, p)) : real(data, attribute, p);
}

/* The host's pointer and such are nothing for memory of a card: the driver answers 0, and so does this. */
int alq_cuPointerGetAttributes(fn_cuPointerGetAttributes *real, int ptsz, unsigned count, int *attributes, void **data,
                               CUdeviceptr p)
{
    (void)ptsz;
    enum { HOST_POINTER = 4 };
    struct alq_entry entry;
    if (!attributes || !data || !allocation_of(p, &entry))
        return alq_may_leave(p) ? ALQ_INSIDE(real(count, attributes, data, p)) : real(count, attributes, data, p);
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        if (data[i] && attributes[i] == HOST_POINTER)
            *(void **)data[i] = NULL;
        else
            all = data[i] && answer(data[i], attributes[i], p, &entry) && all;
    }
    int result = all ? CUDA_SUCCESS : ALQ_INSIDE((learn(p), real(count, attributes, data, p)));
    for (unsigned i = 0; !all && !result && i < count; i++)
        if (data[i])
            answer(data[i], attributes[i], p, &entry);
    return result;
}

int alq_cuMemGetAddressRange_v2(fn_cuMemGetAddressRange_v2 *real, int ptsz, CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    (void)ptsz;
    struct alq_entry entry;
    if (!allocation_of(p, &entry))
        return alq_may_leave(p) ? ALQ_INSIDE(real(base, size, p)) : real(base, size, p);
    if (base)
        *base = entry.key;
    if (size)
        *size = entry.size;
    return CUDA_SUCCESS;
}

/* ---- handles: the program has a number, not the driver's handle ---- */

int alq_cuMemGetAllocationPropertiesFromHandle(fn_cuMemGetAllocationPropertiesFromHandle *real, int ptsz,
                                               CUmemAllocationProp *prop, CUmemHandle h)
{
    (void)ptsz;
    return prop && alq_handle_properties(prop, h) ? CUDA_SUCCESS : real(prop, h);
}

/* What is bound to a group of cards, or to other machines, is held there: it stays on the card from now on. Bound first and
 * unbound later is the same: the piece stays. */
int alq_cuMulticastBindMem(fn_cuMulticastBindMem *real, int ptsz, CUmemHandle group, size_t to, CUmemHandle h, size_t at,
                           size_t n, unsigned long long flags)
{
    (void)ptsz;
    return ALQ_INSIDE(real(group, to, alq_handle_real(h, true), at, n, flags));
}

int alq_cuMulticastBindMem_v2(fn_cuMulticastBindMem_v2 *real, int ptsz, CUmemHandle group, CUdevice device, size_t to,
                              CUmemHandle h, size_t at, size_t n, unsigned long long flags)
{
    (void)ptsz;
    return ALQ_INSIDE(real(group, device, to, alq_handle_real(h, true), at, n, flags));
}

int alq_cuMulticastBindAddr(fn_cuMulticastBindAddr *real, int ptsz, CUmemHandle group, size_t to, CUdeviceptr p, size_t n,
                            unsigned long long flags)
{
    (void)ptsz;
    return ALQ_INSIDE((alq_range_stays(p, n), real(group, to, p, n, flags)));
}

int alq_cuMulticastBindAddr_v2(fn_cuMulticastBindAddr_v2 *real, int ptsz, CUmemHandle group, CUdevice device, size_t to,
                               CUdeviceptr p, size_t n, unsigned long long flags)
{
    (void)ptsz;
    return ALQ_INSIDE((alq_range_stays(p, n), real(group, device, to, p, n, flags)));
}

int alq_cuLogicalEndpointBindMem(fn_cuLogicalEndpointBindMem *real, int ptsz, uint32_t endpoint, CUdevice device, uint64_t to,
                                 CUmemHandle h, uint64_t at, uint64_t n, unsigned long long flags)
{
    (void)ptsz;
    return ALQ_INSIDE(real(endpoint, device, to, alq_handle_real(h, true), at, n, flags));
}

int alq_cuLogicalEndpointBindAddr(fn_cuLogicalEndpointBindAddr *real, int ptsz, uint32_t endpoint, CUdevice device, uint64_t to,
                                  void *p, uint64_t n, unsigned long long flags)
{
    (void)ptsz;
    return ALQ_INSIDE((alq_range_stays((uintptr_t)p, n), real(endpoint, device, to, p, n, flags)));
}
