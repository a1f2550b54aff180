/* answers.c - what the player answers: ioctls, memory, lanes, and the questions of NVML. */
#include "player.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define WINDOW (1000ull * 1000 * 1000) /* utilisation is that of the last second unless a time is given */

/* Adds an entry to the answer. Returns false when it is full. */
static bool put(struct answer *answer, const void *entry, size_t size)
{
    if (answer->size + size > sizeof answer->bytes) return false;
    memcpy(answer->bytes + answer->size, entry, size);
    answer->size += size;
    answer->head.count++;
    return true;
}

static int answer_ioctl(struct connection *connection, const uint8_t *message, size_t size, struct answer *answer)
{
    struct sim_ioctl request;
    if (size < sizeof request) return EINVAL;
    memcpy(&request, message, sizeof request);
    if (request.size > SIM_STRUCT_MAX || request.params > SIM_PARAMS_MAX ||
        size != sizeof request + request.size + request.params)
        return EINVAL;
    answer->size = request.size + request.params;
    memcpy(answer->bytes, message + sizeof request, answer->size);
    return rm_ioctl(connection, request.nr, request.size, answer->bytes, request.params,
                    answer->bytes + request.size);
}

static int answer_cards(struct answer *answer)
{
    for (uint32_t i = 0; i < player->set.cards; i++) {
        struct sim_card card = { .memory = player->card[i].memory };
        memcpy(card.uuid, player->card[i].uuid, sizeof card.uuid);
        strncpy(card.name, player->set.name, sizeof card.name - 1);
        put(answer, &card, sizeof card);
    }
    return 0;
}

/* A context: the group gets a lane, and the card loses what every context costs. */
static int answer_attach(struct connection *connection, const struct sim_attach *request, struct answer *answer)
{
    struct object *object = object_find(connection, request->client, request->group);
    if (!object || object->class_ != RM_CLASS_GROUP) return EINVAL;
    struct card *card = object->card;
    if (card->lost) return ENODEV;
    if (object->group->lane) return EBUSY;
    if (card->memory - card->used < player->set.context_memory) return ENOMEM;
    object->group->lane = lane_new(&answer->file);
    if (!object->group->lane) return errno;
    answer->lane = object->group->lane_number = object->group->lane->number;
    card->used += player->set.context_memory;
    connection->contexts[card->index]++;
    return 0;
}

uint64_t memory_held(const struct connection *connection, uint32_t card)
{
    return connection->memory[card] + connection->contexts[card] * player->set.context_memory;
}

bool is_ours(uint32_t uid)
{
    return uid == 0 || uid == geteuid();
}

/* Whether this user has as many RM files as one user may have. */
static bool has_enough(uint32_t uid)
{
    uint32_t own = 0, strangers = 0;
    for (const struct connection *c = player->connections; c; c = c->next) {
        own += c->uid == uid;
        strangers += !is_ours(c->uid);
    }
    return !is_ours(uid) && (own >= USER_MAX || strangers >= USERS_MAX);
}

/* A new RM file. */
static int answer_open(const struct link *link, struct answer *answer)
{
    if (player->connection_count == CONNECTIONS_MAX || has_enough(link->uid)) return EMFILE;
    struct connection *made = connection_new(link->pid, link->uid, &answer->file);
    if (!made) return errno;
    made->next = player->connections;
    player->connections = made;
    player->connection_count++;
    return 0;
}

static int answer_bytes(struct connection *connection, const struct sim_bytes *request, struct answer *answer)
{
    if (request->card >= player->set.cards) return EINVAL;
    struct card *card = &player->card[request->card];
    if (card->lost && request->head.kind != SIM_RELEASE) return ENODEV;
    if (request->head.kind == SIM_MEMORY) {
        struct sim_memory memory = { card->memory, card->used };
        put(answer, &memory, sizeof memory);
        return 0;
    }
    if (!connection) return EINVAL;
    if (request->head.kind == SIM_RESERVE) {
        if (request->bytes > card->memory - card->used) return ENOMEM;
        card->used += request->bytes;
        connection->memory[request->card] += request->bytes;
        return 0;
    }
    if (request->bytes > connection->memory[request->card]) return EINVAL;
    card->used -= request->bytes;
    connection->memory[request->card] -= request->bytes;
    return 0;
}

/* One entry per process with a context on the card. */
static int answer_processes(const struct sim_since *request, struct answer *answer)
{
    struct sim_process *list = (struct sim_process *)(void *)answer->bytes;
    for (struct connection *c = player->connections; c; c = c->next) {
        if (!c->contexts[request->card]) continue;
        uint32_t i = 0;
        while (i < answer->head.count && list[i].pid != c->pid) i++;
        struct sim_process entry = { .pid = c->pid, .memory = memory_held(c, request->card) };
        if (i < answer->head.count) list[i].memory += entry.memory;
        else put(answer, &entry, sizeof entry);
    }
    return 0;
}

