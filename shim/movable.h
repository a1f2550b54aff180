/* movable.h - what movable.c, handles.c, mover.c and parking.c know of each other. */
#ifndef ALIQUOT_MOVABLE_H
#define ALIQUOT_MOVABLE_H
#include "shim.h"

#define ALQ_UNIT        (2ull << 20)        /* the driver's granularity */
#define ALQ_PIECE_BYTES (256ull << 20)      /* at most: what leaves the card makes room piece by piece */
#define ALQ_NONE        UINT32_MAX
#define ALQ_LIST_MOST   (1u << 20)

struct alq_list { uint8_t *base; size_t size; uint32_t count; };
void *alq_list_at(const struct alq_list *list, uint32_t i);
uint32_t alq_list_add(struct alq_list *list);   /* ALQ_NONE: there are too many */

struct alq_movable_piece {
    CUdeviceptr at;
    uint64_t    size;           /* 0: none, a place in the list that is free */
    CUmemHandle handle;         /* while it is resident */
    uint32_t    next;           /* of the same allocation */
    CUdevice    device;
    int8_t      card;
    bool        resident;
    bool        stays;          /* others know its handle: it cannot leave */
    uint8_t     counted;        /* as what the daemon sees it: ALQ_STAYS_*, or 0: it can leave */
    bool        kept;           /* the program has freed it (ordered.c): it is given back when the rest leaves */
    bool        file_added;     /* the program did not ask for a handle that is a file: the mover needs one */
    /* of the program's own (handles.c); .at is 0 then */
    uint32_t    handles, mappings;
    _Alignas(8) uint8_t prop[32];   /* what it was made with */
};
extern pthread_mutex_t alq_movable_lock;    /* held for everything below */
uint32_t alq_pieces(void);
struct alq_movable_piece *alq_piece(uint32_t i);
bool alq_beside_reserve(int card, uint64_t bytes);
int alq_piece_back(struct alq_movable_piece *piece);    /* memory at its address; a CUDA error */
void alq_piece_unback(struct alq_movable_piece *piece);
void alq_piece_stays(struct alq_movable_piece *piece);  /* from now on */
void alq_piece_recount(struct alq_movable_piece *piece);    /* it may have become one that can leave, or cannot */
uint32_t alq_piece_new(CUdeviceptr at, uint64_t size, int card, CUdevice device);
void alq_piece_drop(uint32_t i);
bool alq_handle_within(const struct alq_movable_piece *piece, CUdeviceptr p, uint64_t n);
CUdeviceptr alq_handle_address(const struct alq_movable_piece *piece);
int alq_handle_back(struct alq_movable_piece *piece);
void alq_handle_unback(struct alq_movable_piece *piece);

void alq_movable_keep(const struct alq_entry *entry, bool kept);    /* it was freed, or is used again. Takes the lock */
bool alq_may_leave(CUdeviceptr p);          /* there is memory at this address that may leave, or left. Takes the lock itself */
bool alq_handle_properties(CUmemAllocationProp *prop, CUmemHandle h);   /* false: it is not a number of ours. Takes the lock */

/* ---- mover.c ---- */
typedef void alq_progress(int card, int64_t parked);    /* so many bytes more are away */
/* Moves all pieces that can move; 0, or why it ended before (ALQ_WHY_*). */
uint32_t alq_mover_move(int card, uint32_t order, alq_progress *progress);

/* ---- parking.c ---- */
CUdeviceptr alq_piece_address(const struct alq_movable_piece *piece, int card);   /* 0: it does not leave */
void alq_count_movable(int card, int64_t bytes);
void alq_count_kept(int card, int64_t bytes);   /* of it */
bool alq_still_wanted(int card, uint32_t order);        /* the daemon's order is still this one */
bool alq_all_resident(void);                /* nothing is away, or about to leave */
#endif
