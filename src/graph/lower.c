/* Lowering a stage: forward, then backward; the storages and tensors that both are made of. */
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
    lowering->storages[lowering->storage_count] = (sl_storage){ .home = home, .index = index, .bytes = bytes };
    *out = lowering->storage_count++;
    return SL_OK;
}

sl_dtype sl_lowering_grad_dtype(const sl_lowering *lowering, int value)
{
    const sl_graph_value *v = &lowering->graph->values[value];
    return v->kind == SL_VALUE_PARAM && lowering->grad_dtype ? *lowering->grad_dtype : v->dtype;
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

void sl_operand_transpose_weight(sl_operand *weight, sl_op_attrs *attrs)
{
    sl_operand turned = *weight;
    if (sl_layout_fits(&weight->meta, SL_LAYOUT_ROWS) || weight->meta.shape.rank != 2)
        return;
    turned.meta.shape.dims[0] = weight->meta.shape.dims[1];
    turned.meta.shape.dims[1] = weight->meta.shape.dims[0];
    turned.meta.strides[0] = weight->meta.strides[1];
    turned.meta.strides[1] = weight->meta.strides[0];
    if (!sl_layout_fits(&turned.meta, SL_LAYOUT_ROWS))
        return;
    *weight = turned;
    attrs->transpose_w = !attrs->transpose_w;
}

static void add_value(sl_lowering *lowering, int id)
{
    if (id != 0 && lowering->slots[id] == 0)
        lowering->slots[id] = lowering->value_count++;
}

/* Numbers the values that the stage's nodes and ports have: their number, not the graph's, is what a stage costs. */
static void number_values(sl_lowering *lowering)
{
    const sl_stage_part *part = lowering->part;
    lowering->value_count = 1;
    for (int i = 0; i < part->node_count; i++) {
        const sl_graph_node *node = &lowering->graph->nodes[part->nodes[i]];
        for (int k = 0; k < node->input_count; k++)
            add_value(lowering, node->inputs[k]);
        for (int k = 0; k < node->output_count; k++)
            add_value(lowering, node->outputs[k]);
    }
    for (int i = 0; i < part->input_count; i++)
        add_value(lowering, part->inputs[i].value);
    for (int i = 0; i < part->output_count; i++)
        add_value(lowering, part->outputs[i].value);
    for (int i = 0; i < part->param_count; i++)
        add_value(lowering, part->params[i]);
    for (int i = 0; i < part->constant_count; i++)
        add_value(lowering, part->constants[i]);
    for (int i = 0; i < part->state_count; i++)
        add_value(lowering, part->states[i]);
}

sl_status sl_lower_stage(sl_lowering *lowering)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(lowering->slots, lowering->graph->value_count));
    number_values(lowering);
    SL_TRY(SL_NEW_ARRAY(lowering->values, lowering->value_count));
    SL_TRY(SL_NEW_ARRAY(lowering->input_grads, lowering->part->input_count));
    SL_TRY(SL_NEW_ARRAY(lowering->output_grads, lowering->part->output_count));
    SL_TRY(SL_NEW_ARRAY(lowering->grads, lowering->part->param_count));
    for (int i = 0; i < lowering->value_count; i++)
        lowering->values[i] = (sl_lowered_value){ .value = sl_operand_none(),
                                                  .straight = sl_operand_none(),
                                                  .home = sl_operand_none(),
                                                  .input_port = -1,
                                                  .param_port = -1 };
    SL_TRY(sl_lower_forward(lowering));
    if (!lowering->forward_only)
        SL_TRY(sl_lower_backward(lowering));
done:
    return status;
}

void sl_lowering_clear(sl_lowering *lowering)
{
    sl_free(lowering->storages);
    sl_free(lowering->forward.items);
    sl_free(lowering->backward.items);
    sl_free(lowering->whole.items);
    sl_free(lowering->values);
    sl_free(lowering->slots);
    sl_free(lowering->input_grads);
    sl_free(lowering->output_grads);
    sl_free(lowering->grads);
    *lowering = (sl_lowering){ 0 };
}
