/* control.c - nvidia-cuda-mps-control for simulated cards: as much of it as a daemon needs that runs one per group.
 *
 *     nvidia-cuda-mps-control -f        serves CUDA_MPS_PIPE_DIRECTORY in the foreground, until `quit` or a signal
 *     echo quit | nvidia-cuda-mps-control        also: get_server_list
 *
 * The first client starts the server, a process of its own (nvidia-cuda-mps-server) that has the channel groups. It
 * makes them with ioctl(), so that a shim sees what it sees in the real server. If it dies, the next client starts the
 * next one.
 */
#define _GNU_SOURCE
#include "../wire.h"
#include "../../shim/rm.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVER "nvidia-cuda-mps-server"
#define CHANNELS 4
#define LOOK_MS 500
#define UUID_AT 5 /* in "join GPU-..." */

static struct sockaddr_un place(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int length = snprintf(at.sun_path, sizeof at.sun_path, "%s/control", folder ? folder : "/tmp/nvidia-mps");
    if (length >= (int)sizeof at.sun_path) {
        fprintf(stderr, "CUDA_MPS_PIPE_DIRECTORY is too long a path for a socket\n");
        exit(1);
    }
    return at;
}

/* ---- the server ---- */

static int rm;
static uint32_t client;
static struct { uint32_t group; } made[SIM_CARDS_MAX];

static uint32_t make(uint32_t parent, uint32_t class_, void *params, uint32_t size)
{
    struct rm_alloc64 alloc = { .root = client, .parent = parent, .class_ = class_,
                                .params = (uint64_t)(uintptr_t)params, .params_size = size };
    int result = ioctl(rm, RM_IOC_ALLOC64, &alloc);
    if (result < 0 && errno == ENOTTY) result = sim_rm_ioctl(rm, RM_IOC_ALLOC64, &alloc);
    return result == 0 && alloc.status == RM_OK ? alloc.object : 0;
}

/* The server's group on a card, made at the first call. 0: that failed. */
static uint32_t group_on(uint32_t card)
{
    struct { uint32_t card, rest[5]; uint64_t more[4]; } which = { .card = card };
    struct rm_group_params compute = { .engine = RM_ENGINE_GR_FIRST };
    if (made[card].group) return made[card].group;
    uint32_t device = make(client, RM_CLASS_DEVICE, &which, sizeof which);
    if (!device || !make(device, RM_CLASS_SUBDEVICE, NULL, 0)) return 0;
    uint32_t group = make(device, RM_CLASS_GROUP, &compute, sizeof compute);
    for (int i = 0; group && i < CHANNELS; i++) {
        uint32_t channel = make(group, RM_CLASS_HOPPER_CHANNEL, NULL, 0);
        if (!channel || !make(channel, RM_CLASS_HOPPER_COMPUTE, NULL, 0)) return 0;
    }
    return made[card].group = group;
}

static uint32_t group_of(const char *uuid)
{
    static struct sim_card cards[SIM_CARDS_MAX];
    struct { struct sim_head head; } request = { .head.kind = SIM_CARDS };
    uint32_t count = 0;
    if (sim_call(rm, &request, sizeof request, cards, sizeof cards, NULL, &count, NULL) != 0) return 0;
    for (uint32_t i = 0; i < count && i < SIM_CARDS_MAX; i++)
        if (strcmp(cards[i].uuid, uuid) == 0) return group_on(i);
    return 0;
}

static int serve_clients(int control)
{
    struct rm_alloc root = { .class_ = RM_CLASS_ROOT };
    char question[128];
    ssize_t length;
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    rm = sim_open();
    if (rm < 0) return 1;
    if (ioctl(rm, RM_IOC_ALLOC, &root) != 0 && sim_rm_ioctl(rm, RM_IOC_ALLOC, &root) != 0) return 1;
    client = root.object;
    while ((length = recv(control, question, sizeof question - 1, 0)) > UUID_AT) { /* ends with its control */
        question[length] = 0;
        uint32_t answer[2] = { client, group_of(question + UUID_AT) };
        if (!answer[1]) answer[0] = 0;
        if (send(control, answer, sizeof answer, MSG_NOSIGNAL) < 0) break;
    }
    return 0;
}

