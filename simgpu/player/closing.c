/* closing.c - closes files that others handed to the player, without waiting for that.
 *
 * To close the last reference to a file can take as long as its maker likes: a TCP socket with SO_LINGER waits for a
 * peer that does not read, a file of FUSE for its file system, and a unix socket closes what lies in its queue. So only
 * what is known to take no time is closed at once. Each user has a thread for the rest, while there is any: whose files
 * hang, waits for nobody but themselves, and while too many do, nothing more is read of that user.
 */
#define _GNU_SOURCE
#include "player.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAITING_MAX 64 /* files of one user that wait to be closed, before nothing more is read of that user */
#define STACK       (64 * 1024)

struct file { int fd; off_t size; }; /* size: what to cut it to before, or -1 */
struct closing {
    struct closing *next;
    uint32_t uid;
    struct file *file;
    unsigned count, room;
    bool served;               /* has a thread */
};
static struct closing *all;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Whether its close takes no time: a pipe, or a connected unix socket of packets with an empty queue that stays so. */
static bool closes_at_once(int fd)
{
    if (fcntl(fd, F_GETPIPE_SZ) >= 0) return true;
    int value = 0, one = 1;
    socklen_t size = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &size) != 0 || value != AF_UNIX) return false;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size) != 0 || value != SOCK_SEQPACKET) return false;
    /* From now on each packet has its sender's credentials, also an empty one, and the end of all has nothing. */
    if (shutdown(fd, SHUT_RD) != 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof one) != 0) return false;
    char byte, control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec part = { &byte, sizeof byte };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    return recvmsg(fd, &header, MSG_DONTWAIT | MSG_PEEK) == 0 && !header.msg_controllen &&
           !(header.msg_flags & MSG_CTRUNC);
}

/* Closes what its user has, one after the other, until nothing is left. */
static void *serve(void *argument)
{
    struct closing *own = argument;
    pthread_mutex_lock(&mutex);
    while (own->count) {
        struct file file = own->file[--own->count];
        pthread_mutex_unlock(&mutex);
        if (file.size >= 0) (void)!ftruncate(file.fd, file.size);
        close(file.fd);
        pthread_mutex_lock(&mutex);
    }
    struct closing **link = &all;
    while (*link != own) link = &(*link)->next;
    *link = own->next;
    pthread_mutex_unlock(&mutex);
    free(own->file);
    free(own);
    return NULL;
}

static struct closing *of_user(uint32_t uid)
{
    struct closing *found = all;
    while (found && found->uid != uid) found = found->next;
    return found;
}

/* With the mutex held. */
static bool closes_too_many(uint32_t uid)
{
    const struct closing *own = of_user(uid);
    return own && own->count > WAITING_MAX;
}

/* With the mutex held. False: there is no memory. */
static bool add(uint32_t uid, struct file file)
{
    struct closing *own = of_user(uid);
    if (!own) {
        own = calloc(1, sizeof *own);
        if (!own) return false;
        own->uid = uid;
        own->next = all;
        all = own;
    }
    if (own->count == own->room) {
        struct file *more = realloc(own->file, (own->room + WAITING_MAX) * sizeof *more);
        if (!more) return false;
        own->file = more;
        own->room += WAITING_MAX;
    }
    own->file[own->count++] = file;
    if (own->served) return true;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK);
    own->served = pthread_create(&thread, &attributes, serve, own) == 0; /* else with the next file */
    pthread_attr_destroy(&attributes);
    return true;
}

void close_of(uint32_t uid, int fd)
{
    if (closes_at_once(fd)) {
        close(fd);
        return;
    }
    pthread_mutex_lock(&mutex);
    bool added = add(uid, (struct file){ fd, -1 });
    pthread_mutex_unlock(&mutex);
    if (!added) close(fd);
}

void cut_of(uint32_t uid, const char *path, size_t size)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    pthread_mutex_lock(&mutex);
    bool added = !closes_too_many(uid) && add(uid, (struct file){ fd, (off_t)size });
    pthread_mutex_unlock(&mutex);
    if (!added) close(fd); /* its maker is ours: that takes no time */
}

bool reads_nothing_of(uint32_t uid)
{
    if (!__atomic_load_n(&all, __ATOMIC_RELAXED)) return false; /* the rule: nobody's files hang */
    pthread_mutex_lock(&mutex);
    bool many = closes_too_many(uid);
    pthread_mutex_unlock(&mutex);
    return many;
}
