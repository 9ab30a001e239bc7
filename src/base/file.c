/* Atomic file writing through a temporary name in the same directory. */
#include "base/file.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sl_file {
    FILE *stream;
    char *path;      /* as the caller named it, for messages */
    char *place;     /* path with links resolved */
    char *temporary; /* NULL where place is written directly */
};

/* Where the bytes go in the end: a link's target, so that the link survives. */
static sl_status resolve(const char *path, char **out)
{
    char *resolved = realpath(path, NULL);
    sl_status status = sl_strdup(resolved ? resolved : path, out);
    free(resolved);
    return status;
}

/* Opens a name of its own beside the place: the mode comes from the umask, or from the file that is replaced. */
static sl_status open_temporary(sl_file *file, const struct stat *old)
{
    static atomic_uint counter; /* two threads may write the same path */
    size_t size = strlen(file->place) + 48;
    sl_status status = SL_NEW_ARRAY(file->temporary, size);
    if (status != SL_OK)
        return status;
    snprintf(file->temporary, size, "%s.%ld-%u.tmp", file->place, (long)getpid(), atomic_fetch_add(&counter, 1));
    int fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        int reason = errno;
        sl_free(file->temporary);
        file->temporary = NULL;
        return sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(reason));
    }
    if (old && fchmod(fd, old->st_mode & 07777) != 0)
        sl_log(SL_LOG_WARN, "%s: the mode of the old file could not be kept: %s", file->path, strerror(errno));
    file->stream = fdopen(fd, "w");
    if (!file->stream) {
        status = sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(errno));
        close(fd);
        return status;
    }
    return SL_OK;
}

static sl_status open_directly(sl_file *file)
{
    file->stream = fopen(file->place, "we");
    if (!file->stream)
        return sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(errno));
    return SL_OK;
}

sl_status sl_file_create(const char *path, sl_file **out)
{
    sl_file *file = NULL;
    struct stat old;
    if (path[0] == '\0')
        return sl_fail(SL_ERR_IO, "open for writing: the file name is empty");
    sl_status status = SL_NEW(file);
    if (status != SL_OK)
        return status;
    SL_TRY(sl_strdup(path, &file->path));
    SL_TRY(resolve(path, &file->place));
    bool exists = stat(file->place, &old) == 0;
    if (exists && !S_ISREG(old.st_mode))
        SL_TRY(open_directly(file));
    else if (exists && access(file->place, W_OK) != 0) /* renaming over it would get around its mode */
        SL_TRY(sl_fail(SL_ERR_IO, "open %s for writing: %s", path, strerror(errno)));
    else
        SL_TRY(open_temporary(file, exists ? &old : NULL));
    *out = file;
    file = NULL;
done:
    sl_file_destroy(file);
    return status;
}

FILE *sl_file_stream(sl_file *file)
{
    return file->stream;
}

sl_status sl_file_write_at(sl_file *file, const void *data, size_t bytes, uint64_t offset)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = pwrite(fileno(file->stream), from, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return sl_fail(SL_ERR_IO, "write %s: %s", file->path, strerror(errno));
        from += written;
        bytes -= (size_t)written;
        offset += (uint64_t)written;
    }
    return SL_OK;
}

/* Makes a rename into the folder of this path survive a power cut. */
static sl_status sync_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = NULL;
    sl_status status = sl_strdup(slash ? path : ".", &folder);
    if (status != SL_OK)
        return status;
    if (slash)
        folder[slash == path ? 1 : slash - path] = '\0';
    status = sl_folder_sync(folder);
    sl_free(folder);
    return status;
}

sl_status sl_file_commit(sl_file *file)
{
    errno = 0;
    bool written = !ferror(file->stream) && fflush(file->stream) == 0;
    if (written && file->temporary)
        written = fsync(fileno(file->stream)) == 0;
    int reason = errno;
    if (fclose(file->stream) != 0 && written) {
        reason = errno;
        written = false;
    }
    file->stream = NULL;
    if (written && file->temporary) {
        written = rename(file->temporary, file->place) == 0;
        reason = errno;
    }
    if (!written)
        return sl_fail(SL_ERR_IO, "write %s: %s", file->path, reason ? strerror(reason) : "an earlier write failed");
    bool renamed = file->temporary != NULL;
    sl_free(file->temporary);
    file->temporary = NULL;
    return renamed ? sync_folder_of(file->place) : SL_OK;
}

void sl_file_destroy(sl_file *file)
{
    if (!file)
        return;
    if (file->stream)
        fclose(file->stream);
    if (file->temporary)
        unlink(file->temporary);
    sl_free(file->temporary);
    sl_free(file->place);
    sl_free(file->path);
    sl_free(file);
}

static sl_status replace(const char *path, const void *data, size_t bytes, const char *end)
{
    sl_status status = SL_OK;
    sl_file *file = NULL;
    SL_TRY(sl_file_create(path, &file));
    fwrite(data, 1, bytes, file->stream); /* a failure shows in the commit */
    fputs(end, file->stream);
    SL_TRY(sl_file_commit(file));
done:
    sl_file_destroy(file);
    return status;
}

sl_status sl_file_replace(const char *path, const void *data, size_t bytes)
{
    return replace(path, data, bytes, "");
}

sl_status sl_file_replace_text(const char *path, const char *text)
{
    size_t length = strlen(text);
    return replace(path, text, length, length > 0 && text[length - 1] == '\n' ? "" : "\n");
}
