/* Checkpoint folders: names, listing, what crashes leave, pruning. */
#include "shard/checkpoint.h"

#include "base/alloc.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define PARTIAL ".partial"

/* ---- Names ----------------------------------------------------------------------------------- */

static sl_status make_path(const char *folder, int64_t step, const char *suffix, const char *name, char **out)
{
    char *path = NULL;
    size_t size = strlen(folder) + (name ? strlen(name) : 0) + 48;
    sl_status status = SL_NEW_ARRAY(path, size);
    if (status != SL_OK)
        return status;
    snprintf(path, size, "%s/step-%08" PRId64 "%s%s%s", folder, step, suffix, name ? "/" : "", name ? name : "");
    *out = path;
    return SL_OK;
}

sl_status sl_checkpoint_make_path(const char *folder, int64_t step, const char *name, char **out)
{
    return make_path(folder, step, "", name, out);
}

sl_status sl_checkpoint_make_partial_path(const char *folder, int64_t step, const char *name, char **out)
{
    return make_path(folder, step, PARTIAL, name, out);
}

char *sl_checkpoint_part_name(int rank, char *text, size_t size)
{
    snprintf(text, size, "rank-%05d.safetensors", rank);
    return text;
}

/* The step of "step-00000020" with the suffix after it; -1 for any other name. */
static int64_t step_of(const char *name, const char *suffix)
{
    int64_t step = -1;
    char again[48];
    if (strncmp(name, "step-", 5) != 0)
        return -1;
    step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08" PRId64 "%s", step, suffix);
    return strcmp(again, name) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static sl_status list(const char *folder, const char *suffix, int64_t **out, int *count)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    size_t capacity = 0, used = 0;
    DIR *dir = opendir(folder);
    if (!dir && errno != ENOENT)
        return sl_fail(SL_ERR_IO, "open %s: %s", folder, strerror(errno));
    while (dir) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry && errno != 0)
            SL_TRY(sl_fail(SL_ERR_IO, "read %s: %s", folder, strerror(errno)));
        if (!entry)
            break;
        int64_t step = step_of(entry->d_name, suffix);
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

sl_status sl_checkpoint_list(const char *folder, int64_t **out, int *count)
{
    return list(folder, "", out, count);
}

sl_status sl_checkpoint_has_manifest(const char *folder, int64_t step, bool *out)
{
    char *path = NULL;
    struct stat about;
    sl_status status = sl_checkpoint_make_path(folder, step, "manifest.json", &path);
    if (status != SL_OK)
        return status;
    bool found = stat(path, &about) == 0;
    if (!found && errno != ENOENT && errno != ENOTDIR)
        status = sl_fail(SL_ERR_IO, "stat %s: %s", path, strerror(errno));
    else
        *out = found;
    sl_free(path);
    return status;
}

/* ---- Folders --------------------------------------------------------------------------------- */

sl_status sl_checkpoint_make_partial(const char *folder, int64_t step)
{
    sl_status status = SL_OK;
    char *path = NULL;
    struct stat about;
    SL_TRY(sl_checkpoint_make_partial_path(folder, step, NULL, &path));
    SL_TRY(sl_folder_make(path));
    if (lstat(path, &about) != 0 || !S_ISDIR(about.st_mode))
        SL_TRY(sl_fail(SL_ERR_IO, "make folder %s: a link of that name stands there", path));
done:
    sl_free(path);
    return status;
}

static sl_status remove_partial(const char *folder, int64_t step)
{
    char *path = NULL;
    sl_status status = sl_checkpoint_make_partial_path(folder, step, NULL, &path);
    if (status == SL_OK)
        status = sl_folder_remove(path);
    sl_free(path);
    return status;
}

sl_status sl_checkpoint_publish(const char *folder, int64_t step)
{
    sl_status status = SL_OK;
    char *partial = NULL, *path = NULL;
    SL_TRY(sl_checkpoint_make_partial_path(folder, step, NULL, &partial));
    SL_TRY(sl_checkpoint_make_path(folder, step, NULL, &path));
    if (rename(partial, path) != 0)
        SL_TRY(sl_fail(SL_ERR_IO, "rename %s to %s: %s", partial, path, strerror(errno)));
    SL_TRY(sl_folder_sync(folder));
done:
    sl_free(path);
    sl_free(partial);
    return status;
}

