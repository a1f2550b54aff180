/* wire.c - how a library reaches the player. */
#define _GNU_SOURCE
#include "wire.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t sim_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- the connection of this process, one per library ---- */

#define PATIENCE   (120ull * 1000 * 1000 * 1000) /* ns to wait for the next player: its image may have to be pulled */
#define REFUSALS   20                            /* times in a row that a player may hang up on us */
#define PAUSE_LEAST 500000u                      /* ns between two attempts, doubled up to ... */
#define PAUSE_MOST  20000000u

static struct {
    int busy;              /* a spin lock for a few stores: libsimrm.so has no pthreads */
    int fd;                /* -1: none */
    dev_t dev;             /* what `fd` was when it was made: a program may have closed it and use the number */
    ino_t ino;
    pid_t pid;             /* who made it: the player knows a process by its connection, also a forked one */
    uint32_t generation;   /* of fd */
    bool broken;
    char path[sizeof ((struct sockaddr_un *)0)->sun_path];
    uint64_t away_since;   /* sim_bell: when the player was first missed; 0: it was there */
} connection = { .fd = -1 };

static void lock(void)
{
    while (__atomic_exchange_n(&connection.busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
}

static void unlock(void)
{
    __atomic_store_n(&connection.busy, 0, __ATOMIC_RELEASE);
}

/* A new connection. Returns 0 or an errno. */
static int connect_to(const char *path, int *fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path) return ENAMETOOLONG;
    strcpy(address.sun_path, path);
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0) return errno;
    while (connect(*fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == EINTR) continue;
        int error = errno;
        close(*fd);
        return error;
    }
    return 0;
}

/* With the lock held: whether the file is still the one we opened. */
static bool ours(void)
{
    struct stat found;
    return connection.fd >= 0 && fstat(connection.fd, &found) == 0 && found.st_dev == connection.dev && found.st_ino == connection.ino;
}

/* With the lock held: `fd` takes the place of the old connection, under the same number, which other threads use. */
static void replace(int fd, const char *path)
{
    struct stat found = { 0 };
    fstat(fd, &found);
    if (ours() && dup3(fd, connection.fd, O_CLOEXEC) >= 0) close(fd);
    else connection.fd = fd;
    connection.dev = found.st_dev;
    connection.ino = found.st_ino;
    connection.pid = getpid();
    connection.generation++;
    connection.broken = false;
    strcpy(connection.path, path);
}

/* The connection of this process, made if there is none. Returns 0 or an errno. */
static int reach(int *fd, uint32_t *generation)
{
    const char *path = getenv(SIM_ENV);
    if (!path || !*path) return ENODEV;
    lock();
    bool usable = !connection.broken && connection.pid == getpid() && ours() && strcmp(connection.path, path) == 0;
    *fd = connection.fd;
    *generation = connection.generation;
    unlock();
    if (usable) return 0;
    int made, error = connect_to(path, &made);
    if (error) return error == ENOENT || error == ENOTDIR ? ENODEV : error;
    lock();
    if (*generation == connection.generation) replace(made, path);
    else close(made); /* another thread was faster */
    *fd = connection.fd;
    *generation = connection.generation;
    unlock();
    return 0;
}

static void forget(uint32_t generation)
{
    lock();
    if (connection.generation == generation) connection.broken = true;
    unlock();
}

/* Sends `request` with files as SCM_RIGHTS. Returns 0 or an errno. */
static int send_with(int fd, const void *request, size_t size, const int *files, unsigned count, int flags)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(2 * sizeof(int))]; } control;
    struct iovec part = { (void *)(uintptr_t)request, size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
                              .msg_control = control.bytes, .msg_controllen = CMSG_SPACE(count * sizeof(int)) };
    memset(&control, 0, sizeof control);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), files, count * sizeof(int));
    while (sendmsg(fd, &message, flags | MSG_NOSIGNAL) < 0)
        if (errno != EINTR) return errno;
    return 0;
}

/* Receives an answer and the file with it, if any. Returns 0 or an errno. */
static int receive_with(int fd, struct sim_answer *answer, void *out, size_t room, size_t *got, int *file)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec part[2] = { { answer, sizeof *answer }, { out, room } };
    struct msghdr message = { .msg_iov = part, .msg_iovlen = 2,
                              .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
    ssize_t n;
    while ((n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC)) < 0)
        if (errno != EINTR) return errno;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int came = -1;
    if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&came, CMSG_DATA(header), sizeof came);
    if (file) *file = came;
    else if (came >= 0) close(came);
    if (n < (ssize_t)sizeof *answer || answer->magic != SIM_MAGIC) return EPIPE; /* the player is gone */
    *got = (size_t)n - sizeof *answer;
    return 0;
}

/* One attempt. EPIPE: no answer. */
static int attempt(int fd, int rm, void *request, size_t size, struct sim_answer *answer, void *out, size_t room,
                   size_t *got, int *file)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
    int files[2] = { pair[1], rm };
    int error = send_with(fd, request, size, files, rm >= 0 ? 2 : 1, 0);
    close(pair[1]); /* the player has the only other end now: its death ends our wait */
    if (!error) error = receive_with(pair[0], answer, out, room, got, file);
    close(pair[0]);
    return error == ECONNRESET || error == ENOTCONN || error == ENOTSOCK || error == EBADF ? EPIPE : error;
}

int sim_call(int rm, void *request, size_t size, void *out, size_t room, size_t *got, uint32_t *count, int *file)
{
    struct sim_answer answer = { 0 };
    struct sim_head *head = request;
    struct timespec pause = { 0, PAUSE_LEAST };
    uint32_t generation = 0;
    size_t unused;
    int fd = -1, refusals = 0, error;
    head->magic = SIM_MAGIC;
    head->stamp = sim_now(); /* stays the same for every attempt: the request counts from now on */
    for (;;) {
        error = reach(&fd, &generation);
        if (!error) {
            error = attempt(fd, rm, request, size, &answer, out, room, got ? got : &unused, file);
            if (error != EPIPE) break;
            forget(generation);
            head->kind |= SIM_AGAIN;
            refusals++;
        } else if (error != ECONNREFUSED && error != EAGAIN) break;
        if (refusals > REFUSALS || sim_now() - head->stamp > PATIENCE) {
            error = ENODEV;
            break;
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < (long)PAUSE_MOST) pause.tv_nsec *= 2;
    }
    if (count) *count = answer.count;
    return error ? error : answer.error;
}

int sim_open(void)
{
    struct sim_head request = { .kind = SIM_OPEN };
    int file = -1, error = sim_call(-1, &request, sizeof request, NULL, 0, NULL, NULL, &file);
    if (!error && file < 0) error = ENODEV;
    if (error) {
        if (file >= 0) close(file);
        errno = error;
        return -1;
    }
    return file;
}

int sim_bell(int rm)
{
    struct sim_head bell = { SIM_MAGIC, SIM_BELL, sim_now() };
    uint32_t generation = 0;
    int fd = -1, error = reach(&fd, &generation);
    if (!error) {
        error = send_with(fd, &bell, sizeof bell, &rm, 1, MSG_DONTWAIT);
        if (!error || error == EAGAIN) {
            __atomic_store_n(&connection.away_since, 0, __ATOMIC_RELAXED);
            return 0;
        }
        forget(generation);
    }
    uint64_t never = 0;
    __atomic_compare_exchange_n(&connection.away_since, &never, bell.stamp, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return error == ENODEV || (never && bell.stamp - never > PATIENCE) ? ENODEV : 0;
}
