/* cuda.c - a driver of straw, for the tests of the shim: every symbol of hooks.def, calls counted, memory in a ledger.
 *
 * It knows just enough: two cards, contexts, capturing streams, pools that keep what is freed until a wait or a trim,
 * graphs that take their memory at launch. What the shim must not change is what it answers; what the shim adds is seen
 * on the page.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "shim.h"

#define PUBLIC __attribute__((visibility("default")))
#define CARDS 2
#define CARD_BYTES (64ull << 30)
#define INVALID_VALUE 1
#define INVALID_CONTEXT 201

static uint64_t calls[ALQ_HOOKS], taken[CARDS], next_address = 0x700000000000ull;
static int fail_next, waits;
static const char *const names[ALQ_HOOKS] = {
#define SYMBOL_NAME(symbol, ...) #symbol,
#define GATE(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#define NOTE(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#define COPY(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#define WAIT(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#define QUERY(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#define TOUCH(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#define WORD(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#define BODY(name, kinds, ...) ALQ_##kinds(SYMBOL_NAME, name)
#include "hooks.def"
};

/* ---- for the tests ---- */
PUBLIC uint64_t fake_calls(const char *symbol)
{
    for (int i = 0; i < ALQ_HOOKS; i++)
        if (!strcmp(names[i], symbol))
            return calls[i];
    return UINT64_MAX;
}
PUBLIC const char *fake_name(int i) { return i < ALQ_HOOKS ? names[i] : NULL; }
PUBLIC uint64_t fake_taken(int card) { return taken[card]; }
PUBLIC void fake_fail_next(int result) { fail_next = result; }
/* attributes answer this result, as they may while a stream captures */
static int forbidden;
PUBLIC void fake_forbid(int result) { forbidden = result; }
/* a kernel failed: what waits and what allocates or asks answers this from now on; pieces do not ask the context */
static int fault;
PUBLIC void fake_fault(int result) { fault = result; }
/* calls that end something take so long to return, after it is gone; and how often a pool was asked after its end */
static int linger_ms, asked_dead;
PUBLIC void fake_linger(int ms) { linger_ms = ms; }
PUBLIC int fake_asked_dead(void) { return asked_dead; }
static void linger(void) { usleep((unsigned)linger_ms * 1000); }
PUBLIC int fake_waits(void) { return waits; }
/* the next waits last until the file "go" is in the tenant's folder */
static int hold;
PUBLIC void fake_hold(int on) { hold = on; }
static void until_go(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/go", getenv("ALIQUOT_TENANT"));
    while (access(path, F_OK))
        usleep(2000);
}
static void held_up(void) { if (hold) until_go(); }

/* ---- the ledger ---- */
static int grab(int card, uint64_t n)
{
    int failed = __atomic_exchange_n(&fail_next, 0, __ATOMIC_RELAXED);
    if (failed)
        return failed;
    if (!n || n > CARD_BYTES - taken[card])
        return n ? CUDA_ERROR_OUT_OF_MEMORY : INVALID_VALUE;
    __atomic_fetch_add(&taken[card], n, __ATOMIC_RELAXED);
    return 0;
}
static uint64_t address(uint64_t n) { return __atomic_fetch_add(&next_address, (n + 0x1fffff) & ~0x1fffffull, __ATOMIC_RELAXED); }

