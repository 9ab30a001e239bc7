/* The family mistral: Llama with a window in all layers, if the file gives one. */
#include "nn/decoder.h"

static const decoder_shape shape = { .slides = sl_nn_slides_always };

DECODER_FUNCTIONS(shape)

static const sl_model_field fields[] = {
    DECODER_FIELDS,
    DECODER_HEAD_DIM,
    DECODER_WINDOW,
    { .key = NULL },
};

static const sl_decoder_config defaults = { .vocab_size = 32000,
                                            .max_position_embeddings = 131072,
                                            .hidden_size = 4096,
                                            .intermediate_size = 14336,
                                            .num_hidden_layers = 32,
                                            .num_attention_heads = 32,
                                            .num_key_value_heads = 8,
                                            .rms_norm_eps = 1e-6,
                                            .use_sliding_window = true,
                                            .sliding_window = 4096,
                                            .initializer_range = 0.02,
                                            .rope = { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                            .bos_token_id = 1,
                                            .pad_token_id = -1,
                                            .eos_token_id = { 1, { 2 } } };

const sl_model_family sl_model_mistral = { .name = "mistral", .architecture = "MistralForCausalLM", DECODER_FAMILY };
