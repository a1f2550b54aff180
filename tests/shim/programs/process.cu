/* process.cu - processes, contexts, modules: beginnings and ends, and unusual ways to the driver. */
#include <pthread.h>
#include <spawn.h>
#include "common.cuh"
extern char **environ;
extern "C" { CUresult cuProfilerStart(void); CUresult cuProfilerStop(void); }

static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .u32 counter = 5;\n"
    ".visible .entry bump(.param .u64 p) {\n .reg .u64 %a; .reg .u32 %v;\n ld.param.u64 %a, [p];\n cvta.to.global.u64 %a, %a;\n"
    " ld.global.u32 %v, [counter];\n atom.global.add.u32 %v, [%a], %v;\n ret;\n}\n";
static const char caller[] = ".version 7.0\n.target sm_75\n.address_size 64\n.extern .func (.param .u32 r) twice (.param .u32 x);\n"
    ".visible .entry link(.param .u64 p) {\n .reg .u64 %a; .reg .u32 %v;\n ld.param.u64 %a, [p];\n cvta.to.global.u64 %a, %a;\n"
    " { .param .u32 x; .param .u32 r; st.param.u32 [x], 21; call (r), twice, (x); ld.param.u32 %v, [r]; }\n st.global.u32 [%a], %v;\n ret;\n}\n";
