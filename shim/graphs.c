/* graphs.c - CUDA graphs that allocate. A node only promises memory; the driver takes it from the card when the graph is
 * first uploaded or launched, keeps it for the next launch, and reuses it between nodes that do not live together.
 *
 * So a graph is followed as it is built: what its nodes hold at the end (`now`) and at most (`size`), nodes taken in the
 * order they are added. A node that could never run within the quota is refused. At launch the most that the graph holds
 * is reserved, less what the driver keeps spare for graphs; after it the truth ("reserved" of the device's graph memory)
 * is charged. A graph within another (a child, the body of a condition) counts there too. A graph whose nodes run in another order than they were added may take more than was foreseen: that is
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
    int mode;
    bool relaxed = alq_relax(&mode);
    int result = ALQ_REAL(cuDeviceGetGraphMemAttribute)(held[card].device, GRAPH_RESERVED_NOW, &holds);
    if (result)
        holds = CAPTURE_FORBIDS(result) ? held[card].charged : 0;
    if (ALQ_REAL(cuDeviceGetGraphMemAttribute)(held[card].device, GRAPH_USED_NOW, &used))
        used = 0;
    alq_unrelax(relaxed, &mode);
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

#define DEEPEST 32      /* graphs within graphs */

struct step { int64_t bytes; uint64_t peak, parent; int card; };    /* live afterwards, more than that in between */

static void follow(struct alq_entry *graph, void *with)
{
    struct step *s = with;
    if (!graph->size)
        graph->card = (int8_t)s->card;
    if (graph->now + s->peak > graph->size)
        graph->size = graph->now + s->peak;
    graph->now = s->bytes < 0 && (uint64_t)-s->bytes > graph->now ? 0 : graph->now + (uint64_t)s->bytes;
    if (graph->now > graph->size)
        graph->size = graph->now;
    s->parent = graph->owner;
}

/* The same for the graphs that it is part of: they hold as much more. */
static void follow_up(uint64_t graph, int64_t bytes, uint64_t peak, int card)
{
    struct step s = { .bytes = bytes, .peak = peak, .card = card };
    for (int i = 0; graph && i < DEEPEST; i++, graph = s.parent) {
        s.parent = 0;
        if (!alq_change(ALQ_GRAPH, graph, follow, &s) && (bytes > 0 || peak))
            alq_book((struct alq_entry){ .kind = ALQ_GRAPH, .key = graph, .now = bytes > 0 ? (uint64_t)bytes : 0,
                                         .size = bytes > 0 && (uint64_t)bytes > peak ? (uint64_t)bytes : peak, .card = (int8_t)card });
    }
}

static void set_parent(struct alq_entry *graph, void *parent)
{
    graph->owner = *(uint64_t *)parent;
}

/* `child` became a part of `graph`: as a copy, or itself, so that what is added to it later counts too. */
static void adopt(CUgraph graph, CUgraph child, bool itself)
{
    struct alq_entry known = { .now = 0 };
    uint64_t parent = (uintptr_t)graph;
    bool had = alq_find(ALQ_GRAPH, (uintptr_t)child, &known);
    if (had)
        follow_up(parent, (int64_t)known.now, known.size, known.card);
    if (itself && !alq_find(ALQ_GRAPH, parent, &known))
        alq_book((struct alq_entry){ .kind = ALQ_GRAPH, .key = parent });       /* so that its end is the end of its parts */
    if (itself && child != graph && !(had && alq_change(ALQ_GRAPH, (uintptr_t)child, set_parent, &parent)))
        alq_book((struct alq_entry){ .kind = ALQ_GRAPH, .key = (uintptr_t)child, .owner = parent });
}

/* What is live in the whole of which it is a part. */
static uint64_t live_in(CUgraph graph)
{
    struct alq_entry known = { .owner = (uintptr_t)graph, .now = 0 };
    uint64_t live = 0;
    for (int i = 0; known.owner && i < DEEPEST && alq_find(ALQ_GRAPH, known.owner, &known); i++)
        live = known.now;
    return live;
}

/* Would a node of so many bytes still let the graph run within the quota? CUDA_SUCCESS, or the refusal. */
int alq_graph_may_alloc(CUgraph graph, uint64_t bytes, CUdevice device)
{
    int card = alq_card_of_device(device);
    if (card == ALQ_NO_CONTEXT)
        return CUDA_SUCCESS;
    if (card < 0)
        return alq_refuse(card);
    uint64_t spare = settle_now(card, 0), most = live_in(graph) + bytes, more = most > spare ? most - spare : 0;
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
    follow_up((uintptr_t)graph, (int64_t)bytes, 0, card);
    alq_book((struct alq_entry){ .kind = ALQ_IN_GRAPH, .key = p, .size = bytes, .owner = (uintptr_t)graph, .card = (int8_t)card });
}

