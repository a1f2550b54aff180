/* room.c - an allocation for which the card has no room: the daemon is asked to make some. */
#include "parking.h"

#define ROOM_NS   10000000L

/* One thread at a time asks for room; the others try again meanwhile, and ask when it has its answer. */
static const char *asker[ALQ_CARDS];
static __thread char self;      /* its address stands for the thread */

static bool ask_for_room(int card, uint64_t bytes, uint64_t began)
{
    struct alq_move *move = alq_move_of(card);
    if (!move)
        return false;
    /* A daemon not heard of for less may have been killed or upgraded: the next one makes room. */
    const struct alq_card *page = &alq_page()->card[card];
    uint64_t now = alq_now(), longest = __atomic_load_n(&page->room_ms, __ATOMIC_RELAXED) * 1000000ull;
    if (alq_stale(card) && now - page->heartbeat_ns >= longest)
        return false;
    const char *nobody = NULL;
    uint64_t room = __atomic_load_n(&move->room, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&asker[card], __ATOMIC_ACQUIRE) == &self) {
        if (room == ALQ_NO_ROOM)
            return false;
        if (!room)      /* this process has another slot now */
            __atomic_store_n(&move->room, bytes, __ATOMIC_RELEASE);
    } else if (__atomic_compare_exchange_n(&asker[card], &nobody, &self, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&move->room, bytes, __ATOMIC_RELEASE);
        alq_link_wake(card);
    }
    if (now - began >= longest)
        return false;
    alq_futex_wait(&move->order, __atomic_load_n(&move->order, __ATOMIC_ACQUIRE), ROOM_NS);
    return true;
}

/* What this process keeps for nothing goes before others do; what it will soon keep for nothing, before the allocation fails. */
bool alq_wait_for_room(int card, uint64_t bytes, uint64_t *began)
{
    uint64_t now = alq_now();
    if (!*began)
        *began = now;
    bool early = now - *began < ALQ_KEPT_NS;    /* later, another thread frees and allocates what this one waits for */
    return (alq_ordered_wait(card, 0) && early) || ask_for_room(card, bytes, *began) ||
           (early && alq_ordered_wait(card, *began + ALQ_KEPT_NS));
}

void alq_room_done(int card, uint64_t began)
{
    if (!began || __atomic_load_n(&asker[card], __ATOMIC_ACQUIRE) != &self)
        return;
    struct alq_move *move = alq_move_of(card);
    if (move)
        __atomic_store_n(&move->room, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&asker[card], NULL, __ATOMIC_RELEASE);
}
