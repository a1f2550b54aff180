/* state.c - what the player knows, as JSON: for tests, and for people who wonder. */
#include "player.h"
#include <stdarg.h>
#include <stdio.h>

struct text { char *bytes; size_t size, room; };

/* Appends; what does not fit is cut off. */
__attribute__((format(printf, 2, 3))) static void say(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text->bytes + text->size, text->room - text->size, format, arguments);
    va_end(arguments);
    if (n > 0) text->size += (size_t)n;
    if (text->size >= text->room) text->size = text->room - 1;
}

static void say_group(struct text *text, const struct object *o, const char *comma)
{
    const struct group *g = o->group;
    uint32_t stopped = 0;
    say(text, "%s{\"pid\":%u,\"client\":%u,\"group\":%u,\"engine\":%u,\"slice_us\":%llu,\"busy_ns\":%llu,"
        "\"queued\":%u,\"dead\":%s,\"current\":%s,\"channels\":[", comma, g->owner->pid, o->client, o->handle,
        o->engine, (unsigned long long)(g->slice / US), (unsigned long long)g->busy, g->lane ? g->lane->held : 0,
        g->lane && g->lane->dead ? "true" : "false", g->card->active && g->card->current == g ? "true" : "false");
    comma = "";
    for (const struct object *c = g->owner->objects; c; c = c->next)
        if (c->group == g && rm_is_channel(c->class_)) {
            say(text, "%s%u", comma, c->handle);
            comma = ",";
            stopped += c->stop_at != NEVER;
        }
    say(text, "],\"stopped\":%u}", stopped);
}

/* Writes the state of every card and group. Returns how long it is. */
size_t state_json(char *bytes, size_t room)
{
    struct text text = { bytes, 0, room };
    say(&text, "{\"connections\":%u,\"controls\":%llu,\"cards\":[", player->connection_count,
        (unsigned long long)player->controls);
    for (uint32_t i = 0; i < player->set.cards; i++) {
        const struct card *card = &player->card[i];
        const char *comma = "", *before = i ? "," : "";
        say(&text, "%s{\"uuid\":\"%s\",\"now_ns\":%llu,\"memory\":%llu,\"used\":%llu,\"busy_ns\":%llu,"
            "\"switches\":%llu,\"lost\":%s,\"groups\":[", before, card->uuid, (unsigned long long)card->now,
            (unsigned long long)card->memory, (unsigned long long)card->used, (unsigned long long)card->usage.total,
            (unsigned long long)card->switches, card->lost ? "true" : "false");
        for (const struct connection *c = player->connections; c; c = c->next)
            for (const struct object *o = c->objects; o; o = o->next)
                if (o->class_ == RM_CLASS_GROUP && o->card == card) {
                    say_group(&text, o, comma);
                    comma = ",";
                }
        say(&text, "]}");
    }
    say(&text, "]}");
    return text.size;
}
