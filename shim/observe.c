/* observe.c - watches this process's own ioctls to the resource manager, and remembers its channel groups.
 *
 * An RM file is known by its requests (type 'F', and the sizes), not by its path. Kept are devices, subdevices, channel
 * groups, channels and compute objects; freeing one frees what hangs below it, freeing the root frees the client. A
 * duplicate of the file is kept from a client's first channel group until the client is freed: it is the right to control
 * the group, and NVML's clients, which have none, cost nothing.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "rm.h"
#include "shim.h"

#define FIRST   256u
#define MOST    65536u
#define CLIENTS 64u

struct object { uint32_t client, parent, handle, class_, engine; };
struct client { uint32_t handle; struct alq_file file; };

static struct object *objects;      /* [0, count), in no order */
static size_t count, capacity;
static struct client clients[CLIENTS];
static unsigned client_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef int ioctl_fn(int fd, unsigned long request, ...);

/* The ioctl after ours: libc's, or that of another library before it. */
static ioctl_fn *next_ioctl(void)
{
    static void *next;
    void *found = __atomic_load_n(&next, __ATOMIC_ACQUIRE);
    if (!found) {
        found = alq_next("ioctl");
        __atomic_store_n(&next, found, __ATOMIC_RELEASE);
    }
    return (ioctl_fn *)found;
}

static int call_ioctl(int fd, unsigned long request, void *argument)
{
    ioctl_fn *next = next_ioctl();
    return next ? next(fd, request, argument) : (int)syscall(SYS_ioctl, fd, request, argument);
}

/* Issues a control. 0: done; positive: the resource manager's status; -1: the ioctl itself failed. */
int alq_rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    struct rm_control c = { .client = client, .object = object, .command = command, .params = (uint64_t)(uintptr_t)params,
                            .params_size = size, .status = 0xffff };
    return call_ioctl(fd, RM_IOC_CONTROL, &c) < 0 ? -1 : (int)c.status;
}

/* ---- the tables; `lock` held ---- */

static struct client *client_of(uint32_t handle)
{
    for (unsigned i = 0; i < client_count; i++)
        if (clients[i].handle == handle)
            return &clients[i];
    return NULL;
}

static void too_many(const char *what)
{
    static int said;
    if (!said)
        alq_say("more %s than can be followed: some work of process %d is beyond control.", what, (int)getpid());
    said = 1;
}

static bool grow(void)
{
    size_t larger = capacity ? capacity * 2 : FIRST;
    void *fresh = larger > MOST ? MAP_FAILED
                : mmap(NULL, larger * sizeof *objects, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        too_many("GPU objects");
        return false;
    }
    if (objects) {
        memcpy(fresh, objects, count * sizeof *objects);
        munmap(objects, capacity * sizeof *objects);
    }
    objects = fresh;
    capacity = larger;
    return true;
}

/* The client's file is needed from its first group on. */
static void keep_file(uint32_t handle, int fd)
{
    if (client_of(handle))
        return;
    if (client_count == CLIENTS) {
        too_many("GPU clients");
        return;
    }
    struct alq_file file = alq_file_high(fd);
    if (file.fd >= 0)
        clients[client_count++] = (struct client){ .handle = handle, .file = file };
}

static void drop_at(size_t i)
{
    objects[i] = objects[--count];
}


/* Removes an object and everything below it. True: channels or groups were among them. */
static bool drop_below(uint32_t client, uint32_t handle)
{
    bool changed = false;
    for (size_t i = 0; i < count; i++)
        if (objects[i].client == client && objects[i].handle == handle) {
            changed |= objects[i].class_ != RM_CLASS_DEVICE && objects[i].class_ != RM_CLASS_SUBDEVICE;
            drop_at(i);
            break;
        }
    for (size_t i = 0; i < count;) {
        if (objects[i].client == client && objects[i].parent == handle && objects[i].handle != handle) {
            changed |= drop_below(client, objects[i].handle);
            i = 0;      /* it has moved others about */
        } else {
            i++;
        }
    }
    return changed;
}

static bool drop_client(uint32_t handle)
{
    bool changed = false;
    for (size_t i = 0; i < count;) {
        if (objects[i].client == handle) {
            drop_at(i);
            changed = true;
        } else {
            i++;
        }
    }
    struct client *client = client_of(handle);
    if (client) {
        alq_file_close(&client->file);
        *client = clients[--client_count];
    }
    return changed;
}

/* ---- what was seen ---- */

