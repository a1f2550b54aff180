/* pieces.c - physical memory by handle (cuMemCreate) and its mappings, as PyTorch's expandable segments use them.
 *
 * A piece costs its bytes from cuMemCreate until its handle is released as often as it was given out (created, retained,
 * imported again), its last mapping is gone, also into a sparse array, *and* no file holds it that it was exported to: until
 * then the driver keeps the memory. Pieces on the host are not counted.
 *
 * Of a piece that was imported nobody says how large it is, unless this process exported it: it costs what is mapped of it.
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

int alq_cuMemCreate(fn_cuMemCreate *real, int ptsz, CUmemHandle *h, size_t n, const CUmemAllocationProp *prop,
                    unsigned long long flags)
{
    (void)ptsz;
    int card = prop ? alq_card_of_location(prop->type, &prop->location) : ALQ_NO_CONTEXT;
    if (card == ALQ_NO_CONTEXT)
        return real(h, n, prop, flags);     /* on the host, or an argument that the driver will refuse */
    if (card < 0 || !alq_make_room(card, n, n, NULL, 0, true))
        return alq_refuse(card);
    uint64_t began = 0;
    int result;
    do {
        int entered = alq_enter();
        result = alq_handle_create(real, h, n, prop, flags, card);
        alq_leave(entered);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && alq_wait_for_room(card, n, &began));
    alq_room_done(card, began);
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
    int entered = alq_enter(), result = alq_handle_release(real, h);
    alq_leave(entered);
    if (ended && result == CUDA_SUCCESS) {
        alq_ended(&piece);
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
    int entered = alq_enter(), result = alq_handle_retain(real, h, p);
    alq_leave(entered);
    if (result == CUDA_SUCCESS && h)
        step(*h, 1, 0, &unused);
    return result;
}

/* A handle that we do not know is another's memory, or our own that was released and lives in its file. */
int alq_cuMemImportFromShareableHandle(fn_cuMemImportFromShareableHandle *real, int ptsz, CUmemHandle *h, void *from, int type)
{
    (void)ptsz;
    struct alq_entry piece = { .kind = ALQ_PIECE, .refs = 1 }, known;
    piece.elsewhere = type == HANDLE_FD && alq_origin_of_file((int)(intptr_t)from, &piece.from);
    int result = real(h, from, type);
    if (result != CUDA_SUCCESS || !h)
        return result;
    if (alq_find(ALQ_PIECE, *h, &known)) {
        step(*h, 1, 0, &known);
        return result;
    }
    struct { CUmemAllocationProp prop; char rest[64]; } about;
    int card = ALQ_REAL(cuMemGetAllocationPropertiesFromHandle)(&about.prop, *h) ? alq_card_of_context(NULL)
             : alq_card_of_location(about.prop.type, &about.prop.location);
    if (card < 0)
        return result;      /* on the host; or on a card that the tenant has no part of, where it may map nothing */
    piece.key = *h;
    piece.card = (int8_t)card;
    piece.size = piece.elsewhere ? alq_exported_bytes(piece.from) : 0;
    alq_import(piece);
    return result;
}

static void set_export(struct alq_entry *entry, void *with)
{
    const struct alq_entry *made = with;
    entry->file = made->file;
    entry->tag = made->tag;
}

static void exported(enum alq_kind kind, uint64_t key, int fd)
{
    struct alq_entry entry;
    if (fd < 0 || !alq_find(kind, key, &entry))
        return;
    entry.file = alq_export(fd, entry.file, &entry.tag);
    alq_change(kind, key, set_export, &entry);
}

int alq_cuMemExportToShareableHandle(fn_cuMemExportToShareableHandle *real, int ptsz, void *out, CUmemHandle h, int type,
                                     unsigned long long flags)
{
    (void)ptsz;
    int entered = alq_enter(), result = real(out, alq_handle_real(h, true), type, flags);
    alq_leave(entered);
    if (result == CUDA_SUCCESS && type == HANDLE_FD && out)
        exported(ALQ_PIECE, h, *(int *)out);
    return result;
}

