/* The family gemma2: Gemma 2. Every second layer has a window; scores and logits are capped. */
#include "nn/decoder.h"

static bool slides(const sl_decoder_config *config, int64_t layer)
{
    (void)config;
    return layer % 2 == 0;
}

static const decoder_shape shape = { .norms = NORM_AROUND,
                                     .norm_offset = true,
                                     .scaled_embedding = true,
                                     .gelu = true,
                                     .has_layer_types = true,
                                     .activation_key = "hidden_activation",
                                     .slides = slides };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,       DECODER_HEAD_DIM, DECODER_ATTENTION_BIAS, DECODER_WINDOW,
    DECODER_QUERY_SCALAR, DECODER_SOFTCAPS, { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 256000,
                                            .max_position_embeddings = 8192,
                                            .hidden_size = 2304,
                                            .intermediate_size = 9216,
                                            .num_hidden_layers = 26,
                                            .num_attention_heads = 8,
                                            .num_key_value_heads = 4,
                                            .head_dim = 256,
                                            .rms_norm_eps = 1e-6,
                                            .use_sliding_window = true,
                                            .sliding_window = 4096,
                                            .query_pre_attn_scalar = 256,
                                            .attn_logit_softcapping = 50,
                                            .final_logit_softcapping = 30,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 2,
                                            .pad_token_id = 0,
                                            .eos_token_id = { 1, { 1 } } };

const sl_model_family sl_model_gemma2 = {
    .name = "gemma2", .architecture = "Gemma2ForCausalLM", DECODER_FAMILY, .fixed = sl_nn_causal_only
};
