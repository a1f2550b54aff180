/* reach.c - what the container can get at: files, folders, sockets. Each tells what the kernel answered. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include "probe.h"

static const char *name_of(int error)
{
    static const struct { int number; const char *name; } known[] = {
        { EACCES, "EACCES" }, { EPERM, "EPERM" }, { EROFS, "EROFS" }, { ENOENT, "ENOENT" }, { EISDIR, "EISDIR" },
        { ECONNREFUSED, "ECONNREFUSED" }, { ENOSPC, "ENOSPC" }, { ENOTDIR, "ENOTDIR" },
    };
    for (size_t index = 0; index < sizeof known / sizeof *known; index++)
        if (known[index].number == error)
            return known[index].name;
    return strerror(error);
}

static void tell(const char *event, const char *path, int error)
{
    line_begin(event);
    line_text("path", path);
    line_text("error", error ? name_of(error) : NULL);
}

void reach_write(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    int error = file < 0 || write(file, "x", 1) < 0 ? errno : 0;
    if (file >= 0)
        close(file);
    tell("write", path, error);
    line_end();
}

void reach_look(const char *path)
{
    DIR *folder = opendir(path);
    tell("look", path, folder ? 0 : errno);
    line_open("names", '[');
    for (struct dirent *each; folder && (each = readdir(folder));)
        if (strcmp(each->d_name, ".") && strcmp(each->d_name, ".."))
            line_text(NULL, each->d_name);
    line_close(']');
    line_end();
    if (folder)
        closedir(folder);
}

/* A door that is open to all may still be shut behind whoever came in: so it waits a second for that. */
void reach_knock(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct timeval second = { .tv_sec = 1 };
    char byte;
    int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), error = 0, kept = 0;
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (connect(door, (struct sockaddr *)&address, sizeof address) < 0) {
        error = errno;
    } else {
        setsockopt(door, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
        kept = recv(door, &byte, 1, 0) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
    close(door);
    tell("knock", path, error);
    line_bool("kept", kept);
    line_end();
}