#define THINGS 65536
struct thing { uint64_t key, n, size; int card, refs, maps, files; void *owner; char kind; };
static struct thing things[THINGS];
static struct thing *thing(char kind, uint64_t key)
{
    for (int i = 0; i < THINGS; i++)
        if (things[i].kind == kind && things[i].key == key)
            return &things[i];
    return NULL;
}
static struct thing *new_thing(char kind, uint64_t key, uint64_t n, int card, void *owner)
{
    for (int i = 0; i < THINGS; i++) {
        char none = 0;
        if (__atomic_compare_exchange_n(&things[i].kind, &none, 'x', 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            things[i] = (struct thing){ .key = key, .n = n, .card = card, .refs = 1, .owner = owner, .kind = kind };
            return &things[i];
        }
    }
    return NULL;
}
static void end_thing(struct thing *t) { __atomic_fetch_sub(&taken[t->card], t->n, __ATOMIC_RELAXED); t->kind = 0; }

/* ---- contexts ---- */
static __thread void *current;
static struct { int device, refs; } primary[CARDS] = { { 0, 0 }, { 1, 0 } };
enum { DESTROYED = -7 };        /* stands where a context has its device */
static int device_of(void *context) { return context ? *(int *)context : -1; }
static void end_context(void *context)
{
    for (int i = 0; i < THINGS; i++)
        if (things[i].owner == context && (things[i].kind == 'm' || things[i].kind == 'a'))
            end_thing(&things[i]);
}
PUBLIC int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }
PUBLIC int cuDeviceGetCount(int *n) { *n = CARDS; return 0; }
PUBLIC int cuDeviceGet(int *d, int i) { *d = i; return i < 0 || i >= CARDS ? 101 : 0; }
PUBLIC int cuDeviceGetUuid(CUuuid *u, int d) { if (d < 0 || d >= CARDS) return 101; memset(u, 0x11 * (d + 1), sizeof *u); return 0; }
PUBLIC int cuDeviceGetUuid_v2(CUuuid *u, int d) { return cuDeviceGetUuid(u, d); }
PUBLIC int cuCtxCreate_v2(void **c, unsigned flags, int d) { (void)flags; int *p = malloc(sizeof *p); *p = d; *c = current = p; return 0; }
/* On a card this crashes where the context was destroyed. */
static int is_ended(void *c) { return device_of(c) == DESTROYED || (c == &primary[0] && !primary[0].refs) || (c == &primary[1] && !primary[1].refs); }
PUBLIC int cuCtxSetCurrent(void *c) { if (c && is_ended(c)) abort(); current = c; return 0; }
PUBLIC int cuCtxGetCurrent(void **c) { *c = current; return 0; }
PUBLIC int cuCtxGetDevice(int *d) { *d = device_of(current); return current ? 0 : INVALID_CONTEXT; }
PUBLIC int cuCtxGetDevice_v2(int *d, void *c) { *d = device_of(c ? c : current); return c || current ? 0 : INVALID_CONTEXT; }
/* of a driver that is newer than the table */
PUBLIC int cuLaunchKernel_v2(void) { return 0; }
PUBLIC int cuMemPoolGetAttribute_v2(void) { return 0; }
PUBLIC int cuStreamQuery_v2(void) { return 0; }
PUBLIC int cuStreamIsCapturing_v2(void) { return 0; }
PUBLIC int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { *flags = 0; *active = primary[d].refs > 0; return 0; }
static int fake_cuDevicePrimaryCtxRetain(void **c, int d) { primary[d].refs++; *c = &primary[d]; return 0; }
static int fake_cuDevicePrimaryCtxRelease(int d) { if (--primary[d].refs == 0) end_context(&primary[d]); return 0; }
static int fake_cuDevicePrimaryCtxRelease_v2(int d) { return fake_cuDevicePrimaryCtxRelease(d); }
static void set_dead(int d, int dead);
static int fake_cuDevicePrimaryCtxReset(int d) { primary[d].refs = 0; end_context(&primary[d]); set_dead(d, 1); linger(); set_dead(d, 0); return 0; }
static int fake_cuDevicePrimaryCtxReset_v2(int d) { return fake_cuDevicePrimaryCtxReset(d); }
static int fake_cuCtxDestroy_v2(void *c) { end_context(c); *(int *)c = DESTROYED; if (current == c) current = NULL; return 0; }
static int fake_cuCtxDestroy(void *c) { return fake_cuCtxDestroy_v2(c); }
/* A green context is its context here. */
PUBLIC int cuCtxFromGreenCtx(void **c, void *green) { *c = green; return 0; }
static int fake_cuGreenCtxDestroy(void *green) { return fake_cuCtxDestroy_v2(green); }

/* At once: all work before it is done here. */
static int fake_cuLaunchHostFunc(void *stream, void (*call)(void *), void *with) { (void)stream; call(with); return 0; }

