/* sharing.c - memory of other processes that is opened here by pointer: cuIpc, pools, and other programs' memory. */
#include "shim.h"

/* What was opened at this address is booked, and charged unless a process of this tenant is. Returns false when that is past
 * the quota: the caller closes it again. */
static bool opened(CUdeviceptr p, bool elsewhere, uint64_t from)
{
    struct alq_entry entry = { .kind = ALQ_OPENED, .key = p, .refs = 1, .elsewhere = elsewhere, .from = from };
    CUdeviceptr base = p;
    size_t size = 0;
    int card = alq_card_of_context(NULL);
    if (card == ALQ_NO_CONTEXT || ALQ_REAL(cuMemGetAddressRange_v2)(&base, &size, p))
        return true;
    entry.size = alq_rounded(size);
    if (card < 0 || (!elsewhere && !alq_make_room(card, entry.size, size, NULL, 0, true)))
        return false;
    entry.card = (int8_t)card;
    entry.owner = (uintptr_t)alq_context();
    alq_import(entry);
    return true;
}

static void count_up(struct alq_entry *entry, void *unused)
{
    (void)unused;
    entry->refs++;
}

static void count_down(struct alq_entry *entry, void *left)
{
    *(uint32_t *)left = entry->refs ? --entry->refs : 0;
}

int alq_cuIpcGetMemHandle(fn_cuIpcGetMemHandle *real, int ptsz, CUipcMemHandle *h, CUdeviceptr p)
{
    (void)ptsz;
    CUdeviceptr base = p;
    size_t size;
    struct alq_entry movable;
    int result = real(h, p);
    if (result != CUDA_SUCCESS && alq_find(ALQ_MOVABLE, p, &movable)) {
        static int said;
        if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
            alq_say("cuIpcGetMemHandle: this program's GPU memory may be parked, and such memory cannot be shared with other processes "
                    "by CUDA's IPC. Start it with another class than offline and without --park, or share it as files (cuMemCreate).");
    }
    if (result == CUDA_SUCCESS && h) {
        if (ALQ_REAL(cuMemGetAddressRange_v2)(&base, &size, p))
            base = p;
        alq_ipc_exported(base, h);
    }
    return result;
}

int alq_cuIpcOpenMemHandle_v2(fn_cuIpcOpenMemHandle_v2 *real, int ptsz, CUdeviceptr *p, CUipcMemHandle h, unsigned flags)
{
    (void)ptsz;
    uint64_t from = 0;
    bool elsewhere = alq_origin_of_ipc(&h, &from);
    int result = real(p, h, flags);
    if (result != CUDA_SUCCESS || !p || alq_change(ALQ_OPENED, *p, count_up, NULL) || opened(*p, elsewhere, from))
        return result;
    ALQ_REAL(cuIpcCloseMemHandle)(*p);
    return alq_refuse(alq_card_of_context(NULL));
}

int alq_cuIpcOpenMemHandle(fn_cuIpcOpenMemHandle *real, int ptsz, CUdeviceptr *p, CUipcMemHandle h, unsigned flags)
{
    return alq_cuIpcOpenMemHandle_v2(real, ptsz, p, h, flags);
}

int alq_cuIpcCloseMemHandle(fn_cuIpcCloseMemHandle *real, int ptsz, CUdeviceptr p)
{
    (void)ptsz;
    struct alq_entry entry;
    uint32_t left = 1;
    bool last = alq_change(ALQ_OPENED, p, count_down, &left) && !left && alq_take(ALQ_OPENED, p, &entry);
    int result = real(p);
    if (last && result == CUDA_SUCCESS) {
        alq_ended(&entry);
    } else if (last) {
        entry.refs = 1;
        alq_book(entry);
    } else if (result != CUDA_SUCCESS) {
        alq_change(ALQ_OPENED, p, count_up, NULL);
    }
    return result;
}

/* ---- pools: the importer may use what the exporter allocated, and allocates nothing ---- */

int alq_cuMemPoolImportFromShareableHandle(fn_cuMemPoolImportFromShareableHandle *real, int ptsz, CUmemoryPool *pool, void *from,
                                           int type, unsigned long long flags)
{
    (void)ptsz;
    struct alq_entry entry = { .kind = ALQ_POOL_IN };
    entry.now = type == HANDLE_FD && alq_origin_of_file((int)(intptr_t)from, &entry.from);
    int result = real(pool, from, type, flags);
    if (result == CUDA_SUCCESS && pool) {
        entry.key = (uintptr_t)*pool;
        alq_book(entry);
    }
    return result;
}

int alq_cuMemPoolImportPointer(fn_cuMemPoolImportPointer *real, int ptsz, CUdeviceptr *p, CUmemoryPool pool, void *data)
{
    (void)ptsz;
    struct alq_entry known = { .now = 0, .from = 0 };
    int result = real(p, pool, data);
    if (result != CUDA_SUCCESS || !p || alq_change(ALQ_OPENED, *p, count_up, NULL))
        return result;
    alq_find(ALQ_POOL_IN, (uintptr_t)pool, &known);
    if (opened(*p, known.now, known.from))
        return result;
    ALQ_REAL(cuMemFree_v2)(*p);
    return alq_refuse(alq_card_of_context(NULL));
}

/* ---- memory of graphics programs and of other devices ---- */

int alq_cuImportExternalMemory(fn_cuImportExternalMemory *real, int ptsz, void **memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
    (void)ptsz;
    int card = desc ? alq_card_of_context(NULL) : ALQ_NO_CONTEXT;
    if (card == ALQ_NO_CONTEXT)
        return real(memory, desc);
    uint64_t size = desc->size;
    if (card < 0 || (size && !alq_make_room(card, size, size, NULL, 0, true)))
        return alq_refuse(card);
    int result = real(memory, desc);
    if (result != CUDA_SUCCESS)
        alq_charge(card, -(int64_t)size);
    else if (memory)
        alq_book((struct alq_entry){ .kind = ALQ_EXTERNAL, .key = (uintptr_t)*memory, .size = size, .card = (int8_t)card });
    return result;
}

int alq_cuDestroyExternalMemory(fn_cuDestroyExternalMemory *real, int ptsz, void *memory)
{
    (void)ptsz;
    struct alq_entry entry;
    bool known = alq_take(ALQ_EXTERNAL, (uintptr_t)memory, &entry);
    int result = real(memory);
    if (known && result == CUDA_SUCCESS)
        alq_ended(&entry);
    else if (known)
        alq_book(entry);
    return result;
}
