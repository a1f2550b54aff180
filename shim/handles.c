/* handles.c - a parkable tenant's own pieces of physical memory (cuMemCreate), so that they can leave the card too.
 *
 * The driver's handle of a piece ends when the piece leaves. So the program gets a number of ours, and here is which
 * handle of the driver it stands for, where the piece is mapped and who may access it there; all of it is made again when
 * the piece returns. A piece that was exported, that another card may access, or that is bound to something, stays on the
 * card. What a network card was given without a dma-buf is not noticed.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "movable.h"

#define MARK      0x414c510000000000ull     /* no handle of the driver begins like this: those are small, or pointers */
#define MARK_BITS 0xffffff0000000000ull

struct mapping {
    CUdeviceptr at;         /* 0: none */
    uint64_t    size, offset;
    uint32_t    piece, next;
    int         access;     /* flags for the piece's own device; 0: none was set */
};
static struct alq_list mappings = { .size = sizeof(struct mapping) };
static uint32_t free_mapping = ALQ_NONE;

static struct mapping *mapping_at(uint32_t i) { return alq_list_at(&mappings, i); }

static struct alq_movable_piece *piece_of(CUmemHandle h)
{
    uint64_t i = h & ~MARK_BITS;
    if ((h & MARK_BITS) != MARK || i >= alq_pieces())
        return NULL;
    struct alq_movable_piece *piece = alq_piece((uint32_t)i);
    return piece->size && piece->handles ? piece : NULL;
}

CUmemHandle alq_handle_real(CUmemHandle h, bool known_to_others)
{
    pthread_mutex_lock(&alq_movable_lock);
    struct alq_movable_piece *piece = piece_of(h);
    if (piece && known_to_others)
        alq_piece_stays(piece);
    h = piece ? piece->handle : h;
    pthread_mutex_unlock(&alq_movable_lock);
    return h;
}

/* All of it: programs pass the whole structure, of which we know the beginning. */
bool alq_handle_properties(CUmemAllocationProp *prop, CUmemHandle h)
{
    pthread_mutex_lock(&alq_movable_lock);
    struct alq_movable_piece *piece = piece_of(h);
    if (piece) {
        memcpy(prop, piece->prop, sizeof piece->prop);
        if (piece->file_added)
            prop->handle_types &= ~HANDLE_FD;
    }
    pthread_mutex_unlock(&alq_movable_lock);
    return piece != NULL;
}

int alq_handle_create(fn_cuMemCreate *real, CUmemHandle *h, size_t n, const CUmemAllocationProp *prop,
                      unsigned long long flags, int card)
{
    if (!h || !alq_page()->card[card].parkable || flags)
        return real(h, n, prop, flags);
    pthread_mutex_lock(&alq_movable_lock);
    uint32_t i = alq_beside_reserve(card, n) ? alq_piece_new(0, n, card, prop->location.id) : ALQ_NONE;
    int result = i == ALQ_NONE ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (!result) {
        struct alq_movable_piece *piece = alq_piece(i);
        memcpy(piece->prop, prop, sizeof piece->prop);
        piece->file_added = !(prop->handle_types & HANDLE_FD);
        ((CUmemAllocationProp *)piece->prop)->handle_types |= HANDLE_FD;    /* for the mover */
        result = real(&piece->handle, n, (void *)piece->prop, flags);
        piece->handles = 1;
        piece->mappings = ALQ_NONE;
        piece->resident = true;
        *h = MARK | i;
        if (result) {
            piece->resident = false;
            alq_piece_drop(i);
        }
    }
    pthread_mutex_unlock(&alq_movable_lock);
    if (!result)
        alq_parking_begin(card);
    return result;
}

/* The piece lives as long as it has a handle or a mapping, as the driver does it. */
static void end_if_unused(uint32_t i)
{
    if (!alq_piece(i)->handles && alq_piece(i)->mappings == ALQ_NONE) {
        alq_piece(i)->resident = false;     /* the driver has freed it */
        alq_piece_drop(i);
    }
}

