/* ordered.h - what ordered.c and kept.c know of each other. */
#ifndef ALIQUOT_ORDERED_H
#define ALIQUOT_ORDERED_H
#include "movable.h"

#define ALQ_ORDERED_POOLS 32
#define ALQ_LITTLE (32ull << 20)    /* bytes that a pool may keep over a wait, whatever its threshold: making them again takes long */
enum { THRESHOLD = 4, RESERVED_HIGH = 6, USED_HIGH = 8 };

/* A pool, as far as it is ours. `.from` of an entry is its place here, from 1 on. `asked` of what is `used` the program knows of:
 * blocks have a little more. */
struct alq_ordered_pool { CUmemoryPool handle; int card; uint64_t used, kept, asked, asked_high, reserved_high; };

/* Memory that is free, and where. */
struct alq_block { struct alq_entry entry; CUevent event; CUstream stream; uint32_t next, before; };

extern pthread_mutex_t alq_ordered_lock;    /* taken before that of movable.c, never after it; held for everything below */
/* .card is valid while .handle is set, or something is left of it */
extern struct alq_ordered_pool alq_ordered_pools[ALQ_ORDERED_POOLS];
extern int alq_ending[ALQ_CARDS];           /* threads that are ending the device's own context, and its events with it */

/* ---- ordered.c ---- */
void alq_ordered_count(uint64_t from, int64_t used, int64_t kept);

/* ---- kept.c ---- */
CUevent alq_take_event(int card);
void alq_give_event(int card, CUevent event);
bool alq_add_block(const struct alq_block *made);
bool alq_find_block(const struct alq_ordered *r, uint64_t size, CUstream key, struct alq_block *found);     /* and takes it */
void alq_kept_drop(int card);               /* the device's own context has ended, and with it the events and all work */
void alq_kept_forget(void);
/* Takes the lock. Of what is done, until the pool (0: each pool of the card) keeps no more than that. The memory must be there.
 * Bytes. */
uint64_t alq_give_back(int card, uint64_t from, uint64_t keep);
#endif
