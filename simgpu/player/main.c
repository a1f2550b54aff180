/* main.c - the player's options, its socket and its one loop. */
#define _GNU_SOURCE
#include "player.h"
#include "loop.h"
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct player player = {
    .set = { .name = "Simulated GPU", .cards = 1, .memory = 81920ull << 20, .context_memory = 64ull << 20,
             .switch_ns = 100 * US, .hang_after = NEVER },
};

static const char USAGE[] =
    "usage: player --socket PATH [options]\n"
    "Plays GPUs for the simulated libcuda.so.1 and libnvidia-ml.so.1, which find it by ALIQUOT_SIMGPU=PATH.\n"
    "  --cards N             how many (1; at most 64)\n"
    "  --memory MIB          of each (81920)\n"
    "  --name TEXT           of each\n"
    "  --context-mib MIB     what a context takes for itself (64)\n"
    "  --switch-us N         what it costs to switch between contexts (100)\n"
    "  --control-us N        how long setting a slice, a pause and a resume take to answer (0)\n"
    "  --refuse-controls     answer these with 'insufficient permissions'\n"
    "  --hang-after N        answer no ioctl after N of these\n"
    "  --until-stdin-closes  end when standard input does\n"
    "Prints `ready` when it listens; ends on SIGTERM.\n";

/* A number in an option. Complains and returns false when it is none or out of range. */
static bool number(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || n < least || n > most) {
        fprintf(stderr, "player: --%s: %s is not a number from %llu to %llu\n", option, text,
                (unsigned long long)least, (unsigned long long)most);
        return false;
    }
    *value = n;
    return true;
}

enum { SOCKET = 1, CARDS, MEMORY, NAME, CONTEXT, SWITCH, CONTROL, REFUSE, HANG, STDIN, HELP };
static const struct option OPTIONS[] = {
    { "socket", 1, NULL, SOCKET }, { "cards", 1, NULL, CARDS }, { "memory", 1, NULL, MEMORY },
    { "name", 1, NULL, NAME }, { "context-mib", 1, NULL, CONTEXT }, { "switch-us", 1, NULL, SWITCH },
    { "control-us", 1, NULL, CONTROL }, { "refuse-controls", 0, NULL, REFUSE }, { "hang-after", 1, NULL, HANG },
    { "until-stdin-closes", 0, NULL, STDIN }, { "help", 0, NULL, HELP }, { NULL, 0, NULL, 0 },
};

/* Reads the options into player.set. Returns -1 to go on, or the exit code. */
static int read_options(int count, char **arguments)
{
    struct settings *set = &player.set;
    uint64_t n = 0;
    int option, which = 0;
    while ((option = getopt_long(count, arguments, "", OPTIONS, &which)) != -1) {
        const char *name = OPTIONS[which].name;
        switch (option) {
        case SOCKET: set->socket = optarg; break;
        case NAME: set->name = optarg; break;
        case REFUSE: set->refuse_controls = true; break;
        case STDIN: set->until_stdin_closes = true; break;
        case CARDS: if (!number(name, optarg, 1, SIM_CARDS_MAX, &n)) return 2; set->cards = (uint32_t)n; break;
        case MEMORY: if (!number(name, optarg, 1, 1 << 24, &n)) return 2; set->memory = n << 20; break;
        case CONTEXT: if (!number(name, optarg, 0, 1 << 24, &n)) return 2; set->context_memory = n << 20; break;
        case SWITCH: if (!number(name, optarg, 0, 1000000, &n)) return 2; set->switch_ns = n * US; break;
        case CONTROL: if (!number(name, optarg, 0, 10000000, &n)) return 2; set->control_ns = n * US; break;
        case HANG: if (!number(name, optarg, 0, UINT32_MAX, &n)) return 2; set->hang_after = n; break;
        case HELP: fputs(USAGE, stdout); return 0;
        default: fputs(USAGE, stderr); return 2;
        }
    }
    if (!set->socket || optind != count) {
        fputs(USAGE, stderr);
        return 2;
    }
    return -1;
}

/* Listens at player.set.socket; a socket left by a dead player is replaced. Returns -1 after a complaint. */
static int listen_at(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "player: %s: longer than the %zu bytes of a unix socket's path\n", path,
                sizeof address.sun_path - 1);
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connect(probe, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED) unlink(path);
    close(probe);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 128) != 0) {
        fprintf(stderr, "player: %s: %s\n", path, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    return fd;
}

static void set_up_cards(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    player.real_now = sim_now();
    player.realtime_offset = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)player.real_now;
    for (uint32_t i = 0; i < player.set.cards; i++) {
        struct card *card = &player.card[i];
        card->index = i;
        card->memory = player.set.memory;
        card->now = player.real_now;
        snprintf(card->uuid, sizeof card->uuid, "GPU-%08x-51b6-4a11-9000-0000000000%02x", 0x5106f000u + i, i);
    }
}

static void stop(int signal)
{
    (void)signal;
    loop_stop = 1;
}

int main(int count, char **arguments)
{
    int code = read_options(count, arguments);
    if (code >= 0) return code;
    struct sigaction action = { .sa_handler = stop };
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); /* the kernel's 50 us of slack would be half a request */
    int listener = listen_at(player.set.socket);
    if (listener < 0) return 1;
    set_up_cards();
    puts("ready");
    fflush(stdout);
    code = loop_run(listener);
    unlink(player.set.socket);
    return code;
}
