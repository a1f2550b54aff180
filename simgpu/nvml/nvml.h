/* nvml.h - the part of NVML that the stand-in has, written out by hand; names, values and layouts are NVIDIA's. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H
#include "../wire.h"
#include <stddef.h>
#include <stdint.h>

typedef enum {
    NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_INVALID_ARGUMENT = 2, NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4, NVML_ERROR_NOT_FOUND = 6, NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10, NVML_ERROR_GPU_IS_LOST = 15, NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25, NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned int pid; unsigned long long usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
_Static_assert(sizeof(nvmlMemory_v2_t) == 40 && sizeof(nvmlProcessInfo_t) == 24, "memory, process");
_Static_assert(sizeof(nvmlPciInfo_t) == 68 && sizeof(nvmlProcessUtilizationSample_t) == 32, "pci, sample");

#define NVML_EVENT_XID 8ull /* nvmlEventTypeXidCriticalError */

#define API __attribute__((visibility("default"))) nvmlReturn_t

struct nvmlDevice_st { uint32_t card; struct sim_card about; };

/* One question about a card to the player; answers of at most `room` bytes, in `count` entries. */
nvmlReturn_t nvml_ask(uint32_t kind, uint32_t card, uint64_t since, void *out, size_t room, uint32_t *count);

/* NVML_SUCCESS, or that the library is not initialised. */
nvmlReturn_t nvml_ready(void);

/* Whether the library is initialised and the handle is one of its cards. */
nvmlReturn_t nvml_check(nvmlDevice_t device);
#endif
