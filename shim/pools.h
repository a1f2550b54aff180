/* pools.h - what pools.c and pooled.c know of each other. */
#ifndef ALIQUOT_POOLS_H
#define ALIQUOT_POOLS_H
#include "shim.h"

/* `spare`: what it held beyond what it had handed out when the driver was asked, less what it handed out since, and more by what
 * came back; `trusted`: bytes that it may still hand out of that without asking. */
struct alq_pool { CUmemoryPool handle; int card; uint8_t tag; bool managed, simple; uint64_t charged, handed, spare, trusted; };
extern pthread_mutex_t alq_pools_lock;      /* held over reads of attributes and trims, never over waits */

/* With the lock held. */
struct alq_pool *alq_pool_find(CUmemoryPool handle);
struct alq_pool *alq_pool_enter(CUmemoryPool handle, int card);     /* NULL: there are too many */
void alq_pool_remove(struct alq_pool *pool);
uint64_t alq_pool_settle(struct alq_pool *pool, uint64_t reserved);
void alq_pool_returned(struct alq_pool *pool, uint64_t bytes);

/* Not in time for the guess: is this tenant now above its quota because of us? Then spare memory goes. */
bool alq_pools_within(int card);
#endif
