/* handles.c - the set of live objects: what a program hands in is looked up before it is touched. */
#include "driver.h"
#include <stdlib.h>

/* Open addressing, a power of two; a removed entry leaves GRAVE so that those behind it are still found. */
struct entry { const void *object; enum handle kind; };
static struct entry *table;
static size_t room, used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char GRAVE;

static size_t start(const void *object)
{
    return (size_t)(((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (room - 1);
}

/* The entry of the object, or NULL. */
static struct entry *find(const void *object)
{
    if (!room || !object) return NULL;
    for (size_t i = start(object); table[i].object; i = (i + 1) & (room - 1))
        if (table[i].object == object) return &table[i];
    return NULL;
}

static void place(const void *object, enum handle kind)
{
    size_t i = start(object);
    while (table[i].object) i = (i + 1) & (room - 1);
    table[i] = (struct entry){ object, kind };
    used++;
}

/* Makes room for one more. Returns false without memory. */
static bool grow(void)
{
    if (room && used * 2 < room) return true;
    size_t old_room = room, live = 0;
    struct entry *old = table;
    for (size_t i = 0; i < old_room; i++) live += old[i].object && old[i].object != &GRAVE;
    size_t wanted = 256;
    while (wanted < live * 4) wanted *= 2;
    struct entry *fresh = calloc(wanted, sizeof *fresh);
    if (!fresh) return false;
    table = fresh;
    room = wanted;
    used = 0;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].object && old[i].object != &GRAVE) place(old[i].object, old[i].kind);
    free(old);
    return true;
}

bool handle_add(const void *object, enum handle kind)
{
    pthread_mutex_lock(&lock);
    bool done = grow();
    if (done) place(object, kind);
    pthread_mutex_unlock(&lock);
    return done;
}

bool handle_is(const void *object, enum handle kind)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = find(object);
    bool is = entry && entry->kind == kind;
    pthread_mutex_unlock(&lock);
    return is;
}

bool handle_drop(const void *object, enum handle kind)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = find(object);
    bool is = entry && entry->kind == kind;
    if (is) entry->object = &GRAVE;
    pthread_mutex_unlock(&lock);
    return is;
}
