/* The family olmo2: OLMo 2. Norms come after attention and MLP; q and k are normed over all heads together. */
#include "nn/decoder.h"

static const decoder_shape shape = { .norms = NORM_AFTER, .qk = QK_NORM_WIDTH };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,
    DECODER_ATTENTION_BIAS,
    { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 50304,
                                            .max_position_embeddings = 2048,
                                            .hidden_size = 4096,
                                            .intermediate_size = 11008,
                                            .num_hidden_layers = 32,
                                            .num_attention_heads = 32,
                                            .rms_norm_eps = 1e-5,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                            .bos_token_id = -1,
                                            .pad_token_id = 1,
                                            .eos_token_id = { 1, { 50279 } } };

const sl_model_family sl_model_olmo2 = { .name = "olmo2", .architecture = "Olmo2ForCausalLM", DECODER_FAMILY };
