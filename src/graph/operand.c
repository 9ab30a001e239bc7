/* Storages, tensors in them, and what views do to tensors. */
#include "graph/lower.h"

#include "base/alloc.h"

const char *sl_home_name(sl_home home)
{
    static const char *const names[] = { "free",        "param",      "grad",   "input",    "output",
                                         "output_grad", "input_grad", "state",  "constant", "saved_i",
                                         "saved_w",     "kept",       "scratch" };
    return names[home];
}

sl_status sl_storage_add(sl_lowering *lowering, sl_home home, int index, size_t bytes, int *out)
{
    sl_status status = SL_GROW(lowering->storages, &lowering->storage_capacity, (size_t)lowering->storage_count + 1);
    if (status != SL_OK)
        return status;
    lowering->storages[lowering->storage_count] = (sl_storage){ home, index, bytes };
    *out = lowering->storage_count++;
    return SL_OK;
}

sl_operand sl_operand_none(void)
{
    return (sl_operand){ .storage = -1, .meta = { .shape = { .rank = -1 } } };
}

sl_operand sl_operand_whole(int storage, sl_dtype dtype, const sl_shape *shape)
{
    return (sl_operand){ .storage = storage, .meta = sl_meta_contiguous(dtype, shape) };
}

sl_status sl_operand_new(sl_lowering *lowering, sl_dtype dtype, const sl_shape *shape, sl_operand *out)
{
    const sl_meta meta = sl_meta_contiguous(dtype, shape);
    int storage = -1;
    sl_status status = sl_storage_add(lowering, SL_HOME_FREE, 0, sl_meta_bytes(&meta), &storage);
    if (status == SL_OK)
        *out = (sl_operand){ .storage = storage, .meta = meta };
    return status;
}

bool sl_operand_same(const sl_operand *a, const sl_operand *b)
{
    return a->storage == b->storage && a->offset == b->offset && sl_meta_equal(&a->meta, &b->meta);
}

bool sl_operand_fills(const sl_lowering *lowering, const sl_operand *operand)
{
    return operand->storage >= 0 && operand->offset == 0 && sl_meta_is_contiguous(&operand->meta) &&
           sl_meta_bytes(&operand->meta) == lowering->storages[operand->storage].bytes;
}

sl_status sl_instruction_append(sl_instruction_list *list, const sl_instruction *item)
{
    sl_status status = SL_GROW(list->items, &list->capacity, (size_t)list->count + 1);
    if (status == SL_OK)
        list->items[list->count++] = *item;
    return status;
}

sl_status sl_operand_slice(const sl_operand *x, int dim, int64_t start, int64_t stop, sl_operand *out)
{
    int64_t moved = 0;
    sl_operand part = *x;
    sl_status status = sl_meta_slice(&x->meta, dim, start, stop, 1, &part.meta, &moved);
    if (status != SL_OK)
        return status;
    part.offset += moved;
    *out = part;
    return SL_OK;
}

int64_t sl_split_start(const sl_graph *graph, const sl_graph_node *node, int output)
{
    int64_t start = 0;
    for (int i = 0; i < output; i++)
        start += graph->values[node->outputs[i]].shape.dims[node->dim];
    return start;
}

sl_status sl_view_apply(const sl_graph *graph, const sl_graph_node *node, int output, const sl_operand *x,
                        bool *possible, sl_operand *out)
{
    sl_status status = SL_OK;
    const sl_shape *shape = &graph->values[node->outputs[output]].shape;
    sl_operand view = *x;
    int64_t start = node->start;
    *possible = true;
    switch (node->op) {
    case SL_NODE_RESHAPE:
        *possible = sl_meta_reshape(&x->meta, shape, &view.meta) == SL_OK; /* the shapes fit: strides alone forbid it */
        break;
    case SL_NODE_PERMUTE:
        SL_TRY(sl_meta_permute(&x->meta, node->order, &view.meta));
        break;
    case SL_NODE_EXPAND:
        SL_TRY(sl_meta_expand(&x->meta, shape, &view.meta));
        break;
    case SL_NODE_SPLIT:
        start = sl_split_start(graph, node, output); /* fall through */
    default:
        SL_TRY(sl_operand_slice(x, node->dim, start, start + shape->dims[node->dim], &view));
    }
    if (*possible)
        *out = view;
done:
    return status;
}
