/* rm.c - the RM objects of a process, made by ioctl() as the real driver makes them.
 *
 * The calls go through libc's name on purpose: a shim that is loaded before sees the same sequence as on a real card.
 */
#define _GNU_SOURCE
#include "driver.h"
#include "../../shim/rm.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ENGINE_COPY0 9u

struct device_params { uint32_t card, share, target_client, target_device, flags, pad; uint64_t rest[4]; };

/* The ioctl of this file, also where libsimrm.so is not loaded (nobody watches then). A client of MPS makes none that
 * could be watched: on a real card the channel groups are the server's. */
static int rm_ioctl(unsigned long request, void *argument)
{
    if (driver.mps) return sim_rm_ioctl(driver.rm, request, argument);
    int result = ioctl(driver.rm, request, argument);
    return result < 0 && errno == ENOTTY ? sim_rm_ioctl(driver.rm, request, argument) : result;
}

/* Makes an object and writes its handle. Returns a CUresult. */
static CUresult make(uint32_t parent, uint32_t class_, void *params, uint32_t size, uint32_t *handle)
{
    struct rm_alloc64 alloc = { .root = driver.client, .parent = parent, .class_ = class_,
                                .params = (uint64_t)(uintptr_t)params, .params_size = size };
    if (rm_ioctl(RM_IOC_ALLOC64, &alloc) != 0) return driver_error(errno);
    *handle = alloc.object;
    if (alloc.status == RM_GPU_IS_LOST) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return alloc.status == RM_OK ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static void drop(uint32_t handle)
{
    struct rm_free request = { .root = driver.client, .object = handle };
    if (handle) rm_ioctl(RM_IOC_FREE, &request);
}

CUresult rm_open(void)
{
    struct rm_alloc root = { .class_ = RM_CLASS_ROOT };
    driver.mps = mps_is_there();
    driver.rm = sim_open();
    if (driver.rm < 0 || rm_ioctl(RM_IOC_ALLOC, &root) != 0 || root.status != RM_OK) return CUDA_ERROR_NO_DEVICE;
    driver.client = root.object;
    return CUDA_SUCCESS;
}

CUresult rm_make_device(struct device *device)
{
    struct device_params params = { .card = device->card };
    CUresult result = CUDA_SUCCESS;
    if (!device->rm_device)
        result = make(driver.client, RM_CLASS_DEVICE, &params, sizeof params, &device->rm_device);
    if (result == CUDA_SUCCESS && !device->rm_subdevice)
        result = make(device->rm_device, RM_CLASS_SUBDEVICE, NULL, 0, &device->rm_subdevice);
    return result;
}

/* Maps the lane of the context's group. */
static CUresult attach(CUcontext context)
{
    struct sim_attach request = { .head.kind = SIM_ATTACH, .client = driver.client, .group = context->group };
    int file = -1;
    int error = sim_call(driver.rm, &request, sizeof request, NULL, 0, NULL, NULL, &file);
    if (error) return driver_error(error);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    context->lane = mmap(NULL, sizeof *context->lane, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (context->lane != MAP_FAILED) return CUDA_SUCCESS;
    context->lane = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult rm_add_channel(CUcontext context)
{
    uint32_t channel, compute;
    if (context->channels == CHANNELS_MAX) return CUDA_SUCCESS;
    CUresult result = make(context->group, RM_CLASS_HOPPER_CHANNEL, NULL, 0, &channel);
    if (result == CUDA_SUCCESS) result = make(channel, RM_CLASS_HOPPER_COMPUTE, NULL, 0, &compute);
    if (result == CUDA_SUCCESS) context->channel[context->channels++] = channel;
    return result;
}

CUresult rm_make_groups(CUcontext context)
{
    struct rm_group_params compute = { .engine = RM_ENGINE_GR_FIRST }, copy = { .engine = ENGINE_COPY0 };
    uint32_t device = context->device->rm_device, channel;
    CUresult result = make(device, RM_CLASS_GROUP, &compute, sizeof compute, &context->group);
    if (result == CUDA_SUCCESS && driver.mps) result = mps_join(context);
    if (result == CUDA_SUCCESS) result = attach(context);
    while (result == CUDA_SUCCESS && context->channels < CHANNELS_MIN) result = rm_add_channel(context);
    if (result == CUDA_SUCCESS) result = make(device, RM_CLASS_GROUP, &copy, sizeof copy, &context->copy_group);
    if (result == CUDA_SUCCESS) result = make(context->copy_group, RM_CLASS_HOPPER_CHANNEL, NULL, 0, &channel);
    return result;
}

void rm_free_groups(CUcontext context)
{
    drop(context->copy_group);
    drop(context->group);
    context->copy_group = context->group = 0;
}