/* ---- the control ---- */

static pid_t server;
static int to_server = -1;

static void stop_server(void)
{
    if (to_server >= 0) close(to_server);
    to_server = -1;
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    server = 0;
}

static void start_server(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return;
    server = fork();
    if (server == 0) {
        char number[16];
        int own = dup(pair[1]); /* without close-on-exec */
        snprintf(number, sizeof number, "%d", own);
        execl("/proc/self/exe", SERVER, number, (char *)NULL);
        _exit(1);
    }
    close(pair[1]);
    to_server = pair[0];
    if (server < 0) stop_server();
}

/* Asks the server; one that died is replaced once. False: no server comes up. */
static int ask_server(const char *question, size_t length, uint32_t *answer)
{
    for (int tries = 0; tries < 2; tries++) {
        if (!server) start_server();
        if (server > 0 && send(to_server, question, length, MSG_NOSIGNAL) == (ssize_t)length &&
            recv(to_server, answer, 2 * sizeof *answer, 0) == 2 * sizeof *answer)
            return 1;
        stop_server();
    }
    return 0;
}

static void answer_one(int from)
{
    char question[128] = "", text[32];
    uint32_t answer[2] = { 0, 0 };
    ssize_t length = recv(from, question, sizeof question - 1, 0);
    if (length <= 0) return;
    if (strncmp(question, "join ", UUID_AT) == 0) {
        ask_server(question, (size_t)length, answer);
        send(from, answer, sizeof answer, MSG_NOSIGNAL);
    } else if (strncmp(question, "cards", 5) == 0) { /* what the server shows its clients: as the real one, its own list */
        const char *cards = getenv("CUDA_VISIBLE_DEVICES");
        send(from, cards ? cards : "", cards ? strlen(cards) : 0, MSG_NOSIGNAL);
    } else if (strncmp(question, "get_server_list", 15) == 0) {
        int n = server > 0 && kill(server, 0) == 0 ? snprintf(text, sizeof text, "%d\n", (int)server) : 0;
        send(from, text, (size_t)n, MSG_NOSIGNAL);
    } else if (strncmp(question, "quit", 4) == 0) {
        stop_server();
        struct sockaddr_un at = place();
        unlink(at.sun_path);
        exit(0);
    }
}

static int serve(void)
{
    struct sockaddr_un at = place();
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    unlink(at.sun_path);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 64) != 0) {
        fprintf(stderr, "%s: %s\n", at.sun_path, strerror(errno));
        return 1;
    }
    for (;;) {
        struct pollfd waiting = { .fd = listener, .events = POLLIN };
        const char *player = getenv(SIM_ENV);
        if (poll(&waiting, 1, LOOK_MS) <= 0) {
            if (player && access(player, F_OK) == 0 && access(at.sun_path, F_OK) == 0) continue;
            stop_server(); /* the simulation was ended, or the folder removed */
            return 0;
        }
        int from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (from < 0) continue;
        answer_one(from);
        close(from);
    }
}

/* Passes on what comes on standard input. */
static int command(void)
{
    char line[128], answer[128];
    while (fgets(line, sizeof line, stdin)) {
        struct sockaddr_un at = place();
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
            printf("Cannot find MPS control daemon process\n");
            return 1;
        }
        send(fd, line, strlen(line), MSG_NOSIGNAL);
        ssize_t length = recv(fd, answer, sizeof answer, 0);
        if (length > 0) fwrite(answer, 1, (size_t)length, stdout);
        close(fd);
    }
    return 0;
}

int main(int count, char **words)
{
    signal(SIGPIPE, SIG_IGN);
    if (count == 2 && strcmp(words[0], SERVER) == 0) return serve_clients(atoi(words[1]));
    if (count == 2 && strcmp(words[1], "-f") == 0) return serve();
    return command();
}
