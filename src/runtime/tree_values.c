/* Trees as arguments, specs, outputs and values of stages: one entry for each leaf, named by its path. */
#include <sluice/runtime.h>

#include "base/alloc.h"

#include <string.h>

/* The leaves of a tree, and a block with room for `element` bytes for each of them; their paths lie behind that room. */
typedef struct leaf_list {
    sl_tree_item *items;
    int count;
    char *block;
} leaf_list;

static sl_status open_list(const sl_tree *tree, const char *prefix, size_t element, leaf_list *out)
{
    sl_status status = SL_OK;
    leaf_list list = { 0 };
    size_t characters = 0;
    SL_TRY(sl_tree_flatten(tree, prefix, &list.items, &list.count));
    for (int i = 0; i < list.count; i++)
        characters += strlen(list.items[i].path) + 1;
    SL_TRY(SL_NEW_ARRAY(list.block, (size_t)list.count * element + characters));
    char *room = list.block + (size_t)list.count * element;
    for (int i = 0; i < list.count; i++) {
        size_t length = strlen(list.items[i].path) + 1;
        list.items[i].path = memcpy(room, list.items[i].path, length);
        room += length;
    }
    *out = list;
    list = (leaf_list){ 0 };
done:
    sl_free(list.items);
    return status;
}

/* ---- How leaves are cut ---------------------------------------------------------------------- */

/* Whether the leaf is at or below the path. */
static bool is_below(const char *leaf, const char *path)
{
    size_t length = strlen(path);
    return strncmp(leaf, path, length) == 0 && (leaf[length] == '\0' || leaf[length] == '.' || length == 0);
}

/* What the longest path above the leaf says; else tensors are split along dim 0, all else goes to every microbatch. */
static sl_chunk_spec chunk_of(const sl_tree_item *item, const sl_tree_chunk *chunks, int count)
{
    const sl_tree_chunk *best = NULL;
    for (int i = 0; i < count; i++) {
        if (is_below(item->path, chunks[i].path) && (!best || strlen(chunks[i].path) > strlen(best->path)))
            best = &chunks[i];
    }
    if (best)
        return best->chunk;
    bool cut = item->leaf->kind == SL_LEAF_TENSOR && item->leaf->as.tensor.meta.shape.rank != 0;
    return (sl_chunk_spec){ .kind = cut ? SL_CHUNK_SPLIT : SL_CHUNK_REPLICATE };
}

static sl_status check_chunks(const leaf_list *list, const sl_tree_chunk *chunks, int count)
{
    for (int i = 0; i < count; i++) {
        bool used = false;
        for (int k = 0; k < list->count; k++)
            used |= is_below(list->items[k].path, chunks[i].path);
        if (!used)
            return sl_fail(SL_ERR_ARGUMENT, "a chunk spec for '%s', but the tree has no leaf there", chunks[i].path);
    }
    return SL_OK;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

sl_status sl_tree_args(const sl_tree *tree, const char *prefix, sl_arg **out, int *count)
{
    leaf_list list;
    sl_status status = open_list(tree, prefix, sizeof **out, &list);
    if (status != SL_OK)
        return status;
    sl_arg *args = (sl_arg *)(void *)list.block;
    for (int i = 0; i < list.count; i++)
        args[i] = (sl_arg){ .name = list.items[i].path, .view = sl_leaf_view(list.items[i].leaf) };
    sl_free(list.items);
    *out = args;
    *count = list.count;
    return SL_OK;
}

sl_status sl_tree_arg_specs(const sl_tree *tree, const char *prefix, const sl_tree_chunk *chunks, int chunk_count,
                            sl_arg_spec **out, int *count)
{
    sl_status status = SL_OK;
    leaf_list list = { 0 };
    SL_TRY(open_list(tree, prefix, sizeof **out, &list));
    SL_TRY(check_chunks(&list, chunks, chunk_count));
    sl_arg_spec *specs = (sl_arg_spec *)(void *)list.block;
    for (int i = 0; i < list.count; i++)
        specs[i] = (sl_arg_spec){ .name = list.items[i].path,
                                  .meta = sl_leaf_view(list.items[i].leaf).meta,
                                  .chunk = chunk_of(&list.items[i], chunks, chunk_count) };
    *out = specs;
    *count = list.count;
    list.block = NULL;
done:
    sl_free(list.items);
    sl_free(list.block);
    return status;
}

sl_status sl_tree_outputs(const sl_tree *tree, const char *prefix, const sl_tree_chunk *chunks, int chunk_count,
                          sl_output **out, int *count)
{
    sl_status status = SL_OK;
    leaf_list list = { 0 };
    SL_TRY(open_list(tree, prefix, sizeof **out, &list));
    SL_TRY(check_chunks(&list, chunks, chunk_count));
    sl_output *outputs = (sl_output *)(void *)list.block;
    for (int i = 0; i < list.count; i++) {
        if (list.items[i].leaf->kind != SL_LEAF_TENSOR)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "'%s' is no tensor: outputs are", list.items[i].path));
        outputs[i] = (sl_output){ .name = list.items[i].path,
                                  .view = list.items[i].leaf->as.tensor,
                                  .chunk = chunk_of(&list.items[i], chunks, chunk_count) };
    }
    *out = outputs;
    *count = list.count;
    list.block = NULL;
done:
    sl_free(list.items);
    sl_free(list.block);
    return status;
}

sl_status sl_tree_values(const sl_tree *tree, const char *prefix, sl_stage_value **out, int *count)
{
    leaf_list list;
    sl_status status = open_list(tree, prefix, sizeof **out, &list);
    if (status != SL_OK)
        return status;
    sl_stage_value *values = (sl_stage_value *)(void *)list.block;
    for (int i = 0; i < list.count; i++)
        values[i] = (sl_stage_value){ .name = list.items[i].path,
                                      .meta = sl_leaf_view(list.items[i].leaf).meta,
                                      .no_grad = list.items[i].leaf->kind != SL_LEAF_TENSOR };
    sl_free(list.items);
    *out = values;
    *count = list.count;
    return SL_OK;
}
