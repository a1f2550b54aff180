/* card.c - whose turn it is on a card.
 *
 * Groups with something to run take turns, each for its slice. To switch costs time, taken from the slice of the one
 * that is switched in, and cannot be interrupted: so two groups with slices below that cost switch for ever and get
 * nothing done, as on the real card. One that is alone keeps the card past its slice, and then loses it at once, in the
 * middle of a kernel, when another one has something to run. Copies between host and card take no turns (copies.c).
 */
#include "player.h"

bool group_has_work(struct group *group)
{
    return group->lane && !group->lane->dead && group->lane->held && !mps_stopped(group) &&
           lane_pick(group->lane, group->card->now) >= 0;
}

/* Whether it has something to run in its own turn. */
static bool wants_turn(struct group *group)
{
    struct group *runner[TOGETHER_MAX];
    return !group->server && mps_runners(group, runner);
}

bool group_runnable(struct group *group)
{
    return group->server ? group_has_work(group) : wants_turn(group);
}

/* The next in turn after the current one that has something to run, or NULL. */
static struct group *contender(struct card *card)
{
    struct group *start = card->current ? card->current : card->runlist;
    if (!start) return NULL;
    for (struct group *g = start->next;; g = g->next) {
        if (g != card->current && wants_turn(g)) return g;
        if (g == start) return NULL;
    }
}

static uint64_t slice_end(const struct card *card)
{
    return card->slice_start + (card->inert & SIM_SLICES_INERT ? DEFAULT_SLICE : card->current->slice);
}

static void switch_to(struct card *card, struct group *group)
{
    card->current = group;
    card->active = true;
    card->slice_start = card->now;
    card->switch_end = card->now + player->set.switch_ns;
    card->switches++;
}

/* Decides who has the card at this instant. */
static void choose(struct card *card)
{
    if (card->active && card->now < card->switch_end) return; /* a switch runs to its end */
    bool wants = card->current && wants_turn(card->current);
    if (wants && card->active && card->now < slice_end(card)) return;
    struct group *other = contender(card);
    if (wants && !card->active) { /* woken up on a card that still has its state: a new slice, no switch */
        card->active = true;
        card->slice_start = card->now;
    } else if (other) switch_to(card, other);
    else card->active = wants;
}

/* What runs now: of the current group, or of each of its clients. */
struct runner { struct group *group; struct work *work; int stream; };

/* Returns how many run, and until when, if nothing arrives. */
static unsigned running(struct card *card, struct runner *runner, uint64_t *until)
{
    struct group *group[TOGETHER_MAX];
    unsigned count = mps_runners(card->current, group);
    *until = NEVER;
    for (unsigned i = 0; i < count; i++) {
        struct lane *lane = group[i]->lane;
        int stream = lane_pick(lane, card->now);
        struct work *work = &lane->work[lane->queue[stream].first];
        uint64_t end = card->now + work->left, stop = mps_stop_at(group[i]);
        if (lane->queue[stream].channel->stop_at < end) end = lane->queue[stream].channel->stop_at;
        if (stop < end) end = stop;
        if (end < *until) *until = end;
        runner[i] = (struct runner){ group[i], work, stream };
    }
    if (count && slice_end(card) < *until && contender(card))
        *until = slice_end(card) > card->now ? slice_end(card) : card->now;
    return count;
}

/* One event: up to `limit`, or earlier when something happens before. */
static void step(struct card *card, uint64_t limit)
{
    if (card->runlist) {
        struct group *g = card->runlist;
        do {
            uint64_t arrival = lane_admit(g, card->now);
            if (arrival < limit) limit = arrival;
        } while ((g = g->next) != card->runlist);
    }
    copies_settle(card);
    choose(card);
    struct runner runner[TOGETHER_MAX];
    struct copy copy[ENGINES];
    unsigned count = 0;
    uint64_t until = copies_running(card, copy), end = NEVER;
    if (card->active && card->now < card->switch_end) end = card->switch_end;
    else if (card->active) {
        count = running(card, runner, &end);
        if (!count) return; /* its switch is over, and it was paused meanwhile: choose again */
    }
    if (end < until) until = end;
    if (limit < until) until = limit;
    if (card->active) usage_add(&card->usage, card->now, until);
    for (unsigned i = 0; i < count; i++) {
        struct work *work = runner[i].work;
        if (!work->started) work->started = card->now;
        runner[i].group->lane->running = runner[i].stream;
        work->left -= until - card->now;
        usage_charge(runner[i].group, card->now, until);
    }
    copies_advance(card, copy, until);
    card->now = until;
    for (unsigned i = 0; i < count; i++)
        if (!runner[i].work->left) lane_finish(runner[i].group->lane, runner[i].stream, until);
}

void card_advance(struct card *card, uint64_t to)
{
    while (card->now < to) step(card, to);
}

/* When something will happen on an idle card: an entry that arrives after this very instant. */
static uint64_t idle_until(struct card *card)
{
    uint64_t next = NEVER;
    struct group *g = card->runlist;
    if (g) do {
        uint64_t arrival = lane_admit(g, card->now);
        if (arrival < next) next = arrival;
        if (wants_turn(g)) return card->now;
    } while ((g = g->next) != card->runlist);
    return next;
}

/* When something will happen next to kernels. */
static uint64_t turns_until(struct card *card)
{
    if (!card->active) return idle_until(card);
    if (card->now < card->switch_end) return card->switch_end;
    struct runner runner[TOGETHER_MAX];
    uint64_t until;
    return running(card, runner, &until) ? until : card->now;
}

uint64_t card_next(struct card *card)
{
    struct copy copy[ENGINES];
    uint64_t next = turns_until(card), copied = copies_running(card, copy);
    return copied < next ? copied : next;
}

/* How long all that the current group holds would run. */
static uint64_t current_left(struct card *card)
{
    struct group *group[TOGETHER_MAX];
    unsigned count = mps_runners(card->current, group);
    uint64_t most = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t left = lane_left(group[i]->lane, false);
        if (left > most) most = left;
    }
    return most;
}

/* The earliest time at which this group can be running: it, or the end of the slice or of the work of another. */
uint64_t group_earliest(const struct group *group)
{
    struct card *card = group->card;
    if (!card->active || !card->current) return card->now;
    if (card->now < card->switch_end) return card->switch_end;
    if (card->current == group || card->current == group->server) return card->now;
    uint64_t idle = card->now + current_left(card);
    uint64_t turn = slice_end(card) > card->now ? slice_end(card) : card->now;
    return (idle < turn ? idle : turn) + player->set.switch_ns;
}

void group_join(struct card *card, struct group *group)
{
    group->card = card;
    if (!card->runlist) {
        card->runlist = group->next = group->previous = group;
        return;
    }
    group->next = card->runlist;
    group->previous = card->runlist->previous;
    group->previous->next = group->next->previous = group;
}

void group_leave(struct group *group)
{
    struct card *card = group->card;
    if (card->current == group) {
        card->current = NULL;
        card->active = false;
        card->switch_end = card->now;
    }
    if (card->runlist == group) card->runlist = group->next == group ? NULL : group->next;
    group->previous->next = group->next;
    group->next->previous = group->previous;
}
