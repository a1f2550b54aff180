/* vmm.c - addresses and memory apart: reserve, create, map. Memory goes back when it has neither handle nor mapping. */
#include "driver.h"
#include <stdlib.h>

struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle handle;
    uint64_t size;
    CUmemAllocationProp prop;
    struct device *device; /* NULL: memory of the host, which costs the card nothing */
    unsigned handles, maps;
};
struct mapping {
    struct mapping *next;
    CUdeviceptr address;
    uint64_t size;
    struct physical *physical;
};
static struct physical *physicals;
static struct mapping *mappings;
static CUmemGenericAllocationHandle last_handle = 0x7000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool aligned(uint64_t number)
{
    return number && number % GRANULARITY == 0;
}

static struct physical *find(CUmemGenericAllocationHandle handle)
{
    for (struct physical *p = physicals; p; p = p->next)
        if (p->handle == handle && p->handles) return p;
    return NULL;
}

/* Gives the memory back when nobody refers to it any more. With the lock held. */
static void settle(struct physical *gone)
{
    if (gone->handles || gone->maps) return;
    for (struct physical **link = &physicals; *link; link = &(*link)->next)
        if (*link == gone) {
            *link = gone->next;
            break;
        }
    if (gone->device) ledger_release(gone->device, gone->size);
    free(gone);
}

API cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    struct range range;
    CUresult result = driver_check();
    (void)hint;
    if (result != CUDA_SUCCESS) return result;
    if (!address || !aligned(size) || flags || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
    result = range_make(size, alignment > GRANULARITY ? alignment : GRANULARITY, RANGE_RESERVED, &range);
    if (result == CUDA_SUCCESS) *address = range.base;
    return result;
}

API cuMemAddressFree(CUdeviceptr address, size_t size)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!range_find(address, &range) || range.base != address || range.kind != RANGE_RESERVED || range.size != size)
        return CUDA_ERROR_INVALID_VALUE;
    range_remove(address, &range);
    return CUDA_SUCCESS;
}

API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                unsigned long long flags)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle || !aligned(size) || !prop || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = NULL;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !(device = device_of(prop->location.id)))
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
    struct physical *made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    if (device && (result = ledger_reserve(device, size)) != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    pthread_mutex_lock(&lock);
    *made = (struct physical){ .next = physicals, .handle = ++last_handle, .size = size, .prop = *prop,
                               .device = device, .handles = 1 };
    physicals = made;
    *handle = made->handle;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    struct physical *physical = find(handle);
    if (physical) {
        physical->handles--;
        settle(physical);
    }
    pthread_mutex_unlock(&lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Whether nothing is mapped between the two addresses. With the lock held. */
static bool unmapped(CUdeviceptr from, CUdeviceptr to)
{
    for (struct mapping *m = mappings; m; m = m->next)
        if (m->address < to && from < m->address + m->size) return false;
    return true;
}

API cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!aligned(size) || offset || flags || address % GRANULARITY || !range_find(address, &range) ||
        range.kind != RANGE_RESERVED || size > range.base + range.size - address)
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    struct physical *physical = find(handle);
    bool fits = physical && size <= physical->size && unmapped(address, address + size);
    if (fits) {
        *made = (struct mapping){ .next = mappings, .address = address, .size = size, .physical = physical };
        mappings = made;
        physical->maps++;
    }
    pthread_mutex_unlock(&lock);
    if (!fits) free(made);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Unmaps every mapping that lies whole within the range; one that lies across its border is an error. */
API cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult result = driver_check();
    bool any = false;
    if (result != CUDA_SUCCESS) return result;
    if (!aligned(size)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *m = *link;
        if (m->address < address || m->address + m->size > address + size) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        m->physical->maps--;
        settle(m->physical);
        free(m);
        any = true;
    }
    pthread_mutex_unlock(&lock);
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!aligned(size) || !access || !count) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    bool there = !unmapped(address, address + size);
    pthread_mutex_unlock(&lock);
    return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                  CUmemAllocationGranularity_flags option)
{
    (void)option;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!granularity || !prop) return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct physical *physical = find(handle);
    if (physical) *prop = physical->prop;
    pthread_mutex_unlock(&lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)pointer;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct mapping *m = mappings; m && result != CUDA_SUCCESS; m = m->next)
        if (m->address <= address && address < m->address + m->size) {
            m->physical->handles++;
            *handle = m->physical->handle;
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return result;
}
