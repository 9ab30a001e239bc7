/* The family llama: Llama 1 to 3, and all that use its files, such as SmolLM and SmolLM2. */
#include "nn/decoder.h"

static const decoder_shape shape = { .norms = NORM_BEFORE };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS, DECODER_HEAD_DIM, DECODER_ATTENTION_BIAS, DECODER_MLP_BIAS, { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 32000,
                                            .max_position_embeddings = 2048,
                                            .hidden_size = 4096,
                                            .intermediate_size = 11008,
                                            .num_hidden_layers = 32,
                                            .num_attention_heads = 32,
                                            .rms_norm_eps = 1e-6,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                            .bos_token_id = 1,
                                            .pad_token_id = -1,
                                            .eos_token_id = { 1, { 2 } } };

const sl_model_family sl_model_llama = { .name = "llama", .architecture = "LlamaForCausalLM", DECODER_FAMILY };
