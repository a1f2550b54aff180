/* shim.h - what the parts of libaliquot.so know of each other.
 *
 *     resolve.c   finding the real functions; dlsym and cuGetProcAddress
 *     wrappers.c  the exported hooks, generated from hooks.def
 *     core.c      is there a tenant; files; fork
 *     page.c      the tenant's page: this process's slot on it, and the memory ledger
 *     cards.c     which card is meant
 *     book.c      what this process has allocated: pointer or handle -> bytes
 *     exports.c   memory that other processes may hold too: who of them is charged
 *     ordered.c   stream-ordered memory that can leave; kept.c what of it was freed
 *     movable.c, handles.c, mover.c    memory that can leave: pieces, handles of the program's own, and how they are copied
 *     parking.c   the thread that has it leave and come back; residence.c where it is, calls.c who uses it, room.c who waits
 *     captures.c  what may be called while a stream captures; waiting for a context as cuMemFree does
 *     pools.c     what pools of stream-ordered memory hold of the card
 *     plain.c, pieces.c, pointers.c, sharing.c, pooled.c, graphs.c, contexts.c, answers.c    the bodies of hooks
 *     work.c      launches: counting, waking the daemon, the gate
 *     observe.c   ioctl: which channel groups this process has
 *     link.c      the thread that tells the daemon of them, and undoes a pause when the daemon is gone
 *
 * Rules of the house: nothing here exits, aborts, or waits without a bound. Nothing happens at all unless
 * ALIQUOT_TENANT is set. errno is left as it was. A launch takes no lock and allocates nothing.
 */
#ifndef ALIQUOT_SHIM_H
#define ALIQUOT_SHIM_H
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "abi.h"
#include "driver.h"

#define ALQ_EXPORT __attribute__((visibility("default")))
#define ALQ_RARE(x) __builtin_expect(!!(x), 0)
#define ALQ_STRIP(...) __VA_ARGS__

/* The kinds of streams: how one line of hooks.def becomes one or two symbols. M(symbol, name, ptsz, ...) */
#define ALQ_ONE(M, name, ...) M(name, name, 0, __VA_ARGS__)
#define ALQ_SZ(M, name, ...)  M(name, name, 0, __VA_ARGS__) M(name##_ptsz, name, 1, __VA_ARGS__)
#define ALQ_DS(M, name, ...)  M(name, name, 0, __VA_ARGS__) M(name##_ptds, name, 1, __VA_ARGS__)

/* Types of all functions in the table, and the bodies that are written by hand. `ptsz`: the stream NULL is the calling
 * thread's own. A body calls `real`, never the exported symbol. */
#define GATE(name, kinds, params, ...) typedef int fn_##name params;
#define NOTE(name, kinds, params, ...) typedef int fn_##name params;
#define COPY(name, kinds, params, ...) typedef int fn_##name params;
#define WAIT(name, kinds, params, ...) typedef int fn_##name params;
#define QUERY(name, kinds, params, ...) typedef int fn_##name params;
#define TOUCH(name, kinds, params, ...) typedef int fn_##name params;
#define WORD(name, kinds, params, ...) typedef int fn_##name params;
#define ASK(name, params) typedef int fn_##name params;
#define BODY(name, kinds, params, args) typedef int fn_##name params; int alq_##name(fn_##name *real, int ptsz, ALQ_STRIP params);
#include "hooks.def"

/* ---- resolve.c ---- */
#define ALQ_INDEX(symbol, ...) ALQ_AT_##symbol,
enum alq_index {
#define GATE(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#define NOTE(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#define COPY(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#define WAIT(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#define QUERY(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#define TOUCH(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#define WORD(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#define BODY(name, kinds, ...) ALQ_##kinds(ALQ_INDEX, name)
#include "hooks.def"
    ALQ_HOOKS,
    ALQ_BEFORE_ASKS = ALQ_HOOKS - 1,
#define ASK(name, params) ALQ_AT_##name,
#include "hooks.def"
    ALQ_SYMBOLS
};
struct alq_symbol {
    const char *name;
    void       *wrapper;    /* NULL for those that are only asked */
    void       *real;       /* found on first use; never NULL after that */
    bool        held;       /* WAIT, QUERY: nothing is limited by it */
};
extern struct alq_symbol alq_symbols[ALQ_SYMBOLS];

