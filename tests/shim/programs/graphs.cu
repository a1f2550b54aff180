/* graphs.cu - captures and graphs; arrays, textures and copies. Built with relocatable code: kernels launch graphs. */
#include <cooperative_groups.h>
#include "common.cuh"

static cudaStream_t new_stream() { cudaStream_t s; MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); return s; }

PROGRAM(graph_capture)
{
    size_t n = 16 * MIB;
    void *p, *q;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t s = new_stream(), t = new_stream();
    cudaEvent_t fork, join;
    MUST(cudaMalloc(&p, n)); MUST(cudaMalloc(&q, n));
    MUST(cudaMemset(p, 0, n)); MUST(cudaDeviceSynchronize());
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming); cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    R(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    add(p, n, 3, s);
    R(cudaEventRecord(fork, s)); R(cudaStreamWaitEvent(t, fork, 0));
    R(cudaMemcpyAsync(q, p, n, cudaMemcpyDeviceToDevice, t));
    R(cudaMemsetAsync(p, 1, n / 2, s));
    R(cudaEventRecord(join, t)); R(cudaStreamWaitEvent(s, join, 0));
    add(q, n, 1, s);
    R(cudaStreamEndCapture(s, &graph));
    size_t nodes = 0;
    R(cudaGraphGetNodes(graph, nullptr, &nodes)); say("nodes", nodes);
    R(cudaGraphInstantiate(&exec, graph, 0));
    R(cudaGraphDestroy(graph));
    for (int i = 0; i < 3; i++) R(cudaGraphLaunch(exec, s));
    R(cudaStreamSynchronize(s));
    SUM(p, n); SUM(q, n);
    moment();
    for (int i = 0; i < 3; i++) R(cudaGraphLaunch(exec, s));
    R(cudaStreamSynchronize(s));
    SUM(p, n); SUM(q, n);
    R(cudaGraphUpload(exec, s));
    R(cudaGraphExecDestroy(exec));
    return 0;
}

PROGRAM(graph_memory)
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *p, *out;
    size_t n = 32 * MIB;
    MUST(cudaMalloc(&out, n));
    R(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    R(cudaMallocAsync(&p, n, s));
    fill(p, n, 9, s);
    R(cudaMemcpyAsync(out, p, n, cudaMemcpyDeviceToDevice, s));
    R(cudaFreeAsync(p, s));
    R(cudaStreamEndCapture(s, &graph));
    R(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    SUM(out, n);
    moment();
    R(cudaMemset(out, 0, n));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    SUM(out, n);
    uint64_t used = 1;
    R(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used)); say("used", used);
    R(cudaGraphExecDestroy(exec)); R(cudaGraphDestroy(graph));
    R(cudaDeviceGraphMemTrim(0));
    R(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &used)); say("reserved", used);
    /* memory that outlives its graph, and is freed outside of it */
    cudaGraphNode_t node;
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location = { cudaMemLocationTypeDevice, 0 };
    params.bytesize = n;
    R(cudaGraphCreate(&graph, 0));
    R(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
    R(cudaGraphInstantiate(&exec, graph, 0));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    fill(params.dptr, n, 4, s);
    R(cudaStreamSynchronize(s));
    SUM(params.dptr, n);
    R(cudaGraphLaunch(exec, s));
    R(cudaGetLastError());
    R(cudaFreeAsync(params.dptr, s));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    R(cudaFree(params.dptr));
    R(cudaGraphExecDestroy(exec)); R(cudaGraphDestroy(graph));
    return 0;
}

