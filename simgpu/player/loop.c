/* loop.c - accepts, receives, answers, and wakes who waits.
 *
 * A round reads what has come on all connections, sorts it by the time of sending, and plays the cards up to each of
 * these times in turn: an order that lay in the socket while the player had no processor counts from when it was given.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "player.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BATCH    64
#define PER_TURN 16                          /* messages from one connection in one round: nobody floods the rest */
#define LAG_MAX  (250ull * 1000 * 1000)      /* with work to do the cards never lag more, even when nobody waits */
#define FILES    253                         /* that can come with one message (SCM_MAX_FD): the kernel closes the others, in our time */
#define CUT_NS   (1000ull * 1000 * 1000)     /* between two looks whether somebody made a lane longer */
#define PENDING_MAX 256

struct message {
    _Alignas(16) uint8_t bytes[SIM_MESSAGE_MAX];
    size_t size;
    uint64_t stamp, sent;          /* as of when it counts, and as it says */
    struct link *from;
    struct connection *connection; /* whose RM file came with it, or NULL */
    int reply;
};
static struct link *links;
static unsigned link_count;
static struct message batch[BATCH];
static unsigned batched;

/* An answer that is due later: real controls take their time. */
struct pending {
    struct pending *next;
    uint64_t due;
    int reply;
    uint32_t uid;                             /* whose it is */
    struct answer answer;                     /* last: only as much of it as is used */
};
static struct pending *pending;
static unsigned pending_count;

/* Sends and closes. Whoever asked may be gone, or have given us something else than a socket: their loss. */
static void reply_with(uint32_t uid, int reply, struct answer *answer)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec part[2] = { { &answer->head, sizeof answer->head }, { answer->bytes, answer->size } };
    struct msghdr message = { .msg_iov = part, .msg_iovlen = 2 };
    if (answer->file >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &answer->file, sizeof(int));
    }
    (void)!sendmsg(reply, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (answer->file >= 0) close(answer->file);
    close_of(uid, reply);
}

/* Keeps an answer until `due`. Without room for it, it goes out at once. */
static void reply_later(uint32_t uid, int reply, struct answer *answer, uint64_t due)
{
    size_t size = offsetof(struct answer, bytes) + answer->size;
    struct pending *entry = pending_count < PENDING_MAX ? malloc(offsetof(struct pending, answer) + size) : NULL;
    struct pending **link = &pending;
    if (!entry) {
        reply_with(uid, reply, answer);
        return;
    }
    entry->due = due;
    entry->reply = reply;
    entry->uid = uid;
    memcpy(&entry->answer, answer, size);
    pending_count++;
    while (*link && (*link)->due <= due) link = &(*link)->next;
    entry->next = *link;
    *link = entry;
}

static void send_due(uint64_t now)
{
    while (pending && pending->due <= now) {
        struct pending *entry = pending;
        pending = entry->next;
        pending_count--;
        reply_with(entry->uid, entry->reply, &entry->answer);
        free(entry);
    }
}

/* Whether this message is an ioctl that sets a slice, pauses or resumes. */
static bool is_scheduling(const struct message *message)
{
    struct { struct sim_ioctl head; struct rm_control control; } request;
    if (message->size < sizeof request) return false;
    memcpy(&request, message->bytes, sizeof request);
    return (request.head.head.kind & ~SIM_AGAIN) == SIM_IOCTL && request.head.nr == RM_ESC_CONTROL &&
           rm_is_scheduling_control(request.control.command);
}

static void advance_all(uint64_t to)
{
    for (uint32_t i = 0; i < player->set.cards; i++) card_advance(&player->card[i], to);
}

/* Keeps the answer for the case that we die before it is heard of (wire.h, SIM_AGAIN). */
static void remember(const struct message *message, const struct answer *answer)
{
    struct last_answer *last = &player->last;
    last->stamp = 0;
    if (!message->connection || answer->size > sizeof last->bytes) return;
    last->connection = message->connection->number;
    last->lane = answer->lane;
    last->head = answer->head;
    last->size = answer->size;
    memcpy(last->bytes, answer->bytes, answer->size);
    __atomic_store_n(&last->stamp, message->sent, __ATOMIC_RELEASE);
}

/* Whether the last player did this already; the answer then is the one that it made. */
static bool answered_before(const struct message *message, struct answer *answer)
{
    const struct last_answer *last = &player->last;
    if (!message->connection || !last->stamp || last->stamp != message->sent ||
        last->connection != message->connection->number)
        return false;
    answer->head = last->head;
    answer->size = last->size;
    memcpy(answer->bytes, last->bytes, last->size);
    struct sim_lane *lane = last->lane ? store_map('w', last->lane, sizeof *lane, &answer->file) : NULL;
    if (lane) munmap(lane, sizeof *lane);
    return true;
}

/* A bell: the lanes of this connection may be rung again from now on. */
static void take_bell(struct connection *connection)
{
    for (struct object *o = connection->objects; o; o = o->next)
        if (o->class_ == RM_CLASS_GROUP && o->group->lane)
            __atomic_store_n(&o->group->lane->shared->rung, 0, __ATOMIC_SEQ_CST);
}