static const char callee[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .func (.param .u32 r) twice (.param .u32 x) {\n .reg .u32 %v;\n"
    " ld.param.u32 %v, [x];\n add.u32 %v, %v, %v;\n st.param.u32 [r], %v;\n ret;\n}\n";

static unsigned word_at(CUdeviceptr p) { unsigned v = 0; cuMemcpyDtoH(&v, p, 4); return v; }
static int launch(CUfunction f, CUdeviceptr p) { void *args[] = { &p }; return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, nullptr); }

PROGRAM(contexts)
{
    MUST(cuInit(0));
    for (int i = 0; i < 4; i++) {
        CUcontext c; CUdeviceptr p, q; CUmodule m; CUfunction f; CUstream s;
        say("create", cuCtxCreate(&c, nullptr, i % 2 ? CU_CTX_SCHED_BLOCKING_SYNC : 0, 0));
        say("alloc", cuMemAlloc(&p, 256 * MIB)); say("async", cuMemAllocAsync(&q, 16 * MIB, 0));
        say("load", cuModuleLoadData(&m, ptx)); say("function", cuModuleGetFunction(&f, m, "bump"));
        say("stream", cuStreamCreate(&s, 0)); say("set", cuMemsetD32(p, i, 64 * MIB)); say("launch", launch(f, p));
        if (i == 2) { say("sync", cuCtxSynchronize()); moment(); }
        say("word", word_at(p));
        if (i % 3) say("free", cuMemFree(q));
        unsigned version = 0; say("api", cuCtxGetApiVersion(c, &version)); say("has one", version > 3000);
        say("destroy", cuCtxDestroy(c));
    }
    size_t spare, total;
    R(cuMemGetInfo(&spare, &total));
    CUcontext a, b, now; CUdeviceptr p;
    R(cuCtxCreate(&a, nullptr, 0, 0)); R(cuMemAlloc(&p, 4 * MIB)); R(cuCtxCreate(&b, nullptr, 0, 0));
    R(cuMemsetD32(p, 7, MIB)); R(cuCtxPopCurrent(&now)); say("b", now == b); R(cuCtxDestroy(b)); say("word", word_at(p));
    R(cuCtxGetCurrent(&now)); say("a", now == a); R(cuCtxDestroy(a)); R(cuCtxGetCurrent(&now)); say("none", now == nullptr);
    R(cuMemAlloc(&p, 4 * MIB)); R(cuCtxSynchronize());
    return 0;
}

PROGRAM(primary_reset)
{
    MUST(cuInit(0));
    CUcontext c; CUdeviceptr p; unsigned flags; int active;
    for (int i = 0; i < 3; i++) {
        R(cuDevicePrimaryCtxGetState(0, &flags, &active)); say("active", active);
        R(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
        R(cuDevicePrimaryCtxRetain(&c, 0)); R(cuCtxSetCurrent(c)); R(cuMemAlloc(&p, 2 * GIB)); R(cuMemsetD32(p, i, 1000)); say("word", word_at(p));
        if (i == 1) moment();
        say("word", word_at(p));
        if (i == 1) R(cuDevicePrimaryCtxReset(0));
        R(cuDevicePrimaryCtxRelease(0));
    }
    R(cuDevicePrimaryCtxRelease(0));
    return 0;
}

PROGRAM(device_reset)
{
    for (int i = 0; i < 3; i++) {
        void *p, *a, *m;
        R(cudaMalloc(&p, 2 * GIB)); R(cudaMallocAsync(&a, 64 * MIB, 0)); R(cudaMallocManaged(&m, 4 * MIB));
        fill(p, 64 * MIB, i); SUM(p, 64 * MIB);
        if (i == 1) moment();
        SUM(p, 64 * MIB);
        R(cudaDeviceReset());
        if (i == 2) break;
        void *out; R(cudaMalloc(&out, 8 * MIB)); fill(out, 8 * MIB, 1); R(cudaDeviceSynchronize()); R(cudaFree(out));
        R(cudaDeviceReset());
        break;      /* sum() holds memory of the host that a reset frees */
    }
    return 0;
}

PROGRAM(green)
{
    MUST(cuInit(0));
    CUdevResource all, part[2]; unsigned groups = 2; CUdevResourceDesc desc; CUgreenCtx green; CUcontext c; CUstream s; CUdeviceptr p; CUmodule m; CUfunction f;
    R(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM)); say("has some", all.sm.smCount > 0);
    R(cuDevSmResourceSplitByCount(part, &groups, &all, nullptr, 0, 16)); say("first", part[0].sm.smCount);
    R(cuDevResourceGenerateDesc(&desc, part, 1)); R(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    R(cuCtxFromGreenCtx(&c, green)); R(cuCtxSetCurrent(c)); R(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
    R(cuMemAlloc(&p, 64 * MIB)); R(cuMemsetD32(p, 1, MIB)); R(cuModuleLoadData(&m, ptx)); R(cuModuleGetFunction(&f, m, "bump"));
    void *args[] = { &p };
    R(cuLaunchKernel(f, 4, 1, 1, 1, 1, 1, 0, s, args, nullptr)); R(cuStreamSynchronize(s));
    moment();
    R(cuLaunchKernel(f, 4, 1, 1, 1, 1, 1, 0, s, args, nullptr)); R(cuStreamSynchronize(s)); say("word", word_at(p));
    R(cuMemFree(p)); R(cuStreamDestroy(s)); R(cuGreenCtxDestroy(green));
    return 0;
}

PROGRAM(modules)
{
    MUST(cudaFree(0));
    CUdeviceptr p, at; CUmodule m; CUfunction f; size_t n;
    MUST(cuMemAlloc(&p, 4 * MIB)); MUST(cuMemsetD32(p, 0, 16));
    for (int i = 0; i < 40; i++) { MUST(cuModuleLoadData(&m, ptx)); MUST(cuModuleGetFunction(&f, m, "bump")); MUST(launch(f, p)); if (i == 20) { MUST(cuCtxSynchronize()); moment(); } MUST(cuModuleUnload(m)); }
    say("word", word_at(p));
    R(cuModuleLoadData(&m, "nonsense")); R(cuModuleLoadData(&m, ptx)); R(cuModuleGetFunction(&f, m, "absent"));
    R(cuModuleGetGlobal(&at, &n, m, "counter")); say("size", n); say("counter", word_at(at)); R(cuMemsetD32(at, 100, 1));
    R(cuModuleGetFunction(&f, m, "bump")); R(launch(f, p)); say("word", word_at(p));
    CUlinkState link; void *cubin; char log[4096] = ""; CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES }; void *values[] = { log, (void *)sizeof log };
    R(cuLinkCreate(2, options, values, &link));
    R(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)caller, sizeof caller, "caller", 0, nullptr, nullptr));
    R(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)callee, sizeof callee, "callee", 0, nullptr, nullptr));
    R(cuLinkComplete(link, &cubin, &n)); say("has bytes", n > 100);
    CUmodule linked; R(cuModuleLoadDataEx(&linked, cubin, 0, nullptr, nullptr)); R(cuModuleGetFunction(&f, linked, "link")); R(cuLinkDestroy(link));
    R(launch(f, p)); say("word", word_at(p));
    CUlibrary library; CUkernel kernel;
    R(cuLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0)); R(cuLibraryGetKernel(&kernel, library, "bump"));
    R(launch((CUfunction)kernel, p)); say("word", word_at(p));
    R(cuKernelGetFunction(&f, kernel)); R(launch(f, p)); say("word", word_at(p));
    R(cuLibraryGetGlobal(&at, &n, library, "counter")); say("counter", word_at(at)); R(cuLibraryUnload(library));
    CUmoduleLoadingMode mode; R(cuModuleGetLoadingMode(&mode)); say("mode", mode);
    return 0;
}

