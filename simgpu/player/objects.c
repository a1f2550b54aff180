/* objects.c - the objects of an RM file: a tree per client (root), as the resource manager keeps them.
 *
 *     root 0x41 -> device -> subdevice
 *                         -> channel group -> channel -> compute
 *
 * They belong to the open file on which they were made. Any other class is kept without a meaning.
 */
#include "player.h"
#include <errno.h>
#include <string.h>

#define RM_INSERT_DUPLICATE_NAME  0x19
#define RM_INSUFFICIENT_RESOURCES 0x1a
#define RM_INVALID_CLASS          0x22
#define RM_INVALID_DEVICE         0x26
#define RM_INVALID_PARENT         0x36
#define RM_INVALID_PARAMS         0x3b
#define FIRST_CLIENT              0xc1d00001u
#define FIRST_OBJECT              0x5c000001u

struct object *object_find(struct connection *connection, uint32_t client, uint32_t handle)
{
    for (struct object *o = connection->objects; o; o = o->next)
        if (o->client == client && o->handle == handle) return o;
    return NULL;
}

static bool client_taken(uint32_t handle)
{
    for (struct connection *c = player->connections; c; c = c->next)
        if (object_find(c, handle, handle)) return true;
    return false;
}

/* A handle that no object of this client has yet. */
static uint32_t fresh_handle(struct connection *connection, uint32_t client)
{
    uint32_t handle = FIRST_OBJECT + connection->made;
    while (object_find(connection, client, handle)) handle++;
    connection->made = handle - FIRST_OBJECT + 1;
    return handle;
}

/* A slot for an object, empty; NULL: all are taken. */
static struct object *free_slot(struct connection *connection)
{
    for (uint32_t i = 0; i < OBJECTS_MAX; i++)
        if (!connection->slot[i].handle) {
            memset(&connection->slot[i], 0, sizeof connection->slot[i]);
            return &connection->slot[i];
        }
    return NULL;
}

static void link_object(struct connection *connection, struct object *o)
{
    o->next = connection->objects;
    connection->objects = o;
    connection->count++;
}

/* The object is complete: from now on it is there, for the next player too. */
static void enter(struct connection *connection, struct object *made, uint32_t handle)
{
    __atomic_store_n(&made->handle, handle, __ATOMIC_RELEASE);
    link_object(connection, made);
}

/* What is special about an object of its class, before it is entered. Returns an RM status. */
static uint32_t prepare(struct connection *connection, struct object *made, const struct object *parent,
                        const void *params, uint32_t length)
{
    made->card = parent->card;
    made->card_number = parent->card_number;
    made->stop_at = NEVER;
    if (made->class_ == RM_CLASS_DEVICE) {
        uint32_t index = 0;
        if (parent->class_ != RM_CLASS_ROOT) return RM_INVALID_PARENT;
        if (length >= sizeof index) memcpy(&index, params, sizeof index); /* NV0080_ALLOC_PARAMETERS.deviceId */
        if (index >= player->set.cards) return RM_INVALID_DEVICE;
        made->card = &player->card[index];
        made->card_number = index;
    }
    if (made->card && made->card->lost) return RM_GPU_IS_LOST;
    if (made->class_ == RM_CLASS_SUBDEVICE) {
        if (parent->class_ != RM_CLASS_DEVICE) return RM_INVALID_PARENT;
    } else if (made->class_ == RM_CLASS_GROUP) {
        struct rm_group_params group = { 0 };
        if (parent->class_ != RM_CLASS_DEVICE) return RM_INVALID_PARENT;
        if (length && length != sizeof group) return RM_INVALID_PARAMS;
        if (length) memcpy(&group, params, sizeof group);
        made->engine = group.engine;
        made->group = &made->own;
        made->own = (struct group){ .owner = connection, .object = made, .slice = DEFAULT_SLICE };
        group_join(made->card, made->group);
    } else if (rm_is_channel(made->class_)) {
        if (parent->class_ != RM_CLASS_GROUP) return RM_INVALID_PARENT;
        made->group = parent->group;
    } else if (rm_is_compute(made->class_) && !rm_is_channel(parent->class_)) return RM_INVALID_PARENT;
    return RM_OK;
}

/* Makes an object; `want` 0 lets us choose the handle. Returns an RM status. */
static uint32_t allocate(struct connection *connection, uint32_t client, uint32_t parent_handle, uint32_t class_,
                         const void *params, uint32_t length, uint32_t *want)
{
    struct object *parent = object_find(connection, client, parent_handle);
    if (!object_find(connection, client, client)) return RM_INVALID_CLIENT;
    if (!parent) return RM_INVALID_OBJECT;
    if (!class_ || class_ == RM_CLASS_ROOT) return RM_INVALID_CLASS;
    if (*want && object_find(connection, client, *want)) return RM_INSERT_DUPLICATE_NAME;
    struct object *made = free_slot(connection);
    if (!made) return RM_INSUFFICIENT_RESOURCES;
    uint32_t handle = *want ? *want : fresh_handle(connection, client);
    made->parent = parent_handle;
    made->client = client;
    made->class_ = class_;
    uint32_t status = prepare(connection, made, parent, params, length);
    if (status != RM_OK) return status;
    enter(connection, made, handle);
    *want = handle;
    return RM_OK;
}

