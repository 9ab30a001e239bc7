/* Fusion: instructions that read what another has just written become one with it, so that the data crosses memory once.
 *
 * The rules:
 *   forward   ADD, then LAYERNORM or RMSNORM of the sum              ADD_LAYERNORM, ADD_RMSNORM
 *             two ROPE of the same tables and positions              ROPE_PAIR (also backward)
 *   B alone   gradients of a norm's argument and of its weights      LAYERNORM_GRAD, RMSNORM_GRAD
 *             one of these, then SUM_TO of the gradient of x         the same op with the sum (a bias before the norm)
 *             GELU_TANH_GRAD, then SUM_TO of its result              GELU_TANH_GRAD_SUM (the bias of the linear before)
 *
 * A fused op has the bits of the ops that it stands for. So a cut between two of them, or I and W that run apart and
 * keep the plain ops, change no bit of a run. */
#include "graph/lower.h"

/* ---- Whether an instruction may run earlier -------------------------------------------------- */

static bool writes(const sl_instruction *step, int storage)
{
    for (int o = 0; o < step->output_count; o++) {
        if (step->outputs[o].storage == storage)
            return true;
    }
    return false;
}

static bool touches(const sl_instruction *step, int storage)
{
    for (int k = 0; k < step->input_count; k++) {
        if (step->inputs[k].storage == storage)
            return true;
    }
    for (int o = 0; o < step->output_count; o++) {
        if (step->priors[o].storage == storage)
            return true;
    }
    return writes(step, storage);
}

/* Whether instruction `later` can run right after instruction `place`, which it may read from. */
static bool can_move_up(const sl_instruction_list *list, int later, int place)
{
    const sl_instruction *step = &list->items[later];
    for (int i = place + 1; i < later; i++) {
        const sl_instruction *between = &list->items[i];
        for (int k = 0; k < step->input_count; k++) {
            if (step->inputs[k].storage >= 0 && writes(between, step->inputs[k].storage))
                return false;
        }
        for (int o = 0; o < step->output_count; o++) {
            if (step->outputs[o].storage >= 0 && touches(between, step->outputs[o].storage))
                return false;
            if (step->priors[o].storage >= 0 && writes(between, step->priors[o].storage))
                return false;
        }
    }
    return true;
}

static void remove_at(sl_instruction_list *list, int place)
{
    for (int i = place + 1; i < list->count; i++)
        list->items[i - 1] = list->items[i];
    list->count--;
}

/* Output `from` of an instruction as output `to` of the fused one. */
static void take_output(sl_instruction *fused, int to, const sl_instruction *step, int from)
{
    bool there = from < step->output_count;
    fused->outputs[to] = there ? step->outputs[from] : sl_operand_none();
    fused->priors[to] = there ? step->priors[from] : sl_operand_none();
    fused->wholes[to] = there ? step->wholes[from] : sl_operand_none();
    fused->accumulate &= ~(1u << to);
    fused->accumulate |= (there ? step->accumulate >> from & 1u : 0) << to;
    fused->output_count = to + 1;
}

static sl_operand input_or_none(const sl_instruction *step, int i)
{
    return i < step->input_count ? step->inputs[i] : sl_operand_none();
}

static bool is_packed(const sl_operand *operand)
{
    return operand->storage < 0 || sl_meta_is_contiguous(&operand->meta);
}

/* ---- Rules ----------------------------------------------------------------------------------- */

static bool adds_alike(const sl_instruction *step)
{
    const sl_meta *a = &step->inputs[0].meta, *b = &step->inputs[1].meta, *c = &step->outputs[0].meta;
    return step->op == SL_OP_ADD && step->accumulate == 0 && a->shape.rank >= 1 && sl_meta_equal(a, b) &&
           sl_meta_equal(a, c) && sl_meta_is_contiguous(a);
}

/* ADD at i and the first norm of its result. */
static void fuse_add_norm(sl_instruction_list *list, int i)
{
    if (!adds_alike(&list->items[i]))
        return;
    for (int j = i + 1; j < list->count; j++) {
        const sl_instruction add = list->items[i], norm = list->items[j];
        bool layer = norm.op == SL_OP_LAYERNORM;
        if ((!layer && norm.op != SL_OP_RMSNORM) || !sl_operand_same(&norm.inputs[0], &add.outputs[0]))
            continue;
        if (norm.phase != add.phase || !is_packed(&norm.outputs[0]) || !can_move_up(list, j, i))
            return;
        sl_instruction fused = norm;
        fused.op = layer ? SL_OP_ADD_LAYERNORM : SL_OP_ADD_RMSNORM;
        fused.inputs[0] = add.inputs[0];
        fused.inputs[1] = add.inputs[1];
        fused.inputs[2] = input_or_none(&norm, 1);
        fused.input_count = 3;
        if (layer)
            fused.inputs[fused.input_count++] = input_or_none(&norm, 2);
        take_output(&fused, 0, &add, 0);
        for (int o = 0; o < norm.output_count; o++)
            take_output(&fused, 1 + o, &norm, o);
        list->items[i] = fused;
        remove_at(list, j);
        return;
    }
}

static bool differ_in_heads(const sl_instruction *a, const sl_instruction *b)
{
    const sl_shape *x = &a->inputs[0].meta.shape, *y = &b->inputs[0].meta.shape;
    return x->dims[0] == y->dims[0] && x->dims[1] == y->dims[1] && x->dims[3] == y->dims[3] &&
           a->inputs[0].meta.dtype == b->inputs[0].meta.dtype;
}

