/* The gradient of each op, in terms of kernel calls. dy is the gradient of the node's first output; X(i) and Y(i) are
 * its forward tensors. */
#include "graph/gradient.h"
#include "graph/layout.h"

/* What a rule looks at. */
typedef struct grad_rule {
    sl_lowering *lowering;
    const sl_graph_node *node;
    sl_operand dy;
} grad_rule;

/* Input i as the forward kernel had it. */
static sl_operand input(const grad_rule *r, int i)
{
    sl_operand x = sl_operand_none();
    int value = r->node->inputs[i];
    if (value > 0)
        x = r->lowering->straight[value].storage >= 0 ? r->lowering->straight[value] : r->lowering->values[value];
    return x;
}

#define X(i) input(r, i)
#define Y(i) (r->lowering->values[r->node->outputs[i]])
#define WANTED(i) sl_gradient_wanted(r->lowering, r->node, i)
#define SHAPE(i) (&r->lowering->graph->values[r->node->inputs[i]].shape)

/* One call with the node's attributes and one target, input i of the node. */
static sl_status emit(const grad_rule *r, sl_op op, const sl_op_attrs *attrs, int target, int count,
                      const sl_operand *inputs)
{
    sl_gradient_call call = { .op = op,
                              .attrs = attrs ? *attrs : r->node->attrs,
                              .input_count = count,
                              .targets = { r->node->inputs[target] },
                              .target_count = 1 };
    for (int i = 0; i < count; i++)
        call.inputs[i] = inputs[i];
    return sl_gradient_emit(r->lowering, &call);
}

#define EMIT(op, attrs, target, ...)                                                                                   \
    emit(r, op, attrs, target, (int)(sizeof((sl_operand[]){ __VA_ARGS__ }) / sizeof(sl_operand)),                      \
         (sl_operand[]){ __VA_ARGS__ })

/* The same into a tensor of the given shape, on the way to a target. */
static sl_status temporary(const grad_rule *r, sl_op op, const sl_op_attrs *attrs, int target, sl_operand a,
                           sl_operand b, const sl_shape *shape, sl_operand *out)
{
    return sl_gradient_temporary(r->lowering, r->node->inputs[target], op, attrs, (sl_operand[]){ a, b },
                                 b.storage < 0 ? 1 : 2, shape, out);
}

/* The gradient of a broadcast argument from that of its broadcast form: dy itself, or dy summed. */
static sl_status reduce_to(const grad_rule *r, int target, const sl_operand *term)
{
    if (sl_shape_equal(&term->meta.shape, SHAPE(target)))
        return sl_gradient_alias(r->lowering, r->node->inputs[target], term);
    return sl_gradient_sum_to(r->lowering, r->node->inputs[target], term);
}

/* op(a, b) summed to the shape of the target. */
static sl_status emit_reduced(const grad_rule *r, sl_op op, const sl_op_attrs *attrs, int target, sl_operand a,
                              sl_operand b, const sl_shape *shape)
{
    sl_operand wide;
    if (sl_shape_equal(shape, SHAPE(target)))
        return EMIT(op, attrs, target, a, b);
    sl_status status = temporary(r, op, attrs, target, a, b, shape, &wide);
    return status == SL_OK ? sl_gradient_sum_to(r->lowering, r->node->inputs[target], &wide) : status;
}

/* ---- Products -------------------------------------------------------------------------------- */

static sl_status linear(const grad_rule *r)
{
    sl_status status = SL_OK;
    sl_op_attrs attrs = r->node->attrs;
    sl_operand w = X(1);
    sl_layout_turn_weight(&w, &attrs);
    if (WANTED(0))
        SL_TRY(EMIT(SL_OP_LINEAR_GRAD_X, &attrs, 0, r->dy, w));
    if (WANTED(1))
        SL_TRY(EMIT(SL_OP_LINEAR_GRAD_W, NULL, 1, X(0), r->dy));
    if (WANTED(2))
        SL_TRY(EMIT(SL_OP_SUM_TO, NULL, 2, r->dy));
done:
    return status;
}

/* With C = A B, where A is a or its transpose: dA = dC B', dB = A' dC, and the transposed forms for a and b that are
 * stored transposed. */
