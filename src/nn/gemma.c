/* The family gemma: Gemma 1. */
#include "nn/decoder.h"

static const decoder_shape shape = {
    .norm_offset = true, .scaled_embedding = true, .gelu = true, .activation_key = "hidden_activation"
};

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,
    DECODER_HEAD_DIM,
    DECODER_ATTENTION_BIAS,
    { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 256000,
                                            .max_position_embeddings = 8192,
                                            .hidden_size = 3072,
                                            .intermediate_size = 24576,
                                            .num_hidden_layers = 28,
                                            .num_attention_heads = 16,
                                            .num_key_value_heads = 16,
                                            .head_dim = 256,
                                            .rms_norm_eps = 1e-6,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 2,
                                            .pad_token_id = 0,
                                            .eos_token_id = { 1, { 1 } } };

const sl_model_family sl_model_gemma = {
    .name = "gemma", .architecture = "GemmaForCausalLM", DECODER_FAMILY, .fixed = sl_nn_causal_only
};
