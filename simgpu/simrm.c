/* simrm.c - libsimrm.so: the ioctl of a simulated RM file.
 *
 * Preloaded after the shim in a tenant, and alone in the daemon, so that both use plain ioctl() on a simulated card as
 * they do on a real one. Everything that is not an RM file goes on to libc untouched; the test for that
 * costs nothing unless the request is one of RM's ('F').
 */
#define _GNU_SOURCE
#include "wire.h"
#include "../shim/rm.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int ioctl_function(int, unsigned long, ...);

/* libc's ioctl, or whoever else stands between us and it; NULL when it cannot be found. */
static ioctl_function *next_ioctl(void)
{
    static ioctl_function *next;
    ioctl_function *found = __atomic_load_n(&next, __ATOMIC_RELAXED);
    if (!found) {
        found = (ioctl_function *)dlsym(RTLD_NEXT, "ioctl");
        __atomic_store_n(&next, found, __ATOMIC_RELAXED);
    }
    return found;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (_IOC_TYPE(request) == RM_MAGIC && sim_is_rm_file(fd)) return sim_rm_ioctl(fd, request, argument);
    ioctl_function *next = next_ioctl();
    return next ? next(fd, request, argument) : (int)syscall(SYS_ioctl, fd, request, argument);
}
