/* movable.c - memory of a parkable tenant: physical pieces behind addresses that stay, so that they can leave the card.
 *
 * What the program asks cuMemAlloc for is reserved as addresses, and backed by pieces of at most 256 MiB (cuMemCreate).
 * The driver's granularity is 2 MiB, so what is smaller than that comes from chunks of one piece. One lock for all of
 * it; whoever moves the memory holds it meanwhile (parking.c).
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "movable.h"

#define SMALL (1ull << 20)          /* larger ones get whole units, as the driver does it */
#define GRAIN 512u
#define GRAINS (ALQ_UNIT / GRAIN)   /* of a chunk */
#define SPARES 4
#define SPARE_BYTES (16ull << 20)   /* of each, at most: nobody is charged for it */

struct chunk {
    CUdeviceptr at;
    uint32_t    piece, spare;       /* its piece; grains that are free */
    int8_t      card;
    uint64_t    used[GRAINS / 64];
};

pthread_mutex_t alq_movable_lock = PTHREAD_MUTEX_INITIALIZER;

static struct alq_list pieces = { .size = sizeof(struct alq_movable_piece) }, chunks = { .size = sizeof(struct chunk) };
static uint32_t free_piece = ALQ_NONE, free_chunk = ALQ_NONE;

/* ---- lists that grow without moving: addresses are reserved for more than any card can hold ---- */

void *alq_list_at(const struct alq_list *list, uint32_t i)
{
    return list->base + (size_t)i * list->size;
}

uint32_t alq_list_add(struct alq_list *list)
{
    if (!list->base) {
        void *base = mmap(NULL, (size_t)ALQ_LIST_MOST * list->size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED)
            return ALQ_NONE;
        list->base = base;
    }
    return list->count < ALQ_LIST_MOST ? list->count++ : ALQ_NONE;
}

uint32_t alq_pieces(void) { return pieces.count; }
struct alq_movable_piece *alq_piece(uint32_t i) { return alq_list_at(&pieces, i); }

/* ---- pieces ---- */

/* Whether the card has room for so many bytes beside the reserve. A mover that died cannot come back to a full card, and
 * without it nothing leaves. */
bool alq_beside_reserve(int card, uint64_t bytes)
{
    uint64_t reserve = __atomic_load_n(&alq_page()->card[card].reserve, __ATOMIC_RELAXED);
    size_t spare = 0, total = 0;
    return !reserve || ALQ_REAL(cuMemGetInfo_v2)(&spare, &total) || (spare >= reserve && spare - reserve >= bytes);
}