/* The real function, or one that takes anything and answers CUDA_ERROR_NOT_FOUND. */
void *alq_resolve(enum alq_index at);
static inline void *alq_real_at(enum alq_index at)
{
    void *real = __atomic_load_n(&alq_symbols[at].real, __ATOMIC_ACQUIRE);
    return ALQ_RARE(!real) ? alq_resolve(at) : real;
}
#define ALQ_REAL(symbol)       ((fn_##symbol *)alq_real_at(ALQ_AT_##symbol))
#define ALQ_REAL_AS(name, sym) ((fn_##name *)alq_real_at(ALQ_AT_##sym))

/* The next definition of a symbol of libc after this library, NULL if there is none. */
void *alq_next(const char *name);

/* ---- core.c ---- */
extern int alq_mode;            /* 0: not looked yet, 1: no tenant, 2: a tenant. Read it through alq_on(). */
int alq_look(void);             /* reads the environment, once; returns alq_mode */
static inline bool alq_on(void)
{
    int mode = __atomic_load_n(&alq_mode, __ATOMIC_RELAXED);
    return (ALQ_RARE(!mode) ? alq_look() : mode) == 2;
}
const char *alq_path(void);                 /* the tenant's directory */
void alq_say(const char *format, ...) __attribute__((format(printf, 1, 2)));    /* one line on stderr */

/* ---- page.c ---- */
struct alq_page *alq_page(void);            /* the page, mapped; NULL (and said so once) when it cannot be used */
extern struct alq_slot *alq_own;            /* this process's slot, NULL before it has one */
struct alq_slot *alq_claim(void);           /* takes a slot when there is none; NULL when that is not possible */
uint32_t alq_slot_index(void);
void alq_keep_slot(void);                   /* notices when the program closed the page's file, and takes a slot anew */

bool alq_reserve(int card, uint64_t bytes, uint64_t need);  /* false: past the quota, nothing was added */
void alq_charge(int card, int64_t bytes);                   /* adds or gives back what cannot be refused */
uint64_t alq_used(int card);                                /* by all processes of the tenant, with overheads */
uint64_t alq_limit(int card);
unsigned alq_reclaim(void);                                 /* gives back what the dead held; how many there were */
int alq_refuse(int card);                                   /* counts a refusal, returns CUDA_ERROR_OUT_OF_MEMORY */

/* ---- cards.c: an index into the page's card[], or one of these ---- */
enum { ALQ_NO_CONTEXT = -1, ALQ_NOT_GRANTED = -2 };
int alq_card_of_device(CUdevice device);
int alq_card_of_context(CUdevice *device);  /* of the calling thread's current one; `device` may be NULL */
int alq_card_of_uuid(const char *uuid);
int alq_card_of_location(int type, const CUmemLocation *where);     /* of memory of this type there; ALQ_NO_CONTEXT: on the host */
int alq_ordinal_of(const CUmemLocation *where);                     /* -1: on no card */
int alq_card_here(void);                    /* the same for launches: cached per thread, never negative */
CUcontext alq_context(void);

/* ---- book.c ---- */
enum alq_kind { ALQ_MEMORY = 1, ALQ_POOLED, ALQ_ARRAY, ALQ_PIECE, ALQ_MAPPING, ALQ_GRAPH, ALQ_EXEC, ALQ_IN_GRAPH,
                ALQ_TILE,       /* of a sparse array: a mapping of a piece */
                ALQ_OPENED,     /* memory of another process */
                ALQ_HELD,       /* ended here, but a file holds it */
                ALQ_POOL_IN,    /* a pool of another process */
                ALQ_EXTERNAL, ALQ_HEAP, ALQ_MOVABLE };
struct alq_entry {
    uint64_t key, size;
    uint64_t owner;         /* MEMORY, ARRAY, OPENED, HEAP: context; POOLED: pool; MAPPING, TILE: the piece; IN_GRAPH: the
                             * graph; GRAPH: the one that it is part of */
    uint64_t now;           /* PIECE: mappings; GRAPH: bytes live after the nodes so far; TILE: the array */
    uint64_t file;          /* exported: alq_export() knows whether a file of it is left; MOVABLE of a pool: bytes asked for */
    uint64_t from;          /* imported: who is charged for it, while `elsewhere`; MOVABLE: its pool (ordered.c), 0: none */
    uint64_t serial;        /* when it was entered */
    uint32_t refs;          /* of a PIECE, OPENED; MOVABLE: its device */
    int8_t   card;
    uint8_t  kind;
    uint8_t  tag;           /* exported: others may be told when it ends. 1 to ALQ_TAGS, 0: not exported */
    bool     elsewhere;     /* imported from a process of this tenant, which is charged for it */
};
bool alq_book(struct alq_entry entry);      /* false: no memory for it */
bool alq_take(enum alq_kind kind, uint64_t key, struct alq_entry *out);     /* finds and removes */
bool alq_find(enum alq_kind kind, uint64_t key, struct alq_entry *out);
bool alq_change(enum alq_kind kind, uint64_t key, void (*change)(struct alq_entry *entry, void *with), void *with);
bool alq_take_where(bool (*fits)(const struct alq_entry *entry, const void *with), const void *with, size_t *at,
                    struct alq_entry *out);
