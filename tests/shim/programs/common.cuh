/* common.cuh - what the programs of on_card_programs.py share. A program prints what calls answer and what memory holds; the
 * same must come out without the shim, with it, and when its memory leaves the card at moment(). */
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

constexpr size_t MIB = 1 << 20, GIB = 1 << 30;

inline long long say(const char *what, long long answer)
{
    printf("%s -> %lld\n", what, answer);
    fflush(stdout);
    return answer;
}
#define R(call) say(#call, (long long)(call))
/* Without this nothing that follows can work. */
#define MUST(call) do { long long answer_ = (long long)(call); if (answer_) { say(#call, answer_); exit(90); } } while (0)

struct Entry { const char *name; int (*run)(); Entry *next; };
inline Entry *entries = nullptr;
struct Add { Add(Entry *e) { e->next = entries; entries = e; } };
#define PROGRAM(name) \
    static int name(); static Entry entry_##name = { #name, name, nullptr }; static Add add_##name(&entry_##name); static int name()

/* Here its memory leaves the card, when it runs so: the one who started it is told, and waited for. */
inline void moment()
{
    const char *path = getenv("PROGRAM_MOMENT");
    if (!path)
        return;
    std::string at = std::string(path) + ".at", go = std::string(path) + ".go";
    int fd = open(at.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < 4000 && access(go.c_str(), F_OK); i++)
        usleep(10000);
}

inline size_t quota() { const char *text = getenv("PROGRAM_QUOTA"); return text ? strtoull(text, nullptr, 10) : 0; }

static __global__ void fill_(unsigned *p, size_t n, unsigned seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
        p[i] = (unsigned)i * 2654435761u + seed;
}
static __global__ void sum_(const unsigned *p, size_t n, unsigned long long *out)
{
    unsigned long long mine = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
        mine += (unsigned long long)p[i] * (i % 8191 + 1);
    __shared__ unsigned long long all;      /* one word of the host for each block: they are slow to reach */
    if (!threadIdx.x)
        all = 0;
    __syncthreads();
    atomicAdd(&all, mine);
    __syncthreads();
    if (!threadIdx.x)
        atomicAdd(out, all);
}
static __global__ void add_(unsigned *p, size_t n, unsigned k)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
        p[i] += k;
}
static __global__ void spin_(unsigned long long ns)
{
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - began < ns);
}

inline void fill(void *p, size_t bytes, unsigned seed, cudaStream_t s = 0) { fill_<<<64, 256, 0, s>>>((unsigned *)p, bytes / 4, seed); }
inline void add(void *p, size_t bytes, unsigned k, cudaStream_t s = 0) { add_<<<64, 256, 0, s>>>((unsigned *)p, bytes / 4, k); }
/* What the memory holds, as one number; 1 when it could not be read. */
inline unsigned long long sum(const void *p, size_t bytes, cudaStream_t s = 0)
{
    static thread_local unsigned long long *out = nullptr;
    if (!out && cudaHostAlloc(&out, 8, cudaHostAllocMapped))
        return 1;
    *out = 0;
    sum_<<<64, 256, 0, s>>>((const unsigned *)p, bytes / 4, out);
    return cudaStreamSynchronize(s) ? 1 : *out;
}
#define SUM(p, bytes) say("sum of " #p, (long long)sum(p, bytes))

/* Sends a file to the other process, and gets one. */
inline void send_fd(int to, int fd)
{
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {};
    iovec io = { &byte, 1 };
    msghdr m = {};
    m.msg_iov = &io; m.msg_iovlen = 1; m.msg_control = room; m.msg_controllen = sizeof room;
    cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    sendmsg(to, &m, 0);
}
inline int recv_fd(int from)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    iovec io = { &byte, 1 };
    msghdr m = {};
    m.msg_iov = &io; m.msg_iovlen = 1; m.msg_control = room; m.msg_controllen = sizeof room;
    if (recvmsg(from, &m, 0) <= 0 || !CMSG_FIRSTHDR(&m))
        return -1;
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

/* A child that was forked before CUDA began, with a socket to it; its output comes after the parent's word. */
inline int with_child(const std::function<int(int)> &parent, const std::function<int(int)> &child)
{
    int ends[2];
    fflush(stdout);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return 91;
    pid_t pid = fork();
    if (!pid) {
        close(ends[0]);
        int code = child(ends[1]);
        fflush(stdout);
        _exit(code);
    }
    close(ends[1]);
    int code = parent(ends[0]), status = 0;
    shutdown(ends[0], SHUT_WR);
    waitpid(pid, &status, 0);
    say("the child's status", status);
    return code;
}

inline int run_program(int argc, char **argv)
{
    if (getenv("PROGRAM_LATE"))     /* so that what is printed at the end is not lost with the buffer */
        setvbuf(stdout, nullptr, _IONBF, 0);
    for (Entry *e = entries; e; e = e->next)
        if (argc > 1 && !strcmp(argv[1], e->name))
            return e->run();
    fprintf(stderr, "no such program\n");
    return 99;
}
#define MAIN int main(int argc, char **argv) { return run_program(argc, argv); }