/* Physical memory at the piece's address. The lock is held. */
int alq_piece_back(struct alq_movable_piece *piece)
{
    if (!alq_beside_reserve(piece->card, piece->size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!piece->at)
        return alq_handle_back(piece);
    CUmemAllocationProp prop;
    struct { CUmemLocation location; int flags; } access = { { LOCATION_DEVICE, piece->device }, 3 /* read and write */ };
    uint8_t whole[64] = { 0 };      /* the driver reads more than the beginning that we know */
    prop = (CUmemAllocationProp){ .type = 1 /* pinned */, .handle_types = 1 /* a file, for the mover */, .location = { LOCATION_DEVICE, piece->device } };
    memcpy(whole, &prop, sizeof prop);
    int result = ALQ_REAL(cuMemCreate)(&piece->handle, piece->size, (void *)whole, 0);
    if (result)
        return result;
    result = ALQ_REAL(cuMemMap)(piece->at, piece->size, 0, piece->handle, 0);
    if (!result) {
        result = ALQ_REAL(cuMemSetAccess)(piece->at, piece->size, &access, 1);
        if (result)
            ALQ_REAL(cuMemUnmap)(piece->at, piece->size);
    }
    if (result)
        ALQ_REAL(cuMemRelease)(piece->handle);
    piece->resident = !result;
    return result;
}

void alq_piece_unback(struct alq_movable_piece *piece)
{
    if (!piece->resident)
        return;
    if (!piece->at) {
        alq_handle_unback(piece);
        return;
    }
    ALQ_REAL(cuMemUnmap)(piece->at, piece->size);
    ALQ_REAL(cuMemRelease)(piece->handle);
    piece->resident = false;
}

static void count(const struct alq_movable_piece *piece, int by)
{
    if (piece->counted) {
        alq_count_stays(piece->card, piece->counted, by);
        return;
    }
    alq_count_movable(piece->card, by * (int64_t)piece->size);
    if (piece->kept)
        alq_count_kept(piece->card, by * (int64_t)piece->size);
}

static uint8_t kind_of(const struct alq_movable_piece *piece)
{
    return piece->stays ? ALQ_STAYS_SHARED : alq_piece_address(piece, piece->card) ? 0 : ALQ_STAYS_OTHER;
}

void alq_piece_recount(struct alq_movable_piece *piece)
{
    uint8_t kind = kind_of(piece);
    if (kind == piece->counted)
        return;
    count(piece, -1);
    piece->counted = kind;
    count(piece, 1);
}

uint32_t alq_piece_new(CUdeviceptr at, uint64_t size, int card, CUdevice device)
{
    uint32_t i = free_piece;
    if (i != ALQ_NONE)
        free_piece = alq_piece(i)->next;
    else
        i = alq_list_add(&pieces);
    if (i == ALQ_NONE)
        return i;
    struct alq_movable_piece *piece = alq_piece(i);
    *piece = (struct alq_movable_piece){ .at = at, .size = size, .card = (int8_t)card, .device = device, .next = ALQ_NONE,
                                         .mappings = ALQ_NONE };
    piece->counted = kind_of(piece);
    count(piece, 1);
    return i;
}

void alq_piece_stays(struct alq_movable_piece *piece)
{
    piece->stays = true;
    alq_piece_recount(piece);
}

static bool overlaps(const struct alq_movable_piece *piece, CUdeviceptr p, uint64_t n)
{
    return piece->size && (piece->at ? piece->at < p + n && p < piece->at + piece->size : alq_handle_within(piece, p, n));
}

bool alq_may_leave(CUdeviceptr p)
{
    bool any = false;
    if (!__atomic_load_n(&alq_parks, __ATOMIC_RELAXED))
        return false;
    if (alq_all_resident())     /* then entering waits for nothing: no need to search */
        return true;
    pthread_mutex_lock(&alq_movable_lock);
    for (uint32_t i = 0; i < pieces.count && !any; i++)
        any = overlaps(alq_piece(i), p, 1);
    pthread_mutex_unlock(&alq_movable_lock);
    return any;
}

bool alq_range_stays(CUdeviceptr p, uint64_t n)
{
    bool any = false;
    pthread_mutex_lock(&alq_movable_lock);
    for (uint32_t i = 0; i < pieces.count; i++) {
        struct alq_movable_piece *piece = alq_piece(i);
        if (!overlaps(piece, p, n))
            continue;
        alq_piece_stays(piece);
        any = true;
    }
    pthread_mutex_unlock(&alq_movable_lock);
    return any;
}

void alq_piece_drop(uint32_t i)
{
    struct alq_movable_piece *piece = alq_piece(i);
    alq_piece_unback(piece);
    count(piece, -1);
    piece->size = 0;
    piece->next = free_piece;
    free_piece = i;
}

static void drop_pieces(uint32_t i)
{
    while (i != ALQ_NONE) {
        uint32_t next = alq_piece(i)->next;
        alq_piece_drop(i);
        i = next;
    }
}

/* ---- what was freed last: programs ask for the same size again, and making it anew takes four calls of the driver ---- */

static struct spare { CUdeviceptr at; uint64_t bytes; uint32_t first; CUdevice device; } spares[ALQ_CARDS][SPARES];
static unsigned oldest[ALQ_CARDS];

static void note_kept(uint32_t first, bool kept)
{
    for (uint32_t i = first; i != ALQ_NONE; i = alq_piece(i)->next) {
        struct alq_movable_piece *piece = alq_piece(i);
        if (piece->kept != kept && !piece->counted)
            alq_count_kept(piece->card, kept ? (int64_t)piece->size : -(int64_t)piece->size);
        piece->kept = kept;
    }
}

static void drop(CUdeviceptr at, uint64_t bytes, uint32_t first)
{
    drop_pieces(first);
    ALQ_REAL(cuMemAddressFree)(at, bytes);
}

static void drop_spares(int card)
{
    for (unsigned i = 0; i < SPARES; i++)
        if (spares[card][i].at) {
            drop(spares[card][i].at, spares[card][i].bytes, spares[card][i].first);
            spares[card][i].at = 0;
        }
}

static bool take_spare(uint64_t bytes, int card, CUdevice device, CUdeviceptr *at, uint32_t *first)
{
    for (unsigned i = 0; i < SPARES; i++) {
        struct spare *spare = &spares[card][i];
        if (!spare->at || spare->bytes != bytes || spare->device != device)
            continue;
        *at = spare->at;
        *first = spare->first;
        spare->at = 0;
        note_kept(*first, false);
        return true;
    }
    return false;
}

/* The last few of them are kept; not what others know, nor while the memory is away. `keeps`: not of a pool, which keeps its
 * own (kept.c). */
static void unmake(CUdeviceptr at, uint64_t bytes, uint32_t first, int card, bool keeps)
{
    keeps = keeps && bytes <= SPARE_BYTES;
    for (uint32_t i = first; i != ALQ_NONE && keeps; i = alq_piece(i)->next)
        keeps = alq_piece(i)->resident && !alq_piece(i)->stays && !alq_piece(i)->counted;
    if (!keeps || !alq_all_resident()) {
        drop(at, bytes, first);
        return;
    }
    struct spare *spare = &spares[card][oldest[card]++ % SPARES];
    if (spare->at)
        drop(spare->at, spare->bytes, spare->first);
    *spare = (struct spare){ at, bytes, first, alq_piece(first)->device };
    note_kept(first, true);
}

void alq_movable_trim(void)
{
    pthread_mutex_lock(&alq_movable_lock);
    for (int card = 0; card < ALQ_CARDS; card++)
        drop_spares(card);
    pthread_mutex_unlock(&alq_movable_lock);
}

/* Addresses for `bytes`, a multiple of the unit, with memory behind them. */
static int make_new(uint64_t bytes, int card, CUdevice device, CUdeviceptr *at, uint32_t *first)
{
    int result = ALQ_REAL(cuMemAddressReserve)(at, bytes, ALQ_UNIT, 0, 0);
    if (result)
        return result;
    *first = ALQ_NONE;
    for (uint64_t done = 0; done < bytes && !result;) {
        uint64_t size = bytes - done < ALQ_PIECE_BYTES ? bytes - done : ALQ_PIECE_BYTES;
        uint32_t i = alq_piece_new(*at + done, size, card, device);
        result = i == ALQ_NONE ? CUDA_ERROR_OUT_OF_MEMORY : alq_piece_back(alq_piece(i));
        if (i != ALQ_NONE) {
            alq_piece(i)->next = *first;
            *first = i;
        }
        done += size;
    }
    if (result) {
        drop_pieces(*first);
        ALQ_REAL(cuMemAddressFree)(*at, bytes);
    }
    return result;
}

static int make(uint64_t bytes, int card, CUdevice device, CUdeviceptr *at, uint32_t *first)
{
    if (take_spare(bytes, card, device, at, first))
        return CUDA_SUCCESS;
    if (alq_limit(card) - alq_used(card) < SPARES * SPARE_BYTES)   /* close to the quota they would be past it */
        drop_spares(card);
    int result = make_new(bytes, card, device, at, first);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        drop_spares(card);
        result = make_new(bytes, card, device, at, first);
    }
    return result;
}

