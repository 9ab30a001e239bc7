/* Decoders in the manner of Llama: what their families share, and in what they differ. */
#ifndef SL_NN_DECODER_H
#define SL_NN_DECODER_H

#include "nn/family.h"

/* RMSNorms around attention and MLP. */
typedef enum norm_place {
    NORM_BEFORE, /* of what goes in */
    NORM_AFTER,  /* of what comes out, before it is added */
    NORM_AROUND  /* of both */
} norm_place;

typedef enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD, /* RMSNorm of every head of q and k */
    QK_NORM_WIDTH /* ... of all heads together */
} qk_norm;

/* In what a family differs from Llama; zero is Llama. */
typedef struct SL_NAMED_FIELDS decoder_shape {
    norm_place norms;
    qk_norm qk;
    bool norm_offset;      /* norms multiply by 1 + weight */
    bool scaled_embedding; /* by the root of the width */
    bool gelu;             /* gelu_pytorch_tanh in the MLP, else silu */
    bool qkv_bias;         /* q, k and v have a bias whatever attention_bias says, o has none */
    bool fused;            /* one weight for q, k and v, one for gate and up */
    bool two_ropes;        /* layers with a window have rope_local_base_freq */
    bool has_layer_types;  /* config.json may say with layer_types which layers have a window */
    bool has_no_rope_layers;
    const char *activation_key; /* of config.json; NULL: hidden_act */
    const char *partial_key;    /* likewise: of the part of a head that is rotated; NULL: it is all of it */
    /* Optional: whether this layer has a window, if layer_types does not say it. NULL: none has. */
    bool (*slides)(const sl_decoder_config *config, int64_t layer);
} decoder_shape;

SL_MUST_CHECK sl_status sl_nn_build_decoder(const decoder_shape *shape, const sl_decoder_config *config,
                                            sl_model_mode mode, const sl_model_shape *sizes, sl_graph *graph);
SL_MUST_CHECK sl_status sl_nn_read_decoder(const decoder_shape *shape, const char *label, const struct json_t *root,
                                           sl_decoder_config *config);
void sl_nn_write_decoder(const decoder_shape *shape, const sl_decoder_config *config, struct json_t *root);

/* For the families' tables; from is an sl_decoder_config. */
SL_MUST_CHECK sl_status sl_nn_check_decoder(const void *from, const char **key);
void sl_nn_complete_decoder(void *from);
int64_t sl_nn_decoder_positions(const void *from);
bool sl_nn_slides_always(const sl_decoder_config *config, int64_t layer);
extern const char *const sl_nn_decoder_ignored[];
extern const sl_model_fixed sl_nn_causal_only[]; /* of Gemma */

#define DECODER_FIELD(...) SL_NN_FIELD(sl_decoder_config, __VA_ARGS__)