void alq_graph_frees(CUgraph graph, CUdeviceptr p)
{
    struct alq_entry pointer;
    if (!alq_find(ALQ_IN_GRAPH, p, &pointer))
        return;
    follow_up((uintptr_t)graph, -(int64_t)pointer.size, 0, pointer.card);
}

/* The card that a node will take memory of; -1: none. */
static int device_of(const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    int device = params ? alq_ordinal_of(&params->pool.location) : -1;
    if (params && device < 0 && params->pool.type == ALLOCATION_MANAGED)
        alq_card_of_context(&device);
    return device;
}

int alq_cuGraphAddMemAllocNode(fn_cuGraphAddMemAllocNode *real, int ptsz, CUgraphNode *node, CUgraph graph,
                               const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    (void)ptsz;
    int device = device_of(params);
    bool counts = device >= 0;
    int refused = counts ? alq_graph_may_alloc(graph, alq_rounded(params->bytes), device) : CUDA_SUCCESS;
    if (refused)
        return refused;
    int result = ALQ_INSIDE(real(node, graph, after, count, params));
    if (result == CUDA_SUCCESS && counts)
        alq_graph_allocates(graph, params->pointer, alq_rounded(params->bytes), device);
    return result;
}

int alq_cuGraphAddMemFreeNode(fn_cuGraphAddMemFreeNode *real, int ptsz, CUgraphNode *node, CUgraph graph,
                              const CUgraphNode *after, size_t count, CUdeviceptr p)
{
    (void)ptsz;
    int result = ALQ_INSIDE(real(node, graph, after, count, p));
    if (result == CUDA_SUCCESS)
        alq_graph_frees(graph, p);
    return result;
}

/* cuGraphAddNode of any version: before and after the real call. */
static int may_add(CUgraph graph, const CUgraphNodeParams *params)
{
    int device = params && params->type == NODE_MEM_ALLOC ? device_of(&params->u.alloc) : -1;
    return device < 0 ? CUDA_SUCCESS : alq_graph_may_alloc(graph, alq_rounded(params->u.alloc.bytes), device);
}

static int added(int result, CUgraph graph, const CUgraphNodeParams *params)
{
    if (result != CUDA_SUCCESS || !params)
        return result;
    if (params->type == NODE_MEM_ALLOC && device_of(&params->u.alloc) >= 0)
        alq_graph_allocates(graph, params->u.alloc.pointer, alq_rounded(params->u.alloc.bytes), device_of(&params->u.alloc));
    else if (params->type == NODE_GRAPH)
        adopt(graph, params->u.child.graph, params->u.child.ownership == 1);
    else if (params->type == NODE_CONDITIONAL)
        for (unsigned i = 0; params->u.conditional.bodies && i < params->u.conditional.size; i++)
            adopt(graph, params->u.conditional.bodies[i], true);
    else if (params->type == NODE_MEM_FREE)
        alq_graph_frees(graph, params->u.free);
    return result;
}

int alq_cuGraphAddNode(fn_cuGraphAddNode *real, int ptsz, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                       size_t count, CUgraphNodeParams *params)
{
    (void)ptsz;
    int refused = may_add(graph, params);
    return refused ? refused : added(ALQ_INSIDE(real(node, graph, after, count, params)), graph, params);
}

int alq_cuGraphAddNode_v2(fn_cuGraphAddNode_v2 *real, int ptsz, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                          const void *edges, size_t count, CUgraphNodeParams *params)
{
    (void)ptsz;
    int refused = may_add(graph, params);
    return refused ? refused : added(ALQ_INSIDE(real(node, graph, after, edges, count, params)), graph, params);
}

int alq_cuGraphAddNode_v3(fn_cuGraphAddNode_v3 *real, int ptsz, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                          const void *edges, size_t count, CUgraphNodeParams *params)
{
    (void)ptsz;
    int refused = may_add(graph, params);
    return refused ? refused : added(ALQ_INSIDE(real(node, graph, after, edges, count, params)), graph, params);
}

int alq_cuGraphAddChildGraphNode(fn_cuGraphAddChildGraphNode *real, int ptsz, CUgraphNode *node, CUgraph graph,
                                 const CUgraphNode *after, size_t count, CUgraph child)
{
    (void)ptsz;
    int result = real(node, graph, after, count, child);
    if (result == CUDA_SUCCESS)
        adopt(graph, child, false);
    return result;
}

