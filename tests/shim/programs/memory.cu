/* memory.cu - every way to memory of the card, with the runtime of CUDA linked statically. */
#include "common.cuh"

PROGRAM(mem_sizes)
{
    const size_t sizes[] = { 4, 512, 4096, 65536, MIB, 2 * MIB, 3 * MIB + 4, 64 * MIB, 256 * MIB };
    std::vector<void *> at;
    for (size_t n : sizes) {
        void *p = nullptr;
        say("cudaMalloc", cudaMalloc(&p, n));
        say("aligned", (uintptr_t)p % 256 == 0);
        fill(p, n, (unsigned)n);
        at.push_back(p);
    }
    MUST(cudaDeviceSynchronize());
    moment();
    for (size_t i = 0; i < at.size(); i++)
        SUM(at[i], sizes[i]);
    for (void *p : at)
        R(cudaFree(p));
    return 0;
}

PROGRAM(mem_threads)
{
    std::atomic<unsigned long long> total{0}, failed{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 16; t++)
        threads.emplace_back([&, t] {
            cudaStream_t s;
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            unsigned random = t * 7919 + 1;
            struct Held { void *p; size_t n; bool async; };
            std::vector<Held> held;
            for (int i = 0; i < 40; i++) {
                random = random * 1664525 + 1013904223;
                size_t n = ((random >> 8) % 6 + 1) * (i % 3 ? 700 * 1024 : 3 * MIB);
                void *p = nullptr;
                bool async = random & 0x10000000;
                if (async ? cudaMallocAsync(&p, n, s) : cudaMalloc(&p, n)) { failed++; continue; }
                fill(p, n, i, s);
                held.push_back({ p, n, async });
                total += sum(p, n, s);
                if (held.size() > 6) {
                    total += sum(held[0].p, held[0].n, s);
                    if (held[0].async ? cudaFreeAsync(held[0].p, s) : cudaFree(held[0].p)) failed++;
                    held.erase(held.begin());
                }
            }
            for (auto &[p, n, async] : held) { total += sum(p, n, s); if (cudaFree(p)) failed++; }
            cudaStreamDestroy(s);
        });
    usleep(30000);
    moment();
    for (auto &t : threads) t.join();
    say("total", (long long)total.load());
    say("failed", (long long)failed.load());
    return 0;
}