static sl_status matmul(const grad_rule *r)
{
    sl_status status = SL_OK;
    bool ta = r->node->attrs.transpose_a, tb = r->node->attrs.transpose_b;
    for (int i = 0; i < 2; i++) {
        bool own = i == 0 ? ta : tb, other = i == 0 ? tb : ta;
        sl_op_attrs attrs = { 0 };
        sl_shape wide = r->dy.meta.shape;
        if (!WANTED(i))
            continue;
        wide.dims[wide.rank - 2] = SHAPE(i)->dims[SHAPE(i)->rank - 2];
        wide.dims[wide.rank - 1] = SHAPE(i)->dims[SHAPE(i)->rank - 1];
        bool dy_first = (i == 0) != own;
        if (dy_first) {
            attrs.transpose_a = i == 1;
            attrs.transpose_b = i == 0 ? !other : other;
        } else {
            attrs.transpose_a = i == 0 ? other : !other;
            attrs.transpose_b = i == 0;
        }
        SL_TRY(
            emit_reduced(r, SL_OP_MATMUL, &attrs, i, dy_first ? r->dy : X(1 - i), dy_first ? X(1 - i) : r->dy, &wide));
    }
done:
    return status;
}

/* ---- Norms ----------------------------------------------------------------------------------- */

static sl_status layernorm(const grad_rule *r)
{
    sl_status status = SL_OK;
    const int *in = r->node->inputs;
    if (WANTED(0))
        SL_TRY(EMIT(SL_OP_LAYERNORM_GRAD_X, NULL, 0, r->dy, X(0), X(1), Y(1), Y(2)));
    if (WANTED(1))
        SL_TRY(
            sl_gradient_emit(r->lowering, &(sl_gradient_call){ .op = SL_OP_LAYERNORM_GRAD_W,
                                                               .inputs = { r->dy, X(0), Y(1), Y(2) },
                                                               .input_count = 4,
                                                               .targets = { in[1], WANTED(2) ? in[2] : SL_TARGET_NONE },
                                                               .target_count = WANTED(2) ? 2 : 1 }));
    else if (WANTED(2))
        SL_TRY(EMIT(SL_OP_SUM_TO, NULL, 2, r->dy));
done:
    return status;
}

static sl_status rmsnorm(const grad_rule *r)
{
    sl_status status = SL_OK;
    if (WANTED(0))
        SL_TRY(EMIT(SL_OP_RMSNORM_GRAD_X, NULL, 0, r->dy, X(0), X(1), Y(1)));
    if (WANTED(1))
        SL_TRY(EMIT(SL_OP_RMSNORM_GRAD_W, NULL, 1, r->dy, X(0), Y(1)));
done:
    return status;
}

/* ---- Elementwise ----------------------------------------------------------------------------- */

static sl_status unary(const grad_rule *r)
{
    switch (r->node->op) {
    case SL_OP_GELU_TANH:
        return EMIT(SL_OP_GELU_TANH_GRAD, NULL, 0, X(0), r->dy);
    case SL_OP_GELU_ERF:
        return EMIT(SL_OP_GELU_ERF_GRAD, NULL, 0, X(0), r->dy);
    case SL_OP_SILU:
        return EMIT(SL_OP_SILU_GRAD, NULL, 0, X(0), r->dy);
    case SL_OP_RELU:
        return EMIT(SL_OP_RELU_GRAD, NULL, 0, Y(0), r->dy);
    case SL_OP_TANH:
        return EMIT(SL_OP_TANH_GRAD, NULL, 0, Y(0), r->dy);
    case SL_OP_EXP:
        return EMIT(SL_OP_MUL, NULL, 0, r->dy, Y(0));
    case SL_OP_LOG:
        return EMIT(SL_OP_DIV, NULL, 0, r->dy, X(0));
    case SL_OP_NEG:
        return EMIT(SL_OP_NEG, NULL, 0, r->dy);
    case SL_OP_SCALE:
        return EMIT(SL_OP_SCALE, (&(sl_op_attrs){ .alpha = r->node->attrs.alpha }), 0, r->dy);
    case SL_OP_SOFTMAX:
        return EMIT(SL_OP_SOFTMAX_GRAD, NULL, 0, Y(0), r->dy);
    case SL_OP_DROPOUT: /* the same mask */
    case SL_OP_CAST:
        return EMIT((sl_op)r->node->op, NULL, 0, r->dy);
    default: /* copy */
        return sl_gradient_alias(r->lowering, r->node->inputs[0], &r->dy);
    }
}