static void host_call(void *p) { free(malloc(1000)); ++*(std::atomic<int> *)p; }
PROGRAM(graph_nodes)
{
    size_t n = 8 * MIB;
    unsigned *p, k = 5;
    cudaGraph_t graph, child, clone;
    cudaGraphExec_t exec;
    cudaGraphNode_t set, kernel, copy, host, sub, found;
    cudaStream_t s = new_stream();
    std::atomic<int> called{0};
    std::vector<unsigned> back(n / 4);
    MUST(cudaMalloc(&p, n)); MUST(cudaHostRegister(back.data(), n, 0));
    R(cudaGraphCreate(&graph, 0)); R(cudaGraphCreate(&child, 0));
    cudaMemsetParams memset_ = {}; memset_.dst = p; memset_.value = 2; memset_.elementSize = 4; memset_.width = n / 4; memset_.height = 1;
    R(cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &memset_));
    size_t words = n / 4;
    void *args[] = { &p, &words, &k };
    cudaKernelNodeParams launch = {};
    launch.func = (void *)add_; launch.gridDim = 64; launch.blockDim = 256; launch.kernelParams = args;
    R(cudaGraphAddKernelNode(&kernel, child, nullptr, 0, &launch));
    R(cudaGraphAddChildGraphNode(&sub, graph, &set, 1, child));
    R(cudaGraphAddMemcpyNode1D(&copy, graph, &sub, 1, back.data(), p, n, cudaMemcpyDeviceToHost));
    cudaHostNodeParams call = { host_call, &called };
    R(cudaGraphAddHostNode(&host, graph, &copy, 1, &call));
    R(cudaGraphClone(&clone, graph));
    R(cudaGraphNodeFindInClone(&found, host, clone));
    R(cudaGraphInstantiate(&exec, clone, 0));
    moment();
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    say("back", back[77]); say("called", called);
    k = 9;
    R(cudaGraphKernelNodeSetParams(kernel, &launch));
    cudaGraph_t inner;
    R(cudaGraphChildGraphNodeGetGraph(sub, &inner));
    cudaGraphNode_t first; size_t one = 1;
    R(cudaGraphGetRootNodes(inner, &first, &one));
    R(cudaGraphKernelNodeSetParams(first, &launch));
    cudaGraphExecUpdateResultInfo info = {};
    R(cudaGraphExecUpdate(exec, graph, &info)); say("updated", info.result);
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    say("back", back[77]);
    R(cudaGraphExecMemsetNodeSetParams(exec, set, &memset_));
    R(cudaGraphNodeSetEnabled(exec, set, 0));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    say("back", back[77]);
    R(cudaGraphExecMemcpyNodeSetParams1D(exec, copy, back.data(), p, n / 2, cudaMemcpyDeviceToHost));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    say("halves", back[77] * 1000 + back[n / 4 - 1]);
    R(cudaGraphExecDestroy(exec)); R(cudaGraphDestroy(clone)); R(cudaGraphDestroy(graph)); R(cudaGraphDestroy(child));
    return 0;
}