/* ROPE at i and the next with the same tables: queries and keys, or their gradients. */
static void fuse_ropes(sl_instruction_list *list, int i)
{
    const sl_instruction a = list->items[i];
    if (a.op != SL_OP_ROPE || a.accumulate != 0)
        return;
    for (int j = i + 1; j < list->count; j++) {
        const sl_instruction b = list->items[j];
        if (b.op != SL_OP_ROPE)
            continue;
        const sl_operand positions[] = { input_or_none(&a, 3), input_or_none(&b, 3) };
        bool is_alike = b.accumulate == 0 && b.phase == a.phase && b.attrs.inverse == a.attrs.inverse &&
                        sl_operand_same(&a.inputs[1], &b.inputs[1]) && sl_operand_same(&a.inputs[2], &b.inputs[2]) &&
                        sl_operand_same(&positions[0], &positions[1]) && differ_in_heads(&a, &b);
        bool is_apart = b.inputs[0].storage != a.outputs[0].storage && b.outputs[0].storage != a.inputs[0].storage;
        if (!is_alike || !is_apart || !can_move_up(list, j, i))
            return;
        sl_instruction *fused = &list->items[i];
        fused->op = SL_OP_ROPE_PAIR;
        fused->inputs[1] = b.inputs[0];
        fused->inputs[2] = a.inputs[1];
        fused->inputs[3] = a.inputs[2];
        fused->inputs[4] = positions[0];
        fused->input_count = 5;
        take_output(fused, 1, &b, 0);
        remove_at(list, j);
        return;
    }
}

static bool same_place(const sl_instruction *a, const sl_instruction *b)
{
    return sl_operand_same(&a->inputs[0], &b->inputs[0]) && sl_operand_same(&a->inputs[1], &b->inputs[1]);
}

/* The gradient of a norm's argument at i and that of its weights. */
static void fuse_norm_grad(sl_instruction_list *list, int i)
{
    sl_op op = list->items[i].op;
    bool layer = op == SL_OP_LAYERNORM_GRAD_X;
    if (!layer && op != SL_OP_RMSNORM_GRAD_X)
        return;
    for (int j = i + 1; j < list->count; j++) {
        const sl_instruction x = list->items[i], w = list->items[j];
        if (w.op != (layer ? SL_OP_LAYERNORM_GRAD_W : SL_OP_RMSNORM_GRAD_W) || !same_place(&x, &w))
            continue;
        if (!is_packed(&x.inputs[0]) || !is_packed(&x.inputs[1]) || !is_packed(&x.outputs[0]) ||
            !is_packed(&w.outputs[0]) || !can_move_up(list, j, i))
            return;
        sl_instruction fused = x;
        fused.op = layer ? SL_OP_LAYERNORM_GRAD : SL_OP_RMSNORM_GRAD;
        take_output(&fused, 1, &w, 0);
        if (layer)
            take_output(&fused, 2, &w, 1);
        list->items[i] = fused;
        remove_at(list, j);
        return;
    }
}

/* The sum over the rows of what instruction i writes first. */
static void fuse_total(sl_instruction_list *list, int i)
{
    sl_op op = list->items[i].op;
    int total = op == SL_OP_LAYERNORM_GRAD ? 3 : op == SL_OP_RMSNORM_GRAD ? 2 : op == SL_OP_GELU_TANH_GRAD ? 1 : 0;
    const sl_meta *dx = &list->items[i].outputs[0].meta;
    if (total == 0 || dx->shape.rank < 1 || !sl_meta_is_contiguous(dx))
        return;
    for (int j = i + 1; j < list->count; j++) {
        const sl_instruction sum = list->items[j];
        const sl_shape *shape = &sum.outputs[0].meta.shape;
        if (sum.op != SL_OP_SUM_TO || !sl_operand_same(&sum.inputs[0], &list->items[i].outputs[0]) ||
            shape->rank != 1 || shape->dims[0] != sl_shape_last(&dx->shape))
            continue;
        if (!can_move_up(list, j, i))
            return;
        take_output(&list->items[i], total, &sum, 0);
        if (op == SL_OP_GELU_TANH_GRAD)
            list->items[i].op = SL_OP_GELU_TANH_GRAD_SUM;
        remove_at(list, j);
        return;
    }
}

/* ---- The pass -------------------------------------------------------------------------------- */

sl_status sl_lower_fuse(sl_lowering *lowering)
{
    sl_status status = SL_OK;
    for (int i = 0; i < lowering->forward.count; i++) {
        fuse_add_norm(&lowering->forward, i);
        fuse_ropes(&lowering->forward, i);
    }
    for (int i = 0; i < lowering->backward.count; i++) {
        fuse_add_norm(&lowering->backward, i); /* what is computed again */
        fuse_ropes(&lowering->backward, i);
    }
    for (int i = 0; i < lowering->backward.count; i++)
        SL_TRY(sl_instruction_append(&lowering->whole, &lowering->backward.items[i]));
    for (int i = 0; i < lowering->whole.count; i++) {
        fuse_norm_grad(&lowering->whole, i);
        fuse_total(&lowering->whole, i);
    }
done:
    return status;
}
