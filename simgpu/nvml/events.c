/* events.c - event sets: the Xids of the cards that are in them. The player keeps the last ones; it is asked often. */
#define _GNU_SOURCE
#include "nvml.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_NS 200000000ull /* the real one is told by the driver; here the player is asked */
#define KEPT_MAX 64

struct nvmlEventSet_st {
    nvmlDevice_t device[SIM_CARDS_MAX]; /* by card; NULL: not in it */
    uint64_t seen[SIM_CARDS_MAX];       /* the number of the last event before it came in, or that was told */
};

/* The events after that number. Returns how many. */
static nvmlReturn_t events_after(uint64_t number, struct sim_event *events, uint32_t *count)
{
    return nvml_ask(SIM_EVENTS, 0, number, events, KEPT_MAX * sizeof *events, count);
}

API nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (nvml_ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    struct sim_event events[KEPT_MAX];
    uint32_t count = 0;
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~NVML_EVENT_XID) return NVML_ERROR_NOT_SUPPORTED;
    if (!types) return NVML_SUCCESS;
    result = events_after(0, events, &count);
    if (result != NVML_SUCCESS) return result;
    set->seen[device->card] = count ? events[count - 1].number : 0;
    set->device[device->card] = device;
    return NVML_SUCCESS;
}

/* The oldest event of a card of the set that was not told yet. Returns NVML_ERROR_TIMEOUT when there is none. */
static nvmlReturn_t next_of(nvmlEventSet_t set, nvmlEventData_t *data)
{
    struct sim_event events[KEPT_MAX];
    uint32_t count = 0;
    nvmlReturn_t result = events_after(0, events, &count);
    if (result != NVML_SUCCESS) return result;
    for (uint32_t i = 0; i < count && i < KEPT_MAX; i++) {
        uint32_t card = events[i].card;
        if (card >= SIM_CARDS_MAX || !set->device[card] || events[i].number <= set->seen[card]) continue;
        set->seen[card] = events[i].number;
        *data = (nvmlEventData_t){ set->device[card], NVML_EVENT_XID, events[i].xid, UINT32_MAX, UINT32_MAX };
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

API nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    uint64_t end = sim_now() + timeout_ms * 1000000ull;
    if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
    for (;;) {
        nvmlReturn_t result = nvml_ready();
        if (result == NVML_SUCCESS) result = next_of(set, data);
        uint64_t now = sim_now();
        if (result != NVML_ERROR_TIMEOUT || now >= end) return result;
        uint64_t rest = end - now < LOOK_NS ? end - now : LOOK_NS;
        struct timespec nap = { 0, (long)rest };
        while (nanosleep(&nap, &nap) != 0 && errno == EINTR) {}
    }
}

API nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}

API nvmlEventSetFree(nvmlEventSet_t set)
{
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    free(set);
    return NVML_SUCCESS;
}
