/* Checkpoint folders: names, listing, what crashes leave, pruning. */
#include "shard/checkpoint.h"

#include "base/alloc.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- Names ----------------------------------------------------------------------------------- */

sl_status sl_checkpoint_make_path(const char *folder, int64_t step, const char *name, char **out)
{
    char *path = NULL;
    size_t size = strlen(folder) + (name ? strlen(name) : 0) + 40;
    sl_status status = SL_NEW_ARRAY(path, size);
    if (status != SL_OK)
        return status;
    snprintf(path, size, "%s/step-%08" PRId64 "%s%s", folder, step, name ? "/" : "", name ? name : "");
    *out = path;
    return SL_OK;
}

char *sl_checkpoint_part_name(int rank, char *text, size_t size)
{
    snprintf(text, size, "rank-%05d.safetensors", rank);
    return text;
}

/* The step of "step-00000020"; -1 for any other name. */
static int64_t step_of(const char *name)
{
    int64_t step = -1;
    char again[32];
    if (strncmp(name, "step-", 5) != 0)
        return -1;
    step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08" PRId64, step);
    return strcmp(again, name) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

sl_status sl_checkpoint_list(const char *folder, int64_t **out, int *count)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    size_t capacity = 0, used = 0;
    DIR *dir = opendir(folder);
    if (!dir && errno != ENOENT)
        return sl_fail(SL_ERR_IO, "open %s: %s", folder, strerror(errno));
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int64_t step = step_of(entry->d_name);
        if (step < 0)
            continue;
        SL_TRY(SL_GROW(steps, &capacity, used + 1));
        steps[used++] = step;
    }
    if (used > 1)
        qsort(steps, used, sizeof *steps, newest_first);
    *out = steps;
    *count = (int)used;
    steps = NULL;
done:
    if (dir)
        closedir(dir);
    sl_free(steps);
    return status;
}

bool sl_checkpoint_has_manifest(const char *folder, int64_t step)
{
    char *path = NULL;
    if (sl_checkpoint_make_path(folder, step, "manifest.json", &path) != SL_OK)
        return false;
    bool found = access(path, F_OK) == 0;
    sl_free(path);
    return found;
}

/* ---- Folders --------------------------------------------------------------------------------- */

sl_status sl_checkpoint_remove(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return errno == ENOENT ? SL_OK : sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    unlinkat(folder, "manifest.json", 0);
    DIR *dir = fdopendir(folder);
    if (!dir) {
        sl_status status = sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
        close(folder);
        return status;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(folder, entry->d_name, 0);
    }
    closedir(dir);
    if (rmdir(path) != 0 && errno != ENOENT)
        return sl_fail(SL_ERR_IO, "remove %s: %s", path, strerror(errno));
    return SL_OK;
}

/* What is in the way of nothing may stay: a run does not end because something else was put into a folder. */
static void remove_or_warn(const char *path)
{
    if (sl_checkpoint_remove(path) != SL_OK)
        sl_log(SL_LOG_WARN, "%s", sl_error_message());
}

static sl_status set_aside(const char *path)
{
    sl_status status = SL_OK;
    char *aside = NULL;
    size_t size = strlen(path) + sizeof ".damaged";
    SL_TRY(SL_NEW_ARRAY(aside, size));
    snprintf(aside, size, "%s.damaged", path);
    SL_TRY(sl_checkpoint_remove(aside));
    if (rename(path, aside) != 0)
        SL_TRY(sl_fail(SL_ERR_IO, "rename %s: %s", path, strerror(errno)));
    sl_log(SL_LOG_WARN, "%s is set aside as %s", path, aside);
done:
    sl_free(aside);
    return status;
}

sl_status sl_checkpoint_clean(const char *folder, int64_t step)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    char *path = NULL;
    int count = 0;
    SL_TRY(sl_checkpoint_list(folder, &steps, &count));
    for (int i = 0; i < count; i++) {
        sl_free(path);
        path = NULL;
        SL_TRY(sl_checkpoint_make_path(folder, steps[i], NULL, &path));
        if (!sl_checkpoint_has_manifest(folder, steps[i])) {
            sl_log(SL_LOG_WARN, "%s has no manifest: it was never finished, and is removed", path);
            remove_or_warn(path);
        } else if (steps[i] > step) {
            SL_TRY(set_aside(path));
        }
    }
done:
    sl_free(path);
    sl_free(steps);
    return status;
}

sl_status sl_checkpoint_prune(const char *folder, int keep)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    char *path = NULL;
    int count = 0, complete = 0;
    SL_TRY(sl_checkpoint_list(folder, &steps, &count));
    for (int i = 0; i < count; i++) {
        if (!sl_checkpoint_has_manifest(folder, steps[i]) || ++complete <= keep)
            continue;
        sl_free(path);
        path = NULL;
        SL_TRY(sl_checkpoint_make_path(folder, steps[i], NULL, &path));
        remove_or_warn(path);
    }
done:
    sl_free(path);
    sl_free(steps);
    return status;
}

sl_status sl_checkpoint_hash(const char *path, uint64_t *hash, int64_t *bytes)
{
    sl_file_map map = { 0 };
    sl_status status = sl_file_map_open(path, &map);
    if (status != SL_OK)
        return status;
    *hash = XXH3_64bits(map.data, map.size);
    *bytes = (int64_t)map.size;
    sl_file_map_close(&map);
    return SL_OK;
}
