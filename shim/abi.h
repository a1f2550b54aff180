/* abi.h - what a tenant's shim and the node's daemon share: one page of memory and four messages.
 *
 * A tenant (a Pod, or what `aliquot run` started) has one directory, named to its processes by ALIQUOT_TENANT:
 *     page   this layout, mapped shared by every process of the tenant and by the daemon
 *     sock   a SOCK_SEQPACKET unix socket on which the daemon listens
 * The page is the tenant's own: whatever it writes there, it can only hurt itself. The daemon keeps its own copy of
 * every limit, and reads from the page only counters. With the page alone (no daemon running) the memory quota holds.
 *
 * src/aliquot/adapters/gpu/page.py and link.py spell the same layout; tests/shim/test_abi.py compares the two.
 */
#ifndef ALIQUOT_ABI_H
#define ALIQUOT_ABI_H
#include <stddef.h>
#include <stdint.h>

#define ALQ_MAGIC    0x54514c41u /* "ALQT" */
#define ALQ_VERSION  1u
#define ALQ_CARDS    16          /* cards that one tenant may have */
#define ALQ_SLOTS    256         /* processes that one tenant may have on GPUs at a time */
#define ALQ_TAGS     32          /* of exported memory: a number that travels with its file */
#define ALQ_CHANNELS 128         /* channels that one group message may name */
#define ALQ_UNLIMITED UINT64_MAX

/* A pause or a closed gate older than this without a heartbeat is undone by the tenant itself: the daemon is gone. */
#define ALQ_STALE_NS 600000000ull

/* Microseconds: slices from the one to the other divide a card by themselves, and stay when the daemon is gone; but not
 * for good: who comes after it has the driver's own, and would starve beside longer ones. */
#define ALQ_SHORTEST_LASTING 1000u
#define ALQ_LONGEST_LASTING  250000u
#define ALQ_LASTING_NS       300000000000ull

/* Lengths of gaps: the first is up to ALQ_GAP_NS, each next one up to the square root of two times as long, the last is of
 * any length. */
#define ALQ_GAPS    24
#define ALQ_GAP_NS  50000ull

/* One card of the tenant. Written by the daemon alone, but for `gaps`. */
struct alq_card {
    char     uuid[48];      /* "GPU-xxxxxxxx-xxxx-...", NUL-terminated */
    uint64_t memory_limit;  /* bytes, ALQ_UNLIMITED: the whole card */
    uint64_t heartbeat_ns;  /* CLOCK_MONOTONIC of the daemon's latest round on this card */
    uint32_t parkable;      /* 1: its memory may leave the card (movable.c) */
    uint32_t room_ms;       /* how long an allocation waits for room that others have; 0: not at all */
    uint64_t reserve;       /* bytes of the card that memory which may leave does not take: the mover starts there */
    uint16_t gaps[ALQ_GAPS];    /* processes: how often they came back after so long: from seeing their work done to the
                             * next launch or copy. They count round; the daemon reads them often enough */
};

/* One process on one card: a cache line. Each field has one writer, named here. */
struct alq_use {
    uint64_t memory;        /* process: bytes it has reserved (read-modify-write, by all its threads) */
    uint64_t overhead;      /* daemon: bytes the driver takes for it beside those (context, code), seen by NVML */
    uint64_t launches;      /* process: pieces of work handed to the card so far */
    uint32_t waiting;       /* process: threads that are in a blocking wait for the card */
    uint32_t gate;          /* daemon: 1 = closed: launches wait here (the level `gate`); a futex word */
    uint32_t paused;        /* daemon sets 1 around a hardware pause; the process sets 0 when it resumed by itself */
    uint32_t wake;          /* daemon arms 1; the process's next launch swaps it for 0 and sends ALQ_WAKE */
    uint32_t refused;       /* process: allocations refused because of the quota */
    uint32_t rescued;       /* process: times it ended a pause or a closed gate by itself, the daemon being gone */
    uint64_t busy_ns;       /* process: time in which it had work on the card that it had not yet seen done (see busy_since_ns) */
    uint64_t busy_since_ns; /* process: 0, or CLOCK_MONOTONIC of the launch after which it has not yet seen its work done.
                             * A launch sets it if 0. The end of a blocking wait, or a query that answers "done", adds the time
                             * since to busy_ns and sets 0 (when no other thread waits). From it the daemon tells shares. */
};

/* One process. It owns slot i while it holds a POSIX write lock (F_SETLK) on byte i of the page's file; the kernel
 * drops the lock when the process dies, however it dies, and it is not inherited by fork. Whoever can take the lock of
 * a slot may clear it: that is how the memory of the dead is given back. */
struct alq_slot {
    uint32_t pid;           /* as the process sees itself */
    uint32_t serial;        /* counts the owners this slot has had */
    uint8_t  ended[ALQ_TAGS]; /* process: counts up when the charge of exported memory with this tag ends. Who imported it
                             * in another process of the tenant pays for it from then on (exports.c) */
    uint64_t exported[3];   /* process: a Bloom filter of the handles that cuIpcGetMemHandle gave out */
    struct alq_use use[ALQ_CARDS];
};