void alq_each(void (*visit)(struct alq_entry *entry, void *with), void *with);
uint64_t alq_serial(void);                  /* entries made from now on have this serial or a later one */

/* ---- exports.c ---- */
void alq_ended(const struct alq_entry *entry);      /* it is out of the book: no longer charged, unless a file holds it */
uint64_t alq_export(int fd, uint64_t file, uint8_t *tag);   /* a file that holds memory was made; returns the new `file` */
uint8_t alq_tag_file(int fd, uint64_t seed);
void alq_tag_ended(uint8_t tag);
bool alq_origin_of_file(int fd, uint64_t *from);    /* a process of this tenant exported it, and is charged */
void alq_ipc_exported(CUdeviceptr base, const CUipcMemHandle *handle);
bool alq_origin_of_ipc(const CUipcMemHandle *handle, uint64_t *from);
uint64_t alq_exported_bytes(uint64_t from);         /* of such an export, if it was made by this very process; else 0 */
bool alq_import(struct alq_entry entry);            /* books it; `elsewhere` and `from` say who pays */
bool alq_exports_wait(void);                        /* a charge is about to end: it waited a moment for that */
void alq_exports_settle(void);                      /* files that are gone, charges that ended in other processes */

/* ---- pools.c, pooled.c, graphs.c ---- */
bool alq_make_room(int card, uint64_t bytes, uint64_t need, CUstream stream, int ptsz, bool may_wait);
void alq_pool_freed(const struct alq_entry *entry);
void alq_settle(void);                      /* after a wait: pools may have given memory back */
void alq_pools_leave(int card, bool begin); /* around the end of the device's own context: its pools are not asked then */
void alq_pools_drop(int card);
extern int alq_pools_live;                  /* there is something to settle */
CUgraph alq_graph_of(CUstream stream, int ptsz);    /* the graph that a capturing stream builds, or NULL */
int alq_graph_may_alloc(CUgraph graph, uint64_t bytes, CUdevice device);
void alq_graph_allocates(CUgraph graph, CUdeviceptr p, uint64_t bytes, CUdevice device);
void alq_graph_frees(CUgraph graph, CUdeviceptr p);
void alq_graph_settle(int card);
void alq_graph_trim(int card);
void alq_tiles_ended(const void *array);    /* pieces.c: pieces that were mapped into a sparse array */
uint64_t alq_rounded(uint64_t bytes);       /* what an allocation of so many bytes takes of the card */

/* ---- captures.c ---- */
extern int alq_captures;                    /* streams that capture */
bool alq_capturing(CUstream stream, int ptsz);
CUstream alq_stream_key(CUstream stream, int ptsz);     /* what two calls on the same stream have in common */
/* Around calls of ours, which may break no capture: another thread's may be of the strict mode, which forbids much to
 * everyone who is not relaxed. `mode` is the thread's own meanwhile. */
bool alq_relax(int *mode);
void alq_unrelax(bool relaxed, int *mode);
/* Waits for the context's work as cuMemFree does, and answers what it does: nothing was waited for then. In no other place
 * does a thread of the program wait for all of a context on our account. */
int alq_wait_for_context(CUcontext context);
void alq_wait_ahead(CUcontext context);     /* what the next wait needs, while there is room for it,
                                             * and one that stays: the driver would take its page anew each time */
void alq_wait_ended(CUcontext context);
int alq_may_allocate(void);                 /* what cuMemAlloc answers, but for the memory: that streams capture, that a kernel failed */
extern int alq_faults;
static inline void alq_note_fault(int result)
{
    if (ALQ_RARE(FAULT(result)))
        __atomic_store_n(&alq_faults, 1, __ATOMIC_RELAXED);
}

