/* checkpoint.c - another process of the same user leaves the cards, and comes back.
 *
 * As with the real driver it is the other process that does it: a caller that dies meanwhile changes nothing. A fault to
 * test with: while there is a file SOCKET.checkpoint with "NAME CODE" in it (as "restore 2"), that function answers with the
 * code; with the code 0 it never comes back, and with 1000 the process is in the state "failed" afterwards. */
#define _GNU_SOURCE
#include "driver.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OUT_PER_SECOND  2000000000ull
#define BACK_PER_SECOND 5000000000ull

static void pause_ns(uint64_t ns)
{
    struct timespec time = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
    nanosleep(&time, NULL);
}

/* -1: no fault. */
static int fault(const char *name)
{
    char path[256], found[32] = "";
    int code = -1;
    const char *player = getenv(SIM_ENV);
    snprintf(path, sizeof path, "%s.checkpoint", player ? player : "");
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    if (fscanf(file, "%31s %d", found, &code) != 2 || strcmp(found, name)) code = -1;
    fclose(file);
    while (code == 0) pause();
    return code;
}

static CUresult result_of(int error)
{
    switch (error) {
    case 0: return CUDA_SUCCESS;
    case ESRCH: return CUDA_ERROR_INVALID_VALUE;
    case EPERM: return CUDA_ERROR_NOT_PERMITTED;
    case EAGAIN: return CUDA_ERROR_NOT_READY;
    case EPROTO: return CUDA_ERROR_ILLEGAL_STATE;
    default: return driver_error(error);
    }
}

static int ask(int pid, enum sim_step step, struct sim_checkpointed *found)
{
    struct sim_checkpoint request = { .head.kind = SIM_CHECKPOINT, .pid = (uint32_t)pid, .step = step };
    memset(found, 0, sizeof *found);
    return sim_call(driver.rm, &request, sizeof request, found, sizeof *found, NULL, NULL, NULL);
}

static CUresult move(int pid, enum sim_step step, const char *name, uint64_t per_second)
{
    struct sim_checkpointed found;
    CUresult result = driver_check();
    int code = fault(name);
    if (result != CUDA_SUCCESS) return result;
    if (code == 1000) ask(pid, SIM_STEP_FAIL, &found);
    if (code >= 0) return code == 1000 ? CUDA_ERROR_UNKNOWN : (CUresult)code;
    result = result_of(ask(pid, step, &found));
    if (result == CUDA_SUCCESS && per_second) pause_ns(found.bytes * 1000 / (per_second / 1000000));
    return result;
}

API cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    struct sim_checkpointed found;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    result = result_of(ask(pid, SIM_STEP_NONE, &found));
    if (result == CUDA_SUCCESS) *state = (CUprocessState)found.state;
    return result;
}

API cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    uint64_t deadline = args && args->timeoutMs ? sim_now() + args->timeoutMs * 1000000ull : UINT64_MAX;
    CUresult result;
    while ((result = move(pid, SIM_STEP_LOCK, "lock", 0)) == CUDA_ERROR_NOT_READY && sim_now() < deadline) pause_ns(1000000);
    return result;
}

API cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    (void)args;
    return move(pid, SIM_STEP_CHECKPOINT, "checkpoint", OUT_PER_SECOND);
}

API cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    (void)args;
    return move(pid, SIM_STEP_RESTORE, "restore", BACK_PER_SECOND);
}

API cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    (void)args;
    return move(pid, SIM_STEP_UNLOCK, "unlock", 0);
}