int alq_handle_release(fn_cuMemRelease *real, CUmemHandle h)
{
    pthread_mutex_lock(&alq_movable_lock);
    struct alq_movable_piece *piece = piece_of(h);
    int result = CUDA_SUCCESS;
    if (!piece) {
        pthread_mutex_unlock(&alq_movable_lock);
        return real(h);
    }
    if (--piece->handles == 0) {
        result = real(piece->handle);   /* the driver keeps what is mapped */
        end_if_unused((uint32_t)(h & ~MARK_BITS));
    }
    pthread_mutex_unlock(&alq_movable_lock);
    return result;
}

/* Whether it is mapped somewhere in that range. The lock is held. */
bool alq_handle_within(const struct alq_movable_piece *piece, CUdeviceptr p, uint64_t n)
{
    for (uint32_t i = piece->mappings; i != ALQ_NONE; i = mapping_at(i)->next)
        if (mapping_at(i)->at < p + n && p < mapping_at(i)->at + mapping_at(i)->size)
            return true;
    return false;
}

/* One handle more of a piece, by an address at which it is mapped: the number that we gave out for it. What cuMemAlloc gave
 * has none, as with plain memory. */
int alq_handle_retain(fn_cuMemRetainAllocationHandle *real, CUmemHandle *h, void *p)
{
    CUdeviceptr at = (uintptr_t)p;
    int result = -1;
    pthread_mutex_lock(&alq_movable_lock);
    for (uint32_t i = 0; i < alq_pieces() && result < 0 && h; i++) {
        struct alq_movable_piece *piece = alq_piece(i);
        if (!piece->size)
            continue;
        if (piece->at && at >= piece->at && at < piece->at + piece->size)
            result = CUDA_ERROR_INVALID_VALUE;
        if (piece->at || !alq_handle_within(piece, at, 1))
            continue;
        /* the program's handles are one of the driver's: had it released all of them, there is none any more */
        result = piece->handles ? CUDA_SUCCESS : real(&piece->handle, p);
        if (!result) {
            piece->handles++;
            *h = MARK | i;
        }
    }
    pthread_mutex_unlock(&alq_movable_lock);
    return result < 0 ? real(h, p) : result;
}

int alq_handle_map(fn_cuMemMap *real, CUdeviceptr p, size_t n, size_t at, CUmemHandle h, unsigned long long flags)
{
    pthread_mutex_lock(&alq_movable_lock);
    struct alq_movable_piece *piece = piece_of(h);
    int result = real(p, n, at, piece ? piece->handle : h, flags);
    if (piece && !result) {
        uint32_t i = free_mapping;
        if (i != ALQ_NONE)
            free_mapping = mapping_at(i)->next;
        else
            i = alq_list_add(&mappings);
        if (i == ALQ_NONE) {
            alq_piece_stays(piece);
        } else {
            *mapping_at(i) = (struct mapping){ .at = p, .size = n, .offset = at, .piece = (uint32_t)(h & ~MARK_BITS),
                                               .next = piece->mappings };
            piece->mappings = i;
        }
    }
    pthread_mutex_unlock(&alq_movable_lock);
    return result;
}

int alq_handle_unmap(fn_cuMemUnmap *real, CUdeviceptr p, size_t n)
{
    pthread_mutex_lock(&alq_movable_lock);
    int result = real(p, n);
    for (uint32_t i = 0; i < mappings.count && !result; i++) {
        struct mapping *mapping = mapping_at(i);
        if (!mapping->at || mapping->at < p || mapping->at >= p + n)
            continue;
        struct alq_movable_piece *piece = alq_piece(mapping->piece);
        uint32_t *link = &piece->mappings;
        while (*link != i && *link != ALQ_NONE)
            link = &mapping_at(*link)->next;
        if (*link == i)
            *link = mapping->next;
        mapping->at = 0;
        mapping->next = free_mapping;
        free_mapping = i;
        alq_piece_recount(piece);
        end_if_unused(mapping->piece);
    }
    pthread_mutex_unlock(&alq_movable_lock);
    return result;
}

