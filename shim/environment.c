/* environment.c - a container's variables, where neither the runtime (CDI) nor the Pod could be given them.
 *
 * The agent then mounts a file with the variables of this very container: NAME=VALUE, each with a NUL at its end. They
 * are set once, in the first program of a chain: what that program sets for its children stays as it set it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include "shim.h"

#define FILE_NAME "/run/aliquot/env"    /* injection.py spells it too */
#define MARK      "ALIQUOT_ENV"
#define LONGEST   65536

__attribute__((constructor)) static void take(void)
{
    static char text[LONGEST + 1];
    int saved = errno;
    if (getauxval(AT_SECURE) || getenv(MARK))
        return;
    int fd = open(FILE_NAME, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t length = 0, got;
        while (length < LONGEST && (got = read(fd, text + length, (size_t)(LONGEST - length))) > 0)
            length += got;
        close(fd);
        for (char *entry = text; entry < text + length; entry += strlen(entry) + 1) {
            char *equals = strchr(entry, '=');
            if (!equals)
                continue;
            *equals = 0;
            setenv(entry, equals + 1, 1);
            *equals = '=';
        }
        setenv(MARK, "1", 1);
    }
    errno = saved;
}
