/* residence.c - where this process's memory is, how much of it, and what cannot leave: for us, and on the page for the daemon. */
#include <string.h>
#include "parking.h"

struct alq_known alq_known[ALQ_CARDS];

struct alq_move *alq_move_of(int card)
{
    struct alq_page *page = alq_page();
    uint32_t slot = alq_slot_index();
    return page && slot < ALQ_SLOTS ? &page->move[slot][card] : NULL;
}

uint32_t alq_state_of(int card)
{
    return __atomic_load_n(&alq_known[card].state, __ATOMIC_SEQ_CST);
}

void alq_set_state(int card, uint32_t state)
{
    struct alq_move *move = alq_move_of(card);
    __atomic_store_n(&alq_known[card].state, state, __ATOMIC_SEQ_CST);
    if (move)
        __atomic_store_n(&move->state, state, __ATOMIC_SEQ_CST);
    alq_futex_wake(&alq_known[card].state);
}

bool alq_all_resident(void)
{
    for (int card = 0; card < ALQ_CARDS; card++)
        if (alq_state_of(card) != ALQ_RESIDENT)
            return false;
    return true;
}

/* What can leave, for the daemon to see. */
void alq_count_movable(int card, int64_t bytes)
{
    struct alq_move *move = alq_move_of(card);
    __atomic_fetch_add(&alq_known[card].movable, (uint64_t)bytes, __ATOMIC_RELAXED);
    if (move)
        __atomic_fetch_add(&move->movable, (uint64_t)bytes, __ATOMIC_RELAXED);
}

void alq_count_parked(int card, int64_t bytes)
{
    struct alq_move *move = alq_move_of(card);
    __atomic_fetch_add(&alq_known[card].parked, (uint64_t)bytes, __ATOMIC_RELAXED);
    if (move)
        __atomic_fetch_add(&move->parked, (uint64_t)bytes, __ATOMIC_RELAXED);
}

static uint32_t counts[ALQ_CARDS][3];       /* by the bit of ALQ_STAYS_* */
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;     /* also for .kept, which is on the page with them */

static uint32_t stays_of(int card)
{
    uint32_t stays = (uint32_t)(alq_known[card].kept / ALQ_KEPT_UNIT) << ALQ_KEPT_SHIFT;
    for (unsigned i = 0; i < 3; i++)
        stays |= counts[card][i] ? 1u << i : 0;
    return stays;
}

/* With the lock held. On the page only where it matters: a daemon of an earlier release cuts this part of the page off. */
static void show_stays(int card)
{
    struct alq_move *move = alq_move_of(card);
    if (move && alq_page()->card[card].parkable)
        __atomic_store_n(&move->stays, stays_of(card), __ATOMIC_RELAXED);
}

/* One more or less of a kind that cannot leave, for the daemon to say why. */
void alq_count_stays(int card, uint32_t kind, int by)
{
    if (card < 0 || card >= ALQ_CARDS || !kind)
        return;
    pthread_mutex_lock(&counts_lock);
    uint32_t *n = &counts[card][__builtin_ctz(kind)];
    *n = by < 0 && !*n ? 0 : *n + (uint32_t)by;
    show_stays(card);
    pthread_mutex_unlock(&counts_lock);
}

/* Bytes that can leave, but hold nothing. */
void alq_count_kept(int card, int64_t bytes)
{
    pthread_mutex_lock(&counts_lock);
    alq_known[card].kept += (uint64_t)bytes;
    show_stays(card);
    pthread_mutex_unlock(&counts_lock);
}

/* This process takes that slot, in which the one before it may have left anything. It may have memory that is away: it may
 * have had another slot before. Only where it matters, as above. */
void alq_parking_publish(struct alq_page *page, unsigned slot)
{
    for (int card = 0; card < ALQ_CARDS; card++) {
        if (!page->card[card].parkable)
            continue;
        struct alq_move move = { .order = ALQ_STAY, .state = alq_state_of(card), .wanted = alq_known[card].wanted,
                                 .movable = alq_known[card].movable, .parked = alq_known[card].parked, .stays = stays_of(card) };
        page->move[slot][card] = move;
    }
}

void alq_residence_forget(void)
{
    counts_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(alq_known, 0, sizeof alq_known);
    memset(counts, 0, sizeof counts);
}
