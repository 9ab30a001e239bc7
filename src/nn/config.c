/* What a model's configuration may hold: keys, limits, defaults, and what must fit together. */
#include "nn/config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    MAX_LAYERS = 4096,
    MAX_WIDTH = 1 << 20, /* of the residual stream */
    MAX_INNER = 1 << 24
};

/* ---- Activations ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    sl_activation activation;
} activations[] = {
    { "gelu_new", SL_ACT_GELU_TANH }, { "gelu_pytorch_tanh", SL_ACT_GELU_TANH },
    { "gelu", SL_ACT_GELU_ERF },      { "silu", SL_ACT_SILU },
    { "swish", SL_ACT_SILU },         { "relu", SL_ACT_RELU },
    { "tanh", SL_ACT_TANH },
};
enum { ACTIVATION_NAMES = sizeof activations / sizeof *activations };

sl_status sl_nn_parse_activation(const char *text, sl_activation *out)
{
    for (int i = 0; i < ACTIVATION_NAMES; i++) {
        if (strcmp(text, activations[i].name) == 0) {
            *out = activations[i].activation;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_UNSUPPORTED, "unknown activation '%.40s'; gelu_new, gelu, silu, relu and tanh are known",
                   text);
}

const char *sl_nn_activation_name(sl_activation activation)
{
    for (int i = 0; i < ACTIVATION_NAMES; i++) {
        if (activations[i].activation == activation)
            return activations[i].name;
    }
    return "?";
}

/* ---- Tables ---------------------------------------------------------------------------------- */

#define GPT2(key, kind, field, min, max)                                                                               \
    {                                                                                                                  \
        key, kind, offsetof(sl_gpt2_config, field), min, max                                                           \
    }
#define LLAMA(key, kind, field, min, max)                                                                              \
    {                                                                                                                  \
        key, kind, offsetof(sl_llama_config, field), min, max                                                          \
    }
#define MLP(key, kind, field, min, max)                                                                                \
    {                                                                                                                  \
        key, kind, offsetof(sl_mlp_config, field), min, max                                                            \
    }

static const config_field gpt2_fields[] = {
    GPT2("vocab_size", CONFIG_INT, vocab_size, 1, INT32_MAX),
    GPT2("n_positions", CONFIG_INT, n_positions, 1, INT32_MAX),
    GPT2("n_embd", CONFIG_INT, n_embd, 1, MAX_WIDTH),
    GPT2("n_layer", CONFIG_INT, n_layer, 1, MAX_LAYERS),
    GPT2("n_head", CONFIG_INT, n_head, 1, MAX_WIDTH),
    GPT2("n_inner", CONFIG_INT_OR_NULL, n_inner, 0, MAX_INNER),
    GPT2("activation_function", CONFIG_ACTIVATION, activation, 0, 0),
    GPT2("layer_norm_epsilon", CONFIG_REAL, layer_norm_epsilon, 0, 1),
    GPT2("initializer_range", CONFIG_REAL, initializer_range, 0, 10),
    GPT2("embd_pdrop", CONFIG_REAL, embd_pdrop, 0, 0.999),
    GPT2("resid_pdrop", CONFIG_REAL, resid_pdrop, 0, 0.999),
    GPT2("attn_pdrop", CONFIG_REAL, attn_pdrop, 0, 0.999),
    GPT2("tie_word_embeddings", CONFIG_BOOL, tie_word_embeddings, 0, 0),
    GPT2("bos_token_id", CONFIG_INT_OR_NULL, bos_token_id, -1, INT32_MAX),
    GPT2("eos_token_id", CONFIG_TOKENS, eos_token_id, 0, INT32_MAX),
};

static const config_fixed gpt2_fixed[] = {
    { "scale_attn_weights", true },
    { "scale_attn_by_inverse_layer_idx", false },
    { "add_cross_attention", false },
};

