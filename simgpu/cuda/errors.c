/* errors.c - names of errors. */
#include "api.h"

#define ERRORS(E) \
    E(CUDA_SUCCESS, "no error") \
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument") \
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory") \
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error") \
    E(CUDA_ERROR_DEINITIALIZED, "driver shutting down") \
    E(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable") \
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected") \
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal") \
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid") \
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context") \
    E(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture") \
    E(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed") \
    E(CUDA_ERROR_FILE_NOT_FOUND, "file not found") \
    E(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS") \
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle") \
    E(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state") \
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found") \
    E(CUDA_ERROR_NOT_READY, "device not ready") \
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered") \
    E(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process") \
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed") \
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure") \
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted") \
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported") \
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing") \
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture") \
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not initiated in this stream") \
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work") \
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream") \
    E(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream") \
    E(CUDA_ERROR_UNKNOWN, "unknown error")

API cuGetErrorName(CUresult error, const char **text)
{
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    switch ((int)error) {
#define NAME(name, description) case name: *text = #name; break;
    ERRORS(NAME)
#undef NAME
    }
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult error, const char **text)
{
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    switch ((int)error) {
#define DESCRIPTION(name, description) case name: *text = description; break;
    ERRORS(DESCRIPTION)
#undef DESCRIPTION
    }
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