PROGRAM(async_pools)
{
    cudaMemPool_t pools[3];
    cudaStream_t s[2];
    MUST(cudaDeviceGetDefaultMemPool(&pools[0], 0));
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = { cudaMemLocationTypeDevice, 0 };
    R(cudaMemPoolCreate(&pools[1], &props));
    props.maxSize = 64 * MIB;
    R(cudaMemPoolCreate(&pools[2], &props));
    uint64_t keep = UINT64_MAX;
    R(cudaMemPoolSetAttribute(pools[1], cudaMemPoolAttrReleaseThreshold, &keep));
    for (auto &one : s) MUST(cudaStreamCreate(&one));
    void *p[6] = {};
    for (int i = 0; i < 6; i++) {
        say("cudaMallocFromPoolAsync", cudaMallocFromPoolAsync(&p[i], (i + 1) * 5 * MIB, pools[i % 3], s[i % 2]));
        fill(p[i], (i + 1) * 5 * MIB, i, s[i % 2]);
    }
    void *much = nullptr;
    R(cudaMallocFromPoolAsync(&much, 128 * MIB, pools[2], s[0]));
    cudaGetLastError();
    R(cudaDeviceSynchronize());
    moment();
    for (int i = 0; i < 6; i++) SUM(p[i], (i + 1) * 5 * MIB);
    for (auto pool : pools) {
        uint64_t used = 0, reserved = 0, high = 0, threshold = 0;
        R(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
        R(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
        R(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high));
        R(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
        say("used", used); say("used high", high); say("threshold", threshold); say("reserved is enough", reserved >= used);
    }
    for (int i = 0; i < 6; i++) say("cudaFreeAsync", cudaFreeAsync(p[i], s[1 - i % 2]));
    R(cudaDeviceSynchronize());
    for (auto pool : pools) R(cudaMemPoolTrimTo(pool, 0));
    uint64_t used = 1;
    R(cudaMemPoolGetAttribute(pools[1], cudaMemPoolAttrReservedMemCurrent, &used));
    say("reserved after trim", used);
    R(cudaDeviceSetMemPool(0, pools[1]));
    R(cudaMallocAsync(&p[0], 8 * MIB, s[0]));
    R(cudaMemPoolGetAttribute(pools[1], cudaMemPoolAttrUsedMemCurrent, &used));
    say("used of the new current pool", used);
    R(cudaFreeAsync(p[0], s[0]));
    R(cudaMemPoolDestroy(pools[1]));
    R(cudaMemPoolDestroy(pools[2]));
    R(cudaMallocAsync(&p[0], 8 * MIB, s[0]));
    fill(p[0], 8 * MIB, 3, s[0]);
    R(cudaStreamSynchronize(s[0]));
    SUM(p[0], 8 * MIB);
    R(cudaFree(p[0]));
    return 0;
}

PROGRAM(pool_access)
{
    cudaMemPool_t pool;
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    cudaMemLocation here = { cudaMemLocationTypeDevice, 0 };
    cudaMemAccessDesc desc = { here, cudaMemAccessFlagsProtReadWrite };
    cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
    R(cudaMemPoolSetAccess(pool, &desc, 1));
    R(cudaMemPoolGetAccess(&flags, pool, &here));
    say("flags", flags);
    int off = 0, value = 5;
    R(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &off));
    R(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &value));
    say("opportunistic", value);
    cudaStream_t a, b;
    cudaStreamCreate(&a); cudaStreamCreate(&b);
    for (int i = 0; i < 200; i++) {
        void *p;
        if (cudaMallocAsync(&p, (i % 7 + 1) * MIB, i % 2 ? a : b)) return 5;
        fill(p, MIB, i, i % 2 ? a : b);
        if (i == 100) { R(cudaDeviceSynchronize()); SUM(p, MIB); moment(); SUM(p, MIB); }
        if (cudaFreeAsync(p, i % 2 ? a : b)) return 6;
    }
    R(cudaDeviceSynchronize());
    uint64_t zero = 0;
    R(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
    R(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
    say("high after reset", zero);
    return 0;
}

PROGRAM(pool_export)
{
    return with_child([](int to) {
        cudaMemPool_t pool;
        cudaMemPoolProps props = {};
        props.allocType = cudaMemAllocationTypePinned;
        props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
        props.location = { cudaMemLocationTypeDevice, 0 };
        R(cudaMemPoolCreate(&pool, &props));
        int fd = -1;
        R(cudaMemPoolExportToShareableHandle(&fd, pool, cudaMemHandleTypePosixFileDescriptor, 0));
        void *p = nullptr;
        R(cudaMallocFromPoolAsync(&p, 16 * MIB, pool, 0));
        fill(p, 16 * MIB, 11);
        R(cudaDeviceSynchronize());
        cudaMemPoolPtrExportData data;
        R(cudaMemPoolExportPointer(&data, p));
        moment();
        SUM(p, 16 * MIB);
        send_fd(to, fd);
        (void)!write(to, &data, sizeof data);
        char byte;
        (void)!read(to, &byte, 1);
        SUM(p, 16 * MIB);
        R(cudaFreeAsync(p, 0));
        R(cudaDeviceSynchronize());
        return 0;
    }, [](int from) {
        int fd = recv_fd(from);
        cudaMemPoolPtrExportData data;
        (void)!read(from, &data, sizeof data);
        cudaMemPool_t pool;
        void *p = nullptr;
        R(cudaMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)fd, cudaMemHandleTypePosixFileDescriptor, 0));
        cudaMemAccessDesc desc = { { cudaMemLocationTypeDevice, 0 }, cudaMemAccessFlagsProtReadWrite };
        R(cudaMemPoolSetAccess(pool, &desc, 1));
        R(cudaMemPoolImportPointer(&p, pool, &data));
        SUM(p, 16 * MIB);
        add(p, 16 * MIB, 5);
        R(cudaDeviceSynchronize());
        R(cudaFree(p));
        R(cudaMemPoolDestroy(pool));
        (void)!write(from, "x", 1);
        return 0;
    });
}

