/* Atomic file writing through a temporary name in the same directory. */
#include "base/file.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sl_file {
    FILE *stream;
    char *path;      /* as the caller named it, for messages */
    int folder;      /* descriptor of the folder that the bytes go to in the end: that of a link's target */
    char *name;      /* in that folder */
    char *temporary; /* in that folder, too; NULL if `name` is written directly */
};

/* ---- The place ------------------------------------------------------------------------------- */

/* Splits at the last slash; folder is "." or "/" if there is nothing before it. The caller frees both. */
static sl_status split(const char *path, char **folder, char **name)
{
    sl_status status = SL_OK;
    const char *slash = strrchr(path, '/');
    char *before = NULL, *after = NULL;
    SL_TRY(sl_strdup(slash ? slash + 1 : path, &after));
    SL_TRY(sl_strdup(slash ? path : ".", &before));
    if (slash)
        before[slash == path ? 1 : slash - path] = '\0';
    *folder = before;
    *name = after;
    before = after = NULL;
done:
    sl_free(before);
    sl_free(after);
    return status;
}

/* Moves the place to `path`, which is relative to the folder it has now. */
static sl_status go_to(sl_file *file, const char *path)
{
    sl_status status = SL_OK;
    char *folder = NULL, *name = NULL;
    SL_TRY(split(path, &folder, &name));
    if (name[0] == '\0')
        SL_TRY(sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(EISDIR)));
    int fd = openat(file->folder, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        SL_TRY(sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(errno)));
    if (file->folder >= 0)
        close(file->folder);
    sl_free(file->name);
    file->folder = fd;
    file->name = name;
    name = NULL;
done:
    sl_free(folder);
    sl_free(name);
    return status;
}

/* In a folder where everybody may make files (sticky and writable for all) a link may be a trap: it has to be ours or
 * the folder owner's. The kernel has the same rule for its own lookups (protected_symlinks). */
static sl_status check_link(const sl_file *file, const struct stat *link)
{
    struct stat folder;
    if (fstat(file->folder, &folder) != 0)
        return sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(errno));
    bool shared = (folder.st_mode & (S_ISVTX | S_IWOTH)) == (S_ISVTX | S_IWOTH);
    if (shared && link->st_uid != geteuid() && link->st_uid != folder.st_uid)
        return sl_fail(SL_ERR_IO,
                       "open %s for writing: %s is another user's link in a folder where anybody may make files",
                       file->path, file->name);
    return SL_OK;
}

/* Follows links to a file until the place is none. *exists and *about: what is there now. */
static sl_status find_place(sl_file *file, bool *exists, struct stat *about)
{
    sl_status status = SL_OK;
    enum { MOST_LINKS = 40 };
    SL_TRY(go_to(file, file->path));
    for (int links = 0;; links++) {
        char target[4096];
        *exists = fstatat(file->folder, file->name, about, AT_SYMLINK_NOFOLLOW) == 0;
        if (!*exists || !S_ISLNK(about->st_mode))
            return SL_OK;
        SL_TRY(check_link(file, about));
        if (fstatat(file->folder, file->name, about, 0) == 0 && !S_ISREG(about->st_mode))
            return SL_OK; /* a pipe or device, such as /dev/stdout: it may have no name of its own */
        ssize_t length = readlinkat(file->folder, file->name, target, sizeof target - 1);
        if (length < 0 || length == sizeof target - 1 || links == MOST_LINKS)
            SL_TRY(sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path,
                           strerror(length < 0            ? errno
                                    : links == MOST_LINKS ? ELOOP
                                                          : ENAMETOOLONG)));
        target[length] = '\0';
        SL_TRY(go_to(file, target));
    }
done:
    return status;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Opens a new name beside the place. The name is random: a start after a kill may have the same process id. */
static sl_status open_unused_name(sl_file *file, int *out)
{
    sl_status status = SL_OK;
    enum { TRIES = 100 };
    size_t size = strlen(file->name) + 32;
    SL_TRY(SL_NEW_ARRAY(file->temporary, size));
    for (int tries = 0; tries < TRIES; tries++) {
        uint64_t number = 0;
        if (getentropy(&number, sizeof number) != 0)
            break;
        snprintf(file->temporary, size, "%s.%016" PRIx64 ".tmp", file->name, number);
        *out = openat(file->folder, file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (*out >= 0)
            return SL_OK;
        if (errno != EEXIST)
            break;
    }
    status = sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(errno));
    sl_free(file->temporary);
    file->temporary = NULL;
done:
    return status;
}

/* The mode comes from the umask, or from the file that is replaced. */
static sl_status open_temporary(sl_file *file, const struct stat *old)
{
    int fd = -1;
    sl_status status = open_unused_name(file, &fd);
    if (status != SL_OK)
        return status;
    if (old && fchmod(fd, old->st_mode & 07777) != 0)
        sl_log(SL_LOG_WARN, "%s: the mode of the old file could not be kept: %s", file->path, strerror(errno));
    file->stream = fdopen(fd, "w");
    if (!file->stream) {
        status = sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(errno));
        close(fd);
    }
    return status;
}

static sl_status open_directly(sl_file *file)
{
    int fd = openat(file->folder, file->name, O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC);
    file->stream = fd < 0 ? NULL : fdopen(fd, "w");
    if (file->stream)
        return SL_OK;
    sl_status status = sl_fail(SL_ERR_IO, "open %s for writing: %s", file->path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

sl_status sl_file_create(const char *path, sl_file **out)
{
    sl_file *file = NULL;
    struct stat old;
    bool exists = false;
    if (path[0] == '\0')
        return sl_fail(SL_ERR_IO, "open for writing: the file name is empty");
    sl_status status = SL_NEW(file);
    if (status != SL_OK)
        return status;
    file->folder = AT_FDCWD;
    SL_TRY(sl_strdup(path, &file->path));
    SL_TRY(find_place(file, &exists, &old));
    if (exists && !S_ISREG(old.st_mode))
        SL_TRY(open_directly(file));
    else if (exists && faccessat(file->folder, file->name, W_OK, 0) != 0) /* a rename would get around its mode */
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

/* Makes the rename survive a power cut. Some file systems cannot sync a folder; then there is nothing to wait for. */
static sl_status sync_folder(const sl_file *file)
{
    if (fsync(file->folder) != 0 && errno != EINVAL && errno != ENOTSUP)
        return sl_fail(SL_ERR_IO, "sync the folder of %s: %s", file->path, strerror(errno));
    return SL_OK;
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
        written = renameat(file->folder, file->temporary, file->folder, file->name) == 0;
        reason = errno;
    }
    if (!written)
        return sl_fail(SL_ERR_IO, "write %s: %s", file->path, reason ? strerror(reason) : "an earlier write failed");
    bool renamed = file->temporary != NULL;
    sl_free(file->temporary);
    file->temporary = NULL;
    return renamed ? sync_folder(file) : SL_OK;
}

void sl_file_destroy(sl_file *file)
{
    if (!file)
        return;
    if (file->stream)
        fclose(file->stream);
    if (file->temporary)
        unlinkat(file->folder, file->temporary, 0);
    if (file->folder >= 0)
        close(file->folder);
    sl_free(file->temporary);
    sl_free(file->name);
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
