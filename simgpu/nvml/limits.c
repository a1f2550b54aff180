/* limits.c - the driver's own memory limits of a cgroup (r615 and newer), kept as NVML does with the kernel's dmem
 * controller: in dmem.max of the cgroup's folder, a line for each card. The simulated cards do not enforce them. */
#include "nvml.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit; } nvmlSetMemoryLimits_v1_t;
typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit, currentUsed; } nvmlGetMemoryLimits_v1_t;

static nvmlReturn_t why(void)
{
    return errno == ENOENT || errno == ENOTDIR ? NVML_ERROR_NOT_FOUND
        : errno == EACCES || errno == EPERM || errno == EROFS ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
}

static int path_of(const char *folder, char *path, size_t room)
{
    return folder && snprintf(path, room, "%s/dmem.max", folder) < (int)room;
}

API nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    char path[4096];
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!limits || !path_of(limits->nameSpace, path, sizeof path)) return NVML_ERROR_INVALID_ARGUMENT;
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return why();
    int written = dprintf(file, "nvidia/0000:%02x:00.0/vidmem %llu\n", device->card + 1, limits->hardLimit);
    if (written < 0) result = why();
    close(file);
    return result;
}

API nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    char path[4096], line[256], key[64];
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!limits || !path_of(limits->nameSpace, path, sizeof path)) return NVML_ERROR_INVALID_ARGUMENT;
    FILE *file = fopen(path, "re");
    if (!file) return why();
    snprintf(key, sizeof key, "nvidia/0000:%02x:00.0/vidmem ", device->card + 1);
    limits->softLimit = limits->currentUsed = 0;
    limits->hardLimit = ~0ull;
    while (fgets(line, sizeof line, file)) /* the last one holds */
        if (!strncmp(line, key, strlen(key))) sscanf(line + strlen(key), "%llu", &limits->hardLimit);
    fclose(file);
    return NVML_SUCCESS;
}
