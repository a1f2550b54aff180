/* processes.c - who is on a card, with how much memory and how much of its time. */
#include "nvml.h"

#define PROCESSES_MAX 1024

/* Reads the processes of a card. `entries` is how many there are. */
static nvmlReturn_t list(nvmlDevice_t device, uint32_t kind, uint64_t since, struct sim_process *out, uint32_t *entries)
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    return nvml_ask(kind, device->card, since, out, PROCESSES_MAX * sizeof *out, entries);
}

/* NVML's way of handing over a list: `count` is the room on the way in, the number on the way out. */
static nvmlReturn_t room_for(unsigned int *count, uint32_t entries, const void *out)
{
    unsigned int room = *count;
    *count = entries;
    if (!entries) return NVML_SUCCESS;
    return out && room >= entries ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out)
{
    struct sim_process processes[PROCESSES_MAX];
    uint32_t entries = 0;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = list(device, SIM_PROCESSES, 0, processes, &entries);
    if (result == NVML_SUCCESS) result = room_for(count, entries, out);
    for (uint32_t i = 0; result == NVML_SUCCESS && i < entries; i++)
        out[i] = (nvmlProcessInfo_t){ processes[i].pid, processes[i].memory, UINT32_MAX, UINT32_MAX };
    return result;
}

API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *out)
{
    struct sim_process processes[PROCESSES_MAX];
    uint32_t entries = 0;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = list(device, SIM_PROCESSES, 0, processes, &entries);
    if (result == NVML_SUCCESS) result = room_for(count, entries, out);
    for (uint32_t i = 0; result == NVML_SUCCESS && i < entries; i++)
        out[i] = (nvmlProcessInfo_v1_t){ processes[i].pid, processes[i].memory };
    return result;
}

API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out)
{
    (void)out;
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out)
{
    return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, out);
}

/* One sample per process that ran something since `seen` (0: in the last second), stamped with its end. */
API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned int *count,
                                    unsigned long long seen)
{
    struct sim_process processes[PROCESSES_MAX];
    uint32_t entries = 0;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = list(device, SIM_SAMPLES, seen, processes, &entries);
    if (result == NVML_SUCCESS && !entries) result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS) result = room_for(count, entries, out);
    for (uint32_t i = 0; result == NVML_SUCCESS && i < entries; i++)
        out[i] = (nvmlProcessUtilizationSample_t){ .pid = processes[i].pid, .timeStamp = processes[i].stamp_us,
                                                   .smUtil = (processes[i].permille + 5) / 10 };
    return result;
}
