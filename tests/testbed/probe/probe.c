/* probe.c - what runs in the containers of the tests: says what it sees, then does what it is told, in order.
 *
 *     probe [card N | alloc SIZE | fill | burn SECONDS [KERNEL_MS] | serve SECONDS EVERY_MS [KERNEL_MS] | say | sleep SECONDS
 *            | work KERNELS [KERNEL_MS] | write FILE | look FOLDER | knock SOCKET | exit CODE | idle] ...
 *
 * Its words come from the environment variable PROBE if that is set, else from the arguments; a first word it does not
 * know (a manifest's own command line) is none for it. After the last it idles until SIGTERM, which ends it with 0. Sizes
 * in bytes, or with KiB, MiB, GiB. SECONDS 0 is for ever. Every line it writes is a JSON object.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "probe.h"

#define MOST 100000

extern char **environ;
static char **word;
static int card;

double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void end(int number)
{
    (void)number;
    _exit(0);
}

/* ---- the report */

static int contains(const char *path, const char *text)
{
    char line[4096];
    int found = 0;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file))
        found = strstr(line, text) != NULL;
    if (file)
        fclose(file);
    return found;
}

static void report_text(const char *key, const char *path)
{
    char text[4096];
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[size] = 0;
    line_text(key, file ? text : NULL);
    if (file)
        fclose(file);
}

static void report_environment(void)
{
    static const char *const known[] = { "NVIDIA_", "CUDA_", "T9K_", "ALIYUN_", "ALIQUOT_", "QGPU_", "LD_" };
    line_open("env", '{');
    for (char **each = environ; *each; each++)
        for (size_t index = 0; index < sizeof known / sizeof *known; index++)
            if (!strncmp(*each, known[index], strlen(known[index]))) {
                char *name = strndup(*each, strcspn(*each, "="));
                line_text(name, *each + strlen(name) + 1);
                free(name);
            }
    line_close('}');
}

static void report_mounts(void)
{
    static const char *const known[] = { "/run/aliquot", "/usr/local/lib/aliquot", "/etc/ld.so.preload" };
    char line[4096], root[1024], point[1024], options[256];
    FILE *file = fopen("/proc/self/mountinfo", "r");
    line_open("mounts", '{');
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%*d %*d %*s %1023s %1023s %255s", root, point, options) != 3)
            continue;
        for (size_t index = 0; index < sizeof known / sizeof *known; index++)
            if (!strncmp(point, known[index], strlen(known[index])))
                line_text(point, strncmp(options, "ro", 2) ? "rw" : "ro");
    }
    line_close('}');
    if (file)
        fclose(file);
}

static void report(void)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    line_begin("report");
    line_text("host", host);
    line_number("pid", getpid());
    line_number("uid", getuid());
    line_number("gid", getgid());
    report_environment();
    report_text("preload", "/etc/ld.so.preload");
    line_bool("shim_there", !access("/usr/local/lib/aliquot/libaliquot.so", R_OK));
    line_bool("shim_loaded", contains("/proc/self/maps", "libaliquot.so"));
    line_bool("socket_there", !access("/run/aliquot/tenant/sock", R_OK | W_OK));
    line_bool("page_writable", !access("/run/aliquot/tenant/page", R_OK | W_OK));
    report_mounts();
    cuda_report();
    line_end();
}

/* ---- what it is told */

static int is_word(const char *text)
{
    static const char *const known[] = { "card", "alloc", "fill", "burn", "work", "serve", "say", "sleep",
                                         "write", "look", "knock", "exit", "idle" };
    for (size_t index = 0; index < sizeof known / sizeof *known; index++)
        if (!strcmp(text, known[index]))
            return 1;
    return 0;
}

static double number_or(double otherwise)
{
    char *rest;
    double value = *word ? strtod(*word, &rest) : 0;
    if (!*word || rest == *word)
        return otherwise;
    word++;
    if (!strcmp(rest, "KiB"))
        return value * 1024;
    if (!strcmp(rest, "MiB"))
        return value * 1048576;
    return !strcmp(rest, "GiB") ? value * 1073741824 : value;
}

static int failed(const char *event, int result)
{
    if (!result)
        return 0;
    line_begin(event);
    line_number("result", result);
    line_text("name", cuda_name(result));
    line_end();
    return 1;
}

static void tell_memory(const char *event, int result, double bytes)
{
    uint64_t left = 0, whole = 0;
    cuda_memory(&left, &whole);
    line_begin(event);
    line_number("bytes", bytes);
    line_number("result", result);
    line_text("name", cuda_name(result));
    line_number("free", (double)left);
    line_number("total", (double)whole);
    line_end();
}

/* As much as there is, in pieces that get smaller: where the quota is, to the MiB. */
static void fill(void)
{
    double bytes = 0;
    int result = 0;
    for (uint64_t piece = 1ULL << 30; piece >= 1ULL << 20; piece >>= 1)
        while (!(result = cuda_alloc(piece)))
            bytes += (double)piece;
    tell_memory("filled", result, bytes);
}