static CUmemAllocationProp piece_prop(bool fd = false)
{
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 };
    if (fd) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
}
static CUmemAccessDesc whole_access() { return { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE }; }

PROGRAM(vmm_twice)
{
    MUST(cudaFree(0));
    CUmemAllocationProp prop = piece_prop(), back;
    CUmemAccessDesc access = whole_access();
    size_t unit = 0, n = 32 * MIB;
    R(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    say("unit", unit);
    CUdeviceptr a, b;
    CUmemGenericAllocationHandle h, again;
    R(cuMemAddressReserve(&a, n, 0, 0, 0));
    R(cuMemAddressReserve(&b, 2 * n, 0, 0, 0));
    R(cuMemCreate(&h, n, &prop, 0));
    R(cuMemMap(a, n, 0, h, 0));
    R(cuMemMap(b + n, n, 0, h, 0));
    R(cuMemSetAccess(a, n, &access, 1));
    R(cuMemSetAccess(b + n, n, &access, 1));
    fill((void *)a, n, 21);
    R(cudaDeviceSynchronize());
    SUM((void *)(b + n), n);
    moment();
    SUM((void *)(b + n), n);
    add((void *)(b + n), n, 9);
    R(cudaDeviceSynchronize());
    SUM((void *)a, n);
    R(cuMemRetainAllocationHandle(&again, (void *)(a + unit)));
    say("the same handle", again == h);
    R(cuMemGetAllocationPropertiesFromHandle(&back, again));
    say("its type", back.type); say("its place", back.location.type);
    unsigned long long flags = 0;
    R(cuMemGetAccess(&flags, &access.location, a));
    say("flags", flags);
    R(cuMemRelease(again));
    R(cuMemUnmap(a, n));
    SUM((void *)(b + n), n);
    R(cuMemRelease(h));
    SUM((void *)(b + n), n);
    R(cuMemUnmap(b + n, n));
    R(cuMemAddressFree(a, n));
    R(cuMemAddressFree(b, 2 * n));
    return 0;
}

PROGRAM(vmm_grow)
{
    MUST(cudaFree(0));
    CUmemAllocationProp prop = piece_prop();
    CUmemAccessDesc access = whole_access();
    CUdeviceptr base;
    size_t unit = 2 * MIB;
    R(cuMemAddressReserve(&base, 256 * unit, 0, 0, 0));
    for (int i = 0; i < 64; i++) {
        CUmemGenericAllocationHandle h;
        MUST(cuMemCreate(&h, unit, &prop, 0));
        MUST(cuMemMap(base + i * unit, unit, 0, h, 0));
        if (i % 2 == 0)
            MUST(cuMemSetAccess(base + i * unit, unit, &access, 1));
        MUST(cuMemRelease(h));
    }
    R(cuMemSetAccess(base, 64 * unit, &access, 1));
    fill((void *)base, 64 * unit, 5);
    R(cudaDeviceSynchronize());
    moment();
    SUM((void *)base, 64 * unit);
    R(cuMemUnmap(base + 10 * unit, 20 * unit));
    CUmemGenericAllocationHandle h;
    R(cuMemCreate(&h, 20 * unit, &prop, 0));
    R(cuMemMap(base + 10 * unit, 20 * unit, 0, h, 0));
    R(cuMemSetAccess(base + 10 * unit, 20 * unit, &access, 1));
    R(cuMemRelease(h));
    fill((void *)(base + 10 * unit), 20 * unit, 6);
    SUM((void *)base, 64 * unit);
    R(cuMemUnmap(base, 64 * unit));
    R(cuMemAddressFree(base, 256 * unit));
    return 0;
}

PROGRAM(vmm_errors)
{
    MUST(cudaFree(0));
    CUmemAllocationProp prop = piece_prop(), bad = {};
    CUmemAccessDesc access = whole_access();
    CUmemGenericAllocationHandle h = 0;
    CUdeviceptr a = 0;
    R(cuMemCreate(&h, MIB, &prop, 0));
    R(cuMemCreate(&h, 0, &prop, 0));
    R(cuMemCreate(&h, 2 * MIB, &bad, 0));
    R(cuMemCreate(&h, 2 * MIB, &prop, 77));
    R(cuMemAddressReserve(&a, 4 * MIB, 0, 0, 0));
    R(cuMemCreate(&h, 2 * MIB, &prop, 0));
    R(cuMemMap(a + 4096, 2 * MIB, 0, h, 0));
    R(cuMemMap(a, 4 * MIB, 0, h, 0));
    R(cuMemMap(a, 2 * MIB, 0, h, 0));
    R(cuMemMap(a, 2 * MIB, 0, h, 0));
    R(cuMemSetAccess(a, 4 * MIB, &access, 1));
    R(cuMemSetAccess(a, 2 * MIB, &access, 1));
    R(cuMemUnmap(a, 4 * MIB));
    R(cuMemUnmap(a, 2 * MIB));
    R(cuMemUnmap(a, 2 * MIB));
    R(cuMemRelease(h));
    R(cuMemAddressFree(a, 2 * MIB));
    R(cuMemAddressFree(a, 4 * MIB));
    prop.location = { CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 };
    R(cuMemCreate(&h, 2 * MIB, &prop, 0));
    prop.location = { CU_MEM_LOCATION_TYPE_DEVICE, 99 };
    R(cuMemCreate(&h, 2 * MIB, &prop, 0));
    return 0;
}

PROGRAM(vmm_export)
{
    return with_child([](int to) {
        MUST(cudaFree(0));
        CUmemAllocationProp prop = piece_prop(true);
        CUmemAccessDesc access = whole_access();
        CUmemGenericAllocationHandle h;
        CUdeviceptr a;
        int fd = -1;
        R(cuMemCreate(&h, 8 * MIB, &prop, 0));
        R(cuMemAddressReserve(&a, 8 * MIB, 0, 0, 0));
        R(cuMemMap(a, 8 * MIB, 0, h, 0));
        R(cuMemSetAccess(a, 8 * MIB, &access, 1));
        fill((void *)a, 8 * MIB, 31);
        R(cudaDeviceSynchronize());
        moment();
        R(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        send_fd(to, fd);
        char byte;
        (void)!read(to, &byte, 1);
        SUM((void *)a, 8 * MIB);
        return 0;
    }, [](int from) {
        int fd = recv_fd(from);
        MUST(cudaFree(0));
        CUmemAccessDesc access = whole_access();
        CUmemGenericAllocationHandle h;
        CUdeviceptr a;
        R(cuMemImportFromShareableHandle(&h, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        R(cuMemAddressReserve(&a, 8 * MIB, 0, 0, 0));
        R(cuMemMap(a, 8 * MIB, 0, h, 0));
        R(cuMemSetAccess(a, 8 * MIB, &access, 1));
        SUM((void *)a, 8 * MIB);
        add((void *)a, 8 * MIB, 3);
        R(cudaDeviceSynchronize());
        R(cuMemUnmap(a, 8 * MIB));
        R(cuMemRelease(h));
        (void)!write(from, "x", 1);
        return 0;
    });
}

PROGRAM(ipc)
{
    return with_child([](int to) {
        void *p, *small;
        cudaEvent_t event;
        cudaIpcMemHandle_t handle, inner;
        cudaIpcEventHandle_t event_handle;
        R(cudaMalloc(&p, 24 * MIB));
        R(cudaMalloc(&small, 1000));
        R(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
        fill(p, 24 * MIB, 41);
        fill(small, 1000, 42);
        R(cudaDeviceSynchronize());
        moment();
        R(cudaIpcGetMemHandle(&handle, p));
        R(cudaIpcGetMemHandle(&inner, small));
        R(cudaIpcGetEventHandle(&event_handle, event));
        add(p, 24 * MIB, 1);
        R(cudaEventRecord(event));
        (void)!write(to, &handle, sizeof handle);
        (void)!write(to, &inner, sizeof inner);
        (void)!write(to, &event_handle, sizeof event_handle);
        char byte;
        (void)!read(to, &byte, 1);
        SUM(p, 24 * MIB);
        R(cudaFree(p));
        R(cudaFree(small));
        return 0;
    }, [](int from) {
        void *p, *small;
        cudaEvent_t event;
        cudaIpcMemHandle_t handle, inner;
        cudaIpcEventHandle_t event_handle;
        (void)!read(from, &handle, sizeof handle);
        (void)!read(from, &inner, sizeof inner);
        (void)!read(from, &event_handle, sizeof event_handle);
        R(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess));
        R(cudaIpcOpenMemHandle(&small, inner, cudaIpcMemLazyEnablePeerAccess));
        R(cudaIpcOpenEventHandle(&event, event_handle));
        R(cudaStreamWaitEvent(0, event, 0));
        SUM(p, 24 * MIB);
        SUM(small, 1000);
        add(p, 24 * MIB, 2);
        R(cudaDeviceSynchronize());
        R(cudaIpcCloseMemHandle(small));
        R(cudaIpcCloseMemHandle(p));
        R(cudaIpcCloseMemHandle(p));
        (void)!write(from, "x", 1);
        return 0;
    });
}

PROGRAM(managed)
{
    unsigned *p = nullptr;
    size_t n = 16 * MIB;
    R(cudaMallocManaged(&p, n));
    for (size_t i = 0; i < n / 4; i++) p[i] = (unsigned)i;
    cudaMemLocation here = { cudaMemLocationTypeDevice, 0 }, host = { cudaMemLocationTypeHost, 0 };
    say("advise", cuMemAdvise((CUdeviceptr)p, n, CU_MEM_ADVISE_SET_READ_MOSTLY, { CU_MEM_LOCATION_TYPE_DEVICE, 0 }));
    R(cudaMemPrefetchAsync(p, n, here, 0, 0));
    SUM(p, n);
    say("advise", cuMemAdvise((CUdeviceptr)p, n, CU_MEM_ADVISE_UNSET_READ_MOSTLY, { CU_MEM_LOCATION_TYPE_DEVICE, 0 }));
    say("advise", cuMemAdvise((CUdeviceptr)p, n, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, { CU_MEM_LOCATION_TYPE_DEVICE, 0 }));
    add(p, n, 7);
    R(cudaDeviceSynchronize());
    moment();
    R(cudaMemPrefetchAsync(p, n, host, 0, 0));
    R(cudaDeviceSynchronize());
    unsigned long long total = 0;
    for (size_t i = 0; i < n / 4; i++) total += p[i];
    say("total on the host", total);
    int where = -5;
    R(cudaMemRangeGetAttribute(&where, 4, cudaMemRangeAttributePreferredLocation, p, n));
    say("preferred", where);
    cudaStream_t s;
    R(cudaStreamCreate(&s));
    R(cudaStreamAttachMemAsync(s, p, 0, cudaMemAttachSingle));
    add(p, n, 1, s);
    R(cudaStreamSynchronize(s));
    say("p[3]", p[3]);
    R(cudaFree(p));
    R(cudaMallocManaged(&p, 0));
    return 0;
}

PROGRAM(host_memory)
{
    size_t n = 8 * MIB;
    void *own = nullptr, *p, *q, *at;
    (void)!posix_memalign(&own, 4096, n);
    memset(own, 1, n);
    R(cudaHostRegister(own, n, cudaHostRegisterMapped));
    R(cudaHostGetDevicePointer(&at, own, 0));
    fill(at, n, 51);
    R(cudaDeviceSynchronize());
    SUM(at, n);
    R(cudaHostRegister(own, n, 0));
    R(cudaGetLastError());
    R(cudaHostAlloc(&p, n, cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined));
    R(cudaMallocHost(&q, n));
    unsigned flags = 0;
    R(cudaHostGetFlags(&flags, p));
    say("flags", flags);
    void *d;
    R(cudaMalloc(&d, n));
    fill(d, n, 52);
    R(cudaMemcpyAsync(q, d, n, cudaMemcpyDeviceToHost, 0));
    R(cudaDeviceSynchronize());
    moment();
    SUM(d, n); SUM(q, n); SUM(at, n);
    R(cudaHostUnregister(own));
    R(cudaHostUnregister(own));
    R(cudaGetLastError());
    R(cudaFreeHost(p)); R(cudaFreeHost(q)); R(cudaFree(d));
    return 0;
}

PROGRAM(pointers)
{
    void *d, *a, *m, *h, *own = malloc(4096);
    MUST(cudaMalloc(&d, 4 * MIB)); MUST(cudaMallocAsync(&a, 4 * MIB, 0)); MUST(cudaMallocManaged(&m, 4 * MIB)); MUST(cudaMallocHost(&h, 4 * MIB));
    MUST(cudaDeviceSynchronize());
    for (int round = 0; round < 2; round++) {
        for (void *p : { d, (void *)((char *)d + MIB + 12), a, m, h, own, (void *)nullptr, (void *)0x10 }) {
            cudaPointerAttributes attr = {};
            say("cudaPointerGetAttributes", cudaPointerGetAttributes(&attr, p));
            say("type", attr.type); say("device", attr.device); say("device's pointer", attr.devicePointer == p);
            CUdeviceptr base = 0; size_t size = 0;
            say("cuMemGetAddressRange", cuMemGetAddressRange(&base, &size, (CUdeviceptr)p));
            say("offset", base ? (CUdeviceptr)p - base : 0); say("size", size);
            unsigned long long id = 0;
            int ordinal = -7, mapped = -7;
            CUmemoryPool pool = nullptr;
            CUdeviceptr start = 0; size_t range = 0;
            say("id", cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)p)); say("has one", id != 0);
            say("ordinal", cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)p)); say("", ordinal);
            say("mapped", cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, (CUdeviceptr)p)); say("", mapped);
            say("pool", cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)p)); say("", pool != nullptr);
            say("start", cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (CUdeviceptr)p)); say("", start == base);
            say("range", cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, (CUdeviceptr)p)); say("", range == size);
            CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED };
            unsigned type = 9, is_managed = 9;
            void *data[] = { &type, &is_managed };
            say("several", cuPointerGetAttributes(2, which, data, (CUdeviceptr)p)); say("", type * 10 + is_managed);
        }
        int yes = 1;
        say("sync memops", cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)d));
        if (!round) moment();
    }
    return 0;
}

