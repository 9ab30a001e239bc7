/* Inside the model layer: values of a configuration by their general names, and the pieces that builders share. */
#ifndef SL_NN_FAMILY_H
#define SL_NN_FAMILY_H

#include <sluice/nn.h>

enum {
    SL_NN_MAX_LAYERS = 4096,
    SL_NN_MAX_WIDTH = 1 << 20, /* of the residual stream */
    SL_NN_MAX_INNER = 1 << 24
};

/* One row of a family's table: SL_NN_FIELD(sl_gpt2_config, n_layer, SL_FIELD_INT, ...). */
#define SL_NN_FIELD(type, member, name, kind_, least, most, general)                                                   \
    {                                                                                                                  \
        .key = (name), .kind = (kind_), .offset = offsetof(type, member), .min = (least), .max = (most),               \
        .run_key = (general)                                                                                           \
    }

/* The first field of this general name ("n_layer"), or NULL. */
const sl_model_field *sl_nn_field(const sl_model_family *family, const char *run_key);
int64_t sl_nn_int(const sl_model *model, const char *run_key, int64_t otherwise);
/* Sets all fields of this general name, without checks; false if there are none. */
bool sl_nn_set(sl_model *model, const char *run_key, double value);
/* Whether the head is tied. */
bool sl_nn_tied(const sl_model *model);
/* sl_model_check, which also says which key of config.json is at fault; NULL if no one is. */
SL_MUST_CHECK sl_status sl_nn_check(const sl_model *model, const char **key);

/* "gelu_new" and the like; the first name of an activation is the one that is written. */
SL_MUST_CHECK sl_status sl_nn_parse_activation(const char *text, sl_activation *out);
const char *sl_nn_activation_name(sl_activation activation);

/* "gpt2, llama, ..": the families that have a config.json. */
char *sl_nn_family_names(char *text, size_t size);

/* ---- Building (blocks.c) -------------------------------------------------------------------- */

/* A graph under construction. B = batch, T = seq, S = cache. */
typedef struct builder {
    sl_graph *graph;
    sl_model_mode mode;
    int64_t batch, seq, cache;
    bool joined;        /* one product for linears of the same input */
    sl_value tokens;    /* i32 [B, T] */
    sl_value position;  /* i32 [], DECODE only */
    sl_value positions; /* i32 [T] in DECODE, [B, T] with documents; else none: a row is one document */
} builder;

/* With the inputs "tokens", with documents "positions", and in DECODE "position" and "positions". */
builder sl_nn_begin(sl_graph *graph, sl_model_mode mode, const sl_model_shape *shape);

/* "weight" and "bias" of the module `name`, applied to x[.., in] -> [.., out]. */
typedef struct SL_NAMED_FIELDS dense_options {
    int64_t in, out;
    sl_init init; /* of the weight; a bias starts at 0 */
    bool in_out;  /* the weight is [in, out] as in GPT-2's Conv1D, else [out, in] */
    bool bias;
} dense_options;
sl_value sl_nn_dense(builder *b, const char *name, sl_value x, const dense_options *options);

sl_value sl_nn_activation(sl_graph *graph, sl_activation activation, sl_value x);
sl_value sl_nn_dropout(builder *b, sl_value x, double p); /* x itself if p is 0 or nothing is trained */

/* Causal attention over q[B, T, H, D], k and v [B, T, Hkv, D], inside documents if the model has them; in DECODE through
 * caches that it adds. The dropout counts in TRAIN alone. */
sl_value sl_nn_attention(builder *b, sl_value q, sl_value k, sl_value v, const sl_attention_options *options);

/* The output "logits", in f32 whatever the model computes in. */
void sl_nn_logits(sl_graph *graph, sl_value logits);
/* x[B, T, C] -> logits by a weight [V, C], capped if softcap is not 0, and what the mode wants of them: outputs and the
 * loss. */
void sl_nn_head(builder *b, const char *module, sl_value x, sl_value weight, double softcap);
/* DECODE looks at the last position alone: [B, T, C] -> [B, 1, C]; else x. */
sl_value sl_nn_last(builder *b, sl_value x);

/* ---- Rotary embedding (rope.c) -------------------------------------------------------------- */

/* The keys of config.json's root that old files have beside rope_scaling. */
typedef struct SL_NAMED_FIELDS rope_keys {
    const char *theta;   /* "rope_theta" */
    const char *partial; /* "partial_rotary_factor"; NULL: the family rotates whole heads */
} rope_keys;

/* rope_theta and rope_scaling of old files, rope_parameters of new ones. positions: max_position_embeddings. */
SL_MUST_CHECK sl_status sl_nn_read_rope(const char *label, const struct json_t *root, const rope_keys *keys,
                                        int64_t positions, sl_rope_config *rope);
/* The same from an object of that kind; `name` is its key, for messages. */
SL_MUST_CHECK sl_status sl_nn_read_rope_object(const char *label, const char *name, const struct json_t *object,
                                               const rope_keys *keys, int64_t positions, sl_rope_config *rope);
/* Both spellings, so that old and new readers find theirs. */
void sl_nn_write_rope(struct json_t *root, const rope_keys *keys, const sl_rope_config *rope);
struct json_t *sl_nn_rope_json(const sl_rope_config *rope, bool partial); /* the object of new files */
SL_MUST_CHECK sl_status sl_nn_check_rope(const sl_rope_config *rope, int64_t head_dim);

/* The longest sequence of a model with that max_position_embeddings. */
int64_t sl_nn_rope_positions(const sl_rope_config *rope, int64_t positions);
/* cos and sin are [length, width / 2], of the angle by which pair i is turned at each position; width is what is rotated
 * of a head. length: of the longest sequence; positions: max_position_embeddings. */
void sl_nn_rope_fill(const sl_rope_config *rope, int64_t head_dim, int64_t positions, int64_t length, float *cos,
                     float *sin);

/* The angles for as many positions as a graph can see, as constants [P, width / 2]. */
typedef struct rope_table {
    sl_value cos, sin;
} rope_table;
SL_MUST_CHECK sl_status sl_nn_add_rope(builder *b, const char *name, const sl_rope_config *rope, int64_t head_dim,
                                       int64_t positions, rope_table *out);
sl_value sl_nn_rotate(builder *b, const rope_table *table, sl_value x); /* x[B, T, H, D] */

#endif
