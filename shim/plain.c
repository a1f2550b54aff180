/* plain.c - memory that is one pointer or one array: reserve, allocate, remember; or roll back. */
#include "shim.h"

#define SMALL (1ull << 20)
#define PAGE  (2ull << 20)

/* The driver hands out pieces of 512 bytes from pages of 2 MiB, and whole pages for what is larger than one MiB. */
uint64_t alq_rounded(uint64_t bytes)
{
    uint64_t unit = bytes > SMALL ? PAGE : 512;
    return bytes > UINT64_MAX - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

/* Reserves on the current context's card. CUDA_SUCCESS with *card -1: no context, let the driver say so. */
static int reserve_here(uint64_t need, int *card, uint64_t *bytes)
{
    *bytes = alq_rounded(need);
    *card = alq_card_of_context(NULL);
    if (*card == ALQ_NO_CONTEXT)
        return CUDA_SUCCESS;
    if (*card < 0 || !alq_make_room(*card, *bytes, need, NULL, 0, true))
        return alq_refuse(*card);
    return CUDA_SUCCESS;
}

/* After the real call: keeps what was reserved under its key, or gives it back. */
static int keep(int result, enum alq_kind kind, const uint64_t *key, int card, uint64_t bytes)
{
    if (card < 0)
        return result;
    bool kept = result == CUDA_SUCCESS && key && alq_book((struct alq_entry){
        .kind = kind, .key = *key, .size = bytes, .owner = (uintptr_t)alq_context(), .card = (int8_t)card });
    if (!kept && result != CUDA_SUCCESS)
        alq_charge(card, -(int64_t)bytes);  /* without room in the book a success stays charged: never too little */
    return result;
}

/* The entry goes before the real call, because after it another thread may get the same pointer. */
static int give_back(int result, struct alq_entry *entry, bool known)
{
    if (known && result == CUDA_SUCCESS)
        alq_ended(entry);
    else if (known)
        alq_book(*entry);
    return result;
}

int alq_cuMemAlloc_v2(fn_cuMemAlloc_v2 *real, int ptsz, CUdeviceptr *p, size_t n)
{
    (void)ptsz;
    int card;
    uint64_t bytes;
    int refused = reserve_here(n, &card, &bytes);
    if (refused || card < 0)
        return refused ? refused : real(p, n);
    CUdevice device = 0;
    bool movable = alq_page()->card[card].parkable && alq_card_of_context(&device) >= 0;
    uint64_t began = 0;
    int result;
    do {
        int entered = alq_enter();
        result = movable ? alq_may_allocate() : real(p, n);
        if (movable && !result)
            result = alq_movable_alloc(p, n, card, device);
        alq_leave(entered);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && alq_wait_for_room(card, bytes, &began));
    alq_room_done(card, began);
    if (!movable)
        return keep(result, ALQ_MEMORY, p, card, bytes);
    if (result)
        alq_charge(card, -(int64_t)bytes);
    return result;
}

int alq_cuMemAlloc(fn_cuMemAlloc *real, int ptsz, uint32_t *p, unsigned n)
{
    (void)ptsz;
    int card;
    uint64_t bytes;
    int result = reserve_here(n, &card, &bytes);
    if (result)
        return result;
    result = real(p, n);
    uint64_t key = p && !result ? *p : 0;
    return keep(result, ALQ_MEMORY, &key, card, bytes);
}

int alq_cuMemAllocManaged(fn_cuMemAllocManaged *real, int ptsz, CUdeviceptr *p, size_t n, unsigned flags)
{
    (void)ptsz;
    int card;
    uint64_t bytes;
    /* it may live on the host for a while, but the card is where it is used: all of it counts */
    int refused = reserve_here(n, &card, &bytes);
    return refused ? refused : keep(real(p, n, flags), ALQ_MEMORY, p, card, bytes);
}

/* Rows are padded to a pitch that only the driver knows: 512 bytes are reserved for, then the truth is charged. */
static uint64_t padded(uint64_t width, uint64_t height)
{
    uint64_t bytes, row = width > UINT64_MAX - 511 ? width : (width + 511) / 512 * 512;
    return __builtin_mul_overflow(row, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t correct(int card, uint64_t bytes, uint64_t truth)
{
    truth = alq_rounded(truth);
    if (card < 0 || truth == bytes)
        return bytes;
    alq_charge(card, (int64_t)(truth - bytes));
    return truth;
}

int alq_cuMemAllocPitch_v2(fn_cuMemAllocPitch_v2 *real, int ptsz, CUdeviceptr *p, size_t *pitch, size_t width, size_t height,
                           unsigned element)
{
    (void)ptsz;
    int card = alq_card_of_context(NULL);
    uint64_t bytes = padded(width, height);
    bool valid = p && pitch && width && height && (element == 4 || element == 8 || element == 16);
    if (card >= 0 && alq_page()->card[card].parkable && valid) {       /* the pitch is ours to choose then */
        int made = alq_cuMemAlloc_v2(ALQ_REAL(cuMemAlloc_v2), 0, p, bytes);
        *pitch = made ? *pitch : bytes / height;
        return made;
    }
    int result = reserve_here(bytes, &card, &bytes);
    if (result)
        return result;
    result = real(p, pitch, width, height, element);
    if (result == CUDA_SUCCESS && pitch)
        bytes = correct(card, bytes, (uint64_t)*pitch * height);
    return keep(result, ALQ_MEMORY, p, card, bytes);
}

int alq_cuMemAllocPitch(fn_cuMemAllocPitch *real, int ptsz, uint32_t *p, unsigned *pitch, unsigned width, unsigned height,
                        unsigned element)
{
    (void)ptsz;
    int card;
    uint64_t bytes;
    int result = reserve_here(padded(width, height), &card, &bytes);
    if (result)
        return result;
    result = real(p, pitch, width, height, element);
    if (result == CUDA_SUCCESS && pitch)
        bytes = correct(card, bytes, (uint64_t)*pitch * height);
    uint64_t key = p && !result ? *p : 0;
    return keep(result, ALQ_MEMORY, &key, card, bytes);
}

static void end_movable(const struct alq_entry *entry)
{
    alq_movable_release(entry);
    alq_charge(entry->card, -(int64_t)alq_rounded(entry->size));
    if (entry->from)
        alq_ordered_ended(entry);
}

/* It is out of the book, as above. */
void alq_end_movable(const struct alq_entry *entry)
{
    int entered = alq_enter();
    end_movable(entry);
    alq_leave(entered);
}

/* cuMemFree waits for the work that may use the memory, wherever the caller is, and programs rely on that: so does this.
 * Memory of a pool is the device's: what uses it is of the device's own context (ordered.c). */
int alq_free_movable(const struct alq_entry *entry)
{
    CUcontext context = entry->owner ? (CUcontext)(uintptr_t)entry->owner : alq_primary((CUdevice)entry->refs);
    int entered = alq_enter(), result = alq_wait_for_context(context);
    if (!result) {
        end_movable(entry);
        alq_wait_ahead(context);
    }
    alq_leave(entered);
    if (result)
        alq_book(*entry);
    return result;
}

int alq_cuMemFree_v2(fn_cuMemFree_v2 *real, int ptsz, CUdeviceptr p)
{
    (void)ptsz;
    struct alq_entry entry;
    bool known = alq_take(ALQ_MEMORY, p, &entry) || alq_take(ALQ_OPENED, p, &entry);
    if (known)
        return give_back(real(p), &entry, known);
    if (alq_take(ALQ_MOVABLE, p, &entry))
        return alq_free_movable(&entry);
    bool pooled = alq_take(ALQ_POOLED, p, &entry);      /* a pool's pointer may be freed this way as well */
    int result = real(p);
    if (pooled && result != CUDA_SUCCESS)
        alq_book(entry);
    if (pooled && result == CUDA_SUCCESS)
        alq_pool_freed(&entry);
    if (result == CUDA_SUCCESS)
        alq_settle();
    return result;
}

int alq_cuMemFree(fn_cuMemFree *real, int ptsz, uint32_t p)
{
    (void)ptsz;
    struct alq_entry entry;
    bool known = alq_take(ALQ_MEMORY, p, &entry);
    return give_back(real(p), &entry, known);
}

/* ---- arrays ---- */

/* Bytes of one channel of an element, never too few. Names are CU_AD_FORMAT_*. */
static uint64_t channel_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08:                                   return 1;   /* 8-bit integers */
    case 0x02: case 0x09: case 0x10:                        return 2;   /* 16-bit integers, half */
    case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8:   /* normalised 8-bit */
    case 0xb0: case 0xa2: case 0xa5: case 0xa8: case 0xb2: case 0xb4:   /* 8-bit YUV */
        return 1;
    case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb:   /* normalised 16-bit */
        return 2;
    default:
        return format >= 0x91 && format <= 0x9d ? 1 : 4;                /* block-compressed: a byte at most; the rest: 4 */
    }
}

/* An array is laid out in tiles of 64 bytes by 8 rows. A layered one or a cube map has `depth` layers. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    if (d->flags & (ARRAY_SPARSE | ARRAY_DEFERRED))
        return 0;       /* no memory of its own: pieces of cuMemCreate are mapped into it */
    uint64_t element = channel_bytes(d->format) * (d->channels ? d->channels : 1), sum = 0;
    uint64_t w = d->width ? d->width : 1, h = d->height ? d->height : 1, z = d->depth ? d->depth : 1;
    bool layered = d->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP);
    for (unsigned i = 0; i < levels && i < 32; i++) {
        uint64_t row = (w * element + 63) / 64 * 64, rows = h > 1 ? (h + 7) / 8 * 8 : 1, level;
        if (w > UINT64_MAX / 64 || __builtin_mul_overflow(row, rows, &level) || __builtin_mul_overflow(level, z, &level) ||
            __builtin_add_overflow(sum, level, &sum))
            return UINT64_MAX;
        w = w > 1 ? w / 2 : 1;
        h = h > 1 ? h / 2 : 1;
        z = !layered && z > 1 ? z / 2 : z;
    }
    return sum;
}