/* ---- small ones ---- */

/* The first run of so many free grains, or GRAINS. */
static unsigned find_run(const struct chunk *chunk, unsigned wanted)
{
    unsigned run = 0;
    for (unsigned i = 0; i < GRAINS; i++) {
        if (!(i & 63) && !chunk->used[i / 64] && run + 64 < wanted) {
            run += 64;
            i += 63;
        } else if (!(i & 63) && chunk->used[i / 64] == UINT64_MAX) {
            run = 0;
            i += 63;
        } else if (chunk->used[i / 64] >> (i & 63) & 1) {
            run = 0;
        } else if (++run == wanted) {
            return i + 1 - wanted;
        }
    }
    return GRAINS;
}

static void mark(struct chunk *chunk, unsigned from, unsigned n, bool used)
{
    for (unsigned i = from, many; i < from + n; i += many) {     /* word by word: a block may have thousands of grains */
        many = 64 - (i & 63) < from + n - i ? 64 - (i & 63) : from + n - i;
        uint64_t bits = (UINT64_MAX >> (64 - many)) << (i & 63);
        chunk->used[i / 64] = used ? chunk->used[i / 64] | bits : chunk->used[i / 64] & ~bits;
    }
    chunk->spare = used ? chunk->spare - n : chunk->spare + n;
}

