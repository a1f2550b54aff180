/* ledger.c - the bytes of a card, asked of the player. */
#include "driver.h"

static CUresult ask(struct device *device, uint32_t kind, uint64_t bytes, struct sim_memory *memory)
{
    struct sim_bytes request = { .head.kind = kind, .card = device->card, .bytes = bytes };
    return driver_error(sim_call(driver.rm, &request, sizeof request, memory, memory ? sizeof *memory : 0, NULL, NULL, NULL));
}

CUresult ledger_reserve(struct device *device, uint64_t bytes)
{
    return bytes ? ask(device, SIM_RESERVE, bytes, NULL) : CUDA_SUCCESS;
}

void ledger_release(struct device *device, uint64_t bytes)
{
    if (bytes) ask(device, SIM_RELEASE, bytes, NULL);
}

CUresult ledger_read(struct device *device, struct sim_memory *memory)
{
    *memory = (struct sim_memory){ 0 };
    return ask(device, SIM_MEMORY, 0, memory);
}

void tally_add(struct tally *tally, int64_t bytes)
{
    tally->current = (uint64_t)((int64_t)tally->current + bytes);
    if (tally->current > tally->high) tally->high = tally->current;
}
