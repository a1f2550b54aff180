/* next.c - another preloaded library that wraps a function of libc by RTLD_NEXT, and looks our names up as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

__attribute__((visibility("default"))) int sched_yield(void)
{
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "sched_yield");    /* finding ourselves would not end */
    return next == sched_yield ? -1 : next() + 1000;
}
