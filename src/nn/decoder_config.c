/* The configuration of decoders in the manner of Llama: checks, and the parts of config.json that a table cannot describe. */
#include "nn/decoder.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Angles that old versions saved. */
const char *const sl_nn_decoder_ignored[] = { ".rotary_emb.inv_freq", NULL };

const sl_model_fixed sl_nn_causal_only[] = { { .key = "use_bidirectional_attention", .value = false },
                                             { .key = NULL } };

bool sl_nn_slides_always(const sl_decoder_config *config, int64_t layer)
{
    (void)config;
    (void)layer;
    return true;
}

int64_t sl_nn_decoder_positions(const void *from)
{
    const sl_decoder_config *config = from;
    return sl_nn_rope_positions(&config->rope, config->max_position_embeddings);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static sl_status check_flags(const char *key, const sl_layer_flags *flags, int64_t layers)
{
    if (flags->count == 0 || flags->count == layers)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " entries for %" PRId64 " layers", key, flags->count, layers);
}

sl_status sl_nn_check_decoder(const void *from, const char **key)
{
    const sl_decoder_config *config = from;
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
    *key = "num_hidden_layers";
    if (check_flags("layer_types", &config->layer_types, config->num_hidden_layers) != SL_OK ||
        check_flags("no_rope_layers", &config->no_rope_layers, config->num_hidden_layers) != SL_OK)
        return SL_ERR_ARGUMENT;
    *key = NULL;
    return sl_nn_check_rope(&config->rope, head_dim);
}

/* What the sizes of a new model leave open; its data has no special tokens that we know of. */
void sl_nn_complete_decoder(void *from)
{
    sl_decoder_config *config = from;
    if (config->intermediate_size == 0)
        config->intermediate_size = (config->hidden_size * 8 / 3 + 15) / 16 * 16;
    if (config->num_key_value_heads == 0)
        config->num_key_value_heads = config->num_attention_heads;
    if (config->head_dim > 0 && config->hidden_size % config->num_attention_heads == 0)
        config->head_dim = config->hidden_size / config->num_attention_heads;
    if (config->query_pre_attn_scalar > 0)
        config->query_pre_attn_scalar = config->head_dim;
    config->bos_token_id = config->pad_token_id = -1;
    config->eos_token_id.count = 0;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static rope_keys keys_of(const decoder_shape *shape)
{
    return (rope_keys){ .theta = "rope_theta", .partial = shape->partial_key };
}

static const char *activation_key(const decoder_shape *shape)
{
    return shape->activation_key ? shape->activation_key : "hidden_act";
}

static const char *activation_name(const decoder_shape *shape)
{
    return shape->gelu ? "gelu_pytorch_tanh" : "silu";
}

static sl_status read_activation(const decoder_shape *shape, const char *label, const json_t *root)
{
    const char *key = activation_key(shape), *wanted = activation_name(shape);
    const json_t *value = json_object_get(root, key);
    const char *given = json_string_value(value);
    if (!value || json_is_null(value))
        return SL_OK;
    if (!given)
        return sl_fail(SL_ERR_FORMAT, "%s: %s is not a text", label, key);
    if (strcmp(given, wanted) != 0)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: %s '%.40s'; only %s is supported here", label, key, given, wanted);
    return SL_OK;
}

/* A list with one entry a layer; is_set says what an entry means, and -1 if it means nothing. */
static sl_status read_flags(const char *label, const json_t *root, const char *key, int (*is_set)(const json_t *entry),
                            const char *wanted, sl_layer_flags *out)
{
    const json_t *list = json_object_get(root, key);
    sl_layer_flags flags = { .count = (int64_t)json_array_size(list) };
    if (!list || json_is_null(list))
        return SL_OK;
    if (!json_is_array(list) || flags.count == 0)
        return sl_fail(SL_ERR_FORMAT, "%s: %s is not a list with one entry a layer", label, key);
    if (flags.count > SL_LAYER_FLAGS_MAX)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: %s has %" PRId64 " entries; %d are possible", label, key, flags.count,
                       SL_LAYER_FLAGS_MAX);
    for (int64_t i = 0; i < flags.count; i++) {
        int set = is_set(json_array_get(list, (size_t)i));
        if (set < 0)
            return sl_fail(SL_ERR_UNSUPPORTED, "%s: %s[%" PRId64 "] is not %s", label, key, i, wanted);
        flags.bits[i / 64] |= (uint64_t)set << (i % 64);
    }
    *out = flags;
    return SL_OK;
}

