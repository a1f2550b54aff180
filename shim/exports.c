/* exports.c - memory that other processes may hold too: who is charged for it, and until when.
 *
 * Exported memory lives as long as its handle, a mapping, or a file made of it lives, in whatever process. So its charge
 * stays until the file is gone as well. No call says when that is, but epoll does: it forgets a file by itself when the last
 * descriptor, here or elsewhere, is closed, and its fdinfo lists those that are left.
 *
 * Memory of another process is charged to the importer, unless a process of the same tenant exported it and is charged: it
 * counts once. Which process that is travels with the file, as its owner for signals (which are never switched on) and a tag
 * in the place of the signal's number; of older handles (cuIpc) each process keeps a Bloom filter on its slot. When the charge
 * there is about to end, the count of that tag goes up, and who still has the memory is charged from then on.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "shim.h"

#define FOR_EVER UINT64_MAX         /* a file that cannot be watched: its memory stays charged */
#define FILTER   192u               /* bits of alq_slot.exported */
#define HANDOVER 250000000ull       /* ns: in this time the threads of the others notice that they are to pay */

static struct alq_file set = { .fd = -1 }, mark = { .fd = -1 };
static uint64_t mark_data;          /* the entry that says that the set is still ours, and not a file of the program's */
static uint32_t era, last;          /* a watched file is known by both: the set, and its number in it */
static int held, elsewhere;         /* entries of the book: of the kind HELD; imports that others are charged for */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- which files are left ---- */

struct reading { uint8_t *alive; uint64_t most; bool marked; };

static void read_line(const char *line, struct reading *r)
{
    const char *data = strstr(line, "data:");
    uint64_t value = data ? strtoull(data + 5, NULL, 16) : 0;
    if (data && value == mark_data)
        r->marked = true;
    else if (data && value >> 32 == era && (uint32_t)value <= r->most && r->alive)
        r->alive[(uint32_t)value / 8] |= (uint8_t)(1u << (value % 8));
}

/* lock held. False: the set is not to be read, or is no longer ours. */
static bool read_set(uint8_t *alive, uint64_t most)
{
    char path[64], chunk[2048], line[256];
    size_t length = 0;
    struct reading r = { .alive = alive, .most = most };
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set.fd);
    int fd = set.fd < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t got; fd >= 0 && (got = read(fd, chunk, sizeof chunk)) > 0;)
        for (ssize_t i = 0; i < got; i++) {
            if (chunk[i] != '\n' && length < sizeof line - 1) {
                line[length++] = chunk[i];
            } else if (chunk[i] == '\n') {
                line[length] = 0;
                length = 0;
                read_line(line, &r);
            }
        }
    if (fd >= 0)
        close(fd);
    return r.marked;
}

/* lock held. Makes the set where there is none, or where the program has closed it: what was in that one stays charged. */
static bool have_set(void)
{
    if (read_set(NULL, 0))
        return true;
    int queue = epoll_create1(EPOLL_CLOEXEC), one = eventfd(0, EFD_CLOEXEC);
    set = queue < 0 ? (struct alq_file){ .fd = -1 } : alq_file_high(queue);
    mark = one < 0 ? (struct alq_file){ .fd = -1 } : alq_file_high(one);
    if (queue >= 0)
        close(queue);
    if (one >= 0)
        close(one);
    era++;
    last = 0;
    mark_data = (alq_now() * 0x9e3779b97f4a7c15ull) | 1ull << 63;
    struct epoll_event event = { .events = 0, .data.u64 = mark_data };
    return set.fd >= 0 && mark.fd >= 0 && epoll_ctl(set.fd, EPOLL_CTL_ADD, mark.fd, &event) == 0;
}

/* `file` is what this memory had before, 0 at first: all files of one memory are one number. */
uint64_t alq_export(int fd, uint64_t file, uint8_t *tag)
{
    if (file == FOR_EVER)
        return file;
    pthread_mutex_lock(&lock);
    bool watched = have_set();
    if (watched && (!file || file >> 32 != era))
        file = file ? FOR_EVER : (uint64_t)era << 32 | ++last;      /* files of a set that is lost are not known any more */
    struct epoll_event event = { .events = 0, .data.u64 = file };
    if (file != FOR_EVER && (!watched || (epoll_ctl(set.fd, EPOLL_CTL_ADD, fd, &event) && errno != EEXIST)))
        file = FOR_EVER;
    pthread_mutex_unlock(&lock);
    uint8_t tagged = alq_tag_file(fd, file);
    *tag = *tag ? *tag : tagged;
    return file;
}

struct gone { const uint8_t *alive; uint64_t most, before, end; uint32_t era, tags; };

static bool is_gone(const struct alq_entry *e, const struct gone *g)
{
    uint32_t number = (uint32_t)e->file;
    return !e->file || (g->alive && e->file != FOR_EVER && e->file >> 32 == g->era && e->serial < g->before && number <= g->most &&
                        !(g->alive[number / 8] & 1u << (number % 8)));
}

