/* checkpoint.c - a process is locked, leaves the cards as a whole, and comes back: cuCheckpointProcess*. */
#include "player.h"
#include <errno.h>

static bool has_work(const struct connection *c)
{
    for (const struct object *o = c->objects; o; o = o->next) {
        const struct lane *lane = o->class_ == RM_CLASS_GROUP ? o->group->lane : NULL;
        if (lane && !lane->dead && (lane->held || __atomic_load_n(&lane->shared->head, __ATOMIC_ACQUIRE) != lane->shared->tail))
            return true;
    }
    return false;
}

static void set_state(struct connection *c, uint32_t state)
{
    c->checkpoint = state;
    for (struct object *o = c->objects; o; o = o->next)
        if (o->class_ == RM_CLASS_GROUP && o->group->lane)
            __atomic_store_n(&o->group->lane->shared->locked, state == LOCKED || state == CHECKPOINTED, __ATOMIC_RELEASE);
}

/* Its memory and contexts, on the cards or not. */
static void count(const struct connection *c, bool there)
{
    for (uint32_t i = 0; i < player->set.cards; i++)
        player->card[i].used += there ? memory_held(c, i) : -memory_held(c, i);
}

static bool fits(uint32_t pid)
{
    for (uint32_t i = 0; i < player->set.cards; i++) {
        uint64_t needed = 0;
        for (const struct connection *c = player->connections; c; c = c->next)
            if (c->pid == pid && !c->closed && c->checkpoint == CHECKPOINTED) needed += memory_held(c, i);
        if (needed > player->card[i].memory - player->card[i].used) return false;
    }
    return true;
}

static int step(struct connection *c, uint32_t which)
{
    static const uint32_t from[] = { [SIM_STEP_LOCK] = RUNNING, [SIM_STEP_CHECKPOINT] = LOCKED,
                                     [SIM_STEP_RESTORE] = CHECKPOINTED, [SIM_STEP_UNLOCK] = LOCKED };
    if (which == SIM_STEP_FAIL) {
        if (c->checkpoint == CHECKPOINTED) count(c, true);
        set_state(c, FAILED);
        return 0;
    }
    if (which > SIM_STEP_FAIL) return EINVAL;
    if (c->checkpoint != from[which]) return EPROTO;
    if (which == SIM_STEP_LOCK && has_work(c)) return EAGAIN;
    if (which == SIM_STEP_CHECKPOINT) count(c, false);
    if (which == SIM_STEP_RESTORE) count(c, true);
    set_state(c, which == SIM_STEP_CHECKPOINT ? CHECKPOINTED : which == SIM_STEP_UNLOCK ? RUNNING : LOCKED);
    return 0;
}

int checkpoint_step(uint32_t uid, const struct sim_checkpoint *request, struct sim_checkpointed *found)
{
    int error = ESRCH;
    if (request->step == SIM_STEP_RESTORE && !fits(request->pid)) return ENOMEM;
    for (struct connection *c = player->connections; c; c = c->next) {
        if (c->pid != request->pid || c->closed) continue;
        if (uid != 0 && uid != c->uid) return EPERM;
        error = request->step == SIM_STEP_NONE ? 0 : step(c, request->step);
        if (error) return error;
        found->state = c->checkpoint;
        for (uint32_t i = 0; i < player->set.cards; i++) found->bytes += memory_held(c, i);
    }
    return error;
}

void checkpoint_end(struct connection *connection)
{
    if (connection->checkpoint == CHECKPOINTED) count(connection, true);
    connection->checkpoint = RUNNING;
}

void checkpoint_again(struct connection *connection)
{
    if (connection->checkpoint == CHECKPOINTED) count(connection, false);
}
