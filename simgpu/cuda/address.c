/* address.c - device addresses: which range they lie in, and what is in it.
 *
 * Addresses come from a part of the address space where no program has memory of its own, and go round it, so that a
 * freed address does not come back soon. Small ranges have contents, kept here in the process; large ones read as
 * zeros.
 */
#include "driver.h"
#include <stdlib.h>
#include <string.h>

#define BOTTOM 0x300000000000ull
#define TOP    0x500000000000ull

static struct range *ranges; /* sorted by base */
static size_t count, room;
static CUdeviceptr next_address = BOTTOM;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The first range that ends behind `address`. */
static size_t place_of(CUdeviceptr address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].base + ranges[middle].size <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Enters a range that overlaps no other. Returns false without memory. */
static bool insert(const struct range *range)
{
    if (count == room) {
        struct range *grown = realloc(ranges, (room ? room * 2 : 256) * sizeof *grown);
        if (!grown) return false;
        ranges = grown;
        room = room ? room * 2 : 256;
    }
    size_t i = place_of(range->base);
    memmove(&ranges[i + 1], &ranges[i], (count - i) * sizeof *ranges);
    ranges[i] = *range;
    count++;
    return true;
}

/* A free stretch of addresses, searched from where the last one ended. 0: there is none. */
static CUdeviceptr free_stretch(uint64_t size, uint64_t alignment)
{
    CUdeviceptr at = next_address;
    for (int round = 0; round < 2; round++, at = BOTTOM) {
        for (;;) {
            at = (at + alignment - 1) / alignment * alignment;
            if (at > TOP || size > TOP - at) break;
            size_t i = place_of(at);
            if (i == count || ranges[i].base >= at + size) return at;
            at = ranges[i].base + ranges[i].size;
        }
    }
    return 0;
}

CUresult range_make(uint64_t size, uint64_t alignment, enum range_kind kind, struct range *made)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct range){ .size = size, .kind = kind };
    if (kind != RANGE_RESERVED && size <= BACKED_MAX && !(made->bytes = calloc(1, size))) return result;
    pthread_mutex_lock(&lock);
    made->base = free_stretch(size, alignment);
    if (made->base && insert(made)) {
        next_address = made->base + size;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS) free(made->bytes);
    return result;
}

/* Enters a range at a given address, or changes the one that begins there. */
CUresult range_enter(const struct range *range)
{
    pthread_mutex_lock(&lock);
    size_t i = place_of(range->base);
    CUresult result = CUDA_SUCCESS;
    if (i < count && ranges[i].base == range->base) ranges[i] = *range;
    else if (!insert(range)) result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&lock);
    return result;
}

bool range_find(CUdeviceptr address, struct range *found)
{
    pthread_mutex_lock(&lock);
    size_t i = place_of(address);
    bool is = i < count && ranges[i].base <= address;
    if (is) *found = ranges[i];
    pthread_mutex_unlock(&lock);
    return is;
}

bool range_remove(CUdeviceptr base, struct range *removed)
{
    pthread_mutex_lock(&lock);
    size_t i = place_of(base);
    bool is = i < count && ranges[i].base == base;
    if (is) {
        *removed = ranges[i];
        memmove(&ranges[i], &ranges[i + 1], (--count - i) * sizeof *ranges);
    }
    pthread_mutex_unlock(&lock);
    return is;
}

bool range_first_of(CUcontext context, struct range *found)
{
    bool is = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && !is; i++)
        if (ranges[i].context == context) {
            *found = ranges[i];
            is = true;
        }
    pthread_mutex_unlock(&lock);
    return is;
}

bool memory_known(CUdeviceptr address, size_t bytes)
{
    struct range range;
    return range_find(address, &range) && bytes <= range.base + range.size - address;
}

/* Where `bytes` bytes at an address are kept; fewer when the range ends before. NULL: nowhere. With the lock held. */
static char *contents(CUdeviceptr address, size_t *bytes)
{
    size_t i = place_of(address);
    if (i == count || ranges[i].base > address || !ranges[i].bytes) return NULL;
    uint64_t left = ranges[i].base + ranges[i].size - address;
    if (*bytes > left) *bytes = left;
    return (char *)ranges[i].bytes + (address - ranges[i].base);
}

void memory_write(CUdeviceptr to, const void *from, size_t bytes)
{
    if (vmm_write(to, from, bytes)) return;
    pthread_mutex_lock(&lock);
    char *kept = contents(to, &bytes);
    if (kept) memmove(kept, from, bytes);
    pthread_mutex_unlock(&lock);
}

void memory_read(void *to, CUdeviceptr from, size_t bytes)
{
    size_t there = bytes;
    if (vmm_read(to, from, bytes)) return;
    pthread_mutex_lock(&lock);
    char *kept = contents(from, &there);
    if (!kept) there = 0;
    if (there) memmove(to, kept, there);
    pthread_mutex_unlock(&lock);
    memset((char *)to + there, 0, bytes - there);
}
