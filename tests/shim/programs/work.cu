/* work.cu - launches, streams, events and what goes wrong in kernels. Also built for per-thread default streams. */
#include <cooperative_groups.h>
#include <cassert>
#include "common.cuh"
namespace cg = cooperative_groups;

static __global__ void grid_wide(unsigned *p) { auto grid = cg::this_grid(); atomicAdd(p, 1); grid.sync(); if (!threadIdx.x) atomicAdd(p + 1, *p); }
static __global__ void __cluster_dims__(2, 1, 1) clustered(unsigned *p)
{
    __shared__ unsigned mine;
    auto cluster = cg::this_cluster();
    if (!threadIdx.x) mine = blockIdx.x + 1;
    cluster.sync();
    unsigned *other = cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
    if (!threadIdx.x) atomicAdd(p, *other);
    cluster.sync();
}
static __global__ void large_shared(unsigned *p) { extern __shared__ unsigned room[]; room[threadIdx.x * 150] = threadIdx.x; __syncthreads(); atomicAdd(p, room[(threadIdx.x ^ 1) * 150]); }
struct Big { unsigned words[1000]; };
static __global__ void big_argument(Big big, unsigned *p) { p[threadIdx.x] = big.words[threadIdx.x]; }
static __global__ void words(int n) { printf("kernel %d of %d\n", threadIdx.x, n); }
static __global__ void bad_write(unsigned *p) { p[threadIdx.x] = 1; }
static __global__ void asserts(int x) { assert(x == 3); }
static __global__ void traps() { __trap(); }

PROGRAM(launches)
{
    unsigned *p, back[8] = {};
    MUST(cudaMalloc(&p, 4 * MIB)); MUST(cudaMemset(p, 0, 4 * MIB));
    void *args[] = { &p };
    R(cudaLaunchCooperativeKernel((void *)grid_wide, dim3(32), dim3(64), args, 0, 0));
    R(cudaDeviceSynchronize());
    moment();
    clustered<<<8, 32>>>(p + 2);
    cudaLaunchConfig_t config = {}; cudaLaunchAttribute attrs[3] = {};
    config.gridDim = 8; config.blockDim = 32; config.attrs = attrs; config.numAttrs = 3;
    attrs[0].id = cudaLaunchAttributeClusterDimension; attrs[0].val.clusterDim.x = 2; attrs[0].val.clusterDim.y = attrs[0].val.clusterDim.z = 1;
    attrs[1].id = cudaLaunchAttributeProgrammaticStreamSerialization; attrs[1].val.programmaticStreamSerializationAllowed = 1;
    attrs[2].id = cudaLaunchAttributePriority; attrs[2].val.priority = -1;
    R(cudaLaunchKernelEx(&config, clustered, p + 3));
    int blocks = 0;
    R(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, large_shared, 128, 100000)); say("blocks", blocks);
    R(cudaFuncSetAttribute((void *)large_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    R(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, large_shared, 128, 100000)); say("blocks", blocks);
    large_shared<<<1, 128, 100000>>>(p + 4);
    R(cudaGetLastError());
    Big big; for (int i = 0; i < 1000; i++) big.words[i] = i * 2;
    big_argument<<<1, 1000>>>(big, p + 1000);
    R(cudaMemcpy(back, p, sizeof back, cudaMemcpyDeviceToHost));
    for (unsigned one : back) say("word", one);
    SUM(p + 1000, 4000);
    fill_<<<0, 1>>>(p, 1, 1); R(cudaGetLastError());
    fill_<<<1, 5000>>>(p, 1, 1); R(cudaGetLastError());
    large_shared<<<1, 128, 500000>>>(p); R(cudaGetLastError());
    R(cudaDeviceSynchronize());
    return 0;
}

