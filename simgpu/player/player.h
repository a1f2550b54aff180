/* player.h - the nouns of the player: cards, connections, RM objects, groups and their work.
 *
 * One process plays all cards. Simulated time is CLOCK_MONOTONIC, but moves only here, from one event to the next (the
 * end of a kernel, of a slice, of a switch, an arrival), each at its exact instant. A late wake-up of the player
 * changes when a client hears of something, never what happened.
 */
#ifndef SIMGPU_PLAYER_H
#define SIMGPU_PLAYER_H
#include "../wire.h"
#include "../../shim/rm.h"
#include <stdbool.h>
#include <stdint.h>

#define NEVER          UINT64_MAX
#define US             1000ull
#define DEFAULT_SLICE  (2048 * US)
#define STOP_DELAY     (50 * US)       /* from the order to pause to the kernel standing still */
#define BUCKET         (100 * 1000 * US) /* utilisation is kept per tenth of a second ... */
#define BUCKETS        64              /* ... for the last six seconds */
#define HELD           512             /* entries taken from a lane and not finished */
#define NONE           UINT16_MAX
#define OBJECTS_MAX    2048            /* per connection */
#define CONNECTIONS_MAX 1000
#define USER_MAX        250             /* of these, for one user other than ours and root ... */
#define USERS_MAX       900             /* ... and for all of them: the daemon can always connect */
#define EVENTS_KEPT    64              /* Xids; whoever asks more seldom misses some */

/* Time spent on a card in the buckets of the last seconds. */
struct usage {
    uint64_t index[BUCKETS]; /* which bucket of all time the entry is for */
    uint64_t busy[BUCKETS];  /* ns */
    uint64_t total;          /* ns since the beginning */
};

struct connection;

/* A channel group (TSG): what the card switches between. */
struct group {
    struct group *next, *previous; /* the card's runlist, circular */
    struct card *card;
    struct connection *owner;
    struct object *object;
    struct lane *lane;       /* NULL: never given any work */
    uint64_t lane_number;    /* its files; 0: none */
    uint64_t slice, busy;    /* ns */
    struct group *server;    /* MPS: runs in that one's time, beside others that do; NULL: in its own */
    uint32_t server_client, server_handle; /* by which the next player finds it */
    uint32_t clients;        /* groups whose server it is */
};

/* An RM object, in a slot of its connection. The next player finds it there by its handle, and sets the pointers. */
struct object {
    uint32_t handle;         /* 0: the slot is free. Written last, and cleared first */
    uint32_t parent, client, class_, engine;
    uint32_t card_number;
    struct object *next;
    struct card *card;       /* NULL for a root */
    struct group *group;     /* of a group (its own), and of a channel */
    struct group own;
    uint64_t stop_at;        /* a channel: when it is (or was) disabled; NEVER: enabled */
};

/* An entry of a lane that the player has taken. */
struct work {
    struct lane_item item;
    uint64_t left;           /* ns still to run */
    uint64_t started;        /* 0: not yet */
    uint16_t next;           /* in its stream, or in the list of free ones */
};
struct queue {               /* one stream */
    uint16_t first, last;    /* into work[] */
    struct object *channel;  /* never NULL while there is work */
    unsigned engine;         /* that did the latest copy, if no kernel came after it; 0: none */
    uint64_t seq;            /* the latest finished */
};
struct lane {
    uint64_t number;         /* of its files */
    struct sim_lane *shared;
    struct work work[HELD];
    struct queue queue[LANE_STREAMS];
    uint64_t active[LANE_STREAMS / 64]; /* bit i: queue i is not empty */
    uint16_t spare, held;
    int running;             /* stream of the entry begun and not finished, -1 */
    uint64_t seq;            /* the latest taken */
    bool dead;
};

struct card {
    uint32_t index;
    char uuid[48];
    uint64_t memory, used;
    bool lost;               /* off the bus */
    bool mig;                /* in MIG mode, says NVML */
    uint32_t inert;          /* of enum sim_inert: what is answered with OK and changes nothing */
    uint64_t now;            /* simulated time */
    struct group *runlist;   /* any of the circle */
    struct group *current;   /* whose state is loaded, busy or not */
    bool active;             /* current has something to run, or is being switched in */
    uint64_t slice_start, switch_end;
    uint64_t switches;
    struct usage usage;      /* kernels and switches */
};