/* ---- plain memory and arrays ---- */
static int make(char kind, uint64_t n, uint64_t *key)
{
    int card = device_of(current), result = card < 0 ? INVALID_CONTEXT : grab(card, n);
    if (result || !key)
        return result ? result : INVALID_VALUE;
    *key = address(n);
    new_thing(kind, *key, n, card, current);
    return 0;
}
static int unmake(char kind, uint64_t key)
{
    struct thing *t = thing(kind, key);
    if (t)
        end_thing(t);
    return t ? 0 : INVALID_VALUE;
}
static int fake_cuMemAlloc_v2(CUdeviceptr *p, size_t n) { return fault ? fault : make('m', n, p); }
static int fake_cuMemAlloc(uint32_t *p, unsigned n) { uint64_t k; int r = make('m', n, &k); *p = (uint32_t)k; if (!r) thing('m', k)->key = *p; return r; }
static int fake_cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags) { (void)flags; return make('m', n, p); }
static int fake_cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned e)
{ (void)e; *pitch = (w + 1023) / 1024 * 1024; return make('m', *pitch * h, p); }     /* wider than the shim guesses */
static int fake_cuMemAllocPitch(uint32_t *p, unsigned *pitch, unsigned w, unsigned h, unsigned e)
{ size_t q; uint64_t k; int r = fake_cuMemAllocPitch_v2(&k, &q, w, h, e); *pitch = (unsigned)q; *p = (uint32_t)k; if (!r) thing('m', k)->key = *p; return r; }
static int pool_free(uint64_t p);
static int fake_cuMemFree_v2(CUdeviceptr p) { return p && unmake('m', p) ? pool_free(p) : 0; }
static int fake_cuMemFree(uint32_t p) { return unmake('m', p); }
static int make_array(uint64_t n, void **a) { uint64_t k; int r = make('a', n, &k); *a = (void *)k; return r; }
static int fake_cuArrayCreate(CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *d) { return make_array((uint64_t)d->width * d->height * d->channels, a); }
static int fake_cuArrayCreate_v2(CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d) { return make_array(d->width * d->height * d->channels, a); }
static int fake_cuArray3DCreate(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) { return make_array((uint64_t)d->width * d->height * d->depth, a); }
static int fake_cuArray3DCreate_v2(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d) { return make_array(d->width * d->height * d->depth, a); }
static int fake_cuMipmappedArrayCreate(void **a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) { (void)levels; return make_array(d->width * d->height, a); }
static int fake_cuArrayDestroy(CUarray a) { return unmake('a', (uintptr_t)a); }
static int fake_cuMipmappedArrayDestroy(void *a) { return unmake('a', (uintptr_t)a); }

/* ---- pieces ---- */
static int fake_cuMemCreate(CUmemHandle *h, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)flags;
    int card = prop->location.type == LOCATION_DEVICE ? prop->location.id : 0, host = prop->location.type != LOCATION_DEVICE;
    int result = host ? 0 : grab(card, n);
    if (!result) { *h = address(n); new_thing('p', *h, host ? 0 : n, card, NULL); }
    return result;
}
static void maybe_end(struct thing *t) { if (!t->refs && !t->maps && !t->files) end_thing(t); }
static int fake_cuMemRelease(CUmemHandle h) { struct thing *t = thing('p', h); if (!t || !t->refs) return INVALID_VALUE; t->refs--; maybe_end(t); return 0; }
static int fake_cuMemMap(CUdeviceptr p, size_t n, size_t at, CUmemHandle h, unsigned long long flags)
{ (void)at; (void)flags; struct thing *t = thing('p', h); if (!t) return INVALID_VALUE; t->maps++; struct thing *m = new_thing('v', p, 0, t->card, t); m->refs = (int)(n >> 20); return 0; }
static int fake_cuMemUnmap(CUdeviceptr p, size_t n)
{
    int found = 0;
    for (int i = 0; i < THINGS; i++)
        if (things[i].kind == 'v' && things[i].key >= p && things[i].key < p + n) {
            struct thing *t = things[i].owner; things[i].kind = 0; t->maps--; maybe_end(t); found = 1;
        }
    linger();
    return found ? 0 : INVALID_VALUE;
}
static int fake_cuMemSetAccess(CUdeviceptr p, size_t n, const void *access, size_t count) { (void)n; (void)access; (void)count; return thing('v', p) ? 0 : INVALID_VALUE; }
static int fake_cuMemRetainAllocationHandle(CUmemHandle *h, void *p)
{ struct thing *m = thing('v', (uintptr_t)p); if (!m) return INVALID_VALUE; struct thing *t = m->owner; t->refs++; *h = t->key; return 0; }
static int fake_cuMemImportFromShareableHandle(CUmemHandle *h, void *from, int type)
{ (void)type; struct thing *t = thing('p', (uintptr_t)from); if (t) { t->refs++; *h = t->key; return 0; } *h = address(1); new_thing('p', *h, 0, 0, NULL); return 0; }
static int fake_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemHandle h)
{ struct thing *t = thing('p', h); if (!t) return INVALID_VALUE; *prop = (CUmemAllocationProp){ .type = 1, .location = { LOCATION_DEVICE, t->card } }; return 0; }
PUBLIC int cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t align, CUdeviceptr near, unsigned long long flags)
{ (void)align; (void)near; (void)flags; *p = address(n); return 0; }
/* what is known of a pointer: only that the driver was asked, and which handle it was given */
static uint64_t last_handle;
PUBLIC uint64_t fake_last_handle(void) { return last_handle; }
static int fake_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p)
{ (void)p; if (attribute == 8) *(unsigned *)data = 0; return 0; }
static int fake_cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr p)
{ (void)attributes; (void)p; for (unsigned i = 0; i < count; i++) if (data[i]) *(unsigned *)data[i] = 77; return 0; }
static int bound(CUmemHandle h) { last_handle = h; return thing('p', h) ? 0 : INVALID_VALUE; }
static int fake_cuMulticastBindMem(CUmemHandle g, size_t to, CUmemHandle h, size_t at, size_t n, unsigned long long f)
{ (void)g; (void)to; (void)at; (void)n; (void)f; return bound(h); }
static int fake_cuMulticastBindMem_v2(CUmemHandle g, int d, size_t to, CUmemHandle h, size_t at, size_t n, unsigned long long f)
{ (void)d; return fake_cuMulticastBindMem(g, to, h, at, n, f); }
static int fake_cuMulticastBindAddr(CUmemHandle g, size_t to, CUdeviceptr p, size_t n, unsigned long long f)
{ (void)g; (void)to; (void)p; (void)n; (void)f; return 0; }
static int fake_cuMulticastBindAddr_v2(CUmemHandle g, int d, size_t to, CUdeviceptr p, size_t n, unsigned long long f)
{ (void)d; return fake_cuMulticastBindAddr(g, to, p, n, f); }
static int fake_cuLogicalEndpointBindMem(uint32_t e, int d, uint64_t to, CUmemHandle h, uint64_t at, uint64_t n, unsigned long long f)
{ (void)e; (void)d; return fake_cuMulticastBindMem(0, to, h, at, n, f); }
static int fake_cuLogicalEndpointBindAddr(uint32_t e, int d, uint64_t to, void *p, uint64_t n, unsigned long long f)
{ (void)e; (void)d; (void)to; (void)p; (void)n; (void)f; return 0; }
static int fake_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, void *s)
{
    (void)s;
    for (unsigned i = 0; i < count; i++) { struct thing *t = thing('p', list[i].handle); if (t) { t->maps += list[i].operation == OPERATION_MAP ? 1 : -1; maybe_end(t); } }
    return 0;
}

