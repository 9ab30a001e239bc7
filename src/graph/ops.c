/* Builders of the ops that models are made of: products, norms, activations, attention, look-up and loss. */
#include "graph/build.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#define BEGIN(op_, names_, optional_, ...)                                                                             \
    const sl_value inputs[] = { __VA_ARGS__ };                                                                         \
    const sl_build build = { g, op_, names_, inputs, (int)(sizeof inputs / sizeof *inputs) };                          \
    if (!sl_build_begin(&build, optional_))                                                                            \
        return (sl_value)                                                                                              \
        {                                                                                                              \
            -1                                                                                                         \
        }

static sl_shape without_last(sl_shape shape)
{
    shape.rank--;
    return shape;
}

static int64_t last_dim(const sl_shape *shape)
{
    return shape->dims[shape->rank - 1];
}

/* True where the optional input i is absent or a vector of n elements. */
static bool is_vector(const sl_build *build, int i, int64_t n)
{
    const sl_shape *shape = &sl_build_input(build, i)->shape;
    return build->inputs[i].id == 0 || (shape->rank == 1 && shape->dims[0] == n);
}

static sl_value add_linear(sl_graph *g, sl_value x, sl_value w, sl_value b, bool transpose_w)
{
    BEGIN(SL_OP_LINEAR, "x w b", 1u << 2, x, w, b);
    const sl_shape *xs = &sl_build_input(&build, 0)->shape, *ws = &sl_build_input(&build, 1)->shape;
    if (!sl_build_is_floating(&build, 0) || !sl_build_has_rank(&build, 1, 2))
        return (sl_value){ -1 };
    int64_t k = ws->dims[transpose_w ? 1 : 0], n = ws->dims[transpose_w ? 0 : 1];
    if (xs->rank < 1 || last_dim(xs) != k)
        return sl_build_refuse(&build, "w takes %lld features", (long long)k);
    if (!is_vector(&build, 2, n))
        return sl_build_refuse(&build, "b must be [%lld]", (long long)n);
    sl_shape shape = *xs;
    shape.dims[shape.rank - 1] = n;
    return sl_build_add(&build, &(sl_op_attrs){ .transpose_w = transpose_w }, sl_build_input(&build, 0)->dtype, &shape);
}

sl_value sl_linear(sl_graph *g, sl_value x, sl_value w, sl_value b)
{
    return add_linear(g, x, w, b, true);
}

sl_value sl_affine(sl_graph *g, sl_value x, sl_value w, sl_value b)
{
    return add_linear(g, x, w, b, false);
}

sl_value sl_matmul(sl_graph *g, sl_value a, sl_value b, bool transpose_a, bool transpose_b)
{
    BEGIN(SL_OP_MATMUL, "a b", 0, a, b);
    sl_shape as = sl_build_input(&build, 0)->shape, bs = sl_build_input(&build, 1)->shape, shape;
    if (!sl_build_is_floating(&build, 0) || !sl_build_is_floating(&build, 1))
        return (sl_value){ -1 };
    if (as.rank < 2 || bs.rank < 2)
        return sl_build_refuse(&build, "matrices have at least 2 dims");
    int64_t m = as.dims[as.rank - (transpose_a ? 1 : 2)], k = as.dims[as.rank - (transpose_a ? 2 : 1)];
    int64_t n = bs.dims[bs.rank - (transpose_b ? 2 : 1)], kb = bs.dims[bs.rank - (transpose_b ? 1 : 2)];
    if (k != kb)
        return sl_build_refuse(&build, "inner dims %lld and %lld differ", (long long)k, (long long)kb);
    as.rank -= 2;
    bs.rank -= 2;
    if (sl_shape_broadcast(&as, &bs, &shape) != SL_OK)
        return sl_build_refuse(&build, "leading dims do not broadcast");
    shape.dims[shape.rank++] = m;
    shape.dims[shape.rank++] = n;
    return sl_build_add(&build, &(sl_op_attrs){ .transpose_a = transpose_a, .transpose_b = transpose_b },
                        sl_build_input(&build, 0)->dtype, &shape);
}