/* What all of them have in config.json. */
#define DECODER_FIELDS                                                                                                 \
    DECODER_FIELD(vocab_size, "vocab_size", SL_FIELD_INT, 1, INT32_MAX, "vocab"),                                      \
        DECODER_FIELD(max_position_embeddings, "max_position_embeddings", SL_FIELD_INT, 1, INT32_MAX, "n_positions"),  \
        DECODER_FIELD(hidden_size, "hidden_size", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_embd"),                         \
        DECODER_FIELD(intermediate_size, "intermediate_size", SL_FIELD_INT, 1, SL_NN_MAX_INNER, "n_inner"),            \
        DECODER_FIELD(num_hidden_layers, "num_hidden_layers", SL_FIELD_INT, 1, SL_NN_MAX_LAYERS, "n_layer"),           \
        DECODER_FIELD(num_attention_heads, "num_attention_heads", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, "n_head"),         \
        DECODER_FIELD(num_key_value_heads, "num_key_value_heads", SL_FIELD_INT_OR_NULL, 0, SL_NN_MAX_WIDTH,            \
                      "n_kv_head"),                                                                                    \
        DECODER_FIELD(rms_norm_eps, "rms_norm_eps", SL_FIELD_REAL, 0, 1, NULL),                                        \
        DECODER_FIELD(initializer_range, "initializer_range", SL_FIELD_REAL, 0, 10, NULL),                             \
        DECODER_FIELD(attention_dropout, "attention_dropout", SL_FIELD_REAL, 0, 0.999, "dropout"),                     \
        DECODER_FIELD(tie_word_embeddings, "tie_word_embeddings", SL_FIELD_BOOL, 0, 0, "tie"),                         \
        DECODER_FIELD(pad_token_id, "pad_token_id", SL_FIELD_INT_OR_NULL, -1, INT32_MAX, NULL),                        \
        DECODER_FIELD(bos_token_id, "bos_token_id", SL_FIELD_INT_OR_NULL, -1, INT32_MAX, NULL),                        \
        DECODER_FIELD(eos_token_id, "eos_token_id", SL_FIELD_TOKENS, 0, INT32_MAX, NULL)

/* What some of them have. */
#define DECODER_HEAD_DIM DECODER_FIELD(head_dim, "head_dim", SL_FIELD_INT_OR_NULL, 0, SL_NN_MAX_WIDTH, NULL)
#define DECODER_ATTENTION_BIAS DECODER_FIELD(attention_bias, "attention_bias", SL_FIELD_BOOL, 0, 0, NULL)
#define DECODER_MLP_BIAS DECODER_FIELD(mlp_bias, "mlp_bias", SL_FIELD_BOOL, 0, 0, NULL)
#define DECODER_WINDOW DECODER_FIELD(sliding_window, "sliding_window", SL_FIELD_INT_OR_NULL, 0, INT32_MAX, NULL)
#define DECODER_USE_WINDOW DECODER_FIELD(use_sliding_window, "use_sliding_window", SL_FIELD_BOOL, 0, 0, NULL)

#define DECODER_QUERY_SCALAR                                                                                           \
    DECODER_FIELD(query_pre_attn_scalar, "query_pre_attn_scalar", SL_FIELD_INT, 1, INT32_MAX, NULL)
#define DECODER_SOFTCAPS                                                                                               \
    DECODER_FIELD(attn_logit_softcapping, "attn_logit_softcapping", SL_FIELD_REAL_OR_NULL, 0, 1e6, NULL),              \
        DECODER_FIELD(final_logit_softcapping, "final_logit_softcapping", SL_FIELD_REAL_OR_NULL, 0, 1e6, NULL)

/* The functions of a family with that shape. */
#define DECODER_FUNCTIONS(shape)                                                                                       \
    static sl_status build(const void *config, sl_model_mode mode, const sl_model_shape *sizes, sl_graph *graph)       \
    {                                                                                                                  \
        return sl_nn_build_decoder(&(shape), config, mode, sizes, graph);                                              \
    }                                                                                                                  \
    static sl_status read_json(const char *label, const struct json_t *root, void *config)                             \
    {                                                                                                                  \
        return sl_nn_read_decoder(&(shape), label, root, config);                                                      \
    }                                                                                                                  \
    static void write_json(const void *config, struct json_t *root)                                                    \
    {                                                                                                                  \
        sl_nn_write_decoder(&(shape), config, root);                                                                   \
    }

/* All entries of a family but its names. */
#define DECODER_FAMILY                                                                                                 \
    .config_bytes = sizeof(sl_decoder_config), .defaults = &defaults, .fields = fields, .root = "model.",              \
    .embedding = "model.embed_tokens.weight", .head = "lm_head.weight", .ignored = sl_nn_decoder_ignored,              \
    .check = sl_nn_check_decoder, .complete = sl_nn_complete_decoder, .positions = sl_nn_decoder_positions,            \
    .build = build, .read_json = read_json, .write_json = write_json

#endif
