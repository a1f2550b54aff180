/* store.c - what outlives the player: its files, and how the next player goes on with them.
 *
 *     state     struct player, and the lock of the one that plays
 *     f17 c17   an RM file (a named pipe), and its connection with all objects
 *     l18 w18   a lane: our side, and the ring that the process writes
 *
 * A player may die at any instruction. So what counts is flat and becomes valid by one store (a handle, the number of an
 * entry, a magic number); lists and pointers are made anew. Simulated time is the machine's clock: for the cards, a
 * crash is a player that was late. Any number of players may be started; the others wait until the one that plays ends.
 */
#define _GNU_SOURCE
#include "player.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LAYOUT (1ull << 56 | (uint64_t)sizeof(struct player) << 40 | (uint64_t)sizeof(struct connection) << 20 | \
                (uint64_t)sizeof(struct lane)) /* raise the first number when a field changes its meaning */
#define STARTING_MS 1000 /* that another player may take between its lock and its cards */

struct player *player;
static const char *folder;

static const char *path_of(char kind, uint64_t number)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%c%llu", folder, kind, (unsigned long long)number);
    return path;
}

void store_remove(char kind, uint64_t number)
{
    unlink(path_of(kind, number));
}

void store_cut(uint32_t uid, char kind, uint64_t number, size_t size)
{
    struct stat found;
    const char *path = path_of(kind, number);
    if (stat(path, &found) == 0 && found.st_size > (off_t)size) cut_of(uid, path, size);
}

/* Maps a file of this size, made if it is not there. A process can shorten the one that it shares: that ends in
 * SIGBUS, and from then on in zeros (on_bus). */
