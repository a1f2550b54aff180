/* parking.c - a parkable tenant leaves the card and comes back: when the daemon orders it, and no call is under way.
 *
 * Every call that may touch memory of the card enters before and leaves after (calls.c). A thread of the shim per card moves the
 * memory, so that no thread of the program is needed for it. Nothing is released before all of it was copied; a copy that fails
 * leaves everything where it was.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include "parking.h"

#define FINISH_NS 10000000000ull    /* for the work on the card */
#define CONTEXTS  16
#define LOCK_S    15                /* for the call that ends a context */
#define LETS_GO_NS 70000000000ull   /* for a move that uses a context which is about to end: the mover answers within 60 s */
#define STUCK_NS  15000000000ull    /* the same for a wait that was given up: its work may never end */

int alq_parks;                      /* some card's memory may leave: calls enter */
int alq_begun[ALQ_CARDS];
static CUcontext contexts[ALQ_CARDS][CONTEXTS];
static uint32_t ended_contexts;     /* so many: another may have the address of one of them */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;   /* held while threads of the shim use one of them */
static bool too_many[ALQ_CARDS];    /* there are contexts whose work we cannot wait for */
static struct { uint32_t under_way, late; int result; } finishing[ALQ_CARDS];     /* the first is a futex word */
static bool left_behind[ALQ_CARDS]; /* a part is away, and a part is not; the card's thread alone uses it */

/* ---- contexts and their work ---- */

