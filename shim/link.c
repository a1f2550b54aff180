/* link.c - the thread that tells the daemon which channel groups this process has, and that undoes a pause when the
 * daemon is gone.
 *
 * It starts with the first compute group, or with the first use of the page where no group is seen (MPS), and lives as long
 * as the process. It never waits longer than ROUND: each round it
 * looks whether the daemon still holds the other end, whether groups changed, and whether a pause is stale. The daemon
 * answers nothing; when the connection ends, it is made again, for ever, and everything is told again.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "rm.h"
#include "shim.h"

#define ROUND_MS    100
#define DEBOUNCE_MS 2           /* a context makes its channels one after the other: tell them together */
#define DEBOUNCES   10
#define BACKOFF_MS  250
#define SEND_MS     200         /* a daemon that takes nothing for so long is left, and tried again */
#define SENDER_MS   500         /* a sender never blocks: one that has the socket for so long was ended in the midst of it */

static int started;
static uint32_t changes;        /* counts up when groups come or go; the thread sleeps on it */
static uint32_t socket_busy;    /* 1: somebody sends, or the thread replaces the socket */
static struct alq_file sock = { .fd = -1 };
static uint32_t told_slot;      /* the slot of the last hello */

static void wait_for_change(uint32_t seen, long ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    syscall(SYS_futex, &changes, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
}

static struct alq_head head(uint16_t type)
{
    return (struct alq_head){ .magic = ALQ_MAGIC, .version = ALQ_VERSION, .type = type };
}

/* ---- the socket. Launching threads send on it too, so it is replaced only while none of them does. ---- */

static void replace_socket(struct alq_file with)
{
    for (int ms = 0; ms < SENDER_MS && __atomic_exchange_n(&socket_busy, 1, __ATOMIC_ACQUIRE); ms++)
        alq_sleep_ms(1);
    alq_file_close(&sock);
    sock = with;
    __atomic_store_n(&socket_busy, 0, __ATOMIC_RELEASE);
}

/* From a launch: no waiting, no lock to wait for. A wake that cannot be sent is left to the next launch. */
void alq_link_wake(int card)
{
    uint32_t none = 0;
    if (!__atomic_compare_exchange_n(&socket_busy, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        struct alq_slot *own = __atomic_load_n(&alq_own, __ATOMIC_ACQUIRE);
        if (own)
            __atomic_store_n(&own->use[card].wake, 1, __ATOMIC_RELAXED);
        return;
    }
    struct alq_wake wake = { .head = head(ALQ_WAKE), .card = (uint32_t)card };
    if (sock.fd >= 0 && alq_file_ours(&sock))
        send(sock.fd, &wake, sizeof wake, MSG_DONTWAIT | MSG_NOSIGNAL);
    __atomic_store_n(&socket_busy, 0, __ATOMIC_RELEASE);
}

static struct alq_file connect_daemon(void)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct alq_file file = { .fd = -1 };
    if (snprintf(to.sun_path, sizeof to.sun_path, "%s/sock", alq_path()) >= (int)sizeof to.sun_path)
        return file;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return file;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        file = alq_file_high(fd);
    close(fd);
    return file;
}

/* One packet, with a file when `pass` is one. False: the daemon is not there, or takes nothing. */
static bool tell(const void *message, size_t size, int pass)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec part = { .iov_base = (void *)(uintptr_t)message, .iov_len = size };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };
    if (pass >= 0) {
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass, sizeof pass);
    }
    for (int tries = 0; tries < 2; tries++) {
        if (!alq_file_ours(&sock))
            return false;
        if (sendmsg(sock.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return true;
        struct pollfd p = { .fd = sock.fd, .events = POLLOUT };
        if ((errno != EAGAIN && errno != EINTR) || poll(&p, 1, SEND_MS) <= 0)
            return false;
    }
    return false;
}

static bool tell_hello(void)
{
    told_slot = alq_slot_index();
    struct alq_hello hello = { .head = head(ALQ_HELLO), .pid = (uint32_t)getpid(), .slot = told_slot };
    return tell(&hello, sizeof hello, -1);
}

static bool tell_groups(void)
{
    struct alq_group group;
    struct alq_done done = { .head = head(ALQ_DONE) };
    int fd;
    for (size_t at = 0; alq_group_at(&at, &group, &fd);) {
        if (fd < 0)
            continue;           /* the program closed our file: this group is out of reach */
        group.head = head(ALQ_GROUP);
        if (!tell(&group, offsetof(struct alq_group, channel) + group.channels * sizeof group.channel[0], fd))
            return false;
        done.groups++;
    }
    return tell(&done, sizeof done, -1);
}

/* The daemon sends nothing, so the only thing that can arrive is its end. */
static bool connected(void)
{
    char byte;
    if (!alq_file_ours(&sock))
        return false;
    ssize_t n = recv(sock.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);  /* takes nothing, should it be another's by now */
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* ---- the rescue ---- */

/* Is this group on that card? Asked only where a tenant has several; when the answer is unknown: yes. */
static bool on_card(const struct alq_group *group, int fd, int card)
{
    struct rm_gid gid = { .index = 0 };
    if (alq_page()->cards <= 1)
        return true;
    if (alq_rm_control(fd, group->client, group->subdevice, RM_GET_GID_INFO, &gid, sizeof gid) != RM_OK)
        return true;
    gid.data[sizeof gid.data - 1] = 0;
    int found = alq_card_of_uuid((const char *)gid.data);
    return found < 0 || found == card;
}

static bool resume(const struct alq_group *group, int fd)
{
    for (uint32_t from = 0; from < group->channels; from += RM_DISABLE_MAX) {
        struct rm_disable d = { .disable = 0 };
        for (uint32_t i = from; i < group->channels && d.channels < RM_DISABLE_MAX; i++, d.channels++) {
            d.client[d.channels] = group->client;
            d.channel[d.channels] = group->channel[i];
        }
        if (alq_rm_control(fd, group->client, group->subdevice, RM_DISABLE_CHANNELS, &d, sizeof d) != RM_OK)
            return false;
    }
    return true;
}

/* A slice that divides a card among tenants by itself, daemon or not (arbiter/slices.py: `lasting`). */
static bool lasts(const struct alq_group *group, int fd)
{
    uint64_t slice = 0;
    return alq_rm_control(fd, group->client, group->group, RM_GET_TIMESLICE, &slice, sizeof slice) == RM_OK &&
           slice >= ALQ_SHORTEST_LASTING && slice <= ALQ_LONGEST_LASTING;
}

/* Shares stay as the daemon left them, for as long as the next one may be on its way. But it may have left us a slice of
 * a microsecond, which only works for one at a time: two of those stop each other for good; or one of a second. Each of
 * these takes the driver's own again at once, the others later; each once for each end of a daemon. */
static void reset_slices(int card, uint64_t last_beat)
{
    static uint64_t done[ALQ_CARDS];
    struct alq_group group;
    int fd;
    bool all = true;
    uint32_t before = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
    bool for_good = alq_now() - last_beat > ALQ_LASTING_NS;
    uint64_t mark = last_beat + for_good;
    if (!last_beat || done[card] == mark)
        return;
    for (size_t at = 0; alq_group_at(&at, &group, &fd);) {
        uint64_t stock = RM_STOCK_TIMESLICE;
        if (group.compute && fd >= 0 && on_card(&group, fd, card) && (for_good || !lasts(&group, fd)))
            all &= alq_rm_control(fd, group.client, group.group, RM_SET_TIMESLICE, &stock, sizeof stock) == RM_OK;
    }
    if (all && before == __atomic_load_n(&changes, __ATOMIC_ACQUIRE))   /* else one may have been passed over */
        done[card] = mark;
}

/* A pause that nobody will end: the daemon is gone. We resume our own channels; what fails is tried again next round. */
static void rescue(void)
{
    struct alq_slot *own = __atomic_load_n(&alq_own, __ATOMIC_ACQUIRE);
    struct alq_page *page = alq_page();
    if (!own || !page)
        return;
    for (int card = 0; (uint32_t)card < page->cards && card < ALQ_CARDS; card++) {
        if (alq_stale(card))
            reset_slices(card, __atomic_load_n(&page->card[card].heartbeat_ns, __ATOMIC_RELAXED));
        if (__atomic_load_n(&own->use[card].paused, __ATOMIC_ACQUIRE) != 1 || !alq_stale(card))
            continue;
        struct alq_group group;
        int fd;
        uint32_t before = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
        bool all = true;
        for (size_t at = 0; alq_group_at(&at, &group, &fd);)
            all &= fd >= 0 && (!on_card(&group, fd, card) || resume(&group, fd));
        uint32_t one = 1;
        all &= before == __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
        if (all && __atomic_compare_exchange_n(&own->use[card].paused, &one, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            __atomic_fetch_add(&own->use[card].rescued, 1, __ATOMIC_RELAXED);
    }
}

/* ---- the thread ---- */

static void debounce(uint32_t *seen)
{
    for (int i = 0; i < DEBOUNCES; i++) {
        *seen = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
        wait_for_change(*seen, DEBOUNCE_MS);
        if (*seen == __atomic_load_n(&changes, __ATOMIC_ACQUIRE))
            return;
    }
}

static void *run(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "aliquot", 0, 0, 0);
    uint32_t told = __atomic_load_n(&changes, __ATOMIC_ACQUIRE) - 1, seen = told;
    long backoff = 0;
    for (;;) {
        alq_keep_slot();
        alq_exports_settle();
        rescue();
        if (!connected() || told_slot != alq_slot_index()) {
            wait_for_change(__atomic_load_n(&changes, __ATOMIC_ACQUIRE), backoff);
            backoff = backoff ? (backoff * 2 < BACKOFF_MS ? backoff * 2 : BACKOFF_MS) : 10;
            debounce(&seen);
            if (alq_claim())
                replace_socket(connect_daemon());
            if (!connected() || !tell_hello() || !tell_groups()) {
                replace_socket((struct alq_file){ .fd = -1 });  /* what was begun is void: the next one tells all again */
                continue;
            }
            told = seen;
        }
        backoff = 0;
        if (told != __atomic_load_n(&changes, __ATOMIC_ACQUIRE)) {
            debounce(&seen);
            if (tell_groups()) {
                told = seen;
            } else {
                replace_socket((struct alq_file){ .fd = -1 });
                continue;
            }
        }
        wait_for_change(told, ROUND_MS);
    }
    return NULL;
}

void alq_link_start(void)
{
    if (__atomic_exchange_n(&started, 1, __ATOMIC_ACQ_REL))
        return;
    alq_claim();
    sigset_t all, before;
    sigfillset(&all);
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, &all, &before);    /* the program's signals are not for this thread */
    if (pthread_create(&thread, NULL, run, NULL) == 0)
        pthread_detach(thread);
    else
        __atomic_store_n(&started, 0, __ATOMIC_RELEASE);    /* the next compute object tries again */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void alq_link_changed(void)
{
    __atomic_fetch_add(&changes, 1, __ATOMIC_RELEASE);
    if (__atomic_load_n(&started, __ATOMIC_RELAXED))
        syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void alq_link_forget(void)
{
    started = 0;
    socket_busy = 0;
    alq_file_close(&sock);
}
