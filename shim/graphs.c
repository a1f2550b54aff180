/* graphs.c - CUDA graphs that allocate. A node only promises memory; the driver takes it from the card when the graph is
 * first uploaded or launched, keeps it for the next launch, and reuses it between nodes that do not live together.
 *
 * So a graph is followed as it is built: what its nodes hold at the end (`now`) and at most (`size`), nodes taken in the
 * order they are added. A node that could never run within the quota is refused. At launch the most that the graph holds
 * is reserved, less what the driver keeps spare for graphs; after it the truth ("reserved" of the device's graph memory)
 * is charged. A graph whose nodes run in another order than they were added may take more than was foreseen: that is
 * charged too, and the next allocation pays for it.
 */
#include "shim.h"

static struct { CUdevice device; bool live; uint64_t charged; } held[ALQ_CARDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int any;                 /* some graph allocates; read without the lock, so that others pay nothing */

CUgraph alq_graph_of(CUstream stream, int ptsz)
{
    int status = CAPTURE_NONE;
    uint64_t id;
    CUgraph graph = NULL;
    const CUgraphNode *after;
    size_t n;
    int result = ptsz ? ALQ_REAL(cuStreamGetCaptureInfo_v2_ptsz)(stream, &status, &id, &graph, &after, &n)
                      : ALQ_REAL(cuStreamGetCaptureInfo_v2)(stream, &status, &id, &graph, &after, &n);
    return result == CUDA_SUCCESS && status != CAPTURE_NONE ? graph : NULL;
}

/* `lock` held. Charges what the driver holds for graphs, gives the guess `reserved` back; returns what is spare of it. */
static uint64_t settle(int card, uint64_t reserved)
{
    uint64_t holds = 0, used = 0;
    if (!held[card].live)
        return 0;
    int result = ALQ_REAL(cuDeviceGetGraphMemAttribute)(held[card].device, GRAPH_RESERVED_NOW, &holds);
    if (result)
        holds = CAPTURE_FORBIDS(result) ? held[card].charged : 0;
    if (ALQ_REAL(cuDeviceGetGraphMemAttribute)(held[card].device, GRAPH_USED_NOW, &used))
        used = 0;
    alq_charge(card, (int64_t)(holds - held[card].charged - reserved));
    held[card].charged = holds;
    return holds > used ? holds - used : 0;
}

static uint64_t settle_now(int card, uint64_t reserved)
{
    pthread_mutex_lock(&lock);
    uint64_t spare = settle(card, reserved);
    pthread_mutex_unlock(&lock);
    return spare;
}

void alq_graph_settle(int card)
{
    if (held[card].live)
        settle_now(card, 0);
}

void alq_graph_trim(int card)
{
    if (!held[card].live)
        return;
    ALQ_REAL(cuDeviceGraphMemTrim)(held[card].device);
    settle_now(card, 0);
}

/* ---- building ---- */

static void follow(struct alq_entry *graph, void *with)
{
    int64_t bytes = *(int64_t *)with;
    graph->now = bytes < 0 && (uint64_t)-bytes > graph->now ? 0 : graph->now + (uint64_t)bytes;
    if (graph->now > graph->size)
        graph->size = graph->now;
}

/* Would a node of so many bytes still let the graph run within the quota? CUDA_SUCCESS, or the refusal. */
int alq_graph_may_alloc(CUgraph graph, uint64_t bytes, CUdevice device)
{
    int card = alq_card_of_device(device);
    if (card == ALQ_NO_CONTEXT)
        return CUDA_SUCCESS;
    if (card < 0)
        return alq_refuse(card);
    struct alq_entry known = { .now = 0 };
    alq_find(ALQ_GRAPH, (uintptr_t)graph, &known);
    uint64_t spare = settle_now(card, 0), most = known.now + bytes, more = most > spare ? most - spare : 0;
    if (!more)
        return CUDA_SUCCESS;
    if (!alq_make_room(card, more, more, NULL, 0, false))
        return alq_refuse(card);
    alq_charge(card, -(int64_t)more);       /* only a question */
    return CUDA_SUCCESS;
}

/* The node is there. Pointers of nodes are remembered, so that a node that frees one is understood. */
void alq_graph_allocates(CUgraph graph, CUdeviceptr p, uint64_t bytes, CUdevice device)
{
    int card = alq_card_of_device(device);
    if (card < 0)
        return;
    pthread_mutex_lock(&lock);
    held[card].device = device;
    held[card].live = true;
    __atomic_store_n(&any, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&alq_pools_live, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    int64_t change = (int64_t)bytes;
    if (!alq_change(ALQ_GRAPH, (uintptr_t)graph, follow, &change))
        alq_book((struct alq_entry){ .kind = ALQ_GRAPH, .key = (uintptr_t)graph, .now = bytes, .size = bytes, .card = (int8_t)card });
    alq_book((struct alq_entry){ .kind = ALQ_IN_GRAPH, .key = p, .size = bytes, .owner = (uintptr_t)graph, .card = (int8_t)card });
}

void alq_graph_frees(CUgraph graph, CUdeviceptr p)
{
    struct alq_entry pointer;
    if (!alq_find(ALQ_IN_GRAPH, p, &pointer))
        return;
    int64_t change = -(int64_t)pointer.size;
    alq_change(ALQ_GRAPH, (uintptr_t)graph, follow, &change);
}

int alq_cuGraphAddMemAllocNode(fn_cuGraphAddMemAllocNode *real, int ptsz, CUgraphNode *node, CUgraph graph,
                               const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    (void)ptsz;
    bool counts = params && params->pool.location.type == LOCATION_DEVICE;
    int refused = counts ? alq_graph_may_alloc(graph, alq_rounded(params->bytes), params->pool.location.id) : CUDA_SUCCESS;
    if (refused)
        return refused;
    int result = real(node, graph, after, count, params);
    if (result == CUDA_SUCCESS && counts)
        alq_graph_allocates(graph, params->pointer, alq_rounded(params->bytes), params->pool.location.id);
    return result;
}

int alq_cuGraphAddMemFreeNode(fn_cuGraphAddMemFreeNode *real, int ptsz, CUgraphNode *node, CUgraph graph,
                              const CUgraphNode *after, size_t count, CUdeviceptr p)
{
    (void)ptsz;
    int result = real(node, graph, after, count, p);
    if (result == CUDA_SUCCESS)
        alq_graph_frees(graph, p);
    return result;
}

/* cuGraphAddNode of any version: before and after the real call. */
static int may_add(CUgraph graph, const CUgraphNodeParams *params)
{
    if (!params || params->type != NODE_MEM_ALLOC || params->u.alloc.pool.location.type != LOCATION_DEVICE)
        return CUDA_SUCCESS;
    return alq_graph_may_alloc(graph, alq_rounded(params->u.alloc.bytes), params->u.alloc.pool.location.id);
}

static int added(int result, CUgraph graph, const CUgraphNodeParams *params)
{
    if (result != CUDA_SUCCESS || !params)
        return result;
    if (params->type == NODE_MEM_ALLOC && params->u.alloc.pool.location.type == LOCATION_DEVICE)
        alq_graph_allocates(graph, params->u.alloc.pointer, alq_rounded(params->u.alloc.bytes), params->u.alloc.pool.location.id);
    else if (params->type == NODE_MEM_FREE)
        alq_graph_frees(graph, params->u.free);
    return result;
}

int alq_cuGraphAddNode(fn_cuGraphAddNode *real, int ptsz, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                       size_t count, CUgraphNodeParams *params)
{
    (void)ptsz;
    int refused = may_add(graph, params);
    return refused ? refused : added(real(node, graph, after, count, params), graph, params);
}

int alq_cuGraphAddNode_v2(fn_cuGraphAddNode_v2 *real, int ptsz, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                          const void *edges, size_t count, CUgraphNodeParams *params)
{
    (void)ptsz;
    int refused = may_add(graph, params);
    return refused ? refused : added(real(node, graph, after, edges, count, params), graph, params);
}

int alq_cuGraphAddNode_v3(fn_cuGraphAddNode_v3 *real, int ptsz, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                          const void *edges, size_t count, CUgraphNodeParams *params)
{
    (void)ptsz;
    int refused = may_add(graph, params);
    return refused ? refused : added(real(node, graph, after, edges, count, params), graph, params);
}

/* ---- from a graph to what is launched ---- */

static int instantiated(int result, const CUgraphExec *exec, CUgraph graph)
{
    struct alq_entry known;
    if (result == CUDA_SUCCESS && exec && __atomic_load_n(&any, __ATOMIC_RELAXED) && alq_find(ALQ_GRAPH, (uintptr_t)graph, &known)) {
        known.kind = ALQ_EXEC;
        known.key = (uintptr_t)*exec;
        alq_book(known);
        alq_graph_settle(known.card);
    }
    return result;
}

int alq_cuGraphInstantiate(fn_cuGraphInstantiate *real, int ptsz, CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log,
                           size_t size)
{
    (void)ptsz;
    return instantiated(real(exec, graph, bad, log, size), exec, graph);
}

int alq_cuGraphInstantiate_v2(fn_cuGraphInstantiate_v2 *real, int ptsz, CUgraphExec *exec, CUgraph graph, CUgraphNode *bad,
                              char *log, size_t size)
{
    (void)ptsz;
    return instantiated(real(exec, graph, bad, log, size), exec, graph);
}

int alq_cuGraphInstantiateWithFlags(fn_cuGraphInstantiateWithFlags *real, int ptsz, CUgraphExec *exec, CUgraph graph,
                                    unsigned long long flags)
{
    (void)ptsz;
    return instantiated(real(exec, graph, flags), exec, graph);
}

int alq_cuGraphInstantiateWithParams(fn_cuGraphInstantiateWithParams *real, int ptsz, CUgraphExec *exec, CUgraph graph,
                                     void *params)
{
    (void)ptsz;
    return instantiated(real(exec, graph, params), exec, graph);
}

/* Reserves what the graph will take beyond what is kept for graphs; `*card` -1: it allocates nothing. */
static int reserve_for(CUgraphExec exec, CUstream stream, int ptsz, int *card, uint64_t *more)
{
    struct alq_entry known;
    *card = -1;
    if (!__atomic_load_n(&any, __ATOMIC_RELAXED) || !alq_find(ALQ_EXEC, (uintptr_t)exec, &known))
        return CUDA_SUCCESS;
    uint64_t spare = settle_now(known.card, 0);
    *more = known.size > spare ? known.size - spare : 0;
    if (*more && !alq_make_room(known.card, *more, *more, stream, ptsz, true))
        return alq_refuse(known.card);
    *card = known.card;
    return CUDA_SUCCESS;
}

int alq_cuGraphLaunch(fn_cuGraphLaunch *real, int ptsz, CUgraphExec exec, CUstream stream)
{
    int card;
    uint64_t more = 0;
    struct alq_use *use = alq_work(true, ptsz, stream);
    int result = reserve_for(exec, stream, ptsz, &card, &more);
    if (result == CUDA_SUCCESS) {
        result = real(exec, stream);
        if (card >= 0)
            settle_now(card, more);
    }
    alq_handed_over(use);
    return result;
}

int alq_cuGraphUpload(fn_cuGraphUpload *real, int ptsz, CUgraphExec exec, CUstream stream)
{
    int card;
    uint64_t more = 0;
    alq_work(false, ptsz, stream);
    int refused = reserve_for(exec, stream, ptsz, &card, &more);
    if (refused)
        return refused;
    int result = real(exec, stream);
    if (card >= 0)
        settle_now(card, more);
    return result;
}

int alq_cuGraphExecDestroy(fn_cuGraphExecDestroy *real, int ptsz, CUgraphExec exec)
{
    (void)ptsz;
    struct alq_entry known;
    bool had = __atomic_load_n(&any, __ATOMIC_RELAXED) && alq_take(ALQ_EXEC, (uintptr_t)exec, &known);
    int result = real(exec);
    if (had)
        alq_graph_settle(known.card);
    return result;
}

static bool of_graph(const struct alq_entry *e, const void *graph)
{
    return (e->kind == ALQ_IN_GRAPH && e->owner == (uintptr_t)graph) || (e->kind == ALQ_GRAPH && e->key == (uintptr_t)graph);
}

int alq_cuGraphDestroy(fn_cuGraphDestroy *real, int ptsz, CUgraph graph)
{
    (void)ptsz;
    struct alq_entry known;
    size_t at = 0;
    if (__atomic_load_n(&any, __ATOMIC_RELAXED) && alq_find(ALQ_GRAPH, (uintptr_t)graph, &known))
        while (alq_take_where(of_graph, graph, &at, &known))
            ;
    return real(graph);
}

int alq_cuDeviceGraphMemTrim(fn_cuDeviceGraphMemTrim *real, int ptsz, CUdevice device)
{
    (void)ptsz;
    int result = real(device);
    int card = alq_card_of_device(device);
    if (card >= 0)
        alq_graph_settle(card);
    return result;
}

void alq_graphs_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    any = 0;
    for (int i = 0; i < ALQ_CARDS; i++)
        held[i].live = false, held[i].charged = 0;
}
