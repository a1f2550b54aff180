/* mps.c - the client's side of MPS: where CUDA_MPS_PIPE_DIRECTORY has a control that answers, a context is its server's.
 * Without one the program runs as if there were no MPS, as with the real driver. */
#define _GNU_SOURCE
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int connect_control(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if (!folder || snprintf(to.sun_path, sizeof to.sun_path, "%s/control", folder) >= (int)sizeof to.sun_path) return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool mps_is_there(void)
{
    int fd = connect_control();
    if (fd >= 0) close(fd);
    return fd >= 0;
}

void mps_cards(char *list, size_t size)
{
    int fd = connect_control();
    ssize_t length = fd >= 0 && send(fd, "cards", 5, MSG_NOSIGNAL) == 5 ? recv(fd, list, size - 1, 0) : 0;
    list[length > 0 ? length : 0] = 0;
    if (fd >= 0) close(fd);
}

CUresult mps_join(CUcontext context)
{
    char question[64];
    uint32_t server[2] = { 0, 0 }; /* its client and group */
    int fd = connect_control();
    int length = snprintf(question, sizeof question, "join %s", context->device->uuid);
    bool answered = fd >= 0 && send(fd, question, (size_t)length, MSG_NOSIGNAL) == length &&
                    recv(fd, server, sizeof server, 0) == sizeof server;
    if (fd >= 0) close(fd);
    if (!answered || !server[0]) return CUDA_ERROR_MPS_CONNECTION_FAILED;
    struct sim_follow request = { .head.kind = SIM_FOLLOW, .client = driver.client, .group = context->group,
                                  .server_client = server[0], .server_group = server[1] };
    return sim_call(driver.rm, &request, sizeof request, NULL, 0, NULL, NULL, NULL) ? CUDA_ERROR_MPS_RPC_FAILURE
                                                                                   : CUDA_SUCCESS;
}
