/* line.c - JSON, written into a buffer and out in one call, so that lines of several processes do not mix. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "probe.h"

static char buffer[1 << 16];
static size_t used;
static int first;

static void put(const char *text, size_t size)
{
    if (used + size < sizeof buffer) {
        memcpy(buffer + used, text, size);
        used += size;
    }
}

static void quote(const char *text)
{
    put("\"", 1);
    for (; *text; text++) {
        char escaped[8];
        unsigned char letter = (unsigned char)*text;
        if (letter == '"' || letter == '\\')
            put(escaped, (size_t)snprintf(escaped, sizeof escaped, "\\%c", letter));
        else if (letter < 0x20)
            put(escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", letter));
        else
            put(text, 1);
    }
    put("\"", 1);
}

static void name(const char *key)
{
    if (!first)
        put(", ", 2);
    first = 0;
    if (key) {
        quote(key);
        put(": ", 2);
    }
}

void line_begin(const char *event)
{
    used = 0;
    first = 1;
    put("{", 1);
    line_text("event", event);
}

void line_text(const char *key, const char *value)
{
    name(key);
    if (value)
        quote(value);
    else
        put("null", 4);
}

void line_number(const char *key, double value)
{
    char text[64];
    int whole = value == (double)(long long)value;
    name(key);
    put(text, (size_t)(whole ? snprintf(text, sizeof text, "%lld", (long long)value)
                             : snprintf(text, sizeof text, "%.6g", value)));
}

void line_bool(const char *key, int value)
{
    name(key);
    put(value ? "true" : "false", value ? 4 : 5);
}

void line_open(const char *key, char bracket)
{
    name(key);
    put(&bracket, 1);
    first = 1;
}

void line_close(char bracket)
{
    put(&bracket, 1);
    first = 0;
}

void line_end(void)
{
    put("}\n", 2);
    for (size_t done = 0; done < used;) {
        ssize_t wrote = write(1, buffer + done, used - done);
        if (wrote <= 0)
            break;
        done += (size_t)wrote;
    }
}