/* The time from `since_us` to the end of the last whole bucket, on the simulated clock. Empty: `from` >= `to`. */
static void period(const struct sim_since *request, uint64_t *from, uint64_t *to)
{
    uint64_t now = player->card[request->card].now;
    *to = now / BUCKET * BUCKET;
    *from = *to > WINDOW ? *to - WINDOW : 0;
    int64_t since = (int64_t)(request->since_us * US) - player->realtime_offset;
    if (!request->since_us) return;
    uint64_t oldest = *to > (BUCKETS - 1) * BUCKET ? *to - (BUCKETS - 1) * BUCKET : 0;
    uint64_t asked = since > 0 ? ((uint64_t)since + BUCKET / 2) / BUCKET * BUCKET : 0; /* answers end with a bucket */
    *from = asked < oldest ? oldest : asked < *to ? asked : *to;
}

static uint32_t permille(uint64_t part, uint64_t from, uint64_t to)
{
    return to > from ? (uint32_t)((part * 1000 + (to - from) / 2) / (to - from)) : 0;
}

/* One entry per process that ran something on the card in the period. */
static int answer_samples(const struct sim_since *request, struct answer *answer)
{
    struct sim_process *list = (struct sim_process *)(void *)answer->bytes;
    uint64_t from, to;
    period(request, &from, &to);
    for (struct connection *c = player->connections; c && from < to; c = c->next) {
        const struct usage *usage = c->usage[request->card];
        uint64_t busy = usage ? usage_between(usage, from, to) : 0;
        uint32_t i = 0;
        if (!busy) continue;
        while (i < answer->head.count && list[i].pid != c->pid) i++;
        struct sim_process entry = { .pid = c->pid, .permille = permille(busy, from, to),
                                     .memory = memory_held(c, request->card),
                                     .stamp_us = (uint64_t)((int64_t)to + player->realtime_offset) / US };
        if (i < answer->head.count) list[i].permille += entry.permille;
        else put(answer, &entry, sizeof entry);
    }
    return 0;
}

static int answer_load(const struct sim_since *request, struct answer *answer)
{
    const struct card *card = &player->card[request->card];
    uint64_t from, to;
    period(request, &from, &to);
    struct sim_load load = { permille(usage_between(&card->usage, from, to), from, to),
                             (uint32_t)(card->used * 100 / card->memory) };
    put(answer, &load, sizeof load);
    return 0;
}

/* What happened to the cards after the event of that number. */
static int answer_events(uint64_t since, struct answer *answer)
{
    uint64_t first = player->events < EVENTS_KEPT ? 1 : player->events - EVENTS_KEPT + 1;
    for (uint64_t n = since < first ? first : since + 1; n <= player->events; n++)
        put(answer, &player->event[n % EVENTS_KEPT], sizeof *player->event);
    return 0;
}

/* Answers one request, whatever it holds. `connection` is NULL without an RM file. The error is in the answer. */
void answer_request(const struct link *link, struct connection *connection, const uint8_t *message, size_t size,
                    struct answer *answer)
{
    union { struct sim_head head; struct sim_attach attach; struct sim_bytes bytes; struct sim_since since;
            struct sim_fault fault; struct sim_follow follow; } request;
    int error = EINVAL;
    memset(&request, 0, sizeof request);
    memcpy(&request, message, size < sizeof request ? size : sizeof request);
    request.head.kind &= ~SIM_AGAIN;
    switch (request.head.kind) {
    case SIM_OPEN: error = answer_open(link, answer); break;
    case SIM_IOCTL: if (connection) error = answer_ioctl(connection, message, size, answer); break;
    case SIM_CARDS: error = answer_cards(answer); break;
    case SIM_ATTACH:
        if (size == sizeof request.attach && connection) error = answer_attach(connection, &request.attach, answer);
        break;
    case SIM_FOLLOW:
        if (size == sizeof request.follow && connection) error = mps_follow(connection, &request.follow);
        break;
    case SIM_RESERVE:
    case SIM_RELEASE:
    case SIM_MEMORY:
        if (size == sizeof request.bytes) error = answer_bytes(connection, &request.bytes, answer);
        break;
    case SIM_PROCESSES:
    case SIM_SAMPLES:
    case SIM_LOAD:
        if (size != sizeof request.since || request.since.card >= player->set.cards) break;
        error = player->card[request.since.card].lost ? ENODEV
              : request.head.kind == SIM_PROCESSES ? answer_processes(&request.since, answer)
              : request.head.kind == SIM_SAMPLES   ? answer_samples(&request.since, answer)
                                                   : answer_load(&request.since, answer);
        break;
    case SIM_FAULT:
        if (!is_ours(link->uid)) error = EPERM; /* it would end the work of others */
        else if (size == sizeof request.fault) error = fault_happens(&request.fault);
        break;
    case SIM_EVENTS:
        if (size == sizeof request.since) error = answer_events(request.since.since_us, answer);
        break;
    case SIM_MIG_MODE:
        if (size != sizeof request.since || request.since.card >= player->set.cards) break;
        put(answer, &(uint32_t){ player->card[request.since.card].mig }, sizeof(uint32_t));
        error = 0;
        break;
    case SIM_STATE:
        error = is_ours(link->uid) ? 0 : EPERM;
        if (!error) answer->size = state_json((char *)answer->bytes, sizeof answer->bytes / 2);
        break;
    }
    answer->head.error = error;
    if (error) answer->size = 0;
}
