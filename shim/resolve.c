/* resolve.c - how programs find the driver's functions, and how they find our wrappers instead.
 *
 * Three ways lead to the driver: linking (-lcuda: the dynamic linker finds our exports first), dlsym on a dlopen'ed
 * libcuda, and cuGetProcAddress. In the last two the real lookup is done first and what it *returned* is replaced: the
 * pointer is compared with the addresses that libcuda itself gives to the symbols of hooks.def. So a wrapper always has
 * the ABI of the function it stands for, whatever name, version and flags were asked for; and a symbol of the same name
 * from another library is left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include "shim.h"

/* A sanitizer looks its own functions up with our dlsym, before it can check anything. */
#define EARLY __attribute__((no_sanitize("address", "undefined")))

typedef void *dlsym_fn(void *handle, const char *name);
static dlsym_fn *real_dlsym;

#define DECLARE(symbol, name, ptsz, ...) extern fn_##name symbol;
#define ENTRY(symbol, ...) { #symbol, (void *)symbol, NULL, false },
#define HELD(symbol, ...) { #symbol, (void *)symbol, NULL, true },
#define GATE(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define NOTE(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define COPY(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define WAIT(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define QUERY(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define TOUCH(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define WORD(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#define BODY(name, kinds, ...) ALQ_##kinds(DECLARE, name, )
#include "hooks.def"

struct alq_symbol alq_symbols[ALQ_SYMBOLS] = {
#define GATE(name, kinds, ...) ALQ_##kinds(ENTRY, name)
#define NOTE(name, kinds, ...) ALQ_##kinds(ENTRY, name)
#define COPY(name, kinds, ...) ALQ_##kinds(ENTRY, name)
#define WAIT(name, kinds, ...) ALQ_##kinds(HELD, name)
#define QUERY(name, kinds, ...) ALQ_##kinds(HELD, name)
#define TOUCH(name, kinds, ...) ALQ_##kinds(ENTRY, name)
#define WORD(name, kinds, ...) ALQ_##kinds(ENTRY, name)
#define BODY(name, kinds, ...) ALQ_##kinds(ENTRY, name)
#include "hooks.def"
#define ASK(name, params) { #name, NULL, NULL, false },
#include "hooks.def"
};

/* Stands where the driver has no such function. Called through other types: its arguments are the caller's business. */
static int missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- the real dlsym ---- */

extern void *dlvsym(void *handle, const char *name, const char *version) __attribute__((weak)); /* musl has none */

/* dl_iterate_phdr: looks `dlsym` up in each library but our own, by hand. Only for a C library without dlvsym. */
EARLY static int find_dlsym(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        ElfW(Addr) start = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && (ElfW(Addr))&find_dlsym - start < p->p_memsz)
            return 0;   /* ourselves */
        if (p->p_type != PT_DYNAMIC)
            continue;
        for (const ElfW(Dyn) *d = (const ElfW(Dyn) *)start; d->d_tag != DT_NULL; d++) {
            /* glibc has relocated these pointers already, musl has not */
            ElfW(Addr) at = d->d_un.d_ptr < info->dlpi_addr ? info->dlpi_addr + d->d_un.d_ptr : d->d_un.d_ptr;
            if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)at;
            if (d->d_tag == DT_STRTAB) names = (const char *)at;
            if (d->d_tag == DT_HASH) hash = (const uint32_t *)at;
        }
    }
    if (!symbols || !names || !hash)
        return 0;
    for (uint32_t i = 0; i < hash[1]; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && !strcmp(names + symbols[i].st_name, "dlsym")) {
            *(void **)out = (void *)(info->dlpi_addr + symbols[i].st_value);
            return 1;
        }
    return 0;
}

EARLY static dlsym_fn *the_real_dlsym(void)
{
    dlsym_fn *found = __atomic_load_n(&real_dlsym, __ATOMIC_ACQUIRE);
    if (found)
        return found;
    static const char *const versions[] = { "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5" };
    void *address = NULL;
    for (unsigned i = 0; dlvsym && !address && i < sizeof versions / sizeof *versions; i++)
        address = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    dlerror();          /* of a version that this libc does not have */
    if (!address)
        dl_iterate_phdr(find_dlsym, &address);
    found = (dlsym_fn *)address;
    __atomic_store_n(&real_dlsym, found, __ATOMIC_RELEASE);
    return found;
}

void *alq_next(const char *name)
{
    dlsym_fn *look = the_real_dlsym();
    return look ? look(RTLD_NEXT, name) : NULL;
}

