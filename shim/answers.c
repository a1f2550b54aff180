/* answers.c - how large is the card, and how much of it is free? As large as the quota, for those who ask. */
#include "shim.h"

/* Writes the quota's numbers over the card's, where the card has a quota. */
static void shrink(int card, uint64_t *spare, uint64_t *total)
{
    if (card < 0 || !alq_page())
        return;
    uint64_t limit = alq_limit(card);
    if (limit == ALQ_UNLIMITED)
        return;
    alq_reclaim();                  /* the dead shall not look like memory in use */
    alq_exports_settle();
    uint64_t used = alq_used(card), left = limit > used ? limit - used : 0;
    *total = *total < limit ? *total : limit;
    *spare = *spare < left ? *spare : left;
}

int alq_cuMemGetInfo_v2(fn_cuMemGetInfo_v2 *real, int ptsz, size_t *spare, size_t *total)
{
    (void)ptsz;
    int result = real(spare, total);
    if (result != CUDA_SUCCESS || !spare || !total)
        return result;
    alq_settle();
    uint64_t s = *spare, t = *total;
    shrink(alq_card_of_context(NULL), &s, &t);
    *spare = s;
    *total = t;
    return result;
}

int alq_cuMemGetInfo(fn_cuMemGetInfo *real, int ptsz, unsigned *spare, unsigned *total)
{
    (void)ptsz;
    int result = real(spare, total);
    if (result != CUDA_SUCCESS || !spare || !total)
        return result;
    uint64_t s = *spare, t = *total;
    shrink(alq_card_of_context(NULL), &s, &t);
    *spare = (unsigned)s;
    *total = (unsigned)t;
    return result;
}

int alq_cuDeviceTotalMem_v2(fn_cuDeviceTotalMem_v2 *real, int ptsz, size_t *total, CUdevice device)
{
    (void)ptsz;
    int result = real(total, device);
    int card = result == CUDA_SUCCESS && total ? alq_card_of_device(device) : ALQ_NO_CONTEXT;
    if (card >= 0 && alq_page() && alq_limit(card) < *total)
        *total = alq_limit(card);
    return result;
}

int alq_cuDeviceTotalMem(fn_cuDeviceTotalMem *real, int ptsz, unsigned *total, CUdevice device)
{
    (void)ptsz;
    int result = real(total, device);
    int card = result == CUDA_SUCCESS && total ? alq_card_of_device(device) : ALQ_NO_CONTEXT;
    if (card >= 0 && alq_page() && alq_limit(card) < *total)
        *total = (unsigned)alq_limit(card);
    return result;
}

/* ---- NVML: by the device's UUID. Cards that are not the tenant's are shown as they are. ---- */

static int card_of_nvml(nvmlDevice_t device)
{
    char uuid[96] = "";
    return ALQ_REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid) ? ALQ_NOT_GRANTED : alq_card_of_uuid(uuid);
}

/* The tenant's own, so that `nvidia-smi` shows its memory and not its neighbours'. */
static uint64_t used_of(int card, uint64_t total)
{
    uint64_t used = alq_used(card);
    return used < total ? used : total;
}

int alq_nvmlDeviceGetMemoryInfo(fn_nvmlDeviceGetMemoryInfo *real, int ptsz, nvmlDevice_t device, nvmlMemory_t *info)
{
    (void)ptsz;
    int result = real(device, info), card = result || !info ? ALQ_NOT_GRANTED : card_of_nvml(device);
    if (card >= 0 && alq_limit(card) != ALQ_UNLIMITED) {
        uint64_t spare = info->free, total = info->total;
        shrink(card, &spare, &total);
        *info = (nvmlMemory_t){ .total = total, .free = spare, .used = used_of(card, total) };
    }
    return result;
}

int alq_nvmlDeviceGetMemoryInfo_v2(fn_nvmlDeviceGetMemoryInfo_v2 *real, int ptsz, nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    (void)ptsz;
    int result = real(device, info), card = result || !info ? ALQ_NOT_GRANTED : card_of_nvml(device);
    if (card >= 0 && alq_limit(card) != ALQ_UNLIMITED) {
        uint64_t spare = info->free, total = info->total;
        shrink(card, &spare, &total);
        *info = (nvmlMemory_v2_t){ .version = info->version, .total = total, .free = spare,
                                    .used = used_of(card, total) };
    }
    return result;
}
