/* Folders and paths. */
#include "base/file.h"

#include "base/alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sl_status sl_path_join(const char *folder, const char *name, char **out)
{
    size_t folder_length = strlen(folder);
    const char *slash = folder_length > 0 && folder[folder_length - 1] == '/' ? "" : "/";
    size_t size = folder_length + strlen(name) + 2;
    char *path = NULL;
    sl_status status = SL_NEW_ARRAY(path, size);
    if (status != SL_OK)
        return status;
    snprintf(path, size, "%s%s%s", folder, slash, name);
    *out = path;
    return SL_OK;
}

bool sl_folder_has(const char *folder, const char *name)
{
    char *path = NULL;
    if (sl_path_join(folder, name, &path) != SL_OK)
        return false;
    bool found = access(path, R_OK) == 0;
    sl_free(path);
    return found;
}

/* One folder of a path. *made: it did not exist before. */
static sl_status make_one(const char *path, bool *made)
{
    *made = mkdir(path, 0777) == 0;
    if (!*made && errno != EEXIST)
        return sl_fail(SL_ERR_IO, "make folder %s: %s", path, strerror(errno));
    return SL_OK;
}

/* The last folder's name is synced even if it was there: whoever made it may have been killed before its sync. */
sl_status sl_folder_make(const char *path)
{
    char *copy = NULL;
    sl_status status = sl_strdup(path, &copy);
    if (status != SL_OK)
        return status;
    for (char *slash = strchr(copy + (copy[0] == '/'), '/');; slash = strchr(slash + 1, '/')) {
        bool made = false;
        if (slash)
            *slash = '\0';
        SL_TRY(make_one(copy, &made));
        if (made)
            SL_TRY(sl_folder_sync_parent(copy));
        if (!slash)
            break;
        *slash = '/';
    }
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode))
        SL_TRY(sl_fail(SL_ERR_IO, "make folder %s: a file of that name stands there", path));
    if (sl_folder_sync_parent(path) != SL_OK) /* we did not make it, and may not be allowed to read its parent */
        sl_log(SL_LOG_DEBUG, "%s", sl_error_message());
done:
    sl_free(copy);
    return status;
}

sl_status sl_folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    /* Some file systems cannot sync a folder; then there is nothing to wait for. */
    sl_status status = SL_OK;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        status = sl_fail(SL_ERR_IO, "sync %s: %s", path, strerror(errno));
    close(fd);
    return status;
}

sl_status sl_folder_sync_parent(const char *path)
{
    char *parent = NULL;
    sl_status status = sl_strdup(path, &parent);
    if (status != SL_OK)
        return status;
    size_t end = strlen(parent);
    while (end > 1 && parent[end - 1] == '/')
        end--;
    while (end > 0 && parent[end - 1] != '/')
        end--;
    parent[end] = '\0';
    status = sl_folder_sync(end > 0 ? parent : ".");
    sl_free(parent);
    return status;
}

static sl_status remove_entries(const char *path, int folder)
{
    DIR *dir = fdopendir(folder);
    if (!dir) {
        sl_status status = sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
        close(folder);
        return status;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(folder, entry->d_name, 0); /* what stays shows in the rmdir */
    }
    closedir(dir);
    return SL_OK;
}

sl_status sl_folder_remove(const char *path)
{
    sl_status status = SL_OK;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 && errno == ENOENT)
        return SL_OK;
    if (folder < 0 && (errno == ELOOP || errno == ENOTDIR)) { /* a link or a file: the name alone goes */
        if (unlink(path) != 0)
            return sl_fail(SL_ERR_IO, "remove %s: %s", path, strerror(errno));
        return sl_folder_sync_parent(path);
    }
    if (folder < 0)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    SL_TRY(remove_entries(path, folder));
    if (rmdir(path) != 0 && errno != ENOENT)
        SL_TRY(sl_fail(SL_ERR_IO, "remove %s: %s", path, strerror(errno)));
    SL_TRY(sl_folder_sync_parent(path));
done:
    return status;
}

void sl_folder_discard(const char *path)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", sl_error_message());
    if (path && sl_folder_remove(path) != SL_OK)
        sl_log(SL_LOG_WARN, "%s", sl_error_message());
    sl_fail(SL_ERR_IO, "%s", message);
}
