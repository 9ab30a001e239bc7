/* One rank's file of a checkpoint: whole tensors under their names, slices under names with their offsets. */
#include "shard/checkpoint.h"

#include "base/alloc.h"
#include "base/file.h"
#include "shard/safetensors.h"
#include "sharding/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {"NAME@16":[4,8]}: for each slice the shape of its tensor. The caller frees *out with free(). */
static sl_status list_shapes(const sl_tensor_entry *entries, int count, char **out)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (!stream)
        return sl_fail(SL_ERR_MEMORY, "the shapes of a checkpoint's tensors: %s", strerror(errno));
    sl_json json = { .file = stream };
    sl_json_begin(&json, '{');
    for (int i = 0; i < count; i++) {
        if (sl_entry_is_slice(&entries[i]))
            sl_shape_put(&json, entries[i].name, &entries[i].whole);
    }
    sl_json_end(&json, '}');
    bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed) {
        free(text);
        return sl_fail(SL_ERR_MEMORY, "the shapes of a checkpoint's tensors: no memory");
    }
    *out = text;
    return SL_OK;
}

/* The entries as the file has them, under the names that they have there. The caller frees both. */
static sl_status name_entries(const sl_tensor_entry *entries, int count, sl_tensor_entry **out, char **names, int *used)
{
    sl_status status = SL_OK;
    size_t bytes = 1;
    for (int i = 0; i < count; i++)
        bytes += sl_slice_name(&entries[i], NULL, 0) + 1;
    SL_TRY(SL_NEW_ARRAY(*out, count));
    SL_TRY(SL_NEW_ARRAY(*names, bytes));
    char *name = *names;
    for (int i = 0; i < count; i++) {
        sl_tensor_entry entry = entries[i];
        if (!sl_slice_normalize(&entry))
            continue;
        size_t length = sl_slice_name(&entry, name, bytes);
        entry.name = name;
        (*out)[(*used)++] = entry;
        name += length + 1;
        bytes -= length + 1;
    }
done:
    return status;
}

sl_status sl_checkpoint_write_part(const char *folder, int64_t step, int rank, const sl_tensor_entry *entries,
                                   int count, sl_checkpoint_part *part)
{
    sl_status status = SL_OK;
    char *path = NULL, *partial = NULL, *shapes = NULL, *names = NULL;
    char name[64], rank_text[16], step_text[32];
    sl_tensor_entry *named = NULL;
    sl_checkpoint_part made = { .step = step, .rank = rank, .done = 1 };
    int used = 0;
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(step_text, sizeof step_text, "%" PRId64, step);
    SL_TRY(name_entries(entries, count, &named, &names, &used));
    SL_TRY(list_shapes(named, used, &shapes));
    const char *const metadata[] = { "format",  CHECKPOINT_FORMAT,    "rank", rank_text, "step",
                                     step_text, CHECKPOINT_WHOLE_KEY, shapes, NULL };
    SL_TRY(sl_checkpoint_make_partial_path(folder, step, NULL, &partial));
    SL_TRY(sl_checkpoint_make_partial_path(folder, step, sl_checkpoint_part_name(rank, name, sizeof name), &path));
    SL_TRY(sl_checkpoint_make_partial(folder, step));
    SL_TRY(sl_safetensors_save_hashed(path, named, used, metadata, &made.hash, &made.bytes));
    *part = made;
done:
    if (status != SL_OK) /* half a checkpoint is no use, and its bytes may be what the disk lacks */
        sl_folder_discard(partial);
    sl_free(named);
    sl_free(names);
    free(shapes);
    sl_free(partial);
    sl_free(path);
    return status;
}

sl_status sl_checkpoint_check_parts(const sl_checkpoint_part *parts, int part_count)
{
    if (part_count < 1 || !parts)
        return sl_fail(SL_ERR_ARGUMENT, "a checkpoint without parts");
    for (int i = 0; i < part_count; i++) {
        if (!parts[i].done)
            return sl_fail(SL_ERR_ARGUMENT, "the part of rank %" PRId32 " is not done", parts[i].rank);
        if (parts[i].step != parts[0].step)
            return sl_fail(SL_ERR_ARGUMENT,
                           "the parts of ranks %" PRId32 " and %" PRId32 " are of steps %" PRId64 " and %" PRId64,
                           parts[0].rank, parts[i].rank, parts[0].step, parts[i].step);
        if (i > 0 && parts[i].rank <= parts[i - 1].rank)
            return sl_fail(SL_ERR_ARGUMENT, "the part of rank %" PRId32 " comes after that of rank %" PRId32,
                           parts[i].rank, parts[i - 1].rank);
    }
    return SL_OK;
}

sl_status sl_checkpoint_commit(const char *folder, const sl_checkpoint_part *parts, int part_count, int keep,
                               const char *const *attributes)
{
    sl_status status = SL_OK;
    SL_TRY(sl_checkpoint_check_parts(parts, part_count));
    SL_TRY(sl_checkpoint_write_manifest(folder, parts, part_count, attributes));
    SL_TRY(sl_checkpoint_prune(folder, keep, -1));
done:
    return status;
}
