/* The family llama, with Hugging Face's names. Shapes: B batch, T sequence, C width, H heads, D head dim, V vocabulary. */
#include "nn/family.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

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

/* ---- Rotary position embedding --------------------------------------------------------------- */

/* Llama 3 keeps the fast frequencies, slows the slow ones by the factor and blends those between. */
static float scale_llama3(const sl_rope_config *config, float frequency)
{
    const float two_pi = 6.2831853071795864769f;
    float context = (float)config->original_max_position_embeddings, wavelength = two_pi / frequency;
    float low = (float)config->low_freq_factor, high = (float)config->high_freq_factor, factor = (float)config->factor;
    if (wavelength > context / low)
        return frequency / factor;
    if (wavelength < context / high)
        return frequency;
    float smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

/* In f32, as PyTorch's models compute them. */
void sl_nn_rope_fill(const sl_rope_config *config, int64_t head_dim, int64_t places, float *cos, float *sin)
{
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float frequency = 1.0f / powf((float)config->theta, (float)(2 * i) / (float)head_dim);
        if (config->kind == SL_ROPE_LINEAR)
            frequency /= (float)config->factor;
        else if (config->kind == SL_ROPE_LLAMA3)
            frequency = scale_llama3(config, frequency);
        for (int64_t p = 0; p < places; p++) {
            float angle = (float)p * frequency;
            cos[p * half + i] = cosf(angle);
            sin[p * half + i] = sinf(angle);
        }
    }
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

static sl_status build(const void *from, sl_model_mode mode, const sl_model_shape *shape, sl_graph *g)
{
    sl_status status = SL_OK;
    const sl_llama_config *config = from;
    const sl_init init = { SL_INIT_NORMAL, config->initializer_range };
    int64_t table_dims[2] = { config->vocab_size, config->hidden_size };
    llama model = { .config = config,
                    .heads = config->num_attention_heads,
                    .kv_heads = config->num_key_value_heads ? config->num_key_value_heads : config->num_attention_heads,
                    .head_dim =
                        config->head_dim ? config->head_dim : config->hidden_size / config->num_attention_heads };
    builder b = sl_nn_begin(g, mode, shape);

    SL_TRY(add_rope(&b, &model));
    sl_graph_push(g, "model");
    sl_graph_push(g, "embed_tokens");
    sl_value table = sl_graph_param(g, "weight", 2, table_dims, init);
    sl_value x = sl_embedding(g, b.tokens, table);
    sl_graph_pop(g);
    for (int layer = 0; layer < config->num_hidden_layers; layer++)
        x = block(&b, &model, layer, x);
    x = norm(&b, &model, "norm", sl_nn_last(&b, x));
    sl_graph_pop(g);
    if (!config->tie_word_embeddings)
        table = sl_graph_param(g, "lm_head.weight", 2, table_dims, init);
    sl_nn_head(&b, x, table);
done:
    return status;
}

/* ---- Configuration --------------------------------------------------------------------------- */

static sl_status check_rope(const sl_rope_config *rope)
{
    if (!(rope->theta > 0) || !isfinite(rope->theta))
        return sl_fail(SL_ERR_ARGUMENT, "rope_theta %g is not above 0", rope->theta);
    if (rope->kind != SL_ROPE_DEFAULT && !(rope->factor >= 1 && isfinite(rope->factor)))
        return sl_fail(SL_ERR_ARGUMENT, "the rope factor %g is below 1", rope->factor);
    if (rope->kind != SL_ROPE_LLAMA3)
        return SL_OK;
    if (!(rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor &&
          isfinite(rope->high_freq_factor)))
        return sl_fail(SL_ERR_ARGUMENT, "rope: high_freq_factor %g must be above low_freq_factor %g, both above 0",
                       rope->high_freq_factor, rope->low_freq_factor);
    if (rope->original_max_position_embeddings < 1)
        return sl_fail(SL_ERR_ARGUMENT, "rope: original_max_position_embeddings %" PRId64 " is below 1",
                       rope->original_max_position_embeddings);
    return SL_OK;
}

static sl_status check(const void *from, const char **key)
{
    const sl_llama_config *config = from;
    int64_t heads = config->num_attention_heads;
    *key = "num_key_value_heads";
    if (config->num_key_value_heads > 0 && heads % config->num_key_value_heads != 0)
        return sl_fail(SL_ERR_ARGUMENT,
                       "num_attention_heads %" PRId64 " is no multiple of num_key_value_heads %" PRId64, heads,
                       config->num_key_value_heads);
    *key = "num_attention_heads";
    if (config->head_dim == 0 && config->hidden_size % heads != 0)
        return sl_fail(SL_ERR_ARGUMENT, "hidden_size %" PRId64 " is no multiple of num_attention_heads %" PRId64,
                       config->hidden_size, heads);
    int64_t head_dim = config->head_dim ? config->head_dim : config->hidden_size / heads;
    if (head_dim % 2 != 0)
        return sl_fail(SL_ERR_ARGUMENT, "head_dim %" PRId64 " is odd: there are no halves to rotate", head_dim);
    if (heads * head_dim > SL_NN_MAX_INNER)
        return sl_fail(SL_ERR_ARGUMENT, "%" PRId64 " heads of %" PRId64 " are too wide", heads, head_dim);
    *key = NULL;
    return check_rope(&config->rope);
}

/* What the sizes of a new model leave open; its data has no special tokens that we know of. */
static void complete(void *from)
{
    sl_llama_config *config = from;
    if (config->intermediate_size == 0)
        config->intermediate_size = (config->hidden_size * 8 / 3 + 15) / 16 * 16;
    if (config->num_key_value_heads == 0)
        config->num_key_value_heads = config->num_attention_heads;
    config->bos_token_id = -1;
    config->eos_token_id.count = 0;
}

static sl_status wrong_kind(const char *label, const char *key, const char *wanted)
{
    return sl_fail(SL_ERR_FORMAT, "%s: %s is not %s", label, key, wanted);
}

/* A number of the object, where it is there. */
static sl_status read_real(const char *label, const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return SL_OK;
    if (!json_is_number(value))
        return wrong_kind(label, key, "a number");
    *out = json_number_value(value);
    return SL_OK;
}

/* Rotary embedding: rope_theta and rope_scaling of old files, rope_parameters of new ones. */
static sl_status read_rope(const char *label, const json_t *root, sl_rope_config *rope)
{
    sl_status status = SL_OK;
    const json_t *object = json_object_get(root, "rope_parameters");
    if (!object || json_is_null(object))
        object = json_object_get(root, "rope_scaling");
    SL_TRY(read_real(label, root, "rope_theta", &rope->theta));
    if (!object || json_is_null(object))
        return SL_OK;
    if (!json_is_object(object))
        return wrong_kind(label, "rope_parameters", "an object");
    const json_t *type = json_object_get(object, "rope_type");
    const char *name = json_string_value(type ? type : json_object_get(object, "type"));
    if (!name)
        return sl_fail(SL_ERR_FORMAT, "%s: rope_parameters have no rope_type", label);
    if (strcmp(name, "default") == 0)
        rope->kind = SL_ROPE_DEFAULT;
    else if (strcmp(name, "linear") == 0)
        rope->kind = SL_ROPE_LINEAR;
    else if (strcmp(name, "llama3") == 0)
        rope->kind = SL_ROPE_LLAMA3;
    else
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: unknown rope_type '%.40s'; default, linear and llama3 are known", label,
                       name);
    double original = 0;
    SL_TRY(read_real(label, object, "rope_theta", &rope->theta));
    SL_TRY(read_real(label, object, "factor", &rope->factor));
    SL_TRY(read_real(label, object, "low_freq_factor", &rope->low_freq_factor));
    SL_TRY(read_real(label, object, "high_freq_factor", &rope->high_freq_factor));
    SL_TRY(read_real(label, object, "original_max_position_embeddings", &original));
    if (!(original >= 0 && original <= INT32_MAX))
        return sl_fail(SL_ERR_FORMAT, "%s: original_max_position_embeddings %g is impossible", label, original);
    rope->original_max_position_embeddings = (int64_t)original;
done:
    return status;
}

