/* nvml.c - cards: how many, which, what they have and do. */
#define _GNU_SOURCE
#include "nvml.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define DRIVER_VERSION "580.0.0-simulated"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static struct nvmlDevice_st cards[SIM_CARDS_MAX];
static unsigned count;

/* Any number of threads may ask at once, and a forked child too: every request brings its own way back. */
nvmlReturn_t nvml_ask(uint32_t kind, uint32_t card, uint64_t since, void *out, size_t room, uint32_t *entries)
{
    struct sim_since request = { .head.kind = kind, .card = card, .since_us = since };
    struct sim_bytes bytes = { .head.kind = kind, .card = card };
    int error = kind == SIM_MEMORY ? sim_call(-1, &bytes, sizeof bytes, out, room, NULL, entries, NULL)
                                   : sim_call(-1, &request, sizeof request, out, room, NULL, entries, NULL);
    if (!error) return NVML_SUCCESS;
    return error == ENODEV ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvml_ready(void)
{
    return __atomic_load_n(&users, __ATOMIC_ACQUIRE) ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvml_check(nvmlDevice_t device)
{
    if (nvml_ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; i < count; i++)
        if (device == &cards[i]) return NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* With the lock held. */
static nvmlReturn_t read_cards(void)
{
    struct sim_card about[SIM_CARDS_MAX];
    uint32_t entries = 0;
    if (nvml_ask(SIM_CARDS, 0, 0, about, sizeof about, &entries) != NVML_SUCCESS || entries > SIM_CARDS_MAX)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    for (count = 0; count < entries; count++) cards[count] = (struct nvmlDevice_st){ count, about[count] };
    return NVML_SUCCESS;
}

API nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : read_cards();
    if (result == NVML_SUCCESS) users++;
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users) users--;
    pthread_mutex_unlock(&lock);
    return result;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
    switch ((int)result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

/* Writes a text into the caller's room, or says that it is too small. */
static nvmlReturn_t say(char *out, unsigned int room, const char *text)
{
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

API nvmlSystemGetDriverVersion(char *version, unsigned int room)
{
    return users ? say(version, room, DRIVER_VERSION) : NVML_ERROR_UNINITIALIZED;
}

API nvmlSystemGetNVMLVersion(char *version, unsigned int room)
{
    return users ? say(version, room, "13.580.0-simulated") : NVML_ERROR_UNINITIALIZED;
}

API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = 13000;
    return NVML_SUCCESS;
}

API nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API nvmlDeviceGetCount_v2(unsigned int *out)
{
    if (!users) return NVML_ERROR_UNINITIALIZED;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    *out = count;
    return NVML_SUCCESS;
}

/* The card's handle; as on a real one, not while the card is off the bus. */
static nvmlReturn_t handle_of(unsigned int index, nvmlDevice_t *device)
{
    struct sim_memory memory;
    nvmlReturn_t result = nvml_ask(SIM_MEMORY, index, 0, &memory, sizeof memory, NULL);
    if (result == NVML_SUCCESS) *device = &cards[index];
    return result;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (!users) return NVML_ERROR_UNINITIALIZED;
    if (!device || index >= count) return NVML_ERROR_INVALID_ARGUMENT;
    return handle_of(index, device);
}

API nvmlDeviceGetCount(unsigned int *out)
{
    return nvmlDeviceGetCount_v2(out);
}

API nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (!users) return NVML_ERROR_UNINITIALIZED;
    if (!device || !uuid) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < count; i++)
        if (strcasecmp(uuid, cards[i].about.uuid) == 0) return handle_of(i, device);
    return NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    unsigned domain, bus, slot;
    if (!users) return NVML_ERROR_UNINITIALIZED;
    if (!device || !bus_id || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_ERROR_INVALID_ARGUMENT;
    if (domain || slot || !bus || bus > count) return NVML_ERROR_NOT_FOUND;
    return handle_of(bus - 1, device);
}

API nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int room)
{
    nvmlReturn_t result = nvml_check(device);
    return result == NVML_SUCCESS ? say(uuid, room, device->about.uuid) : result;
}

API nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int room)
{
    nvmlReturn_t result = nvml_check(device);
    return result == NVML_SUCCESS ? say(name, room, device->about.name) : result;
}