PROGRAM(free_errors)
{
    void *p, *q, *m, *h, *a;
    MUST(cudaMalloc(&p, 4 * MIB)); MUST(cudaMalloc(&q, 100)); MUST(cudaMallocManaged(&m, MIB)); MUST(cudaMallocHost(&h, MIB));
    MUST(cudaMallocAsync(&a, 4 * MIB, 0));
    R(cudaFree(nullptr));
    R(cudaFree((char *)p + 4096));
    R(cudaFree((void *)0x1234));
    R(cudaFree(h));
    R(cudaFreeHost(p));
    R(cudaFreeAsync(m, 0));
    R(cudaFreeAsync(nullptr, 0));
    R(cudaFreeAsync((void *)0x1234, 0));
    R(cudaFreeAsync(p, 0));
    R(cudaFree(a));
    R(cudaFree(a));
    R(cudaFree(q));
    R(cudaFree(q));
    R(cudaGetLastError());      /* p is freed: what the driver answers to its second free is nobody's to rely on */
    R(cudaPeekAtLastError());
    R(cuMemFree(0));
    R(cuMemAlloc(nullptr, 5));
    CUdeviceptr d = 7;
    R(cuMemAlloc(&d, 0));
    R(cuMemAlloc(&d, (size_t)-1));
    R(cuMemAlloc(&d, (size_t)1 << 50));
    R(cuMemAllocAsync(&d, 0, 0));
    R(cuMemAllocAsync(&d, (size_t)1 << 50, 0));
    R(cuMemAllocManaged(&d, 0, 1));
    R(cuMemAllocManaged(&d, MIB, 0));
    size_t pitch;
    R(cuMemAllocPitch(&d, &pitch, 1000, 0, 4));
    R(cuMemAllocPitch(&d, &pitch, 1000, 10, 3));
    R(cuMemAllocPitch(&d, &pitch, 1000, 10, 4));
    say("pitch", pitch);
    R(cuMemFree(d));
    R(cudaMalloc(&p, 0)); say("null", p == nullptr);
    R(cudaMallocPitch(&p, &pitch, 777, 33)); say("pitch", pitch);
    moment();
    R(cudaMemset2D(p, pitch, 3, 777, 33));
    SUM(p, 776);
    return 0;
}

