/* pieces.c - physical memory by handle (cuMemCreate) and its mappings, as PyTorch's expandable segments use them.
 *
 * A piece costs its bytes from cuMemCreate until its handle is released as often as it was given out (created, retained,
 * imported again) *and* its last mapping is gone: until then the driver keeps the memory. Pieces on the host, and pieces
 * that came from another process (charged there), are not counted. Mapping a piece into a sparse array does not hold it
 * here: a program that releases the handle while such a mapping lives is charged too little.
 */
#include "shim.h"

struct step { int refs, mappings; bool ended; };

static void do_step(struct alq_entry *piece, void *with)
{
    struct step *s = with;
    piece->refs = s->refs < 0 && !piece->refs ? 0 : piece->refs + (uint32_t)s->refs;
    piece->now = s->mappings < 0 && !piece->now ? 0 : piece->now + (uint64_t)(int64_t)s->mappings;
    s->ended = !piece->refs && !piece->now;
}

/* Changes the counts of a piece, if it is known. True: this was its end, and it is out of the book, into *dead. */
static bool step(CUmemHandle h, int refs, int mappings, struct alq_entry *dead)
{
    struct step s = { .refs = refs, .mappings = mappings };
    return alq_change(ALQ_PIECE, h, do_step, &s) && s.ended && alq_take(ALQ_PIECE, h, dead);
}

static int ordinal_of(const CUmemLocation *where)
{
    return where->type == LOCATION_DEVICE ? where->id : where->type == LOCATION_DEVICE_PART ? where->id & 0xff : -1;
}

int alq_cuMemCreate(fn_cuMemCreate *real, int ptsz, CUmemHandle *h, size_t n, const CUmemAllocationProp *prop,
                    unsigned long long flags)
{
    (void)ptsz;
    int ordinal = prop ? ordinal_of(&prop->location) : -1;
    int card = ordinal < 0 ? ALQ_NO_CONTEXT : alq_card_of_device(ordinal);
    if (card == ALQ_NO_CONTEXT)
        return real(h, n, prop, flags);     /* on the host, or an argument that the driver will refuse */
    if (card < 0 || !alq_make_room(card, n, n, NULL, 0, true))
        return alq_refuse(card);
    int result = real(h, n, prop, flags);
    if (result != CUDA_SUCCESS)
        alq_charge(card, -(int64_t)n);
    else if (h)
        alq_book((struct alq_entry){ .kind = ALQ_PIECE, .key = *h, .size = n, .refs = 1, .card = (int8_t)card });
    return result;
}

int alq_cuMemRelease(fn_cuMemRelease *real, int ptsz, CUmemHandle h)
{
    (void)ptsz;
    struct alq_entry piece;
    bool ended = step(h, -1, 0, &piece);
    int result = real(h);
    if (ended && result == CUDA_SUCCESS) {
        alq_charge(piece.card, -(int64_t)piece.size);
    } else if (ended) {
        piece.refs = 1;
        alq_book(piece);
    } else if (result != CUDA_SUCCESS) {
        step(h, 1, 0, &piece);
    }
    return result;
}

int alq_cuMemRetainAllocationHandle(fn_cuMemRetainAllocationHandle *real, int ptsz, CUmemHandle *h, void *p)
{
    (void)ptsz;
    struct alq_entry unused;
    int result = real(h, p);
    if (result == CUDA_SUCCESS && h)
        step(*h, 1, 0, &unused);
    return result;
}

/* From another process it is a handle we do not know; from our own export it may be the one we have. */
int alq_cuMemImportFromShareableHandle(fn_cuMemImportFromShareableHandle *real, int ptsz, CUmemHandle *h, void *from, int type)
{
    (void)ptsz;
    struct alq_entry unused;
    int result = real(h, from, type);
    if (result == CUDA_SUCCESS && h)
        step(*h, 1, 0, &unused);
    return result;
}

static void end_mapping(const struct alq_entry *mapping)
{
    struct alq_entry piece;
    if (step(mapping->owner, 0, -1, &piece))
        alq_charge(piece.card, -(int64_t)piece.size);
}

/* The driver maps only where nothing is mapped: what the book still has there was unmapped, by a thread that is about to say so. */
int alq_cuMemMap(fn_cuMemMap *real, int ptsz, CUdeviceptr p, size_t n, size_t at, CUmemHandle h, unsigned long long flags)
{
    (void)ptsz;
    struct alq_entry piece, before;
    int result = real(p, n, at, h, flags);
    if (result == CUDA_SUCCESS && alq_take(ALQ_MAPPING, p, &before))
        end_mapping(&before);
    if (result == CUDA_SUCCESS && alq_find(ALQ_PIECE, h, &piece) &&
        alq_book((struct alq_entry){ .kind = ALQ_MAPPING, .key = p, .size = n, .owner = h, .card = piece.card }))
        step(h, 0, 1, &piece);
    return result;
}

struct range { CUdeviceptr from, to; uint64_t before; };

static bool in_range(const struct alq_entry *e, const void *with)
{
    const struct range *r = with;
    return e->kind == ALQ_MAPPING && e->key >= r->from && e->key < r->to && e->serial < r->before;
}

/* One call may end many mappings. Those made after it began, by another thread at the same addresses, are left. */
int alq_cuMemUnmap(fn_cuMemUnmap *real, int ptsz, CUdeviceptr p, size_t n)
{
    (void)ptsz;
    struct alq_entry mapping;
    struct range range = { .from = p, .to = p + n, .before = alq_serial() };
    size_t at = 0;
    /* the common case: one mapping, no search. It goes before the real call: after it another thread may map there */
    bool one = alq_find(ALQ_MAPPING, p, &mapping) && mapping.size == n && alq_take(ALQ_MAPPING, p, &mapping);
    int result = real(p, n);
    if (one && result == CUDA_SUCCESS)
        end_mapping(&mapping);
    else if (one)
        alq_book(mapping);
    while (!one && result == CUDA_SUCCESS && alq_take_where(in_range, &range, &at, &mapping))
        end_mapping(&mapping);
    return result;
}
