/* Which files a path of the data means: a file, those of a folder, or those that fit a pattern. */
#include "data/token_file.h"

#include "base/alloc.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static sl_status add(token_paths *paths, const char *path)
{
    sl_status status = SL_OK;
    char *copy = NULL;
    SL_TRY(SL_GROW(paths->items, &paths->capacity, paths->count + 1));
    SL_TRY(sl_strdup(path, &copy));
    paths->items[paths->count++] = copy;
done:
    return status;
}

static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static bool ends_in(const char *name, const char *ending)
{
    size_t length = strlen(name), tail = strlen(ending);
    return length > tail && strcmp(name + length - tail, ending) == 0;
}

static sl_status add_folder(token_paths *paths, const char *path, bool text)
{
    sl_status status = SL_OK;
    char *file = NULL;
    const struct dirent *entry;
    size_t before = paths->count;
    DIR *folder = opendir(path);
    if (!folder)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.' || (!text && !ends_in(entry->d_name, ".bin") && !ends_in(entry->d_name, ".npy")))
            continue;
        SL_TRY(sl_path_join(path, entry->d_name, &file));
        if (is_file(file))
            SL_TRY(add(paths, file));
        sl_free(file);
        file = NULL;
    }
    if (paths->count == before)
        SL_TRY(sl_fail(SL_ERR_IO, "the folder %s has no %s", path, text ? "file" : ".bin or .npy file"));
done:
    sl_free(file);
    closedir(folder);
    return status;
}

static sl_status add_pattern(token_paths *paths, const char *pattern)
{
    sl_status status = SL_OK;
    glob_t found = { .gl_pathc = 0 };
    size_t before = paths->count;
    int code = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (code == GLOB_NOSPACE)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "no memory for the files that fit %s", pattern));
    for (size_t i = 0; code == 0 && i < found.gl_pathc; i++) {
        if (is_file(found.gl_pathv[i]))
            SL_TRY(add(paths, found.gl_pathv[i]));
    }
    if (paths->count == before)
        SL_TRY(sl_fail(SL_ERR_IO, "no file fits the pattern %s", pattern));
done:
    globfree(&found);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

sl_status sl_token_paths_add(token_paths *paths, const char *path, bool text)
{
    sl_status status = SL_OK;
    struct stat info;
    size_t before = paths->count;
    int found = stat(path, &info);
    if (found == 0 && S_ISDIR(info.st_mode))
        SL_TRY(add_folder(paths, path, text));
    else if (found != 0 && strpbrk(path, "*?["))
        SL_TRY(add_pattern(paths, path));
    else
        SL_TRY(add(paths, path)); /* if it is not there, opening it says so */
    qsort(paths->items + before, paths->count - before, sizeof *paths->items, by_name);
done:
    return status;
}

void sl_token_paths_free(token_paths *paths)
{
    for (size_t i = 0; i < paths->count; i++)
        sl_free(paths->items[i]);
    sl_free(paths->items);
    *paths = (token_paths){ .items = NULL };
}
