/* old.c - earlier forms of functions that programs still ask for by name. */
#include "api.h"

#define OLD(name, now, parameters, arguments) \
    CUresult now parameters; \
    API name parameters { return now arguments; }

OLD(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext context), (context))
OLD(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext context), (context))
OLD(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext *context), (context))
OLD(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream), (stream))
OLD(cuEventDestroy, cuEventDestroy_v2, (CUevent event), (event))
OLD(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))
OLD(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice device), (device))
OLD(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags), (device, flags))
OLD(cuMemHostRegister, cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned int flags),
    (pointer, bytes, flags))