/* ---- what leaves the process: a file that holds it, which straw never sees closed ---- */
static int fake_cuMemExportToShareableHandle(void *out, CUmemHandle h, int type, unsigned long long flags)
{ (void)type; (void)flags; struct thing *t = thing('p', h); if (!t) return INVALID_VALUE; t->files++; *(int *)out = eventfd(0, EFD_CLOEXEC); return 0; }
static int fake_cuMemGetHandleForAddressRange(void *out, CUdeviceptr p, size_t n, int type, unsigned long long flags)
{ (void)p; (void)n; (void)type; (void)flags; *(int *)out = eventfd(0, EFD_CLOEXEC); return 0; }
static int fake_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    for (int i = 0; i < THINGS; i++)
        if (strchr("mvi", things[i].kind ? things[i].kind : 'x') && p >= things[i].key && p < things[i].key + (things[i].n ? things[i].n : things[i].size)) {
            *base = things[i].key; *size = things[i].n ? things[i].n : things[i].size; return 0;
        }
    return CUDA_ERROR_NOT_FOUND;
}
static int fake_cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p)
{ struct thing *t = thing('m', p); uint64_t about[3] = { p, (uint64_t)getpid(), t ? t->n : 0 }; memset(h, 0, sizeof *h); memcpy(h, about, sizeof about); return t ? 0 : INVALID_VALUE; }
static int open_other(CUdeviceptr *p, uint64_t n) { *p = address(n); new_thing('i', *p, 0, 0, NULL)->size = n; return 0; }
static int fake_cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle h, unsigned flags) { (void)flags; uint64_t about[3]; memcpy(about, &h, sizeof about); return open_other(p, about[2]); }
static int fake_cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned flags) { return fake_cuIpcOpenMemHandle(p, h, flags); }
static int fake_cuIpcCloseMemHandle(CUdeviceptr p) { struct thing *t = thing('i', p); if (!t) return INVALID_VALUE; t->kind = 0; return 0; }
static int fake_cuMemPoolExportToShareableHandle(void *out, void *pool, int type, unsigned long long flags)
{ (void)pool; (void)type; (void)flags; *(int *)out = eventfd(0, EFD_CLOEXEC); return 0; }
static int fake_cuMemPoolImportFromShareableHandle(void **pool, void *from, int type, unsigned long long flags)
{ (void)from; (void)type; (void)flags; *pool = calloc(1, 64); return 0; }
static int fake_cuMemPoolImportPointer(CUdeviceptr *p, void *pool, void *data) { (void)pool; return open_other(p, *(uint64_t *)data); }
static int fake_cuImportExternalMemory(void **m, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) { (void)desc; *m = malloc(8); return 0; }
static int fake_cuDestroyExternalMemory(void *m) { free(m); return 0; }
static int fake_cuCtxSetLimit(int limit, size_t value) { (void)limit; (void)value; return 0; }

