/* procaddr.c - cuGetProcAddress: the function of a name, as it was in a version of CUDA. */
#include "api.h"
#include "functions.h"
#include <stdbool.h>
#include <string.h>

/* The newest form of the function that a program built for `version` knows. `status` says why there is none. */
static void (*look_up(const char *name, int version, bool per_thread, CUdriverProcAddressQueryResult *status))(void)
{
    const struct function *best = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        const struct function *f = &FUNCTIONS[i];
        if (strcmp(f->name, name) != 0) continue;
        if (f->since > version) {
            if (!best) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        } else if (!best || f->since > best->since) best = f;
    }
    if (!best) return NULL;
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return per_thread ? best->per_thread : best->symbol;
}

API cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult why;
    if (!name || !function || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    void (*found)(void) = look_up(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &why);
    memcpy(function, &found, sizeof found);
    if (status) *status = why;
    return found || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND; /* with a status, not finding it is no error */
}

API cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