static void handle(struct message *message)
{
    static struct answer answer;
    struct sim_head head;
    memcpy(&head, message->bytes, sizeof head);
    if (head.kind == SIM_BELL || message->reply < 0) {
        if (message->reply >= 0) close_of(message->from->uid, message->reply);
        if (head.kind == SIM_BELL && message->connection) take_bell(message->connection);
        return;
    }
    advance_all(message->stamp);
    answer.head = (struct sim_answer){ .magic = SIM_MAGIC };
    answer.size = 0;
    answer.file = -1;
    answer.lane = 0;
    bool hung = (head.kind & ~SIM_AGAIN) == SIM_IOCTL && player->controls >= player->set.hang_after;
    if (!hung && !(head.kind & SIM_AGAIN && answered_before(message, &answer))) {
        answer_request(message->from, message->connection, message->bytes, message->size, &answer);
        remember(message, &answer);
    }
    if (hung) {
        answer.head.error = ENODEV; /* for the one too many that cannot be kept waiting */
        reply_later(message->from->uid, message->reply, &answer, NEVER);
    }
    else if (player->set.control_ns && is_scheduling(message))
        reply_later(message->from->uid, message->reply, &answer, player->real_now + player->set.control_ns);
    else reply_with(message->from->uid, message->reply, &answer);
}

/* The connection whose RM file this is, or NULL. Of a file of another kind nothing is asked: its file system may hang. */
static struct connection *connection_of(int fd)
{
    struct stat found;
    if (fd < 0 || fcntl(fd, F_GETPIPE_SZ) < 0 || fstat(fd, &found) != 0 || !S_ISFIFO(found.st_mode)) return NULL;
    for (struct connection *c = player->connections; c; c = c->next)
        if (c->ino == found.st_ino && c->dev == found.st_dev) return c;
    return NULL;
}

/* Takes the files of a message: the socket for the reply, unless it is a bell, and the RM file. Closes the others. */
static void take_files(uint32_t uid, struct msghdr *header, struct message *message, bool bell)
{
    int file[2] = { -1, -1 };
    unsigned taken = bell;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (taken < 2) file[taken++] = fd;
            else close_of(uid, fd);
        }
    }
    message->reply = file[0];
    message->connection = connection_of(file[1]);
    if (file[1] >= 0) close_of(uid, file[1]);
}

/* Reads what a process has sent. An empty packet looks like the end of the file; only the poll knows which it is. */
static void receive(struct link *link, bool hung_up)
{
    for (int i = 0; i < PER_TURN && batched < BATCH && !reads_nothing_of(link->uid); i++) {
        struct message *message = &batch[batched];
        union { struct cmsghdr align; char bytes[CMSG_SPACE(FILES * sizeof(int))]; } control;
        struct iovec part = { message->bytes, sizeof message->bytes };
        struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1,
                                 .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
        ssize_t n = recvmsg(link->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        struct sim_head head = { 0 };
        if (n >= (ssize_t)sizeof head) memcpy(&head, message->bytes, sizeof head);
        message->reply = -1;
        if (n >= 0) take_files(link->uid, &header, message, head.kind == SIM_BELL);
        if (n < 0 || (n == 0 && hung_up)) {
            if (message->reply >= 0) close_of(link->uid, message->reply);
            link->closed = true;
            return;
        }
        if (head.magic != SIM_MAGIC || header.msg_flags & MSG_TRUNC) { /* not one of ours: as if never sent */
            if (message->reply >= 0) close_of(link->uid, message->reply);
            continue;
        }
        message->size = (size_t)n;
        message->from = link;
        message->sent = head.stamp;
        message->stamp = head.stamp < player->real_now ? head.stamp : player->real_now;
        batched++;
    }
}

static int by_stamp(const void *left, const void *right)
{
    const struct message *a = *(struct message *const *)left, *b = *(struct message *const *)right;
    if (a->stamp != b->stamp) return a->stamp < b->stamp ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* Handles the batch in order of sending; messages of one process stay in the order they came in. */
static void handle_batch(void)
{
    struct message *order[BATCH];
    for (unsigned i = 0; i < batched; i++) {
        order[i] = &batch[i];
        if (i && batch[i - 1].from == batch[i].from && batch[i].stamp < batch[i - 1].stamp)
            batch[i].stamp = batch[i - 1].stamp;
    }
    qsort(order, batched, sizeof *order, by_stamp);
    for (unsigned i = 0; i < batched; i++) handle(order[i]);
    batched = 0;
}

/* Whether this user has as many connections as one user may have. */
static bool has_enough(uint32_t uid)
{
    unsigned own = 0, strangers = 0;
    for (const struct link *l = links; l; l = l->next) {
        own += l->uid == uid;
        strangers += !is_ours(l->uid);
    }
    return !is_ours(uid) && (own >= USER_MAX || strangers >= USERS_MAX);
}

static void accept_all(int listener)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct ucred peer = { 0 };
        socklen_t size = sizeof peer;
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
        bool room = link_count < CONNECTIONS_MAX && !has_enough(peer.uid);
        struct link *made = room ? calloc(1, sizeof *made) : NULL;
        if (!made) {
            close_of(peer.uid, fd);
            continue;
        }
        *made = (struct link){ .next = links, .fd = fd, .pid = (uint32_t)peer.pid, .uid = peer.uid };
        links = made;
        link_count++;
    }
}

