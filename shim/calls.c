/* calls.c - which calls of the driver are under way.
 *
 * Calls that may touch memory of the card enter before and leave after. While the memory is away, they wait here, and that is
 * what asks for its return.
 */
#include "parking.h"

#define DRAIN_NS  5000000000ull     /* for calls that are under way to come back: a launch may wait in a full queue */
#define WORD_NS   500000000ull      /* for them or for the work on the card, once a call waits here that writes a word */

static uint32_t inside[ALQ_CARDS];  /* calls under way; a futex word */
static uint32_t words[ALQ_CARDS];   /* calls that wait here and write a word, for which work on the card may wait */

/* Or lost: then it will not be. */
static void wait_until_resident(int card)
{
    struct alq_move *move = alq_move_of(card);
    __atomic_fetch_add(&alq_known[card].wanted, 1, __ATOMIC_SEQ_CST);
    if (move)
        __atomic_fetch_add(&move->wanted, 1, __ATOMIC_SEQ_CST);
    alq_link_wake(card);
    uint32_t state;
    while ((state = alq_state_of(card)) != ALQ_RESIDENT && state != ALQ_LOST) {
        if (move)
            alq_futex_wake(&move->order);   /* the mover: it may come back by itself */
        alq_futex_wait(&alq_known[card].state, state, ALQ_ROUND_NS);
        move = alq_move_of(card);
    }
    __atomic_fetch_sub(&alq_known[card].wanted, 1, __ATOMIC_SEQ_CST);
    uint32_t n = move ? __atomic_load_n(&move->wanted, __ATOMIC_SEQ_CST) : 0;
    while (n && !__atomic_compare_exchange_n(&move->wanted, &n, n - 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;       /* never below 0: the entry may have been cleared meanwhile */
}

int alq_enter_slow(bool word)
{
    int card = alq_card_here();
    if (!__atomic_load_n(&alq_begun[card], __ATOMIC_ACQUIRE))
        return -1;
    int saved = errno, entered = ALQ_GONE;
    alq_note_context(card);
    while (alq_state_of(card) != ALQ_LOST) {
        __atomic_fetch_add(&inside[card], 1, __ATOMIC_SEQ_CST);
        if (alq_state_of(card) == ALQ_RESIDENT) {
            entered = card;
            break;
        }
        alq_exit(card);
        __atomic_fetch_add(&words[card], word, __ATOMIC_SEQ_CST);
        wait_until_resident(card);
        __atomic_fetch_sub(&words[card], word, __ATOMIC_SEQ_CST);
    }
    errno = saved;
    return entered;
}

bool alq_enter_resident(int card)
{
    __atomic_fetch_add(&inside[card], 1, __ATOMIC_SEQ_CST);
    if (alq_state_of(card) == ALQ_RESIDENT)
        return true;
    alq_exit(card);
    return false;
}

void alq_exit(int card)
{
    if (__atomic_sub_fetch(&inside[card], 1, __ATOMIC_SEQ_CST) == 0 && alq_state_of(card) == ALQ_LEAVING)
        alq_futex_wake(&inside[card]);
}

/* Whether we waited long enough. What we wait for may itself wait for the word of a call that waits for us. */
bool alq_is_late(int card, uint64_t *deadline)
{
    uint64_t now = alq_now();
    if (__atomic_load_n(&words[card], __ATOMIC_SEQ_CST) && *deadline > now + WORD_NS)
        *deadline = now + WORD_NS;
    return now > *deadline;
}

bool alq_drained(int card)
{
    uint64_t deadline = alq_now() + DRAIN_NS;
    uint32_t n;
    while ((n = __atomic_load_n(&inside[card], __ATOMIC_SEQ_CST)) != 0) {
        if (alq_is_late(card, &deadline))
            return false;
        alq_futex_wait(&inside[card], n, ALQ_ROUND_NS);
    }
    return true;
}

void alq_calls_forget(void)
{
    for (int i = 0; i < ALQ_CARDS; i++)
        inside[i] = words[i] = 0;
}