/* Who may access what is mapped there: to be set again when it returns. Access for another card is not: it stays. */
int alq_cuMemSetAccess(fn_cuMemSetAccess *real, int ptsz, CUdeviceptr p, size_t n, const void *access, size_t count)
{
    (void)ptsz;
    const struct { CUmemLocation location; int flags; } *list = access;
    int entered = alq_enter();
    int result = real(p, n, access, count);
    pthread_mutex_lock(&alq_movable_lock);
    for (uint32_t i = 0; i < mappings.count && !result && list; i++) {
        struct mapping *mapping = mapping_at(i);
        if (!mapping->at || mapping->at < p || mapping->at >= p + n)
            continue;
        struct alq_movable_piece *piece = alq_piece(mapping->piece);
        for (size_t j = 0; j < count; j++) {
            if (list[j].location.type == LOCATION_DEVICE && list[j].location.id == piece->device)
                mapping->access = list[j].flags;
            else if (list[j].flags)
                alq_piece_stays(piece);
        }
        alq_piece_recount(piece);
    }
    pthread_mutex_unlock(&alq_movable_lock);
    alq_leave(entered);
    return result;
}

/* The list has numbers of ours, which the driver must not see. What is part of an array stays. */
int alq_map_tiles(fn_cuMemMapArrayAsync *real, CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    size_t size = count * sizeof *list;
    if (!size || !list)
        return real(list, count, stream);
    CUarrayMapInfo *ours = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ours == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(ours, list, size);
    for (unsigned i = 0; i < count; i++)
        if (ours[i].operation == OPERATION_MAP)
            ours[i].handle = alq_handle_real(ours[i].handle, true);
    int result = real(ours, count, stream);
    munmap(ours, size);
    return result;
}

/* ---- for the mover; the lock is held ---- */

/* The address at which all of it can be read and written; 0: there is none. */
CUdeviceptr alq_handle_address(const struct alq_movable_piece *piece)
{
    for (uint32_t i = piece->mappings; i != ALQ_NONE; i = mapping_at(i)->next)
        if (!mapping_at(i)->offset && mapping_at(i)->size == piece->size && mapping_at(i)->access == 3)
            return mapping_at(i)->at;
    return 0;
}

void alq_handle_unback(struct alq_movable_piece *piece)
{
    for (uint32_t i = piece->mappings; i != ALQ_NONE; i = mapping_at(i)->next)
        ALQ_REAL(cuMemUnmap)(mapping_at(i)->at, mapping_at(i)->size);
    if (piece->handles)
        ALQ_REAL(cuMemRelease)(piece->handle);
    piece->resident = false;
}

int alq_handle_back(struct alq_movable_piece *piece)
{
    int result = ALQ_REAL(cuMemCreate)(&piece->handle, piece->size, (void *)piece->prop, 0);
    if (result)
        return result;
    piece->resident = true;
    for (uint32_t i = piece->mappings; i != ALQ_NONE && !result; i = mapping_at(i)->next) {
        struct mapping *mapping = mapping_at(i);
        struct { CUmemLocation location; int flags; } access = { { LOCATION_DEVICE, piece->device }, mapping->access };
        result = ALQ_REAL(cuMemMap)(mapping->at, mapping->size, mapping->offset, piece->handle, 0);
        if (!result && mapping->access)
            result = ALQ_REAL(cuMemSetAccess)(mapping->at, mapping->size, &access, 1);
    }
    if (!piece->handles || result)      /* the program has released its handle: the mappings keep the memory */
        ALQ_REAL(cuMemRelease)(piece->handle);
    for (uint32_t i = piece->mappings; i != ALQ_NONE && result; i = mapping_at(i)->next)
        ALQ_REAL(cuMemUnmap)(mapping_at(i)->at, mapping_at(i)->size);
    piece->resident = !result;
    return result;
}

void alq_handles_forget(void)
{
    mappings.base = NULL;
    mappings.count = 0;
    free_mapping = ALQ_NONE;
}
