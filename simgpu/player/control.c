/* control.c - the controls of the resource manager that the arbiter uses, and their refusals. */
#include "player.h"
#include <string.h>

#define RM_GPFIFO_SCHEDULE 0xa06c0101u /* answers OK and does nothing, as measured on the real driver */
#define RM_PREEMPT         0xa06c0105u /* evicts once; without effect on shares */
#define RM_SET_INTERLEAVE  0xa06c0107u /* privileged */
#define RM_INVALID_ARGUMENT 0x1f
#define RM_INVALID_CHANNEL  0x21
#define RM_INVALID_PARAMS   0x3b

/* Whether it is one of the two that --refuse-controls and --hang-after are about. */
bool rm_is_scheduling_control(uint32_t command)
{
    return command == RM_SET_TIMESLICE || command == RM_DISABLE_CHANNELS;
}

static uint32_t group_control(struct object *object, uint32_t command, void *params, uint32_t length)
{
    uint64_t us;
    switch (command) {
    case RM_SET_TIMESLICE:
        if (length != sizeof us) return RM_INVALID_PARAMS;
        memcpy(&us, params, sizeof us);
        if (!us || us > UINT32_MAX) return RM_INVALID_ARGUMENT;
        object->group->slice = us * US;
        return RM_OK;
    case RM_GET_TIMESLICE:
        if (length != sizeof us) return RM_INVALID_PARAMS;
        us = object->group->slice / US;
        memcpy(params, &us, sizeof us);
        return RM_OK;
    case RM_GPFIFO_SCHEDULE:
    case RM_PREEMPT: return RM_OK;
    case RM_SET_INTERLEAVE: return RM_INSUFFICIENT_PERMISSIONS;
    default: return RM_NOT_SUPPORTED;
    }
}

/* Pause and resume: all channels named, or none of them when one is wrong. */
static uint32_t disable_channels(struct connection *connection, const struct card *card, const struct rm_disable *order)
{
    struct object *channel[RM_DISABLE_MAX];
    if (order->channels > RM_DISABLE_MAX || order->preempt_event) return RM_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < order->channels; i++) {
        if (!object_find(connection, order->client[i], order->client[i])) return RM_INVALID_CLIENT;
        channel[i] = object_find(connection, order->client[i], order->channel[i]);
        if (!channel[i] || !rm_is_channel(channel[i]->class_) || channel[i]->card != card) return RM_INVALID_CHANNEL;
    }
    if (order->disable && card->inert & SIM_PAUSE_INERT) return RM_OK;
    for (uint32_t i = 0; i < order->channels; i++) {
        bool on_card = card->active && channel[i]->group == card->current;
        if (!order->disable) channel[i]->stop_at = NEVER;
        else if (channel[i]->stop_at == NEVER) channel[i]->stop_at = card->now + (on_card ? STOP_DELAY : 0);
    }
    return RM_OK;
}

static uint32_t subdevice_control(struct connection *connection, struct object *object, uint32_t command, void *params,
                                  uint32_t length)
{
    if (command == RM_DISABLE_CHANNELS) {
        struct rm_disable order;
        if (length != sizeof order) return RM_INVALID_PARAMS;
        memcpy(&order, params, sizeof order);
        return disable_channels(connection, object->card, &order);
    }
    if (command == RM_GET_GID_INFO) {
        struct rm_gid gid;
        if (length != sizeof gid) return RM_INVALID_PARAMS;
        memcpy(&gid, params, sizeof gid);
        if (gid.index || gid.flags) return RM_INVALID_ARGUMENT;
        memset(gid.data, 0, sizeof gid.data);
        gid.length = (uint32_t)strlen(object->card->uuid) + 1;
        memcpy(gid.data, object->card->uuid, gid.length);
        memcpy(params, &gid, sizeof gid);
        return RM_OK;
    }
    return RM_NOT_SUPPORTED;
}

/* Does a control; `params` is read and written in place. Returns an RM status. */
uint32_t rm_control_do(struct connection *connection, struct rm_control *control, void *params, uint32_t length)
{
    struct object *object = object_find(connection, control->client, control->object);
    if (!object_find(connection, control->client, control->client)) return RM_INVALID_CLIENT;
    if (!object) return RM_INVALID_OBJECT;
    if (object->card && object->card->lost) return RM_GPU_IS_LOST;
    if (rm_is_scheduling_control(control->command)) {
        if (player->set.refuse_controls) return RM_INSUFFICIENT_PERMISSIONS;
        player->controls++;
    }
    if (object->class_ == RM_CLASS_GROUP && control->command >> 16 == RM_CLASS_GROUP)
        return group_control(object, control->command, params, length);
    if (object->class_ == RM_CLASS_SUBDEVICE && control->command >> 16 == RM_CLASS_SUBDEVICE)
        return subdevice_control(connection, object, control->command, params, length);
    return control->command >> 16 == object->class_ ? RM_NOT_SUPPORTED : RM_INVALID_OBJECT;
}