static sl_status read_json(const char *label, const json_t *root, void *config)
{
    const json_t *value = json_object_get(root, "hidden_act");
    const char *activation = json_string_value(value);
    if (value && !activation)
        return wrong_kind(label, "hidden_act", "a text");
    if (activation && strcmp(activation, "silu") != 0)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: hidden_act '%.40s'; llama has silu", label, activation);
    return read_rope(label, root, &((sl_llama_config *)config)->rope);
}

/* Both spellings, so that old and new readers find theirs. */
static void put_rope(json_t *root, const sl_rope_config *rope)
{
    static const char *const names[] = { "default", "linear", "llama3" };
    json_t *parameters = json_pack("{s:s}", "rope_type", names[rope->kind]);
    if (rope->kind != SL_ROPE_DEFAULT)
        json_object_set_new(parameters, "factor", json_real(rope->factor));
    if (rope->kind == SL_ROPE_LLAMA3) {
        json_object_set_new(parameters, "low_freq_factor", json_real(rope->low_freq_factor));
        json_object_set_new(parameters, "high_freq_factor", json_real(rope->high_freq_factor));
        json_object_set_new(parameters, "original_max_position_embeddings",
                            json_integer(rope->original_max_position_embeddings));
    }
    json_object_set_new(root, "rope_theta", json_real(rope->theta));
    json_object_set_new(root, "rope_scaling", rope->kind == SL_ROPE_DEFAULT ? json_null() : json_deep_copy(parameters));
    json_object_set_new(parameters, "rope_theta", json_real(rope->theta));
    json_object_set_new(root, "rope_parameters", parameters);
}

