/* Builders of the ops that models are made of. What an op takes and gives is in its description (src/op). */
#include "graph/graph.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* The node of an op with these arguments. */
#define ADD(op, attrs, ...)                                                                                            \
    sl_graph_add_op(g, op, attrs, SL_DTYPE_COUNT, (const sl_value[]){ __VA_ARGS__ },                                   \
                    (int)(sizeof((const sl_value[]){ __VA_ARGS__ }) / sizeof(sl_value)))
#define ATTRS(...) (&(const sl_op_attrs){ __VA_ARGS__ })

/* ---- Products and norms ---------------------------------------------------------------------- */

sl_value sl_linear(sl_graph *g, sl_value x, sl_value w, sl_value b)
{
    return ADD(SL_OP_LINEAR, ATTRS(.transpose_w = true), x, w, b);
}

sl_value sl_affine(sl_graph *g, sl_value x, sl_value w, sl_value b)
{
    return ADD(SL_OP_LINEAR, NULL, x, w, b);
}

sl_value sl_matmul(sl_graph *g, sl_value a, sl_value b, bool transpose_a, bool transpose_b)
{
    return ADD(SL_OP_MATMUL, ATTRS(.transpose_a = transpose_a, .transpose_b = transpose_b), a, b);
}

sl_value sl_layernorm(sl_graph *g, sl_value x, sl_value w, sl_value b, double eps)
{
    return ADD(SL_OP_LAYERNORM, ATTRS(.eps = eps), x, w, b);
}

sl_value sl_rmsnorm(sl_graph *g, sl_value x, sl_value w, double eps)
{
    return ADD(SL_OP_RMSNORM, ATTRS(.eps = eps), x, w);
}

/* ---- Elementwise ----------------------------------------------------------------------------- */

#define UNARY(function, op)                                                                                            \
    sl_value function(sl_graph *g, sl_value x)                                                                         \
    {                                                                                                                  \
        return ADD(op, NULL, x);                                                                                       \
    }
UNARY(sl_gelu_tanh, SL_OP_GELU_TANH)
UNARY(sl_gelu_erf, SL_OP_GELU_ERF)
UNARY(sl_silu, SL_OP_SILU)
UNARY(sl_relu, SL_OP_RELU)
UNARY(sl_tanh, SL_OP_TANH)
UNARY(sl_exp, SL_OP_EXP)
UNARY(sl_logarithm, SL_OP_LOG)
UNARY(sl_neg, SL_OP_NEG)
UNARY(sl_softmax, SL_OP_SOFTMAX)
UNARY(sl_copy, SL_OP_COPY)

#define BINARY(function, op)                                                                                           \
    sl_value function(sl_graph *g, sl_value a, sl_value b)                                                             \
    {                                                                                                                  \
        return ADD(op, NULL, a, b);                                                                                    \
    }
BINARY(sl_swiglu, SL_OP_SWIGLU)
BINARY(sl_add, SL_OP_ADD)
BINARY(sl_sub, SL_OP_SUB)
BINARY(sl_mul, SL_OP_MUL)
BINARY(sl_div, SL_OP_DIV)
BINARY(sl_embedding, SL_OP_EMBEDDING)

sl_value sl_scale(sl_graph *g, sl_value x, double alpha, double beta)
{
    return ADD(SL_OP_SCALE, ATTRS(.alpha = alpha, .beta = beta), x);
}

/* A key for the random numbers of the next node, which no other node has. */
static uint64_t dropout_key(sl_graph *g, int op)
{
    const char *name = sl_graph_next_name(g, op);
    return name ? XXH3_64bits(name, strlen(name)) : 0;
}

sl_value sl_dropout(sl_graph *g, sl_value x, double p)
{
    if (p == 0)
        return x;
    return ADD(SL_OP_DROPOUT, ATTRS(.p = p, .key = dropout_key(g, SL_OP_DROPOUT)), x);
}

