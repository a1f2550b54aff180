/* vmm.c - addresses and memory apart: reserve, create, map. Memory goes back when it has neither handle nor mapping.
 *
 * Memory that may be exported is a file, so that it has contents, whatever its size, and another process can map it. The
 * file has holes where nothing was written: a card of 80 GiB needs no 80 GiB here.
 */
#define _GNU_SOURCE
#include "driver.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT_FILE 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define PAGE 4096ull
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#endif

struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle handle;
    uint64_t size;
    CUmemAllocationProp prop;
    struct device *device; /* NULL: memory of the host or of another process, which costs the card nothing here */
    int file;              /* -1: it has no contents */
    unsigned handles, maps;
};
struct mapping {
    struct mapping *next;
    CUdeviceptr address;
    uint64_t size;
    struct physical *physical;
    char *bytes;           /* contents; NULL: none */
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
    if (gone->file >= 0) close(gone->file);
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

static CUresult enter(CUmemGenericAllocationHandle *handle, uint64_t size, const CUmemAllocationProp *prop,
                      struct device *device, int file)
{
    struct physical *made = calloc(1, sizeof *made);
    if (!made) {
        if (device) ledger_release(device, size);
        if (file >= 0) close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    *made = (struct physical){ .next = physicals, .handle = ++last_handle, .size = size, .prop = *prop,
                               .device = device, .file = file, .handles = 1 };
    physicals = made;
    *handle = made->handle;
    pthread_mutex_unlock(&lock);
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
    int file = -1;
    if (device && (prop->requestedHandleTypes & EXPORT_FILE)) {
        file = (int)syscall(SYS_memfd_create, "simgpu", 1u /* MFD_CLOEXEC */);
        if (file < 0 || ftruncate(file, (off_t)size)) {
            if (file >= 0) close(file);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (device && (result = ledger_reserve(device, size)) != CUDA_SUCCESS) {
        if (file >= 0) close(file);
        return result;
    }
    return enter(handle, size, prop, device, file);
}

/* A file that holds the memory, also after its handle is released. */
API cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                 unsigned long long flags)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!shareable || (int)type != EXPORT_FILE || flags) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct physical *physical = find(handle);
    int file = physical && physical->file >= 0 ? fcntl(physical->file, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    if (file < 0) return CUDA_ERROR_INVALID_VALUE;
    *(int *)shareable = file;
    return CUDA_SUCCESS;
}

/* What is imported costs the card nothing: whoever made it pays, and is expected to outlive the import. */
API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from, CUmemAllocationHandleType type)
{
    struct stat found;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle || (int)type != EXPORT_FILE) return CUDA_ERROR_INVALID_VALUE;
    int file = fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_INVALID_VALUE;
    if (fstat(file, &found) || fcntl(file, F_GET_SEALS) < 0 || !aligned((uint64_t)found.st_size)) { /* none of ours */
        close(file);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED };
    return enter(handle, (uint64_t)found.st_size, &prop, NULL, file);
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
        if (physical->file >= 0) {
            void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, physical->file, 0);
            if (bytes != MAP_FAILED) made->bytes = bytes;
        }
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
        if (m->bytes) munmap(m->bytes, m->size);
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

/* ---- contents ---- */

/* Pages that nobody has written yet read as zeros and are not copied: reading them would fill them. */
static void copy_sparse(char *to, const char *from, size_t bytes)
{
    unsigned char there[256], before[256];
    for (size_t done = 0, part; done < bytes; done += part) {
        uintptr_t page = (uintptr_t)(from + done) / PAGE * PAGE, end = (uintptr_t)(from + bytes);
        size_t pages = (end - page + PAGE - 1) / PAGE;
        if (pages > sizeof there) pages = sizeof there;
        part = page + pages * PAGE < end ? page + pages * PAGE - (uintptr_t)(from + done) : bytes - done;
        if (mincore((void *)page, pages * PAGE, there)) memset(there, 1, sizeof there);
        uintptr_t target = (uintptr_t)(to + done) / PAGE * PAGE;
        if (mincore((void *)target, ((uintptr_t)(to + done) + part - target + PAGE - 1) / PAGE * PAGE, before))
            memset(before, 1, sizeof before);
        for (size_t at = 0, run; at < part; at += run) {
            uintptr_t here = (uintptr_t)(from + done) + at, hence = (uintptr_t)(to + done) + at;
            size_t left = PAGE - here % PAGE;
            if (left > PAGE - hence % PAGE) left = PAGE - hence % PAGE;
            run = left < part - at ? left : part - at;
            if (there[(here - page) / PAGE] & 1) memmove((void *)hence, (const void *)here, run);
            else if ((hence - target) / PAGE >= sizeof before || before[(hence - target) / PAGE] & 1)
                memset((void *)hence, 0, run);
        }
    }
}

/* Contents of mapped memory, as far as one mapping goes. With the lock held; NULL: it has none. */
static char *contents(CUdeviceptr address, size_t *bytes)
{
    for (struct mapping *m = mappings; m; m = m->next)
        if (m->address <= address && address < m->address + m->size) {
            if (*bytes > m->address + m->size - address) *bytes = m->address + m->size - address;
            return m->bytes ? m->bytes + (address - m->address) : NULL;
        }
    return NULL;
}

bool vmm_write(CUdeviceptr to, const void *from, size_t bytes)
{
    bool all = true;
    pthread_mutex_lock(&lock);
    for (size_t done = 0, part; done < bytes && all; done += part) {
        part = bytes - done;
        char *kept = contents(to + done, &part);
        if (kept) copy_sparse(kept, (const char *)from + done, part);
        else all = false;
    }
    pthread_mutex_unlock(&lock);
    return all;
}

/* Zeros take no memory: whole pages become holes again. */
void vmm_clear(CUdeviceptr to, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done;
        char *kept = contents(to + done, &part);
        if (!kept) break;
        char *first = (char *)(((uintptr_t)kept + PAGE - 1) / PAGE * PAGE), *end = kept + part;
        char *last = (char *)((uintptr_t)end / PAGE * PAGE);
        if (first >= last || madvise(first, (size_t)(last - first), MADV_REMOVE)) memset(kept, 0, part);
        else {
            memset(kept, 0, (size_t)(first - kept));
            memset(last, 0, (size_t)(end - last));
        }
    }
    pthread_mutex_unlock(&lock);
}

bool vmm_read(void *to, CUdeviceptr from, size_t bytes)
{
    bool all = true;
    pthread_mutex_lock(&lock);
    for (size_t done = 0, part; done < bytes && all; done += part) {
        part = bytes - done;
        char *kept = contents(from + done, &part);
        if (kept) copy_sparse((char *)to + done, kept, part);
        else all = false;
    }
    pthread_mutex_unlock(&lock);
    return all;
}