/* ---- streams, only as far as they capture ---- */
struct stream { int capturing; void *graph; };
PUBLIC int cuStreamCreate(void **s, unsigned flags) { (void)flags; *s = calloc(1, sizeof(struct stream)); return 0; }
static int fake_cuStreamDestroy_v2(void *s) { free(s); return 0; }
static int fake_cuStreamDestroy(void *s) { return fake_cuStreamDestroy_v2(s); }
static int capturing(void *s, int *status) { *status = (uintptr_t)s > 2 /* not one of the driver's own */ ? ((struct stream *)s)->capturing : 0; return 0; }
PUBLIC int cuStreamIsCapturing(void *s, int *status) { return capturing(s, status); }
PUBLIC int cuStreamIsCapturing_ptsz(void *s, int *status) { return capturing(s, status); }
static int begin_capture(struct stream *t, void *graph) { t->capturing = 1; t->graph = graph; return 0; }
static int fake_cuStreamBeginCapture(void *s) { return begin_capture(s, calloc(1, 64)); }
static int fake_cuStreamBeginCapture_v2(void *s, int mode) { (void)mode; return begin_capture(s, calloc(1, 64)); }
static int fake_cuStreamBeginRecaptureToGraph(void *s, int mode, void *graph, void *callback, void *with)
{ (void)mode; (void)callback; (void)with; return begin_capture(s, graph); }
static int fake_cuStreamBeginCaptureToGraph(void *s, void *graph, void *const *after, const void *edges, size_t n, int mode)
{ (void)after; (void)edges; (void)n; (void)mode; return begin_capture(s, graph); }
static int fake_cuStreamEndCapture(void *s, void **graph) { struct stream *t = s; t->capturing = 0; *graph = t->graph; return 0; }
static int info(void *s, int *status, uint64_t *id, CUgraph *g, const CUgraphNode **a, size_t *n)
{ capturing(s, status); *id = 1; *g = s ? ((struct stream *)s)->graph : NULL; *a = NULL; *n = 0; return 0; }
PUBLIC int cuStreamGetCaptureInfo_v2(void *s, int *st, uint64_t *id, CUgraph *g, const CUgraphNode **a, size_t *n) { return info(s, st, id, g, a, n); }
PUBLIC int cuStreamGetCaptureInfo_v2_ptsz(void *s, int *st, uint64_t *id, CUgraph *g, const CUgraphNode **a, size_t *n) { return info(s, st, id, g, a, n); }
PUBLIC int cuThreadExchangeStreamCaptureMode(int *mode) { static __thread int now; int old = now; now = *mode; *mode = old; return 0; }

/* ---- events: done, unless a test says that work goes on ---- */
static int unfinished, events, event_waits;
PUBLIC void fake_unfinished(int on) { unfinished = on; }   /* below 0: until it was asked so often */
PUBLIC int fake_events(void) { return events; }             /* that were made and not destroyed */
PUBLIC int fake_event_waits(void) { return event_waits; }   /* of streams */
PUBLIC int cuEventCreate(void **e, unsigned flags) { (void)flags; events++; *e = malloc(1); return 0; }
PUBLIC int cuEventDestroy_v2(void *e) { events--; free(e); return 0; }
PUBLIC int cuEventRecord(void *e, void *s) { (void)e; (void)s; return 0; }
PUBLIC int cuStreamWaitEvent(void *s, void *e, unsigned flags) { (void)s; (void)e; (void)flags; event_waits++; return 0; }

