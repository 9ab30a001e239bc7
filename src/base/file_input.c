/* Opening files that are to be read. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A pipe with a name in a folder, not one that a shell has connected. */
static bool is_named_pipe(int fd)
{
    struct stat info;
    struct statfs system;
    return fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode) && fstatfs(fd, &system) == 0 &&
           system.f_type != PIPEFS_MAGIC;
}

sl_status sl_file_open_input(const char *path, int *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe's open would wait for a writer */
    if (fd < 0)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    if (is_named_pipe(fd)) {
        close(fd);
        return sl_fail(SL_ERR_IO, "open %s: it is a named pipe (FIFO); a file is needed", path);
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    *out = fd;
    return SL_OK;
}

sl_status sl_file_open_stream(const char *path, FILE **out)
{
    int fd = -1;
    sl_status status = sl_file_open_input(path, &fd);
    if (status != SL_OK)
        return status;
    FILE *stream = fdopen(fd, "r");
    if (!stream) {
        status = sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
        close(fd);
        return status;
    }
    *out = stream;
    return SL_OK;
}
