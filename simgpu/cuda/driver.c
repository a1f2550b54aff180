/* driver.c - cuInit: the cards of the player that this process may see. */
#define _GNU_SOURCE
#include "driver.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct driver driver = { .rm = -1, .lock = PTHREAD_MUTEX_INITIALIZER };

CUresult driver_check(void)
{
    return driver.ready && driver.pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_error(int error)
{
    if (!error) return CUDA_SUCCESS;
    if (error == ENOMEM) return CUDA_ERROR_OUT_OF_MEMORY;
    return error == ENODEV ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_ERROR_OPERATING_SYSTEM;
}

struct device *device_of(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < driver.count ? &driver.device[ordinal] : NULL;
}

CUdevice ordinal_of(const struct device *device)
{
    return (CUdevice)(device - driver.device);
}

/* The card that one entry of CUDA_VISIBLE_DEVICES names: an index, or "GPU-..." cut anywhere. -1: none, or several. */
static int card_named(const char *entry, size_t length, const struct sim_card *cards, int count)
{
    int found = -1;
    if (length > 4 && strncasecmp(entry, "GPU-", 4) == 0) {
        for (int i = 0; i < count; i++) {
            if (length > strlen(cards[i].uuid) || strncasecmp(entry, cards[i].uuid, length) != 0) continue;
            if (found >= 0) return -1;
            found = i;
        }
        return found;
    }
    char *end;
    long index = strtol(entry, &end, 10);
    return end == entry + length && length && index >= 0 && index < count ? (int)index : -1;
}

/* Lists the cards that are wanted, in that order. As the real driver does, the list ends at the first entry that names
 * no card; a card named twice leaves none. Returns how many. */
static int choose(const char *wanted, const struct sim_card *cards, int count, int *order)
{
    int n = 0;
    if (!wanted) {
        for (; n < count; n++) order[n] = n;
        return n;
    }
    while (n < DEVICES) {
        while (*wanted == ' ') wanted++;
        size_t length = strcspn(wanted, ", ");
        int card = card_named(wanted, length, cards, count);
        if (card < 0) break;
        for (int i = 0; i < n; i++)
            if (order[i] == card) return 0;
        order[n++] = card;
        wanted += length;
        while (*wanted == ' ') wanted++;
        if (*wanted++ != ',') break;
    }
    return n;
}

/* The cards that this process may see. A client of MPS counts those of its server, not those of the machine.
 *
 * NVIDIA's container runtime gives a container only the cards of NVIDIA_VISIBLE_DEVICES. No such runtime is between the
 * simulated cards and their containers: where only that variable names cards, it is obeyed here. */
static int visible(const struct sim_card *cards, int count, int *order)
{
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES"), *given = getenv("NVIDIA_VISIBLE_DEVICES");
    struct sim_card served[DEVICES];
    int first[DEVICES], own[DEVICES];
    char list[DEVICES * 48] = "";
    if (!wanted && given && strncmp(given, "GPU-", 4) == 0) wanted = given;
    if (driver.mps) mps_cards(list, sizeof list);
    count = choose(list[0] ? list : NULL, cards, count, first);
    for (int i = 0; i < count; i++) served[i] = cards[first[i]];
    int n = choose(wanted, served, count, own);
    for (int i = 0; i < n; i++) order[i] = first[own[i]];
    return n;
}

static CUresult find_devices(void)
{
    struct { struct sim_head head; } request = { .head.kind = SIM_CARDS };
    struct sim_card cards[DEVICES];
    int order[DEVICES];
    uint32_t count = 0;
    size_t got = 0;
    if (sim_call(driver.rm, &request, sizeof request, cards, sizeof cards, &got, &count, NULL) != 0 ||
        count > DEVICES || got < count * sizeof *cards)
        return CUDA_ERROR_NO_DEVICE;
    driver.count = visible(cards, (int)count, order);
    for (int i = 0; i < driver.count; i++) {
        struct device *device = &driver.device[i];
        const struct sim_card *card = &cards[order[i]];
        device->card = (uint32_t)order[i];
        device->memory = card->memory;
        memcpy(device->uuid, card->uuid, sizeof device->uuid);
        memcpy(device->name, card->name, sizeof device->name);
        pools_set_up(device);
    }
    return driver.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

API cuInit(unsigned int flags)
{
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (driver.ready) return driver_check();
    pthread_mutex_lock(&driver.lock);
    CUresult result = CUDA_SUCCESS;
    if (!driver.ready) {
        driver.pid = getpid();
        result = rm_open();
        if (result == CUDA_SUCCESS) result = find_devices();
        if (result != CUDA_SUCCESS && driver.rm >= 0) {
            close(driver.rm);
            driver.rm = -1;
        }
        driver.ready = result == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API cuDriverGetVersion(int *version)
{
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}
