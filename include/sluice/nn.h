/* Models as graphs, and their Hugging Face folders. The families of docs/models.md and a multi-layer perceptron are
 * built in; a program can register families of its own (examples/03_family.c does). */
#ifndef SLUICE_NN_H
#define SLUICE_NN_H

#include <sluice/graph.h>
#include <sluice/shard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configuration --------------------------------------------------------------------------- */

typedef enum sl_activation { SL_ACT_GELU_TANH, SL_ACT_GELU_ERF, SL_ACT_SILU, SL_ACT_RELU, SL_ACT_TANH } sl_activation;

/* One token id or a list of them; count 0: none. */
enum { SL_TOKEN_IDS_MAX = 16 };
typedef struct sl_token_ids {
    int64_t count;
    int64_t ids[SL_TOKEN_IDS_MAX];
} sl_token_ids;

/* Field names are those of config.json. */
typedef struct sl_gpt2_config {
    int64_t vocab_size, n_positions, n_embd, n_layer, n_head;
    int64_t n_inner; /* 0: 4 * n_embd */
    sl_activation activation;
    double layer_norm_epsilon, initializer_range;
    double embd_pdrop, resid_pdrop, attn_pdrop; /* dropout in training */
    bool tie_word_embeddings;
    int64_t bos_token_id; /* -1: none */
    sl_token_ids eos_token_id;
} sl_gpt2_config;

/* DYNAMIC takes sequences up to factor times longer than the model's positions, with angles that depend on the length;
 * LONGROPE's depend on whether the length is above the original one. The length is that of the batch; with a cache, of
 * the cache. */
typedef enum sl_rope_kind {
    SL_ROPE_DEFAULT,
    SL_ROPE_LINEAR,
    SL_ROPE_LLAMA3,
    SL_ROPE_DYNAMIC,
    SL_ROPE_YARN,
    SL_ROPE_LONGROPE
} sl_rope_kind;

enum { SL_ROPE_FACTORS_MAX = 64 };
typedef struct sl_rope_config {
    sl_rope_kind kind;
    double theta;
    double factor;                            /* all but DEFAULT */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    int64_t original_max_position_embeddings; /* LLAMA3, YARN, LONGROPE */
    double partial_rotary_factor;             /* the part of each head that is rotated; 0: all of it */
    double attention_factor;                  /* YARN, LONGROPE: on cosines and sines; 0: follows from the others */
    double beta_fast, beta_slow;              /* YARN; 0: 32 and 1 */
    double mscale, mscale_all_dim;            /* YARN; 0: none */
    bool untruncated;                         /* YARN: "truncate": false */
    int64_t factor_count;                     /* LONGROPE: half of what is rotated of a head */
    double short_factor[SL_ROPE_FACTORS_MAX], long_factor[SL_ROPE_FACTORS_MAX];
} sl_rope_config;

/* A flag for each layer; count 0: the family's rule says it. */
enum { SL_LAYER_FLAGS_MAX = 1024 };
typedef struct sl_layer_flags {
    int64_t count;
    uint64_t bits[SL_LAYER_FLAGS_MAX / 64];
} sl_layer_flags;

/* Llama and all families that are built like it: rotary positions, RMSNorm, gated MLPs. A family leaves alone what it
 * does not have. */
typedef struct sl_decoder_config {
    int64_t vocab_size, max_position_embeddings, hidden_size, intermediate_size, num_hidden_layers;
    int64_t num_attention_heads;
    int64_t num_key_value_heads; /* 0: num_attention_heads */
    int64_t head_dim;            /* 0: hidden_size / num_attention_heads */
    double rms_norm_eps, initializer_range;
    sl_rope_config rope;
    double rope_local_base_freq;           /* Gemma 3: theta of layers with a window */
    double attention_dropout, resid_pdrop; /* in training */
    bool attention_bias, mlp_bias, tie_word_embeddings;
    int64_t bos_token_id, pad_token_id; /* -1: none */
    sl_token_ids eos_token_id;

    bool use_sliding_window;
    int64_t sliding_window;         /* positions that a token sees in layers with a window; 0: all */
    int64_t max_window_layers;      /* Qwen: the layers from this one on have a window */
    int64_t sliding_window_pattern; /* Gemma 3: every so many layers one has none */
    sl_layer_flags layer_types;     /* layers with a window */
    sl_layer_flags no_rope_layers;  /* SmolLM3: layers that are rotated */
    int64_t no_rope_layer_interval; /* SmolLM3: every so many layers one is not */

    int64_t query_pre_attn_scalar;                          /* scores are divided by its root; 0: head_dim */
    double attn_logit_softcapping, final_logit_softcapping; /* 0: none */
} sl_decoder_config;

