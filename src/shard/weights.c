/* The weights of a Hugging Face folder, in one file or spread over several by an index. */
#include "base/alloc.h"
#include "base/file.h"
#include "shard/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sl_weights {
    sl_safetensors **files;
    char **file_names; /* as in the index */
    size_t file_capacity;
    int file_count;
    const sl_tensor_entry **entries; /* sorted by name */
    int count;
};

void sl_weights_close(sl_weights *weights)
{
    if (!weights)
        return;
    for (int i = 0; i < weights->file_count; i++) {
        sl_safetensors_close(weights->files[i]);
        sl_free(weights->file_names[i]);
    }
    sl_free(weights->files);
    sl_free(weights->file_names);
    sl_free(weights->entries);
    sl_free(weights);
}

int sl_weights_count(const sl_weights *weights)
{
    return weights->count;
}

const sl_tensor_entry *sl_weights_at(const sl_weights *weights, int i)
{
    return i >= 0 && i < weights->count ? weights->entries[i] : NULL;
}

static int compare_entry(const void *a, const void *b)
{
    const sl_tensor_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

const sl_tensor_entry *sl_weights_find(const sl_weights *weights, const char *name)
{
    const sl_tensor_entry wanted = { .name = name }, *key = &wanted;
    const sl_tensor_entry *const *found =
        bsearch(&key, weights->entries, (size_t)weights->count, sizeof *weights->entries, compare_entry);
    return found ? *found : NULL;
}

/* Index of the folder's file in weights->files, opened if it is new. */
static sl_status open_file(sl_weights *weights, const char *folder, const char *name, int *out)
{
    sl_status status = SL_OK;
    char *path = NULL;
    size_t name_capacity = weights->file_capacity;
    int at = weights->file_count;

    for (int i = 0; i < weights->file_count; i++) {
        if (strcmp(weights->file_names[i], name) == 0) {
            *out = i;
            return SL_OK;
        }
    }
    SL_TRY(SL_GROW(weights->file_names, &name_capacity, at + 1));
    SL_TRY(SL_GROW(weights->files, &weights->file_capacity, at + 1));
    SL_TRY(sl_path_join(folder, name, &path));
    SL_TRY(sl_safetensors_open(path, &weights->files[at]));
    status = sl_strdup(name, &weights->file_names[at]);
    if (status != SL_OK) {
        sl_safetensors_close(weights->files[at]);
        goto done;
    }
    weights->file_count++;
    *out = at;
done:
    sl_free(path);
    return status;
}

/* "a.safetensors" is plain; "../a", "/a" and "" are not: an index must not reach outside its folder. */
static bool is_plain_name(const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\');
}

/* Every tensor of the files must be in the index, or something is superfluous. */
static sl_status check_none_left(const char *index_path, const sl_weights *weights, const json_t *map)
{
    for (int f = 0; f < weights->file_count; f++) {
        for (int i = 0; i < sl_safetensors_count(weights->files[f]); i++) {
            const char *name = sl_safetensors_at(weights->files[f], i)->name;
            const char *where = json_string_value(json_object_get(map, name));
            if (!where || strcmp(where, weights->file_names[f]) != 0)
                return sl_fail(SL_ERR_FORMAT, "%s does not list tensor '%s' of %s", index_path, name,
                               weights->file_names[f]);
        }
    }
    return SL_OK;
}

static sl_status read_map(const char *folder, const char *index_path, json_t *map, sl_weights *weights)
{
    sl_status status = SL_OK;
    const char *name;
    json_t *value;

    SL_TRY(SL_NEW_ARRAY(weights->entries, json_object_size(map)));
    json_object_foreach(map, name, value)
    {
        const char *file_name = json_string_value(value);
        int file;
        if (!file_name || !is_plain_name(file_name))
            return sl_fail(SL_ERR_FORMAT, "%s: tensor '%.200s' is said to be in '%.200s', which is no plain file name",
                           index_path, name, file_name ? file_name : "?");
        SL_TRY(open_file(weights, folder, file_name, &file));
        const sl_tensor_entry *entry = sl_safetensors_find(weights->files[file], name);
        if (!entry)
            return sl_fail(SL_ERR_FORMAT, "%s: tensor '%.200s' is not in %s", index_path, name, file_name);
        weights->entries[weights->count++] = entry;
    }
    SL_TRY(check_none_left(index_path, weights, map));
done:
    return status;
}

static sl_status open_index(const char *folder, const char *index_path, sl_weights *weights)
{
    sl_status status = SL_OK;
    json_error_t error;
    sl_file_bytes text = { .data = NULL };
    json_t *index = NULL;

    SL_TRY(sl_file_read(index_path, &text));
    index = json_loadb(text.data ? (const char *)text.data : "", text.size, JSON_REJECT_DUPLICATES, &error);
    if (!index)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s, line %d: %s", index_path, error.line, error.text));
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map)) {
        status = sl_fail(SL_ERR_FORMAT, "%s has no object weight_map", index_path);
        goto done;
    }
    SL_TRY(read_map(folder, index_path, map, weights));
    qsort(weights->entries, (size_t)weights->count, sizeof *weights->entries, compare_entry);
done:
    json_decref(index);
    sl_file_bytes_free(&text);
    return status;
}

static sl_status open_single(const char *folder, sl_weights *weights)
{
    sl_status status = SL_OK;
    int file;

    SL_TRY(open_file(weights, folder, WEIGHTS_SINGLE, &file));
    weights->count = sl_safetensors_count(weights->files[file]);
    SL_TRY(SL_NEW_ARRAY(weights->entries, weights->count));
    for (int i = 0; i < weights->count; i++)
        weights->entries[i] = sl_safetensors_at(weights->files[file], i);
    qsort(weights->entries, (size_t)weights->count, sizeof *weights->entries, compare_entry);
done:
    return status;
}

sl_status sl_weights_open(const char *folder, sl_weights **out)
{
    sl_status status = SL_OK;
    sl_weights *weights = NULL;
    char *single = NULL, *index = NULL;

    SL_TRY(SL_NEW(weights));
    SL_TRY(sl_path_join(folder, WEIGHTS_SINGLE, &single));
    SL_TRY(sl_path_join(folder, WEIGHTS_INDEX, &index));
    if (access(single, F_OK) == 0)
        SL_TRY(open_single(folder, weights));
    else if (access(index, F_OK) == 0)
        SL_TRY(open_index(folder, index, weights));
    else {
        status = sl_fail(SL_ERR_IO, "%s has neither " WEIGHTS_SINGLE " nor " WEIGHTS_INDEX, folder);
        goto done;
    }
    *out = weights;
    weights = NULL;
done:
    sl_weights_close(weights);
    sl_free(single);
    sl_free(index);
    return status;
}