/* Norms: y, and one or two statistics per row that the gradient needs. */
static sl_value add_norm(const sl_build *build, double eps, int statistics)
{
    const sl_graph_value *x = sl_build_input(build, 0);
    if (!sl_build_is_floating(build, 0))
        return (sl_value){ -1 };
    if (x->shape.rank < 1)
        return sl_build_refuse(build, "x needs a dim to normalize over");
    for (int i = 1; i < build->count; i++) {
        if (!is_vector(build, i, last_dim(&x->shape)))
            return sl_build_refuse(build, "argument %d must be [%lld]", i, (long long)last_dim(&x->shape));
    }
    sl_shape row = without_last(x->shape);
    return sl_build_add_several(build, &(sl_op_attrs){ .eps = eps }, 1 + statistics,
                                (sl_dtype[]){ x->dtype, x->dtype, x->dtype }, (sl_shape[]){ x->shape, row, row });
}

sl_value sl_layernorm(sl_graph *g, sl_value x, sl_value w, sl_value b, double eps)
{
    BEGIN(SL_OP_LAYERNORM, "x w b", 3u << 1, x, w, b);
    return add_norm(&build, eps, 2);
}

sl_value sl_rmsnorm(sl_graph *g, sl_value x, sl_value w, double eps)
{
    BEGIN(SL_OP_RMSNORM, "x w", 1u << 1, x, w);
    return add_norm(&build, eps, 1);
}

/* ---- Elementwise ----------------------------------------------------------------------------- */

static sl_value add_unary(sl_graph *g, int op, sl_value x, const sl_op_attrs *attrs)
{
    BEGIN(op, "x", 0, x);
    if (!sl_build_is_floating(&build, 0))
        return (sl_value){ -1 };
    return sl_build_add(&build, attrs, sl_build_input(&build, 0)->dtype, &sl_build_input(&build, 0)->shape);
}

#define UNARY(function, op)                                                                                            \
    sl_value function(sl_graph *g, sl_value x)                                                                         \
    {                                                                                                                  \
        return add_unary(g, op, x, NULL);                                                                              \
    }
UNARY(sl_gelu_tanh, SL_OP_GELU_TANH)
UNARY(sl_gelu_erf, SL_OP_GELU_ERF)
UNARY(sl_silu, SL_OP_SILU)
UNARY(sl_relu, SL_OP_RELU)
UNARY(sl_tanh, SL_OP_TANH)
UNARY(sl_exp, SL_OP_EXP)
UNARY(sl_logarithm, SL_OP_LOG)
UNARY(sl_neg, SL_OP_NEG)

sl_value sl_scale(sl_graph *g, sl_value x, double alpha, double beta)
{
    return add_unary(g, SL_OP_SCALE, x, &(sl_op_attrs){ .alpha = alpha, .beta = beta });
}

/* Tells the random numbers of the node to come from those of all others. */
static uint64_t dropout_key(sl_graph *g, int op)
{
    const char *name = sl_graph_next_name(g, op);
    return name ? XXH3_64bits(name, strlen(name)) : 0;
}

static bool is_rate(const sl_build *build, double p)
{
    if (!(p >= 0 && p < 1))
        sl_build_refuse(build, "p is %g, not in [0, 1)", p);
    return p >= 0 && p < 1;
}

sl_value sl_dropout(sl_graph *g, sl_value x, double p)
{
    BEGIN(SL_OP_DROPOUT, "x", 0, x);
    const sl_graph_value *value = sl_build_input(&build, 0);
    if (!is_rate(&build, p) || !sl_build_is_floating(&build, 0))
        return (sl_value){ -1 };
    if (value->shape.rank < 1)
        return sl_build_refuse(&build, "dim 0 counts samples");
    if (p == 0)
        return x;
    return sl_build_add(&build, &(sl_op_attrs){ .p = p, .key = dropout_key(g, SL_OP_DROPOUT) }, value->dtype,
                        &value->shape);
}

sl_value sl_cast(sl_graph *g, sl_value x, sl_dtype dtype)
{
    BEGIN(SL_OP_CAST, "x", 0, x);
    if (sl_dtype_size(dtype) == 0)
        return sl_build_refuse(&build, "no such element type");
    return sl_build_add(&build, NULL, dtype, &sl_build_input(&build, 0)->shape);
}

