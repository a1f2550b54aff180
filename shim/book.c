/* book.c - what this process has allocated: one table from a pointer or handle to its bytes, card and owner.
 *
 * Open addressing with backward-shift deletion, grown by mapping a table twice the size: the program's malloc may be
 * anything, and may itself be what called us. One mutex; nothing is called while it is held.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "shim.h"

#define FIRST 256u
static struct alq_entry *table;     /* .kind 0: empty */
static size_t capacity, count;      /* capacity is a power of two */
static uint64_t serials;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t home_of(uint64_t key, unsigned kind)
{
    return (size_t)(((key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15ull) >> 20) & (capacity - 1);
}

/* The place of an entry, or the empty place where it would go. The table is never full. */
static size_t place_of(enum alq_kind kind, uint64_t key)
{
    size_t i = home_of(key, kind);
    while (table[i].kind && (table[i].kind != kind || table[i].key != key))
        i = (i + 1) & (capacity - 1);
    return i;
}

static bool grow(void)
{
    size_t before = capacity, larger = capacity ? capacity * 2 : FIRST;
    struct alq_entry *old = table;
    void *fresh = mmap(NULL, larger * sizeof *table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED)
        return false;
    table = fresh;
    capacity = larger;
    for (size_t i = 0; i < before; i++)
        if (old[i].kind)
            table[place_of(old[i].kind, old[i].key)] = old[i];
    if (old)
        munmap(old, before * sizeof *table);
    return true;
}

static void remove_at(size_t hole)
{
    size_t i = hole;
    for (;;) {
        table[hole].kind = 0;
        size_t home;
        do {
            i = (i + 1) & (capacity - 1);
            if (!table[i].kind) {
                count--;
                return;
            }
            home = home_of(table[i].key, table[i].kind);
        } while (((i - home) & (capacity - 1)) < ((i - hole) & (capacity - 1)));    /* it may not move before its home */
        table[hole] = table[i];
        hole = i;
    }
}

/* Memory that cannot leave the card, when the tenant may be parked. */
static void count_stays(const struct alq_entry *entry, int by)
{
    static const uint32_t stays[] = {
        [ALQ_POOLED] = ALQ_STAYS_POOLED, [ALQ_OPENED] = ALQ_STAYS_SHARED, [ALQ_HELD] = ALQ_STAYS_SHARED,
        [ALQ_MEMORY] = ALQ_STAYS_OTHER, [ALQ_ARRAY] = ALQ_STAYS_OTHER, [ALQ_EXTERNAL] = ALQ_STAYS_OTHER,
        [ALQ_IN_GRAPH] = ALQ_STAYS_OTHER, [ALQ_MOVABLE] = 0 };
    alq_count_stays(entry->card, stays[entry->kind], by);
}

/* Enters an allocation. One of the same kind and key that is still there is replaced: the driver gave the key away
 * again, so the old one has ended without our seeing it; its bytes are given back. */
bool alq_book(struct alq_entry entry)
{
    struct alq_entry old = { .kind = 0 };
    pthread_mutex_lock(&lock);
    bool fits = (count + 1) * 4 <= capacity * 3 || grow();
    if (fits) {
        size_t i = place_of(entry.kind, entry.key);
        if (table[i].kind)
            old = table[i];
        else
            count++;
        entry.serial = ++serials;
        table[i] = entry;
        count_stays(&entry, 1);
        if (old.kind)
            count_stays(&old, -1);
    }
    pthread_mutex_unlock(&lock);
    if (old.kind == ALQ_MEMORY || old.kind == ALQ_ARRAY || old.kind == ALQ_PIECE || old.kind == ALQ_OPENED || old.kind == ALQ_EXTERNAL)
        alq_ended(&old);
    return fits;
}

bool alq_find(enum alq_kind kind, uint64_t key, struct alq_entry *out)
{
    pthread_mutex_lock(&lock);
    bool found = false;
    if (capacity) {
        size_t i = place_of(kind, key);
        found = table[i].kind != 0;
        if (found)
            *out = table[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool alq_take(enum alq_kind kind, uint64_t key, struct alq_entry *out)
{
    pthread_mutex_lock(&lock);
    bool found = false;
    if (capacity) {
        size_t i = place_of(kind, key);
        found = table[i].kind != 0;
        if (found) {
            *out = table[i];
            remove_at(i);
            count_stays(out, -1);
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool alq_change(enum alq_kind kind, uint64_t key, void (*change)(struct alq_entry *entry, void *with), void *with)
{
    pthread_mutex_lock(&lock);
    bool found = false;
    if (capacity) {
        size_t i = place_of(kind, key);
        found = table[i].kind != 0;
        if (found)
            change(&table[i], with);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Takes any one entry that fits. Called again until it answers false, it takes all of them. `*at` is 0 at first, and then
 * where the last one was: all together is one round through the table, not one for each. */
bool alq_take_where(bool (*fits)(const struct alq_entry *entry, const void *with), const void *with, size_t *at,
                    struct alq_entry *out)
{
    pthread_mutex_lock(&lock);
    bool found = false;
    for (size_t n = 0; n < capacity && !found; n++) {
        size_t i = (*at + n) & (capacity - 1);
        if (table[i].kind && fits(&table[i], with)) {
            *out = table[i];
            remove_at(i);       /* another may have moved here */
            count_stays(out, -1);
            *at = i;
            found = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void alq_each(void (*visit)(struct alq_entry *entry, void *with), void *with)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < capacity; i++)
        if (table[i].kind)
            visit(&table[i], with);
    pthread_mutex_unlock(&lock);
}

uint64_t alq_serial(void)
{
    pthread_mutex_lock(&lock);
    uint64_t next = serials + 1;
    pthread_mutex_unlock(&lock);
    return next;
}

void alq_book_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    table = NULL;       /* not unmapped: another thread of the parent may have been growing it */
    capacity = count = 0;
}
