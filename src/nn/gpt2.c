/* The family gpt2, with Hugging Face's names. Shapes: B batch, T sequence, C width, H heads, V vocabulary. */
#include "nn/family.h"

#include <inttypes.h>
#include <math.h>

static sl_value norm(builder *b, const sl_gpt2_config *config, const char *name, sl_value x)
{
    sl_graph *g = b->graph;
    sl_graph_push(g, name);
    sl_value weight = sl_graph_param(g, "weight", 1, &config->n_embd, (sl_init){ SL_INIT_ONES, 0 });
    sl_value bias = sl_graph_param(g, "bias", 1, &config->n_embd, (sl_init){ SL_INIT_ZEROS, 0 });
    sl_value y = sl_layernorm(g, x, weight, bias, config->layer_norm_epsilon);
    sl_graph_pop(g);
    return y;
}

static sl_value dense(builder *b, const char *name, sl_value x, int64_t in, int64_t out, double std)
{
    dense_options options = { .in = in, .out = out, .init = { SL_INIT_NORMAL, std }, .in_out = true, .bias = true };
    return sl_nn_dense(b, name, x, &options);
}

/* Projections that feed the residual stream start smaller, so that its size does not grow with depth. */
static double residual_std(const sl_gpt2_config *config)
{
    return config->initializer_range / sqrt(2 * (double)config->n_layer);
}

static sl_value attention(builder *b, const sl_gpt2_config *config, sl_value x)
{
    sl_graph *g = b->graph;
    int64_t width = config->n_embd, head_dims[4] = { b->batch, b->seq, config->n_head, width / config->n_head };
    sl_value parts[3]; /* q, k, v: [B, T, C] views of one buffer */

    sl_graph_push(g, "attn");
    sl_value qkv = dense(b, "c_attn", x, width, 3 * width, config->initializer_range);
    sl_split(g, qkv, 2, (int64_t[]){ width, width, width }, 3, parts);
    for (int i = 0; i < 3; i++)
        parts[i] = sl_reshape(g, parts[i], 4, head_dims);
    sl_value mixed =
        sl_nn_attention(b, parts[0], parts[1], parts[2], &(sl_attention_options){ .dropout = config->attn_pdrop });
    mixed = sl_reshape(g, mixed, 3, (int64_t[]){ b->batch, b->seq, width });
    mixed = dense(b, "c_proj", mixed, width, width, residual_std(config));
    mixed = sl_nn_dropout(b, mixed, config->resid_pdrop);
    sl_graph_pop(g);
    return mixed;
}

static sl_value mlp(builder *b, const sl_gpt2_config *config, sl_value x)
{
    int64_t width = config->n_embd, inner = config->n_inner ? config->n_inner : 4 * width;
    sl_graph_push(b->graph, "mlp");
    x = dense(b, "c_fc", x, width, inner, config->initializer_range);
    x = sl_nn_activation(b->graph, config->activation, x);
    x = dense(b, "c_proj", x, inner, width, residual_std(config));
    x = sl_nn_dropout(b, x, config->resid_pdrop);
    sl_graph_pop(b->graph);
    return x;
}

static sl_value block(builder *b, const sl_gpt2_config *config, int layer, sl_value x)
{
    sl_graph *g = b->graph;
    sl_graph_push_index(g, "h", layer);
    x = sl_add(g, x, attention(b, config, norm(b, config, "ln_1", x)));
    x = sl_add(g, x, mlp(b, config, norm(b, config, "ln_2", x)));
    sl_graph_pop(g);
    return x;
}

/* Token and position embeddings, [B, T, C]; *table is the token table [V, C]. */
static sl_value embed(builder *b, const sl_gpt2_config *config, sl_value *table)
{
    sl_graph *g = b->graph;
    const sl_init init = { SL_INIT_NORMAL, config->initializer_range };
    sl_graph_push(g, "wte");
    *table = sl_graph_param(g, "weight", 2, (int64_t[]){ config->vocab_size, config->n_embd }, init);
    sl_value x = sl_embedding(g, b->tokens, *table);
    sl_graph_pop(g);
    sl_graph_push(g, "wpe");
    sl_value places = sl_graph_param(g, "weight", 2, (int64_t[]){ config->n_positions, config->n_embd }, init);
    sl_value y = b->positions.id ? sl_embedding(g, b->positions, places) : sl_slice(g, places, 0, 0, b->seq);
    sl_graph_pop(g);
    return sl_nn_dropout(b, sl_add(g, x, y), config->embd_pdrop);
}