/* The end of a charge is announced by its tag, and comes a moment later: in between two may pay, never nobody. */
static void announce(struct alq_entry *e, void *with)
{
    struct gone *g = with;
    if (e->kind != ALQ_HELD || e->now || !is_gone(e, g))
        return;
    e->now = e->tag ? g->end : 1;
    g->tags |= e->tag ? 1u << (e->tag - 1) : 0;
}

static bool is_over(const struct alq_entry *e, const void *now)
{
    return e->kind == ALQ_HELD && e->now && e->now <= *(const uint64_t *)now;
}

static void released(const struct alq_entry *entry)
{
    if (entry->elsewhere)
        __atomic_fetch_sub(&elsewhere, 1, __ATOMIC_RELAXED);
    else
        alq_charge(entry->card, -(int64_t)entry->size);
}

/* No other process of the tenant has a slot: nobody is there to take a charge over. */
static bool alone(void)
{
    struct alq_page *page = alq_page();
    for (unsigned i = 0; page && i < ALQ_SLOTS; i++)
        if (i != alq_slot_index() && __atomic_load_n(&page->slot[i].pid, __ATOMIC_RELAXED))
            return false;
    return true;
}

static void look_for_files(void)
{
    struct alq_entry entry;
    size_t at = 0;
    uint64_t now = alq_now();
    struct gone gone = { .before = alq_serial(), .end = now + (alone() ? 0 : HANDOVER) };
    pthread_mutex_lock(&lock);
    size_t bytes = last / 8 + 1;
    uint8_t *alive = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool known = alive != MAP_FAILED && read_set(alive, last);
    gone.alive = known ? alive : NULL;
    gone.most = last;
    gone.era = era;
    pthread_mutex_unlock(&lock);
    alq_each(announce, &gone);
    for (uint8_t tag = 1; gone.tags && tag <= ALQ_TAGS; tag++)
        if (gone.tags & 1u << (tag - 1))
            alq_tag_ended(tag);
    while (alq_take_where(is_over, &now, &at, &entry)) {
        __atomic_fetch_sub(&held, 1, __ATOMIC_RELAXED);
        released(&entry);
    }
    if (alive != MAP_FAILED)
        munmap(alive, bytes);
}

void alq_ended(const struct alq_entry *entry)
{
    if (!entry->file && !entry->tag) {
        released(entry);
        return;
    }
    struct alq_entry rest = *entry;
    rest.kind = ALQ_HELD;
    rest.key = alq_serial();
    rest.now = 0;
    __atomic_fetch_add(&held, 1, __ATOMIC_RELAXED);
    if (alq_book(rest))                 /* without room in the book it stays charged: never too little */
        look_for_files();
}

/* ---- who is charged ---- */

uint8_t alq_tag_file(int fd, uint64_t seed)
{
    uint8_t tag = (uint8_t)(1 + seed % ALQ_TAGS);
    if (!alq_claim() || fcntl(fd, F_SETOWN, getpid()) || fcntl(fd, F_SETSIG, (int)tag))
        return tag;     /* then who imports it is charged as for a stranger's */
    return tag;
}

/* slot, its owner, and how often charges of this tag had ended there */
static uint64_t origin(const struct alq_page *page, unsigned slot, unsigned tag)
{
    return (uint64_t)__atomic_load_n(&page->slot[slot].serial, __ATOMIC_RELAXED) << 32 | slot << 16 | (tag - 1) << 8 |
           __atomic_load_n(&page->slot[slot].ended[tag - 1], __ATOMIC_ACQUIRE);
}

static bool still_charged(const struct alq_page *page, uint64_t from)
{
    unsigned slot = (unsigned)(from >> 16) & 0xff, tag = 1 + ((unsigned)(from >> 8) & 0xff) % ALQ_TAGS;
    return __atomic_load_n(&page->slot[slot].pid, __ATOMIC_RELAXED) && origin(page, slot, tag) == from;
}

bool alq_origin_of_file(int fd, uint64_t *from)
{
    struct alq_page *page = alq_page();
    int owner = fcntl(fd, F_GETOWN), tag = fcntl(fd, F_GETSIG);
    for (unsigned i = 0; page && owner > 0 && tag >= 1 && tag <= ALQ_TAGS && i < ALQ_SLOTS; i++)
        if (__atomic_load_n(&page->slot[i].pid, __ATOMIC_RELAXED) == (uint32_t)owner) {
            *from = origin(page, i, (unsigned)tag);
            return true;
        }
    return false;
}

static uint64_t hash(const CUipcMemHandle *handle)
{
    uint64_t sum = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof handle->bytes; i++)
        sum = (sum ^ (uint8_t)handle->bytes[i]) * 0x100000001b3ull;
    return sum ^ sum >> 29;
}

