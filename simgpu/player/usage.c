/* usage.c - exact time accounts, in buckets of a tenth of a second. */
#include "player.h"
#include <stdlib.h>

/* Adds the time from `from` to `to`, split over the buckets it lies in. */
void usage_add(struct usage *usage, uint64_t from, uint64_t to)
{
    usage->total += to - from;
    if (to - from > BUCKET * BUCKETS) from = to - BUCKET * BUCKETS;
    while (from < to) {
        uint64_t bucket = from / BUCKET, end = (bucket + 1) * BUCKET;
        if (end > to) end = to;
        unsigned i = (unsigned)(bucket % BUCKETS);
        if (usage->index[i] != bucket) {
            usage->index[i] = bucket;
            usage->busy[i] = 0;
        }
        usage->busy[i] += end - from;
        from = end;
    }
}

/* Time in the buckets from that of `from` to before that of `to`. */
uint64_t usage_between(const struct usage *usage, uint64_t from, uint64_t to)
{
    uint64_t sum = 0;
    uint64_t last = to / BUCKET, first = from / BUCKET;
    if (last - first > BUCKETS && last > BUCKETS) first = last - BUCKETS;
    for (uint64_t bucket = first; bucket < last; bucket++)
        if (usage->index[bucket % BUCKETS] == bucket) sum += usage->busy[bucket % BUCKETS];
    return sum;
}

/* The group ran from `from` to `to`. Without memory for its account only the sum is kept. */
void usage_charge(struct group *group, uint64_t from, uint64_t to)
{
    struct usage **usage = &group->owner->usage[group->card->index];
    group->busy += to - from;
    if (!*usage) *usage = calloc(1, sizeof **usage);
    if (*usage) usage_add(*usage, from, to);
}