static int make_small(uint64_t bytes, int card, CUdevice device, CUdeviceptr *p)
{
    unsigned wanted = (unsigned)((bytes + GRAIN - 1) / GRAIN), run = GRAINS;
    struct chunk *chunk = NULL;
    for (uint32_t i = 0; i < chunks.count && run == GRAINS; i++) {
        chunk = alq_list_at(&chunks, i);
        if (chunk->at && chunk->card == card && chunk->spare >= wanted)
            run = find_run(chunk, wanted);
    }
    if (run == GRAINS) {
        uint32_t i = free_chunk != ALQ_NONE ? free_chunk : alq_list_add(&chunks);
        if (i == ALQ_NONE)
            return CUDA_ERROR_OUT_OF_MEMORY;
        chunk = alq_list_at(&chunks, i);
        uint32_t next = i == free_chunk ? chunk->piece : free_chunk;
        *chunk = (struct chunk){ .card = (int8_t)card, .spare = GRAINS };
        int result = make(ALQ_UNIT, card, device, &chunk->at, &chunk->piece);
        if (result) {
            chunk->at = 0;
            chunk->piece = next;
            free_chunk = i;
            return result;
        }
        free_chunk = next;
        run = 0;
    }
    mark(chunk, run, wanted, true);
    *p = chunk->at + (uint64_t)run * GRAIN;
    return CUDA_SUCCESS;
}

static void free_small(CUdeviceptr p, uint64_t bytes, bool keeps)
{
    for (uint32_t i = 0; i < chunks.count; i++) {
        struct chunk *chunk = alq_list_at(&chunks, i);
        if (!chunk->at || p < chunk->at || p >= chunk->at + ALQ_UNIT)
            continue;
        mark(chunk, (unsigned)((p - chunk->at) / GRAIN), (unsigned)((bytes + GRAIN - 1) / GRAIN), false);
        if (chunk->spare == GRAINS) {
            unmake(chunk->at, ALQ_UNIT, chunk->piece, chunk->card, keeps);
            chunk->at = 0;
            chunk->piece = free_chunk;
            free_chunk = i;
        }
        return;
    }
}

/* ---- what plain.c asks for ---- */

int alq_movable_alloc(CUdeviceptr *p, uint64_t bytes, int card, CUdevice device)
{
    if (!p || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t first = ALQ_NONE;
    uint64_t whole = (bytes + ALQ_UNIT - 1) / ALQ_UNIT * ALQ_UNIT;
    int mode;
    bool relaxed = alq_relax(&mode);
    pthread_mutex_lock(&alq_movable_lock);
    int result = bytes <= SMALL ? make_small(bytes, card, device, p) : make(whole, card, device, p, &first);
    pthread_mutex_unlock(&alq_movable_lock);
    alq_unrelax(relaxed, &mode);
    if (!result) {
        alq_book((struct alq_entry){ .kind = ALQ_MOVABLE, .key = *p, .size = bytes, .now = first,
                                     .refs = (uint32_t)device, .owner = (uintptr_t)alq_context(), .card = (int8_t)card });
        alq_parking_begin(card);
        alq_wait_ahead(alq_context());
    }
    return result;
}

void alq_movable_release(const struct alq_entry *entry)
{
    int mode;
    bool relaxed = alq_relax(&mode);
    pthread_mutex_lock(&alq_movable_lock);
    if (entry->size <= SMALL)
        free_small(entry->key, entry->size, !entry->from);
    else
        unmake(entry->key, (entry->size + ALQ_UNIT - 1) / ALQ_UNIT * ALQ_UNIT, (uint32_t)entry->now, entry->card, !entry->from);
    pthread_mutex_unlock(&alq_movable_lock);
    alq_unrelax(relaxed, &mode);
}

/* A small one is not noted: its piece has others. */
void alq_movable_keep(const struct alq_entry *entry, bool kept)
{
    if (entry->size <= SMALL)
        return;
    pthread_mutex_lock(&alq_movable_lock);
    note_kept((uint32_t)entry->now, kept);
    pthread_mutex_unlock(&alq_movable_lock);
}

/* In a forked child nothing of it is there. */
void alq_movable_forget(void)
{
    alq_movable_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pieces.base = chunks.base = NULL;
    pieces.count = chunks.count = 0;
    free_piece = free_chunk = ALQ_NONE;
    memset(spares, 0, sizeof spares);
}
