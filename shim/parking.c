/* parking.c - a parkable tenant leaves the card and comes back: when the daemon orders it, and no call is under way.
 *
 * Every call that may touch memory of the card enters before and leaves after; while the memory is away, it waits here,
 * and that is what asks for its return. A thread of ours per card moves the memory, so that no thread of the program is
 * needed for it. Nothing is released before all of it was copied; a copy that fails leaves everything where it was.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "movable.h"

#define ROUND_NS  100000000L
#define DRAIN_NS  5000000000ull     /* for calls that are under way to come back: a launch may wait in a full queue */
#define FINISH_NS 10000000000ull    /* for the work on the card */
#define WORD_NS   500000000ull      /* for either of them, once a call waits here that writes a word */
#define CONTEXTS  16

int alq_parks;                      /* some card's memory may leave: calls enter */
static int begun[ALQ_CARDS];
static uint32_t inside[ALQ_CARDS];  /* calls under way; a futex word */
static uint32_t words[ALQ_CARDS];   /* calls that wait here and write a word, for which work on the card may wait */
static CUcontext contexts[ALQ_CARDS][CONTEXTS];
static bool too_many[ALQ_CARDS];    /* there are contexts whose work we cannot wait for */
static struct { uint32_t under_way, late; int result; } finishing[ALQ_CARDS];     /* the first is a futex word */
static bool left_behind[ALQ_CARDS]; /* a part is away, and a part is not; the card's thread alone uses it */
/* Where the memory is, and how much. The page shows the same to the daemon, but others may clear that: the program may have
 * closed our file, and was taken for dead. */
static struct { uint32_t state, wanted; uint64_t movable, parked, kept; } known[ALQ_CARDS];
int alq_halted;                     /* calls wait before they do anything: any call of the driver may hang now */

static struct alq_move *move_of(int card)
{
    struct alq_page *page = alq_page();
    uint32_t slot = alq_slot_index();
    return page && slot < ALQ_SLOTS ? &page->move[slot][card] : NULL;
}

static void futex_wait(uint32_t *word, uint32_t seen, long ns)
{
    const struct timespec round = { .tv_nsec = ns };
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &round, NULL, 0);
}

static void futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static uint32_t state_of(int card)
{
    return __atomic_load_n(&known[card].state, __ATOMIC_SEQ_CST);
}

static void set_state(int card, uint32_t state)
{
    struct alq_move *move = move_of(card);
    __atomic_store_n(&alq_halted, state == ALQ_HALTED, __ATOMIC_SEQ_CST);    /* such a tenant has one card */
    __atomic_store_n(&known[card].state, state, __ATOMIC_SEQ_CST);
    if (move)
        __atomic_store_n(&move->state, state, __ATOMIC_SEQ_CST);
    futex_wake(&known[card].state);
}

bool alq_all_resident(void)
{
    for (int card = 0; card < ALQ_CARDS; card++)
        if (state_of(card) != ALQ_RESIDENT)
            return false;
    return true;
}

/* ---- calls ---- */