static sl_status add_or_sub(const grad_rule *r)
{
    sl_status status = SL_OK;
    sl_operand narrow = r->dy;
    if (WANTED(0))
        SL_TRY(reduce_to(r, 0, &r->dy));
    if (WANTED(1) && r->node->op == SL_OP_ADD)
        SL_TRY(reduce_to(r, 1, &r->dy));
    if (WANTED(1) && r->node->op == SL_OP_SUB) {
        if (!sl_shape_equal(SHAPE(1), &r->dy.meta.shape)) {
            SL_TRY(sl_gradient_straight(r->lowering, r->node->inputs[1], SL_LAYOUT_CONTIGUOUS, &narrow));
            SL_TRY(temporary(r, SL_OP_SUM_TO, NULL, 1, narrow, sl_operand_none(), SHAPE(1), &narrow));
        }
        SL_TRY(EMIT(SL_OP_NEG, NULL, 1, narrow));
    }
done:
    return status;
}

static sl_status mul(const grad_rule *r)
{
    sl_status status = SL_OK;
    for (int i = 0; i < 2; i++) {
        if (WANTED(i))
            SL_TRY(emit_reduced(r, SL_OP_MUL, NULL, i, r->dy, X(1 - i), &r->dy.meta.shape));
    }
done:
    return status;
}

/* y = a / b: da = dy / b, db = -(dy y / b). */
static sl_status div_(const grad_rule *r)
{
    sl_status status = SL_OK;
    const sl_shape *wide = &r->dy.meta.shape;
    sl_operand term;
    if (WANTED(0))
        SL_TRY(emit_reduced(r, SL_OP_DIV, NULL, 0, r->dy, X(1), wide));
    if (WANTED(1)) {
        SL_TRY(temporary(r, SL_OP_MUL, NULL, 1, r->dy, Y(0), wide, &term));
        SL_TRY(temporary(r, SL_OP_DIV, NULL, 1, term, X(1), wide, &term));
        if (!sl_shape_equal(SHAPE(1), wide))
            SL_TRY(temporary(r, SL_OP_SUM_TO, NULL, 1, term, sl_operand_none(), SHAPE(1), &term));
        SL_TRY(EMIT(SL_OP_NEG, NULL, 1, term));
    }
done:
    return status;
}

static sl_status swiglu(const grad_rule *r)
{
    const int *in = r->node->inputs;
    return sl_gradient_emit(r->lowering, &(sl_gradient_call){ .op = SL_OP_SWIGLU_GRAD,
                                                              .inputs = { X(0), X(1), r->dy },
                                                              .input_count = 3,
                                                              .targets = { WANTED(0) ? in[0] : SL_TARGET_DISCARD,
                                                                           WANTED(1) ? in[1] : SL_TARGET_DISCARD },
                                                              .like = { in[0], in[1] },
                                                              .target_count = 2 });
}

/* ---- Attention, look-up, loss ---------------------------------------------------------------- */

static sl_status attention(const grad_rule *r)
{
    const int *in = r->node->inputs;
    sl_gradient_call call = { .op = SL_OP_ATTENTION_GRAD,
                              .attrs = r->node->attrs,
                              .inputs = { X(0), X(1), X(2), Y(0), Y(1), r->dy },
                              .input_count = 6,
                              .target_count = 3 };
    for (int i = 0; i < 3; i++) {
        call.targets[i] = WANTED(i) ? in[i] : SL_TARGET_DISCARD;
        call.like[i] = in[i];
    }
    return sl_gradient_emit(r->lowering, &call);
}

static sl_status rope(const grad_rule *r)
{
    sl_op_attrs attrs = r->node->attrs;
    attrs.inverse = !attrs.inverse;
    return EMIT(SL_OP_ROPE, &attrs, 0, r->dy, X(1), X(2), X(3));
}

static sl_status embedding(const grad_rule *r)
{
    return EMIT(SL_OP_EMBEDDING_GRAD, NULL, 1, X(0), r->dy);
}

