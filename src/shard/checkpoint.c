/* Reading a checkpoint: the files that its manifest names. */
#include "shard/checkpoint.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct sl_checkpoint {
    char *path;
    int64_t step, bytes;
    json_t *manifest;
    checkpoint_files files;
    sl_arena *names; /* of tensors, if the manifest has none */
    sl_tensor_set *tensors;
};

/* ---- Files ----------------------------------------------------------------------------------- */

static sl_status check_hash(const char *path, const char *expected)
{
    uint64_t hash = 0;
    int64_t bytes = 0;
    char text[32];
    sl_status status = sl_checkpoint_hash(path, &hash, &bytes);
    if (status != SL_OK)
        return status;
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    if (strcmp(text, expected) != 0)
        return sl_fail(SL_ERR_FORMAT, "%s: its xxHash is %s, the manifest says %s", path, text, expected);
    return SL_OK;
}

static sl_status open_file(sl_checkpoint *checkpoint, const json_t *about, int rank, bool verify)
{
    sl_status status = SL_OK;
    checkpoint_files *files = &checkpoint->files;
    char *path = NULL;
    struct stat stat_now;
    const char *name = json_string_value(json_object_get(about, "name"));
    const char *hash = json_string_value(json_object_get(about, "xxh3"));
    const json_t *bytes = json_object_get(about, "bytes");
    if (!name || !hash || !json_is_integer(bytes))
        return sl_fail(SL_ERR_FORMAT, "%s/manifest.json: a file lacks name, bytes or xxh3", checkpoint->path);
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/'))
        return sl_fail(SL_ERR_FORMAT, "%s/manifest.json: '%.100s' is not a plain file name", checkpoint->path, name);
    SL_TRY(sl_path_join(checkpoint->path, name, &path));
    int found = stat(path, &stat_now);
    if (found != 0 && errno == ENOENT)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s is missing, the manifest names it", path));
    if (found == 0 && stat_now.st_size != json_integer_value(bytes))
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: %lld bytes, the manifest says %" JSON_INTEGER_FORMAT, path,
                       (long long)stat_now.st_size, json_integer_value(bytes)));
    if (verify)
        SL_TRY(check_hash(path, hash));
    SL_TRY(sl_safetensors_open(path, &files->files[files->count]));
    files->ranks[files->count++] = rank;
    checkpoint->bytes += json_integer_value(bytes);
done:
    sl_free(path);
    return status;
}

static int64_t version_of(const sl_checkpoint *checkpoint)
{
    return json_integer_value(json_object_get(checkpoint->manifest, "version"));
}

static sl_status open_files(sl_checkpoint *checkpoint, bool verify)
{
    sl_status status = SL_OK;
    const json_t *list = json_object_get(checkpoint->manifest, "files");
    size_t count = json_array_size(list);
    if (count == 0 || count > CHECKPOINT_FILE_LIMIT)
        return sl_fail(SL_ERR_FORMAT, "%s/manifest.json: 'files' is missing, empty or too long", checkpoint->path);
    SL_TRY(SL_NEW_ARRAY(checkpoint->files.files, count));
    SL_TRY(SL_NEW_ARRAY(checkpoint->files.ranks, count));
    int64_t least = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *about = json_array_get(list, i), *given = json_object_get(about, "rank");
        int64_t rank = version_of(checkpoint) == CHECKPOINT_WHOLE_TENSORS ? (int64_t)i : json_integer_value(given);
        if (rank < least || rank > INT32_MAX)
            return sl_fail(SL_ERR_FORMAT, "%s/manifest.json: the ranks of the files do not rise", checkpoint->path);
        SL_TRY(open_file(checkpoint, about, (int)rank, verify));
        least = rank + 1;
    }
done:
    return status;
}

static sl_status find_tensors(sl_checkpoint *checkpoint)
{
    sl_status status = SL_OK;
    char *label = NULL;
    SL_TRY(sl_path_join(checkpoint->path, "manifest.json", &label));
    if (version_of(checkpoint) == CHECKPOINT_WHOLE_TENSORS) {
        SL_TRY(sl_arena_create(&checkpoint->names));
        SL_TRY(sl_checkpoint_collect(label, &checkpoint->files, checkpoint->names, &checkpoint->tensors));
    } else {
        SL_TRY(sl_checkpoint_match(label, checkpoint->manifest, &checkpoint->files, &checkpoint->tensors));
    }
done:
    sl_free(label);
    return status;
}