/* Renames to NAME.damaged, or the first of NAME.damaged-2, ... that is free. */
static sl_status set_aside(const char *path)
{
    sl_status status = SL_OK;
    char *aside = NULL;
    enum { MOST = 10000 };
    size_t size = strlen(path) + 32;
    SL_TRY(SL_NEW_ARRAY(aside, size));
    for (int number = 1; number <= MOST; number++) {
        struct stat about;
        snprintf(aside, size, number == 1 ? "%s.damaged" : "%s.damaged-%d", path, number);
        if (lstat(aside, &about) == 0)
            continue;
        if (rename(path, aside) != 0)
            SL_TRY(sl_fail(SL_ERR_IO, "rename %s: %s", path, strerror(errno)));
        sl_log(SL_LOG_WARN, "%s is set aside as %s", path, aside);
        SL_TRY(sl_folder_sync_parent(path));
        goto done;
    }
    status = sl_fail(SL_ERR_IO, "%s: there are %d damaged ones of that name already", path, MOST);
done:
    sl_free(aside);
    return status;
}

static sl_status remove_partials(const char *folder)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    int count = 0;
    SL_TRY(list(folder, PARTIAL, &steps, &count));
    for (int i = 0; i < count; i++) {
        if (remove_partial(folder, steps[i]) != SL_OK) /* in the way of nothing */
            sl_log(SL_LOG_WARN, "%s", sl_error_message());
    }
done:
    sl_free(steps);
    return status;
}

sl_status sl_checkpoint_clean(const char *folder, int64_t step)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    char *path = NULL;
    int count = 0;
    SL_TRY(remove_partials(folder));
    SL_TRY(sl_checkpoint_list(folder, &steps, &count));
    for (int i = 0; i < count; i++) {
        bool whole = false;
        SL_TRY(sl_checkpoint_has_manifest(folder, steps[i], &whole));
        if (whole && steps[i] <= step)
            continue;
        sl_free(path);
        path = NULL;
        SL_TRY(sl_checkpoint_make_path(folder, steps[i], NULL, &path));
        SL_TRY(set_aside(path));
    }
done:
    sl_free(path);
    sl_free(steps);
    return status;
}

/* It loses its name at once: what a crash leaves of it is a partial one, not a damaged one. Somebody's link stays. */
static sl_status remove_checkpoint(const char *folder, int64_t step)
{
    sl_status status = SL_OK;
    char *path = NULL, *partial = NULL;
    struct stat about;
    SL_TRY(sl_checkpoint_make_path(folder, step, NULL, &path));
    SL_TRY(sl_checkpoint_make_partial_path(folder, step, NULL, &partial));
    if (lstat(path, &about) != 0 || !S_ISDIR(about.st_mode))
        goto done;
    if (rename(path, partial) != 0)
        SL_TRY(sl_fail(SL_ERR_IO, "rename %s: %s", path, strerror(errno)));
    SL_TRY(sl_folder_remove(partial));
done:
    sl_free(partial);
    sl_free(path);
    return status;
}

sl_status sl_checkpoint_prune(const char *folder, int keep, int64_t protected_step)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    int count = 0, complete = 0;
    SL_TRY(sl_checkpoint_list(folder, &steps, &count));
    for (int i = 0; i < count; i++) {
        bool whole = false;
        SL_TRY(sl_checkpoint_has_manifest(folder, steps[i], &whole));
        if (!whole || ++complete <= keep || steps[i] == protected_step)
            continue;
        if (remove_checkpoint(folder, steps[i]) != SL_OK) /* no reason to end a run */
            sl_log(SL_LOG_WARN, "%s", sl_error_message());
    }
done:
    sl_free(steps);
    return status;
}

/* ---- Hash ------------------------------------------------------------------------------------ */

sl_status sl_checkpoint_hash(const char *path, uint64_t *hash, int64_t *bytes)
{
    sl_status status = SL_OK;
    enum { BLOCK = 1 << 20 };
    sl_file_reader reader = { .fd = -1 };
    unsigned char *block = NULL;
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_64bits_reset(state) != XXH_OK)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "%s: no memory for its hash", path));
    SL_TRY(SL_NEW_ARRAY(block, BLOCK));
    SL_TRY(sl_file_open(path, &reader));
    for (uint64_t at = 0; at < reader.size; at += BLOCK) {
        size_t size = reader.size - at < BLOCK ? (size_t)(reader.size - at) : BLOCK;
        SL_TRY(sl_file_read_at(&reader, block, size, at));
        XXH3_64bits_update(state, block, size);
    }
    *hash = XXH3_64bits_digest(state);
    *bytes = (int64_t)reader.size;
done:
    sl_file_close(&reader);
    sl_free(block);
    XXH3_freeState(state);
    return status;
}