/* Makes a client: the root of a tree. Returns an RM status. */
static uint32_t allocate_root(struct connection *connection, uint32_t *want)
{
    if (*want && client_taken(*want)) return RM_INSERT_DUPLICATE_NAME;
    struct object *made = free_slot(connection);
    if (!made) return RM_INSUFFICIENT_RESOURCES;
    while (!*want || client_taken(*want)) *want = FIRST_CLIENT + player->next_client++;
    *made = (struct object){ .client = *want, .class_ = RM_CLASS_ROOT, .stop_at = NEVER };
    enter(connection, made, *want);
    return RM_OK;
}

/* Gives back what one object holds, and the object. It is out of the list already. */
static void dispose(struct connection *connection, struct object *o)
{
    connection->count--;
    __atomic_store_n(&o->handle, 0, __ATOMIC_RELEASE);
    if (o->group) mps_part(o->group);
    if (o->class_ == RM_CLASS_GROUP) {
        for (struct object *c = connection->objects; c; c = c->next)
            if (c->group == o->group) c->group = NULL;
        mps_leave(o->group);
        group_leave(o->group);
        if (o->group->lane) {
            connection->contexts[o->card->index]--;
            o->card->used -= player->set.context_memory;
        }
        lane_free(o->group->lane);
    } else if (o->group && o->group->lane) lane_forget_channel(o->group->lane, o);
}

/* Frees an object with everything under it. */
static void free_tree(struct connection *connection, uint32_t client, uint32_t handle)
{
    struct object *found = NULL;
    for (struct object **link = &connection->objects; *link; link = &(*link)->next)
        if ((*link)->client == client && (*link)->handle == handle) {
            found = *link;
            *link = found->next;
            break;
        }
    if (!found) return;
    bool again = true;
    while (again) { /* freeing a child changes the list: begin again */
        again = false;
        for (struct object *o = connection->objects; o && !again; o = o->next)
            if (o->client == client && o->parent == handle) {
                free_tree(connection, client, o->handle);
                again = true;
            }
    }
    dispose(connection, found);
}

void objects_free_all(struct connection *connection)
{
    while (connection->objects) {
        struct object *o = connection->objects;
        connection->objects = o->next;
        dispose(connection, o);
    }
}

/* A group of the last player, with its lane. */
static void group_again(struct connection *connection, struct object *o)
{
    o->group = &o->own;
    o->own.owner = connection;
    o->own.object = o;
    o->own.lane = NULL;
    group_join(o->card, o->group);
    if (!o->own.lane_number || !(o->own.lane = lane_again(o->group))) return;
    connection->contexts[o->card->index]++;
    o->card->used += player->set.context_memory;
}

void objects_again(struct connection *connection)
{
    connection->objects = NULL;
    connection->count = 0;
    for (uint32_t i = 0; i < OBJECTS_MAX; i++) {
        struct object *o = &connection->slot[i];
        if (!o->handle) continue;
        o->card = o->class_ == RM_CLASS_ROOT || o->card_number >= player->set.cards ? NULL
                : &player->card[o->card_number];
        o->group = NULL;
        link_object(connection, o);
    }
    for (struct object *o = connection->objects; o; o = o->next) { /* lanes look for their channels */
        struct object *parent = rm_is_channel(o->class_) ? object_find(connection, o->client, o->parent) : NULL;
        if (parent && parent->class_ == RM_CLASS_GROUP) o->group = &parent->own;
    }
    for (struct object *o = connection->objects; o; o = o->next)
        if (o->class_ == RM_CLASS_GROUP && o->card) group_again(connection, o);
}

static uint32_t rm_alloc_do(struct connection *connection, struct rm_alloc *alloc, const void *params, uint32_t length)
{
    if (alloc->class_ != RM_CLASS_ROOT && alloc->class_ != 0)
        return allocate(connection, alloc->root, alloc->parent, alloc->class_, params, length, &alloc->object);
    uint32_t handle = alloc->object ? alloc->object : alloc->root;
    uint32_t status = allocate_root(connection, &handle);
    if (status == RM_OK) alloc->root = alloc->parent = alloc->object = handle;
    return status;
}

static uint32_t rm_free_do(struct connection *connection, const struct rm_free *request)
{
    if (!object_find(connection, request->root, request->root)) return RM_INVALID_CLIENT;
    if (!object_find(connection, request->root, request->object)) return RM_INVALID_OBJECT;
    free_tree(connection, request->root, request->object);
    return RM_OK;
}

/* Does one ioctl on the struct at `bytes` and what it points to, both in place. Returns 0 or an errno. */
int rm_ioctl(struct connection *connection, uint32_t nr, uint32_t size, void *bytes, uint32_t length, void *params)
{
    if (nr == RM_ESC_ALLOC && size == sizeof(struct rm_alloc)) {
        struct rm_alloc *alloc = bytes;
        alloc->status = rm_alloc_do(connection, alloc, params, length);
    } else if (nr == RM_ESC_ALLOC && size == sizeof(struct rm_alloc64)) {
        struct rm_alloc64 *alloc = bytes;
        alloc->status = rm_alloc_do(connection, bytes, params, length); /* the same up to params */
    } else if (nr == RM_ESC_FREE && size == sizeof(struct rm_free)) {
        struct rm_free *request = bytes;
        request->status = rm_free_do(connection, request);
    } else if (nr == RM_ESC_CONTROL && size == sizeof(struct rm_control)) {
        struct rm_control *control = bytes;
        control->status = rm_control_do(connection, control, params, length);
    } else return EINVAL;
    return 0;
}