/* ---- work.c ---- */
void alq_work_slow(struct alq_use *use, int card, bool gated, int ptsz, CUstream stream);
void alq_busy_begin(struct alq_use *use, int card, int ptsz, CUstream stream);
void alq_busy_end(struct alq_use *use, int card);
void alq_work_forget(void);
extern uint64_t alq_done_ns[ALQ_CARDS];         /* when it saw its work done, while it is away */
void alq_gap_ends(int card);                     /* it comes back */
/* The line of the page on which work for the current card is noted; NULL: nothing to note. */
static inline struct alq_use *alq_here(int *card)
{
    struct alq_slot *own = __atomic_load_n(&alq_own, __ATOMIC_ACQUIRE);
    if (ALQ_RARE(!own) && (!alq_on() || !(own = alq_claim())))
        return NULL;
    *card = alq_card_here();
    return &own->use[*card];
}
/* Counts one piece of work; and when the daemon armed `wake` or closed the gate, what that asks for. */
static inline struct alq_use *alq_work(bool gated, int ptsz, CUstream stream)
{
    int card = 0;
    struct alq_use *use = alq_here(&card);
    if (!use)
        return NULL;
    __atomic_fetch_add(&use->launches, 1, __ATOMIC_RELAXED);
    if (gated)
        __atomic_fetch_add(&use->waiting, 1, __ATOMIC_RELAXED);
    if (ALQ_RARE(__atomic_load_n(&use->wake, __ATOMIC_RELAXED) | __atomic_load_n(&use->gate, __ATOMIC_RELAXED)))
        alq_work_slow(use, card, gated, ptsz, stream);
    if (!gated && ALQ_RARE(__atomic_load_n(&alq_done_ns[card], __ATOMIC_RELAXED)))
        alq_gap_ends(card);
    if (gated && !__atomic_load_n(&use->busy_since_ns, __ATOMIC_RELAXED))
        alq_busy_begin(use, card, ptsz, stream);
    return use;
}
/* One wait less. True: it was the last. Never below 0: the line may have been cleared meanwhile (the program closed our file,
 * and was taken for dead) or written over, and a count that went round would show a wait for ever. */
