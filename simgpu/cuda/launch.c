/* launch.c - launches. A kernel whose name begins with "burn" takes burn(u64 iterations, u64 out): a nanosecond per
 * iteration, and at `out`, if that is not 0, it counts one more and notes when it began and ended. Others: 10 us. */
#include "launch.h"
#include <string.h>

#define KERNEL_NS 10000ull

/* The first two parameters of a burn kernel, given as pointers to each or as one buffer. */
static bool burn_parameters(void **parameters, void **extra, uint64_t value[2])
{
    const char *buffer = NULL;
    size_t size = 0;
    if (parameters && parameters[0] && parameters[1]) {
        memcpy(&value[0], parameters[0], sizeof value[0]);
        memcpy(&value[1], parameters[1], sizeof value[1]);
        return true;
    }
    for (void **at = extra; at && *at != CU_LAUNCH_PARAM_END; at += 2) {
        if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = at[1];
        else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) memcpy(&size, at[1], sizeof size);
        else return false;
    }
    if (!buffer || size < 2 * sizeof value[0]) return false;
    memcpy(value, buffer, 2 * sizeof value[0]);
    return true;
}

CUresult kernel_op(CUfunction function, const unsigned int shape[6], void **parameters, void **extra, struct op *op)
{
    uint64_t value[2] = { 0 };
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(function, H_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < 6; i++)
        if (!shape[i]) return CUDA_ERROR_INVALID_VALUE;
    if ((uint64_t)shape[3] * shape[4] * shape[5] > 1024) return CUDA_ERROR_INVALID_VALUE;
    *op = (struct op){ .kind = OP_KERNEL, .duration_ns = KERNEL_NS };
    if (!function->burns) return CUDA_SUCCESS;
    if (!burn_parameters(parameters, extra, value)) return CUDA_ERROR_INVALID_VALUE;
    op->duration_ns = value[0];
    op->kernel.out = value[1];
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const unsigned int shape[6], CUstream handle, void **parameters,
                       void **extra)
{
    struct op op;
    CUstream stream;
    CUresult result = kernel_op(function, shape, parameters, extra, &op);
    if (result == CUDA_SUCCESS) result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    result = stream_issue(stream, &op);
    if (op.kernel.out && !memory_known(op.kernel.out, 3 * sizeof(uint64_t))) /* the real one would fault */
        stream->context->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
    return result;
}

#define SHAPE { gx, gy, gz, bx, by, bz }

API cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                   unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                   void **extra)
{
    (void)shared;
    return launch(function, (const unsigned int[6])SHAPE, stream, parameters, extra);
}

API cuLaunchKernel_ptsz(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                        void **extra)
{
    (void)shared;
    return launch(function, (const unsigned int[6])SHAPE, stream ? stream : CU_STREAM_PER_THREAD, parameters, extra);
}

API cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                              unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
                              void **parameters)
{
    (void)shared;
    return launch(function, (const unsigned int[6])SHAPE, stream, parameters, NULL);
}

API cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                                   unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                                   CUstream stream, void **parameters)
{
    (void)shared;
    return launch(function, (const unsigned int[6])SHAPE, stream ? stream : CU_STREAM_PER_THREAD, parameters, NULL);
}

static CUresult launch_ex(const CUlaunchConfig *config, CUfunction function, CUstream stream, void **parameters,
                          void **extra)
{
    const unsigned int shape[6] = { config->gridDimX, config->gridDimY, config->gridDimZ,
                                    config->blockDimX, config->blockDimY, config->blockDimZ };
    return launch(function, shape, stream, parameters, extra);
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    return config ? launch_ex(config, function, config->hStream, parameters, extra) : CUDA_ERROR_INVALID_VALUE;
}

API cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    return launch_ex(config, function, config->hStream ? config->hStream : CU_STREAM_PER_THREAD, parameters, extra);
}