/* ---- pools: freed memory is `pending` until a wait, then spare until a trim (or at once, below the threshold) ---- */
struct pool { int card, dead; uint64_t reserved, used, pending, threshold; };
#define POOLS 8192
static struct pool defaults[CARDS] = { { .card = 0 }, { .card = 1 } }, on_host, managed, *made[POOLS];
static void set_dead(int d, int dead) { defaults[d].dead = dead; }
static void shrink(struct pool *p, uint64_t keep)
{ uint64_t least = p->used + p->pending; if (keep < least) keep = least; if (p->reserved > keep) { taken[p->card] -= p->reserved - keep; p->reserved = keep; } }
static void pass(struct pool *p) { p->pending = 0; shrink(p, p->threshold); }
static void waited(void) { held_up(); waits++; for (int i = 0; i < CARDS; i++) pass(&defaults[i]); for (int i = 0; i < POOLS && made[i]; i++) pass(made[i]); }
static int pool_alloc(uint64_t *out, uint64_t n, struct pool *p)
{
    uint64_t from_pending = p->pending < n ? p->pending : n, least = p->used + p->pending - from_pending + n;
    if (least > p->reserved) {
        int result = grab(p->card, least - p->reserved);
        if (result)
            return result;
        p->reserved = least;
    }
    p->pending -= from_pending;
    p->used += n;
    *out = address(n);
    new_thing('o', *out, 0, p->card, p)->key = *out;
    thing('o', *out)->refs = (int)(n >> 12);
    return 0;
}
static int pool_free(uint64_t key)
{
    struct thing *t = thing('o', key);
    if (!t)
        return INVALID_VALUE;
    uint64_t n = (uint64_t)t->refs << 12;
    struct pool *p = t->owner;
    p->used -= n; p->pending += n; t->kind = 0;
    return 0;
}
static int graph_alloc(void *graph, uint64_t n, uint64_t *p);
static int graph_free(void *graph, uint64_t p);
PUBLIC int cuDeviceGetMemPool(void **p, int d) { *p = &defaults[d]; return 0; }
PUBLIC int cuDeviceGetDefaultMemPool(void **p, int d) { *p = &defaults[d]; return 0; }
static int fake_cuMemPoolGetAttribute(void *p, int a, void *v) { struct pool *q = p; asked_dead += q->dead; if (forbidden) return forbidden; if (a < 4) { *(int *)v = 1; return 0; } *(uint64_t *)v = a == POOL_RESERVED_NOW ? q->reserved : a == POOL_USED_NOW ? q->used : a == 4 ? q->threshold : 0; return 0; }
static int fake_cuMemPoolSetAttribute(void *p, int a, void *v) { if (a == 4) ((struct pool *)p)->threshold = *(uint64_t *)v; return 0; }
static int fake_cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t n, void *pool, void *s)
{ int status = 0; capturing(s, &status); return status ? graph_alloc(((struct stream *)s)->graph, n, p) : pool_alloc(p, n, pool); }
static int fake_cuMemAllocAsync(CUdeviceptr *p, size_t n, void *s) { return current ? fake_cuMemAllocFromPoolAsync(p, n, &defaults[device_of(current)], s) : INVALID_CONTEXT; }
static int fake_cuMemFreeAsync(CUdeviceptr p, void *s)
{ int status = 0; capturing(s, &status); return status ? graph_free(((struct stream *)s)->graph, p) : pool_free(p) && unmake('m', p) ? unmake('i', p) : 0; }
static int fake_cuMemPoolCreate(void **p, const CUmemPoolProps *props)
{ struct pool *q = calloc(1, sizeof *q); q->card = props->location.type == LOCATION_DEVICE ? props->location.id : 0; for (int i = 0; i < POOLS; i++) if (!made[i]) { made[i] = q; break; } *p = q; return 0; }
static int fake_cuMemGetDefaultMemPool(void **p, CUmemLocation *where, int type)
{ *p = type == ALLOCATION_MANAGED ? &managed : where->type == LOCATION_DEVICE ? &defaults[where->id] : &on_host; return 0; }
static int fake_cuMemGetMemPool(void **p, CUmemLocation *where, int type) { return fake_cuMemGetDefaultMemPool(p, where, type); }
static int fake_cuMemPoolDestroy(void *p) { if (p == &defaults[0] || p == &defaults[1]) return INVALID_VALUE; ((struct pool *)p)->dead = 1; shrink(p, 0); linger(); return 0; }
static int fake_cuMemPoolTrimTo(void *p, size_t keep) { shrink(p, keep); return 0; }