static inline bool alq_waited(struct alq_use *use)
{
    uint32_t n = __atomic_load_n(&use->waiting, __ATOMIC_RELAXED);
    while (n && !__atomic_compare_exchange_n(&use->waiting, &n, n - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return n <= 1;
}
/* The gated work was handed over. Until then the process counts as waiting: at the gate, or for room in a full queue. */
static inline void alq_handed_over(struct alq_use *use)
{
    if (use)
        alq_waited(use);
}

/* ---- movable.c, parking.c ---- */
void alq_count_stays(int card, uint32_t kind, int by);  /* memory of a kind that cannot leave (ALQ_STAYS_*): one more, or less */
bool alq_range_stays(CUdeviceptr p, uint64_t n);        /* others are told of it: it does not leave. False: none of it could */
int alq_handle_retain(fn_cuMemRetainAllocationHandle *real, CUmemHandle *h, void *p);
int alq_movable_alloc(CUdeviceptr *p, uint64_t bytes, int card, CUdevice device);
void alq_movable_release(const struct alq_entry *entry);    /* the work that may use it is done */
int alq_free_movable(const struct alq_entry *entry);    /* as cuMemFree: not CUDA_SUCCESS: it is still there, and booked */
void alq_end_movable(const struct alq_entry *entry);    /* the work that may use it is done; it is no longer charged */
int alq_handle_create(fn_cuMemCreate *real, CUmemHandle *h, size_t n, const CUmemAllocationProp *prop,
                      unsigned long long flags, int card);
int alq_handle_release(fn_cuMemRelease *real, CUmemHandle h);
int alq_handle_map(fn_cuMemMap *real, CUdeviceptr p, size_t n, size_t at, CUmemHandle h, unsigned long long flags);
int alq_handle_unmap(fn_cuMemUnmap *real, CUdeviceptr p, size_t n);
CUmemHandle alq_handle_real(CUmemHandle h, bool known_to_others);
int alq_map_tiles(fn_cuMemMapArrayAsync *real, CUarrayMapInfo *list, unsigned count, CUstream stream);
/* After the driver said that the card is full, though the quota is not: true to try again, a moment later. `began` is 0 at
 * first. The daemon is asked to make room; alq_room_done() ends it, whatever came of it. */
bool alq_wait_for_room(int card, uint64_t bytes, uint64_t *began);
void alq_room_done(int card, uint64_t began);
void alq_parking_publish(struct alq_page *page, unsigned slot);     /* what the page says of this process's memory */
bool alq_lock_contexts(void);               /* before the driver is asked to end one */
void alq_unlock_contexts(bool locked, CUcontext ended);
void alq_parking_begin(int card);           /* the first memory on that card of a tenant that may be parked */
bool alq_enter_resident(int card);          /* for calls that wake nothing: false, not entered: the memory is not there */

/* ---- ordered.c, kept.c: stream-ordered memory that can leave ---- */
struct alq_ordered { CUdeviceptr *p; size_t n; CUmemoryPool pool; CUstream stream; int ptsz, card; CUdevice device; };
#define ALQ_NOT_HERE (-1)                   /* the driver's pool has to serve it */
int alq_ordered_alloc(const struct alq_ordered *r);
int alq_ordered_free(const struct alq_entry *entry, CUstream stream, int ptsz);
void alq_ordered_ended(const struct alq_entry *entry);  /* it was freed in another way */
void alq_ordered_trim(int card, CUmemoryPool pool, uint64_t keep);  /* a pool: NULL: all of the card */
#define ALQ_KEPT_NS 3000000000ull           /* that an allocation waits for memory that this process freed; less than parking waits for calls */
uint64_t alq_ordered_kept(int card);
bool alq_ordered_wait(int card, uint64_t until);
void alq_ordered_settle(void);
void alq_ordered_park(int card);
CUmemoryPool alq_ordered_pool(uint64_t from);
uint64_t alq_ordered_pool_ends(CUmemoryPool pool);
void alq_ordered_pool_stays(uint64_t from, CUmemoryPool pool);
void alq_ordered_leave(int card, bool begin);
void alq_ordered_drop(int card);
bool alq_is_primary(CUcontext context, CUdevice device);    /* contexts.c: the device's own */
CUcontext alq_primary(CUdevice device);     /* NULL: not known */
bool alq_context_lives(CUcontext current);  /* the thread's own, which another may have ended */
extern int alq_parks;
int alq_enter_slow(bool word);
void alq_exit(int card);
/* Before a call that may touch memory of the card, and after it (with what it answered): waits while the memory is away.
 * ALQ_GONE: it is lost, and the call must fail: what it would read is not there. */
#define ALQ_GONE (-2)
static inline int alq_enter_as(bool word)      /* word: the call writes one for which work on the card may wait */
{
    return ALQ_RARE(__atomic_load_n(&alq_parks, __ATOMIC_RELAXED)) ? alq_enter_slow(word) : -1;
}
static inline int alq_enter(void)
{
    return alq_enter_as(false);
}
static inline void alq_leave(int entered)
{
    if (ALQ_RARE(entered >= 0))
        alq_exit(entered);
}
/* The call between the two, and what it answered. */
#define ALQ_INSIDE(call) (__extension__({ \
    int entered_ = alq_enter(), result_ = ALQ_RARE(entered_ == ALQ_GONE) ? CUDA_ERROR_UNKNOWN : (call); \
    alq_leave(entered_); \
    result_; \
}))

/* ---- observe.c ---- */
bool alq_group_at(size_t *at, struct alq_group *out, int *fd);  /* the next group with channels, *at 0 at first; false: no more */
int alq_rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *params, uint32_t size);

/* ---- link.c ---- */
void alq_link_start(void);      /* the first compute group, or the first use of the page: starts the thread, once */
void alq_link_changed(void);    /* groups came or went */
void alq_link_wake(int card);   /* sends ALQ_WAKE, never blocking */

/* ---- files of ours: the program may close any number, and open its own there ---- */
struct alq_file { int fd; dev_t dev; ino_t ino; };
bool alq_file_ours(const struct alq_file *file);
uint64_t alq_file_size(const struct alq_file *file);
struct alq_file alq_file_high(int fd);      /* a duplicate at a high number, close-on-exec; .fd -1: failed */
void alq_file_close(struct alq_file *file);

/* ---- forked children start with nothing: each part forgets its own ---- */
void alq_page_forget(void);
void alq_book_forget(void);
void alq_pools_forget(void);
void alq_graphs_forget(void);
void alq_exports_forget(void);
void alq_observe_forget(void);
void alq_link_forget(void);
void alq_movable_trim(void);                /* what was freed and is still there goes */
void alq_movable_forget(void);
void alq_handles_forget(void);
void alq_mover_forget(void);
void alq_parking_forget(void);
void alq_ordered_forget(void);
void alq_captures_forget(void);

uint64_t alq_now(void);         /* CLOCK_MONOTONIC, ns */
void alq_sleep_ms(long ms);
bool alq_stale(int card);       /* the daemon has not been heard of on this card for ALQ_STALE_NS */
#endif
