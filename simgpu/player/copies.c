/* copies.c - the engines of a card that copy between host and card, one for each direction.
 *
 * They work beside kernels and need no turn of a group. An engine takes the copy that was submitted first, whoever's it
 * is, and does it to the end unless its channel is paused. Events beside a copy in its stream are the engine's too.
 */
#include "player.h"
#include <string.h>

/* Which engine the first entry of a stream is for, from 1; 0: it runs in the turn of its group. An event is the
 * engine's if a copy was the last before it, or is the next after it. */
unsigned copy_engine(const struct lane *lane, int stream)
{
    const struct queue *queue = &lane->queue[stream];
    for (uint16_t slot = queue->first; slot != NONE; slot = lane->work[slot].next) {
        const struct lane_item *item = &lane->work[slot].item;
        if (item->kind == LANE_RUN) return item_engine(item);
        if (queue->engine) return queue->engine;
    }
    return 0;
}

static bool can_copy(struct group *group)
{
    return group->lane && !group->lane->dead && group->lane->held && !mps_stopped(group);
}

/* Whether a goes before b: what takes no time, then what is begun, then what was submitted first. */
static bool goes_before(const struct work *a, const struct work *b)
{
    if (!a->left != !b->left) return !a->left;
    if (!a->started != !b->started) return a->started;
    return a->item.stamp < b->item.stamp;
}

/* Finds what each engine of the card has of this group. Returns whether there is any. */
static bool find(struct group *group, struct copy *copy)
{
    struct lane *lane = group->lane;
    bool found = false;
    if (!can_copy(group)) return false;
    for (int word = 0; word < LANE_STREAMS / 64; word++)
        for (uint64_t bits = lane->active[word]; bits; bits &= bits - 1) {
            int stream = word * 64 + __builtin_ctzll(bits);
            unsigned engine = copy_engine(lane, stream);
            if (!engine || !lane_eligible(lane, stream, group->card->now)) continue;
            struct work *work = &lane->work[lane->queue[stream].first];
            found = true;
            if (!copy[engine - 1].work || goes_before(work, copy[engine - 1].work))
                copy[engine - 1] = (struct copy){ group, work, stream };
        }
    return found;
}

bool copies_wanted(struct group *group)
{
    struct copy copy[ENGINES] = { { 0 } };
    return find(group, copy);
}

uint64_t copies_running(struct card *card, struct copy *copy)
{
    uint64_t until = NEVER;
    struct group *g = card->runlist;
    memset(copy, 0, ENGINES * sizeof *copy);
    if (g) do find(g, copy);
    while ((g = g->next) != card->runlist);
    for (unsigned i = 0; i < ENGINES; i++) {
        if (!copy[i].work) continue;
        uint64_t end = card->now + copy[i].work->left, stop = mps_stop_at(copy[i].group);
        uint64_t disabled = copy[i].group->lane->queue[copy[i].stream].channel->stop_at;
        if (disabled < end) end = disabled;
        if (stop < end) end = stop;
        if (end < until) until = end;
    }
    return until;
}

void copies_settle(struct card *card)
{
    struct copy copy[ENGINES];
    bool more = true;
    while (more) {
        more = false;
        copies_running(card, copy);
        for (unsigned i = 0; i < ENGINES; i++)
            if (copy[i].work && !copy[i].work->left) {
                lane_finish(copy[i].group->lane, copy[i].stream, card->now);
                more = true;
                break; /* the other may have become another one's */
            }
    }
}

void copies_advance(struct card *card, struct copy *copy, uint64_t until)
{
    for (unsigned i = 0; i < ENGINES; i++) {
        struct work *work = copy[i].work;
        if (!work) continue;
        if (!work->started) work->started = card->now;
        work->left -= until - card->now;
        if (!work->left) lane_finish(copy[i].group->lane, copy[i].stream, until);
    }
}

uint64_t copies_earliest(struct group *group, int stream)
{
    struct copy copy[ENGINES], *now;
    copies_running(group->card, copy);
    now = &copy[copy_engine(group->lane, stream) - 1];
    return group->card->now + (now->work && (now->group != group || now->stream != stream) ? now->work->left : 0);
}