/* ---- the real functions ---- */

/* The loaded driver (or NVML), or NULL. Never loads it: whoever calls a hook has it. The handle is kept, so that the
 * library stays as long as its addresses are in the table. */
static void *library_of(const char *symbol)
{
    static void *handles[2];
    bool nvml = symbol[0] == 'n';
    void *handle = __atomic_load_n(&handles[nvml], __ATOMIC_ACQUIRE);
    if (!handle) {
        handle = dlopen(nvml ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        __atomic_store_n(&handles[nvml], handle, __ATOMIC_RELEASE);
    }
    return handle;
}

static void resolve_one(void *library, dlsym_fn *look, struct alq_symbol *symbol)
{
    void *real = look(library, symbol->name);
    if (!real || real == symbol->wrapper)       /* a "libcuda" that only forwards would call us for ever */
        real = (void *)missing;
    __atomic_store_n(&symbol->real, real, __ATOMIC_RELEASE);
}

/* In a tenant the library's functions are all found at the first call, which holds no lock of ours: dlsym waits for whoever
 * is loading a library just then, and a constructor of that one may call a hook, and so wait for a lock of ours. For the
 * same reason nothing is locked here: threads that come at the same time find and write the same. */
void *alq_resolve(enum alq_index at)
{
    struct alq_symbol *wanted = &alq_symbols[at];
    int saved = errno;
    void *library = library_of(wanted->name);
    dlsym_fn *look = the_real_dlsym();
    if (library && look) {
        for (int i = 0; alq_on() && i < ALQ_SYMBOLS; i++)
            if ((alq_symbols[i].name[0] == 'n') == (wanted->name[0] == 'n'))
                resolve_one(library, look, &alq_symbols[i]);
        if (!alq_on())
            resolve_one(library, look, wanted);
        dlerror();                              /* the program did not ask, so it shall not hear of it */
    }
    errno = saved;
    void *real = __atomic_load_n(&wanted->real, __ATOMIC_ACQUIRE);
    return real ? real : (void *)missing;
}

/* ---- from a real function to its wrapper ---- */

#define BUCKETS 4096                            /* a power of two, several times ALQ_HOOKS */
_Static_assert(ALQ_HOOKS * 3 < BUCKETS, "the map of wrappers is too full");
static uint16_t buckets[BUCKETS];               /* index + 1; 0: empty */
static int map_filled;

static unsigned bucket_of(const void *p)
{
    return (unsigned)(((uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15ull) >> 32) & (BUCKETS - 1);
}

/* No pthread_once: it would be held over dlsym (see alq_resolve). Threads that fill at the same time do so in the same order,
 * and each function has one place that only the first of them takes. */
static void fill_map(void)
{
    for (int i = 0; i < ALQ_HOOKS; i++) {
        void *real = alq_symbols[i].name[0] == 'n' ? (void *)missing : alq_real_at(i);  /* it knows nothing of NVML */
        for (unsigned b = bucket_of(real); real != (void *)missing; b = (b + 1) & (BUCKETS - 1)) {
            uint16_t there = 0;                 /* two names of one function: the first line of the table wins */
            if (__atomic_compare_exchange_n(&buckets[b], &there, (uint16_t)(i + 1), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                alq_symbols[there - 1].real == real)
                break;
        }
    }
    __atomic_store_n(&map_filled, 1, __ATOMIC_RELEASE);
}

/* The wrapper of a function of the driver; the function itself when it has none. */
static void *wrapper_of(void *real)
{
    if (!library_of("cu"))
        return real;
    if (!__atomic_load_n(&map_filled, __ATOMIC_ACQUIRE))
        fill_map();
    for (unsigned b = bucket_of(real); buckets[b]; b = (b + 1) & (BUCKETS - 1))
        if (alq_symbols[buckets[b] - 1].real == real)
            return alq_symbols[buckets[b] - 1].wrapper;
    return real;
}

static int hook_named(const char *name)
{
    for (int i = 0; i < ALQ_HOOKS; i++)
        if (!strcmp(alq_symbols[i].name, name))
            return i;
    return -1;
}

/* Whether a function of that name, in any version, does something that is limited; those that only answer do not. */
static bool is_limited(const char *name)
{
    static const char *const answers[] = { "MemGetInfo", "TotalMem", "GetAttribute", "GetAddressRange", "GetAccess", "GetLocationInfo" };
    int at = hook_named(name);
    bool limited = at >= 0 && !alq_symbols[at].held;
    for (unsigned i = 0; limited && i < sizeof answers / sizeof *answers; i++)
        limited = !strstr(name, answers[i]);
    return limited;
}

/* What the driver's own lookup found becomes our wrapper. A function of a hooked name that is none of those we know is a
 * version newer than this table: it is used as it is, and said once where it is beyond control. */
static void replace(const char *name, void **found)
{
    static int said;
    void *wrapper = wrapper_of(*found);
    if (wrapper == *found && is_limited(name) && !__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        alq_say("this driver has a %s that is newer than this library: what is done through it is not limited.", name);
    *found = wrapper;
}

int alq_cuGetProcAddress(fn_cuGetProcAddress *real, int ptsz, const char *name, void **found, int version, uint64_t flags)
{
    (void)ptsz;
    int result = real(name, found, version, flags);
    if (result == CUDA_SUCCESS && found && *found)
        replace(name, found);
    return result;
}

int alq_cuGetProcAddress_v2(fn_cuGetProcAddress_v2 *real, int ptsz, const char *name, void **found, int version,
                            uint64_t flags, int *status)
{
    (void)ptsz;
    int result = real(name, found, version, flags, status);
    if (result == CUDA_SUCCESS && found && *found)
        replace(name, found);
    return result;
}

/* ---- dlsym ---- */

/* A hooked name that the driver has not, or there is no driver: the lookup would find our export, and the program would
 * believe that there is a GPU, or a newer driver. A name that nobody has gives NULL and a dlerror. */
static void *dlsym_absent(void *handle, const char *name)
{
    (void)name;
    return the_real_dlsym()(handle, "(not in the GPU driver, or its library is not loaded)");
}

/* dlsym of a hooked name on a handle: the real answer, replaced when it is the driver's own function. */
static void *dlsym_hooked(void *handle, const char *name)
{
    int at = hook_named(name);
    void *real = alq_real_at(at);               /* before the program's own lookup: dlerror must be that one's */
    void *found = the_real_dlsym()(handle, name);
    if (found == alq_symbols[at].wrapper && real == (void *)missing)    /* the handle is the program's own: dlopen(NULL) */
        return dlsym_absent(handle, name);
    return found && found == real ? alq_symbols[at].wrapper : found;
}

static void *dlsym_without_libc(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

/* Which function shall answer this dlsym. Not inlined, so that dlsym itself has nothing to undo before its jump. */
EARLY __attribute__((noinline, used)) static dlsym_fn *route(void *handle, const char *name)
{
    int saved = errno;
    dlsym_fn *real = the_real_dlsym(), *answer = real ? real : dlsym_without_libc;
    bool driver = name && real && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    bool nvml = name && real && name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l';
    int at = (driver || nvml) && handle != RTLD_NEXT ? hook_named(name) : -1;
    if (at >= 0 && handle != RTLD_DEFAULT)
        answer = alq_on() ? dlsym_hooked : real;
    else if (at >= 0 && alq_real_at(at) == (void *)missing)
        answer = dlsym_absent;
    errno = saved;
    return answer;
}

/* The libc's dlsym looks at its return address to know whose RTLD_NEXT is meant. So it must be jumped to, not called:
 * an ordinary call would make every RTLD_NEXT ours, and programs would find themselves. */
#if defined(__has_attribute)
#if __has_attribute(musttail)
#define HAVE_MUSTTAIL 1
#endif
#endif
#ifdef HAVE_MUSTTAIL
ALQ_EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    dlsym_fn *answer = route(handle, name);
    __attribute__((musttail)) return answer(handle, name);
}
#elif defined(__x86_64__)
__asm__(".text\n.globl dlsym\n.type dlsym,@function\ndlsym:\n"
        "endbr64\npush %rdi\npush %rsi\nsub $8,%rsp\n"
        "call route\n"
        "add $8,%rsp\npop %rsi\npop %rdi\njmp *%rax\n"
        ".size dlsym,.-dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl dlsym\n.type dlsym,%function\ndlsym:\n"
        "hint #34\nstp x29,x30,[sp,#-32]!\nstp x0,x1,[sp,#16]\n"
        "bl route\n"
        "mov x16,x0\nldp x0,x1,[sp,#16]\nldp x29,x30,[sp],#32\nbr x16\n"
        ".size dlsym,.-dlsym\n");
#else
#error "dlsym needs a tail call here: write the jump for this machine"
#endif
