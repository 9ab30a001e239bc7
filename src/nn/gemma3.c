/* The family gemma3_text: the language models of Gemma 3. Most layers have a window and angles of their own. */
#include "nn/decoder.h"

static bool slides(const sl_decoder_config *config, int64_t layer)
{
    return (layer + 1) % config->sliding_window_pattern != 0;
}

static const decoder_shape shape = { .qk = QK_NORM_HEAD,
                                     .two_ropes = true,
                                     .norms = NORM_AROUND,
                                     .norm_offset = true,
                                     .scaled_embedding = true,
                                     .gelu = true,
                                     .has_layer_types = true,
                                     .activation_key = "hidden_activation",
                                     .slides = slides };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,
    DECODER_HEAD_DIM,
    DECODER_ATTENTION_BIAS,
    DECODER_WINDOW,
    DECODER_QUERY_SCALAR,
    DECODER_SOFTCAPS,
    DECODER_FIELD(sliding_window_pattern, "sliding_window_pattern", SL_FIELD_INT, 1, INT32_MAX, NULL),
    DECODER_FIELD(rope_local_base_freq, "rope_local_base_freq", SL_FIELD_REAL, 1e-6, 1e12, NULL),
    { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 262208,
                                            .max_position_embeddings = 131072,
                                            .hidden_size = 2304,
                                            .intermediate_size = 9216,
                                            .num_hidden_layers = 26,
                                            .num_attention_heads = 8,
                                            .num_key_value_heads = 4,
                                            .head_dim = 256,
                                            .rms_norm_eps = 1e-6,
                                            .use_sliding_window = true,
                                            .sliding_window = 4096,
                                            .sliding_window_pattern = 6,
                                            .rope_local_base_freq = 10000,
                                            .query_pre_attn_scalar = 256,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 1000000, .factor = 1 },
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 2,
                                            .pad_token_id = 0,
                                            .eos_token_id = { 1, { 1 } } };

const sl_model_family sl_model_gemma3 = {
    .name = "gemma3_text", .architecture = "Gemma3ForCausalLM", DECODER_FAMILY, .fixed = sl_nn_causal_only
};
