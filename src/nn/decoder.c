/* The graph of a decoder in the manner of Llama, with Hugging Face's names. Shapes: B batch, T sequence, C width,
 * H heads, D head dim, V vocabulary. */
#include "nn/decoder.h"

#include "base/half.h"

#include <math.h>

typedef struct decoder {
    const decoder_shape *shape;
    const sl_decoder_config *config;
    int64_t heads, kv_heads, head_dim;
    rope_table rope, rope_local;
} decoder;

static bool has_flag(const sl_layer_flags *flags, int64_t layer)
{
    return flags->bits[layer / 64] >> (layer % 64) & 1;
}

static bool slides(const decoder *model, int64_t layer)
{
    const sl_decoder_config *config = model->config;
    if (config->layer_types.count > 0)
        return has_flag(&config->layer_types, layer);
    return model->shape->slides && model->shape->slides(config, layer);
}

/* Positions that a token of this layer sees; 0: all. */
static int64_t window_of(const decoder *model, int64_t layer)
{
    return model->config->use_sliding_window && slides(model, layer) ? model->config->sliding_window : 0;
}

static bool rotates(const decoder *model, int64_t layer)
{
    const sl_decoder_config *config = model->config;
    if (config->no_rope_layers.count > 0)
        return has_flag(&config->no_rope_layers, layer);
    return config->no_rope_layer_interval == 0 || (layer + 1) % config->no_rope_layer_interval != 0;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* RMSNorm over the last dim. An offset is added in f32: 1 + weight would lose most of a bf16 weight. */
static sl_value norm(builder *b, const decoder *model, const char *name, sl_value x, int64_t width)
{
    sl_graph *g = b->graph;
    const sl_init init = { model->shape->norm_offset ? SL_INIT_ZEROS : SL_INIT_ONES, 0 };
    sl_graph_push(g, name);
    sl_value weight = sl_graph_param(g, "weight", 1, &width, init);
    if (model->shape->norm_offset) {
        if (sl_value_dtype(g, weight) != SL_F32)
            weight = sl_cast(g, weight, SL_F32);
        weight = sl_scale(g, weight, 1, 1);
    }
    sl_value y = sl_rmsnorm(g, x, weight, model->config->rms_norm_eps);
    sl_graph_pop(g);
    return y;
}

static sl_value dense(builder *b, const decoder *model, const char *name, sl_value x, int64_t in, int64_t out,
                      bool bias)
{
    dense_options options = {
        .in = in, .out = out, .init = { SL_INIT_NORMAL, model->config->initializer_range }, .bias = bias
    };
    return sl_nn_dense(b, name, x, &options);
}

/* Several linears of x[B, T, C], with weights of their own and no biases. */
static void denses(builder *b, const decoder *model, const char *const *names, sl_value x, const int64_t *widths,
                   int count, sl_value *parts)
{
    enum { MOST = 3 };
    const int64_t in = model->config->hidden_size;
    const sl_init init = { SL_INIT_NORMAL, model->config->initializer_range };
    sl_value weights[MOST];
    bool side_by_side = b->joined; /* however they are aligned */
    for (int i = 0; i < count; i++)
        side_by_side = side_by_side && widths[i] * in * 2 % SL_DEVICE_ALIGNMENT == 0;
    for (int i = 0; i < count && !side_by_side; i++)
        parts[i] = dense(b, model, names[i], x, in, widths[i], false);
    if (!side_by_side)
        return;
    for (int i = 0; i < count; i++) {
        sl_graph_push(b->graph, names[i]);
        weights[i] = sl_graph_param(b->graph, "weight", 2, (int64_t[]){ widths[i], in }, init);
        sl_graph_pop(b->graph);
    }
    sl_value joined = sl_linear(b->graph, x, sl_concat(b->graph, weights, count, 0), SL_NO_VALUE);
    sl_split(b->graph, joined, 2, widths, count, parts);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* q, k and v [B, T, heads * D] of x[B, T, C]. */
static void project(builder *b, const decoder *model, sl_value x, sl_value parts[3])
{
    static const char *const names[3] = { "q_proj", "k_proj", "v_proj" };
    const sl_decoder_config *config = model->config;
    const int64_t widths[3] = { model->heads * model->head_dim, model->kv_heads * model->head_dim,
                                model->kv_heads * model->head_dim };
    bool bias = config->attention_bias || model->shape->qkv_bias;
    if (model->shape->fused) {
        int64_t all = widths[0] + widths[1] + widths[2];
        sl_split(b->graph, dense(b, model, "qkv_proj", x, config->hidden_size, all, bias), 2, widths, 3, parts);
        return;
    }
    if (!bias && model->shape->qk == QK_NORM_NONE) { /* a norm reads whole rows, not parts of them */
        denses(b, model, names, x, widths, 3, parts);
        return;
    }
    for (int i = 0; i < 3; i++)
        parts[i] = dense(b, model, names[i], x, config->hidden_size, widths[i], bias);
}

/* q or k, [B, T, heads * D] -> [B, T, heads, D], normed if the family does that. */
static sl_value split_heads(builder *b, const decoder *model, const char *norm_name, sl_value x, int64_t heads)
{
    const int64_t dims[4] = { b->batch, b->seq, heads, model->head_dim };
    qk_norm kind = norm_name ? model->shape->qk : QK_NORM_NONE;
    if (kind == QK_NORM_WIDTH)
        x = norm(b, model, norm_name, x, heads * model->head_dim);
    x = sl_reshape(b->graph, x, 4, dims);
    return kind == QK_NORM_HEAD ? norm(b, model, norm_name, x, model->head_dim) : x;
}

static sl_value attention(builder *b, const decoder *model, int layer, sl_value x)
{
    sl_graph *g = b->graph;
    const sl_decoder_config *config = model->config;
    const int64_t inner = model->heads * model->head_dim;
    const sl_attention_options options = { .scale = config->query_pre_attn_scalar
                                                        ? 1 / sqrt((double)config->query_pre_attn_scalar)
                                                        : 0,
                                           .dropout = config->attention_dropout,
                                           .window = window_of(model, layer),
                                           .softcap = config->attn_logit_softcapping };
    const rope_table *rope = model->shape->two_ropes && slides(model, layer) ? &model->rope_local : &model->rope;
    sl_value parts[3];

    sl_graph_push(g, "self_attn");
    project(b, model, x, parts);
    sl_value q = split_heads(b, model, "q_norm", parts[0], model->heads);
    sl_value k = split_heads(b, model, "k_norm", parts[1], model->kv_heads);
    sl_value v = split_heads(b, model, NULL, parts[2], model->kv_heads);
    if (rotates(model, layer)) {
        q = sl_nn_rotate(b, rope, q);
        k = sl_nn_rotate(b, rope, k);
    }
    sl_value mixed = sl_nn_attention(b, q, k, v, &options);
    mixed = sl_reshape(g, mixed, 3, (int64_t[]){ b->batch, b->seq, inner });
    mixed = dense(b, model, "o_proj", mixed, inner, config->hidden_size, config->attention_bias);
    sl_graph_pop(g);
    return sl_nn_dropout(b, mixed, config->resid_pdrop);
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static sl_value mlp(builder *b, const decoder *model, sl_value x)
{
    sl_graph *g = b->graph;
    const sl_decoder_config *config = model->config;
    int64_t width = config->hidden_size, inner = config->intermediate_size;
    sl_value parts[2]; /* gate, up */
    sl_graph_push(g, "mlp");
    if (model->shape->fused) {
        x = dense(b, model, "gate_up_proj", x, width, 2 * inner, config->mlp_bias);
        sl_split(g, x, 2, (int64_t[]){ inner, inner }, 2, parts);
    } else if (!config->mlp_bias) {
        static const char *const names[2] = { "gate_proj", "up_proj" };
        denses(b, model, names, x, (int64_t[]){ inner, inner }, 2, parts);
    } else {
        parts[0] = dense(b, model, "gate_proj", x, width, inner, true);
        parts[1] = dense(b, model, "up_proj", x, width, inner, true);
    }
    x = model->shape->gelu ? sl_mul(g, sl_gelu_tanh(g, parts[0]), parts[1]) : sl_swiglu(g, parts[0], parts[1]);
    x = dense(b, model, "down_proj", x, inner, width, config->mlp_bias);
    sl_graph_pop(g);
    return sl_nn_dropout(b, x, config->resid_pdrop);
}

static sl_value block(builder *b, const decoder *model, int layer, sl_value x)
{
    sl_graph *g = b->graph;
    const int64_t width = model->config->hidden_size;
    bool before = model->shape->norms != NORM_AFTER, after = model->shape->norms != NORM_BEFORE;
    sl_graph_push_index(g, "layers", layer);
    sl_value y = before ? norm(b, model, "input_layernorm", x, width) : x;
    y = attention(b, model, layer, y);
    if (after)
        y = norm(b, model, "post_attention_layernorm", y, width);
    x = sl_add(g, x, y);
    y = before ? norm(b, model, after ? "pre_feedforward_layernorm" : "post_attention_layernorm", x, width) : x;
    y = mlp(b, model, y);
    if (after)
        y = norm(b, model, "post_feedforward_layernorm", y, width);
    x = sl_add(g, x, y);
    sl_graph_pop(g);
    return x;
}

/* ---- Model ----------------------------------------------------------------------------------- */

/* The root of the width, as a number of the model's dtype. */
static double embedding_scale(const decoder *model, sl_dtype dtype)
{
    float root = (float)sqrt((double)model->config->hidden_size);
    return (double)(dtype == SL_BF16 ? sl_from_bf16(sl_to_bf16(root)) : root);
}

static sl_status add_ropes(builder *b, decoder *model)
{
    sl_status status = SL_OK;
    const sl_decoder_config *config = model->config;
    const sl_rope_config local = { .theta = config->rope_local_base_freq, .factor = 1 };
    SL_TRY(sl_nn_add_rope(b, "rope", &config->rope, model->head_dim, config->max_position_embeddings, &model->rope));
    if (model->shape->two_ropes)
        SL_TRY(sl_nn_add_rope(b, "rope_local", &local, model->head_dim, config->max_position_embeddings,
                              &model->rope_local));
done:
    return status;
}

sl_status sl_nn_build_decoder(const decoder_shape *shape, const sl_decoder_config *config, sl_model_mode mode,
                              const sl_model_shape *sizes, sl_graph *g)
{
    sl_status status = SL_OK;
    const sl_init init = { SL_INIT_NORMAL, config->initializer_range };
    int64_t table_dims[2] = { config->vocab_size, config->hidden_size };
    decoder model = { .shape = shape,
                      .config = config,
                      .heads = config->num_attention_heads,
                      .kv_heads =
                          config->num_key_value_heads ? config->num_key_value_heads : config->num_attention_heads,
                      .head_dim =
                          config->head_dim ? config->head_dim : config->hidden_size / config->num_attention_heads };
    builder b = sl_nn_begin(g, mode, sizes);

    SL_TRY(add_ropes(&b, &model));
    sl_graph_push(g, "model");
    sl_graph_push(g, "embed_tokens");
    sl_value table = sl_graph_param(g, "weight", 2, table_dims, init);
    sl_value x = sl_embedding(g, b.tokens, table);
    if (shape->scaled_embedding)
        x = sl_scale(g, x, embedding_scale(&model, sizes->dtype), 0);
    sl_graph_pop(g);
    for (int layer = 0; layer < config->num_hidden_layers; layer++)
        x = block(&b, &model, layer, x);
    x = norm(&b, &model, "norm", sl_nn_last(&b, x), config->hidden_size);
    sl_graph_pop(g);
    if (!config->tie_word_embeddings)
        table = sl_graph_param(g, "lm_head.weight", 2, table_dims, init);
    sl_nn_head(&b, "lm_head", x, table, config->final_logit_softcapping);
done:
    return status;
}
