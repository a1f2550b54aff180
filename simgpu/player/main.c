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
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct settings settings = {
    .name = "Simulated GPU", .cards = 1, .memory = 81920ull << 20, .context_memory = 64ull << 20,
    .switch_ns = 100 * US, .hang_after = NEVER,
};

static const char USAGE[] =
    "usage: player --socket PATH [options]\n"
    "Plays GPUs for the simulated libcuda.so.1 and libnvidia-ml.so.1, which find it by ALIQUOT_SIMGPU=PATH.\n"
    "  --state FOLDER        what the next player goes on with (PATH.state)\n"
    "  --any-user            users other than ours may connect; they may not cause faults, nor see the state\n"
    "  --cards N             how many (1; at most 64)\n"
    "  --memory MIB          of each (81920)\n"
    "  --seed N              of their UUIDs; 0: the same everywhere (0)\n"
    "  --name TEXT           of each\n"
    "  --context-mib MIB     what a context takes for itself (64)\n"
    "  --switch-us N         what it costs to switch between contexts (100)\n"
    "  --control-us N        how long setting a slice, a pause and a resume take to answer (0)\n"
    "  --refuse-controls     answer these with 'insufficient permissions'\n"
    "  --inert WHAT          slices, pause or both: answer these with OK and do nothing\n"
    "  --hang-after N        answer no ioctl after N of these\n"
    "  --until-stdin-closes  end when standard input does, and leave nothing\n"
    "Prints `ready` when the cards are there. It may be killed at any time: clients wait, and the next player of these\n"
    "cards goes on. Another one stands by until then; several may. Clients stop waiting when PATH is removed.\n";

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

static bool inert(const char *text, uint32_t *which)
{
    static const char *const NAMES[] = { "slices", "pause", "both" }; /* as the bits of enum sim_inert */
    for (uint32_t i = 0; i < 3; i++)
        if (strcmp(text, NAMES[i]) == 0) {
            *which = i + 1;
            return true;
        }
    fprintf(stderr, "player: --inert: %s is none of slices, pause, both\n", text);
    return false;
}

enum { SOCKET = 1, CARDS, MEMORY, NAME, CONTEXT, SWITCH, CONTROL, REFUSE, HANG, STDIN, HELP, STATE, ANY_USER, SEED, INERT };
static const struct option OPTIONS[] = {
    { "socket", 1, NULL, SOCKET }, { "cards", 1, NULL, CARDS }, { "memory", 1, NULL, MEMORY },
    { "name", 1, NULL, NAME }, { "context-mib", 1, NULL, CONTEXT }, { "switch-us", 1, NULL, SWITCH },
    { "control-us", 1, NULL, CONTROL }, { "refuse-controls", 0, NULL, REFUSE }, { "hang-after", 1, NULL, HANG },
    { "until-stdin-closes", 0, NULL, STDIN }, { "state", 1, NULL, STATE }, { "any-user", 0, NULL, ANY_USER },
    { "seed", 1, NULL, SEED }, { "inert", 1, NULL, INERT }, { "help", 0, NULL, HELP }, { NULL, 0, NULL, 0 },
};

/* Reads the options into player->set. Returns -1 to go on, or the exit code. */
static int read_options(int count, char **arguments)
{
    struct settings *set = &settings;
    uint64_t n = 0;
    int option, which = 0;
    while ((option = getopt_long(count, arguments, "", OPTIONS, &which)) != -1) {
        const char *name = OPTIONS[which].name;
        switch (option) {
        case SOCKET: set->socket = optarg; break;
        case STATE: set->state = optarg; break;
        case ANY_USER: set->any_user = true; break;
        case SEED: if (!number(name, optarg, 0, UINT64_MAX, &n)) return 2; set->seed = n; break;
        case NAME: set->name = optarg; break;
        case REFUSE: set->refuse_controls = true; break;
        case INERT: if (!inert(optarg, &set->inert)) return 2; break;
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

/* The folder of a path: everything before the last slash. */
static void folder_of(const char *path, char *folder)
{
    strcpy(folder, path);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    else strcpy(folder, ".");
}

/* Listens at a path that clients see only once somebody listens there: they take a missing socket for the end of the
 * simulation. A folder that is not there yet appears with the socket in it. Returns -1 after a complaint. */
static int listen_at(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char folder[sizeof address.sun_path], made[sizeof address.sun_path + 1];
    if (strlen(path) + 1 >= sizeof address.sun_path) {
        fprintf(stderr, "player: %s: longer than the %zu bytes of a unix socket's path\n", path,
                sizeof address.sun_path - 2);
        return -1;
    }
    folder_of(path, folder);
    bool there = access(folder, F_OK) == 0;
    snprintf(made, sizeof made, "%s~", folder);
    strcpy(address.sun_path, there ? path : made);
    strcat(address.sun_path, there ? "~" : path + strlen(folder));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool placed = fd >= 0 && (there || mkdir(made, 0755) == 0 || errno == EEXIST);
    if (placed) unlink(address.sun_path);
    placed = placed && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
             (!player->set.any_user || (chmod(address.sun_path, 0666) == 0 && (there || chmod(made, 0755) == 0))) &&
             listen(fd, 128) == 0 &&
             rename(there ? address.sun_path : made, there ? path : folder) == 0;
    if (placed) return fd;
    fprintf(stderr, "player: %s: %s\n", path, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

int main(int count, char **arguments)
{
    int code = read_options(count, arguments);
    if (code >= 0) return code;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); /* the kernel's 50 us of slack would be half a request */
    signal(SIGPIPE, SIG_IGN);
    static char state[4096];
    snprintf(state, sizeof state, "%s.state", settings.socket);
    if (!settings.state) settings.state = state;
    if (!store_open(&settings)) return 1;
    int listener = listen_at(player->set.socket);
    if (listener < 0) return 1;
    puts("ready");
    fflush(stdout);
    code = loop_run(listener);
    unlink(player->set.socket);
    store_remove_all();
    return code;
}