PROGRAM(profiler) { void *p; R(cudaMalloc(&p, 8 * MIB)); R(cuProfilerStart()); fill(p, 8 * MIB, 2); moment(); SUM(p, 8 * MIB); R(cuProfilerStop()); return 0; }

PROGRAM(fork_before)
{
    void *p; pid_t pids[3];
    for (auto &pid : pids) { fflush(stdout); if (!(pid = fork())) { if (cudaMalloc(&p, 64 * MIB)) _exit(1); fill(p, 64 * MIB, 3); _exit(sum(p, 64 * MIB) == 1 ? 2 : 0); } }
    R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 3); R(cudaDeviceSynchronize());
    moment();
    SUM(p, 64 * MIB);
    for (auto pid : pids) { int status; waitpid(pid, &status, 0); say("status", status); }
    return 0;
}
PROGRAM(fork_after)
{
    void *p, *q; int status; size_t a, b;
    R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 3); R(cudaDeviceSynchronize());
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) { int code = cudaMalloc(&q, MIB), other = cudaMemGetInfo(&a, &b); printf("in the child %d %d %d\n", code, other, (int)cuInit(0)); fflush(stdout); _exit(7); }
    waitpid(pid, &status, 0); say("status", status);
    if (!(pid = fork())) exit(8);
    waitpid(pid, &status, 0); say("status of exit", status);
    if (!(pid = vfork())) _exit(9);
    waitpid(pid, &status, 0); say("status of vfork", status);
    moment();
    SUM(p, 64 * MIB);
    char *argv[] = { (char *)"sh", (char *)"-c", (char *)"echo from sh", nullptr };
    say("spawn", posix_spawn(&pid, "/bin/sh", nullptr, nullptr, argv, environ)); waitpid(pid, &status, 0); say("status", status);
    say("system", system("env -i /bin/echo nothing in the environment"));
    R(cudaFree(p));
    return 0;
}
PROGRAM(forks_twice) /* forks twice and goes on in the grandchild, before CUDA */
{
    fflush(stdout); int ends[2]; if (pipe(ends)) return 1; char text[64] = "";
    if (!fork()) { setsid(); if (!fork()) { void *p; int code = cudaMalloc(&p, 16 * MIB); fill(p, 16 * MIB, 1); int n = snprintf(text, sizeof text, "%d %llu", code, sum(p, 16 * MIB)); (void)!write(ends[1], text, n); _exit(0); } _exit(0); }
    close(ends[1]); wait(nullptr); (void)!read(ends[0], text, sizeof text - 1); puts(text); return 0;
}
static void *late_memory; static cudaStream_t late_stream;
static void late() { printf("late %d %d\n", (int)cudaFree(late_memory), (int)cudaStreamDestroy(late_stream)); }
struct Global { void *p = nullptr; ~Global() { if (p) { int code = cudaFree(p); printf("destructor %d\n", code == 0 || code == 4); fflush(stdout); } } } global;
PROGRAM(exit_atexit) { atexit(late); R(cudaMalloc(&late_memory, 64 * MIB)); R(cudaMalloc(&global.p, 64 * MIB)); R(cudaStreamCreate(&late_stream)); fill(late_memory, 64 * MIB, 1, late_stream); moment(); exit(11); }
PROGRAM(exit_parked) { R(cudaMalloc(&late_memory, 64 * MIB)); R(cudaMalloc(&global.p, 64 * MIB)); fill(late_memory, 64 * MIB, 1); R(cudaDeviceSynchronize()); moment(); return 17; }
PROGRAM(exit_quick) { void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); moment(); _exit(12); }
PROGRAM(exit_thread) { void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); moment(); std::thread([] { exit(13); }).join(); return 1; }
PROGRAM(exit_main_thread) { static void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); moment(); std::thread([] { usleep(200000); SUM(p, 64 * MIB); exit(14); }).detach(); pthread_exit(nullptr); }
PROGRAM(exit_abort) { signal(SIGABRT, SIG_DFL); rlimit none = { 0, 0 }; setrlimit(RLIMIT_CORE, &none); void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); moment(); abort(); }
PROGRAM(exit_kill) { void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); moment(); kill(getpid(), SIGKILL); return 1; }
PROGRAM(exit_term_busy) { void *p; R(cudaMalloc(&p, 64 * MIB)); spin_<<<1, 1>>>(400000000); moment(); kill(getpid(), SIGTERM); return 1; }
PROGRAM(exec_after)
{
    if (getenv("PROGRAM_AGAIN")) { void *p; R(cudaMalloc(&p, 32 * MIB)); fill(p, 32 * MIB, 2); SUM(p, 32 * MIB); return 15; }
    void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); R(cudaDeviceSynchronize()); moment(); SUM(p, 64 * MIB);
    setenv("PROGRAM_AGAIN", "1", 1); fflush(stdout);
    execl("/proc/self/exe", "process", "exec_after", nullptr); return 16;
}
static volatile sig_atomic_t ticks;
PROGRAM(signals)
{
    struct sigaction action = {}; action.sa_handler = [](int) { ticks = ticks + 1; }; sigaction(SIGALRM, &action, nullptr);     /* no SA_RESTART */
    ualarm(500, 500);
    void *p; unsigned long long first = 0; int failed = 0;
    for (int i = 0; i < 200; i++) { if (cudaMalloc(&p, 4 * MIB)) failed++; fill(p, 4 * MIB, 9); unsigned long long now = sum(p, 4 * MIB); if (i == 0) first = now; failed += now != first; if (i == 100) moment(); if (cudaFree(p)) failed++; }
    ualarm(0, 0);
    say("failed", failed); say("ticks", ticks > 10);
    sigset_t all; sigfillset(&all); pthread_sigmask(SIG_BLOCK, &all, nullptr);
    R(cudaMalloc(&p, 4 * MIB)); fill(p, 4 * MIB, 9); SUM(p, 4 * MIB);
    return 0;
}
PROGRAM(few_files) { rlimit r = { 128, 128 }; R(setrlimit(RLIMIT_NOFILE, &r)); void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); R(cudaDeviceSynchronize()); moment(); SUM(p, 64 * MIB); return 0; }
PROGRAM(closed_files) { for (int fd = 3; fd < 2000; fd++) close(fd); void *p; R(cudaMalloc(&p, 64 * MIB)); fill(p, 64 * MIB, 1); R(cudaDeviceSynchronize()); moment(); SUM(p, 64 * MIB); return 0; }
PROGRAM(small_stack)
{
    pthread_attr_t attr; pthread_attr_init(&attr); pthread_attr_setstacksize(&attr, 65536); pthread_t t; void *p; MUST(cudaMalloc(&p, MIB));
    say("thread", pthread_create(&t, &attr, [](void *) -> void * { void *q; int code = cudaMalloc(&q, 64 * MIB); moment(); code = code * 10 + cudaMemset(q, 1, 64 * MIB); return (void *)(intptr_t)(code * 10 + cudaFree(q)); }, nullptr));
    void *answer; pthread_join(t, &answer); say("answer", (intptr_t)answer); return 0;
}

