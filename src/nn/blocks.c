/* Pieces that the model builders share. */
#include "nn/family.h"

builder sl_nn_begin(sl_graph *graph, sl_model_mode mode, const sl_model_shape *shape)
{
    builder b = { .graph = graph,
                  .mode = mode,
                  .batch = shape->batch,
                  .seq = shape->seq,
                  .cache = shape->cache,
                  .joined = shape->joined && mode != SL_MODE_DECODE };
    b.tokens = sl_graph_input(graph, "tokens", SL_I32, 2, (int64_t[]){ b.batch, b.seq });
    if (mode == SL_MODE_DECODE) {
        b.position = sl_graph_input(graph, "position", SL_I32, 0, NULL);
        b.positions = sl_graph_input(graph, "positions", SL_I32, 1, &b.seq);
    } else if (shape->documents) {
        b.positions = sl_graph_input(graph, "positions", SL_I32, 2, (int64_t[]){ b.batch, b.seq });
    }
    return b;
}

sl_value sl_nn_dense(builder *b, const char *name, sl_value x, const dense_options *options)
{
    sl_graph *g = b->graph;
    int64_t weight_dims[2] = { options->in_out ? options->in : options->out,
                               options->in_out ? options->out : options->in };
    sl_graph_push(g, name);
    sl_value weight = sl_graph_param(g, "weight", 2, weight_dims, options->init);
    sl_value bias = SL_NO_VALUE;
    if (options->bias)
        bias = sl_graph_param(g, "bias", 1, &options->out, (sl_init){ SL_INIT_ZEROS, 0 });
    sl_value y = options->in_out ? sl_affine(g, x, weight, bias) : sl_linear(g, x, weight, bias);
    sl_graph_pop(g);
    return y;
}

sl_value sl_nn_activation(sl_graph *graph, sl_activation activation, sl_value x)
{
    switch (activation) {
    case SL_ACT_GELU_TANH:
        return sl_gelu_tanh(graph, x);
    case SL_ACT_GELU_ERF:
        return sl_gelu_erf(graph, x);
    case SL_ACT_SILU:
        return sl_silu(graph, x);
    case SL_ACT_RELU:
        return sl_relu(graph, x);
    case SL_ACT_TANH:
        return sl_tanh(graph, x);
    }
    return x;
}

sl_value sl_nn_dropout(builder *b, sl_value x, double p)
{
    return p > 0 && b->mode == SL_MODE_TRAIN ? sl_dropout(b->graph, x, p) : x;
}

sl_value sl_nn_attention(builder *b, sl_value q, sl_value k, sl_value v, const sl_attention_options *options)
{
    sl_graph *g = b->graph;
    sl_attention_options chosen = *options;
    chosen.causal = true;
    if (b->mode != SL_MODE_TRAIN)
        chosen.dropout = 0;
    if (b->mode != SL_MODE_DECODE) {
        chosen.positions = b->positions;
        return sl_attention_with(g, q, k, v, &chosen);
    }
    sl_shape shape = sl_value_shape(g, k);
    shape.dims[1] = b->cache;
    sl_value cache_k = sl_graph_state(g, "cache_k", sl_value_dtype(g, k), 4, shape.dims);
    sl_value cache_v = sl_graph_state(g, "cache_v", sl_value_dtype(g, v), 4, shape.dims);
    return sl_attention_cached(g, q, k, v, cache_k, cache_v, b->position, &chosen);
}

sl_value sl_nn_last(builder *b, sl_value x)
{
    if (b->mode != SL_MODE_DECODE || b->seq == 1)
        return x;
    return sl_slice(b->graph, x, 1, b->seq - 1, b->seq);
}

void sl_nn_logits(sl_graph *graph, sl_value logits)
{
    bool is_f32 = sl_value_dtype(graph, logits) == SL_F32;
    sl_graph_output(graph, "logits", is_f32 ? logits : sl_cast(graph, logits, SL_F32));
}

/* cap * tanh(x / cap); x itself if cap is 0. */
static sl_value cap_values(sl_graph *graph, sl_value x, double cap)
{
    if (cap == 0)
        return x;
    return sl_scale(graph, sl_tanh(graph, sl_scale(graph, x, 1 / cap, 0)), cap, 0);
}

void sl_nn_head(builder *b, const char *module, sl_value x, sl_value weight, double softcap)
{
    sl_graph *g = b->graph;
    sl_graph_push(g, module);
    sl_value logits = cap_values(g, sl_linear(g, x, weight, SL_NO_VALUE), softcap);
    sl_graph_pop(g);
    if (b->mode != SL_MODE_TRAIN)
        sl_nn_logits(g, logits);
    if (b->mode == SL_MODE_TRAIN || b->mode == SL_MODE_EVAL) {
        sl_value targets = sl_graph_input(g, "targets", SL_I32, 2, (int64_t[]){ b->batch, b->seq });
        sl_graph_loss(g, sl_cross_entropy(g, logits, targets, SL_IGNORED_TARGET));
    }
}
