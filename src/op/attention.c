/* Attention, with and without a cache, and rotary embedding. */
#include "op/gradient.h"

/* q[B,T,H,D], k[B,S,Hkv,D], and v like k. */
static sl_status want_heads(const sl_op_use *use)
{
    sl_status status = SL_OK;
    for (int i = 0; i < 3; i++)
        SL_TRY(sl_use_want_rank(use, i, 4));
    const int64_t *q = SL_IN(0)->dims, *k = SL_IN(1)->dims;
    SL_TRY(sl_use_want(use, 2, SL_IN(1)));
    if (q[0] != k[0] || q[3] != k[3])
        return sl_use_refuse(use, "batch and head size of q and k differ");
    if (k[2] < 1 || q[2] % k[2] != 0)
        return sl_use_refuse(use, "%lld query heads do not share %lld key heads evenly", (long long)q[2],
                             (long long)k[2]);
    if (use->attrs->window < 0)
        return sl_use_refuse(use, "the window %lld is below 0", (long long)use->attrs->window);
    if (!(use->attrs->softcap >= 0))
        return sl_use_refuse(use, "the softcap %g is below 0", use->attrs->softcap);
done:
    return status;
}

static sl_status want_causal_window(const sl_op_use *use)
{
    if (use->attrs->window > 0 && !use->attrs->causal)
        return sl_use_refuse(use, "a window needs a causal mask");
    return SL_OK;
}

/* The input `at`, if there is one: where each query is in its document. */
static sl_status want_positions(const sl_op_use *use, int at)
{
    const sl_shape *q = SL_IN(0), positions = sl_shape_matrix(q->dims[0], q->dims[1]);
    if (sl_use_has(use, at) && !use->attrs->causal)
        return sl_use_refuse(use, "documents need a causal mask");
    if (sl_use_has(use, at) && q->dims[1] != SL_IN(1)->dims[1])
        return sl_use_refuse(use, "documents need as many keys as queries");
    return sl_use_want(use, at, &positions);
}

static sl_shape lse_of(const sl_shape *q)
{
    return (sl_shape){ .rank = 3, .dims = { q->dims[0], q->dims[2], q->dims[1] } };
}

static sl_status attention_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(want_heads(use));
    SL_TRY(want_causal_window(use));
    SL_TRY(want_positions(use, 3));
    const sl_shape lse = lse_of(SL_IN(0));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
    SL_TRY(sl_use_give(use, 1, &lse));
done:
    return status;
}

static sl_status attention_grad_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(want_heads(use));
    SL_TRY(want_causal_window(use));
    SL_TRY(want_positions(use, 6));
    const sl_shape lse = lse_of(SL_IN(0));
    SL_TRY(sl_use_want(use, 3, SL_IN(0)));
    SL_TRY(sl_use_want(use, 4, &lse));
    SL_TRY(sl_use_want(use, 5, SL_IN(0)));
    for (int i = 0; i < 3; i++)
        SL_TRY(sl_use_give(use, i, SL_IN(i)));
done:
    return status;
}

static sl_status attention_cached_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(want_heads(use));
    const sl_shape *k = SL_IN(1);
    if (SL_IN(0)->dims[1] != k->dims[1])
        return sl_use_refuse(use, "q and k must have as many positions");
    SL_TRY(sl_use_want_rank(use, 3, 4));
    sl_shape cache = *k;
    cache.dims[1] = SL_IN(3)->dims[1];
    SL_TRY(sl_use_want(use, 3, &cache));
    SL_TRY(sl_use_want(use, 4, &cache));
    if (cache.dims[1] < k->dims[1])
        return sl_use_refuse(use, "the caches have no room for k");
    SL_TRY(sl_use_want_rank(use, 5, 0));
    SL_TRY(sl_use_give(use, 0, SL_IN(0)));
done:
    return status;
}

