/* core.c - is there a tenant at all; files that may be closed under us; one line on stderr; and what a fork forgets. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "shim.h"

#define HIGH 512    /* our files live above this: programs use small numbers, select() only those to 1024 */

/* For `aliquot doctor`: which layout of the page and which messages this library knows. */
extern const uint32_t aliquot_abi_version;
__attribute__((visibility("default"))) const uint32_t aliquot_abi_version = ALQ_VERSION;

int alq_mode;
static char directory[512];

uint64_t alq_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void alq_sleep_ms(long ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

void alq_say(const char *format, ...)
{
    int saved = errno;
    char line[768] = "aliquot: ";
    va_list values;
    va_start(values, format);
    int n = vsnprintf(line + 9, sizeof line - 10, format, values);
    va_end(values);
    size_t length = 9 + (n < 0 ? 0 : (size_t)n > sizeof line - 11 ? sizeof line - 11 : (size_t)n);
    line[length++] = '\n';
    if (write(2, line, length) < 0) { /* nowhere to say it */ }
    errno = saved;
}

/* ---- files ---- */

/* struct stat is the kernel's own on the machines we build for; libc's fstat has several names over the years. */
static bool identity(int fd, struct stat *out)
{
    return fd >= 0 && syscall(SYS_fstat, fd, out) == 0;
}

uint64_t alq_file_size(const struct alq_file *file)
{
    struct stat s;
    return identity(file->fd, &s) && s.st_size > 0 ? (uint64_t)s.st_size : 0;
}

bool alq_file_ours(const struct alq_file *file)
{
    struct stat s;
    return identity(file->fd, &s) && s.st_dev == file->dev && s.st_ino == file->ino;
}

struct alq_file alq_file_high(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    if (high < 0)
        high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    struct stat s;
    if (!identity(high, &s))
        return (struct alq_file){ .fd = -1 };
    return (struct alq_file){ .fd = high, .dev = s.st_dev, .ino = s.st_ino };
}

void alq_file_close(struct alq_file *file)
{
    if (file->fd >= 0 && alq_file_ours(file))
        close(file->fd);
    file->fd = -1;
}

/* ---- is there a tenant? ---- */

static void forget_all(void)
{
    alq_page_forget();
    alq_book_forget();
    alq_pools_forget();
    alq_graphs_forget();
    alq_exports_forget();
    alq_observe_forget();
    alq_link_forget();
    alq_movable_forget();
    alq_handles_forget();
    alq_mover_forget();
    alq_parking_forget();
    alq_captures_forget();
    alq_work_forget();
    alq_ordered_forget();
}

/* pthread_atfork is a stub in each library on glibc and a function on musl: take whichever the process has. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

/* Where a Pod's containers find their tenant. Programs that were started with an environment of their own (cron, sshd,
 * `env -i`) are of the Pod all the same; nobody but the runtime can put a folder there. */
#define POD "/run/aliquot/tenant"

/* Without a lock: threads that look at the same time find and write the same. */
int alq_look(void)
{
    static int registered;
    int saved = errno;
    const char *value = secure_getenv("ALIQUOT_TENANT");    /* not in set-uid programs: they trust no path of ours */
    if ((!value || !*value) && access(POD "/page", F_OK) == 0)
        value = POD;
    int mode = value && *value ? 2 : 1;
    if (mode == 2) {
        /* a path too long cannot be the daemon's own; cut, it names nothing, and memory is refused */
        snprintf(directory, sizeof directory, "%s", value);
        if (!__atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED)) {
            if (__register_atfork)
                __register_atfork(NULL, NULL, forget_all, NULL);
            else if (pthread_atfork)
                pthread_atfork(NULL, NULL, forget_all);
        }
    }
    __atomic_store_n(&alq_mode, mode, __ATOMIC_RELEASE);
    errno = saved;
    return mode;
}

const char *alq_path(void)
{
    return directory;
}
