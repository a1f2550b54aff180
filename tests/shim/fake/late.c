/* late.c - a library whose constructor is slow, and asks the driver for a function: the loader's lock is held over it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include "shim.h"

__attribute__((constructor)) static void begin(void)
{
    void *found = NULL;
    int status;
    usleep(100000);     /* by now the program's other thread has begun to ask as well, and waits for the loader's lock */
    fn_cuGetProcAddress_v2 *proc = (fn_cuGetProcAddress_v2 *)dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuGetProcAddress_v2");
    proc("cuMemAlloc", &found, 12000, 0, &status);
}
