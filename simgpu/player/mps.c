/* mps.c - groups that share a card in space, as the clients of an MPS server do.
 *
 * A client's group has its own lane and channels, but no turn: it runs whenever its server's group has the card, beside
 * all other clients, each as fast as alone. A pause or a slice of the server's group is one of all of them. A client
 * that goes with work in flight takes the other clients with it, and nobody else, as NVIDIA documents it.
 */
#include "player.h"
#include <errno.h>

static struct object *find_group(uint32_t client, uint32_t handle)
{
    for (struct connection *c = player->connections; c; c = c->next) {
        struct object *o = object_find(c, client, handle);
        if (o) return o->class_ == RM_CLASS_GROUP ? o : NULL;
    }
    return NULL;
}

static void follow(struct group *group, struct group *server)
{
    group->server = server;
    server->clients++;
}

int mps_follow(struct connection *connection, const struct sim_follow *request)
{
    struct object *own = object_find(connection, request->client, request->group);
    struct object *server = find_group(request->server_client, request->server_group);
    if (!own || own->class_ != RM_CLASS_GROUP || !server || own == server || own->card != server->card) return EINVAL;
    if (connection->uid != server->group->owner->uid) return EPERM;
    if (own->group->server || own->group->clients || own->group->lane || server->group->server) return EBUSY;
    if (server->group->clients >= TOGETHER_MAX - 1) return EMFILE;
    own->group->server_client = request->server_client;
    own->group->server_handle = request->server_group;
    follow(own->group, server->group);
    return 0;
}

unsigned mps_runners(struct group *group, struct group **runner)
{
    unsigned count = 0;
    if (group_has_work(group)) runner[count++] = group;
    if (group->clients)
        for (struct group *g = group->next; g != group && count < TOGETHER_MAX; g = g->next)
            if (g->server == group && group_has_work(g)) runner[count++] = g;
    return count;
}

uint64_t mps_stop_at(const struct group *group)
{
    uint64_t stop = NEVER;
    if (group->server)
        for (const struct object *o = group->server->owner->objects; o; o = o->next)
            if (o->group == group->server && rm_is_channel(o->class_) && o->stop_at < stop) stop = o->stop_at;
    return stop;
}

bool mps_stopped(const struct group *group)
{
    return group->card->now >= mps_stop_at(group);
}

/* The clients of a server can do nothing any more. */
static void fault(struct group *server)
{
    for (struct group *g = server->next; g != server; g = g->next)
        if (g->server == server && g->lane && !g->lane->dead) lane_kill(g->lane);
}

void mps_part(struct group *group)
{
    if (group->server && group->lane && !group->lane->dead && group->lane->held) fault(group->server);
}

void mps_leave(struct group *group)
{
    if (group->clients) {
        fault(group);
        for (struct group *g = group->next; g != group; g = g->next)
            if (g->server == group) g->server = NULL;
        group->clients = 0;
    }
    if (group->server) group->server->clients--;
    group->server = NULL;
}

void mps_again(void)
{
    for (struct connection *c = player->connections; c; c = c->next)
        for (struct object *o = c->objects; o; o = o->next)
            if (o->class_ == RM_CLASS_GROUP && o->group) {
                o->group->server = NULL;
                o->group->clients = 0;
            }
    for (struct connection *c = player->connections; c; c = c->next)
        for (struct object *o = c->objects; o; o = o->next) {
            if (o->class_ != RM_CLASS_GROUP || !o->group || !o->group->server_client) continue;
            struct object *server = find_group(o->group->server_client, o->group->server_handle);
            if (server && server->group) follow(o->group, server->group);
            else if (o->group->lane) lane_kill(o->group->lane);
        }
}
