/* page.c - the tenant's page: this process's slot on it, and the ledger of memory.
 *
 * A process holds its slot by a POSIX lock on one byte of the page's file, and the kernel drops that lock whatever way
 * the process ends. The trap of POSIX locks: closing *any* file number of the page drops them all. So the page is opened
 * once, moved to a high number, and only locked after that.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "shim.h"

#define LEDGER_BYTE   ALQ_SLOTS     /* locked around a reservation, by processes of this tenant alone */
#define LEDGER_WAIT   20000000ull   /* ns; past it we go on without: the limit holds, a race may be lost twice */
#define CLAIM_AGAIN   100000000ull
#define RECLAIMS      4             /* a page that is written over may show ever new dead */

struct alq_slot *alq_own;

static struct alq_page *page;
static struct alq_file page_file = { .fd = -1 };
static pthread_mutex_t page_lock = PTHREAD_MUTEX_INITIALIZER;   /* mapping and claiming */
static pthread_mutex_t ledger = PTHREAD_MUTEX_INITIALIZER;      /* this process's sums; taken inside page_lock or alone */
static uint64_t mine[ALQ_CARDS];    /* what own->use[].memory must be, should the slot be lost */

/* ---- the page ---- */

static void cannot(const char *what, int error)
{
    static int said;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        return;
    if (error == EACCES)
        alq_say("%s/page: %s: %s: GPU memory is refused to this program. It runs as user %u, but `aliquot run` was started by "
                "another user: start it with `aliquot run` as user %u.", alq_path(), what, strerror(error), geteuid(), geteuid());
    else
        alq_say("%s/page: %s%s%s: GPU memory is refused to this program. ALIQUOT_TENANT must name a running tenant's "
                "directory: start the program with `aliquot run`, or unset ALIQUOT_TENANT; in a Pod, the node's agent "
                "makes it: `aliquot doctor` there tells more.", alq_path(), what,
                error ? ": " : "", error ? strerror(error) : "");
}

/* The page's file at a high number; .fd -1: it cannot be opened. */
static struct alq_file open_page(void)
{
    char path[600];
    struct alq_file file = { .fd = -1 };
    snprintf(path, sizeof path, "%s/page", alq_path());
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        file = alq_file_high(fd);
        close(fd);      /* before any lock is taken */
    }
    return file;
}

/* page_lock held. Opens and maps the page; leaves `page` NULL when that is not possible. */
static void map_page(void)
{
    struct alq_page *map = MAP_FAILED;
    struct alq_file file = open_page();
    if (file.fd < 0) {
        cannot("cannot be opened", errno);
        return;
    }
    if (alq_file_size(&file) >= sizeof *map)
        map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (map == MAP_FAILED) {
        cannot("cannot be mapped, or is too small", 0);
        alq_file_close(&file);
    } else if (map->magic != ALQ_MAGIC || map->version != ALQ_VERSION || map->slots != ALQ_SLOTS || map->cards > ALQ_CARDS) {
        cannot("is of another version", 0);
        munmap(map, sizeof *map);
        alq_file_close(&file);
    } else {
        page_file = file;
        __atomic_store_n(&page, map, __ATOMIC_RELEASE);
    }
}

struct alq_page *alq_page(void)
{
    struct alq_page *map = __atomic_load_n(&page, __ATOMIC_ACQUIRE);
    if (map || !alq_on())
        return map;
    int saved = errno;
    pthread_mutex_lock(&page_lock);
    if (!page)
        map_page();
    map = page;
    pthread_mutex_unlock(&page_lock);
    errno = saved;
    return map;
}

/* ---- slots ---- */

static bool lock_byte(off_t byte, short type)
{
    struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
    return fcntl(page_file.fd, F_SETLK, &l) == 0;
}

/* The slot's lock is held. Fields are cleared one by one: other processes are summing them up. */
static void clear_slot(struct alq_slot *slot)
{
    __atomic_store_n(&slot->pid, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++)
        __atomic_store_n(&slot->exported[i], 0, __ATOMIC_RELAXED);
    for (int i = 0; i < ALQ_CARDS; i++) {
        struct alq_use *u = &slot->use[i];
        __atomic_store_n(&u->memory, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->overhead, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->launches, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->gate, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->paused, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->wake, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->refused, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->rescued, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->busy_ns, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&u->busy_since_ns, 0, __ATOMIC_RELAXED);
    }
}

/* Only where memory may leave: a daemon of an earlier release cuts this part of the page off. */
static void clear_moves(unsigned slot)
{
    for (int c = 0; c < ALQ_CARDS; c++)
        if (page->card[c].parkable)
            memset(&page->move[slot][c], 0, sizeof page->move[slot][c]);
}

/* page_lock held, page mapped. The program may have closed our file: then its locks are gone, and it is opened again.
 * False: it is not to be had. */