sl_value sl_swiglu(sl_graph *g, sl_value gate, sl_value up)
{
    BEGIN(SL_OP_SWIGLU, "gate up", 0, gate, up);
    const sl_graph_value *a = sl_build_input(&build, 0), *b = sl_build_input(&build, 1);
    if (!sl_build_is_floating(&build, 0) || !sl_build_is_floating(&build, 1))
        return (sl_value){ -1 };
    if (!sl_shape_equal(&a->shape, &b->shape))
        return sl_build_refuse(&build, "the shapes differ");
    return sl_build_add(&build, NULL, a->dtype, &a->shape);
}

sl_value sl_softmax(sl_graph *g, sl_value x)
{
    BEGIN(SL_OP_SOFTMAX, "x", 0, x);
    if (sl_build_input(&build, 0)->shape.rank < 1)
        return sl_build_refuse(&build, "x needs a dim to sum over");
    return add_unary(g, SL_OP_SOFTMAX, x, NULL);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Checks q[B,T,H,D], k[B,S,Hkv,D] and v of k's shape. */
static bool heads_fit(const sl_build *build)
{
    const sl_shape *q = &sl_build_input(build, 0)->shape, *k = &sl_build_input(build, 1)->shape;
    for (int i = 0; i < 3; i++) {
        if (!sl_build_has_rank(build, i, 4) || !sl_build_is_floating(build, i))
            return false;
    }
    if (!sl_shape_equal(k, &sl_build_input(build, 2)->shape))
        sl_build_refuse(build, "k and v differ");
    else if (q->dims[0] != k->dims[0] || q->dims[3] != k->dims[3])
        sl_build_refuse(build, "batch and head size of q and k differ");
    else if (k->dims[2] == 0 || q->dims[2] % k->dims[2] != 0)
        sl_build_refuse(build, "%lld query heads do not share %lld key heads evenly", (long long)q->dims[2],
                        (long long)k->dims[2]);
    return build->graph->status == SL_OK;
}

static double attention_scale(double scale, const sl_shape *q)
{
    return scale != 0 || q->dims[3] == 0 ? scale : 1 / sqrt((double)q->dims[3]);
}

sl_value sl_attention(sl_graph *g, sl_value q, sl_value k, sl_value v, double scale, bool causal)
{
    return sl_attention_dropout(g, q, k, v, scale, causal, 0);
}

sl_value sl_attention_dropout(sl_graph *g, sl_value q, sl_value k, sl_value v, double scale, bool causal, double p)
{
    BEGIN(SL_OP_ATTENTION, "q k v", 0, q, k, v);
    if (!heads_fit(&build) || !is_rate(&build, p))
        return (sl_value){ -1 };
    const sl_graph_value *query = sl_build_input(&build, 0);
    const sl_shape *s = &query->shape;
    if (causal && s->dims[1] != sl_build_input(&build, 1)->shape.dims[1])
        return sl_build_refuse(&build, "causal attention needs as many keys as queries");
    sl_shape lse = { .rank = 3, .dims = { s->dims[0], s->dims[2], s->dims[1] } };
    sl_op_attrs attrs = { .scale = attention_scale(scale, s), .causal = causal, .p = p };
    if (p > 0)
        attrs.key = dropout_key(g, SL_OP_ATTENTION);
    return sl_build_add_several(&build, &attrs, 2, (sl_dtype[]){ query->dtype, query->dtype }, (sl_shape[]){ *s, lse });
}

sl_value sl_attention_cached(sl_graph *g, sl_value q, sl_value k, sl_value v, sl_value cache_k, sl_value cache_v,
                             sl_value position, double scale)
{
    BEGIN(SL_OP_ATTENTION_CACHED, "q k v cache_k cache_v position", 0, q, k, v, cache_k, cache_v, position);
    if (!heads_fit(&build))
        return (sl_value){ -1 };
    const sl_shape *ks = &sl_build_input(&build, 1)->shape;
    const sl_graph_value *query = sl_build_input(&build, 0), *at = sl_build_input(&build, 5);
    for (int i = 3; i < 5; i++) {
        const sl_graph_value *cache = sl_build_input(&build, i);
        sl_shape fits = *ks;
        fits.dims[1] = cache->shape.rank == 4 ? cache->shape.dims[1] : -1;
        if (cache->kind != SL_VALUE_STATE || !sl_shape_equal(&cache->shape, &fits) || fits.dims[1] < ks->dims[1])
            return sl_build_refuse(&build, "argument %d must be a state like k with room for it", i);
    }
    if (at->dtype != SL_I32 || at->shape.rank != 0)
        return sl_build_refuse(&build, "position must be an i32 scalar");
    if (query->shape.dims[1] != ks->dims[1])
        return sl_build_refuse(&build, "q and k must have as many positions");
    return sl_build_add(&build, &(sl_op_attrs){ .scale = attention_scale(scale, &query->shape) }, query->dtype,
                        &query->shape);
}

sl_value sl_rope(sl_graph *g, sl_value x, sl_value cos, sl_value sin, sl_value positions)
{
    BEGIN(SL_OP_ROPE, "x cos sin positions", 1u << 3, x, cos, sin, positions);
    if (!sl_build_has_rank(&build, 0, 4) || !sl_build_has_rank(&build, 1, 2))
        return (sl_value){ -1 };
    const sl_graph_value *value = sl_build_input(&build, 0), *table = sl_build_input(&build, 1);
    const sl_graph_value *at = sl_build_input(&build, 3);
    if (!sl_shape_equal(&table->shape, &sl_build_input(&build, 2)->shape))
        return sl_build_refuse(&build, "cos and sin differ");
    if (table->requires_grad || sl_build_input(&build, 2)->requires_grad)
        return sl_build_refuse(&build, "cos and sin have no gradient and cannot be trained");
    if (value->shape.dims[3] != 2 * table->shape.dims[1])
        return sl_build_refuse(&build, "the table is for heads of %lld", 2 * (long long)table->shape.dims[1]);
    if (positions.id == 0 && value->shape.dims[1] > table->shape.dims[0])
        return sl_build_refuse(&build, "the table ends at position %lld", (long long)table->shape.dims[0]);
    if (positions.id != 0 && (at->dtype != SL_I32 || !is_vector(&build, 3, value->shape.dims[1])))
        return sl_build_refuse(&build, "positions must be i32 [%lld]", (long long)value->shape.dims[1]);
    return sl_build_add(&build, NULL, value->dtype, &value->shape);
}

/* ---- Look-up and loss ------------------------------------------------------------------------ */

static bool is_index(const sl_build *build, int i)
{
    sl_dtype dtype = sl_build_input(build, i)->dtype;
    if (dtype == SL_I32 || dtype == SL_I64)
        return true;
    sl_build_refuse(build, "argument %d must be i32 or i64", i);
    return false;
}

sl_value sl_embedding(sl_graph *g, sl_value ids, sl_value table)
{
    BEGIN(SL_OP_EMBEDDING, "ids table", 0, ids, table);
    const sl_graph_value *rows = sl_build_input(&build, 1);
    sl_shape shape = sl_build_input(&build, 0)->shape;
    if (!is_index(&build, 0) || !sl_build_has_rank(&build, 1, 2) || !sl_build_is_floating(&build, 1))
        return (sl_value){ -1 };
    if (shape.rank == SL_MAX_DIMS)
        return sl_build_refuse(&build, "the result would have more than %d dims", SL_MAX_DIMS);
    shape.dims[shape.rank++] = rows->shape.dims[1];
    return sl_build_add(&build, NULL, rows->dtype, &shape);
}

sl_value sl_cross_entropy(sl_graph *g, sl_value logits, sl_value targets, int64_t ignore_index)
{
    BEGIN(SL_OP_CROSS_ENTROPY, "logits targets", 0, logits, targets);
    const sl_graph_value *x = sl_build_input(&build, 0);
    if (!sl_build_is_floating(&build, 0) || !is_index(&build, 1))
        return (sl_value){ -1 };
    sl_shape rows = without_last(x->shape);
    if (x->shape.rank < 1 || !sl_shape_equal(&rows, &sl_build_input(&build, 1)->shape))
        return sl_build_refuse(&build, "there must be one target for each row of logits");
    return sl_build_add_several(&build, &(sl_op_attrs){ .ignore_index = ignore_index }, 2,
                                (sl_dtype[]){ x->dtype, x->dtype }, (sl_shape[]){ { .rank = 0 }, rows });
}
