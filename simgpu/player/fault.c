/* fault.c - what happens to cards: one falls off the bus, comes back, has an Xid, or obeys no slices or pauses. */
#include "player.h"
#include <errno.h>

/* Every context on the card is dead, as after a real card's fall: none of them comes back with the card. */
static void kill_lanes(const struct card *card)
{
    for (struct connection *c = player->connections; c; c = c->next)
        for (struct object *o = c->objects; o; o = o->next)
            if (o->class_ == RM_CLASS_GROUP && o->card == card && o->group->lane && !o->group->lane->dead)
                lane_kill(o->group->lane);
}

/* Lets it happen. Losing a card twice, or restoring one that is there, changes nothing. Returns 0 or EINVAL. */
int fault_happens(const struct sim_fault *fault)
{
    if (fault->card >= player->set.cards) return EINVAL;
    struct card *card = &player->card[fault->card];
    switch (fault->what) {
    case SIM_LOSE:
        card->lost = true;
        kill_lanes(card);
        return 0;
    case SIM_RESTORE: card->lost = false; return 0;
    case SIM_XID:
        if (fault->xid > UINT32_MAX) return EINVAL;
        player->events++;
        player->event[player->events % EVENTS_KEPT] =
            (struct sim_event){ player->events, fault->card, (uint32_t)fault->xid };
        return 0;
    case SIM_MIG: card->mig = fault->xid != 0; return 0;
    case SIM_INERT:
        if (fault->xid > (SIM_SLICES_INERT | SIM_PAUSE_INERT)) return EINVAL;
        card->inert = (uint32_t)fault->xid;
        return 0;
    default: return EINVAL;
    }
}
