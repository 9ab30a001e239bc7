/* Inside the model builders: the graph at work and the pieces that families share. */
#ifndef SL_NN_BUILD_H
#define SL_NN_BUILD_H

#include <sluice/nn.h>

/* A graph under construction. B = batch, T = seq, S = cache. */
typedef struct builder {
    sl_graph *graph;
    sl_model_mode mode;
    int64_t batch, seq, cache;
    sl_value tokens;    /* i32 [B, T] */
    sl_value position;  /* i32 [], DECODE only */
    sl_value positions; /* i32 [T], DECODE only */
} builder;

/* Each writes a whole model: inputs to outputs. Errors of the graph stay in the graph. */
void sl_nn_gpt2(builder *b, const sl_gpt2_config *config);
SL_MUST_CHECK sl_status sl_nn_llama(builder *b, const sl_llama_config *config);
void sl_nn_mlp(builder *b, const sl_mlp_config *config);

/* "weight" and "bias" of the module `name`, applied to x[.., in] -> [.., out]. */
typedef struct dense_options {
    int64_t in, out;
    sl_init init; /* of the weight; a bias starts at 0 */
    bool in_out;  /* the weight is [in, out] as in GPT-2's Conv1D, else [out, in] */
    bool bias;
} dense_options;
sl_value sl_nn_dense(builder *b, const char *name, sl_value x, const dense_options *options);

sl_value sl_nn_activation(builder *b, sl_activation activation, sl_value x);
sl_value sl_nn_dropout(builder *b, sl_value x, double p); /* x itself where p is 0 or nothing is trained */

/* Causal attention over q[B, T, H, D], k and v [B, T, Hkv, D]; in DECODE through caches that it adds. dropout counts in
 * TRAIN. */
sl_value sl_nn_attention(builder *b, sl_value q, sl_value k, sl_value v, double dropout);

/* The inputs "tokens", "position" and "positions". */
void sl_nn_token_inputs(builder *b);
/* x[B, T, C] -> logits by a weight [V, C], and what the mode wants of them: outputs and the loss. */
void sl_nn_head(builder *b, sl_value x, sl_value weight);
/* DECODE looks at the last position alone: [B, T, C] -> [B, 1, C]; else x. */
sl_value sl_nn_last(builder *b, sl_value x);

#endif
