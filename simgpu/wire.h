/* wire.h - what the simulated libraries and the player say to each other.
 *
 * A process sends requests over a SOCK_SEQPACKET unix socket. What it may do is decided by its "RM file": the write end
 * of a named pipe that the player made for it (SIM_OPEN), passed along with every request. A process that holds
 * the same open file may use it (the arbiter relies on that), and its objects live until the last holder closes
 * it. A pipe outlives the player, as does everything the player knows (player/store.c): after a crash the next player
 * goes on where the last one stood, and a client only sends its request again. Replies come back on a socket that the
 * request brings as SCM_RIGHTS: two processes on one connection would read each other's.
 *
 * Work takes no request at all. A context has a lane: a piece of shared memory, made by the player, with a ring that
 * the process fills and counters that the player advances. Entries carry the time of their submission, and the player
 * looks at every ring before it moves simulated time; a launch is therefore a few stores, and exact however late the
 * player wakes. A bell is rung only by somebody who wants to wait.
 */
#ifndef SIMGPU_WIRE_H
#define SIMGPU_WIRE_H
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC 0x4d495347u /* "GSIM" */
#define SIM_ENV   "ALIQUOT_SIMGPU"
#define SIM_AGAIN 0x80000000u /* in `kind`: sent before, with the same stamp, and not answered */

#define SIM_CARDS_MAX   64
#define SIM_MESSAGE_MAX 8192  /* a request, whole */
#define SIM_ANSWER_MAX  65536 /* an answer, whole */
#define SIM_STRUCT_MAX  64    /* the struct of an ioctl */
#define SIM_PARAMS_MAX  4096  /* what the struct points to */

enum sim_kind {
    SIM_IOCTL = 1,   /* struct sim_ioctl, struct, params   -> errno; struct, params */
    SIM_CARDS,       /*                                    -> struct sim_card[] */
    SIM_ATTACH,      /* struct sim_attach                  -> errno; the lane as SCM_RIGHTS */
    SIM_RESERVE,     /* struct sim_bytes                   -> errno (ENOMEM: the card is full) */
    SIM_RELEASE,     /* struct sim_bytes                   -> errno */
    SIM_MEMORY,      /* struct sim_bytes, card             -> struct sim_memory */
    SIM_BELL,        /* no answer: look at the lanes of this RM file, the first file that comes along */
    SIM_PROCESSES,   /* struct sim_since, card             -> struct sim_process[] */
    SIM_SAMPLES,     /* struct sim_since                   -> struct sim_process[], per mille of the time since */
    SIM_LOAD,        /* struct sim_since, card             -> struct sim_load */
    SIM_STATE,       /*                                    -> JSON, for tests and people */
    SIM_FAULT,       /* struct sim_fault                   -> errno; what happens to a card: for tests and people */
    SIM_EVENTS,      /* struct sim_since, since an event   -> struct sim_event[] after that one, as far as they are kept */
    SIM_OPEN,        /*                                    -> errno; a new RM file as SCM_RIGHTS */
    SIM_MIG_MODE,    /* struct sim_since, card             -> uint32_t, 1 while the card is in MIG mode */
    SIM_FOLLOW,      /* struct sim_follow                  -> errno; MPS: the group works in the time of another, its server's */
};

struct sim_head {
    uint32_t magic, kind;
    uint64_t stamp; /* CLOCK_MONOTONIC ns when it was sent: a late player applies it as of then */
};
struct sim_answer {
    uint32_t magic;
    int32_t  error; /* 0 or an errno */
    uint32_t count; /* entries that follow */
    uint32_t pad;
};
struct sim_ioctl  { struct sim_head head; uint32_t nr, size, params, pad; };
struct sim_attach { struct sim_head head; uint32_t client, group; };
struct sim_follow { struct sim_head head; uint32_t client, group, server_client, server_group; };
struct sim_bytes  { struct sim_head head; uint32_t card, pad; uint64_t bytes; };
struct sim_since  { struct sim_head head; uint32_t card, pad; uint64_t since_us; /* CLOCK_REALTIME */ };
struct sim_card   { char uuid[48], name[80]; uint64_t memory; };
struct sim_memory { uint64_t total, used; };
struct sim_process { uint32_t pid, permille; uint64_t memory, stamp_us; };
struct sim_load   { uint32_t permille, memory_percent; };
struct sim_fault  { struct sim_head head; uint32_t card, what; uint64_t xid; /* SIM_XID: its number */ };
struct sim_event  { uint64_t number; uint32_t card, xid; /* numbers begin at 1 */ };