PROGRAM(devices)   /* whatever CUDA_VISIBLE_DEVICES says */
{
    int count = -1; CUdevice d = -1; CUuuid id = {}; size_t total = 0; char name[100] = "";
    R(cuInit(0)); R(cuDeviceGetCount(&count)); say("count", count);
    if (count < 1) return 0;
    R(cuDeviceGet(&d, 0)); R(cuDeviceGet(&d, count)); R(cuDeviceGetName(name, sizeof name, 0)); puts(name);
    R(cuDeviceGetUuid(&id, 0)); say("uuid", (unsigned char)id.bytes[3] * 256 + (unsigned char)id.bytes[15]);
    R(cuDeviceTotalMem(&total, 0)); say("is the limit", !quota() || total == quota());
    CUcontext c; CUdeviceptr p; R(cuDevicePrimaryCtxRetain(&c, 0)); R(cuCtxSetCurrent(c)); R(cuMemAlloc(&p, 64 * MIB)); R(cuMemsetD32(p, 6, MIB));
    moment();
    say("word", word_at(p)); R(cuMemFree(p));
    return 0;
}

/* ---- ways to the driver ---- */
static int by_hand(void *library, const char *how, void *(*look)(void *, const char *))
{
    auto init = (CUresult(*)(unsigned))look(library, "cuInit");
    auto retain = (CUresult(*)(CUcontext *, CUdevice))look(library, "cuDevicePrimaryCtxRetain");
    auto current = (CUresult(*)(CUcontext))look(library, "cuCtxSetCurrent");
    auto alloc = (CUresult(*)(CUdeviceptr *, size_t))look(library, "cuMemAlloc_v2");
    auto set = (CUresult(*)(CUdeviceptr, unsigned, size_t))look(library, "cuMemsetD32_v2");
    auto get = (CUresult(*)(void *, CUdeviceptr, size_t))look(library, "cuMemcpyDtoH_v2");
    auto release = (CUresult(*)(CUdeviceptr))look(library, "cuMemFree_v2");
    printf("%s found %d absent %d\n", how, init && retain && current && alloc && set && get && release, look(library, "cuNothing") != nullptr);
    if (!init || !retain || !current || !alloc || !set || !get || !release) return 1;
    CUcontext c; CUdeviceptr p; unsigned v = 0;
    R(init(0)); R(retain(&c, 0)); R(current(c)); R(alloc(&p, 64 * MIB)); R(set(p, 77, MIB));
    moment();
    R(get(&v, p, 4)); say("value", v); R(release(p));
    return 0;
}
static void *plain_look(void *l, const char *n) { return dlsym(l, n); }
static void *versioned_look(void *l, const char *n) { return dlvsym(l, n, "LIBCUDA_1"); }
PROGRAM(dl_namespace) { void *l = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_LOCAL); say("loaded", l != nullptr); return l ? by_hand(l, "dlmopen", plain_look) : 0; }
PROGRAM(dl_deepbind) { void *l = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND); return by_hand(l, "deepbind", plain_look); }
PROGRAM(dl_versioned) { void *l = dlopen("libcuda.so.1", RTLD_NOW); return by_hand(l, "dlvsym", versioned_look); }
PROGRAM(dl_default) { dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL); return by_hand(RTLD_DEFAULT, "default", plain_look); }
PROGRAM(dl_again) { void *l = nullptr; for (int i = 0; i < 20; i++) { l = dlopen("libcuda.so.1", RTLD_LAZY); say("x", dlsym(l, "cuInit") != nullptr); if (i < 19) dlclose(l); } int code = by_hand(l, "again", plain_look); say("close", dlclose(l)); return code; }
PROGRAM(dl_next) { say("malloc", dlsym(RTLD_NEXT, "malloc") != nullptr); say("cuInit", dlsym(RTLD_NEXT, "cuMemAlloc_v2") != nullptr); dlerror(); say("absent", dlsym(RTLD_DEFAULT, "cuNothing") == nullptr); say("error", dlerror() != nullptr); say("none left", dlerror() == nullptr); return by_hand(dlopen(nullptr, RTLD_NOW), "itself", plain_look); }
MAIN
