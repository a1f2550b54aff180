/* parking.h - what parking.c, residence.c, calls.c and room.c know of each other. */
#ifndef ALIQUOT_PARKING_H
#define ALIQUOT_PARKING_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "movable.h"

#define ALQ_ROUND_NS 100000000L

static inline void alq_futex_wait(uint32_t *word, uint32_t seen, long ns)
{
    const struct timespec round = { .tv_nsec = ns };
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &round, NULL, 0);
}

static inline void alq_futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- residence.c: where the memory is, and how much ---- */
/* The page shows the same to the daemon, but others may clear that: the program may have closed our file, and was taken for
 * dead. */
struct alq_known { uint32_t state, wanted; uint64_t movable, parked, kept; };
extern struct alq_known alq_known[ALQ_CARDS];
struct alq_move *alq_move_of(int card);
uint32_t alq_state_of(int card);
void alq_set_state(int card, uint32_t state);
void alq_count_parked(int card, int64_t bytes);
void alq_residence_forget(void);

/* ---- calls.c: which calls are under way ---- */
bool alq_is_late(int card, uint64_t *deadline);
bool alq_drained(int card);
void alq_calls_forget(void);

/* ---- parking.c ---- */
extern int alq_begun[ALQ_CARDS];
void alq_note_context(int card);            /* the one that is current: work in it must be done before the memory leaves */
#endif
