/* probe.c - a program linked with -lcuda: says for each symbol of hooks.def which library the ways to it lead to.
 *     probe linked | dlsym | proc | proc-ptds | next      one line per symbol: NAME LIBRARY
 *     probe late LIBRARY      loads a library whose constructor asks the driver, while another thread does so too
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "shim.h"

#define DECLARE(symbol, name, ...) extern fn_##name symbol;
#define SYMBOL(symbol, name, ptsz) { #symbol, #name, ptsz, (void *)symbol },
#define GATE(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define NOTE(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define COPY(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define WAIT(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define QUERY(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define TOUCH(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define WORD(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define BODY(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#include "hooks.def"
extern int cuInit(unsigned);

static struct { const char *symbol, *name; int ptsz; void *linked; } all[] = {
#define LINE(symbol, name, ptsz, ...) SYMBOL(symbol, name, ptsz)
#define GATE(name, kinds, ...) ALQ_##kinds(LINE, name)
#define NOTE(name, kinds, ...) ALQ_##kinds(LINE, name)
#define COPY(name, kinds, ...) ALQ_##kinds(LINE, name)
#define WAIT(name, kinds, ...) ALQ_##kinds(LINE, name)
#define QUERY(name, kinds, ...) ALQ_##kinds(LINE, name)
#define TOUCH(name, kinds, ...) ALQ_##kinds(LINE, name)
#define WORD(name, kinds, ...) ALQ_##kinds(LINE, name)
#define BODY(name, kinds, ...) ALQ_##kinds(LINE, name)
#include "hooks.def"
};

static void say(const char *what, void *address)
{
    Dl_info info = { .dli_fname = "-", .dli_sname = NULL };
    if (address)
        dladdr(address, &info);
    const char *file = strrchr(info.dli_fname, '/');
    printf("%s %s %s\n", what, file ? file + 1 : info.dli_fname, info.dli_sname ? info.dli_sname : "-");
}

static void *ask(void *unused)
{
    void *found = NULL;
    int status;
    (void)unused;
    usleep(30000);      /* the constructor is running */
    cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status);
    say("thread", found);
    return NULL;
}

static int late(const char *library)
{
    pthread_t thread;
    void *found;
    int status;
    cuGetProcAddress_v2("cuNoSuchThing", &found, 12000, 0, &status);    /* the lookup itself is known, what it finds is not */
    void *real = dlvsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuGetProcAddress_v2", "FAKE");
    ((fn_cuGetProcAddress_v2 *)real)("cuMemAlloc", &found, 12000, 0, &status);      /* straw has to look, a driver knows */
    if (pthread_create(&thread, NULL, ask, NULL) || !dlopen(library, RTLD_NOW))
        return 1;
    return pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "late"))
        return late(argv[2]);
    const char *way = argc > 1 ? argv[1] : "linked";
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY), *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY), *found;
    int status;
    fn_cuGetProcAddress_v2 *proc = (fn_cuGetProcAddress_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    cuInit(0);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        int is_nvml = all[i].symbol[0] == 'n';
        if (!strcmp(way, "linked"))
            say(all[i].symbol, all[i].linked);
        else if (!strcmp(way, "dlsym"))
            say(all[i].symbol, dlsym(is_nvml ? nvml : driver, all[i].symbol));
        else if (!strcmp(way, "next"))      /* this program's own symbols come first, so the next are the shim's */
            say(all[i].symbol, dlsym(RTLD_NEXT, all[i].symbol));
        else if (!is_nvml) {
            static const int versions[] = { 2000, 11020, 12030, 13000 };
            for (unsigned v = 0; v < 4; v++) {
                found = NULL;
                if (!proc(all[i].name, &found, versions[v], !strcmp(way, "proc-ptds") ? 2 : 1, &status) && found)
                    say(all[i].name, found);
            }
        }
    }
    if (!strncmp(way, "proc", 4)) {
        say("empty", proc("", &found, 12000, 0, &status) ? NULL : found);
        say("cuInit", proc("cuInit", &found, 12000, 0, &status) ? NULL : found);
        say("cuNoSuchThing", proc("cuNoSuchThing", &found, 12000, 0, &status) ? NULL : found);
    }
    return 0;
}