static int make_array_2d(fn_cuArrayCreate_v2 *real, CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d, const CUDA_ARRAY3D_DESCRIPTOR *as)
{
    int card = -1;
    uint64_t bytes = 0;
    int result = as ? reserve_here(array_bytes(as, 1), &card, &bytes) : CUDA_SUCCESS;
    if (result)
        return result;
    result = real(a, d);
    uint64_t key = a && !result ? (uintptr_t)*a : 0;
    return keep(result, ALQ_ARRAY, &key, card, bytes);
}

int alq_cuArrayCreate_v2(fn_cuArrayCreate_v2 *real, int ptsz, CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d)
{
    (void)ptsz;
    if (!d)
        return real(a, d);
    CUDA_ARRAY3D_DESCRIPTOR as = { .width = d->width, .height = d->height, .format = d->format, .channels = d->channels };
    return make_array_2d(real, a, d, &as);
}

int alq_cuArrayCreate(fn_cuArrayCreate *real, int ptsz, CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
    (void)ptsz;
    if (!d)
        return real(a, d);
    CUDA_ARRAY3D_DESCRIPTOR as = { .width = d->width, .height = d->height, .format = d->format, .channels = d->channels };
    return make_array_2d((fn_cuArrayCreate_v2 *)real, a, (const CUDA_ARRAY_DESCRIPTOR *)d, &as);    /* one pointer each */
}

