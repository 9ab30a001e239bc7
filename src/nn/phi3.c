/* The family phi3: Phi-3, Phi-3.5 and Phi-4 (mini). One weight holds q, k and v, one gate and up; a part of each head may
 * be rotated. */
#include "nn/decoder.h"

static const decoder_shape shape = { .fused = true,
                                     .partial_key = "partial_rotary_factor",
                                     .slides = sl_nn_slides_always };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,
    DECODER_WINDOW,
    DECODER_FIELD(resid_pdrop, "resid_pdrop", SL_FIELD_REAL, 0, 0.999, "dropout"),
    { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 32064,
                                            .max_position_embeddings = 4096,
                                            .hidden_size = 3072,
                                            .intermediate_size = 8192,
                                            .num_hidden_layers = 32,
                                            .num_attention_heads = 32,
                                            .rms_norm_eps = 1e-5,
                                            .use_sliding_window = true,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                            .bos_token_id = 1,
                                            .pad_token_id = 32000,
                                            .eos_token_id = { 1, { 32000 } } };

const sl_model_family sl_model_phi3 = { .name = "phi3", .architecture = "Phi3ForCausalLM", DECODER_FAMILY };
