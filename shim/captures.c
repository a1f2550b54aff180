/* captures.c - streams that capture a graph, and what may be called meanwhile.
 *
 * Some calls break captures of other threads: they answer 900, and so does the capture at its end (901). Which ones do
 * depends on the mode of the capture and on that of the calling thread. Calls that are ours and not the program's are made
 * in the relaxed mode, which permits them. Where a call of ours stands for one of the program's, the program must see what
 * the driver would have answered: its memory of cuMemAlloc is made and unmade by other calls if the tenant may be parked
 * (movable.c), and those ask no such question.
 *
 * So the driver is asked with a call of the very same kind: a block of one byte is allocated, or one that was allocated
 * ahead is freed. The free also waits for the work of the block's context, as every cuMemFree does, and that is the wait
 * which a program expects of the free of its memory. cuCtxSynchronize would wait as well; but it breaks every capture in
 * the context, in every mode (H200, driver 580), where cuMemFree breaks none unless the mode is `global`.
 */
#include "shim.h"

#define PLACES 32       /* contexts that have blocks ahead; others have them made when they are needed */
#define BLOCKS 64
#define BLOCK_BYTES 1   /* of any size, a free should wait: tests/shim/on_card_captures.py shows whether the driver at hand does */
#define ORIGINS 256     /* streams that capture at a time, of which we can tell when they end without a call for it */
#define LEGACY     ((CUstream)1)
#define PER_THREAD ((CUstream)2)

int alq_faults;         /* a call answered that a kernel of its context failed */
int alq_captures;       /* streams on which a capture was begun: the card must not be waited for meanwhile */
static struct origin { CUstream stream; CUcontext context; } origins[ORIGINS];
static int origin_count;

static struct place { CUcontext context; unsigned count; CUdeviceptr block[BLOCKS]; } places[PLACES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* never held over a call of the driver */

bool alq_capturing(CUstream stream, int ptsz)
{
    int status = CAPTURE_NONE;
    if (!__atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST))
        return false;
    int result = ptsz ? ALQ_REAL(cuStreamIsCapturing_ptsz)(stream, &status) : ALQ_REAL(cuStreamIsCapturing)(stream, &status);
    /* an error other than "no such function" means the stream takes part in somebody's capture */
    return result == CUDA_SUCCESS ? status != CAPTURE_NONE : result != CUDA_ERROR_NOT_FOUND;
}

/* Each thread has its own of one kind: an odd number, which is no pointer. */
CUstream alq_stream_key(CUstream stream, int ptsz)
{
    static __thread uint64_t self;
    stream = stream ? stream : ptsz ? PER_THREAD : LEGACY;
    return stream == PER_THREAD ? (CUstream)((uintptr_t)&self | 1) : stream;
}

/* ---- our own calls ---- */

bool alq_relax(int *mode)
{
    *mode = CAPTURE_MODE_RELAXED;
    return ALQ_REAL(cuThreadExchangeStreamCaptureMode)(mode) == CUDA_SUCCESS;
}

void alq_unrelax(bool relaxed, int *mode)
{
    if (relaxed)
        ALQ_REAL(cuThreadExchangeStreamCaptureMode)(mode);
}

/* ---- blocks ahead ---- */

/* With the lock held: the context's place, or one that is free; NULL: there is none. */
static struct place *place_of(CUcontext context)
{
    struct place *none = NULL;
    for (unsigned i = 0; i < PLACES; i++) {
        if (places[i].context == context)
            return &places[i];
        if (!places[i].count && !none)
            none = &places[i];
    }
    return none;
}

static CUdeviceptr take(CUcontext context)
{
    pthread_mutex_lock(&lock);
    struct place *place = place_of(context);
    CUdeviceptr p = place && place->context == context && place->count ? place->block[--place->count] : 0;
    pthread_mutex_unlock(&lock);
    return p;
}

static bool room_for(CUcontext context, unsigned most)
{
    pthread_mutex_lock(&lock);
    struct place *place = place_of(context);
    bool room = place && (place->context != context || place->count < most);
    pthread_mutex_unlock(&lock);
    return room;
}

/* Without room it is forgotten: a block that the context's end will free. */
static void put(CUcontext context, CUdeviceptr p)
{
    pthread_mutex_lock(&lock);
    struct place *place = place_of(context);
    if (place && place->context != context) {
        place->context = context;
        place->count = 0;
    }
    if (place && place->count < BLOCKS)
        place->block[place->count++] = p;
    pthread_mutex_unlock(&lock);
}

/* Calls `call` in that context, if that is possible. */
static int within(CUcontext context, int (*call)(CUdeviceptr *p), CUdeviceptr *p)
{
    CUcontext here = alq_context();
    if (here == context)
        return call(p);
    int result = ALQ_REAL(cuCtxSetCurrent)(context);
    if (result)
        return result;
    result = call(p);
    ALQ_REAL(cuCtxSetCurrent)(here);
    return result;
}

static int allocate(CUdeviceptr *p) { return ALQ_REAL(cuMemAlloc_v2)(p, BLOCK_BYTES); }

static int synchronize(CUdeviceptr *p)
{
    (void)p;
    return ALQ_REAL(cuCtxSynchronize)();
}

/* 0: the card is full. */
static CUdeviceptr make(CUcontext context)
{
    CUdeviceptr p = 0;
    int mode;
    bool relaxed = alq_relax(&mode);
    int result = within(context, allocate, &p);
    alq_unrelax(relaxed, &mode);
    return result ? 0 : p;
}

void alq_wait_ahead(CUcontext context)
{
    unsigned most = __atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST) ? 1 : 2;
    CUdeviceptr p = context && room_for(context, most) ? make(context) : 0;
    if (p)
        put(context, p);
}

