/* calls.c - which calls of the driver are under way.
 *
 * Calls that may touch memory of the card enter before and leave after. While the memory is away, they wait here, and that is
 * what asks for its return. Calls of any kind (held.def) wait only while the driver has taken the process off the card: one that
 * it gets then does not come back, and nobody would know that it waits. So each thread shows whether it is in a call, and the
 * daemon hears that we have halted only when none is.
 */
#include <asm/unistd.h>
#include "parking.h"

#define BARRIER     (1 << 3)        /* of membarrier(2), whose header is younger than what we build against */
#define BARRIER_REGISTER (1 << 4)
#define DRAIN_NS  5000000000ull     /* for calls that are under way to come back: a launch may wait in a full queue */
#define WORD_NS   500000000ull      /* for them or for the work on the card, once a call waits here that writes a word */
#define STOP_NS   2000000000ull     /* for calls of any kind, while others wait */
#define WAITS_NS  500000000ull      /* for those that wait for the card: after that they wait in the driver */
#define CALLERS   1024

static uint32_t inside[ALQ_CARDS];  /* calls under way; a futex word */
static uint32_t words[ALQ_CARDS];   /* calls that wait here and write a word, for which work on the card may wait */

/* A thread of its own for each, and no count: a call that does not end (a signal's handler left it by longjmp, or its thread ended)
 * is over with the thread's next call, or is found to be. One inside another ends that one too: the driver's own lock waits for it. */
static struct alq_caller callers[CALLERS];
static uint32_t known_callers;      /* the first so many were used */
static struct alq_caller uncounted; /* of the threads beyond: nobody waits for them */
static __thread struct alq_caller *mine;
static int barrier;                 /* the kernel makes the callers' accesses ordered when that matters: they need no fence */

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
        uint32_t call = alq_pause_call();
        wait_until_resident(card);
        alq_resume_call(call);
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

/* ---- calls of any kind ---- */

static bool has_ended(uint32_t tid)
{
    return syscall(SYS_tgkill, getpid(), tid, 0) < 0 && errno == ESRCH;
}

static bool take_place(struct alq_caller *caller, uint32_t from, uint32_t tid)
{
    if (!__atomic_compare_exchange_n(&caller->tid, &from, tid, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return false;
    __atomic_store_n(&caller->call, ALQ_NO_CALL, __ATOMIC_RELAXED);
    uint32_t i = (uint32_t)(caller - callers) + 1, n = __atomic_load_n(&known_callers, __ATOMIC_SEQ_CST);
    while (n < i && !__atomic_compare_exchange_n(&known_callers, &n, i, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return true;
}

/* The place of this thread: that of one with its number, which has ended; a free one; that of another that has ended. */
static struct alq_caller *find_place(void)
{
    uint32_t tid = (uint32_t)syscall(SYS_gettid), n = __atomic_load_n(&known_callers, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < n; i++)
        if (__atomic_load_n(&callers[i].tid, __ATOMIC_RELAXED) == tid && take_place(&callers[i], tid, tid))
            return &callers[i];
    for (uint32_t i = 0; i < CALLERS; i++)
        if (!__atomic_load_n(&callers[i].tid, __ATOMIC_RELAXED) && take_place(&callers[i], 0, tid))
            return &callers[i];
    for (uint32_t i = 0; i < CALLERS; i++) {
        uint32_t other = __atomic_load_n(&callers[i].tid, __ATOMIC_RELAXED);
        if (has_ended(other) && take_place(&callers[i], other, tid))
            return &callers[i];
    }
    return &uncounted;
}

static struct alq_caller *place(void)
{
    int saved = errno;
    struct alq_caller *found = find_place();
    errno = saved;
    return found;
}

/* Without a call of the driver, not even for the card of this thread's context. */
struct alq_caller *alq_hold_slow(uint32_t kind)
{
    struct alq_caller *caller = mine;
    if (ALQ_RARE(!caller))
        caller = mine = place();
    for (;;) {
        /* It is shown before the look: alq_calls_stop() does both the other way round. */
        if (ALQ_RARE(!__atomic_load_n(&barrier, __ATOMIC_RELAXED))) {
            __atomic_store_n(&caller->call, kind, __ATOMIC_SEQ_CST);
        } else {
            __atomic_store_n(&caller->call, kind, __ATOMIC_RELAXED);
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
        }
        uint32_t halted = __atomic_load_n(&alq_halted, __ATOMIC_SEQ_CST);
        if (!ALQ_RARE(halted))
            return caller;
        int saved = errno;
        alq_done(caller);
        wait_until_resident((int)halted - 1);
        errno = saved;
    }
}

uint32_t alq_pause_call(void)
{
    return mine ? __atomic_exchange_n(&mine->call, ALQ_NO_CALL, __ATOMIC_RELEASE) : ALQ_NO_CALL;
}

void alq_resume_call(uint32_t kind)
{
    if (kind)
        alq_hold_slow(kind);
}

/* In a thread of the shim: it takes the kernel a while. */
void alq_calls_begin(void)
{
    if (syscall(__NR_membarrier, BARRIER_REGISTER, 0) == 0)
        __atomic_store_n(&barrier, 1, __ATOMIC_SEQ_CST);
}

/* False: a call did not come back in time. Of those that wait for the card, one that is left is in the driver by now, whose own lock
 * waits for that work: it is done, but for functions of the host. */
bool alq_calls_stop(int card)
{
    __atomic_store_n(&alq_halted, (uint32_t)card + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&barrier, __ATOMIC_SEQ_CST) && syscall(__NR_membarrier, BARRIER, 0))
        return false;
    for (uint64_t began = alq_now();; alq_sleep_ms(1)) {
        bool calls = false, waits = false;
        uint32_t n = __atomic_load_n(&known_callers, __ATOMIC_SEQ_CST);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t call = __atomic_load_n(&callers[i].call, __ATOMIC_SEQ_CST);
            uint32_t tid = __atomic_load_n(&callers[i].tid, __ATOMIC_RELAXED);
            if (!call || (has_ended(tid) && take_place(&callers[i], tid, 0)))
                continue;
            *(call == ALQ_WAIT_CALL ? &waits : &calls) = true;
        }
        uint64_t took = alq_now() - began;
        if (!calls && (!waits || took > WAITS_NS))
            return true;
        if (took > STOP_NS)
            return false;
    }
}

void alq_calls_forget(void)
{
    mine = NULL;
    barrier = 0;
    known_callers = 0;
    for (int i = 0; i < CALLERS; i++)
        callers[i].tid = callers[i].call = 0;
    for (int i = 0; i < ALQ_CARDS; i++)
        inside[i] = words[i] = 0;
}
