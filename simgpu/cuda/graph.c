/* graph.c - graphs: a list of pieces of work, built by hand or captured from a stream, submitted as one.
 *
 * Nodes run in the order they were added, which respects every dependency: those can only name nodes that exist.
 */
#include "launch.h"
#include <stdlib.h>

struct CUgraphNode_st { CUgraphNode next; CUgraph graph; struct op op; };
struct CUgraph_st { CUgraphNode nodes, *end; struct device *device; uint64_t memory; size_t count; };
struct CUgraphExec_st { struct op *ops; size_t count; struct device *device; uint64_t memory; bool reserved; };

CUgraph graph_make(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    if (!graph) return NULL;
    graph->end = &graph->nodes;
    if (handle_add(graph, H_GRAPH)) return graph;
    free(graph);
    return NULL;
}

static CUgraphNode append(CUgraph graph, const struct op *op)
{
    CUgraphNode node = calloc(1, sizeof *node);
    if (!node || !handle_add(node, H_NODE)) {
        free(node);
        return NULL;
    }
    *node = (struct CUgraphNode_st){ .graph = graph, .op = *op };
    *graph->end = node;
    graph->end = &node->next;
    graph->count++;
    return node;
}

CUresult graph_note(CUgraph graph, const struct op *op)
{
    return append(graph, op) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Memory that belongs to the graph: its address is known now, the card's bytes are taken at the first launch. */
CUresult graph_allocate(CUgraph graph, struct device *device, size_t bytes, CUdeviceptr *address)
{
    struct range range;
    CUresult result = range_make(bytes, 512, RANGE_GRAPH, &range);
    if (result != CUDA_SUCCESS) return result;
    graph->device = device;
    graph->memory += (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    *address = range.base;
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *node, CUgraph graph, const struct op *op)
{
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    *node = append(graph, op);
    return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult graph_check(CUgraph graph)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return handle_is(graph, H_GRAPH) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    *graph = graph_make();
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphDestroy(CUgraph graph)
{
    CUresult result = graph_check(graph);
    if (result != CUDA_SUCCESS) return result;
    handle_drop(graph, H_GRAPH);
    while (graph->nodes) {
        CUgraphNode node = graph->nodes;
        graph->nodes = node->next;
        handle_drop(node, H_NODE);
        free(node);
    }
    free(graph);
    return CUDA_SUCCESS;
}

API cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                         const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct op op;
    (void)after, (void)count;
    CUresult result = graph_check(graph);
    if (result != CUDA_SUCCESS) return result;
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    const unsigned int shape[6] = { params->gridDimX, params->gridDimY, params->gridDimZ,
                                    params->blockDimX, params->blockDimY, params->blockDimZ };
    result = kernel_op(params->func, shape, params->kernelParams, params->extra, &op);
    return result == CUDA_SUCCESS ? add(node, graph, &op) : result;
}

API cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                            const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    return cuGraphAddKernelNode(node, graph, after, count, (const CUDA_KERNEL_NODE_PARAMS_v1 *)params);
}

API cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                           CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    (void)after, (void)count;
    CUresult result = graph_check(graph);
    if (result != CUDA_SUCCESS) return result;
    if (!params || !params->bytesize || params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_of(params->poolProps.location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    result = graph_allocate(graph, device, params->bytesize, &params->dptr);
    return result == CUDA_SUCCESS ? add(node, graph, &(struct op){ .kind = OP_NOTHING }) : result;
}

API cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address)
{
    struct range range;
    (void)after, (void)count;
    CUresult result = graph_check(graph);
    if (result != CUDA_SUCCESS) return result;
    if (!range_find(address, &range) || range.kind != RANGE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    return add(node, graph, &(struct op){ .kind = OP_NOTHING });
}

API cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                       const CUDA_HOST_NODE_PARAMS *params)
{
    (void)after, (void)count;
    CUresult result = graph_check(graph);
    if (result != CUDA_SUCCESS) return result;
    if (!params || !params->fn) return CUDA_ERROR_INVALID_VALUE;
    return add(node, graph, &(struct op){ .kind = OP_HOST, .host = { params->fn, params->userData } });
}

API cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count)
{
    (void)after, (void)count;
    CUresult result = graph_check(graph);
    return result == CUDA_SUCCESS ? add(node, graph, &(struct op){ .kind = OP_NOTHING }) : result;
}

/* The newer way to add a node of any kind; those that are not played here are refused. */
API cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params)
{
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode(node, graph, after, count, (const CUDA_KERNEL_NODE_PARAMS_v1 *)&params->kernel);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphAddHostNode(node, graph, after, count, (const CUDA_HOST_NODE_PARAMS *)&params->host);
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(node, graph, after, count);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, after, count, (CUDA_MEM_ALLOC_NODE_PARAMS *)&params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(node, graph, after, count, params->free.dptr);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges,
                      size_t count, CUgraphNodeParams *params)
{
    (void)edges;
    return cuGraphAddNode(node, graph, after, count, params);
}

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    CUresult result = graph_check(graph);
    if (result != CUDA_SUCCESS) return result;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    size_t i = 0;
    for (CUgraphNode node = graph->nodes; nodes && node && i < *count; node = node->next) nodes[i++] = node;
    *count = nodes ? i : graph->count;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
    CUresult result = graph_check(graph);
    if (result != CUDA_SUCCESS) return result;
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec made = calloc(1, sizeof *made);
    struct op *ops = calloc(graph->count + 1, sizeof *ops);
    if (!made || !ops || !handle_add(made, H_EXEC)) {
        free(made);
        free(ops);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUgraphExec_st){ .ops = ops, .device = graph->device, .memory = graph->memory };
    for (CUgraphNode node = graph->nodes; node; node = node->next) ops[made->count++] = node->op;
    *exec = made;
    return CUDA_SUCCESS;
}

API cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    (void)error, (void)log, (void)size;
    return instantiate(exec, graph);
}

API cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    (void)error, (void)log, (void)size;
    return instantiate(exec, graph);
}

API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    return instantiate(exec, graph);
}

API cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph);
    params->result_out = result == CUDA_SUCCESS ? 0 : 1;
    params->hErrNode_out = NULL;
    return result;
}

API cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return cuGraphInstantiateWithParams(exec, graph, params);
}

API cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_drop(exec, H_EXEC)) return CUDA_ERROR_INVALID_VALUE;
    if (exec->reserved) {
        ledger_release(exec->device, exec->memory);
        tally_add(&exec->device->graph_reserved, -(int64_t)exec->memory);
        tally_add(&exec->device->graph_used, -(int64_t)exec->memory);
    }
    free(exec->ops);
    free(exec);
    return CUDA_SUCCESS;
}

API cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(exec, H_EXEC)) return CUDA_ERROR_INVALID_VALUE;
    if (exec->memory && !exec->reserved) {
        if ((result = ledger_reserve(exec->device, exec->memory)) != CUDA_SUCCESS) return result;
        tally_add(&exec->device->graph_reserved, (int64_t)exec->memory);
        tally_add(&exec->device->graph_used, (int64_t)exec->memory);
        exec->reserved = true;
    }
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) result = stream_issue(stream, &exec->ops[i]);
    return result;
}

API cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    return handle_is(exec, H_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    struct device *device = device_of(ordinal);
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!device || !value) return device ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = device->graph_used.current; break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *(uint64_t *)value = device->graph_used.high; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = device->graph_reserved.current; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = device->graph_reserved.high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API cuDeviceGraphMemTrim(CUdevice ordinal)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return device_of(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; /* none is kept beyond its graph */
}