enum sim_what {
    SIM_LOSE = 1,    /* off the bus: its contexts are dead, and nothing on it answers (ENODEV, RM_GPU_IS_LOST) ... */
    SIM_RESTORE,     /* ... until it is back, for new contexts */
    SIM_XID,         /* NVML's event sets hear of it; nothing else happens */
    SIM_MIG,         /* `xid` 1: NVML says that MIG mode is on; 0: that the card has none */
    SIM_INERT,       /* `xid` is a sum of enum sim_inert: these controls answer OK from now on and change nothing */
};
enum sim_inert { SIM_SLICES_INERT = 1, SIM_PAUSE_INERT = 2 };
#define RM_GPU_IS_LOST 0x0f

/* ---- the lane: one context's work ---- */
#define LANE_STREAMS 128  /* queues; stream 0 is the legacy default stream */
#define LANE_RING    512  /* a power of two */
#define LANE_WAITS   64
#define LANE_RESULTS 4096
#define LANE_SPACE   UINT32_MAX /* in place of a stream: waits for room in the ring */

enum lane_kind {
    LANE_RUN = 1,  /* occupies the card, or an engine for copies, for duration_ns */
    LANE_MARK,     /* nothing: an event, or the wait for another stream */
    LANE_HOST,     /* done when the process says so in host[stream] */
};
enum lane_flag {
    LANE_BARRIER = 1,     /* the legacy default stream: after everything submitted before it ... */
    LANE_NONBLOCKING = 2, /* ... except on streams that asked not to care */
    LANE_TO_CARD = 4,     /* LANE_RUN: a copy from the host, done by an engine beside kernels ... */
    LANE_TO_HOST = 8,     /* ... or to it, by another one */
};
struct lane_item {
    uint64_t stamp;        /* CLOCK_MONOTONIC ns */
    uint64_t seq;          /* grows within the lane */
    uint64_t duration_ns;
    uint64_t after_seq;    /* not before done[after_stream] reaches this */
    uint32_t channel;      /* RM handle */
    uint16_t stream, after_stream;
    uint16_t kind, flags;
    uint32_t result;       /* 1 + index into result[], 0: nobody asks */
};
enum wait_state { WAIT_FREE = 0, WAIT_CLAIMED, WAIT_ARMED, WAIT_OVER };
struct lane_wait {
    uint32_t state;        /* a futex word; the process claims and arms, the player ends */
    uint32_t stream;
    uint64_t seq;
};
struct lane_result { uint64_t start_ns, end_ns; };
struct sim_lane {
    uint32_t magic;
    uint32_t dead;         /* player: the group is gone, or garbage was found here; nothing will be done any more */
    uint32_t pad0[14];
    uint64_t head;         /* process: entries written so far */
    uint32_t rung, waiters; /* process: a bell is on its way (the player takes it back); armed waits */
    uint8_t  pad1[48];
    uint64_t tail;         /* player: entries taken so far */
    uint8_t  pad2[56];
    uint64_t done[LANE_STREAMS];  /* player: the latest finished entry */
    uint64_t host[LANE_STREAMS];  /* process: the latest finished host function ... */
    uint64_t host_ns[LANE_STREAMS]; /* ... and when it ended, written before */
    struct lane_wait   wait[LANE_WAITS];
    struct lane_result result[LANE_RESULTS]; /* player */
    struct lane_item   ring[LANE_RING];      /* process */
};
_Static_assert(sizeof(struct sim_head) == 16 && sizeof(struct lane_item) == 48, "wire");
_Static_assert(offsetof(struct sim_lane, tail) == 128, "the two writers are on different cache lines");

/* ---- the libraries' side (wire.c) ---- */

/* Opens an RM file at the player named by $ALIQUOT_SIMGPU. Returns a close-on-exec file or -1 with errno. */
int sim_open(void);

/* One request, one answer, on any thread of any process. `rm` is the RM file that it is for, -1: none. The payload of
 * the answer goes to `out` (at most `room` bytes; `got` says how many there were), a file that came with it to `file`
 * (or is closed when NULL). Without a player it waits for the next one. Returns 0 or an errno: the player's, or ENODEV
 * when the player was ended on purpose (no socket is left) or none came for two minutes. */
int sim_call(int rm, void *request, size_t size, void *out, size_t room, size_t *got, uint32_t *count, int *file);

/* Asks the player to look at the lanes of this RM file. Never blocks. Returns 0, also while there is hope for a player,
 * or ENODEV. */
int sim_bell(int rm);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t sim_now(void);

/* Does the ioctl of an RM file. Returns 0, or -1 with errno. */
int sim_rm_ioctl(int fd, unsigned long request, void *argument);

/* 1 when `fd` may be an RM file, where $ALIQUOT_SIMGPU names a player. Leaves errno alone. */
int sim_is_rm_file(int fd);
#endif
