/* The family smollm3: Llama with layers that have no positions. (SmolLM and SmolLM2 are of the family llama.) */
#include "nn/decoder.h"

/* A window is for the layers without positions. */
static bool slides(const sl_decoder_config *config, int64_t layer)
{
    const sl_layer_flags *rotated = &config->no_rope_layers;
    if (rotated->count > 0)
        return !(rotated->bits[layer / 64] >> (layer % 64) & 1);
    return config->no_rope_layer_interval > 0 && (layer + 1) % config->no_rope_layer_interval == 0;
}

static const decoder_shape shape = { .has_layer_types = true, .has_no_rope_layers = true, .slides = slides };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,   DECODER_ATTENTION_BIAS,
    DECODER_MLP_BIAS, DECODER_USE_WINDOW,
    DECODER_WINDOW,   DECODER_FIELD(no_rope_layer_interval, "no_rope_layer_interval", SL_FIELD_INT, 1, INT32_MAX, NULL),
    { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 128256,
                                            .max_position_embeddings = 32768,
                                            .hidden_size = 2048,
                                            .intermediate_size = 11008,
                                            .num_hidden_layers = 36,
                                            .num_attention_heads = 16,
                                            .num_key_value_heads = 4,
                                            .rms_norm_eps = 1e-6,
                                            .no_rope_layer_interval = 4,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 2000000, .factor = 1 },
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 128000,
                                            .pad_token_id = 128004,
                                            .eos_token_id = { 1, { 128001 } } };

const sl_model_family sl_model_smollm3 = { .name = "smollm3", .architecture = "SmolLM3ForCausalLM", DECODER_FAMILY };