static bool have_file(void)
{
    if (alq_file_ours(&page_file))
        return true;
    struct alq_file file = open_page();
    if (file.fd >= 0 && file.dev == page_file.dev && file.ino == page_file.ino) {
        page_file = file;
        return true;
    }
    alq_file_close(&file);  /* another page by now: the mapped one lives on, without locks */
    return false;
}

/* page_lock held, page mapped. Takes the first slot that nobody has. */
static void take_slot(void)
{
    for (unsigned i = 0; (i || have_file()) && i < ALQ_SLOTS; i++) {
        struct alq_slot *slot = &page->slot[i];
        if (!lock_byte((off_t)i, F_WRLCK))
            continue;
        uint32_t top = __atomic_load_n(&page->top, __ATOMIC_SEQ_CST);
        while (top <= i && !__atomic_compare_exchange_n(&page->top, &top, i + 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            ;
        clear_slot(slot);
        alq_parking_publish(page, i);
        __atomic_fetch_add(&slot->serial, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->pid, (uint32_t)getpid(), __ATOMIC_RELEASE);
        pthread_mutex_lock(&ledger);
        for (int c = 0; c < ALQ_CARDS; c++)
            __atomic_store_n(&slot->use[c].memory, mine[c], __ATOMIC_RELAXED);
        __atomic_store_n(&alq_own, slot, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&ledger);
        return;
    }
    static int said;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        alq_say("this tenant has %u processes on GPUs already, no more fit: GPU memory is refused to process %d.",
                (unsigned)ALQ_SLOTS, (int)getpid());
}

struct alq_slot *alq_claim(void)
{
    static uint64_t again;      /* a launch comes here each time while there is no slot: it shall not try each time */
    struct alq_slot *own = __atomic_load_n(&alq_own, __ATOMIC_ACQUIRE);
    if (own || alq_now() < __atomic_load_n(&again, __ATOMIC_RELAXED))
        return own;
    if (alq_page()) {
        int saved = errno;
        pthread_mutex_lock(&page_lock);
        if (!alq_own && page)
            take_slot();
        own = alq_own;
        pthread_mutex_unlock(&page_lock);
        if (own)
            alq_link_start();   /* also where no group is ever seen: under MPS they are the server's, and the gate is left */
        errno = saved;
    }
    if (!own)
        __atomic_store_n(&again, alq_now() + CLAIM_AGAIN, __ATOMIC_RELAXED);
    return own;
}

uint32_t alq_slot_index(void)
{
    struct alq_slot *own = __atomic_load_n(&alq_own, __ATOMIC_ACQUIRE);
    return own ? (uint32_t)(own - page->slot) : UINT32_MAX;
}

void alq_keep_slot(void)
{
    if (!__atomic_load_n(&alq_own, __ATOMIC_ACQUIRE))
        return;
    /* Before the look at the file: while another thread moves to another slot, nothing is charged on the old one. */
    pthread_mutex_lock(&page_lock);
    if (alq_own && !alq_file_ours(&page_file) && have_file()) {
        off_t byte = alq_own - page->slot;
        bool locked = lock_byte(byte, F_WRLCK);
        if (!locked || alq_own->pid != (uint32_t)getpid()) {    /* another process has it, or took us for dead */
            if (locked)
                lock_byte(byte, F_UNLCK);
            take_slot();
        }
    }
    pthread_mutex_unlock(&page_lock);
}

unsigned alq_reclaim(void)
{
    unsigned count = 0;
    pthread_mutex_lock(&page_lock);
    for (unsigned i = 0; page && (i || have_file()) && i < ALQ_SLOTS; i++) {
        struct alq_slot *slot = &page->slot[i];
        /* never our own: a second lock would succeed, and the unlock would give the slot away */
        if (slot == alq_own || !__atomic_load_n(&slot->pid, __ATOMIC_RELAXED) || !lock_byte((off_t)i, F_WRLCK))
            continue;
        clear_slot(slot);
        clear_moves(i);
        lock_byte((off_t)i, F_UNLCK);
        count++;
    }
    pthread_mutex_unlock(&page_lock);
    return count;
}

/* ---- the ledger ---- */

uint64_t alq_limit(int card)
{
    return __atomic_load_n(&page->card[card].memory_limit, __ATOMIC_RELAXED);
}

uint64_t alq_used(int card)
{
    uint64_t sum = 0;
    uint32_t top = __atomic_load_n(&page->top, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < ALQ_SLOTS && i < top; i++) {
        const struct alq_use *u = &page->slot[i].use[card];
        uint64_t each = __atomic_load_n(&u->memory, __ATOMIC_SEQ_CST) + __atomic_load_n(&u->overhead, __ATOMIC_RELAXED);
        if (__builtin_add_overflow(sum, each, &sum))
            return UINT64_MAX;  /* somebody wrote nonsense on the tenant's own page: it has no memory left */
    }
    return sum;
}

/* ledger held. `mine` outlives the slot, and is the truth: what others may have written on the page is put right. */
static void add(int card, int64_t bytes)
{
    if (bytes < 0 && (uint64_t)-bytes > mine[card])
        bytes = -(int64_t)mine[card];
    mine[card] += (uint64_t)bytes;
    __atomic_store_n(&alq_own->use[card].memory, mine[card], __ATOMIC_SEQ_CST);
}

void alq_charge(int card, int64_t bytes)
{
    if (!bytes || card < 0 || !alq_claim())
        return;
    pthread_mutex_lock(&ledger);
    add(card, bytes);
    pthread_mutex_unlock(&ledger);
}

/* A pause of 20 to 150 us, different from one process to the next. */
static void short_pause(void)
{
    static uint32_t seed;
    uint32_t x = __atomic_add_fetch(&seed, 0x9e3779b9u, __ATOMIC_RELAXED) ^ (uint32_t)getpid() * 2654435761u;
    x ^= x >> 15;
    struct timespec t = { .tv_nsec = 20000 + (long)(x % 130000) };
    nanosleep(&t, NULL);
}

/* Other processes of this tenant reserve at the same time. Adding first and looking at the sum afterwards keeps the limit
 * without any lock; but two that race for the last bytes may both find the sum too high and both give up. So there is a
 * lock as well, against that alone, and whoever does not get it in time (its holder is stopped) goes on without. */
static bool lock_ledger_byte(void)
{
    uint64_t deadline = 0;
    while (!lock_byte(LEDGER_BYTE, F_WRLCK)) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return false;       /* no file, or no locks on it: waiting brings none */
        uint64_t now = alq_now();
        if (!deadline)
            deadline = now + LEDGER_WAIT;
        else if (now > deadline)
            return false;
        short_pause();
    }
    return true;
}

/* ledger held */
static bool try_add(int card, uint64_t bytes, uint64_t need)
{
    uint64_t limit = alq_limit(card), used = alq_used(card);
    if (limit != ALQ_UNLIMITED && (used > limit || need > limit - used))
        return false;
    add(card, (int64_t)bytes);
    used = alq_used(card);
    if (limit == ALQ_UNLIMITED || used - (bytes - need) <= limit)
        return true;
    add(card, -(int64_t)bytes);
    return false;
}

/* One look at the quota, with the dead still in it. */
static bool reserve_once(int card, uint64_t bytes, uint64_t need)
{
    pthread_mutex_lock(&ledger);
    bool alone = __atomic_load_n(&page->top, __ATOMIC_SEQ_CST) <= 1, locked = !alone && lock_ledger_byte(), done = false;
    /* without the lock two more tries: whoever was in the way has had time to step back */
    for (int tries = locked || alone ? 1 : 3; tries > 0 && !done; tries--) {
        done = try_add(card, bytes, need);
        if (!done && tries > 1)
            short_pause();
    }
    if (locked)
        lock_byte(LEDGER_BYTE, F_UNLCK);
    pthread_mutex_unlock(&ledger);
    return done;
}

/* `bytes` is what the card will lose, `need` what the program asked for: the quota is compared with what was asked for,
 * so that one allocation of exactly the quota fits whatever the driver rounds it up to. */
bool alq_reserve(int card, uint64_t bytes, uint64_t need)
{
    if (!alq_claim() || bytes > INT64_MAX)
        return false;
    alq_keep_slot();
    alq_exports_settle();
    bool done = reserve_once(card, bytes, need);
    for (int i = 0; !done && i < RECLAIMS && alq_reclaim() > 0; i++) {
        alq_exports_settle();       /* what the dead had lent is now paid for here */
        done = reserve_once(card, bytes, need);
    }
    for (int i = 0; !done && i < 6 && alq_exports_wait(); i++) {
        alq_exports_settle();
        done = reserve_once(card, bytes, need);
    }
    return done;
}

int alq_refuse(int card)
{
    struct alq_slot *own = alq_claim();
    if (own && card >= 0)
        __atomic_fetch_add(&own->use[card].refused, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool alq_stale(int card)
{
    uint64_t beat = __atomic_load_n(&page->card[card].heartbeat_ns, __ATOMIC_ACQUIRE), now = alq_now();
    /* far in the future is as wrong as far in the past: no daemon of this machine wrote that */
    return (beat > now ? beat - now : now - beat) > ALQ_STALE_NS;
}

/* In a forked child: the slot is the parent's. Locks are not inherited, so closing drops none of the parent's. */
void alq_page_forget(void)
{
    page_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    ledger = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    alq_file_close(&page_file);
    if (page)
        munmap(page, sizeof *page);
    page = NULL;
    alq_own = NULL;
    memset(mine, 0, sizeof mine);
}
