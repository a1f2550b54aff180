/* driver.h - what the files of the simulated libcuda share. */
#ifndef SIMGPU_CUDA_DRIVER_H
#define SIMGPU_CUDA_DRIVER_H
#include "api.h"
#include "../wire.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#define DEVICES       SIM_CARDS_MAX
#define CHANNELS_MIN  4        /* a context begins with these ... */
#define CHANNELS_MAX  16       /* ... and makes more when it has more streams */
#define BACKED_MAX    (1u << 20) /* device memory up to this size has contents */
#define POOL_CHUNK    (32ull << 20)
#define GRANULARITY   (2ull << 20)

/* Bytes of a device that a pool or the graphs hold. */
struct tally { uint64_t current, high; };

struct CUmemPoolHandle_st {
    struct device *device;
    struct tally reserved, used;
    uint64_t threshold, most;  /* kept at a synchronise; 0 or the largest size */
    uint64_t reuse[3];         /* attributes that are remembered and mean nothing here */
    CUmemoryPool next;         /* of the device's */
    bool is_default;
};

struct device {
    uint32_t card;             /* as the player counts */
    char uuid[48], name[80];
    uint64_t memory;
    uint32_t rm_device, rm_subdevice; /* 0: not made yet */
    CUcontext primary;
    unsigned primary_users, primary_flags;
    struct CUmemPoolHandle_st pool; /* the default one */
    CUmemoryPool current_pool, pools;
    struct tally graph_reserved, graph_used;
};

struct effect;
struct host_worker;

struct CUctx_st {
    struct device *device;
    bool dead, primary;
    unsigned flags;
    uint64_t id;
    CUresult fault;            /* sticky, as after an illegal address */
    uint32_t group, copy_group, channel[CHANNELS_MAX];
    unsigned channels;
    struct sim_lane *lane;
    pthread_mutex_t lock;      /* everything below, and the process's side of the lane */
    uint64_t seq, legacy_seq;  /* the latest submitted, of all and of the legacy stream */
    uint64_t last[LANE_STREAMS];
    uint32_t slot_users[LANE_STREAMS];
    uint32_t result_free[LANE_RESULTS], results_free;
    struct effect *effects, **effects_end;
    CUstream streams;
    struct CUstream_st *legacy;
    struct host_worker *hosts;
    CUcontext next;
};

struct CUstream_st {
    CUcontext context;
    uint32_t slot;
    unsigned flags;
    int priority;
    CUgraph capture;           /* what is issued is noted there instead */
    bool capture_origin;
    CUstream next;
};

struct CUevent_st {
    CUcontext context;         /* of the latest record */
    unsigned flags, users;     /* 1 for the program, 1 for each record under way */
    uint32_t slot;
    uint64_t seq, time_ns;     /* seq 0: never recorded; time 0: not known yet */
    CUgraph captured;
};

struct CUfunc_st { CUmodule module; struct CUfunc_st *next; bool burns; char name[]; };
struct global { struct global *next; CUdeviceptr address; size_t bytes; char name[]; };
struct CUmod_st { CUcontext context; struct CUfunc_st *functions; struct global *globals; char *text; };

/* One piece of work, before it is submitted: what takes the card's time and what it leaves behind. */
enum op_kind { OP_KERNEL, OP_COPY, OP_FILL, OP_HOST, OP_EVENT, OP_AFTER, OP_NOTHING };
struct op {
    enum op_kind kind;
    uint64_t duration_ns;
    union {
        struct { CUdeviceptr out; } kernel;   /* counts and notes its times there; 0: nowhere */
        struct { CUdeviceptr to, from; size_t bytes, rows, to_pitch, from_pitch; bool to_host, from_host; } copy;
        struct { CUdeviceptr to; size_t count, rows, pitch; uint32_t value, width; } fill;
        struct { CUhostFn call; void *data; } host;
        struct { CUevent event; } event;
        struct { uint32_t slot; uint64_t seq; } after;
    };
};

struct driver {
    bool ready;
    pid_t pid;                 /* a forked child has no driver */
    int rm;                    /* the RM file */
    uint32_t client;
    bool mps;                  /* contexts are those of an MPS server */
    int count;
    struct device device[DEVICES];
    CUcontext contexts;
    pthread_mutex_t lock;
};
extern struct driver driver;

/* ---- driver.c ---- */
CUresult driver_check(void);                          /* initialised, and in this process? */
CUresult driver_error(int error);                     /* an errno of the player as a CUresult */
struct device *device_of(CUdevice ordinal);           /* NULL: no such */
CUdevice ordinal_of(const struct device *device);

/* ---- handles.c: which pointers are live objects ---- */
enum handle {
    H_CONTEXT = 1, H_STREAM, H_EVENT, H_MODULE, H_FUNCTION, H_GRAPH, H_NODE, H_EXEC, H_ARRAY, H_MIPMAP, H_POOL,
};
bool handle_add(const void *object, enum handle kind);
bool handle_is(const void *object, enum handle kind);
bool handle_drop(const void *object, enum handle kind); /* false: it was none */