static void saw_alloc(int fd, const struct rm_alloc *a, uint32_t status)
{
    bool group = a->class_ == RM_CLASS_GROUP, channel = rm_is_channel(a->class_), compute = rm_is_compute(a->class_);
    if (status != RM_OK || !(group || channel || compute || a->class_ == RM_CLASS_DEVICE || a->class_ == RM_CLASS_SUBDEVICE))
        return;
    struct object o = { .client = a->root, .parent = a->parent, .handle = a->object, .class_ = a->class_ };
    if (group && a->params)
        o.engine = ((const struct rm_group_params *)(uintptr_t)a->params)->engine;
    pthread_mutex_lock(&lock);
    if (count < capacity || grow())
        objects[count++] = o;
    if (group)
        keep_file(a->root, fd);
    pthread_mutex_unlock(&lock);
    if (compute || (group && o.engine >= RM_ENGINE_GR_FIRST && o.engine <= RM_ENGINE_GR_LAST))
        alq_link_start();
    if (group || channel || compute)
        alq_link_changed();
}

static void saw_free(const struct rm_free *f)
{
    if (f->status != RM_OK)
        return;
    pthread_mutex_lock(&lock);
    bool changed = f->object == f->root ? drop_client(f->root) : drop_below(f->root, f->object);
    pthread_mutex_unlock(&lock);
    if (changed)
        alq_link_changed();
}

static void saw(int fd, unsigned long request, void *argument)
{
    unsigned number = _IOC_NR(request), size = _IOC_SIZE(request);
    if (number == RM_ESC_XFER && size == sizeof(struct rm_xfer)) {
        const struct rm_xfer *x = argument;
        number = x->command;
        size = x->size;
        argument = (void *)(uintptr_t)x->pointer;
    }
    if (!argument)
        return;
    if (number == RM_ESC_ALLOC && size == sizeof(struct rm_alloc))
        saw_alloc(fd, argument, ((const struct rm_alloc *)argument)->status);
    else if (number == RM_ESC_ALLOC && size == sizeof(struct rm_alloc64))
        saw_alloc(fd, argument, ((const struct rm_alloc64 *)argument)->status);     /* the same up to params */
    else if (number == RM_ESC_FREE && size == sizeof(struct rm_free))
        saw_free(argument);
    else if (number == RM_ESC_CONTROL && size == sizeof(struct rm_control) &&
             ((const struct rm_control *)argument)->command == RM_SET_TIMESLICE)
        alq_link_changed();     /* libcuda ends the making of a context with its own slice: the daemon's must come after */
}

/* musl declares the request as an int: only its low half says anything. */
ALQ_EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    int result = call_ioctl(fd, request, argument);
    if (ALQ_RARE(((request >> _IOC_TYPESHIFT) & 0xff) == RM_MAGIC) && result == 0 && alq_on()) {
        int saved = errno;
        saw(fd, request & 0xffffffffu, argument);
        errno = saved;
    }
    return result;
}

/* ---- what is told ---- */

/* lock held */
static bool has_compute(const struct object *group)
{
    if (group->engine >= RM_ENGINE_GR_FIRST && group->engine <= RM_ENGINE_GR_LAST)
        return true;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; rm_is_compute(objects[i].class_) && objects[i].client == group->client && j < count; j++)
            if (objects[j].client == group->client && objects[j].handle == objects[i].parent && objects[j].parent == group->handle)
                return true;
    return false;
}

/* lock held. False: it has no channels, so there is nothing to control. */
static bool describe(const struct object *group, struct alq_group *out)
{
    *out = (struct alq_group){ .client = group->client, .group = group->handle, .device = group->parent, .engine = group->engine };
    for (size_t i = 0; i < count; i++) {
        if (objects[i].client != group->client)
            continue;
        if (objects[i].class_ == RM_CLASS_SUBDEVICE && objects[i].parent == group->parent)
            out->subdevice = objects[i].handle;
        if (rm_is_channel(objects[i].class_) && objects[i].parent == group->handle) {
            if (out->channels < ALQ_CHANNELS)
                out->channel[out->channels++] = objects[i].handle;
            else
                too_many("GPU channels in one group");
        }
    }
    out->compute = out->channels && has_compute(group);
    return out->channels > 0;
}

/* Objects that come or go between two calls may hide a group from the second: then there is a change to tell of, too. */
bool alq_group_at(size_t *at, struct alq_group *out, int *fd)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (; *at < count && !found; ++*at) {
        const struct object *o = &objects[*at];
        struct client *client = o->class_ == RM_CLASS_GROUP ? client_of(o->client) : NULL;
        found = client && describe(o, out);
        if (found)
            *fd = alq_file_ours(&client->file) ? client->file.fd : -1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* A forked child has no GPU objects: they are the parent's, and its file must not stay open here. */
void alq_observe_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < client_count; i++)
        alq_file_close(&clients[i].file);
    client_count = 0;
    count = capacity = 0;
    objects = NULL;
}