static sl_status cross_entropy(const grad_rule *r)
{
    return EMIT(SL_OP_CROSS_ENTROPY_GRAD, NULL, 0, X(0), X(1), Y(1), r->dy);
}

/* ---- Reductions and concat ------------------------------------------------------------------- */

/* dy with the reduced dims back as size 1, stretched over x. */
static sl_status stretched(const grad_rule *r, sl_operand *out)
{
    sl_shape kept = *SHAPE(0);
    sl_operand wide = r->dy;
    sl_status status = SL_OK;
    for (int i = 0; i < kept.rank; i++) {
        if (r->node->attrs.dims >> i & 1u)
            kept.dims[i] = 1;
    }
    SL_TRY(sl_meta_reshape(&r->dy.meta, &kept, &wide.meta)); /* dims of size 1 come and go at any strides */
    SL_TRY(sl_meta_expand(&wide.meta, SHAPE(0), &wide.meta));
    *out = wide;
done:
    return status;
}

static sl_status reduction(const grad_rule *r)
{
    sl_operand wide;
    double count = 1;
    if (r->node->op == SL_OP_MAX)
        return EMIT(SL_OP_MAX_GRAD, NULL, 0, X(0), Y(0), r->dy);
    sl_status status = stretched(r, &wide);
    if (status != SL_OK)
        return status;
    if (r->node->op == SL_OP_SUM)
        return sl_gradient_alias(r->lowering, r->node->inputs[0], &wide);
    for (int i = 0; i < SHAPE(0)->rank; i++) {
        if (r->node->attrs.dims >> i & 1u)
            count *= (double)SHAPE(0)->dims[i];
    }
    return EMIT(SL_OP_SCALE, (&(sl_op_attrs){ .alpha = count > 0 ? 1 / count : 0 }), 0, wide);
}

static sl_status concat(const grad_rule *r)
{
    sl_status status = SL_OK;
    int dim = r->node->attrs.dim;
    int64_t start = 0;
    for (int i = 0; i < r->node->input_count; i++) {
        int64_t stop = start + SHAPE(i)->dims[dim];
        sl_operand part;
        SL_TRY(sl_operand_slice(&r->dy, dim, start, stop, &part));
        if (WANTED(i))
            SL_TRY(sl_gradient_alias(r->lowering, r->node->inputs[i], &part));
        start = stop;
    }
done:
    return status;
}

/* What the kernels that read dy need: those of products also sum it over rows (bias). */
static sl_op_layout gradient_layout(int op)
{
    if (op == SL_OP_SUM || op == SL_OP_MEAN)
        return SL_LAYOUT_ANY; /* dy is only stretched */
    return op == SL_OP_LINEAR ? SL_LAYOUT_CONTIGUOUS : sl_layout_needed(op);
}

sl_status sl_gradient_of_node(sl_lowering *lowering, const sl_graph_node *node)
{
    grad_rule rule = { lowering, node, lowering->gradients[node->outputs[0]].operand };
    sl_status status = sl_gradient_straight(lowering, node->outputs[0], gradient_layout(node->op), &rule.dy);
    if (status != SL_OK)
        return status;
    switch (node->op) {
    case SL_OP_LINEAR:
        return linear(&rule);
    case SL_OP_MATMUL:
        return matmul(&rule);
    case SL_OP_LAYERNORM:
        return layernorm(&rule);
    case SL_OP_RMSNORM:
        return rmsnorm(&rule);
    case SL_OP_ADD:
    case SL_OP_SUB:
        return add_or_sub(&rule);
    case SL_OP_MUL:
        return mul(&rule);
    case SL_OP_DIV:
        return div_(&rule);
    case SL_OP_SWIGLU:
        return swiglu(&rule);
    case SL_OP_ATTENTION:
        return attention(&rule);
    case SL_OP_ROPE:
        return rope(&rule);
    case SL_OP_EMBEDDING:
        return embedding(&rule);
    case SL_OP_CROSS_ENTROPY:
        return cross_entropy(&rule);
    case SL_OP_SUM:
    case SL_OP_MEAN:
    case SL_OP_MAX:
        return reduction(&rule);
    case SL_OP_CONCAT:
        return concat(&rule);
    default:
        return unary(&rule);
    }
}
