/* rm.c - a resource manager of straw: answers ioctls of type 'F' on any file, and remembers what was asked of it.
 * Preloaded after the shim, where the real ioctl would be. Controls are written to the file FAKE_RM_LOG names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "rm.h"

#define PUBLIC __attribute__((visibility("default")))
static uint32_t next_handle = 0x5c000001;

static void note(const char *what, uint32_t client, uint32_t object, uint32_t channels)
{
    const char *path = getenv("FAKE_RM_LOG");
    char line[128];
    int n = snprintf(line, sizeof line, "%s %08x %08x %u\n", what, client, object, channels);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && write(fd, line, (size_t)n) < 0) { }
    if (fd >= 0)
        close(fd);
}

static void control(struct rm_control *c)
{
    c->status = RM_OK;
    if (c->command == RM_DISABLE_CHANNELS) {
        const struct rm_disable *d = (const void *)(uintptr_t)c->params;
        note(d->disable ? "disable" : "enable", c->client, c->object, d->channels);
    } else if (c->command == RM_GET_GID_INFO) {
        struct rm_gid *g = (void *)(uintptr_t)c->params;    /* subdevices with an odd handle are on the second card */
        unsigned b = c->object & 1 ? 0x22 : 0x11;
        g->length = (uint32_t)snprintf((char *)g->data, sizeof g->data, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
                                       "%02x%02x%02x%02x%02x%02x", b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b) + 1;
    } else {
        c->status = RM_NOT_SUPPORTED;
    }
}

static int answer(unsigned long request, void *argument)
{
    unsigned number = _IOC_NR(request), size = _IOC_SIZE(request);
    if (number == RM_ESC_XFER) {
        struct rm_xfer *x = argument;
        number = x->command, size = x->size, argument = (void *)(uintptr_t)x->pointer;
    }
    if (number == RM_ESC_ALLOC) {
        struct rm_alloc *a = argument;
        if (!a->object)
            a->object = next_handle++;
        *(size == sizeof(struct rm_alloc64) ? &((struct rm_alloc64 *)argument)->status : &a->status) = RM_OK;
    } else if (number == RM_ESC_FREE) {
        ((struct rm_free *)argument)->status = RM_OK;
    } else if (number == RM_ESC_CONTROL) {
        control(argument);
    } else {
        errno = EINVAL;
        return -1;
    }
    return 0;
}

PUBLIC int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (_IOC_TYPE(request) == RM_MAGIC)
        return fcntl(fd, F_GETFD) < 0 ? -1 : answer(request, argument);
    return (int)syscall(SYS_ioctl, fd, request, argument);
}