int alq_cuArray3DCreate_v2(fn_cuArray3DCreate_v2 *real, int ptsz, CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    (void)ptsz;
    return make_array_2d((fn_cuArrayCreate_v2 *)real, a, (const CUDA_ARRAY_DESCRIPTOR *)d, d);
}

int alq_cuArray3DCreate(fn_cuArray3DCreate *real, int ptsz, CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
    (void)ptsz;
    if (!d)
        return real(a, d);
    CUDA_ARRAY3D_DESCRIPTOR as = { .width = d->width, .height = d->height, .depth = d->depth, .format = d->format,
                                   .channels = d->channels, .flags = d->flags };
    return make_array_2d((fn_cuArrayCreate_v2 *)real, a, (const CUDA_ARRAY_DESCRIPTOR *)d, &as);
}

int alq_cuMipmappedArrayCreate(fn_cuMipmappedArrayCreate *real, int ptsz, CUmipmappedArray *a, const CUDA_ARRAY3D_DESCRIPTOR *d,
                               unsigned levels)
{
    (void)ptsz;
    int card = -1;
    uint64_t bytes = 0;
    int result = d ? reserve_here(array_bytes(d, levels ? levels : 1), &card, &bytes) : CUDA_SUCCESS;
    if (result)
        return result;
    result = real(a, d, levels);
    uint64_t key = a && !result ? (uintptr_t)*a : 0;
    return keep(result, ALQ_ARRAY, &key, card, bytes);
}

int alq_cuArrayDestroy(fn_cuArrayDestroy *real, int ptsz, CUarray a)
{
    (void)ptsz;
    struct alq_entry entry;
    bool known = alq_take(ALQ_ARRAY, (uintptr_t)a, &entry);
    int result = give_back(real(a), &entry, known);
    if (result == CUDA_SUCCESS)
        alq_tiles_ended(a);
    return result;
}

int alq_cuMipmappedArrayDestroy(fn_cuMipmappedArrayDestroy *real, int ptsz, CUmipmappedArray a)
{
    (void)ptsz;
    struct alq_entry entry;
    bool known = alq_take(ALQ_ARRAY, (uintptr_t)a, &entry);
    int result = give_back(real(a), &entry, known);
    if (result == CUDA_SUCCESS)
        alq_tiles_ended(a);
    return result;
}
