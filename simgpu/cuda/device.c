/* device.c - what a card says about itself: the figures of an H200. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct { int attribute, value; } ATTRIBUTES[] = {
    { 1, 1024 }, { 2, 1024 }, { 3, 1024 }, { 4, 64 },                    /* threads and dimensions of a block */
    { 5, 2147483647 }, { 6, 65535 }, { 7, 65535 },                       /* dimensions of a grid */
    { 8, 49152 }, { 9, 65536 }, { 10, 32 }, { 11, 2147483647 }, { 12, 65536 }, { 13, 1980000 }, { 14, 512 }, { 15, 1 },
    { 16, 132 },                                                         /* multiprocessors */
    { 19, 1 }, { 30, 512 }, { 31, 1 }, { 32, 1 }, { 36, 3201000 }, { 37, 6144 }, { 38, 62914560 }, { 39, 2048 },
    { 40, 3 }, { 41, 1 }, { 51, 32 },
    { 75, 9 }, { 76, 0 },                                                /* compute capability */
    { 78, 1 }, { 79, 1 }, { 80, 1 }, { 81, 233472 }, { 82, 65536 }, { 83, 1 }, { 87, 2 }, { 89, 1 }, { 90, 1 },
    { 91, 1 }, { 95, 1 }, { 97, 232448 }, { 99, 1 }, { 102, 1 }, { 103, 1 }, { 106, 32 }, { 111, 1024 }, { 115, 1 },
    { 119, 1 }, { 120, 1 }, { 126, 4 }, { 131, -1 },
};

/* Checks what every query needs. `out` is where its answer goes. */
static CUresult check(const struct device *device, const void *out)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API cuDeviceGetCount(int *count)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = driver.count;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = check(device_of(ordinal), device);
    if (result == CUDA_SUCCESS) *device = ordinal;
    return result;
}

API cuDeviceGetName(char *name, int room, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = check(device, name);
    if (result != CUDA_SUCCESS) return result;
    if (room <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)room, "%s", device->name);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = check(device, uuid);
    if (result != CUDA_SUCCESS) return result;
    const char *at = device->uuid + 4; /* "GPU-" */
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        if (*at == '-') at++;
        if (*at) sscanf(at, "%2x", &byte);
        uuid->bytes[i] = (char)byte;
        at += at[0] && at[1] ? 2 : 0;
    }
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    return cuDeviceGetUuid_v2(uuid, ordinal);
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = check(device, bytes);
    if (result == CUDA_SUCCESS) *bytes = device->memory;
    return result;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = check(device, value);
    if (result != CUDA_SUCCESS) return result;
    if ((int)attribute < 1 || (int)attribute > 200) return CUDA_ERROR_INVALID_VALUE;
    *value = (int)attribute == 33 ? (int)device->card + 1 : 0; /* PCI bus */
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++)
        if (ATTRIBUTES[i].attribute == (int)attribute) *value = ATTRIBUTES[i].value;
    return CUDA_SUCCESS;
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
    CUresult result = check(device_of(ordinal), major && minor ? major : NULL);
    if (result != CUDA_SUCCESS) return result;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *text, int room, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    CUresult result = check(device, text);
    if (result != CUDA_SUCCESS) return result;
    if (room < 13) return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, (size_t)room, "0000:%02x:00.0", device->card + 1);
    return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *found, const char *text)
{
    unsigned domain, bus, slot, function = 0;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!found || !text) return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < driver.count; i++)
        if (driver.device[i].card + 1 == bus && !domain && !slot && !function) {
            *found = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

API cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to)
{
    CUresult result = check(device_of(from), can);
    if (result != CUDA_SUCCESS) return result;
    if (!device_of(to)) return CUDA_ERROR_INVALID_DEVICE;
    *can = 0;
    return CUDA_SUCCESS;
}
