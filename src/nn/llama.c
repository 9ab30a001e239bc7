/* Llama with Hugging Face's names. Shapes: B batch, T sequence, C width, H heads, D head dim, V vocabulary. */
#include "nn/build.h"

#include "base/alloc.h"
#include "nn/rope.h"

typedef struct llama {
    const sl_llama_config *config;
    int64_t heads, kv_heads, head_dim;
    sl_value cos, sin; /* constants [P, D/2] */
} llama;

static sl_value norm(builder *b, const llama *model, const char *name, sl_value x)
{
    sl_graph *g = b->graph;
    sl_graph_push(g, name);
    sl_value weight = sl_graph_param(g, "weight", 1, &model->config->hidden_size, (sl_init){ SL_INIT_ONES, 0 });
    sl_value y = sl_rmsnorm(g, x, weight, model->config->rms_norm_eps);
    sl_graph_pop(g);
    return y;
}

static sl_value dense(builder *b, const llama *model, const char *name, sl_value x, int64_t in, int64_t out, bool bias)
{
    dense_options options = {
        .in = in, .out = out, .init = { SL_INIT_NORMAL, model->config->initializer_range }, .bias = bias
    };
    return sl_nn_dense(b, name, x, &options);
}

/* [B, T, C] -> [B, T, heads, D] through the module's projection. */
static sl_value project(builder *b, const llama *model, const char *name, sl_value x, int64_t heads)
{
    x = dense(b, model, name, x, model->config->hidden_size, heads * model->head_dim, model->config->attention_bias);
    return sl_reshape(b->graph, x, 4, (int64_t[]){ b->batch, b->seq, heads, model->head_dim });
}

static sl_value attention(builder *b, const llama *model, sl_value x)
{
    sl_graph *g = b->graph;
    int64_t inner = model->heads * model->head_dim;
    sl_graph_push(g, "self_attn");
    sl_value q = project(b, model, "q_proj", x, model->heads);
    sl_value k = project(b, model, "k_proj", x, model->kv_heads);
    sl_value v = project(b, model, "v_proj", x, model->kv_heads);
    q = sl_rope(g, q, model->cos, model->sin, b->positions);
    k = sl_rope(g, k, model->cos, model->sin, b->positions);
    sl_value mixed = sl_nn_attention(b, q, k, v, model->config->attention_dropout);
    mixed = sl_reshape(g, mixed, 3, (int64_t[]){ b->batch, b->seq, inner });
    mixed = dense(b, model, "o_proj", mixed, inner, model->config->hidden_size, model->config->attention_bias);
    sl_graph_pop(g);
    return mixed;
}

static sl_value mlp(builder *b, const llama *model, sl_value x)
{
    const sl_llama_config *config = model->config;
    int64_t width = config->hidden_size, inner = config->intermediate_size;
    sl_graph_push(b->graph, "mlp");
    sl_value gate = dense(b, model, "gate_proj", x, width, inner, config->mlp_bias);
    sl_value up = dense(b, model, "up_proj", x, width, inner, config->mlp_bias);
    x = dense(b, model, "down_proj", sl_swiglu(b->graph, gate, up), inner, width, config->mlp_bias);
    sl_graph_pop(b->graph);
    return x;
}

static sl_value block(builder *b, const llama *model, int layer, sl_value x)
{
    sl_graph *g = b->graph;
    sl_graph_push_index(g, "layers", layer);
    x = sl_add(g, x, attention(b, model, norm(b, model, "input_layernorm", x)));
    x = sl_add(g, x, mlp(b, model, norm(b, model, "post_attention_layernorm", x)));
    sl_graph_pop(g);
    return x;
}

/* The angles' cosines and sines for as many positions as this graph can see. */
static sl_status add_rope(builder *b, llama *model)
{
    sl_status status = SL_OK;
    float *cos = NULL, *sin = NULL;
    int64_t places = b->mode == SL_MODE_DECODE ? b->cache : b->seq, dims[2] = { places, model->head_dim / 2 };

    SL_TRY(SL_NEW_ARRAY(cos, dims[0] * dims[1]));
    SL_TRY(SL_NEW_ARRAY(sin, dims[0] * dims[1]));
    sl_nn_rope_fill(&model->config->rope, model->head_dim, places, cos, sin);
    model->cos = sl_graph_constant(b->graph, "rope_cos", SL_F32, 2, dims, cos);
    model->sin = sl_graph_constant(b->graph, "rope_sin", SL_F32, 2, dims, sin);
done:
    sl_free(cos);
    sl_free(sin);
    return status;
}

sl_status sl_nn_llama(builder *b, const sl_llama_config *config)
{
    sl_status status = SL_OK;
    sl_graph *g = b->graph;
    const sl_init init = { SL_INIT_NORMAL, config->initializer_range };
    int64_t table_dims[2] = { config->vocab_size, config->hidden_size };
    llama model = { .config = config,
                    .heads = config->num_attention_heads,
                    .kv_heads = config->num_key_value_heads ? config->num_key_value_heads : config->num_attention_heads,
                    .head_dim =
                        config->head_dim ? config->head_dim : config->hidden_size / config->num_attention_heads };

    sl_nn_token_inputs(b);
    SL_TRY(add_rope(b, &model));
    sl_graph_push(g, "model");
    sl_graph_push(g, "embed_tokens");
    sl_value table = sl_graph_param(g, "weight", 2, table_dims, init);
    sl_value x = sl_embedding(g, b->tokens, table);
    sl_graph_pop(g);
    for (int layer = 0; layer < config->num_hidden_layers; layer++)
        x = block(b, &model, layer, x);
    x = norm(b, &model, "norm", sl_nn_last(b, x));
    sl_graph_pop(g);
    if (!config->tie_word_embeddings)
        table = sl_graph_param(g, "lm_head.weight", 2, table_dims, init);
    sl_nn_head(b, x, table);
done:
    return status;
}
