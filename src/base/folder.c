/* Folders and paths. */
#include "base/file.h"

#include "base/alloc.h"

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

sl_status sl_folder_make(const char *path)
{
    char *copy = NULL;
    sl_status status = sl_strdup(path, &copy);
    if (status != SL_OK)
        return status;
    for (char *slash = strchr(copy + (copy[0] == '/'), '/'); status == SL_OK; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            status = sl_fail(SL_ERR_IO, "make folder %s: %s", copy, strerror(errno));
        if (!slash)
            break;
        *slash = '/';
    }
    struct stat about;
    if (status == SL_OK && (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)))
        status = sl_fail(SL_ERR_IO, "make folder %s: a file of that name stands there", path);
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
