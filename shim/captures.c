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

int alq_captures;       /* streams that capture: the card must not be waited for meanwhile */

static struct place { CUcontext context; unsigned count; CUdeviceptr block[BLOCKS]; } places[PLACES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* never held over a call of the driver */

bool alq_capturing(CUstream stream, int ptsz)
{
    int status = CAPTURE_NONE;
    int result = ptsz ? ALQ_REAL(cuStreamIsCapturing_ptsz)(stream, &status) : ALQ_REAL(cuStreamIsCapturing)(stream, &status);
    /* an error other than "no such function" means the stream takes part in somebody's capture */
    return result == CUDA_SUCCESS ? status != CAPTURE_NONE : result != CUDA_ERROR_NOT_FOUND;
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

static int allocate(CUdeviceptr *p) { return ALQ_REAL(cuMemAlloc_v2)(p, 1); }

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
    CUdeviceptr p = context && room_for(context, 1) ? make(context) : 0;
    if (p)
        put(context, p);
}

/* It has ended, and its memory with it. */
void alq_wait_ended(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].context == context)
            places[i].context = NULL, places[i].count = 0;
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

/* A card that is full is no answer: whoever asks finds that out. The block stays: its free would wait. So there is an end
 * to the blocks, and then to the question. */
int alq_may_allocate(void)
{
    CUcontext context = alq_context();
    CUdeviceptr p = 0;
    if (!__atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST) || !context || !room_for(context, BLOCKS))
        return CUDA_SUCCESS;
    int result = allocate(&p);
    if (!result)
        put(context, p);
    return CAPTURE_FORBIDS(result) ? result : CUDA_SUCCESS;
}

/* ---- captures begin and end ---- */

static int begun_capture(int result)
{
    if (!result)
        __atomic_fetch_add(&alq_captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

int alq_cuStreamBeginCapture(fn_cuStreamBeginCapture *real, int ptsz, CUstream stream)
{
    (void)ptsz;
    return ALQ_INSIDE(begun_capture(real(stream)));
}

int alq_cuStreamBeginCapture_v2(fn_cuStreamBeginCapture_v2 *real, int ptsz, CUstream stream, int mode)
{
    (void)ptsz;
    return ALQ_INSIDE(begun_capture(real(stream, mode)));
}

int alq_cuStreamBeginCaptureToGraph(fn_cuStreamBeginCaptureToGraph *real, int ptsz, CUstream stream, CUgraph graph,
                                    const CUgraphNode *after, const void *edges, size_t count, int mode)
{
    (void)ptsz;
    return ALQ_INSIDE(begun_capture(real(stream, graph, after, edges, count, mode)));
}

int alq_cuStreamBeginRecaptureToGraph(fn_cuStreamBeginRecaptureToGraph *real, int ptsz, CUstream stream, int mode, CUgraph graph,
                                      void *callback, void *with)
{
    (void)ptsz;
    return ALQ_INSIDE(begun_capture(real(stream, mode, graph, callback, with)));
}

/* One that was invalidated ends with an error, but ends. */
int alq_cuStreamEndCapture(fn_cuStreamEndCapture *real, int ptsz, CUstream stream, CUgraph *graph)
{
    bool was = alq_capturing(stream, ptsz);
    int result = real(stream, graph);
    if (was && __atomic_load_n(&alq_captures, __ATOMIC_SEQ_CST) > 0)
        __atomic_fetch_sub(&alq_captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

void alq_captures_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    alq_captures = 0;
    for (unsigned i = 0; i < PLACES; i++)
        places[i].context = NULL, places[i].count = 0;
}
