/* Finds modules and loads them, unless somebody else could have put them there. */
#include "base/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char library_marker; /* lies in the file that holds this library */

/* The folder of a path: what comes before its last slash. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

/* A file or folder that only its owner can change, and the owner is root, this user, or who owns `neighbor` and could
 * as well have changed that one. In a sticky folder others can add files, but not replace these. */
static bool is_trusted(const struct stat *what, const struct stat *neighbor)
{
    bool owned = what->st_uid == 0 || what->st_uid == geteuid() || what->st_uid == neighbor->st_uid;
    return owned && (!(what->st_mode & S_IWOTH) || (S_ISDIR(what->st_mode) && (what->st_mode & S_ISVTX)));
}

/* Code that is found only because it lies beside the program must not be somebody else's. */
static sl_status check_owner(const char *path, const char *neighbor)
{
    char folder[PATH_MAX];
    struct stat found, around, trusted;
    snprintf(folder, sizeof folder, "%.*s", (int)folder_length(path), path);
    if (stat(path, &found) != 0 || stat(folder, &around) != 0 || stat(neighbor, &trusted) != 0)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s is not loaded: %s", path, strerror(errno));
    if (is_trusted(&found, &trusted) && is_trusted(&around, &trusted))
        return SL_OK;
    return sl_fail(SL_ERR_UNSUPPORTED,
                   "%s is not loaded: user %u or anybody can change it; if that is right, name its folder in "
                   "SLUICE_PLUGIN_PATH",
                   path, (unsigned)(is_trusted(&found, &trusted) ? around.st_uid : found.st_uid));
}

/* What is looked for, and what was found. */
typedef struct library_search {
    const char *file;
    int flags;
    void *library;
} library_search;

/* Tries one folder. neighbor is the file whose place led here, NULL if the user named the folder. */
static sl_status try_folder(library_search *search, const char *folder, size_t length, const char *below,
                            const char *neighbor)
{
    char path[PATH_MAX];
    int used = snprintf(path, sizeof path, "%.*s%s/%s", (int)length, folder, below, search->file);
    if (search->library || length == 0 || used < 0 || (size_t)used >= sizeof path || access(path, F_OK) != 0)
        return SL_OK;
    sl_status status = neighbor ? check_owner(path, neighbor) : SL_OK;
    if (status != SL_OK)
        return status;
    search->library = dlopen(path, search->flags);
    return search->library ? SL_OK : sl_fail(SL_ERR_UNSUPPORTED, "load %s: %s", path, dlerror());
}

sl_status sl_library_load(const char *file, int flags, void **out)
{
    sl_status status = SL_OK;
    library_search search = { .file = file, .flags = flags };
    const char *list = secure_getenv("SLUICE_PLUGIN_PATH");
    while (list && *list) {
        size_t length = strcspn(list, ":");
        SL_TRY(try_folder(&search, list, length, "", NULL));
        list += length + (list[length] == ':');
    }
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        program[length] = 0;
        SL_TRY(try_folder(&search, program, folder_length(program), "", program));
        SL_TRY(try_folder(&search, program, folder_length(program), "/../" SLUICE_LIBDIR "/sluice", program));
    }
    Dl_info info;
    if (dladdr(&library_marker, &info) && info.dli_fname) {
        SL_TRY(try_folder(&search, info.dli_fname, folder_length(info.dli_fname), "/sluice", info.dli_fname));
        SL_TRY(try_folder(&search, info.dli_fname, folder_length(info.dli_fname), "", info.dli_fname));
    }
    if (search.library)
        *out = search.library;
done:
    return status;
}