typedef struct sl_gpt_neox_config {
    int64_t vocab_size, max_position_embeddings, hidden_size, intermediate_size, num_hidden_layers;
    int64_t num_attention_heads;
    sl_activation hidden_act;
    double layer_norm_eps, initializer_range;
    sl_rope_config rope;
    double attention_dropout, hidden_dropout; /* in training */
    bool attention_bias, use_parallel_residual, tie_word_embeddings;
    int64_t bos_token_id; /* -1: none */
    sl_token_ids eos_token_id;
} sl_gpt_neox_config;

/* x[B, input] -> layers of `hidden` -> [B, output], cross entropy with targets[B]. */
typedef struct sl_mlp_config {
    int64_t input, hidden, output;
    int64_t layers; /* linear layers, the first and the last among them; at least 2 */
    sl_activation activation;
    bool skip; /* the first layer's result is added to that of every later hidden layer: edges over stages */
    bool tie;  /* all layers between the first and the last share one weight and bias */
} sl_mlp_config;

/* ---- Families -------------------------------------------------------------------------------- */

typedef struct sl_model_family sl_model_family;

enum { SL_MODEL_CONFIG_BYTES = 2048 }; /* the most that a family's configuration may take */

/* A model without its weights; plain data. */
typedef struct sl_model {
    const sl_model_family *family;
    union {
        sl_gpt2_config gpt2;
        sl_gpt_neox_config gpt_neox;
        sl_decoder_config decoder; /* Llama, Qwen2, Qwen3, Mistral, SmolLM3, Phi-3, Gemma 1 to 3, OLMo 2 */
        sl_mlp_config mlp;
        unsigned char config[SL_MODEL_CONFIG_BYTES]; /* of any other family */
    };
} sl_model;

typedef enum sl_model_mode {
    SL_MODE_TRAIN,  /* tokens, targets -> loss */
    SL_MODE_EVAL,   /* tokens, targets -> loss, logits */
    SL_MODE_LOGITS, /* tokens -> logits */
    SL_MODE_DECODE  /* tokens, position, positions -> logits of the last token; fills the caches */
} sl_model_mode;

typedef struct SL_NAMED_FIELDS sl_model_shape {
    int64_t batch, seq;
    int64_t cache;  /* DECODE: positions that the caches hold; 0: all of the model's */
    sl_dtype dtype; /* of parameters, activations and caches: f32 (the default) or bf16 */
    bool documents; /* rows hold several documents, which "positions" tells apart; not in DECODE */
    /* One product for linears of the same input (q, k and v; gate and up) if they have no biases. Faster on a GPU. Their
     * weights must lie side by side (sl_port): they do, unless replicas share them. Not in DECODE. */
    bool joined;
} sl_model_shape;

/* The type of a value in a family's configuration, and what stands for it in config.json. */
typedef enum sl_model_field_kind {
    SL_FIELD_INT,          /* int64_t */
    SL_FIELD_INT_OR_NULL,  /* int64_t; null in the file is `min` here */
    SL_FIELD_REAL,         /* double */
    SL_FIELD_REAL_OR_NULL, /* double; null in the file is `min` here */
    SL_FIELD_BOOL,         /* bool */
    SL_FIELD_ACTIVATION,   /* sl_activation; "gelu_new" and the like in the file */
    SL_FIELD_TOKENS        /* sl_token_ids; one id, a list of them, or null in the file */
} sl_model_field_kind;

/* One value of a configuration. */
typedef struct SL_NAMED_FIELDS sl_model_field {
    const char *key; /* in config.json; NULL ends a table */
    sl_model_field_kind kind;
    size_t offset;   /* in the family's configuration */
    double min, max; /* both allowed; of numbers and token ids */
    /* The general name of this value, under which the library asks for it and the section `model` of a run's
     * configuration sets it: vocab, n_positions, n_layer, n_head, n_kv_head, n_embd, n_inner, dropout, tie; or NULL.
     * Several fields may have the same. */
    const char *run_key;
} sl_model_field;

/* A key of config.json that must have this value if it is there, and is written with it. */
typedef struct sl_model_fixed {
    const char *key; /* NULL ends a table */
    bool value;
} sl_model_fixed;

struct json_t; /* jansson's */