static void calls_malloc(void *p) { std::string text(5000, 'x'); free(malloc(100000)); *(std::atomic<int> *)p += (int)text.size(); }
static void calls_back(cudaStream_t, cudaError_t e, void *p) { *(std::atomic<int> *)p += 1 + (int)e; }
PROGRAM(callbacks)
{
    std::atomic<int> count{0};
    cudaStream_t s[4]; int least, most, priority;
    R(cudaDeviceGetStreamPriorityRange(&least, &most)); say("least", least); say("most", most);
    for (int i = 0; i < 4; i++) { R(cudaStreamCreateWithPriority(&s[i], cudaStreamNonBlocking, i % 2 ? most : least)); R(cudaStreamGetPriority(s[i], &priority)); say("priority", priority); }
    void *p; MUST(cudaMalloc(&p, 8 * MIB));
    for (int i = 0; i < 100; i++) {
        fill(p, 8 * MIB, i, s[i % 4]);
        if (cudaLaunchHostFunc(s[i % 4], calls_malloc, &count)) return 7;
        if (i % 10 == 0 && cudaStreamAddCallback(s[i % 4], calls_back, &count, 0)) return 8;
        if (i == 50) moment();
    }
    R(cudaDeviceSynchronize());
    say("count", count);
    return 0;
}

PROGRAM(events)
{
    cudaEvent_t a, b, c; float ms = -1; cudaStream_t s;
    MUST(cudaStreamCreate(&s));
    R(cudaEventCreate(&a)); R(cudaEventCreateWithFlags(&b, cudaEventBlockingSync)); R(cudaEventCreateWithFlags(&c, cudaEventDisableTiming));
    R(cudaEventRecord(a, s)); spin_<<<1, 1, 0, s>>>(20000000); R(cudaEventRecord(b, s)); R(cudaEventRecord(c, s));
    say("not ready", cudaEventQuery(b));
    say("elapsed", cudaEventElapsedTime(&ms, a, b));
    R(cudaEventSynchronize(b));
    R(cudaEventElapsedTime(&ms, a, b)); say("20 ms", ms > 19 && ms < 4000);
    R(cudaEventElapsedTime(&ms, a, c));
    R(cudaGetLastError());
    R(cudaStreamQuery(s));
    moment();
    R(cudaEventQuery(a)); R(cudaEventQuery(b));
    R(cudaEventElapsedTime(&ms, a, b)); say("20 ms", ms > 19 && ms < 4000);
    R(cudaEventRecord(b, s)); R(cudaEventSynchronize(b)); R(cudaStreamWaitEvent(s, b, 0));
    std::vector<cudaStream_t> many(300);
    for (auto &one : many) { if (cudaStreamCreate(&one)) return 4; spin_<<<1, 1, 0, one>>>(1000); }
    R(cudaDeviceSynchronize());
    for (auto one : many) if (cudaStreamDestroy(one)) return 5;
    unsigned *word; void *at;
    R(cudaHostAlloc(&word, 64, cudaHostAllocMapped)); R(cudaHostGetDevicePointer(&at, word, 0)); *word = 0;
    R(cuStreamWaitValue32(s, (CUdeviceptr)at, 5, CU_STREAM_WAIT_VALUE_EQ));
    R(cuStreamWriteValue32(s, (CUdeviceptr)at + 8, 6, 0));
    say("waits", cudaStreamQuery(s));
    *(volatile unsigned *)word = 5;
    R(cudaStreamSynchronize(s)); say("written", word[2]);
    R(cudaEventDestroy(a)); R(cudaEventDestroy(b)); R(cudaEventDestroy(c));
    return 0;
}

PROGRAM(busy_moment)   /* it leaves while work is under way, and other threads submit */
{
    std::atomic<bool> end{false}; std::atomic<int> failed{0};
    size_t n = 64 * MIB; void *p[4]; unsigned rounds[4] = {};
    std::vector<std::thread> threads;
    for (auto &one : p) { MUST(cudaMalloc(&one, n)); MUST(cudaMemset(one, 0, n)); }
    MUST(cudaDeviceSynchronize());
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            while (!end) {
                add(p[t], n, 1, s); rounds[t]++;
                if (rounds[t] % 8 == 0 && cudaStreamSynchronize(s)) { failed++; break; }
            }
            if (cudaStreamSynchronize(s)) failed++;
        });
    usleep(200000);
    moment();
    usleep(200000);
    end = true;
    for (auto &t : threads) t.join();
    for (int t = 0; t < 4; t++) {
        std::vector<unsigned> back(n / 4);
        MUST(cudaMemcpy(back.data(), p[t], n, cudaMemcpyDeviceToHost));
        size_t wrong = 0;
        for (unsigned word : back) wrong += word != rounds[t];
        say("wrong", wrong);
    }
    say("failed", failed);
    return 0;
}