static sl_status build(const void *from, sl_model_mode mode, const sl_model_shape *shape, sl_graph *g)
{
    const sl_gpt2_config *config = from;
    builder b = sl_nn_begin(g, mode, shape);
    sl_value table;

    sl_graph_push(g, "transformer");
    sl_value x = embed(&b, config, &table);
    for (int layer = 0; layer < config->n_layer; layer++)
        x = block(&b, config, layer, x);
    x = norm(&b, config, "ln_f", sl_nn_last(&b, x));
    sl_graph_pop(g);
    if (!config->tie_word_embeddings)
        table = sl_graph_param(g, "lm_head.weight", 2, (int64_t[]){ config->vocab_size, config->n_embd },
                               (sl_init){ SL_INIT_NORMAL, config->initializer_range });
    sl_nn_head(&b, "lm_head", x, table, 0);
    return SL_OK;
}

/* ---- Configuration --------------------------------------------------------------------------- */

static sl_status check(const void *from, const char **key)
{
    const sl_gpt2_config *config = from;
    if (config->n_embd % config->n_head == 0)
        return SL_OK;
    *key = "n_head";
    return sl_fail(SL_ERR_ARGUMENT, "n_embd %" PRId64 " is no multiple of n_head %" PRId64, config->n_embd,
                   config->n_head);
}

/* A new model's data has no special tokens that we know of. */
static void complete(void *from)
{
    sl_gpt2_config *config = from;
    config->bos_token_id = -1;
    config->eos_token_id.count = 0;
}

#define FIELD(...) SL_NN_FIELD(sl_gpt2_config, __VA_ARGS__)

static const sl_model_field fields[] = {
    FIELD(vocab_size, "vocab_size", SL_FIELD_INT, 1, INT32_MAX, "vocab"),
    FIELD(n_positions, "n_positions", SL_FIELD_INT, 1, INT32_MAX, "n_positions"),
    FIELD(n_embd, "n_embd", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_embd"),
    FIELD(n_layer, "n_layer", SL_FIELD_INT, 1, SL_NN_MAX_LAYERS, "n_layer"),
    FIELD(n_head, "n_head", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_head"),
    FIELD(n_inner, "n_inner", SL_FIELD_INT_OR_NULL, 0, SL_NN_MAX_INNER, "n_inner"),
    FIELD(activation, "activation_function", SL_FIELD_ACTIVATION, 0, 0, NULL),
    FIELD(layer_norm_epsilon, "layer_norm_epsilon", SL_FIELD_REAL, 0, 1, NULL),
    FIELD(initializer_range, "initializer_range", SL_FIELD_REAL, 0, 10, NULL),
    FIELD(embd_pdrop, "embd_pdrop", SL_FIELD_REAL, 0, 0.999, "dropout"),
    FIELD(resid_pdrop, "resid_pdrop", SL_FIELD_REAL, 0, 0.999, "dropout"),
    FIELD(attn_pdrop, "attn_pdrop", SL_FIELD_REAL, 0, 0.999, "dropout"),
    FIELD(tie_word_embeddings, "tie_word_embeddings", SL_FIELD_BOOL, 0, 0, "tie"),
    FIELD(bos_token_id, "bos_token_id", SL_FIELD_INT_OR_NULL, -1, INT32_MAX, NULL),
    FIELD(eos_token_id, "eos_token_id", SL_FIELD_TOKENS, 0, INT32_MAX, NULL),
    { .key = NULL },
};

static const sl_model_fixed fixed[] = {
    { .key = "scale_attn_weights", .value = true },
    { .key = "scale_attn_by_inverse_layer_idx", .value = false },
    { .key = "add_cross_attention", .value = false },
    { .key = NULL },
};

static const sl_gpt2_config defaults = { .vocab_size = 50257,
                                         .n_positions = 1024,
                                         .n_embd = 768,
                                         .n_layer = 12,
                                         .n_head = 12,
                                         .activation = SL_ACT_GELU_TANH,
                                         .layer_norm_epsilon = 1e-5,
                                         .initializer_range = 0.02,
                                         .embd_pdrop = 0.1,
                                         .resid_pdrop = 0.1,
                                         .attn_pdrop = 0.1,
                                         .tie_word_embeddings = true,
                                         .bos_token_id = 50256,
                                         .eos_token_id = { 1, { 50256 } } };

/* Masks that old versions saved. */
static const char *const ignored[] = { ".attn.bias", ".attn.masked_bias", NULL };

const sl_model_family sl_model_gpt2 = {
    .name = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .config_bytes = sizeof(sl_gpt2_config),
    .defaults = &defaults,
    .fields = fields,
    .fixed = fixed,
    .root = "transformer.",
    .embedding = "transformer.wte.weight",
    .head = "lm_head.weight",
    .ignored = ignored,
    .check = check,
    .complete = complete,
    .build = build,
};