static const config_field llama_fields[] = {
    LLAMA("vocab_size", CONFIG_INT, vocab_size, 1, INT32_MAX),
    LLAMA("max_position_embeddings", CONFIG_INT, max_position_embeddings, 1, INT32_MAX),
    LLAMA("hidden_size", CONFIG_INT, hidden_size, 1, MAX_WIDTH),
    LLAMA("intermediate_size", CONFIG_INT, intermediate_size, 1, MAX_INNER),
    LLAMA("num_hidden_layers", CONFIG_INT, num_hidden_layers, 1, MAX_LAYERS),
    LLAMA("num_attention_heads", CONFIG_INT, num_attention_heads, 1, MAX_WIDTH),
    LLAMA("num_key_value_heads", CONFIG_INT_OR_NULL, num_key_value_heads, 0, MAX_WIDTH),
    LLAMA("head_dim", CONFIG_INT_OR_NULL, head_dim, 0, MAX_WIDTH),
    LLAMA("rms_norm_eps", CONFIG_REAL, rms_norm_eps, 0, 1),
    LLAMA("initializer_range", CONFIG_REAL, initializer_range, 0, 10),
    LLAMA("attention_dropout", CONFIG_REAL, attention_dropout, 0, 0.999),
    LLAMA("attention_bias", CONFIG_BOOL, attention_bias, 0, 0),
    LLAMA("mlp_bias", CONFIG_BOOL, mlp_bias, 0, 0),
    LLAMA("tie_word_embeddings", CONFIG_BOOL, tie_word_embeddings, 0, 0),
    LLAMA("bos_token_id", CONFIG_INT_OR_NULL, bos_token_id, -1, INT32_MAX),
    LLAMA("eos_token_id", CONFIG_TOKENS, eos_token_id, 0, INT32_MAX),
};

static const config_field mlp_fields[] = {
    MLP("input", CONFIG_INT, input, 1, MAX_INNER),          MLP("hidden", CONFIG_INT, hidden, 1, MAX_WIDTH),
    MLP("output", CONFIG_INT, output, 1, MAX_INNER),        MLP("layers", CONFIG_INT, layers, 2, MAX_LAYERS),
    MLP("activation", CONFIG_ACTIVATION, activation, 0, 0),
};

/* ---- What fits together ---------------------------------------------------------------------- */

static sl_status check_gpt2(const sl_model *model)
{
    const sl_gpt2_config *config = &model->gpt2;
    if (config->n_embd % config->n_head != 0)
        return sl_fail(SL_ERR_ARGUMENT, "n_embd %" PRId64 " is no multiple of n_head %" PRId64, config->n_embd,
                       config->n_head);
    return SL_OK;
}

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

static sl_status check_llama(const sl_model *model)
{
    const sl_llama_config *config = &model->llama;
    int64_t heads = config->num_attention_heads;
    if (config->num_key_value_heads > 0 && heads % config->num_key_value_heads != 0)
        return sl_fail(SL_ERR_ARGUMENT,
                       "num_attention_heads %" PRId64 " is no multiple of num_key_value_heads %" PRId64, heads,
                       config->num_key_value_heads);
    if (config->head_dim == 0 && config->hidden_size % heads != 0)
        return sl_fail(SL_ERR_ARGUMENT, "hidden_size %" PRId64 " is no multiple of num_attention_heads %" PRId64,
                       config->hidden_size, heads);
    int64_t head_dim = config->head_dim ? config->head_dim : config->hidden_size / heads;
    if (head_dim % 2 != 0)
        return sl_fail(SL_ERR_ARGUMENT, "head_dim %" PRId64 " is odd: there are no halves to rotate", head_dim);
    if (heads * head_dim > MAX_INNER)
        return sl_fail(SL_ERR_ARGUMENT, "%" PRId64 " heads of %" PRId64 " are too wide", heads, head_dim);
    return check_rope(&config->rope);
}

static sl_status check_mlp(const sl_model *model)
{
    (void)model; /* every size is possible with every other */
    return SL_OK;
}

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

static const config_family families[] = {
    [SL_MODEL_GPT2] = { "gpt2", "GPT2LMHeadModel", gpt2_fields, COUNT(gpt2_fields), gpt2_fixed, COUNT(gpt2_fixed),
                        check_gpt2 },
    [SL_MODEL_LLAMA] = { "llama", "LlamaForCausalLM", llama_fields, COUNT(llama_fields), NULL, 0, check_llama },
    [SL_MODEL_MLP] = { NULL, NULL, mlp_fields, COUNT(mlp_fields), NULL, 0, check_mlp },
};