/* Everything the library knows about a kind of model. Entries are required unless marked optional. It is borrowed by
 * the registry and by models, so it is usually static. */
struct SL_NAMED_FIELDS sl_model_family {
    const char *name;         /* "gpt2": model_type in config.json and model.family in a run's configuration */
    const char *architecture; /* class name in config.json. Optional: without it there are no files, and no training by
                                 sl_train_run */
    size_t config_bytes;
    const void *defaults; /* a configuration, config_bytes long */
    const sl_model_field *fields;
    const sl_model_fixed *fixed; /* optional */

    /* Names of parameters in files are those in the graph. */
    const char *root;           /* "transformer.": begins all names but the head's; files may lack it. Optional */
    const char *embedding;      /* the parameter that a tied head shares; required with a field "tie" */
    const char *head;           /* "lm_head.weight": the head's own parameter if it is not tied; as above */
    const char *const *ignored; /* ends of names in files that are no weights; NULL ends the list. Optional */

    /* Optional: whether the values fit together. A failure may set *key to that of the field at fault. */
    sl_status (*check)(const void *config, const char **key);
    /* Optional: run once the values of a run's configuration have been set over the defaults; fills in what follows
     * from them. n_inner and n_kv_head are 0 if the user leaves them to the family. */
    void (*complete)(void *config);
    /* Optional: the longest sequence, if that is not the field n_positions. */
    int64_t (*positions)(const void *config);
    /* Writes the model's inputs, nodes and outputs into the empty graph; the library finishes it. sl_model_build says
     * what they are. The graph's parameters have shape->dtype already, and what is computed from them follows; floating
     * inputs, states and the logits are the builder's to cast. Errors of the graph may be left in it. Needed are TRAIN
     * and LOGITS, for sl_model_evaluate EVAL, for sl_model_generate DECODE; fails with SL_ERR_UNSUPPORTED otherwise. */
    sl_status (*build)(const void *config, sl_model_mode mode, const sl_model_shape *shape, sl_graph *graph);
    /* Optional: the parts of config.json that a table cannot describe. label is the file's name, for messages. */
    sl_status (*read_json)(const char *label, const struct json_t *root, void *config);
    void (*write_json)(const void *config, struct json_t *root);
};

SL_API extern const sl_model_family sl_model_gpt2, sl_model_gpt_neox, sl_model_llama, sl_model_mistral, sl_model_phi3;
SL_API extern const sl_model_family sl_model_qwen2, sl_model_qwen3, sl_model_smollm3, sl_model_olmo2;
SL_API extern const sl_model_family sl_model_gemma, sl_model_gemma2, sl_model_gemma3;
SL_API extern const sl_model_family sl_model_mlp;

/* Makes a family known by its name to config.json, checkpoints and runs; once in each process, before they are read.
 * The family must outlive its use. Registering it again is fine; another one of that name is an error. */
SL_API SL_MUST_CHECK sl_status sl_model_register(const sl_model_family *family);
SL_API const sl_model_family *sl_model_find_family(const char *name); /* NULL if there is none */
SL_API const sl_model_family *sl_model_family_at(int i);              /* NULL past the last */

/* ---- Models ---------------------------------------------------------------------------------- */

/* The family's defaults, sizes among them; those of Hugging Face, if it has the family. */
SL_API sl_model sl_model_default(const sl_model_family *family);
/* Sets the value of a key of config.json from text: a number, true or false, an activation's name, ids with commas. */
SL_API SL_MUST_CHECK sl_status sl_model_set(sl_model *model, const char *key, const char *text);
/* Refuses sizes below 1, heads that do not divide, rates outside 0..1 and the like; names the field. */
SL_API SL_MUST_CHECK sl_status sl_model_check(const sl_model *model);

SL_API int64_t sl_model_vocab(const sl_model *model);           /* MLP: classes */
SL_API sl_token_ids sl_model_end_tokens(const sl_model *model); /* eos_token_id: each of them ends a text */
SL_API int64_t sl_model_positions(const sl_model *model);       /* longest sequence; 1 if it has none */
SL_API int64_t sl_model_layers(const sl_model *model);

/* config.json of a folder. Unknown families and activations, values of the wrong kind and impossible ones are errors
 * that name the key; keys that change nothing here are ignored. */
