/* wire.c - how a library reaches the player. */
#define _GNU_SOURCE
#include "wire.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

int sim_connect(void)
{
    const char *path = getenv(SIM_ENV);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (!path || !*path) {
        errno = ENODEV;
        return -1;
    }
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == EINTR) continue;
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Sends `request` with `file` as SCM_RIGHTS. Returns 0 or an errno. */
static int send_with(int fd, void *request, size_t size, int file)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec part = { request, size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
                              .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
    memset(&control, 0, sizeof control);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &file, sizeof file);
    while (sendmsg(fd, &message, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) return errno == EPIPE || errno == ECONNRESET ? ENODEV : errno;
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
    if (n < (ssize_t)sizeof *answer || answer->magic != SIM_MAGIC) return ENODEV;
    *got = (size_t)n - sizeof *answer;
    return 0;
}

int sim_call(int fd, void *request, size_t size, void *out, size_t room, size_t *got, uint32_t *count, int *file)
{
    struct sim_answer answer = { 0 };
    size_t unused;
    int pair[2];
    ((struct sim_head *)request)->magic = SIM_MAGIC;
    ((struct sim_head *)request)->stamp = sim_now();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
    int error = send_with(fd, request, size, pair[1]);
    close(pair[1]); /* the player has the only other end now: its death ends our wait */
    if (!error) error = receive_with(pair[0], &answer, out, room, got ? got : &unused, file);
    close(pair[0]);
    if (count) *count = answer.count;
    return error ? error : answer.error;
}

void sim_bell(int fd)
{
    struct sim_head bell = { SIM_MAGIC, SIM_BELL, sim_now() };
    while (send(fd, &bell, sizeof bell, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR) {}
}