void *store_map(char kind, uint64_t number, size_t size, int *file)
{
    int fd = open(path_of(kind, number), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return NULL;
    struct stat found;
    void *made = MAP_FAILED;
    if (fstat(fd, &found) == 0 && (found.st_size >= (off_t)size || ftruncate(fd, (off_t)size) == 0))
        made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    if (file && made != MAP_FAILED) *file = fd;
    else close(fd);
    errno = error;
    return made == MAP_FAILED ? NULL : made;
}

/* A page of a file that is no longer that long, or for which there is no room: it gets an empty page. */
static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE), page = (uintptr_t)info->si_addr & ~(size - 1);
    if (info->si_code != BUS_ADRERR ||
        mmap((void *)page, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        _exit(135);
}

/* Opens the read end of a connection's pipe. */
static bool open_pipe(struct connection *connection)
{
    struct stat found;
    connection->fd = open(path_of('f', connection->number), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (connection->fd < 0) return false;
    if (fstat(connection->fd, &found) != 0 || !S_ISFIFO(found.st_mode)) {
        close(connection->fd);
        return false;
    }
    connection->dev = found.st_dev;
    connection->ino = found.st_ino;
    return true;
}

struct connection *connection_new(uint32_t pid, uint32_t uid, int *file)
{
    uint64_t number = ++player->numbers;
    if (mkfifo(path_of('f', number), 0600) != 0) return NULL;
    struct connection *made = store_map('c', number, sizeof *made, NULL);
    if (made) {
        made->number = number;
        made->pid = pid;
        made->uid = uid;
        if (open_pipe(made)) {
            *file = open(path_of('f', number), O_WRONLY | O_CLOEXEC);
            made->magic = SIM_MAGIC;
            if (*file >= 0) return made;
            close(made->fd);
        }
        munmap(made, sizeof *made);
    }
    int error = errno;
    store_remove('f', number);
    store_remove('c', number);
    errno = error;
    return NULL;
}

void connection_free(struct connection *connection)
{
    uint64_t number = connection->number;
    store_remove('c', number);
    store_remove('f', number);
    close(connection->fd);
    munmap(connection, sizeof *connection);
}

/* The connection with this number, as the last player left it. Nothing when it was only half made. */
static void connection_again(uint64_t number)
{
    struct connection *c = store_map('c', number, sizeof *c, NULL);
    char byte;
    if (!c) return;
    if (c->magic != SIM_MAGIC || c->number != number || !open_pipe(c)) {
        munmap(c, sizeof *c);
        return;
    }
    c->closed = read(c->fd, &byte, 1) == 0; /* no process can write: all holders are gone */
    memset(c->contexts, 0, sizeof c->contexts);
    memset(c->usage, 0, sizeof c->usage);
    for (uint32_t i = 0; i < player->set.cards; i++) player->card[i].used += c->memory[i];
    c->next = player->connections;
    player->connections = c;
    player->connection_count++;
    objects_again(c);
}

static bool is_known(char kind, uint64_t number)
{
    for (const struct connection *c = player->connections; c; c = c->next) {
        if ((kind == 'c' || kind == 'f') && c->number == number) return true;
        for (const struct object *o = c->objects; o; o = o->next)
            if ((kind == 'l' || kind == 'w') && o->group == &o->own && o->own.lane && o->own.lane_number == number)
                return true;
    }
    return false;
}

/* Calls `visit` for every file of the folder but the state itself. */
static void for_files(void (*visit)(char kind, uint64_t number))
{
    DIR *list = opendir(folder);
    struct dirent *entry;
    while (list && (entry = readdir(list))) {
        char *end;
        uint64_t number = strtoull(entry->d_name + 1, &end, 10);
        if (strchr("cflw", entry->d_name[0]) && number && !*end) visit(entry->d_name[0], number);
    }
    if (list) closedir(list);
}

static void recover(char kind, uint64_t number)
{
    if (number > player->numbers) player->numbers = number;
    if (kind == 'c') connection_again(number);
}

static void remove_unknown(char kind, uint64_t number)
{
    if (!is_known(kind, number)) store_remove(kind, number);
}

static uint64_t mixed(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void set_up_cards(void)
{
    uint64_t seed = player->set.seed;
    for (uint32_t i = 0; i < player->set.cards; i++) {
        struct card *card = &player->card[i];
        uint64_t high = mixed(seed ^ mixed(i));
        card->index = i;
        card->memory = player->set.memory;
        card->inert = player->set.inert;
        card->now = player->real_now;
        if (!seed) snprintf(card->uuid, sizeof card->uuid, "GPU-%08x-51b6-4a11-9000-0000000000%02x", 0x5106f000u + i, i);
        else snprintf(card->uuid, sizeof card->uuid, "GPU-%08x-%04x-4%03x-9%03x-%010llx%02x",
                      (uint32_t)(high >> 32), (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xfff),
                      (unsigned)(mixed(high) & 0xfff), (unsigned long long)(mixed(high) >> 24), i);
    }
}

/* The cards stay as they are; who has them is found out from the connections. */
static void cards_again(void)
{
    for (uint32_t i = 0; i < player->set.cards; i++) {
        struct card *card = &player->card[i];
        card->runlist = card->current = NULL;
        card->active = false;
        card->switch_end = card->now;
        card->used = 0;
    }
    player->connections = NULL;
    player->connection_count = 0;
    for_files(recover);
    mps_again();
}

static void read_boot(char *boot, size_t size)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, boot, size - 1);
    boot[n > 0 ? n : 0] = 0;
    if (fd >= 0) close(fd);
}

/* Whether the state is of cards like these, and of this boot. */
static bool continues(const struct settings *set, const char *boot)
{
    return __atomic_load_n(&player->layout, __ATOMIC_ACQUIRE) == LAYOUT && strcmp(player->boot, boot) == 0 &&
           player->set.cards == set->cards && player->set.memory == set->memory && player->set.seed == set->seed;
}

/* Waits while another one plays cards like these. Returns false after a complaint. */
static bool wait_for_turn(int fd, const struct settings *set, const char *boot)
{
    struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    struct timespec moment = { 0, 10 * 1000 * 1000 };
    for (int ms = 0; fcntl(fd, F_SETLK, &all) != 0; ms += 10) {
        if (continues(set, boot)) {
            puts("ready"); /* the cards are there, and we stand by */
            fflush(stdout);
            while (fcntl(fd, F_SETLKW, &all) != 0)
                if (errno != EINTR) return false;
            return true;
        }
        if (ms >= STARTING_MS) {
            fprintf(stderr, "player: %s: other cards are simulated here already: %u of %llu MiB\n", folder,
                    player->set.cards, (unsigned long long)(player->set.memory >> 20));
            return false;
        }
        nanosleep(&moment, NULL);
    }
    return true;
}

bool store_open(const struct settings *set)
{
    char boot[sizeof player->boot], path[4096];
    struct timespec wall;
    struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };
    sigaction(SIGBUS, &action, NULL);
    folder = set->state;
    read_boot(boot, sizeof boot);
    snprintf(path, sizeof path, "%s/state", folder);
    int fd = mkdir(folder, 0700) == 0 || errno == EEXIST ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    void *made = fd >= 0 && ftruncate(fd, sizeof *player) == 0
               ? mmap(NULL, sizeof *player, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (made == MAP_FAILED) {
        fprintf(stderr, "player: %s: %s\n", path, strerror(errno));
        return false;
    }
    player = made;
    if (!wait_for_turn(fd, set, boot)) return false; /* the file stays open: to close it would give the lock away */
    bool again = continues(set, boot);
    if (!again) {
        memset(player, 0, sizeof *player);
        for_files(store_remove);
    }
    player->set = *set;
    player->real_now = sim_now();
    clock_gettime(CLOCK_REALTIME, &wall);
    player->realtime_offset = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)player->real_now;
    if (again) cards_again();
    else set_up_cards();
    for_files(remove_unknown);
    memcpy(player->boot, boot, sizeof boot);
    __atomic_store_n(&player->layout, LAYOUT, __ATOMIC_RELEASE);
    return true;
}

void store_remove_all(void)
{
    for_files(store_remove);
    char path[4096];
    snprintf(path, sizeof path, "%s/state", folder);
    unlink(path);
    rmdir(folder);
}