/* Answers that are one number each. */
#define NUMBER(function, type, value) \
    API function(nvmlDevice_t device, type *out) \
    { \
        nvmlReturn_t result = nvml_check(device); \
        if (result != NVML_SUCCESS) return result; \
        if (!out) return NVML_ERROR_INVALID_ARGUMENT; \
        *out = value; \
        return NVML_SUCCESS; \
    }
NUMBER(nvmlDeviceGetIndex, unsigned int, device->card)
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, device->card)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, 120000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, 700000)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, 700000)
NUMBER(nvmlDeviceGetComputeMode, unsigned int, 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned int, 1)
NUMBER(nvmlDeviceGetBrand, unsigned int, 14)
NUMBER(nvmlDeviceGetArchitecture, unsigned int, 9)
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, NVML_EVENT_XID)

/* Questions that this card has no answer to. */
#define NOT_SUPPORTED(function, ...) \
    API function(nvmlDevice_t device, __VA_ARGS__) \
    { \
        nvmlReturn_t result = nvml_check(device); \
        return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result; \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
NOT_SUPPORTED(nvmlDeviceGetNumaNodeId, unsigned int *node)
NOT_SUPPORTED(nvmlDeviceGetMaxMigDeviceCount, unsigned int *most)
NOT_SUPPORTED(nvmlDeviceGetAccountingMode, unsigned int *mode)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed, unsigned int *speed)
#pragma GCC diagnostic pop

/* A simulated card has no MIG mode until a test switches it on. */
API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    uint32_t on = 0;
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
    if (nvml_ask(SIM_MIG_MODE, device->card, 0, &on, sizeof on, NULL) != NVML_SUCCESS || !on)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

API nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *out)
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!out || sensor) return NVML_ERROR_INVALID_ARGUMENT;
    *out = 36;
    return NVML_SUCCESS;
}

/* Clocks: graphics, SM, memory, video; in MHz. */
API nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *out)
{
    static const unsigned int clocks[] = { 1980, 1980, 3201, 1545 };
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!out || type >= sizeof clocks / sizeof *clocks) return NVML_ERROR_INVALID_ARGUMENT;
    *out = clocks[type];
    return NVML_SUCCESS;
}

/* A simulated card has no video engines at work. */
#define IDLE_ENGINE(function) \
    API function(nvmlDevice_t device, unsigned int *out, unsigned int *period) \
    { \
        nvmlReturn_t result = nvml_check(device); \
        if (result != NVML_SUCCESS) return result; \
        if (!out || !period) return NVML_ERROR_INVALID_ARGUMENT; \
        *out = 0; \
        *period = 167000; \
        return NVML_SUCCESS; \
    }
IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)

API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    *pci = (nvmlPciInfo_t){ .bus = device->card + 1, .pciDeviceId = 0x233510de, .pciSubSystemId = 0x18be10de };
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", device->card + 1);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", device->card + 1);
    return NVML_SUCCESS;
}

static nvmlReturn_t memory_of(nvmlDevice_t device, const void *out, struct sim_memory *memory)
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    return nvml_ask(SIM_MEMORY, device->card, 0, memory, sizeof *memory, NULL);
}

API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    struct sim_memory memory = { 0 };
    nvmlReturn_t result = memory_of(device, out, &memory);
    if (result == NVML_SUCCESS) *out = (nvmlMemory_t){ memory.total, memory.total - memory.used, memory.used };
    return result;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    struct sim_memory memory = { 0 };
    nvmlReturn_t result = memory_of(device, out, &memory);
    if (result != NVML_SUCCESS) return result;
    if (out->version != (sizeof *out | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *out = (nvmlMemory_v2_t){ out->version, memory.total, 0, memory.total - memory.used, memory.used };
    return NVML_SUCCESS;
}

API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    struct sim_load load = { 0 };
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    result = nvml_ask(SIM_LOAD, device->card, 0, &load, sizeof load, NULL);
    if (result == NVML_SUCCESS) *out = (nvmlUtilization_t){ (load.permille + 5) / 10, load.memory_percent };
    return result;
}
