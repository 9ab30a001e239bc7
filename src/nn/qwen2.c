/* The family qwen2: Qwen2 and Qwen2.5. q, k and v have a bias; later layers may have a window. */
#include "nn/decoder.h"

static bool slides(const sl_decoder_config *config, int64_t layer)
{
    return layer >= config->max_window_layers;
}

static const decoder_shape shape = { .qkv_bias = true, .has_layer_types = true, .slides = slides };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,  DECODER_USE_WINDOW,
    DECODER_WINDOW,  DECODER_FIELD(max_window_layers, "max_window_layers", SL_FIELD_INT, 0, INT32_MAX, NULL),
    { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 151936,
                                            .max_position_embeddings = 32768,
                                            .hidden_size = 4096,
                                            .intermediate_size = 22016,
                                            .num_hidden_layers = 32,
                                            .num_attention_heads = 32,
                                            .num_key_value_heads = 32,
                                            .rms_norm_eps = 1e-6,
                                            .sliding_window = 4096,
                                            .max_window_layers = 28,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                            .bos_token_id = -1,
                                            .pad_token_id = -1 };

const sl_model_family sl_model_qwen2 = { .name = "qwen2", .architecture = "Qwen2ForCausalLM", DECODER_FAMILY };