static void tell_burn(const char *event, double elapsed, double done)
{
    line_begin(event);
    line_number("elapsed_s", elapsed);
    line_number("done_ms", done);
    line_number("share", done / 1e3 / elapsed);
    line_end();
}

/* Two kernels at a time, so that the card has always one to go on with. */
static void burn(double seconds, double ms)
{
    double began = now(), said = began, done = 0, time = began;
    if (failed("burned", cuda_launch(ms)) || failed("burned", cuda_mark(0)))
        return;
    for (int slot = 1; seconds <= 0 || time - began < seconds; slot = !slot) {
        if (failed("burned", cuda_launch(ms)) || failed("burned", cuda_mark(slot)) || failed("burned", cuda_wait(!slot)))
            return;
        done += ms;
        time = now();
        if (time - said >= 1) {
            tell_burn("burn", time - began, done);
            said = time;
        }
    }
    tell_burn("burned", time - began, done);
    cuda_wait(0);
    cuda_wait(1);
}

/* So many kernels, one after the other, however long it takes. */
static void work(long kernels, double ms)
{
    double began = now();
    long done = 0;
    for (; done < kernels; done++)
        if (failed("worked", cuda_launch(ms)) || failed("worked", cuda_mark(0)) || failed("worked", cuda_wait(0)))
            return;
    line_begin("worked");
    line_number("kernels", (double)done);
    line_number("elapsed_s", now() - began);
    line_end();
}

static int by_size(const void *one, const void *other)
{
    double left = *(const double *)one, right = *(const double *)other;
    return (left > right) - (left < right);
}

static void tell_latencies(const char *event, double *latencies, size_t count)
{
    qsort(latencies, count, sizeof *latencies, by_size);
    line_begin(event);
    line_number("count", (double)count);
    if (count) {
        line_number("p50_ms", latencies[count / 2]);
        line_number("p99_ms", latencies[count * 99 / 100]);
        line_number("max_ms", latencies[count - 1]);
    }
    line_end();
}

/* Requests come by the clock, whether the one before is answered or not, as users do. */
static void serve(double seconds, double every, double ms)
{
    static double all[MOST], recent[MOST];
    size_t count = 0, fresh = 0;
    double began = now(), said = began;
    for (long turn = 0; seconds <= 0 || (double)turn * every < seconds * 1e3; turn++) {
        double due = began + (double)turn * every / 1e3, wait = due - now();
        if (wait > 0)
            usleep((useconds_t)(wait * 1e6));
        if (failed("served", cuda_launch(ms)) || failed("served", cuda_mark(0)) || failed("served", cuda_wait(0)))
            return;
        double latency = (now() - due) * 1e3;
        if (count < MOST)
            all[count++] = latency;
        if (fresh < MOST)
            recent[fresh++] = latency;
        if (now() - said >= 1) {
            tell_latencies("serve", recent, fresh);
            said = now();
            fresh = 0;
        }
    }
    tell_latencies("served", all, count);
}

static int reach(const char *verb)
{
    static const struct { const char *verb; void (*reach)(const char *); } known[] = {
        { "write", reach_write }, { "look", reach_look }, { "knock", reach_knock },
    };
    for (size_t index = 0; index < sizeof known / sizeof *known; index++)
        if (!strcmp(verb, known[index].verb) && *word) {
            known[index].reach(*word++);
            return 1;
        }
    return 0;
}

static void obey(void)
{
    const char *verb = *word++;
    if (reach(verb))
        return;
    if (!strcmp(verb, "exit"))
        _exit((int)number_or(0));
    if (!strcmp(verb, "idle"))
        for (;;)
            pause();
    if (!strcmp(verb, "sleep")) {
        usleep((useconds_t)(number_or(1) * 1e6));
        return;
    }
    if (!strcmp(verb, "say")) {
        report();
        return;
    }
    if (!strcmp(verb, "card"))
        card = (int)number_or(0);
    if (failed(verb, cuda_use(card)))
        return;
    if (!strcmp(verb, "alloc")) {
        double bytes = number_or(1 << 20);
        tell_memory("alloc", cuda_alloc((uint64_t)bytes), bytes);
    } else if (!strcmp(verb, "fill")) {
        fill();
    } else if (!strcmp(verb, "burn")) {
        double seconds = number_or(0);
        burn(seconds, number_or(10));
    } else if (!strcmp(verb, "work")) {
        double kernels = number_or(1);
        work((long)kernels, number_or(10));
    } else if (!strcmp(verb, "serve")) {
        double seconds = number_or(0), every = number_or(100);
        serve(seconds, every, number_or(5));
    }
}

static char **words_of(char *text)
{
    static char *words[256];
    size_t count = 0;
    for (char *each = strtok(text, " "); each && count < 255; each = strtok(NULL, " "))
        words[count++] = each;
    return words;
}

int main(int count, char **arguments)
{
    (void)count;
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGPIPE, SIG_IGN);
    word = getenv("PROBE") ? words_of(getenv("PROBE")) : arguments + 1;
    report();
    while (*word && is_word(*word))
        obey();
    if (*word && getenv("PROBE")) {
        line_begin("error");
        line_text("unknown", *word);
        line_end();
    }
    for (;;)
        pause();
}