PROGRAM(out_of_memory)
{
    void *p;
    R(cudaMalloc(&p, (size_t)8 << 40));
    R(cudaGetLastError());
    R(cudaGetLastError());
    R(cudaMallocAsync(&p, (size_t)8 << 40, 0));
    R(cudaGetLastError());
    for (int way = 0; way < 3; way++) {     /* to the limit where there is one, then again after everything was freed */
        std::vector<void *> held;
        size_t limit = quota() ? quota() / GIB + 1 : 6;
        int code = 0;
        while (held.size() < limit && !(code = way == 1 ? cudaMallocAsync(&p, GIB, 0) : cudaMalloc(&p, GIB)))
            held.push_back(p);
        say("the limit held", quota() ? code == 2 && held.size() < limit && held.size() + 2 >= limit : code == 0);
        cudaGetLastError();
        for (void *one : held) fill(one, GIB, way);
        say("work after it", cudaDeviceSynchronize());
        if (way == 0) moment();
        say("sum", (long long)sum(held[0], GIB));
        if (!held.empty()) { say("retry", way == 1 ? cudaFreeAsync(held.back(), 0) : cudaFree(held.back())); held.pop_back(); }
        say("sync", cudaDeviceSynchronize());
        say("half of it", cudaMalloc(&p, GIB / 2)); say("free", cudaFree(p));
        for (void *one : held) if (cudaFree(one)) say("free failed", 1);
        cudaMemPool_t pool; cudaDeviceGetDefaultMemPool(&pool, 0); say("trim", cudaMemPoolTrimTo(pool, 0));
    }
    return 0;
}