/* Contexts whose work must be done before the memory leaves. */
static void note_context(int card)
{
    static __thread CUcontext last;
    CUcontext context = alq_context();
    if (!context || context == last)
        return;
    last = context;
    for (int i = 0; i < CONTEXTS; i++) {
        CUcontext none = NULL;
        if (__atomic_load_n(&contexts[card][i], __ATOMIC_ACQUIRE) == context ||
            __atomic_compare_exchange_n(&contexts[card][i], &none, context, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            none == context)
            return;
    }
    __atomic_store_n(&too_many[card], true, __ATOMIC_SEQ_CST);
}

/* Or lost: then it will not be. */
static void wait_until_resident(int card)
{
    struct alq_move *move = move_of(card);
    __atomic_fetch_add(&known[card].wanted, 1, __ATOMIC_SEQ_CST);
    if (move)
        __atomic_fetch_add(&move->wanted, 1, __ATOMIC_SEQ_CST);
    alq_link_wake(card);
    uint32_t state;
    while ((state = state_of(card)) != ALQ_RESIDENT && state != ALQ_LOST) {
        if (move)
            futex_wake(&move->order);   /* the mover: it may come back by itself */
        futex_wait(&known[card].state, state, ROUND_NS);
        move = move_of(card);
    }
    __atomic_fetch_sub(&known[card].wanted, 1, __ATOMIC_SEQ_CST);
    uint32_t n = move ? __atomic_load_n(&move->wanted, __ATOMIC_SEQ_CST) : 0;
    while (n && !__atomic_compare_exchange_n(&move->wanted, &n, n - 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;       /* never below 0: the entry may have been cleared meanwhile */
}

int alq_enter_slow(bool word)
{
    int card = alq_card_here();
    if (!__atomic_load_n(&begun[card], __ATOMIC_ACQUIRE))
        return -1;
    int saved = errno, entered = ALQ_GONE;
    note_context(card);
    while (state_of(card) != ALQ_LOST) {
        __atomic_fetch_add(&inside[card], 1, __ATOMIC_SEQ_CST);
        if (state_of(card) == ALQ_RESIDENT) {
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

/* Without a call of the driver, not even for the card of this thread's context. */
void alq_hold_slow(void)
{
    int saved = errno;
    for (int card = 0; card < ALQ_CARDS; card++)
        if (state_of(card) == ALQ_HALTED)
            wait_until_resident(card);
    errno = saved;
}

bool alq_enter_resident(int card)
{
    __atomic_fetch_add(&inside[card], 1, __ATOMIC_SEQ_CST);
    if (state_of(card) == ALQ_RESIDENT)
        return true;
    alq_exit(card);
    return false;
}

void alq_exit(int card)
{
    if (__atomic_sub_fetch(&inside[card], 1, __ATOMIC_SEQ_CST) == 0 && state_of(card) == ALQ_LEAVING)
        futex_wake(&inside[card]);
}

/* What can leave, for the daemon to see. */
void alq_count_movable(int card, int64_t bytes)
{
    struct alq_move *move = move_of(card);
    __atomic_fetch_add(&known[card].movable, (uint64_t)bytes, __ATOMIC_RELAXED);
    if (move)
        __atomic_fetch_add(&move->movable, (uint64_t)bytes, __ATOMIC_RELAXED);
}

static uint32_t counts[ALQ_CARDS][3];       /* by the bit of ALQ_STAYS_* */
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;     /* also for .kept, which is on the page with them */

static uint32_t stays_of(int card)
{
    uint32_t stays = (uint32_t)(known[card].kept / ALQ_KEPT_UNIT) << ALQ_KEPT_SHIFT;
    for (unsigned i = 0; i < 3; i++)
        stays |= counts[card][i] ? 1u << i : 0;
    return stays;
}

/* With the lock held. On the page only where it matters: a daemon of an earlier release cuts this part of the page off. */
static void show_stays(int card)
{
    struct alq_move *move = move_of(card);
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
    known[card].kept += (uint64_t)bytes;
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
        uint32_t state = state_of(card);        /* halted: the driver may have it, which the daemon finds out */
        struct alq_move move = { .order = state == ALQ_HALTED ? ALQ_AWAY : ALQ_STAY, .state = state, .wanted = known[card].wanted, .movable = known[card].movable,
                                 .parked = known[card].parked, .stays = stays_of(card) };
        page->move[slot][card] = move;
    }
}

/* ---- room ---- */

#define ROOM_NS   10000000L
#define ABSENT_NS 10000000000ull    /* a daemon not heard of for less may have been killed or upgraded: the next one makes room */

/* One thread at a time asks for room; the others try again meanwhile, and ask when it has its answer. */
static const char *asker[ALQ_CARDS];
static __thread char self;      /* its address stands for the thread */

static bool ask_for_room(int card, uint64_t bytes, uint64_t began)
{
    struct alq_move *move = move_of(card);
    uint64_t now = alq_now();
    if (!move || (alq_stale(card) && now - alq_page()->card[card].heartbeat_ns >= ABSENT_NS))
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
    if (now - began >= __atomic_load_n(&alq_page()->card[card].room_ms, __ATOMIC_RELAXED) * 1000000ull)
        return false;
    futex_wait(&move->order, __atomic_load_n(&move->order, __ATOMIC_ACQUIRE), ROOM_NS);
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
    struct alq_move *move = move_of(card);
    if (move)
        __atomic_store_n(&move->room, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&asker[card], NULL, __ATOMIC_RELEASE);
}

/* ---- moving ---- */

/* Whether we waited long enough. What we wait for may itself wait for the word of a call that waits for us. */
static bool is_late(int card, uint64_t *deadline)
{
    uint64_t now = alq_now();
    if (__atomic_load_n(&words[card], __ATOMIC_SEQ_CST) && *deadline > now + WORD_NS)
        *deadline = now + WORD_NS;
    return now > *deadline;
}

static bool drained(int card)
{
    uint64_t deadline = alq_now() + DRAIN_NS;
    uint32_t n;
    while ((n = __atomic_load_n(&inside[card], __ATOMIC_SEQ_CST)) != 0) {
        if (is_late(card, &deadline))
            return false;
        futex_wait(&inside[card], n, ROUND_NS);
    }
    return true;
}

static void *finish_work(void *which)
{
    int card = (int)(intptr_t)which, relaxed = CAPTURE_MODE_RELAXED, result = CUDA_SUCCESS;
    prctl(PR_SET_NAME, "aliquot-finish", 0, 0, 0);
    ALQ_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    for (int i = 0; i < CONTEXTS && !result; i++) {
        CUcontext context = __atomic_load_n(&contexts[card][i], __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&finishing[card].late, __ATOMIC_SEQ_CST))
            break;      /* calls go on, and a stream may capture now: that does not survive a wait for its context */
        if (context && !ALQ_REAL(cuCtxSetCurrent)(context))     /* one that was destroyed has no work */
            result = ALQ_REAL(cuCtxSynchronize)();
    }
    finishing[card].result = result;
    __atomic_store_n(&finishing[card].under_way, 0, __ATOMIC_SEQ_CST);
    futex_wake(&finishing[card].under_way);
    return NULL;
}

/* Waits for the work on the card, with a bound: a function of the host that the work calls may need a lock whose holder waits
 * for us. So the driver waits in a thread of its own; as long as that one has not come back, there is no other. */
static uint32_t finished(int card)
{
    uint64_t deadline = alq_now() + FINISH_NS;
    pthread_t thread;
    __atomic_store_n(&finishing[card].late, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&finishing[card].under_way, 1, __ATOMIC_SEQ_CST);
    if (pthread_create(&thread, NULL, finish_work, (void *)(intptr_t)card)) {
        __atomic_store_n(&finishing[card].under_way, 0, __ATOMIC_SEQ_CST);
        return ALQ_WHY_ERROR;
    }
    pthread_detach(thread);
    while (__atomic_load_n(&finishing[card].under_way, __ATOMIC_SEQ_CST)) {
        if (is_late(card, &deadline)) {
            __atomic_store_n(&finishing[card].late, 1, __ATOMIC_SEQ_CST);
            return ALQ_WHY_BUSY;
        }
        futex_wait(&finishing[card].under_way, 1, ROUND_NS);
    }
    return finishing[card].result ? ALQ_WHY_ERROR : ALQ_WHY_NOTHING;
}

/* The calls of the card's thread need a context. */
static void be_current(int card)
{
    for (int i = 0; i < CONTEXTS; i++) {
        CUcontext context = __atomic_load_n(&contexts[card][i], __ATOMIC_ACQUIRE);
        if (context && !ALQ_REAL(cuCtxSetCurrent)(context))
            return;
    }
}

/* Whether it leaves: where it can be read. */
CUdeviceptr alq_piece_address(const struct alq_movable_piece *piece, int card)
{
    if (!piece->size || piece->card != card || piece->stays)
        return 0;
    return piece->at ? piece->at : alq_handle_address(piece);
}

static void count_parked(int card, int64_t bytes)
{
    struct alq_move *move = move_of(card);
    __atomic_fetch_add(&known[card].parked, (uint64_t)bytes, __ATOMIC_RELAXED);
    if (move)
        __atomic_fetch_add(&move->parked, (uint64_t)bytes, __ATOMIC_RELAXED);
}

bool alq_still_wanted(int card, uint32_t order)
{
    struct alq_move *move = move_of(card);
    return move && __atomic_load_n(&move->order, __ATOMIC_SEQ_CST) == order;
}

/* With the lock held. */
static bool any(int card, bool resident)
{
    for (uint32_t i = 0; i < alq_pieces(); i++)
        if (alq_piece_address(alq_piece(i), card) && alq_piece(i)->resident == resident)
            return true;
    return false;
}

/* halt: it ends where the driver can take what is left. */
static void leave(struct alq_move *move, int card, bool halt)
{
    uint64_t began = alq_now();
    uint32_t why = ALQ_WHY_NOTHING, before = state_of(card);
    if (__atomic_load_n(&finishing[card].under_way, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&move->why, ALQ_WHY_BUSY, __ATOMIC_RELEASE);
        return;
    }
    set_state(card, ALQ_LEAVING);
    if (!drained(card) || __atomic_load_n(&too_many[card], __ATOMIC_SEQ_CST))
        why = ALQ_WHY_BUSY;
    else if (__atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST))
        why = ALQ_WHY_CAPTURE;
    else if (before == ALQ_RESIDENT)
        why = finished(card);
    be_current(card);
    if (!why && before == ALQ_RESIDENT)
        alq_ordered_park(card);
    pthread_mutex_lock(&alq_movable_lock);
    if (!why && (!halt || any(card, true)))
        why = alq_mover_move(card, halt ? ALQ_HALT : ALQ_LEAVE, count_parked);
    bool away = any(card, false);
    left_behind[card] = away && any(card, true);
    pthread_mutex_unlock(&alq_movable_lock);
    if (!why && !away && !halt)
        why = ALQ_WHY_BUSY;     /* there is nothing that can leave, or not now: not tried again before the daemon says so */
    if (!why)
        __atomic_store_n(&move->out_ns, alq_now() - began, __ATOMIC_RELAXED);
    if (away && before == ALQ_RESIDENT && !halt)     /* else the daemon counts */
        __atomic_fetch_add(&move->moves, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&move->why, why, __ATOMIC_RELEASE);
    set_state(card, halt && !why ? ALQ_HALTED : away ? ALQ_PARKED : ALQ_RESIDENT);
}

/* The daemon died before it began, or is one that knows nothing of this. One that is only late has written ALQ_AWAY before it looks at our state. */
static void go_on(struct alq_move *move, int card)
{
    pthread_mutex_lock(&alq_movable_lock);
    bool away = any(card, false);
    pthread_mutex_unlock(&alq_movable_lock);
    set_state(card, away ? ALQ_PARKED : ALQ_RESIDENT);
    if (__atomic_load_n(&move->order, __ATOMIC_SEQ_CST) == ALQ_AWAY)
        set_state(card, ALQ_HALTED);
}

static void come_back(struct alq_move *move, int card)
{
    uint64_t began = alq_now();
    set_state(card, ALQ_RETURNING);
    be_current(card);
    pthread_mutex_lock(&alq_movable_lock);
    uint32_t why = any(card, false) ? alq_mover_move(card, ALQ_RETURN, count_parked) : ALQ_WHY_NOTHING;
    bool away = any(card, false);
    left_behind[card] = away && any(card, true);
    pthread_mutex_unlock(&alq_movable_lock);
    if (!away)
        __atomic_store_n(&move->in_ns, alq_now() - began, __ATOMIC_RELAXED);
    if (why == ALQ_WHY_UNKNOWN)
        alq_say("GPU memory of this program was parked in the host's memory and is lost there: its calls fail from now on. "
                "Start it again.");
    __atomic_store_n(&move->why, why, __ATOMIC_RELEASE);
    set_state(card, why == ALQ_WHY_UNKNOWN ? ALQ_LOST : away ? ALQ_PARKED : ALQ_RESIDENT);
}

static void *run(void *which)
{
    int card = (int)(intptr_t)which, relaxed = CAPTURE_MODE_RELAXED;
    prctl(PR_SET_NAME, "aliquot-mover", 0, 0, 0);
    ALQ_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    for (;;) {
        struct alq_move *move = move_of(card);
        if (!move) {
            alq_sleep_ms(ROUND_NS / 1000000);
            continue;
        }
        uint32_t order = __atomic_load_n(&move->order, __ATOMIC_SEQ_CST);
        uint32_t state = state_of(card);
        bool again = !__atomic_load_n(&move->why, __ATOMIC_RELAXED);    /* the daemon says when */
        if (again && order == ALQ_LEAVE && (state == ALQ_RESIDENT || (state == ALQ_PARKED && left_behind[card])))
            leave(move, card, false);
        else if (again && order == ALQ_HALT && (state == ALQ_RESIDENT || state == ALQ_PARKED) && !alq_stale(card))
            leave(move, card, true);
        else if (state == ALQ_HALTED && (order == ALQ_HALT ? alq_stale(card) : order == ALQ_STAY || order == ALQ_LEAVE))
            go_on(move, card);
        else if (again && order == ALQ_RETURN && (state == ALQ_PARKED || state == ALQ_HALTED))
            come_back(move, card);
        else
            futex_wait(&move->order, order, ROUND_NS);
    }
    return NULL;
}

void alq_parking_begin(int card)
{
    struct alq_move *move = move_of(card);
    if (!move || __atomic_exchange_n(&begun[card], 1, __ATOMIC_ACQ_REL))
        return;
    note_context(card);
    sigset_t all, before;
    sigfillset(&all);
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, &all, &before);    /* the program's signals are not for this thread */
    if (pthread_create(&thread, NULL, run, (void *)(intptr_t)card) == 0) {
        pthread_detach(thread);
        __atomic_store_n(&alq_parks, 1, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(&begun[card], 0, __ATOMIC_RELEASE);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void alq_parking_forget(void)
{
    alq_parks = 0;
    alq_halted = 0;
    counts_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(known, 0, sizeof known);
    for (int i = 0; i < ALQ_CARDS; i++) {
        for (int j = 0; j < 3; j++)
            counts[i][j] = 0;
        begun[i] = 0;
        inside[i] = words[i] = 0;
        left_behind[i] = too_many[i] = false;
        finishing[i].under_way = 0;
        for (int j = 0; j < CONTEXTS; j++)
            contexts[i][j] = NULL;
    }
}