/* The memory of one process on one card, when it may leave. A cache line of its own. */
enum { ALQ_STAY = 0, ALQ_LEAVE = 1, ALQ_RETURN = 2 };
enum { ALQ_RESIDENT = 0, ALQ_LEAVING = 1, ALQ_PARKED = 2, ALQ_RETURNING = 3, ALQ_LOST = 4 };
enum { ALQ_WHY_NOTHING = 0, ALQ_WHY_BUSY = 1, ALQ_WHY_CAPTURE = 2, ALQ_WHY_POOL = 3, ALQ_WHY_ROOM = 4, ALQ_WHY_ERROR = 5,
       ALQ_WHY_MOVER = 6 /* there is none, or it went away */, ALQ_WHY_UNKNOWN = 7 /* the mover does not have it */ };
enum { ALQ_STAYS_POOLED = 1 /* stream-ordered */, ALQ_STAYS_SHARED = 2 /* with other processes */, ALQ_STAYS_OTHER = 4 };
#define ALQ_KEPT_SHIFT 8
#define ALQ_KEPT_UNIT  (2ull << 20)
#define ALQ_NO_ROOM UINT64_MAX
struct alq_move {
    uint32_t order;         /* daemon: ALQ_STAY, ALQ_LEAVE and so on; a futex word */
    uint32_t state;         /* process: ALQ_RESIDENT and so on; a futex word */
    uint32_t wanted;        /* process: calls that wait for its return */
    uint32_t why;           /* process: why the last order was not obeyed; the daemon sets 0 to have it tried again */
    uint64_t movable;       /* process: bytes that can leave */
    uint64_t parked;        /* process: bytes that are away */
    uint32_t moves;         /* process: how often it left */
    uint32_t stays;         /* process: kinds of memory it has that cannot leave, ALQ_STAYS_*; from the bit ALQ_KEPT_SHIFT on,
                             * units of ALQ_KEPT_UNIT that it freed and keeps for later: they are part of `movable`, but they
                             * are given back instead of moved, and need no room elsewhere */
    uint64_t out_ns, in_ns; /* process: what the last move of each kind took */
    uint64_t room;          /* process: bytes of an allocation that waits for room on the card; the daemon answers with
                             * ALQ_NO_ROOM where waiting would not help */
};

struct alq_page {
    uint32_t magic, version;
    uint32_t cards;         /* how many of card[] are set */
    uint32_t slots;         /* ALQ_SLOTS */
    uint32_t top;           /* processes: slots from here on were never taken; 0: none was */
    uint8_t  pad[44];
    struct alq_card card[ALQ_CARDS];
    struct alq_slot slot[ALQ_SLOTS];
    struct alq_move move[ALQ_SLOTS][ALQ_CARDS];
};

_Static_assert(sizeof(struct alq_card) == 128 && sizeof(struct alq_use) == 64, "card, use");
_Static_assert(sizeof(struct alq_move) == 64, "move");
_Static_assert(sizeof(struct alq_slot) == 64 + 64 * ALQ_CARDS, "slot");
_Static_assert(offsetof(struct alq_page, card) == 64, "page");

/* ---- messages, shim to daemon; each is one packet. The daemon answers nothing: its answers are on the page. ---- */
enum {
    ALQ_HELLO = 1,          /* first on every connection; struct alq_hello */
    ALQ_GROUP = 2,          /* one channel group, with a dup of the RM file as SCM_RIGHTS; struct alq_group */
    ALQ_DONE = 3,           /* the groups since the hello or the last done are all there are now; struct alq_done */
    ALQ_WAKE = 4,           /* work was handed to a card whose `wake` was armed; struct alq_wake */
};
/* ---- messages between a shim and the mover, on a connection of its own that the daemon hands over ----
 * Each ALQ_OUT and ALQ_IN is answered by one ALQ_MOVED, in order. */
enum {
    ALQ_MOVER = 16,         /* first on the connection, to the daemon; answered by ALQ_MOVED; struct alq_mover_hello */
    ALQ_OUT = 17,           /* keep copies of these pieces; their files as SCM_RIGHTS; struct alq_mover_pieces */
    ALQ_IN = 18,            /* fill these pieces with what was kept, and forget it; struct alq_mover_pieces */
    ALQ_MOVED = 19,         /* to the shim: all of them are copied, or none and why; struct alq_mover_answer */
};
#define ALQ_MOVER_PIECES 64

struct alq_head  { uint32_t magic; uint16_t version, type; };
struct alq_hello { struct alq_head head; uint32_t pid, slot; };
struct alq_group {
    struct alq_head head;
    uint32_t client, group, device, subdevice;  /* RM handles */
    uint32_t engine, compute;                   /* engine type as allocated; 1 when it carries a compute object */
    uint32_t channels, pad;
    uint32_t channel[ALQ_CHANNELS];             /* RM handles; only the first `channels` are sent */
};
struct alq_done  { struct alq_head head; uint32_t groups; };
struct alq_wake  { struct alq_head head; uint32_t card; };  /* index into the page's card[] */
struct alq_mover_hello { struct alq_head head; uint32_t pid, slot, serial, card; };
struct alq_mover_piece { uint32_t id, pad; uint64_t size; };
struct alq_mover_pieces {
    struct alq_head head;
    uint32_t count, pad;
    struct alq_mover_piece piece[ALQ_MOVER_PIECES];
};
struct alq_mover_answer { struct alq_head head; uint32_t why, pad; };

#endif