static void write_json(const void *config, json_t *root)
{
    json_object_set_new(root, "hidden_act", json_string("silu"));
    put_rope(root, &((const sl_llama_config *)config)->rope);
}

#define FIELD(...) SL_NN_FIELD(sl_llama_config, __VA_ARGS__)

static const sl_model_field fields[] = {
    FIELD(vocab_size, "vocab_size", SL_FIELD_INT, 1, INT32_MAX, "vocab"),
    FIELD(max_position_embeddings, "max_position_embeddings", SL_FIELD_INT, 1, INT32_MAX, "n_positions"),
    FIELD(hidden_size, "hidden_size", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_embd"),
    FIELD(intermediate_size, "intermediate_size", SL_FIELD_INT, 1, SL_NN_MAX_INNER, "n_inner"),
    FIELD(num_hidden_layers, "num_hidden_layers", SL_FIELD_INT, 1, SL_NN_MAX_LAYERS, "n_layer"),
    FIELD(num_attention_heads, "num_attention_heads", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_head"),
    FIELD(num_key_value_heads, "num_key_value_heads", SL_FIELD_INT_OR_NULL, 0, SL_NN_MAX_WIDTH, "n_kv_head"),
    FIELD(head_dim, "head_dim", SL_FIELD_INT_OR_NULL, 0, SL_NN_MAX_WIDTH, NULL),
    FIELD(rms_norm_eps, "rms_norm_eps", SL_FIELD_REAL, 0, 1, NULL),
    FIELD(initializer_range, "initializer_range", SL_FIELD_REAL, 0, 10, NULL),
    FIELD(attention_dropout, "attention_dropout", SL_FIELD_REAL, 0, 0.999, "dropout"),
    FIELD(attention_bias, "attention_bias", SL_FIELD_BOOL, 0, 0, NULL),
    FIELD(mlp_bias, "mlp_bias", SL_FIELD_BOOL, 0, 0, NULL),
    FIELD(tie_word_embeddings, "tie_word_embeddings", SL_FIELD_BOOL, 0, 0, "tie"),
    FIELD(bos_token_id, "bos_token_id", SL_FIELD_INT_OR_NULL, -1, INT32_MAX, NULL),
    FIELD(eos_token_id, "eos_token_id", SL_FIELD_TOKENS, 0, INT32_MAX, NULL),
    { .key = NULL },
};

static const sl_llama_config defaults = { .vocab_size = 32000,
                                          .max_position_embeddings = 2048,
                                          .hidden_size = 4096,
                                          .intermediate_size = 11008,
                                          .num_hidden_layers = 32,
                                          .num_attention_heads = 32,
                                          .rms_norm_eps = 1e-6,
                                          .initializer_range = 0.02,
                                          .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                          .bos_token_id = 1,
                                          .eos_token_id = { 1, { 2 } } };

/* Angles that old versions saved. */
static const char *const ignored[] = { ".rotary_emb.inv_freq", NULL };

const sl_model_family sl_model_llama = {
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .config_bytes = sizeof(sl_llama_config),
    .defaults = &defaults,
    .fields = fields,
    .root = "model.",
    .embedding = "model.embed_tokens.weight",
    .head = "lm_head.weight",
    .ignored = ignored,
    .check = check,
    .complete = complete,
    .build = build,
    .read_json = read_json,
    .write_json = write_json,
};