sl_value sl_cast(sl_graph *g, sl_value x, sl_dtype dtype)
{
    if (sl_dtype_size(dtype) == 0)
        return sl_graph_refuse(g, SL_ERR_ARGUMENT, "cast: there is no element type %d", (int)dtype);
    return sl_graph_add_op(g, SL_OP_CAST, NULL, dtype, &x, 1);
}

/* ---- Attention ------------------------------------------------------------------------------- */

static double attention_scale(const sl_graph *g, sl_value q, double scale)
{
    const sl_shape shape = sl_value_shape(g, q);
    return scale != 0 || shape.rank != 4 || shape.dims[3] == 0 ? scale : 1 / sqrt((double)shape.dims[3]);
}

sl_value sl_attention(sl_graph *g, sl_value q, sl_value k, sl_value v, double scale, bool causal)
{
    return sl_attention_with(g, q, k, v, &(sl_attention_options){ .scale = scale, .causal = causal });
}

sl_value sl_attention_with(sl_graph *g, sl_value q, sl_value k, sl_value v, const sl_attention_options *options)
{
    const sl_op_attrs attrs = { .scale = attention_scale(g, q, options->scale),
                                .causal = options->causal,
                                .window = options->window,
                                .softcap = options->softcap,
                                .p = options->dropout,
                                .key = options->dropout != 0 ? dropout_key(g, SL_OP_ATTENTION) : 0 };
    return ADD(SL_OP_ATTENTION, &attrs, q, k, v, options->positions);
}

sl_value sl_attention_cached(sl_graph *g, sl_value q, sl_value k, sl_value v, sl_value cache_k, sl_value cache_v,
                             sl_value position, const sl_attention_options *options)
{
    const sl_attention_options chosen = options ? *options : (sl_attention_options){ .scale = 0 };
    const sl_op_attrs attrs = { .scale = attention_scale(g, q, chosen.scale),
                                .window = chosen.window,
                                .softcap = chosen.softcap };
    return ADD(SL_OP_ATTENTION_CACHED, &attrs, q, k, v, cache_k, cache_v, position);
}

sl_value sl_rope(sl_graph *g, sl_value x, sl_value cos, sl_value sin, sl_value positions)
{
    return ADD(SL_OP_ROPE, NULL, x, cos, sin, positions);
}

sl_value sl_cross_entropy(sl_graph *g, sl_value logits, sl_value targets, int64_t ignore_index)
{
    return ADD(SL_OP_CROSS_ENTROPY, ATTRS(.ignore_index = ignore_index), logits, targets);
}

/* ---- Reductions and concat ------------------------------------------------------------------- */

/* A negative dim counts from the end. One that is out of range stays so, for the op's own check. */
static int dim_of(const sl_graph *g, sl_value x, int dim)
{
    return dim < 0 ? dim + sl_value_shape(g, x).rank : dim;
}

static sl_value reduce(sl_graph *g, sl_op op, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    const sl_shape shape = sl_value_shape(g, x);
    uint32_t mask = dim_count == 0 && shape.rank > 0 ? (1u << shape.rank) - 1 : 0;
    for (int i = 0; i < dim_count; i++) {
        int dim = dim_of(g, x, dims[i]);
        if (x.id > 0 && (dim < 0 || dim >= shape.rank))
            return sl_graph_refuse_node(g, op, x, "dim %d is out of range", dims[i]);
        mask |= 1u << (dim & 31);
    }
    return ADD(op, ATTRS(.dims = mask, .keepdim = keepdim), x);
}

sl_value sl_sum(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    return reduce(g, SL_OP_SUM, x, dims, dim_count, keepdim);
}

sl_value sl_mean(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    return reduce(g, SL_OP_MEAN, x, dims, dim_count, keepdim);
}

sl_value sl_max(sl_graph *g, sl_value x, const int *dims, int dim_count, bool keepdim)
{
    return reduce(g, SL_OP_MAX, x, dims, dim_count, keepdim);
}

sl_value sl_concat(sl_graph *g, const sl_value *values, int count, int dim)
{
    return sl_graph_add_op(g, SL_OP_CONCAT, ATTRS(.dim = count > 0 ? dim_of(g, values[0], dim) : dim), SL_DTYPE_COUNT,
                           values, count);
}
