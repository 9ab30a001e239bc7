/* The family gpt_neox: GPT-NeoX and Pythia, with Hugging Face's names. Attention and MLP read the same residual stream
 * side by side, unless use_parallel_residual is false. Shapes: B batch, T sequence, C width, H heads, D head dim. */
#include "nn/family.h"

#include <inttypes.h>
#include <jansson.h>

typedef struct neox {
    const sl_gpt_neox_config *config;
    rope_table rope;
} neox;

static const rope_keys keys = { .theta = "rotary_emb_base", .partial = "rotary_pct" };

static sl_value norm(builder *b, const neox *model, const char *name, sl_value x)
{
    sl_graph *g = b->graph;
    sl_graph_push(g, name);
    sl_value weight = sl_graph_param(g, "weight", 1, &model->config->hidden_size, (sl_init){ SL_INIT_ONES, 0 });
    sl_value bias = sl_graph_param(g, "bias", 1, &model->config->hidden_size, (sl_init){ SL_INIT_ZEROS, 0 });
    sl_value y = sl_layernorm(g, x, weight, bias, model->config->layer_norm_eps);
    sl_graph_pop(g);
    return y;
}

static sl_value dense(builder *b, const neox *model, const char *name, sl_value x, int64_t in, int64_t out, bool bias)
{
    dense_options options = {
        .in = in, .out = out, .init = { SL_INIT_NORMAL, model->config->initializer_range }, .bias = bias
    };
    return sl_nn_dense(b, name, x, &options);
}

/* The rows of query_key_value go head by head: q, k and v of head 0, then of head 1, .. */
static sl_value attention(builder *b, const neox *model, sl_value x)
{
    sl_graph *g = b->graph;
    const sl_gpt_neox_config *config = model->config;
    int64_t width = config->hidden_size, heads = config->num_attention_heads, size = width / heads;
    sl_value parts[3];

    sl_graph_push(g, "attention");
    x = dense(b, model, "query_key_value", x, width, 3 * width, config->attention_bias);
    x = sl_reshape(g, x, 4, (int64_t[]){ b->batch, b->seq, heads, 3 * size });
    sl_split(g, x, 3, (int64_t[]){ size, size, size }, 3, parts);
    sl_value q = sl_nn_rotate(b, &model->rope, parts[0]), k = sl_nn_rotate(b, &model->rope, parts[1]);
    sl_value mixed =
        sl_nn_attention(b, q, k, parts[2], &(sl_attention_options){ .dropout = config->attention_dropout });
    mixed = sl_reshape(g, mixed, 3, (int64_t[]){ b->batch, b->seq, width });
    mixed = dense(b, model, "dense", mixed, width, width, config->attention_bias);
    sl_graph_pop(g);
    return sl_nn_dropout(b, mixed, config->hidden_dropout);
}

static sl_value mlp(builder *b, const neox *model, sl_value x)
{
    const sl_gpt_neox_config *config = model->config;
    sl_graph_push(b->graph, "mlp");
    x = dense(b, model, "dense_h_to_4h", x, config->hidden_size, config->intermediate_size, true);
    x = sl_nn_activation(b->graph, config->hidden_act, x);
    x = dense(b, model, "dense_4h_to_h", x, config->intermediate_size, config->hidden_size, true);
    sl_graph_pop(b->graph);
    return sl_nn_dropout(b, x, config->hidden_dropout);
}

static sl_value block(builder *b, const neox *model, int layer, sl_value x)
{
    sl_graph *g = b->graph;
    sl_graph_push_index(g, "layers", layer);
    sl_value mixed = attention(b, model, norm(b, model, "input_layernorm", x));
    if (model->config->use_parallel_residual) {
        sl_value fed = mlp(b, model, norm(b, model, "post_attention_layernorm", x));
        x = sl_add(g, sl_add(g, fed, mixed), x);
    } else {
        x = sl_add(g, mixed, x);
        x = sl_add(g, mlp(b, model, norm(b, model, "post_attention_layernorm", x)), x);
    }
    sl_graph_pop(g);
    return x;
}

static sl_status build(const void *from, sl_model_mode mode, const sl_model_shape *shape, sl_graph *g)
{
    sl_status status = SL_OK;
    const sl_gpt_neox_config *config = from;
    const sl_init init = { SL_INIT_NORMAL, config->initializer_range };
    int64_t table_dims[2] = { config->vocab_size, config->hidden_size };
    neox model = { .config = config };
    builder b = sl_nn_begin(g, mode, shape);

    SL_TRY(sl_nn_add_rope(&b, "rope", &config->rope, config->hidden_size / config->num_attention_heads,
                          config->max_position_embeddings, &model.rope));
    sl_graph_push(g, "gpt_neox");
    sl_graph_push(g, "embed_in");
    sl_value table = sl_graph_param(g, "weight", 2, table_dims, init);
    sl_value x = sl_nn_dropout(&b, sl_embedding(g, b.tokens, table), config->hidden_dropout);
    sl_graph_pop(g);
    for (int layer = 0; layer < config->num_hidden_layers; layer++)
        x = block(&b, &model, layer, x);
    x = norm(&b, &model, "final_layer_norm", sl_nn_last(&b, x));
    sl_graph_pop(g);
    if (!config->tie_word_embeddings)
        table = sl_graph_param(g, "embed_out.weight", 2, table_dims, init);
    sl_nn_head(&b, "embed_out", x, table, 0);
done:
    return status;
}