/* q[B,T,H,D] against S keys: two products forward, five backward; a causal mask leaves about half, a window less. What
 * documents leave depends on the data, and is not counted. */
static double product_flops(const sl_op_use *use, int keys, double products)
{
    const sl_shape *q = SL_IN(0);
    double seen = (double)SL_IN(keys)->dims[1], queries = (double)(q->dims[1] ? q->dims[1] : 1);
    double window = (double)use->attrs->window;
    if (use->attrs->causal)
        seen *= (queries + 1) / (2 * queries);
    if (window > 0 && window < seen)
        seen = window;
    return 2 * products * sl_shape_elements(q) * seen;
}

static void attention_cost(const sl_op_use *use, sl_cost *cost)
{
    cost->flops = product_flops(use, 1, 2);
}

static void attention_grad_cost(const sl_op_use *use, sl_cost *cost)
{
    cost->flops = product_flops(use, 1, 5);
}

static void attention_cached_cost(const sl_op_use *use, sl_cost *cost)
{
    cost->flops = product_flops(use, 3, 2);
}

static sl_status attention_gradient(const sl_gradient_rule *rule)
{
    const sl_operand inputs[] = { SL_X(0), SL_X(1), SL_X(2), SL_Y(0), SL_Y(1), rule->dy, SL_X(3) };
    return rule->calls->emit(rule, &(sl_gradient_term){ .op = SL_OP_ATTENTION_GRAD,
                                                        .inputs = inputs,
                                                        .input_count = 7,
                                                        .targets = { 0, 1, 2 },
                                                        .target_count = 3 });
}

const sl_op_info sl_op_attention = {
    .name = "attention",
    .inputs = { { "q", SL_ARG_DATA, 0 },
                { "k", SL_ARG_DATA, 0 },
                { "v", SL_ARG_DATA, 0 },
                { "positions", SL_ARG_POSITION, SL_ARG_OPTIONAL } },
    .outputs = { { "o", SL_ARG_DATA, 0 }, { "lse", SL_ARG_STATISTIC, 0 } },
    .attrs = SL_ATTR_SCALE | SL_ATTR_CAUSAL | SL_ATTR_DROPOUT | SL_ATTR_WINDOW | SL_ATTR_SOFTCAP,
    .layout = SL_LAYOUT_HEADS,
    .dy_layout = SL_LAYOUT_HEADS,
    .shapes = attention_shapes,
    .cost = attention_cost,
    .gradient_work = 2.5,
    .gradient = attention_gradient,
};