PROGRAM(printf_kernel)
{
    R(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 2 * MIB));
    words<<<1, 4>>>(4); R(cudaDeviceSynchronize());
    moment();
    words<<<1, 4>>>(5);
    return 0;       /* the runtime flushes at the end, or not: as without us */
}

PROGRAM(illegal_address)
{
    void *p; MUST(cudaMalloc(&p, 4 * MIB));
    bad_write<<<1, 32>>>((unsigned *)0x10);
    R(cudaDeviceSynchronize()); R(cudaGetLastError());
    moment();
    R(cudaMalloc(&p, MIB)); R(cudaMalloc(&p, 8 * MIB)); R(cudaFree(p)); R(cudaMallocAsync(&p, MIB, 0)); R(cudaGetLastError());
    size_t a, b; R(cudaMemGetInfo(&a, &b));
    R(cudaDeviceReset());
    R(cudaGetLastError());
    return 0;
}
PROGRAM(kernel_assert) { asserts<<<1, 2>>>(4); R(cudaDeviceSynchronize()); moment(); void *p; R(cudaMalloc(&p, MIB)); return 3; }
PROGRAM(kernel_trap) { traps<<<1, 1>>>(); R(cudaDeviceSynchronize()); R(cudaGetLastError()); moment(); R(cudaDeviceSynchronize()); return 4; }
PROGRAM(bad_context_exit) { bad_write<<<1, 32>>>((unsigned *)0x10); return 5; }

PROGRAM(versions)   /* every function the driver gives out, at several versions and with both flags: found or not */
{
    MUST(cudaFree(0));
    unsigned long long hash = 0, found = 0;
    for (const char *name : { "cuMemAlloc", "cuMemFree", "cuLaunchKernel", "cuLaunchKernelEx", "cuMemcpyHtoD", "cuMemcpyAsync", "cuStreamSynchronize", "cuMemGetInfo",
                              "cuCtxCreate", "cuGraphInstantiate", "cuGraphAddNode", "cuEventElapsedTime", "cuMemPrefetchAsync", "cuMemAdvise", "cuGetProcAddress",
                              "cuStreamGetCaptureInfo", "cuDevicePrimaryCtxRelease", "cuMemBatchDecompressAsync", "cuNothing", "" })
        for (int version : { 2000, 3020, 4000, 7000, 10000, 11020, 11030, 12000, 12030, 12050, 12080, 13000, 99000 })
            for (int flags : { 0, 1, 2, 3 }) {
                void *p = nullptr; CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
                int code = cuGetProcAddress(name, &p, version, flags, &status);
                hash = hash * 31 + code * 7 + status * 3 + (p != nullptr); found += p != nullptr;
            }
    say("hash", hash); say("found", found);
    void *p = nullptr; CUdriverProcAddressQueryResult status;
    MUST(cuGetProcAddress("cuMemAlloc", &p, 3020, 0, &status));
    CUdeviceptr d; say("old cuMemAlloc", ((CUresult(*)(CUdeviceptr *, size_t))p)(&d, 4 * MIB));
    MUST(cuGetProcAddress("cuMemcpyHtoD", &p, 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    std::vector<unsigned> host(MIB, 3);
    say("cuMemcpyHtoD", ((CUresult(*)(CUdeviceptr, const void *, size_t))p)(d, host.data(), 4 * MIB));
    SUM((void *)d, 4 * MIB);
    moment();
    SUM((void *)d, 4 * MIB);
    R(cuMemFree(d));
    cudaDriverEntryPointQueryResult result;
    R(cudaGetDriverEntryPointByVersion("cuMemAlloc", &p, 12000, cudaEnableDefault, &result)); say("result", result);
    R(cudaGetDriverEntryPointByVersion("cuNothing", &p, 12000, cudaEnableDefault, &result)); say("result", result);
    return 0;
}
MAIN