int alq_cuGraphClone(fn_cuGraphClone *real, int ptsz, CUgraph *clone, CUgraph graph)
{
    (void)ptsz;
    struct alq_entry known;
    int result = real(clone, graph);
    if (result == CUDA_SUCCESS && clone && alq_find(ALQ_GRAPH, (uintptr_t)graph, &known)) {
        known.key = (uintptr_t)*clone;
        known.owner = 0;
        alq_book(known);
    }
    return result;
}

/* ---- from a graph to what is launched ---- */

static int instantiated(int result, const CUgraphExec *exec, CUgraph graph)
{
    struct alq_entry known;
    if (result == CUDA_SUCCESS && exec && __atomic_load_n(&any, __ATOMIC_RELAXED) && alq_find(ALQ_GRAPH, (uintptr_t)graph, &known) &&
        known.size) {
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
    return instantiated(ALQ_INSIDE(real(exec, graph, bad, log, size)), exec, graph);
}

int alq_cuGraphInstantiate_v2(fn_cuGraphInstantiate_v2 *real, int ptsz, CUgraphExec *exec, CUgraph graph, CUgraphNode *bad,
                              char *log, size_t size)
{
    (void)ptsz;
    return instantiated(ALQ_INSIDE(real(exec, graph, bad, log, size)), exec, graph);
}

int alq_cuGraphInstantiateWithFlags(fn_cuGraphInstantiateWithFlags *real, int ptsz, CUgraphExec *exec, CUgraph graph,
                                    unsigned long long flags)
{
    (void)ptsz;
    return instantiated(ALQ_INSIDE(real(exec, graph, flags)), exec, graph);
}

int alq_cuGraphInstantiateWithParams(fn_cuGraphInstantiateWithParams *real, int ptsz, CUgraphExec *exec, CUgraph graph,
                                     void *params)
{
    (void)ptsz;
    return instantiated(ALQ_INSIDE(real(exec, graph, params)), exec, graph);
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

/* The truth is charged, also of a graph that was not seen to allocate, in a program whose graphs do. */
static void launched(int card, uint64_t more)
{
    if (card >= 0)
        settle_now(card, more);
    for (int i = 0; card < 0 && __atomic_load_n(&any, __ATOMIC_RELAXED) && i < ALQ_CARDS; i++)
        alq_graph_settle(i);
}

int alq_cuGraphLaunch(fn_cuGraphLaunch *real, int ptsz, CUgraphExec exec, CUstream stream)
{
    int card;
    uint64_t more = 0;
    struct alq_use *use = alq_work(true, ptsz, stream);
    int entered = alq_enter();
    int result = entered == ALQ_GONE ? CUDA_ERROR_UNKNOWN : reserve_for(exec, stream, ptsz, &card, &more);
    if (result == CUDA_SUCCESS) {
        result = real(exec, stream);
        launched(card, more);
    }
    alq_handed_over(use);
    alq_leave(entered);
    return result;
}

int alq_cuGraphUpload(fn_cuGraphUpload *real, int ptsz, CUgraphExec exec, CUstream stream)
{
    int card;
    uint64_t more = 0;
    alq_work(false, ptsz, stream);
    int entered = alq_enter();
    int result = entered == ALQ_GONE ? CUDA_ERROR_UNKNOWN : reserve_for(exec, stream, ptsz, &card, &more);
    if (result == CUDA_SUCCESS) {
        result = real(exec, stream);
        launched(card, more);
    }
    alq_leave(entered);
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
    return (e->kind == ALQ_IN_GRAPH && e->owner == (uintptr_t)graph) ||
           (e->kind == ALQ_GRAPH && (e->key == (uintptr_t)graph || e->owner == (uintptr_t)graph));
}

/* With the graphs that are its parts: their handles may soon be other graphs'. */
static void forget_graph(uint64_t graph, int depth)
{
    struct alq_entry known;
    size_t at = 0;
    while (alq_take_where(of_graph, (const void *)(uintptr_t)graph, &at, &known))
        if (known.kind == ALQ_GRAPH && known.key != graph && depth < DEEPEST)
            forget_graph(known.key, depth + 1);
}

int alq_cuGraphDestroy(fn_cuGraphDestroy *real, int ptsz, CUgraph graph)
{
    (void)ptsz;
    struct alq_entry known;
    if (alq_find(ALQ_GRAPH, (uintptr_t)graph, &known))
        forget_graph((uintptr_t)graph, 0);
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