/* Processes that hung up. What they made belongs to their RM files. */
static void drop_links(void)
{
    for (struct link **link = &links; *link;) {
        struct link *l = *link;
        if (!l->closed) {
            link = &l->next;
            continue;
        }
        *link = l->next;
        link_count--;
        close_of(l->uid, l->fd);
        free(l);
    }
}

/* All holders of an RM file are gone: its objects, work and memory go too. */
static void drop_closed(void)
{
    for (struct connection **link = &player->connections; *link;) {
        struct connection *c = *link;
        if (!c->closed) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        player->connection_count--;
        objects_free_all(c);
        for (uint32_t i = 0; i < player->set.cards; i++) {
            player->card[i].used -= c->memory[i];
            free(c->usage[i]);
        }
        connection_free(c);
    }
}

/* Ends the waits that are over on a card. Returns when to look at it again. */
static uint64_t serve_waits(struct card *card)
{
    uint64_t when = NEVER, next = card_next(card);
    struct group *g = card->runlist;
    if (g) do {
        uint64_t reached = lane_serve_waits(g);
        if (reached < when) when = reached;
    } while ((g = g->next) != card->runlist);
    if (when != NEVER && when < next) when = next; /* before that nothing changes */
    uint64_t lag = card->active ? card->now + LAG_MAX : NEVER;
    return when < lag ? when : lag;
}

static uint64_t serve_cards(void)
{
    uint64_t when = pending ? pending->due : NEVER;
    for (uint32_t i = 0; i < player->set.cards; i++) {
        uint64_t next = serve_waits(&player->card[i]);
        if (next < when) when = next;
    }
    return when;
}

/* A process can make the lane that it shares longer, and fill the file system with it. */
static void cut_lanes(void)
{
    static uint64_t next;
    if (player->real_now < next) return;
    next = player->real_now + CUT_NS;
    for (const struct connection *c = player->connections; c; c = c->next)
        for (const struct object *o = c->objects; o; o = o->next)
            if (o->class_ == RM_CLASS_GROUP && o->group->lane) lane_cut(c->uid, o->group->lane);
}

/* Waits until something comes or `when`. Returns how many of `polls` have something. */
static int wait_until(struct pollfd *polls, nfds_t count, uint64_t when)
{
    uint64_t now = sim_now(), left = when > now ? when - now : 0;
    struct timespec timeout = { (time_t)(left / 1000000000), (long)(left % 1000000000) };
    return ppoll(polls, count, when == NEVER ? NULL : &timeout, NULL);
}

/* What is to be waited for. Returns how many. */
static nfds_t fill(struct pollfd *polls, int listener)
{
    nfds_t count = 2;
    polls[0] = (struct pollfd){ listener, POLLIN, 0 };
    polls[1] = (struct pollfd){ player->set.until_stdin_closes ? STDIN_FILENO : -1, POLLIN, 0 };
    for (struct link *l = links; l; l = l->next)
        polls[count++] = (struct pollfd){ reads_nothing_of(l->uid) ? -1 : l->fd, POLLIN | POLLRDHUP, 0 };
    for (struct connection *c = player->connections; c; c = c->next)
        polls[count++] = (struct pollfd){ c->fd, 0, 0 }; /* only its end: nothing is written to an RM file */
    return count;
}

int loop_run(int listener)
{
    static struct pollfd polls[2 * CONNECTIONS_MAX + 2];
    uint64_t when = sim_now();
    bool ends = false;
    while (!ends) {
        nfds_t count = fill(polls, listener), i = 2;
        if (wait_until(polls, count, when) < 0 && errno != EINTR) return 1;
        player->real_now = sim_now();
        for (struct link *l = links; l; l = l->next, i++)
            if (polls[i].revents) receive(l, polls[i].revents & (POLLHUP | POLLRDHUP | POLLERR));
        for (struct connection *c = player->connections; c; c = c->next, i++)
            if (polls[i].revents & (POLLHUP | POLLERR)) c->closed = true;
        handle_batch();
        player->real_now = sim_now();
        advance_all(player->real_now);
        drop_closed();
        drop_links();
        send_due(player->real_now);
        if (polls[0].revents) accept_all(listener);
        char byte[64];
        ends = polls[1].revents && read(STDIN_FILENO, byte, sizeof byte) <= 0;
        when = serve_cards();
        cut_lanes();
        if (player->connections && when > player->real_now + CUT_NS) when = player->real_now + CUT_NS;
    }
    for (struct link *l = links; l; l = l->next) l->closed = true;
    for (struct connection *c = player->connections; c; c = c->next) c->closed = true;
    drop_links();
    drop_closed();
    return 0;
}