const config_family *sl_nn_family(sl_model_family family)
{
    return (unsigned)family < COUNT(families) ? &families[family] : NULL;
}

const char *sl_model_family_name(sl_model_family family)
{
    const config_family *found = sl_nn_family(family);
    if (!found)
        return "?";
    return found->model_type ? found->model_type : "mlp";
}

/* ---- Public ---------------------------------------------------------------------------------- */

sl_model sl_model_default(sl_model_family family)
{
    sl_model model = { .family = family };
    switch (family) {
    case SL_MODEL_GPT2:
        model.gpt2 = (sl_gpt2_config){ .vocab_size = 50257,
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
        break;
    case SL_MODEL_LLAMA:
        model.llama = (sl_llama_config){ .vocab_size = 32000,
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
        break;
    case SL_MODEL_MLP:
        model.mlp = (sl_mlp_config){ .input = 32, .hidden = 64, .output = 10, .layers = 4, .activation = SL_ACT_RELU };
        break;
    }
    return model;
}

/* Fails where it is not. */
static bool is_in_range(const config_field *field, int64_t number)
{
    if ((double)number >= field->min && (double)number <= field->max)
        return true;
    sl_fail(SL_ERR_ARGUMENT, "%s is %" PRId64 "; %.0f to %.0f are possible", field->key, number, field->min,
            field->max);
    return false;
}

sl_status sl_model_check(const sl_model *model)
{
    const config_family *family = sl_nn_family(model->family);
    if (!family)
        return sl_fail(SL_ERR_ARGUMENT, "there is no model family %d", (int)model->family);
    for (int i = 0; i < family->field_count; i++) {
        const config_field *field = &family->fields[i];
        const void *value = (const char *)&model->gpt2 + field->offset; /* all members of the union begin there */
        if (field->kind == CONFIG_REAL) {
            double real = *(const double *)value;
            if (!(real >= field->min && real <= field->max))
                return sl_fail(SL_ERR_ARGUMENT, "%s is %g; %g to %g are possible", field->key, real, field->min,
                               field->max);
        } else if (field->kind == CONFIG_ACTIVATION) {
            if ((unsigned)*(const sl_activation *)value > SL_ACT_TANH)
                return sl_fail(SL_ERR_ARGUMENT, "%s is no activation", field->key);
        } else if (field->kind == CONFIG_TOKENS) {
            const sl_token_ids *tokens = value;
            if (tokens->count < 0 || tokens->count > SL_TOKEN_IDS_MAX)
                return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " ids; 0 to %d are possible", field->key,
                               tokens->count, SL_TOKEN_IDS_MAX);
            for (int64_t t = 0; t < tokens->count; t++) {
                if (!is_in_range(field, tokens->ids[t]))
                    return SL_ERR_ARGUMENT;
            }
        } else if (field->kind != CONFIG_BOOL && !is_in_range(field, *(const int64_t *)value)) {
            return SL_ERR_ARGUMENT;
        }
    }
    return family->check(model);
}

int64_t sl_model_vocab(const sl_model *model)
{
    switch (model->family) {
    case SL_MODEL_GPT2:
        return model->gpt2.vocab_size;
    case SL_MODEL_LLAMA:
        return model->llama.vocab_size;
    default:
        return model->mlp.output;
    }
}

int64_t sl_model_positions(const sl_model *model)
{
    switch (model->family) {
    case SL_MODEL_GPT2:
        return model->gpt2.n_positions;
    case SL_MODEL_LLAMA:
        return model->llama.max_position_embeddings;
    default:
        return 1;
    }
}

int64_t sl_model_layers(const sl_model *model)
{
    switch (model->family) {
    case SL_MODEL_GPT2:
        return model->gpt2.n_layer;
    case SL_MODEL_LLAMA:
        return model->llama.num_hidden_layers;
    default:
        return model->mlp.layers;
    }
}