static __global__ void count_down(cudaGraphConditionalHandle handle, unsigned *p) { if (--*p == 0) cudaGraphSetConditional(handle, 0); }
PROGRAM(graph_conditional)
{
    cudaGraph_t graph;
    cudaGraphConditionalHandle handle;
    unsigned *p, ten = 10, left = 99;
    cudaStream_t s = new_stream();
    MUST(cudaMalloc(&p, 4 * MIB)); MUST(cudaMemcpy(p, &ten, 4, cudaMemcpyHostToDevice));
    R(cudaGraphCreate(&graph, 0));
    R(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle; params.conditional.type = cudaGraphCondTypeWhile; params.conditional.size = 1;
    cudaGraphNode_t node, inner;
    R(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    cudaKernelNodeParams launch = {};
    void *args[] = { &handle, &p };
    launch.func = (void *)count_down; launch.gridDim = 1; launch.blockDim = 1; launch.kernelParams = args;
    R(cudaGraphAddKernelNode(&inner, params.conditional.phGraph_out[0], nullptr, 0, &launch));
    cudaGraphExec_t exec;
    R(cudaGraphInstantiate(&exec, graph, 0));
    moment();
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    R(cudaMemcpy(&left, p, 4, cudaMemcpyDeviceToHost)); say("left", left);
    return 0;
}

static __global__ void launch_graph(cudaGraphExec_t exec) { cudaGraphLaunch(exec, cudaStreamGraphFireAndForget); }
PROGRAM(graph_from_device)
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph, outer;
    cudaGraphExec_t inner, exec;
    unsigned *p;
    MUST(cudaMalloc(&p, 4 * MIB)); MUST(cudaMemset(p, 0, 4 * MIB)); MUST(cudaDeviceSynchronize());
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    add(p, 4 * MIB, 6, s);
    MUST(cudaStreamEndCapture(s, &graph));
    R(cudaGraphInstantiate(&inner, graph, cudaGraphInstantiateFlagDeviceLaunch));
    R(cudaGraphUpload(inner, s));
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    launch_graph<<<1, 1, 0, s>>>(inner);
    MUST(cudaStreamEndCapture(s, &outer));
    R(cudaGraphInstantiate(&exec, outer, 0));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    moment();
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    SUM(p, 4 * MIB);
    return 0;
}

PROGRAM(capture_threads)
{
    std::atomic<int> stage{0};
    void *p;
    MUST(cudaMalloc(&p, 8 * MIB)); MUST(cudaMemset(p, 0, 8 * MIB)); MUST(cudaDeviceSynchronize());
    cudaGraph_t graph = nullptr;
    cudaStream_t s = new_stream();
    std::thread capturer([&] {
        R(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        add(p, 8 * MIB, 2, s);
        stage = 1;
        while (stage < 2) usleep(1000);
        add(p, 8 * MIB, 3, s);
    });
    while (stage < 1) usleep(1000);
    void *q, *a;
    R(cudaMalloc(&q, 16 * MIB));
    R(cudaMallocAsync(&a, 16 * MIB, 0));
    fill(q, 16 * MIB, 3);
    R(cudaStreamSynchronize(0));
    R(cudaFree(q));
    R(cudaFreeAsync(a, 0));
    R(cudaDeviceSynchronize());
    stage = 2;
    capturer.join();
    R(cudaStreamEndCapture(s, &graph));     /* another thread than the one that began */
    R(cudaGetLastError());
    cudaStreamCaptureStatus status;
    R(cudaStreamIsCapturing(s, &status)); say("status", status);
    moment();
    /* relaxed: any thread may go on and end it */
    R(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    std::thread([&] { add(p, 8 * MIB, 4, s); R(cudaMalloc(&q, MIB)); R(cudaStreamEndCapture(s, &graph)); }).join();
    cudaGraphExec_t exec;
    R(cudaGraphInstantiate(&exec, graph, 0));
    R(cudaGraphLaunch(exec, s)); R(cudaStreamSynchronize(s));
    SUM(p, 8 * MIB);
    return 0;
}

PROGRAM(capture_errors)
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph = nullptr;
    void *p, *q;
    MUST(cudaMalloc(&p, 8 * MIB));
    for (auto mode : { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed }) {
        const std::vector<std::pair<const char *, std::function<int()>>> calls = {
            { "malloc", [&] { return cudaMalloc(&q, 4 * MIB); } },
            { "malloc small", [&] { return cudaMalloc(&q, 4); } },
            { "sync", [&] { return cudaStreamSynchronize(s); } },
            { "device sync", [&] { return cudaDeviceSynchronize(); } },
            { "query", [&] { return cudaStreamQuery(s); } },
            { "info", [&] { size_t a, b; return cudaMemGetInfo(&a, &b); } },
            { "memcpy", [&] { int x; return cudaMemcpy(&x, p, 4, cudaMemcpyDeviceToHost); } },
            { "host alloc", [&] { return cudaMallocHost(&q, 4096); } },
            { "event", [&] { cudaEvent_t e; return cudaEventCreate(&e); } },
            { "pool trim", [&] { cudaMemPool_t pool; cudaDeviceGetDefaultMemPool(&pool, 0); return cudaMemPoolTrimTo(pool, 0); } },
            { "async on another", [&] { return cudaMallocAsync(&q, 4 * MIB, cudaStreamPerThread); } },
            { "attributes", [&] { cudaPointerAttributes a; return cudaPointerGetAttributes(&a, p); } },
            { "free", [&] { return cudaFree(q); } },
            { "legacy stream", [&] { return cudaMemsetAsync(p, 0, 4, 0); } },
        };
        for (auto &[name, call] : calls) {
            q = nullptr;
            if (!strcmp(name, "free")) cudaMalloc(&q, 4 * MIB);
            say("begin", cudaStreamBeginCapture(s, mode));
            add(p, 8 * MIB, 1, s);
            say(name, call());
            say("end", cudaStreamEndCapture(s, &graph));
            say("last error", cudaGetLastError());
            cudaDeviceSynchronize();
        }
        moment();
    }
    return 0;
}

/* ---- arrays, textures, copies ---- */

static __global__ void read_2d(cudaTextureObject_t t, float *out, int w, int h)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < w) out[y * w + x] = tex2D<float>(t, x + 0.5f, y + 0.5f);
}
static __global__ void write_2d(cudaSurfaceObject_t s, int w, int h)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < w) surf2Dwrite((float)(x * 3 + y), s, x * 4, y);
}
static __global__ void read_lod(cudaTextureObject_t t, float *out) { out[threadIdx.x] = tex2DLod<float>(t, 0.5f, 0.5f, (float)threadIdx.x); }
static __global__ void read_linear(cudaTextureObject_t t, float *out) { out[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x * 5); }