static int is_sliding(const json_t *entry)
{
    const char *text = json_string_value(entry);
    if (text && strcmp(text, "sliding_attention") == 0)
        return 1;
    return text && strcmp(text, "full_attention") == 0 ? 0 : -1;
}

static int is_one(const json_t *entry)
{
    json_int_t value = json_is_integer(entry) ? json_integer_value(entry) : -1;
    return value == 0 || value == 1 ? (int)value : -1;
}

/* Gemma 3: rope_parameters has one object for each kind of layer; old files have rope_local_base_freq beside the rest. */
static sl_status read_two_ropes(const char *label, const json_t *root, const rope_keys *keys, sl_decoder_config *config)
{
    sl_status status = SL_OK;
    const json_t *both = json_object_get(root, "rope_parameters");
    const json_t *full = json_object_get(both, "full_attention"), *local = json_object_get(both, "sliding_attention");
    sl_rope_config window = { .theta = config->rope_local_base_freq, .factor = 1 };
    if (!full && !local)
        return sl_nn_read_rope(label, root, keys, config->max_position_embeddings, &config->rope);
    if (full && !json_is_null(full))
        SL_TRY(sl_nn_read_rope_object(label, "rope_parameters.full_attention", full, keys,
                                      config->max_position_embeddings, &config->rope));
    if (local && !json_is_null(local))
        SL_TRY(sl_nn_read_rope_object(label, "rope_parameters.sliding_attention", local, keys,
                                      config->max_position_embeddings, &window));
    if (window.kind != SL_ROPE_DEFAULT)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: rope_parameters.sliding_attention: rope_type must be default", label);
    config->rope_local_base_freq = window.theta;
done:
    return status;
}

sl_status sl_nn_read_decoder(const decoder_shape *shape, const char *label, const json_t *root,
                             sl_decoder_config *config)
{
    sl_status status = SL_OK;
    const rope_keys keys = keys_of(shape);
    SL_TRY(read_activation(shape, label, root));
    if (shape->has_layer_types)
        SL_TRY(read_flags(label, root, "layer_types", is_sliding, "sliding_attention or full_attention",
                          &config->layer_types));
    if (shape->has_no_rope_layers)
        SL_TRY(read_flags(label, root, "no_rope_layers", is_one, "0 or 1", &config->no_rope_layers));
    if (shape->two_ropes)
        SL_TRY(read_two_ropes(label, root, &keys, config));
    else
        SL_TRY(sl_nn_read_rope(label, root, &keys, config->max_position_embeddings, &config->rope));
done:
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void write_flags(json_t *root, const char *key, const sl_layer_flags *flags, bool as_types)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < flags->count; i++) {
        bool set = flags->bits[i / 64] >> (i % 64) & 1;
        json_array_append_new(list,
                              as_types ? json_string(set ? "sliding_attention" : "full_attention") : json_integer(set));
    }
    json_object_set_new(root, key, list);
}

void sl_nn_write_decoder(const decoder_shape *shape, const sl_decoder_config *config, json_t *root)
{
    const rope_keys keys = keys_of(shape);
    json_object_set_new(root, activation_key(shape), json_string(activation_name(shape)));
    if (config->layer_types.count > 0)
        write_flags(root, "layer_types", &config->layer_types, true);
    if (config->no_rope_layers.count > 0)
        write_flags(root, "no_rope_layers", &config->no_rope_layers, false);
    sl_nn_write_rope(root, &keys, &config->rope);
    if (shape->two_ropes) {
        const sl_rope_config local = { .theta = config->rope_local_base_freq, .factor = 1 };
        json_object_set_new(root, "rope_parameters",
                            json_pack("{s:o, s:o}", "full_attention", sl_nn_rope_json(&config->rope, false),
                                      "sliding_attention", sl_nn_rope_json(&local, false)));
    }
}
