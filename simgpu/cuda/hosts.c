/* hosts.c - host functions: a thread per context that runs them when the stream has come to them. */
#define _GNU_SOURCE
#include "driver.h"
#include <signal.h>
#include <stdlib.h>

struct job {
    struct job *next;
    CUhostFn call;
    void *data;
    uint32_t slot;
    uint64_t before, seq; /* may run when `before` is done; the stream waits for `seq` */
};
struct host_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *first, **end;
    bool stop;
    CUcontext context;
};

/* The stream may go on past the host function, from now on. */
static void report(struct sim_lane *lane, uint32_t slot, uint64_t seq)
{
    lane->host_ns[slot] = sim_now();
    __atomic_store_n(&lane->host[slot], seq, __ATOMIC_SEQ_CST);
}

/* The next job, or NULL when it is time to stop. */
static struct job *take(struct host_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    while (!worker->first && !worker->stop) pthread_cond_wait(&worker->wake, &worker->lock);
    struct job *job = worker->stop ? NULL : worker->first;
    if (job && !(worker->first = job->next)) worker->end = &worker->first;
    pthread_mutex_unlock(&worker->lock);
    return job;
}

static void *work(void *argument)
{
    struct host_worker *worker = argument;
    struct job *job;
    while ((job = take(worker))) {
        if (lane_wait(worker->context, job->slot, job->before) == CUDA_SUCCESS) {
            lane_retire(worker->context);
            job->call(job->data);
        }
        report(worker->context->lane, job->slot, job->seq);
        lane_ring(worker->context);
        free(job);
    }
    return NULL;
}

/* Starts the thread, with all signals blocked: they are the program's own. */
static struct host_worker *start(CUcontext context)
{
    struct host_worker *worker = calloc(1, sizeof *worker);
    sigset_t all, before;
    if (!worker) return NULL;
    worker->context = context;
    worker->end = &worker->first;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->wake, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, work, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return worker;
    free(worker);
    return NULL;
}

/* With the context's lock held. */
CUresult hosts_push(CUcontext context, const struct op *op, uint32_t slot, uint64_t before, uint64_t seq)
{
    struct job *job = malloc(sizeof *job);
    if (!context->hosts) context->hosts = start(context);
    if (!context->hosts || !job) {
        free(job);
        report(context->lane, slot, seq);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *job = (struct job){ .call = op->host.call, .data = op->host.data, .slot = slot, .before = before, .seq = seq };
    pthread_mutex_lock(&context->hosts->lock);
    *context->hosts->end = job;
    context->hosts->end = &job->next;
    pthread_cond_signal(&context->hosts->wake);
    pthread_mutex_unlock(&context->hosts->lock);
    return CUDA_SUCCESS;
}

/* Ends the thread. The lane is dead already, so that it waits for nothing. */
void hosts_stop(CUcontext context)
{
    struct host_worker *worker = context->hosts;
    if (!worker) return;
    pthread_mutex_lock(&worker->lock);
    worker->stop = true;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    while (worker->first) {
        struct job *job = worker->first;
        worker->first = job->next;
        free(job);
    }
    free(worker);
    context->hosts = NULL;
}