/* One RM file: the simulated /dev/nvidiactl, opened once. Gone when all holders have closed it. */
struct connection {
    uint32_t magic;          /* written when it is complete */
    uint32_t pid, uid;       /* who opened it */
    uint64_t number;         /* of its files */
    uint64_t dev, ino;       /* of the named pipe: every process that holds it may use it */
    struct connection *next;
    int fd;                  /* the pipe's read end */
    bool closed;
    struct object *objects;
    uint32_t count, made;
    uint64_t memory[SIM_CARDS_MAX]; /* reserved; contexts take more */
    uint32_t contexts[SIM_CARDS_MAX];
    struct usage *usage[SIM_CARDS_MAX]; /* NULL: never ran anything there */
    struct object slot[OBJECTS_MAX];
};

/* A process that sends requests. */
struct link {
    struct link *next;
    int fd;
    uint32_t pid, uid;
    bool closed;
};

struct settings {
    const char *socket, *state, *name;
    uint32_t cards;
    uint64_t seed;                    /* of the UUIDs */
    uint64_t memory, context_memory;  /* bytes */
    uint64_t switch_ns, control_ns;
    bool refuse_controls, until_stdin_closes, any_user;
    uint32_t inert;                   /* of every card at first */
    uint64_t hang_after;              /* controls answered before the driver hangs; NEVER */
};

/* The latest answer, until the next: a client whose player died before it was sent asks for it again. */
struct last_answer {
    uint64_t stamp, connection, lane; /* lane: whose file goes with it; 0: none */
    struct sim_answer head;
    size_t size;
    uint8_t bytes[SIM_STRUCT_MAX + SIM_PARAMS_MAX];
};

/* All that the player knows, in a file that the next player takes over; lists and pointers are made anew (store.c). */
struct player {
    uint64_t layout;                  /* of the structs in the files; written when the rest is */
    char boot[40];                    /* since which times are counted */
    uint64_t numbers;                 /* of files, given so far */
    struct settings set;
    struct card card[SIM_CARDS_MAX];
    struct connection *connections;
    uint32_t connection_count;
    uint32_t next_client;
    uint64_t real_now;                /* CLOCK_MONOTONIC as of this round */
    uint64_t controls;                /* slices set, channels disabled or enabled */
    struct sim_event event[EVENTS_KEPT]; /* by number */
    uint64_t events;                  /* the number of the last */
    int64_t realtime_offset;          /* CLOCK_REALTIME - CLOCK_MONOTONIC, ns */
    struct last_answer last;
};
extern struct player *player;

/* ---- store.c: what outlives the player ---- */
bool store_open(const struct settings *set);            /* waits until it is our turn; false after a complaint */
void *store_map(char kind, uint64_t number, size_t size, int *file); /* NULL: errno. `file`: the caller's to close, or NULL */
void store_remove(char kind, uint64_t number);
void store_cut(uint32_t uid, char kind, uint64_t number, size_t size); /* has it cut if that user made it longer */
struct connection *connection_new(uint32_t pid, uint32_t uid, int *file); /* NULL: errno */
void connection_free(struct connection *connection);    /* without objects, and out of the list */
void store_remove_all(void);

/* ---- card.c: whose turn it is ---- */
void card_advance(struct card *card, uint64_t to);      /* plays up to `to`; nothing when that is past */
uint64_t card_next(struct card *card);                  /* when something will happen next by itself, or NEVER */
bool group_runnable(struct group *group);
uint64_t group_earliest(const struct group *group);     /* when it can be running at the earliest */
void group_join(struct card *card, struct group *group);
void group_leave(struct group *group);
bool group_has_work(struct group *group);               /* of its own, that may run now */

/* ---- copies.c: between host and card, beside kernels ---- */
#define ENGINES 2            /* one for each direction */
struct copy { struct group *group; struct work *work; int stream; }; /* work NULL: the engine is idle */
unsigned copy_engine(const struct lane *lane, int stream); /* of the stream's first entry, from 1; 0: none */
uint64_t copies_running(struct card *card, struct copy *copy); /* what every engine does now -> until when, or NEVER */
void copies_settle(struct card *card);                  /* ends what takes no time */
void copies_advance(struct card *card, struct copy *copy, uint64_t until); /* before the card's time moves */
bool copies_wanted(struct group *group);                /* whether an engine has, or waits for, something to do for it */
uint64_t copies_earliest(struct group *group, int stream); /* when the stream's first entry, a copy, can be running */