sl_status sl_checkpoint_open(const char *path, bool verify, sl_checkpoint **out)
{
    sl_status status = SL_OK;
    sl_checkpoint *checkpoint = NULL;
    SL_TRY(SL_NEW(checkpoint));
    SL_TRY(sl_strdup(path, &checkpoint->path));
    SL_TRY(sl_checkpoint_read_manifest(path, &checkpoint->manifest));
    checkpoint->step = json_integer_value(json_object_get(checkpoint->manifest, "step"));
    SL_TRY(open_files(checkpoint, verify));
    SL_TRY(find_tensors(checkpoint));
    *out = checkpoint;
    checkpoint = NULL;
done:
    sl_checkpoint_close(checkpoint);
    return status;
}

/* A checkpoint under the name that it was written with. */
static sl_status open_step(const char *path, int64_t step, sl_checkpoint **out)
{
    sl_status status = SL_OK;
    sl_checkpoint *checkpoint = NULL;
    SL_TRY(sl_checkpoint_open(path, true, &checkpoint));
    if (checkpoint->step != step)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s/manifest.json: it is that of step %" PRId64, path, checkpoint->step));
    *out = checkpoint;
    checkpoint = NULL;
done:
    sl_checkpoint_close(checkpoint);
    return status;
}

/* Opens the checkpoint of a step. *out stays NULL if it is damaged, which is logged. */
static sl_status try_step(const char *folder, int64_t step, sl_checkpoint **out)
{
    sl_status status = SL_OK;
    char *path = NULL;
    bool whole = false;
    SL_TRY(sl_checkpoint_make_path(folder, step, NULL, &path));
    SL_TRY(sl_checkpoint_has_manifest(folder, step, &whole));
    sl_status opened = whole ? open_step(path, step, out) : sl_fail(SL_ERR_FORMAT, "it has no manifest");
    if (opened == SL_ERR_FORMAT)
        sl_log(SL_LOG_WARN, "the checkpoint %s is damaged and not used: %s", path, sl_error_message());
    else if (opened != SL_OK)
        SL_TRY(
            sl_fail_context(opened, "the checkpoint %s cannot be read (to use the one before it, move it away)", path));
done:
    sl_free(path);
    return status;
}

sl_status sl_checkpoint_open_newest(const char *folder, sl_checkpoint **out)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    int count = 0;
    sl_checkpoint *found = NULL;
    SL_TRY(sl_checkpoint_list(folder, &steps, &count));
    for (int i = 0; i < count && !found; i++)
        SL_TRY(try_step(folder, steps[i], &found));
    if (count > 0 && !found)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: not one of its checkpoints (%d) is whole; move it away to start again",
                       folder, count));
    *out = found;
done:
    sl_free(steps);
    return status;
}

void sl_checkpoint_close(sl_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    sl_tensor_set_destroy(checkpoint->tensors);
    sl_arena_destroy(checkpoint->names);
    for (int i = 0; i < checkpoint->files.count; i++)
        sl_safetensors_close(checkpoint->files.files[i]);
    sl_free(checkpoint->files.files);
    sl_free(checkpoint->files.ranks);
    json_decref(checkpoint->manifest);
    sl_free(checkpoint->path);
    sl_free(checkpoint);
}

/* ---- Looking at it --------------------------------------------------------------------------- */

const char *sl_checkpoint_path(const sl_checkpoint *checkpoint)
{
    return checkpoint->path;
}

int64_t sl_checkpoint_step(const sl_checkpoint *checkpoint)
{
    return checkpoint->step;
}

const char *sl_checkpoint_attribute(const sl_checkpoint *checkpoint, const char *key)
{
    return json_string_value(json_object_get(json_object_get(checkpoint->manifest, "attributes"), key));
}

const char *sl_checkpoint_attribute_at(const sl_checkpoint *checkpoint, int i, const char **key)
{
    json_t *attributes = json_object_get(checkpoint->manifest, "attributes");
    void *at = json_object_iter(attributes);
    for (; at && i > 0; i--)
        at = json_object_iter_next(attributes, at);
    if (!at || i < 0)
        return NULL;
    *key = json_object_iter_key(at);
    return json_string_value(json_object_iter_value(at));
}

int sl_checkpoint_file_count(const sl_checkpoint *checkpoint)
{
    return checkpoint->files.count;
}

int64_t sl_checkpoint_bytes(const sl_checkpoint *checkpoint)
{
    return checkpoint->bytes;
}

int sl_checkpoint_count(const sl_checkpoint *checkpoint)
{
    return sl_tensor_set_count(checkpoint->tensors);
}

const sl_tensor_entry *sl_checkpoint_at(const sl_checkpoint *checkpoint, int i)
{
    return sl_tensor_set_at(checkpoint->tensors, i);
}

const sl_tensor_entry *sl_checkpoint_find(const sl_checkpoint *checkpoint, const char *name)
{
    return sl_tensor_set_find(checkpoint->tensors, name);
}

const sl_sharding *sl_checkpoint_sharding(const sl_checkpoint *checkpoint, int i)
{
    return sl_tensor_set_sharding(checkpoint->tensors, i);
}
