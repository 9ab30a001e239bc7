/* Writes weights as a Hugging Face folder: one file, or shards with their index. */
#include "base/alloc.h"
#include "base/file.h"
#include "shard/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hugging Face's loader asks for this key. */
static const char *const metadata[] = { "format", "pt", NULL };

static sl_status entry_bytes(const sl_tensor_entry *entry, size_t *out)
{
    int64_t count;
    sl_status status = sl_shape_count(&entry->shape, &count);
    if (status == SL_OK)
        *out = (size_t)count * sl_dtype_size(entry->dtype);
    return status;
}

/* Fills ends[s] with the entry after the last of shard s and returns the number of shards. */
static sl_status cut(const sl_tensor_entry *entries, int count, size_t shard_bytes, int *ends, int *shards,
                     size_t *total)
{
    sl_status status = SL_OK;
    size_t used = 0, sum = 0, bytes;
    int shard = 0;

    for (int i = 0; i < count; i++) {
        SL_TRY(entry_bytes(&entries[i], &bytes));
        if (shard_bytes > 0 && used > 0 && used + bytes > shard_bytes) {
            ends[shard++] = i;
            used = 0;
        }
        used += bytes;
        sum += bytes;
    }
    ends[shard++] = count;
    *shards = shard;
    *total = sum;
done:
    return status;
}

bool sl_weights_is_file(const char *name)
{
    size_t length = strlen(name), end = sizeof ".safetensors" - 1;
    bool shard = strncmp(name, "model-", 6) == 0 && strstr(name, "-of-") && length > end &&
                 strcmp(name + length - end, ".safetensors") == 0;
    return shard || strcmp(name, WEIGHTS_SINGLE) == 0 || strcmp(name, WEIGHTS_INDEX) == 0;
}

static sl_status save_file(const char *folder, const char *name, const sl_tensor_entry *entries, int count)
{
    char *path = NULL;
    sl_status status = sl_path_join(folder, name, &path);
    if (status == SL_OK)
        status = sl_safetensors_save(path, entries, count, metadata);
    sl_free(path);
    return status;
}

static sl_status save_shards(const char *folder, const sl_tensor_entry *entries, const int *ends, int shards,
                             json_t *map)
{
    sl_status status = SL_OK;
    int first = 0;
    for (int s = 0; s < shards; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, shards);
        SL_TRY(save_file(folder, name, &entries[first], ends[s] - first));
        for (int i = first; i < ends[s]; i++) {
            if (json_object_set_new(map, entries[i].name, json_string(name)) != 0)
                return sl_fail(SL_ERR_MEMORY, "%s: no memory for the index", folder);
        }
        first = ends[s];
    }
done:
    return status;
}

static sl_status save_index(const char *folder, json_t *map, size_t total)
{
    sl_status status = SL_OK;
    char *path = NULL, *text = NULL;

    json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    text = index ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    if (!text) {
        status = sl_fail(SL_ERR_MEMORY, "%s: no memory for the index", folder);
        goto done;
    }
    SL_TRY(sl_path_join(folder, WEIGHTS_INDEX, &path));
    SL_TRY(sl_file_replace_text(path, text));
done:
    sl_free(path);
    free(text);
    json_decref(index);
    return status;
}

static sl_status save_all(const char *folder, const sl_tensor_entry *entries, int count, size_t shard_bytes)
{
    sl_status status = SL_OK;
    json_t *map = json_object();
    int *ends = NULL;
    int shards;
    size_t total;

    SL_TRY(SL_NEW_ARRAY(ends, count + 1));
    SL_TRY(cut(entries, count, shard_bytes, ends, &shards, &total));
    if (shards == 1) {
        SL_TRY(save_file(folder, WEIGHTS_SINGLE, entries, count));
        goto done;
    }
    SL_TRY(save_shards(folder, entries, ends, shards, map));
    SL_TRY(save_index(folder, map, total));
done:
    sl_free(ends);
    json_decref(map);
    return status;
}

sl_status sl_weights_save(const char *folder, const sl_tensor_entry *entries, int count, size_t shard_bytes)
{
    static const char *const marks[] = { WEIGHTS_INDEX, WEIGHTS_SINGLE, NULL };
    sl_status status = SL_OK;
    char *draft = NULL;
    SL_TRY(sl_draft_begin(folder, &draft));
    SL_TRY(save_all(draft, entries, count, shard_bytes));
    SL_TRY(sl_draft_publish(draft, folder, marks, sl_weights_is_file));
done:
    if (status != SL_OK)
        sl_folder_discard(draft);
    sl_free(draft);
    return status;
}