void alq_note_context(int card)
{
    static __thread CUcontext last;
    static __thread uint32_t ended;
    CUcontext context = alq_context();
    uint32_t now = __atomic_load_n(&ended_contexts, __ATOMIC_ACQUIRE);
    if (!context || (context == last && now == ended))
        return;
    bool there = false;
    for (int i = 0; i < CONTEXTS && !there; i++)
        there = __atomic_load_n(&contexts[card][i], __ATOMIC_ACQUIRE) == context;
    if (!there && !alq_context_lives(context))
        return;     /* another thread ended it */
    for (int i = 0; i < CONTEXTS && !there; i++) {
        CUcontext none = NULL;
        there = __atomic_compare_exchange_n(&contexts[card][i], &none, context, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                none == context;
    }
    if (!there)
        __atomic_store_n(&too_many[card], true, __ATOMIC_SEQ_CST);
    last = context;
    ended = now;
}

/* False: it is held for longer. */
static bool lock_within(time_t seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return !pthread_mutex_timedlock(&contexts_lock, &until);
}

static bool is_stuck(void)
{
    for (int card = 0; card < ALQ_CARDS; card++)
        if (__atomic_load_n(&finishing[card].late, __ATOMIC_SEQ_CST) && __atomic_load_n(&finishing[card].under_way, __ATOMIC_SEQ_CST))
            return true;
    return false;
}

/* Before a context may end: the driver crashes where it is given one that has. False: a move holds it for too long, or nothing
 * here can move. */
bool alq_lock_contexts(void)
{
    if (!__atomic_load_n(&alq_parks, __ATOMIC_ACQUIRE))
        return false;
    for (uint64_t began = alq_now();;) {
        bool locked = lock_within(1);
        if (locked || alq_now() - began > (is_stuck() ? STUCK_NS : LETS_GO_NS))
            return locked;
    }
}

/* After it, with what that answered. NULL: none has ended. */
void alq_unlock_contexts(bool locked, CUcontext ended)
{
    for (int card = 0; card < ALQ_CARDS && ended; card++)
        for (int i = 0; i < CONTEXTS; i++) {
            CUcontext it = ended;
            __atomic_compare_exchange_n(&contexts[card][i], &it, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        }
    if (ended)
        __atomic_fetch_add(&ended_contexts, 1, __ATOMIC_ACQ_REL);
    if (locked)
        pthread_mutex_unlock(&contexts_lock);
}

static void *finish_work(void *which)
{
    int card = (int)(intptr_t)which, relaxed = CAPTURE_MODE_RELAXED, result = CUDA_SUCCESS;
    prctl(PR_SET_NAME, "aliquot-finish", 0, 0, 0);
    ALQ_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    for (int i = 0; i < CONTEXTS && !result; i++) {
        if (__atomic_load_n(&finishing[card].late, __ATOMIC_SEQ_CST))
            break;      /* calls go on, and a stream may capture now: that does not survive a wait for its context */
        pthread_mutex_lock(&contexts_lock);
        CUcontext context = __atomic_load_n(&contexts[card][i], __ATOMIC_ACQUIRE);
        if (context && !ALQ_REAL(cuCtxSetCurrent)(context))
            result = ALQ_REAL(cuCtxSynchronize)();
        ALQ_REAL(cuCtxSetCurrent)(NULL);
        pthread_mutex_unlock(&contexts_lock);
    }
    finishing[card].result = result;
    __atomic_store_n(&finishing[card].under_way, 0, __ATOMIC_SEQ_CST);
    alq_futex_wake(&finishing[card].under_way);
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
        if (alq_is_late(card, &deadline)) {
            __atomic_store_n(&finishing[card].late, 1, __ATOMIC_SEQ_CST);
            return ALQ_WHY_BUSY;
        }
        alq_futex_wait(&finishing[card].under_way, 1, ALQ_ROUND_NS);
    }
    return finishing[card].result ? ALQ_WHY_ERROR : ALQ_WHY_NOTHING;
}

/* The calls of the card's thread need a context, which does not end before let_go(). False: not now. */
static bool be_current(int card)
{
    if (!lock_within(LOCK_S))
        return false;
    for (int i = 0; i < CONTEXTS; i++) {
        CUcontext context = __atomic_load_n(&contexts[card][i], __ATOMIC_ACQUIRE);
        if (context && !ALQ_REAL(cuCtxSetCurrent)(context))
            break;
    }
    return true;
}

static void let_go(void)
{
    ALQ_REAL(cuCtxSetCurrent)(NULL);
    pthread_mutex_unlock(&contexts_lock);
}

/* ---- moving ---- */

/* Whether it leaves: where it can be read. */
CUdeviceptr alq_piece_address(const struct alq_movable_piece *piece, int card)
{
    if (!piece->size || piece->card != card || piece->stays)
        return 0;
    return piece->at ? piece->at : alq_handle_address(piece);
}

bool alq_still_wanted(int card, uint32_t order)
{
    struct alq_move *move = alq_move_of(card);
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

static void leave(struct alq_move *move, int card)
{
    uint64_t began = alq_now();
    uint32_t why = ALQ_WHY_NOTHING, before = alq_state_of(card);
    if (__atomic_load_n(&finishing[card].under_way, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&move->why, ALQ_WHY_BUSY, __ATOMIC_RELEASE);
        return;
    }
    alq_set_state(card, ALQ_LEAVING);
    if (!alq_drained(card) || __atomic_load_n(&too_many[card], __ATOMIC_SEQ_CST))
        why = ALQ_WHY_BUSY;
    else if (__atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST))
        why = ALQ_WHY_CAPTURE;
    else if (before == ALQ_RESIDENT)
        why = finished(card);
    bool current = !why && be_current(card);
    if (!why && !current)
        why = ALQ_WHY_BUSY;
    if (!why && before == ALQ_RESIDENT)
        alq_ordered_park(card), alq_movable_trim();
    pthread_mutex_lock(&alq_movable_lock);
    if (!why)
        why = alq_mover_move(card, ALQ_LEAVE, alq_count_parked);
    bool away = any(card, false);
    left_behind[card] = away && any(card, true);
    pthread_mutex_unlock(&alq_movable_lock);
    if (current)
        let_go();
    if (!why && !away)
        why = ALQ_WHY_BUSY;     /* there is nothing that can leave, or not now: not tried again before the daemon says so */
    if (!why)
        __atomic_store_n(&move->out_ns, alq_now() - began, __ATOMIC_RELAXED);
    if (away && before == ALQ_RESIDENT)
        __atomic_fetch_add(&move->moves, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&move->why, why, __ATOMIC_RELEASE);
    alq_set_state(card, away ? ALQ_PARKED : ALQ_RESIDENT);
}

static void come_back(struct alq_move *move, int card)
{
    uint64_t began = alq_now();
    alq_set_state(card, ALQ_RETURNING);
    bool current = be_current(card);
    pthread_mutex_lock(&alq_movable_lock);
    uint32_t why = !any(card, false) ? ALQ_WHY_NOTHING :
                   current ? alq_mover_move(card, ALQ_RETURN, alq_count_parked) : ALQ_WHY_BUSY;
    bool away = any(card, false);
    left_behind[card] = away && any(card, true);
    pthread_mutex_unlock(&alq_movable_lock);
    if (current)
        let_go();
    if (!away)
        __atomic_store_n(&move->in_ns, alq_now() - began, __ATOMIC_RELAXED);
    if (why == ALQ_WHY_UNKNOWN)
        alq_say("GPU memory of this program was parked in the host's memory and is lost there: its calls fail from now on. "
                "Start it again.");
    __atomic_store_n(&move->why, why, __ATOMIC_RELEASE);
    alq_set_state(card, why == ALQ_WHY_UNKNOWN ? ALQ_LOST : away ? ALQ_PARKED : ALQ_RESIDENT);
}

static void *run(void *which)
{
    int card = (int)(intptr_t)which, relaxed = CAPTURE_MODE_RELAXED;
    prctl(PR_SET_NAME, "aliquot-mover", 0, 0, 0);
    ALQ_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    for (;;) {
        struct alq_move *move = alq_move_of(card);
        if (!move) {
            alq_sleep_ms(ALQ_ROUND_NS / 1000000);
            continue;
        }
        uint32_t order = __atomic_load_n(&move->order, __ATOMIC_SEQ_CST);
        uint32_t state = alq_state_of(card);
        bool again = !__atomic_load_n(&move->why, __ATOMIC_RELAXED);    /* the daemon says when */
        if (again && order == ALQ_LEAVE && (state == ALQ_RESIDENT || (state == ALQ_PARKED && left_behind[card])))
            leave(move, card);
        else if (again && order == ALQ_RETURN && state == ALQ_PARKED)
            come_back(move, card);
        else
            alq_futex_wait(&move->order, order, ALQ_ROUND_NS);
    }
    return NULL;
}

void alq_parking_begin(int card)
{
    struct alq_move *move = alq_move_of(card);
    if (!move || __atomic_exchange_n(&alq_begun[card], 1, __ATOMIC_ACQ_REL))
        return;
    alq_note_context(card);
    sigset_t all, before;
    sigfillset(&all);
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, &all, &before);    /* the program's signals are not for this thread */
    __atomic_store_n(&alq_parks, 1, __ATOMIC_SEQ_CST);
    if (pthread_create(&thread, NULL, run, (void *)(intptr_t)card) == 0)
        pthread_detach(thread);
    else
        __atomic_store_n(&alq_begun[card], 0, __ATOMIC_RELEASE);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void alq_parking_forget(void)
{
    alq_parks = 0;
    contexts_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    alq_residence_forget();
    alq_calls_forget();
    for (int i = 0; i < ALQ_CARDS; i++) {
        alq_begun[i] = 0;
        left_behind[i] = too_many[i] = false;
        finishing[i].under_way = finishing[i].late = 0;
        for (int j = 0; j < CONTEXTS; j++)
            contexts[i][j] = NULL;
    }
}