const sl_op_info sl_op_attention_grad = {
    .name = "attention_grad",
    .inputs = { { "q", SL_ARG_DATA, 0 },
                { "k", SL_ARG_DATA, 0 },
                { "v", SL_ARG_DATA, 0 },
                { "o", SL_ARG_DATA, 0 },
                { "lse", SL_ARG_STATISTIC, 0 },
                { "do", SL_ARG_DATA, 0 },
                { "positions", SL_ARG_POSITION, SL_ARG_OPTIONAL } },
    .outputs = { { "dq", SL_ARG_DATA, 0 }, { "dk", SL_ARG_DATA, 0 }, { "dv", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .attrs = SL_ATTR_SCALE | SL_ATTR_CAUSAL | SL_ATTR_DROPOUT | SL_ATTR_WINDOW | SL_ATTR_SOFTCAP,
    .layout = SL_LAYOUT_HEADS,
    .shapes = attention_grad_shapes,
    .cost = attention_grad_cost,
};

const sl_op_info sl_op_attention_cached = {
    .name = "attention_cached",
    .inputs = { { "q", SL_ARG_DATA, 0 },
                { "k", SL_ARG_DATA, 0 },
                { "v", SL_ARG_DATA, 0 },
                { "cache_k", SL_ARG_DATA, SL_ARG_WRITTEN },
                { "cache_v", SL_ARG_DATA, SL_ARG_WRITTEN },
                { "position", SL_ARG_POSITION, 0 } },
    .outputs = { { "o", SL_ARG_DATA, 0 } },
    .attrs = SL_ATTR_SCALE | SL_ATTR_WINDOW | SL_ATTR_SOFTCAP,
    .layout = SL_LAYOUT_HEADS,
    .shapes = attention_cached_shapes,
    .cost = attention_cached_cost,
};

/* ---- Rotary embedding ------------------------------------------------------------------------ */

/* Tensors to rotate, as many as `count`, then the tables and the positions. */
static sl_status rotated_shapes(sl_op_use *use, int count)
{
    sl_status status = SL_OK;
    SL_TRY(sl_use_want_rank(use, count, 2));
    SL_TRY(sl_use_want(use, count + 1, SL_IN(count)));
    const sl_shape *table = SL_IN(count);
    for (int i = 0; i < count; i++) {
        SL_TRY(sl_use_want_rank(use, i, 4));
        const sl_shape *x = SL_IN(i);
        const sl_shape shared = sl_shape_vector(x->dims[1]), own = sl_shape_matrix(x->dims[0], x->dims[1]);
        if (x->dims[3] < 2 * table->dims[1])
            return sl_use_refuse(use, "the table is for heads of %lld or more", 2 * (long long)table->dims[1]);
        if (!sl_use_has(use, count + 2) && x->dims[1] > table->dims[0])
            return sl_use_refuse(use, "the table ends at position %lld", (long long)table->dims[0]);
        SL_TRY(sl_use_want(use, count + 2, sl_use_input(use, count + 2)->shape.rank == 2 ? &own : &shared));
        SL_TRY(sl_use_give(use, i, x));
    }
done:
    return status;
}

static sl_status rope_shapes(sl_op_use *use)
{
    return rotated_shapes(use, 1);
}

static sl_status rope_pair_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    SL_TRY(rotated_shapes(use, 2));
    const sl_shape *a = SL_IN(0), *b = SL_IN(1);
    if (a->dims[0] != b->dims[0] || a->dims[1] != b->dims[1] || a->dims[3] != b->dims[3])
        return sl_use_refuse(use, "the two differ in more than their heads");
done:
    return status;
}

static sl_status rope_gradient(const sl_gradient_rule *rule)
{
    sl_op_attrs attrs = *rule->attrs;
    attrs.inverse = !attrs.inverse;
    return SL_EMIT(SL_OP_ROPE, &attrs, 0, rule->dy, SL_X(1), SL_X(2), SL_X(3));
}

const sl_op_info sl_op_rope = {
    .name = "rope",
    .inputs = { { "x", SL_ARG_DATA, SL_ARG_INPLACE },
                { "cos", SL_ARG_FLOAT, SL_ARG_CONSTANT },
                { "sin", SL_ARG_FLOAT, SL_ARG_CONSTANT },
                { "positions", SL_ARG_POSITION, SL_ARG_OPTIONAL } },
    .outputs = { { "y", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .dy_layout = SL_LAYOUT_HEADS,
    .shapes = rope_shapes,
    .flops_per_element = 3,
    .gradient = rope_gradient,
};

const sl_op_info sl_op_rope_pair = {
    .name = "rope_pair",
    .inputs = { { "a", SL_ARG_DATA, SL_ARG_INPLACE },
                { "b", SL_ARG_DATA, 0 },
                { "cos", SL_ARG_FLOAT, SL_ARG_CONSTANT },
                { "sin", SL_ARG_FLOAT, SL_ARG_CONSTANT },
                { "positions", SL_ARG_POSITION, SL_ARG_OPTIONAL } },
    .outputs = { { "ya", SL_ARG_DATA, 0 }, { "yb", SL_ARG_DATA, 0 } },
    .accumulates = true,
    .layout = SL_LAYOUT_HEADS,
    .shapes = rope_pair_shapes,
    .flops_per_element = 4,
};