/* ---- Configuration --------------------------------------------------------------------------- */

static sl_status check(const void *from, const char **key)
{
    const sl_gpt_neox_config *config = from;
    int64_t heads = config->num_attention_heads;
    if (config->hidden_size % heads == 0)
        return sl_nn_check_rope(&config->rope, config->hidden_size / heads);
    *key = "num_attention_heads";
    return sl_fail(SL_ERR_ARGUMENT, "hidden_size %" PRId64 " is no multiple of num_attention_heads %" PRId64,
                   config->hidden_size, heads);
}

/* What the sizes of a new model leave open; its data has no special tokens that we know of. */
static void complete(void *from)
{
    sl_gpt_neox_config *config = from;
    if (config->intermediate_size == 0)
        config->intermediate_size = 4 * config->hidden_size;
    config->bos_token_id = -1;
    config->eos_token_id.count = 0;
}

static int64_t positions(const void *from)
{
    const sl_gpt_neox_config *config = from;
    return sl_nn_rope_positions(&config->rope, config->max_position_embeddings);
}

static sl_status read_json(const char *label, const json_t *root, void *from)
{
    sl_gpt_neox_config *config = from;
    return sl_nn_read_rope(label, root, &keys, config->max_position_embeddings, &config->rope);
}

static void write_json(const void *from, json_t *root)
{
    sl_nn_write_rope(root, &keys, &((const sl_gpt_neox_config *)from)->rope);
}

#define FIELD(...) SL_NN_FIELD(sl_gpt_neox_config, __VA_ARGS__)

static const sl_model_field fields[] = {
    FIELD(vocab_size, "vocab_size", SL_FIELD_INT, 1, INT32_MAX, "vocab"),
    FIELD(max_position_embeddings, "max_position_embeddings", SL_FIELD_INT, 1, INT32_MAX, "n_positions"),
    FIELD(hidden_size, "hidden_size", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_embd"),
    FIELD(intermediate_size, "intermediate_size", SL_FIELD_INT, 1, SL_NN_MAX_INNER, "n_inner"),
    FIELD(num_hidden_layers, "num_hidden_layers", SL_FIELD_INT, 1, SL_NN_MAX_LAYERS, "n_layer"),
    FIELD(num_attention_heads, "num_attention_heads", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_head"),
    FIELD(hidden_act, "hidden_act", SL_FIELD_ACTIVATION, 0, 0, NULL),
    FIELD(layer_norm_eps, "layer_norm_eps", SL_FIELD_REAL, 0, 1, NULL),
    FIELD(initializer_range, "initializer_range", SL_FIELD_REAL, 0, 10, NULL),
    FIELD(attention_dropout, "attention_dropout", SL_FIELD_REAL, 0, 0.999, "dropout"),
    FIELD(hidden_dropout, "hidden_dropout", SL_FIELD_REAL, 0, 0.999, "dropout"),
    FIELD(attention_bias, "attention_bias", SL_FIELD_BOOL, 0, 0, NULL),
    FIELD(use_parallel_residual, "use_parallel_residual", SL_FIELD_BOOL, 0, 0, NULL),
    FIELD(tie_word_embeddings, "tie_word_embeddings", SL_FIELD_BOOL, 0, 0, "tie"),
    FIELD(bos_token_id, "bos_token_id", SL_FIELD_INT_OR_NULL, -1, INT32_MAX, NULL),
    FIELD(eos_token_id, "eos_token_id", SL_FIELD_TOKENS, 0, INT32_MAX, NULL),
    { .key = NULL },
};

static const sl_gpt_neox_config defaults = {
    .vocab_size = 50432,
    .max_position_embeddings = 2048,
    .hidden_size = 6144,
    .intermediate_size = 24576,
    .num_hidden_layers = 44,
    .num_attention_heads = 64,
    .hidden_act = SL_ACT_GELU_ERF,
    .layer_norm_eps = 1e-5,
    .initializer_range = 0.02,
    .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1, .partial_rotary_factor = 0.25 },
    .attention_bias = true,
    .use_parallel_residual = true,
    .bos_token_id = 0,
    .eos_token_id = { 1, { 2 } }
};

/* Masks and angles that old versions saved. */
static const char *const ignored[] = { ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq", NULL };

const sl_model_family sl_model_gpt_neox = {
    .name = "gpt_neox",
    .architecture = "GPTNeoXForCausalLM",
    .config_bytes = sizeof(sl_gpt_neox_config),
    .defaults = &defaults,
    .fields = fields,
    .root = "gpt_neox.",
    .embedding = "gpt_neox.embed_in.weight",
    .head = "embed_out.weight",
    .ignored = ignored,
    .check = check,
    .complete = complete,
    .positions = positions,
    .build = build,
    .read_json = read_json,
    .write_json = write_json,
};
