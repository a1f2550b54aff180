/* rmcall.c - the ioctls of an RM file, as requests to the player. */
#define _GNU_SOURCE
#include "wire.h"
#include "../shim/rm.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int sim_is_rm_file(int fd)
{
    int error = errno;
    struct stat found;
    const char *path = getenv(SIM_ENV);
    int is = path && *path && fstat(fd, &found) == 0 && S_ISFIFO(found.st_mode);
    errno = error;
    return is;
}

/* What the struct of an ioctl points to. Real RM knows the size of each class's parameters; the one that matters here
 * is the group's, which libraries pass with a size of 0. Returns 0, or EINVAL for a struct that no RM ioctl has. */
static int params_of(unsigned nr, unsigned size, const void *argument, void **params, uint32_t *length)
{
    *params = NULL;
    *length = 0;
    if (nr == RM_ESC_FREE) return size == sizeof(struct rm_free) ? 0 : EINVAL;
    if (nr == RM_ESC_CONTROL && size == sizeof(struct rm_control)) {
        const struct rm_control *control = argument;
        *params = (void *)(uintptr_t)control->params;
        *length = control->params_size;
    } else if (nr == RM_ESC_ALLOC && (size == sizeof(struct rm_alloc) || size == sizeof(struct rm_alloc64))) {
        const struct rm_alloc *alloc = argument; /* the same up to params */
        *params = (void *)(uintptr_t)alloc->params;
        *length = size == sizeof *alloc ? alloc->params_size : ((const struct rm_alloc64 *)argument)->params_size;
        if (*params && !*length && alloc->class_ == RM_CLASS_GROUP) *length = sizeof(struct rm_group_params);
    } else return EINVAL;
    if (!*params) *length = 0;
    return *length <= SIM_PARAMS_MAX ? 0 : EINVAL;
}

int sim_rm_ioctl(int fd, unsigned long request, void *argument)
{
    struct { struct sim_ioctl head; uint8_t bytes[SIM_STRUCT_MAX + SIM_PARAMS_MAX]; } message;
    uint8_t answer[SIM_STRUCT_MAX + SIM_PARAMS_MAX];
    unsigned nr = _IOC_NR(request), size = _IOC_SIZE(request);
    void *params;
    uint32_t length;
    size_t got = 0;
    if (nr == RM_ESC_XFER && size == sizeof(struct rm_xfer) && argument) {
        const struct rm_xfer *wrapped = argument;
        nr = wrapped->command;
        size = wrapped->size;
        argument = (void *)(uintptr_t)wrapped->pointer;
    }
    int error = argument ? params_of(nr, size, argument, &params, &length) : EINVAL;
    if (error) {
        errno = error;
        return -1;
    }
    memset(&message.head, 0, sizeof message.head);
    message.head.head.kind = SIM_IOCTL;
    message.head.nr = nr;
    message.head.size = size;
    message.head.params = length;
    memcpy(message.bytes, argument, size);
    if (length) memcpy(message.bytes + size, params, length);
    error = sim_call(fd, &message, sizeof message.head + size + length, answer, sizeof answer, &got, NULL, NULL);
    if (!error && got != size + length) error = ENODEV;
    if (error) {
        errno = error;
        return -1;
    }
    memcpy(argument, answer, size);
    if (length) memcpy(params, answer + size, length);
    return 0;
}