/* With the lock held. */
static void drop_origin(int i)
{
    origins[i] = origins[--origin_count];
    __atomic_fetch_sub(&alq_captures, 1, __ATOMIC_SEQ_CST);
}

/* It has ended, and its memory and captures with it. */
void alq_wait_ended(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].context == context)
            places[i].context = NULL, places[i].count = 0;
    for (int i = origin_count - 1; i >= 0; i--)
        if (origins[i].context == context)
            drop_origin(i);
    pthread_mutex_unlock(&lock);
}

/* ---- in place of the program's calls ---- */

int alq_wait_for_context(CUcontext context)
{
    CUdeviceptr p = context ? take(context) : 0;
    int result = p ? ALQ_REAL(cuMemFree_v2)(p) : CUDA_ERROR_INVALID_VALUE;
    if (p && result == CUDA_ERROR_INVALID_VALUE)
        alq_wait_ended(context);        /* it ended without our knowledge, and this is another at the same address */
    if (result == CUDA_ERROR_INVALID_VALUE) {
        p = context ? make(context) : 0;
        result = p ? ALQ_REAL(cuMemFree_v2)(p) : CUDA_SUCCESS;
    }
    if (p && result)
        put(context, p);
    if (p || !context)
        return result;
    /* no memory for a block: a wait that no capture survives, or none */
    return __atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                            : within(context, synchronize, NULL);
}

/* What a context whose kernel failed answers to every call. */
static int fault_here(void)
{
    size_t spare, total;
    int mode;
    bool relaxed = alq_relax(&mode);
    int result = ALQ_REAL(cuMemGetInfo_v2)(&spare, &total);
    alq_unrelax(relaxed, &mode);
    return FAULT(result) ? result : CUDA_SUCCESS;
}

/* A card that is full is no answer: whoever asks finds that out. The block stays: its free would wait. So there is an end
 * to the blocks, and then to the question. */
int alq_may_allocate(void)
{
    CUcontext context = alq_context();
    CUdeviceptr p = 0;
    int fault = ALQ_RARE(__atomic_load_n(&alq_faults, __ATOMIC_RELAXED)) ? fault_here() : CUDA_SUCCESS;
    if (fault)
        return fault;
    if (!__atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST) || !context || !room_for(context, BLOCKS))
        return CUDA_SUCCESS;
    int result = allocate(&p);
    if (!result)
        put(context, p);
    return CAPTURE_FORBIDS(result) ? result : CUDA_SUCCESS;
}

/* ---- captures begin and end ---- */

static void add_origin(struct origin origin)
{
    pthread_mutex_lock(&lock);
    if (origin_count < ORIGINS)
        origins[origin_count++] = origin;
    __atomic_fetch_add(&alq_captures, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&lock);
}

/* False: none was begun on this stream. */
static bool take_origin(CUstream key, struct origin *out)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < origin_count && !found; i++)
        if (origins[i].stream == key) {
            *out = origins[i];
            drop_origin(i);
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static int begun_capture(CUstream stream, int ptsz, int result)
{
    if (!result)
        add_origin((struct origin){ alq_stream_key(stream, ptsz), alq_context() });
    return result;
}

int alq_cuStreamBeginCapture(fn_cuStreamBeginCapture *real, int ptsz, CUstream stream)
{
    return ALQ_INSIDE(begun_capture(stream, ptsz, real(stream)));
}

int alq_cuStreamBeginCapture_v2(fn_cuStreamBeginCapture_v2 *real, int ptsz, CUstream stream, int mode)
{
    return ALQ_INSIDE(begun_capture(stream, ptsz, real(stream, mode)));
}

int alq_cuStreamBeginCaptureToGraph(fn_cuStreamBeginCaptureToGraph *real, int ptsz, CUstream stream, CUgraph graph,
                                    const CUgraphNode *after, const void *edges, size_t count, int mode)
{
    return ALQ_INSIDE(begun_capture(stream, ptsz, real(stream, graph, after, edges, count, mode)));
}

int alq_cuStreamBeginRecaptureToGraph(fn_cuStreamBeginRecaptureToGraph *real, int ptsz, CUstream stream, int mode, CUgraph graph,
                                      void *callback, void *with)
{
    return ALQ_INSIDE(begun_capture(stream, ptsz, real(stream, mode, graph, callback, with)));
}

/* One that was broken ends with an error, but ends. With other errors it goes on: another thread began it, or another stream. */
int alq_cuStreamEndCapture(fn_cuStreamEndCapture *real, int ptsz, CUstream stream, CUgraph *graph)
{
    struct origin origin;
    int result = real(stream, graph);
    if (result && alq_capturing(stream, ptsz))
        return result;
    bool known = take_origin(alq_stream_key(stream, ptsz), &origin);
    if (!known && !result && __atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST) > ORIGINS)     /* it had no place */
        __atomic_fetch_sub(&alq_captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

/* Its capture ends with it. Before the real call: after it another thread may get a stream with the same number. */
int alq_cuStreamDestroy_v2(fn_cuStreamDestroy_v2 *real, int ptsz, CUstream stream)
{
    struct origin origin;
    bool known = __atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST) && take_origin(alq_stream_key(stream, ptsz), &origin);
    int result = real(stream);
    if (known && result)
        add_origin(origin);
    return result;
}

int alq_cuStreamDestroy(fn_cuStreamDestroy *real, int ptsz, CUstream stream)
{
    return alq_cuStreamDestroy_v2(real, ptsz, stream);
}

void alq_captures_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    alq_captures = origin_count = alq_faults = 0;
    for (unsigned i = 0; i < PLACES; i++)
        places[i].context = NULL, places[i].count = 0;
}
