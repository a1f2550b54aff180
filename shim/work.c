/* work.c - launches, when the daemon asked for something: tell it that there is work, or wait at the gate. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "shim.h"

#define DRAIN_NS 300000L        /* between two looks whether the work before is done */
#define ROUND_NS 100000000L     /* one sleep at the gate: a dead daemon is noticed that soon after ALQ_STALE_NS */

/* When this process saw its work done; 0: it has work, or came back from that gap. */
uint64_t alq_done_ns[ALQ_CARDS];

/* It comes back: how long was it away? Before it waits at the gate, which is no gap of its own. */
void alq_gap_ends(int card)
{
    uint64_t done = __atomic_exchange_n(&alq_done_ns[card], 0, __ATOMIC_RELAXED), now = alq_now(), edge = ALQ_GAP_NS;
    struct alq_page *page = alq_page();
    unsigned at = 0;
    if (!done || now < done || !page)
        return;
    while (at < ALQ_GAPS - 1 && now - done > edge) {
        at++;
        edge = (at % 2 ? ALQ_GAP_NS * 181 / 128 : ALQ_GAP_NS) << at / 2;
    }
    __atomic_fetch_add(&page->card[card].gaps[at], 1, __ATOMIC_RELAXED);
}

/* Functions of the host that are on their way: when one runs, the work before it is done. */
#define SEEING 256
static struct seeing { void (*call)(void *); void *with; struct alq_use *use; uint64_t launches; int card; bool taken; } seeing[SEEING];

static void see(void *at)
{
    struct seeing here = *(struct seeing *)at;
    __atomic_store_n(&((struct seeing *)at)->taken, false, __ATOMIC_RELEASE);
    if (__atomic_load_n(&here.use->launches, __ATOMIC_RELAXED) == here.launches &&     /* nothing came after it */
        !__atomic_load_n(&here.use->waiting, __ATOMIC_RELAXED))
        alq_busy_end(here.use, here.card);
    here.call(here.with);
}

/* A function that is captured runs as often as its graph: that one is the program's own affair. */
int alq_cuLaunchHostFunc(fn_cuLaunchHostFunc *real, int ptsz, CUstream stream, void (*call)(void *), void *with)
{
    static unsigned next;
    int card = 0;
    struct alq_use *use = call && !alq_capturing(stream, ptsz) ? alq_here(&card) : NULL;
    struct seeing *place = &seeing[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % SEEING];
    if (!use || __atomic_exchange_n(&place->taken, true, __ATOMIC_ACQUIRE))
        return real(stream, call, with);
    uint64_t launches = __atomic_load_n(&use->launches, __ATOMIC_RELAXED);
    *place = (struct seeing){ call, with, use, launches, card, true };
    int result = real(stream, see, place);
    if (result)
        __atomic_store_n(&place->taken, false, __ATOMIC_RELEASE);
    return result;
}

void alq_work_forget(void)
{
    memset(alq_done_ns, 0, sizeof alq_done_ns);
    memset(seeing, 0, sizeof seeing);
}

/* Whether the work of the stream is done: CUDA_SUCCESS, CUDA_ERROR_NOT_READY, or an error: nobody can tell. */
static int ask_stream(int ptsz, CUstream stream)
{
    int mode;
    bool relaxed = alq_relax(&mode);
    int result = ptsz ? ALQ_REAL_AS(cuStreamQuery, cuStreamQuery_ptsz)(stream) : ALQ_REAL(cuStreamQuery)(stream);
    alq_unrelax(relaxed, &mode);
    return result;
}

/* At a closed gate: what was launched before still runs. It is shown as busy until it is done, so that the daemon knows
 * when the card is free and whom to charge. Asks again and again instead of waiting in the driver: the stream may wait for
 * something that this very thread does after its launch. */
static void drain(struct alq_use *use, int card, int ptsz, CUstream stream)
{
    const struct timespec pause = { .tv_nsec = DRAIN_NS };
    int result = ask_stream(ptsz, stream);
    if (result == CUDA_ERROR_NOT_READY)
        alq_busy_begin(use, card, ptsz, stream);
    while (result == CUDA_ERROR_NOT_READY) {
        if (__atomic_load_n(&use->gate, __ATOMIC_ACQUIRE) != 1 || alq_stale(card))
            return;
        nanosleep(&pause, NULL);
        result = ask_stream(ptsz, stream);
    }
    if (result == CUDA_SUCCESS)
        alq_busy_end(use, ALQ_NO_CONTEXT);  /* it was told to stop: what follows is no gap of its own */
}

/* Waits while the gate is closed and the daemon lives. The word is shared with the daemon, so it is no private futex. */
static void wait_at_gate(struct alq_use *use, int card, int ptsz, CUstream stream)
{
    static uint64_t rescued_at[ALQ_CARDS];      /* the heartbeat that was stale: each daemon's end counts once */
    const struct timespec round = { .tv_nsec = ROUND_NS };
    drain(use, card, ptsz, stream);
    while (__atomic_load_n(&use->gate, __ATOMIC_ACQUIRE) == 1) {
        if (alq_stale(card)) {
            uint64_t beat = __atomic_load_n(&alq_page()->card[card].heartbeat_ns, __ATOMIC_RELAXED) + 1;
            if (__atomic_exchange_n(&rescued_at[card], beat, __ATOMIC_RELAXED) != beat)
                __atomic_fetch_add(&use->rescued, 1, __ATOMIC_RELAXED);
            return;
        }
        syscall(SYS_futex, &use->gate, FUTEX_WAIT, 1, &round, NULL, 0);
    }
}

/* The first kernel or graph since the process last saw its work done. Copies do not count: shares are of the compute engine. */
void alq_busy_begin(struct alq_use *use, int card, int ptsz, CUstream stream)
{
    int saved = errno;
    uint64_t idle = 0, now = alq_now();
    if (!alq_capturing(stream, ptsz) &&
        __atomic_compare_exchange_n(&use->busy_since_ns, &idle, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        alq_gap_ends(card);
    errno = saved;
}

void alq_busy_end(struct alq_use *use, int card)
{
    uint64_t since = __atomic_load_n(&use->busy_since_ns, __ATOMIC_RELAXED);
    if (!since) {   /* it was for a copy: what follows is another gap */
        if (card >= 0 && !__atomic_load_n(&alq_done_ns[card], __ATOMIC_RELAXED))
            __atomic_store_n(&alq_done_ns[card], alq_now(), __ATOMIC_RELAXED);
        return;
    }
    int saved = errno;
    uint64_t now = alq_now();
    if (card >= 0)  /* first: another thread may launch at once */
        __atomic_store_n(&alq_done_ns[card], now, __ATOMIC_RELAXED);
    if (__atomic_compare_exchange_n(&use->busy_since_ns, &since, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) && now > since)
        __atomic_fetch_add(&use->busy_ns, now - since, __ATOMIC_RELAXED);
    errno = saved;
}

void alq_work_slow(struct alq_use *use, int card, bool gated, int ptsz, CUstream stream)
{
    int saved = errno;
    if (__atomic_load_n(&use->wake, __ATOMIC_RELAXED) && __atomic_exchange_n(&use->wake, 0, __ATOMIC_ACQ_REL))
        alq_link_wake(card);
    /* a launch on a capturing stream does not run: it becomes a node, and whoever captures may hold locks */
    if (gated && __atomic_load_n(&use->gate, __ATOMIC_RELAXED) == 1 && !alq_capturing(stream, ptsz)) {
        alq_gap_ends(card);
        wait_at_gate(use, card, ptsz, stream);
    }
    errno = saved;
}