PROGRAM(info)
{
    size_t spare, total, other;
    MUST(cudaFree(0));
    if (quota()) sleep(3);      /* until the context itself is seen and counted */
    R(cudaMemGetInfo(&spare, &total));
    R(cuDeviceTotalMem(&other, 0));
    cudaDeviceProp prop;
    R(cudaGetDeviceProperties(&prop, 0));
    say("the same total", total == other && prop.totalGlobalMem == total);
    say("is the limit", !quota() || total == quota());
    say("spare is less", spare < total);
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    struct { unsigned long long total, spare, used; } one = {};
    struct { unsigned version; unsigned long long total, reserved, spare, used; } two = {};
    two.version = (unsigned)sizeof two | 2u << 24;
    void *device = nullptr;
    if (nvml) {
        R(((int (*)())dlsym(nvml, "nvmlInit_v2"))());
        R(((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &device));
        R(((int (*)(void *, void *))dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(device, &one));
        R(((int (*)(void *, void *))dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2"))(device, &two));
        say("NVML's total", quota() ? one.total == quota() && two.total == quota() : one.total >= total && two.total >= total);
        say("adds up", one.spare + one.used == one.total && two.spare + two.used + two.reserved == two.total);
    }
    void *p;
    R(cudaMalloc(&p, 512 * MIB));
    size_t less;
    R(cudaMemGetInfo(&less, &total));
    say("less by that", !quota() || (less + 512 * MIB <= spare && less + 520 * MIB >= spare));
    moment();
    R(cudaMemGetInfo(&less, &total));
    say("is the limit", !quota() || (total == quota() && less + 512 * MIB <= spare && less + 520 * MIB >= spare));
    R(cudaFree(p));
    R(cudaMemGetInfo(&less, &total));
    say("and back", !quota() || less + 8 * MIB >= spare);
    return 0;
}

__device__ unsigned table[1 << 20];
__constant__ unsigned fixed[64];
static __global__ void use_table(unsigned *out) { out[threadIdx.x] = table[threadIdx.x * 1000] + fixed[threadIdx.x % 64]; }
PROGRAM(symbols)
{
    std::vector<unsigned> host(1 << 20, 17);
    unsigned small[64], *out, back[64];
    for (int i = 0; i < 64; i++) small[i] = i;
    R(cudaMemcpyToSymbol(table, host.data(), host.size() * 4));
    R(cudaMemcpyToSymbol(fixed, small, sizeof small));
    R(cudaMalloc(&out, 4 * MIB));
    void *at = nullptr; size_t n = 0;
    R(cudaGetSymbolAddress(&at, table)); R(cudaGetSymbolSize(&n, table)); say("size", n);
    R(cudaDeviceSynchronize());
    moment();
    use_table<<<1, 64>>>(out);
    R(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    say("back[63]", back[63]);
    SUM(at, n);
    R(cudaFree(out));
    return 0;
}

static __global__ void heap_fill(unsigned **p) { unsigned *mine = (unsigned *)malloc(4096); p[threadIdx.x] = mine; if (mine) mine[9] = threadIdx.x; }
static __global__ void heap_read(unsigned **p, unsigned *sum) { if (p[threadIdx.x]) { atomicAdd(sum, p[threadIdx.x][9] + 1); free(p[threadIdx.x]); } }
PROGRAM(kernel_malloc)
{
    size_t n = 0;
    unsigned **p, *count, back;
    R(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 * MIB));
    R(cudaDeviceGetLimit(&n, cudaLimitMallocHeapSize)); say("heap", n);
    R(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 4 * MIB));
    R(cudaDeviceGetLimit(&n, cudaLimitPrintfFifoSize)); say("fifo", n);
    R(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    R(cudaDeviceGetLimit(&n, cudaLimitStackSize)); say("stack", n);
    R(cudaMalloc(&p, 8192)); R(cudaMalloc(&count, 4)); R(cudaMemset(count, 0, 4));
    heap_fill<<<1, 256>>>(p);
    R(cudaDeviceSynchronize());
    R(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 128 * MIB));
    R(cudaGetLastError());
    moment();
    heap_read<<<1, 256>>>(p, count);
    R(cudaMemcpy(&back, count, 4, cudaMemcpyDeviceToHost));
    say("sum", back);
    return 0;
}
MAIN