/* A dma-buf of a stretch of addresses, for other devices: it holds the memory as well. */
int alq_cuMemGetHandleForAddressRange(fn_cuMemGetHandleForAddressRange *real, int ptsz, void *out, CUdeviceptr p, size_t n,
                                      int type, unsigned long long flags)
{
    (void)ptsz;
    struct alq_entry mapping;
    CUdeviceptr base = p;
    size_t size;
    int entered = alq_enter(), result = real(out, p, n, type, flags);
    if (result == CUDA_SUCCESS)
        alq_range_stays(p, n);
    alq_leave(entered);
    if (result != CUDA_SUCCESS || type != HANDLE_FD || !out || ALQ_REAL(cuMemGetAddressRange_v2)(&base, &size, p))
        return result;
    if (alq_find(ALQ_MAPPING, base, &mapping))
        exported(ALQ_PIECE, mapping.owner, *(int *)out);
    else
        exported(ALQ_MEMORY, base, *(int *)out);
    return result;
}

static void end_mapping(const struct alq_entry *mapping)
{
    struct alq_entry piece;
    if (step(mapping->owner, 0, -1, &piece))
        alq_ended(&piece);
}

static void grow(struct alq_entry *piece, void *size)
{
    if (piece->size < *(uint64_t *)size)
        piece->size = *(uint64_t *)size;
}

/* Before a mapping of an imported piece: what it shows to be there and is not charged yet. */
static int pay_for(CUmemHandle h, uint64_t size, uint64_t *more, struct alq_entry *piece)
{
    *more = 0;
    if (!alq_find(ALQ_PIECE, h, piece) || size <= piece->size)
        return CUDA_SUCCESS;
    *more = piece->elsewhere ? 0 : size - piece->size;
    return *more && !alq_make_room(piece->card, *more, *more, NULL, 0, true) ? alq_refuse(piece->card) : CUDA_SUCCESS;
}

/* The driver maps only where nothing is mapped: what the book still has there was unmapped, by a thread that is about to say so. */
int alq_cuMemMap(fn_cuMemMap *real, int ptsz, CUdeviceptr p, size_t n, size_t at, CUmemHandle h, unsigned long long flags)
{
    (void)ptsz;
    struct alq_entry piece, before;
    uint64_t more, size = at + n;
    int result = pay_for(h, size, &more, &piece);
    if (result)
        return result;
    int entered = alq_enter();
    result = alq_handle_map(real, p, n, at, h, flags);
    alq_leave(entered);
    if (result == CUDA_SUCCESS)
        alq_change(ALQ_PIECE, h, grow, &size);
    else if (more)
        alq_charge(piece.card, -(int64_t)more);
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
    int entered = alq_enter(), result = alq_handle_unmap(real, p, n);
    alq_leave(entered);
    if (one && result == CUDA_SUCCESS)
        end_mapping(&mapping);
    else if (one)
        alq_book(mapping);
    while (!one && result == CUDA_SUCCESS && alq_take_where(in_range, &range, &at, &mapping))
        end_mapping(&mapping);
    return result;
}

/* ---- sparse arrays ---- */

static int tiles;       /* there are some; never counted down */

/* The same part of the same array, mapped again or unmapped, is the same tile. */
static uint64_t tile_of(const CUarrayMapInfo *info)
{
    const unsigned char *bytes = (const unsigned char *)info;
    uint64_t sum = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < offsetof(CUarrayMapInfo, operation); i++)
        if (i < sizeof(int) || i >= offsetof(CUarrayMapInfo, resource))     /* not what is between them */
            sum = (sum ^ bytes[i]) * 0x100000001b3ull;
    return sum;
}

int alq_cuMemMapArrayAsync(fn_cuMemMapArrayAsync *real, int ptsz, CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    (void)ptsz;
    struct alq_entry tile, piece;
    int result = ALQ_INSIDE(alq_map_tiles(real, list, count, stream));
    for (unsigned i = 0; result == CUDA_SUCCESS && list && i < count; i++) {
        uint64_t key = tile_of(&list[i]);
        __atomic_store_n(&tiles, 1, __ATOMIC_RELAXED);
        if (alq_take(ALQ_TILE, key, &tile))
            end_mapping(&tile);
        if (list[i].operation == OPERATION_MAP && alq_find(ALQ_PIECE, list[i].handle, &piece) &&
            alq_book((struct alq_entry){ .kind = ALQ_TILE, .key = key, .owner = list[i].handle, .card = piece.card,
                                         .now = (uintptr_t)list[i].resource }))
            step(list[i].handle, 0, 1, &piece);
    }
    return result;
}

static bool of_array(const struct alq_entry *e, const void *array)
{
    return e->kind == ALQ_TILE && e->now == (uintptr_t)array;
}

void alq_tiles_ended(const void *array)
{
    struct alq_entry tile;
    size_t at = 0;
    while (__atomic_load_n(&tiles, __ATOMIC_RELAXED) && alq_take_where(of_array, array, &at, &tile))
        end_mapping(&tile);
}