/* ---- graphs: their memory is taken at the first launch, and kept until trimmed ---- */
struct graph { uint64_t now, most; struct graph *parent; };
static void graph_adds(struct graph *g, uint64_t n, uint64_t peak)
{ for (; g; g = g->parent) { if (g->now + peak > g->most) g->most = g->now + peak; g->now += n; if (g->now > g->most) g->most = g->now; } }
static uint64_t graph_reserved[CARDS];
static int graph_alloc(void *graph, uint64_t n, uint64_t *p)
{ graph_adds(graph, n, 0); *p = address(n); new_thing('g', *p, 0, 0, graph)->refs = (int)(n >> 12); return 0; }
static int graph_free(void *graph, uint64_t p)
{ struct thing *t = thing('g', p); if (!t) return INVALID_VALUE; ((struct graph *)graph)->now -= (uint64_t)t->refs << 12; return 0; }
PUBLIC int cuGraphCreate(void **g, unsigned flags) { (void)flags; *g = calloc(1, 64); return 0; }
PUBLIC int cuDeviceGetGraphMemAttribute(int d, int a, uint64_t *v) { *v = a == GRAPH_RESERVED_NOW ? graph_reserved[d] : 0; return 0; }
static int fake_cuGraphAddMemAllocNode(void **n, void *g, void *const *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{ (void)after; (void)count; *n = g; return graph_alloc(g, p->bytes, &p->pointer); }
static int fake_cuGraphAddMemFreeNode(void **n, void *g, void *const *after, size_t count, CUdeviceptr p) { (void)after; (void)count; *n = g; return graph_free(g, p); }
static int fake_cuGraphAddNode(void **n, void *g, void *const *after, size_t count, CUgraphNodeParams *p)
{
    if (p->type == NODE_MEM_ALLOC) return fake_cuGraphAddMemAllocNode(n, g, after, count, &p->u.alloc);
    if (p->type == NODE_MEM_FREE) return fake_cuGraphAddMemFreeNode(n, g, after, count, p->u.free);
    if (p->type == NODE_GRAPH) { struct graph *child = p->u.child.graph; graph_adds(g, child->now, child->most); if (p->u.child.ownership) child->parent = g; }
    if (p->type == NODE_CONDITIONAL) { CUgraph *bodies = calloc(p->u.conditional.size, sizeof *bodies); p->u.conditional.bodies = bodies;
        for (unsigned i = 0; i < p->u.conditional.size; i++) { struct graph *body = calloc(1, 64); body->parent = g; bodies[i] = body; } }
    *n = g; return 0;
}
static int fake_cuGraphAddChildGraphNode(void **n, void *g, void *const *after, size_t count, void *child)
{ (void)after; (void)count; *n = g; graph_adds(g, ((struct graph *)child)->now, ((struct graph *)child)->most); return 0; }
static int fake_cuGraphClone(void **c, void *g) { *c = calloc(1, 64); *(struct graph *)*c = *(struct graph *)g; return 0; }
static int fake_cuGraphAddNode_v2(void **n, void *g, void *const *after, const void *e, size_t count, CUgraphNodeParams *p) { (void)e; return fake_cuGraphAddNode(n, g, after, count, p); }
static int fake_cuGraphAddNode_v3(void **n, void *g, void *const *after, const void *e, size_t count, CUgraphNodeParams *p) { (void)e; return fake_cuGraphAddNode(n, g, after, count, p); }
static int instantiate(void **exec, void *g) { struct graph *x = malloc(sizeof *x); *x = *(struct graph *)g; *exec = x; return 0; }
static int fake_cuGraphInstantiate(void **x, void *g, void **b, char *l, size_t n) { (void)b; (void)l; (void)n; return instantiate(x, g); }
static int fake_cuGraphInstantiate_v2(void **x, void *g, void **b, char *l, size_t n) { return fake_cuGraphInstantiate(x, g, b, l, n); }
static int fake_cuGraphInstantiateWithFlags(void **x, void *g, unsigned long long f) { (void)f; return instantiate(x, g); }
static int fake_cuGraphInstantiateWithParams(void **x, void *g, void *p) { (void)p; return instantiate(x, g); }
static int fake_cuGraphUpload(void *x, void *s)
{
    (void)s;
    struct graph *g = x;
    int d = device_of(current), result = g->most > graph_reserved[d] ? grab(d, g->most - graph_reserved[d]) : 0;
    if (!result && g->most > graph_reserved[d]) graph_reserved[d] = g->most;
    return result;
}
static int fake_cuGraphLaunch(void *x, void *s) { return fake_cuGraphUpload(x, s); }
static int fake_cuGraphExecDestroy(void *x) { free(x); return 0; }
static int fake_cuGraphDestroy(void *g) { (void)g; return 0; }
static int fake_cuDeviceGraphMemTrim(int d) { taken[d] -= graph_reserved[d]; graph_reserved[d] = 0; return 0; }

/* ---- answers ---- */
static int fake_cuMemGetInfo_v2(size_t *f, size_t *t) { if (!current || fault) return fault ? fault : INVALID_CONTEXT; *t = CARD_BYTES; *f = CARD_BYTES - taken[device_of(current)]; return 0; }
static int fake_cuMemGetInfo(unsigned *f, unsigned *t) { *f = *t = UINT32_MAX; return 0; }
static int fake_cuDeviceTotalMem_v2(size_t *t, int d) { (void)d; *t = CARD_BYTES; return 0; }
static int fake_cuDeviceTotalMem(unsigned *t, int d) { (void)d; *t = UINT32_MAX; return 0; }

/* ---- lookups: the version decides between ABIs, the flag between stream kinds ---- */
static void *look(const char *name, int version, uint64_t flags)
{
    static const struct { const char *name; int since; } late[] = {
        { "cuCtxSynchronize", 13000 }, { "cuMemcpyBatchAsync", 13000 }, { "cuMemcpy3DBatchAsync", 13000 }, { "cuGetProcAddress", 12000 },
        { "cuMemPrefetchAsync", 12020 }, { "cuGraphAddNode", 12030 }, { "cuGraphInstantiate", 99999 },
        { "cuCtxGetDevice", 13000 }, { "cuLaunchKernel", 99000 }, { "cuMemPoolGetAttribute", 99000 }, { "cuStreamQuery", 99000 },
        { "cuStreamIsCapturing", 99000 } };
    char wanted[96];
    int since = 3020;
    for (unsigned i = 0; i < sizeof late / sizeof *late; i++)
        if (!strcmp(late[i].name, name)) since = late[i].since;
    for (int v = version >= since ? 2 : 1; v >= 1; v--)
        for (int k = flags & 2 ? 2 : 0; k >= 0; k--) {
            snprintf(wanted, sizeof wanted, "%s%s%s", name, v == 2 ? "_v2" : "", k == 2 ? "_ptsz" : k == 1 ? "_ptds" : "");
            static void *self;
            if (!self) self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
            void *found = dlvsym(self, wanted, "FAKE");
            if (found)
                return found;
        }
    return NULL;
}
static int fake_cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    static struct { char name[64]; int version; uint64_t flags; void *found; } last;    /* a driver has no need of the loader */
    if (!name || !*name || strcmp(last.name, name) || last.version != version || last.flags != flags) {
        last.found = name && *name ? look(name, version, flags) : NULL;
        snprintf(last.name, sizeof last.name, "%s", name ? name : "");
        last.version = version, last.flags = flags;
    }
    *found = last.found;
    return *found ? 0 : CUDA_ERROR_NOT_FOUND;
}
static int fake_cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{ int result = fake_cuGetProcAddress(name, found, version, flags); if (status) *status = result ? 1 : 0; return result; }