SL_API SL_MUST_CHECK sl_status sl_model_load_config(const char *folder, sl_model *out);
SL_API SL_MUST_CHECK sl_status sl_model_parse_config(const char *label, const char *text, size_t size, sl_model *out);
/* Its text, with the keys that Hugging Face's classes need; the caller frees *out with sl_free. */
SL_API SL_MUST_CHECK sl_status sl_model_config_text(const sl_model *model, sl_dtype dtype, char **out);
/* Writes it with the keys that Hugging Face's classes need; dtype is that of the weights beside it. */
SL_API SL_MUST_CHECK sl_status sl_model_save_config(const sl_model *model, sl_dtype dtype, const char *folder);

/* ---- Graph ----------------------------------------------------------------------------------- */

#define SL_IGNORED_TARGET (-100) /* a target that is not counted in the loss */

/* The finished graph; the caller owns it. The parameters and their order depend on the model alone, the nodes on model
 * and mode.
 * Inputs: "tokens" and "targets" i32 [batch, seq] (MLP: "x" f32 [batch, input], "targets" i32 [batch]);
 * with documents "positions" i32 [batch, seq], the place of each token in its document: 0 at its start, then 1, 2, ..
 * (sl_document_positions); a token sees its own document alone, and is embedded or rotated by its place in it;
 * DECODE: "position" i32 [], the place of the first token, and "positions" i32 [seq], position + 0, 1, ..
 * Outputs: "loss" f32 [], the mean over all targets that are not SL_IGNORED_TARGET; "logits" f32 [batch, seq, vocab],
 * in DECODE [batch, 1, vocab]. States of DECODE: "transformer.h.0.attn.cache_k" and the like, f32 [batch, cache, kv
 * heads, head dim]; they have the shape's dtype. The loss and the logits are f32 whatever it is.
 * Parameters and modules are named as in Hugging Face's files ("transformer.h.3.mlp.c_fc.weight", "model.layers.3"),
 * a tied head is the embedding's parameter. */
SL_API SL_MUST_CHECK sl_status sl_model_build(const sl_model *model, sl_model_mode mode, const sl_model_shape *shape,
                                              sl_graph **out);

/* The full path of a module or node: "h.3" becomes "transformer.h.3", "layers.3" "model.layers.3"; full paths stay.
 * It is not checked here that there is such a module. */
SL_API SL_MUST_CHECK sl_status sl_model_module(const sl_model *model, const char *name, char *text, size_t size);

/* ---- Parameters ------------------------------------------------------------------------------ */

/* All parameters of a model, in the order of its graph. */
typedef struct sl_param_list sl_param_list;

SL_API SL_MUST_CHECK sl_status sl_model_params(const sl_model *model, sl_param_list **out);
SL_API void sl_param_list_destroy(sl_param_list *list); /* NULL is fine */
SL_API int sl_param_list_count(const sl_param_list *list);
SL_API const sl_param_info *sl_param_list_at(const sl_param_list *list, int i); /* borrowed */
SL_API int sl_param_list_find(const sl_param_list *list, const char *name);     /* -1 if there is none */
SL_API int64_t sl_param_list_elements(const sl_param_list *list);               /* of all together */

/* Elements [first, first + count) of a parameter's initial value. They depend on seed, name and place alone, so
 * that every partition starts with the same bits. */
SL_API void sl_param_init(const sl_param_info *param, uint64_t seed, int64_t first, int64_t count, float *out);

/* ---- Weights in files ------------------------------------------------------------------------ */

/* The weights of a Hugging Face folder, checked against the model: nothing missing, nothing superfluous, shapes right,
 * each by name. The family's root ("transformer.") may be absent from all names; a tied head may be present or absent. */
typedef struct sl_model_weights sl_model_weights;

SL_API SL_MUST_CHECK sl_status sl_model_weights_open(const sl_model *model, const char *folder, sl_model_weights **out);
SL_API void sl_model_weights_close(sl_model_weights *weights); /* NULL is fine */
/* Elements [first, first + count) of the parameter as f32. */
SL_API SL_MUST_CHECK sl_status sl_model_weights_read(const sl_model_weights *weights, const char *param, int64_t first,
                                                     int64_t count, float *out);
/* The parameter as it is in the file, or NULL. */
SL_API const sl_tensor_entry *sl_model_weights_find(const sl_model_weights *weights, const char *param);

/* Writes a Hugging Face folder: config.json and the weights. The folder and its parents are made if needed. entries are
 * all parameters of the model, in any order, f32 in host memory; they are written as dtype (f32, bf16 or f16). */
SL_API SL_MUST_CHECK sl_status sl_model_save(const sl_model *model, const sl_tensor_entry *entries, int count,
                                             sl_dtype dtype, size_t shard_bytes, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
