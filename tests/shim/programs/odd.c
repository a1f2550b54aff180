/* odd.c - a library that counts malloc, as allocators that are preloaded do; and (-DPROGRAM) a program without CUDA. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef PROGRAM
int main(void) { char *p = malloc(100); strcpy(p, "plain words"); puts(p); free(p); return 6; }
#else
static void *(*real_malloc)(size_t);
static unsigned long calls;
void *malloc(size_t n)
{
    if (!real_malloc)
        *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    return real_malloc(n);
}
__attribute__((destructor)) static void end(void) { if (getenv("ODD")) { dprintf(1, "malloc was called: %d\n", calls > 0); } }
#endif