/* ---- mps.c: several groups in the time of one ---- */
#define TOGETHER_MAX 64
int mps_follow(struct connection *connection, const struct sim_follow *request); /* 0 or an errno */
unsigned mps_runners(struct group *group, struct group **runner); /* it and its clients that have work now */
bool mps_stopped(const struct group *group);            /* whether its server is paused */
uint64_t mps_stop_at(const struct group *group);        /* when its server is, at the latest known; NEVER */
void mps_part(struct group *group);                     /* the group, or a channel of it, is going: with work in flight? */
void mps_leave(struct group *group);                    /* the group is gone */
void mps_again(void);                                   /* finds the servers that the last player knew */

/* ---- lane.c: what there is to do ---- */
struct lane *lane_new(int *file);                       /* NULL: errno. `file` is the caller's to close */
struct lane *lane_again(struct group *group);           /* that of the last player; NULL: it is lost */
void lane_cut(uint32_t uid, const struct lane *lane);    /* the process of that user may have made its file longer */
void lane_kill(struct lane *lane);                      /* nothing more will be done on it; ends every wait on it */
void lane_free(struct lane *lane);                      /* the same, and it is gone */
uint64_t lane_admit(struct group *group, uint64_t now);  /* -> when the process changes something next */
bool lane_eligible(const struct lane *lane, int stream, uint64_t now); /* whether the stream's first entry may run */
int lane_pick(struct lane *lane, uint64_t now);         /* -> a stream whose first entry may run in its turn, or -1 */
unsigned item_engine(const struct lane_item *item);     /* which engine copies it, from 1; 0: no copy */
uint64_t lane_left(const struct lane *lane, bool copies); /* ns of work that it holds, with or without copies */
void lane_finish(struct lane *lane, int stream, uint64_t now);
uint64_t lane_serve_waits(struct group *group);         /* ends those that are over -> when to look again */
void lane_forget_channel(struct lane *lane, const struct object *channel);
struct object *channel_of(struct connection *owner, struct group *group, uint32_t handle);

/* ---- closing.c: files that others handed over ---- */
void close_of(uint32_t uid, int fd);                    /* a file of that user, now or soon: never waits */
void cut_of(uint32_t uid, const char *path, size_t size); /* a file of ours that this user can write, soon */
bool reads_nothing_of(uint32_t uid);                    /* too many files of that user wait to be closed */

/* ---- usage.c: who had how much ---- */
void usage_add(struct usage *usage, uint64_t from, uint64_t to);
uint64_t usage_between(const struct usage *usage, uint64_t from, uint64_t to); /* whole buckets */
void usage_charge(struct group *group, uint64_t from, uint64_t to);

/* ---- objects.c: the RM file ---- */
int rm_ioctl(struct connection *connection, uint32_t nr, uint32_t size, void *bytes, uint32_t length, void *params);
struct object *object_find(struct connection *connection, uint32_t client, uint32_t handle);
void objects_free_all(struct connection *connection);
void objects_again(struct connection *connection);      /* those of the last player */

/* ---- control.c ---- */
uint32_t rm_control_do(struct connection *connection, struct rm_control *control, void *params, uint32_t length);
bool rm_is_scheduling_control(uint32_t command);

/* ---- answers.c: everything but the ioctls ---- */
struct answer {
    int file;                /* to pass on and then close, or -1 */
    uint64_t lane;           /* whose file that is; 0: none's */
    size_t size;             /* of bytes */
    struct sim_answer head;
    uint8_t bytes[SIM_ANSWER_MAX];
};
void answer_request(const struct link *link, struct connection *connection, const uint8_t *message, size_t size,
                    struct answer *answer);
uint64_t memory_held(const struct connection *connection, uint32_t card);
bool is_ours(uint32_t uid);                             /* our user, or root */
int fault_happens(const struct sim_fault *fault);       /* fault.c: 0 or an errno */
size_t state_json(char *text, size_t room);             /* state.c */
#endif