PROGRAM(arrays)
{
    int w = 512, h = 256;
    cudaChannelFormatDesc desc = cudaCreateChannelDesc<float>();
    cudaArray_t array, cube;
    R(cudaMallocArray(&array, &desc, w, h, cudaArraySurfaceLoadStore));
    cudaResourceDesc res = {}; res.resType = cudaResourceTypeArray; res.res.array.array = array;
    cudaTextureDesc how = {}; how.readMode = cudaReadModeElementType; how.filterMode = cudaFilterModePoint;
    cudaSurfaceObject_t surface; cudaTextureObject_t texture;
    R(cudaCreateSurfaceObject(&surface, &res)); R(cudaCreateTextureObject(&texture, &res, &how, nullptr));
    write_2d<<<dim3(4, h), 128>>>(surface, w, h);
    float *out;
    R(cudaMalloc(&out, w * h * 4));
    R(cudaDeviceSynchronize());
    moment();
    read_2d<<<dim3(4, h), 128>>>(texture, out, w, h);
    SUM(out, w * h * 4);
    cudaExtent extent = make_cudaExtent(32, 32, 32);
    R(cudaMalloc3DArray(&cube, &desc, extent, 0));
    cudaMemcpy3DParms copy = {};
    std::vector<float> host(32 * 32 * 32, 1.5f), back(32 * 32 * 32);
    copy.srcPtr = make_cudaPitchedPtr(host.data(), 128, 32, 32); copy.dstArray = cube; copy.extent = extent; copy.kind = cudaMemcpyHostToDevice;
    R(cudaMemcpy3D(&copy));
    copy = {}; copy.srcArray = cube; copy.dstPtr = make_cudaPitchedPtr(back.data(), 128, 32, 32); copy.extent = extent; copy.kind = cudaMemcpyDeviceToHost;
    R(cudaMemcpy3D(&copy)); say("same", host == back);
    cudaMipmappedArray_t mip; cudaArray_t level;
    R(cudaMallocMipmappedArray(&mip, &desc, make_cudaExtent(64, 64, 0), 4, 0));
    for (unsigned i = 0; i < 4; i++) {
        R(cudaGetMipmappedArrayLevel(&level, mip, i));
        std::vector<float> plane((64 >> i) * (64 >> i), (float)i + 1);
        R(cudaMemcpy2DToArray(level, 0, 0, plane.data(), (64 >> i) * 4, (64 >> i) * 4, 64 >> i, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc mres = {}; mres.resType = cudaResourceTypeMipmappedArray; mres.res.mipmap.mipmap = mip;
    cudaTextureDesc mhow = {}; mhow.normalizedCoords = 1; mhow.maxMipmapLevelClamp = 3; mhow.readMode = cudaReadModeElementType;
    cudaTextureObject_t mtex;
    R(cudaCreateTextureObject(&mtex, &mres, &mhow, nullptr));
    read_lod<<<1, 4>>>(mtex, out);
    float lods[4];
    R(cudaMemcpy(lods, out, sizeof lods, cudaMemcpyDeviceToHost)); say("lods", (long long)(lods[0] * 1000 + lods[1] * 100 + lods[2] * 10 + lods[3]));
    R(cudaDestroyTextureObject(mtex)); R(cudaFreeMipmappedArray(mip));
    R(cudaFreeArray(cube)); R(cudaDestroyTextureObject(texture)); R(cudaDestroySurfaceObject(surface)); R(cudaFreeArray(array));
    R(cudaFreeArray(nullptr));
    desc.x = 77;
    R(cudaMallocArray(&array, &desc, w, h));
    R(cudaGetLastError());
    return 0;
}

PROGRAM(linear_textures)
{
    float *p, *out, back[64]; size_t pitch; void *rows;
    std::vector<float> host(MIB);
    for (size_t i = 0; i < host.size(); i++) host[i] = (float)i;
    MUST(cudaMalloc(&p, 4 * MIB)); MUST(cudaMalloc(&out, 4 * MIB)); MUST(cudaMemcpy(p, host.data(), 4 * MIB, cudaMemcpyHostToDevice));
    MUST(cudaMallocPitch(&rows, &pitch, 400, 100));
    MUST(cudaMemcpy2D(rows, pitch, host.data(), 400, 400, 100, cudaMemcpyHostToDevice));
    cudaResourceDesc res = {}; res.resType = cudaResourceTypeLinear; res.res.linear.devPtr = p; res.res.linear.desc = cudaCreateChannelDesc<float>(); res.res.linear.sizeInBytes = 4 * MIB;
    cudaResourceDesc flat = {}; flat.resType = cudaResourceTypePitch2D; flat.res.pitch2D.devPtr = rows; flat.res.pitch2D.desc = cudaCreateChannelDesc<float>(); flat.res.pitch2D.width = 100; flat.res.pitch2D.height = 100; flat.res.pitch2D.pitchInBytes = pitch;
    cudaTextureDesc how = {}; how.readMode = cudaReadModeElementType;
    cudaTextureObject_t line, plane;
    R(cudaCreateTextureObject(&line, &res, &how, nullptr)); R(cudaCreateTextureObject(&plane, &flat, &how, nullptr));
    moment();
    read_linear<<<1, 64>>>(line, out);
    R(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost)); say("back", (long long)back[63]);
    read_2d<<<dim3(1, 100), 128>>>(plane, out, 100, 100);
    SUM(out, 40000);
    R(cudaDestroyTextureObject(line)); R(cudaDestroyTextureObject(plane)); R(cudaFree(rows)); R(cudaFree(p));
    return 0;
}

PROGRAM(copies)
{
    size_t n = 16 * MIB;
    char *a, *b; void *h;
    MUST(cudaMalloc(&a, n)); MUST(cudaMalloc(&b, n)); MUST(cudaMallocHost(&h, n));
    fill(a, n, 8);
    R(cudaMemcpy(h, a, n, cudaMemcpyDefault));
    R(cudaMemcpyAsync(b, h, n, cudaMemcpyDefault, cudaStreamPerThread));
    R(cudaMemcpyAsync(b + 100, a + 7, 999999, cudaMemcpyDeviceToDevice, cudaStreamPerThread));
    R(cudaMemcpyPeerAsync(b + 5 * MIB, 0, a, 0, MIB, cudaStreamPerThread));
    R(cudaMemset2DAsync(b + 8 * MIB, 4096, 5, 1000, 100, cudaStreamPerThread));
    R(cudaStreamSynchronize(cudaStreamPerThread));
    moment();
    SUM(b, n);
    R(cudaMemcpy2D(b, 4096, a, 2048, 2048, 512, cudaMemcpyDeviceToDevice));
    R(cuMemsetD16((CUdeviceptr)b + 2, 0x1234, 77));
    R(cuMemsetD2D32((CUdeviceptr)b + 4 * MIB, 8192, 7, 100, 100));
    R(cuMemsetD8((CUdeviceptr)b + 3, 9, 0));
    R(cudaMemcpy(b, a, 0, cudaMemcpyDeviceToDevice));
    R(cudaMemcpy(b, a, n + 4096, cudaMemcpyDeviceToDevice));
    R(cudaGetLastError());
    R(cudaGetLastError());
    R(cudaDeviceSynchronize());
    SUM(b, n);
    return 0;
}
MAIN