/* ---- NVML, in the same file: libnvidia-ml.so.1 is this library under another name ---- */
PUBLIC int nvmlInit_v2(void) { return 0; }
PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(uintptr_t)(i + 1); return i < CARDS + 1 ? 0 : 2; }
PUBLIC int nvmlDeviceGetUUID(void *d, char *out, unsigned n)
{ unsigned b = 0x11 * (unsigned)(uintptr_t)d; snprintf(out, n, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b); return 0; }
static int fake_nvmlDeviceGetMemoryInfo(void *d, nvmlMemory_t *m) { (void)d; *m = (nvmlMemory_t){ CARD_BYTES, CARD_BYTES - 5, 5 }; return 0; }
static int fake_nvmlDeviceGetMemoryInfo_v2(void *d, nvmlMemory_v2_t *m) { (void)d; *m = (nvmlMemory_v2_t){ m->version, CARD_BYTES, 3, CARD_BYTES - 8, 5 }; return 0; }

/* ---- the symbols ---- */
#define COUNT(symbol) __atomic_fetch_add(&calls[ALQ_AT_##symbol], 1, __ATOMIC_RELAXED)
#define PLAIN(symbol, name, ptsz, params, ...) PUBLIC fn_##name symbol; int symbol params { COUNT(symbol); return 0; }
#define WAITS(symbol, name, ptsz, params, ...) PUBLIC fn_##name symbol; int symbol params { COUNT(symbol); waited(); return fault; }
#define ASKED(symbol, name, ptsz, params, ...) PUBLIC fn_##name symbol; int symbol params { COUNT(symbol); return unfinished > 0 || (unfinished && unfinished++) ? CUDA_ERROR_NOT_READY : 0; }
#define BODIED(symbol, name, ptsz, params, args) PUBLIC fn_##name symbol; int symbol params { COUNT(symbol); return fake_##name args; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define GATE(name, kinds, params, args, stream) ALQ_##kinds(PLAIN, name, params, args)
#define NOTE(name, kinds, params, args) ALQ_##kinds(PLAIN, name, params, args)
#define COPY(name, kinds, params, args) ALQ_##kinds(PLAIN, name, params, args)
#define WAIT(name, kinds, params, args) ALQ_##kinds(WAITS, name, params, args)
#define QUERY(name, kinds, params, args) ALQ_##kinds(ASKED, name, params, args)
#define TOUCH(name, kinds, params, args) ALQ_##kinds(PLAIN, name, params, args)
#define WORD(name, kinds, params, args) ALQ_##kinds(PLAIN, name, params, args)
#define BODY(name, kinds, params, args) ALQ_##kinds(BODIED, name, params, args)
#include "hooks.def"