/* ---- rm.c: the objects that the shim watches being made ---- */
CUresult rm_open(void);
bool mps_is_there(void);                              /* mps.c: CUDA_MPS_PIPE_DIRECTORY has a control that answers */
CUresult mps_join(CUcontext context);                 /* its group works in the time of the server's */
void mps_cards(char *list, size_t size);               /* the CUDA_VISIBLE_DEVICES of the server; empty: all */
CUresult rm_make_device(struct device *device);
CUresult rm_make_groups(CUcontext context);
CUresult rm_add_channel(CUcontext context);
void rm_free_groups(CUcontext context);               /* every wait on the lane ends; it stays mapped */

/* ---- context.c ---- */
CUresult context_current(CUcontext *context);
CUresult context_check(CUcontext context);

/* ---- lane.c: submission and completion ---- */
CUresult lane_submit(CUcontext context, CUstream stream, const struct op *op, uint64_t *seq);
CUresult lane_wait(CUcontext context, uint32_t slot, uint64_t seq);
CUresult lane_wait_all(CUcontext context);
bool lane_reached(CUcontext context, uint32_t slot, uint64_t seq);
void lane_ring(CUcontext context);
void lane_poke(CUcontext context);                    /* for polls: rings, but not too often */
void lane_retire(CUcontext context);                  /* applies what finished work leaves behind */
void lane_forget(CUcontext context);                  /* drops it unapplied */

/* ---- effects.c: what finished work leaves behind ---- */
struct effect {
    struct effect *next;
    struct op op;
    uint32_t slot, result;
    uint64_t seq;
    void *staged;              /* the source of a copy, as it was when it was issued */
};
struct effect *effect_of(const struct op *op);        /* NULL: it leaves nothing */
bool effect_wants_times(const struct op *op);
void effect_apply(struct effect *effect, const struct lane_result *times);
void effect_free(struct effect *effect);

/* ---- hosts.c: host functions ---- */
CUresult hosts_push(CUcontext context, const struct op *op, uint32_t slot, uint64_t before, uint64_t seq);
void hosts_stop(CUcontext context);

/* ---- stream.c ---- */
CUresult stream_of(CUstream handle, CUstream *stream); /* NULL, 1 and 2 are streams too */
CUresult stream_issue(CUstream stream, const struct op *op); /* submits, or notes in the captured graph */
CUstream stream_make(CUcontext context, unsigned flags, int priority);
void streams_free(CUcontext context);
CUresult stream_sync(CUstream stream);

/* ---- capture.c: what may be called while streams capture ---- */
CUresult capture_permits(void);                       /* a call that the modes of captures are about, of this thread */
CUresult capture_permits_wait(CUcontext context);     /* for all of a context's work */
CUresult capture_misused(CUgraph graph);              /* what is asked of a stream that captures: breaks it */
CUresult capture_state(CUgraph graph);                /* CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: it is broken */
void capture_forget(CUgraph graph);

/* ---- event.c ---- */
void event_release(CUevent event);

/* ---- graph.c ---- */
CUgraph graph_make(void);
CUresult graph_note(CUgraph graph, const struct op *op);
CUresult graph_allocate(CUgraph graph, struct device *device, size_t bytes, CUdeviceptr *address);

/* ---- address.c: what a device address means ---- */
enum range_kind { RANGE_DEVICE, RANGE_MANAGED, RANGE_HOST, RANGE_POOL, RANGE_GRAPH, RANGE_RESERVED, RANGE_GLOBAL };
struct range {
    CUdeviceptr base;
    uint64_t size, charged;    /* bytes asked for; taken from the card */
    enum range_kind kind;
    CUcontext context;
    CUmemoryPool pool;
    void *bytes;               /* contents; NULL: too large to have any */
};
CUresult range_make(uint64_t size, uint64_t alignment, enum range_kind kind, struct range *made);
CUresult range_enter(const struct range *range);      /* one whose address is given */
bool range_find(CUdeviceptr address, struct range *found);
bool range_remove(CUdeviceptr base, struct range *removed); /* contents are the caller's to free */
bool range_first_of(CUcontext context, struct range *found);
void memory_write(CUdeviceptr to, const void *from, size_t bytes);
void memory_read(void *to, CUdeviceptr from, size_t bytes); /* zeros where there are no contents */
bool memory_known(CUdeviceptr address, size_t bytes);

/* ---- vmm.c: contents of what is mapped; false: there are none (not all of it is mapped, or it cannot be exported) ---- */
bool vmm_write(CUdeviceptr to, const void *from, size_t bytes);
void vmm_clear(CUdeviceptr to, size_t bytes);
bool vmm_read(void *to, CUdeviceptr from, size_t bytes);

/* ---- copy.c ---- */
uint64_t copy_ns(uint64_t bytes, bool over_link);     /* how long a copy or a fill takes */
bool is_host(CUdeviceptr address);                    /* memory of this process */

/* ---- ledger.c: bytes of a card ---- */
CUresult ledger_reserve(struct device *device, uint64_t bytes);
void ledger_release(struct device *device, uint64_t bytes);
CUresult ledger_read(struct device *device, struct sim_memory *memory);
void tally_add(struct tally *tally, int64_t bytes);

/* ---- pool.c ---- */
void pools_set_up(struct device *device);
void pools_trim(struct device *device);               /* at a synchronise: what is over the threshold goes */
CUresult pool_take(CUmemoryPool pool, uint64_t bytes);
void pool_give(CUmemoryPool pool, uint64_t bytes);
#endif
