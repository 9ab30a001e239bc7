/* Drafts: several files of a folder that change together. */
#include "base/file.h"

#include "base/alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 8 }; /* drafts inside drafts: of a model's export, of the model, of its weights */

/* What somebody who was killed left. */
static sl_status remove_draft(const char *draft, int depth)
{
    sl_status status = SL_OK;
    char *inner = NULL;
    SL_TRY(sl_path_join(draft, ".partial", &inner));
    struct stat about;
    if (depth < DEEPEST && lstat(inner, &about) == 0 && S_ISDIR(about.st_mode))
        SL_TRY(remove_draft(inner, depth + 1));
    SL_TRY(sl_folder_remove(draft));
done:
    sl_free(inner);
    return status;
}

sl_status sl_draft_begin(const char *folder, char **out)
{
    sl_status status = SL_OK;
    char *draft = NULL;
    SL_TRY(sl_path_join(folder, ".partial", &draft));
    SL_TRY(remove_draft(draft, 0));
    SL_TRY(sl_folder_make(draft));
    *out = draft;
    draft = NULL;
done:
    sl_free(draft);
    return status;
}

static bool is_mark(const char *const *marks, const char *name)
{
    for (; *marks; marks++) {
        if (strcmp(*marks, name) == 0)
            return true;
    }
    return false;
}

static sl_status remove_name(const char *folder, int fd, const char *name)
{
    if (unlinkat(fd, name, 0) != 0 && errno != ENOENT)
        return sl_fail(SL_ERR_IO, "remove %s/%s: %s", folder, name, strerror(errno));
    return SL_OK;
}

static sl_status move_name(const char *folder, int from, int to, const char *name)
{
    if (renameat(from, name, to, name) != 0 && errno != ENOENT)
        return sl_fail(SL_ERR_IO, "rename %s/.partial/%s: %s", folder, name, strerror(errno));
    return SL_OK;
}

static sl_status sync_names(const char *folder, int fd)
{
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return sl_fail(SL_ERR_IO, "sync %s: %s", folder, strerror(errno));
    return SL_OK;
}

/* Removes what belongs to the old state. */
static sl_status remove_old(const char *folder, int fd, bool (*is_ours)(const char *))
{
    sl_status status = SL_OK;
    DIR *dir = opendir(folder);
    if (!dir)
        return sl_fail(SL_ERR_IO, "open %s: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (is_ours(entry->d_name))
            SL_TRY(remove_name(folder, fd, entry->d_name));
    }
done:
    closedir(dir);
    return status;
}

static sl_status move_new(const char *folder, const char *draft, int from, int to, const char *const *marks)
{
    sl_status status = SL_OK;
    DIR *dir = opendir(draft);
    if (!dir)
        return sl_fail(SL_ERR_IO, "open %s: %s", draft, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        bool dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!dots && !is_mark(marks, entry->d_name))
            SL_TRY(move_name(folder, from, to, entry->d_name));
    }
    SL_TRY(sync_names(folder, to)); /* what the marks stand for is on disk before them */
    for (; *marks; marks++)
        SL_TRY(move_name(folder, from, to, *marks));
    SL_TRY(sync_names(folder, to));
done:
    closedir(dir);
    return status;
}

sl_status sl_draft_publish(const char *draft, const char *folder, const char *const *marks,
                           bool (*is_ours)(const char *name))
{
    sl_status status = SL_OK;
    int count = 0, to = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int from = to < 0 ? -1 : open(draft, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0)
        SL_TRY(sl_fail(SL_ERR_IO, "open %s: %s", to < 0 ? folder : draft, strerror(errno)));
    while (marks[count])
        count++;
    for (int i = count - 1; i >= 0; i--)
        SL_TRY(remove_name(folder, to, marks[i]));
    SL_TRY(sync_names(folder, to)); /* nobody finds the old files by then */
    SL_TRY(remove_old(folder, to, is_ours));
    SL_TRY(move_new(folder, draft, from, to, marks));
    SL_TRY(sl_folder_remove(draft));
done:
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return status;
}