static void set_tag(struct alq_entry *entry, void *tag)
{
    entry->tag = *(uint8_t *)tag;
}

void alq_ipc_exported(CUdeviceptr base, const CUipcMemHandle *handle)
{
    uint64_t sum = hash(handle);
    uint8_t tag = (uint8_t)(1 + sum % ALQ_TAGS);
    struct alq_slot *own = alq_claim();
    if (!own || !alq_change(ALQ_MEMORY, base, set_tag, &tag))
        return;
    for (int i = 0; i < 2; i++, sum >>= 32) {
        unsigned bit = (unsigned)(sum & UINT32_MAX) % FILTER;
        __atomic_fetch_or(&own->exported[bit / 64], 1ull << bit % 64, __ATOMIC_RELEASE);
    }
}

bool alq_origin_of_ipc(const CUipcMemHandle *handle, uint64_t *from)
{
    struct alq_page *page = alq_page();
    uint64_t sum = hash(handle);
    unsigned one = (unsigned)(sum & UINT32_MAX) % FILTER, two = (unsigned)(sum >> 32) % FILTER;
    for (unsigned i = 0; page && i < ALQ_SLOTS; i++) {
        const struct alq_slot *slot = &page->slot[i];
        if (__atomic_load_n(&slot->pid, __ATOMIC_RELAXED) && slot->exported[one / 64] >> one % 64 & 1 &&
            slot->exported[two / 64] >> two % 64 & 1) {
            *from = origin(page, i, (unsigned)(1 + sum % ALQ_TAGS));
            return true;
        }
    }
    return false;
}

struct largest { uint8_t tag; uint64_t bytes; };

static void compare(struct alq_entry *e, void *with)
{
    struct largest *l = with;
    if ((e->kind == ALQ_PIECE || e->kind == ALQ_HELD) && e->file && e->tag == l->tag && e->size > l->bytes)
        l->bytes = e->size;
}

/* Several exports may have this tag: the largest, so that it is never too little. */
uint64_t alq_exported_bytes(uint64_t from)
{
    struct largest l = { .tag = (uint8_t)(1 + (from >> 8 & 0xff)) };
    if ((from >> 16 & 0xff) == alq_slot_index())
        alq_each(compare, &l);
    return l.bytes;
}

bool alq_import(struct alq_entry entry)
{
    if (entry.elsewhere) {
        __atomic_fetch_add(&elsewhere, 1, __ATOMIC_RELAXED);
        alq_claim();        /* with it the thread that sees when the charge there ends, though this process does nothing more */
    }
    return alq_book(entry);
}

struct takeover { const struct alq_page *page; uint64_t bytes[ALQ_CARDS]; int count; };

static void take_over(struct alq_entry *e, void *with)
{
    struct takeover *t = with;
    if (!e->elsewhere || still_charged(t->page, e->from))
        return;
    e->elsewhere = false;
    t->bytes[e->card] += e->size;
    t->count++;
}

static void look_for_charges(void)
{
    struct takeover t = { .page = alq_page() };
    if (!t.page)
        return;
    alq_each(take_over, &t);
    __atomic_fetch_sub(&elsewhere, t.count, __ATOMIC_RELAXED);
    for (int card = 0; t.count && card < ALQ_CARDS; card++)
        alq_charge(card, (int64_t)t.bytes[card]);
}

void alq_tag_ended(uint8_t tag)
{
    struct alq_slot *own = __atomic_load_n(&alq_own, __ATOMIC_ACQUIRE);
    if (own && tag)
        __atomic_fetch_add(&own->ended[tag - 1], 1, __ATOMIC_RELEASE);
    if (__atomic_load_n(&elsewhere, __ATOMIC_RELAXED) > 0)
        look_for_charges();             /* an import of our own may be of that memory */
}

void alq_exports_settle(void)
{
    int saved = errno;
    if (__atomic_load_n(&held, __ATOMIC_RELAXED) > 0)
        look_for_files();
    if (__atomic_load_n(&elsewhere, __ATOMIC_RELAXED) > 0)
        look_for_charges();
    errno = saved;
}

static void is_ending(struct alq_entry *e, void *any)
{
    *(bool *)any |= e->kind == ALQ_HELD && e->now;
}

/* Before a refusal: charges that are about to end are waited for. False: there are none. */
bool alq_exports_wait(void)
{
    bool any = false;
    if (__atomic_load_n(&held, __ATOMIC_RELAXED) > 0)
        alq_each(is_ending, &any);
    struct timespec t = { .tv_nsec = HANDOVER / 5 };
    if (any)
        nanosleep(&t, NULL);
    return any;
}

/* In a forked child: its parent's files are the parent's to watch. */
void alq_exports_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (read_set(NULL, 0)) {            /* else the program has closed it, and the number may be its own */
        close(set.fd);
        close(mark.fd);
    }
    set.fd = mark.fd = -1;
    era = last = 0;
    held = elsewhere = 0;
}
