/* A multi-layer perceptron: small enough to follow by hand, with what makes pipelines hard (skips, tied weights). */
#include "nn/build.h"

#include <math.h>

/* Module "layers.index": linear, and unless it is the last, activation and skip. */
static sl_value layer(builder *b, const sl_mlp_config *config, int index, sl_value x, sl_value first)
{
    sl_graph *g = b->graph;
    bool begin = index == 0, end = index == config->layers - 1, shared = config->tie && !begin && !end;
    int64_t in = begin ? config->input : config->hidden, out = end ? config->output : config->hidden;
    const sl_init init = { SL_INIT_UNIFORM, 1 / sqrt((double)in) };
    sl_value weight = SL_NO_VALUE, bias = SL_NO_VALUE;

    if (shared) { /* asked for again and again: the same parameters */
        weight = sl_graph_param(g, "layers.shared.weight", 2, (int64_t[]){ out, in }, init);
        bias = sl_graph_param(g, "layers.shared.bias", 1, &out, init);
    }
    sl_graph_push_index(g, "layers", index);
    if (!shared) {
        weight = sl_graph_param(g, "weight", 2, (int64_t[]){ out, in }, init);
        bias = sl_graph_param(g, "bias", 1, &out, init);
    }
    x = sl_linear(g, x, weight, bias);
    if (!end)
        x = sl_nn_activation(b, config->activation, x);
    if (config->skip && !begin && !end)
        x = sl_add(g, x, first);
    sl_graph_pop(g);
    return x;
}

void sl_nn_mlp(builder *b, const sl_mlp_config *config)
{
    sl_graph *g = b->graph;
    sl_value input = sl_graph_input(g, "x", SL_F32, 2, (int64_t[]){ b->batch, config->input });
    sl_value first = layer(b, config, 0, input, SL_NO_VALUE), x = first;
    for (int i = 1; i < config->layers; i++)
        x = layer(b, config, i, x, first);
    if (b->mode != SL_MODE_TRAIN)
        sl_graph_output(g, "logits", x);
    if (b->mode == SL_MODE_TRAIN || b->mode == SL_MODE_EVAL) {
        sl_value targets = sl_graph_input(g, "targets", SL_I32, 1, &b->batch);
        sl_graph_loss(g, sl_cross_entropy(g, x, targets, SL_IGNORED_TARGET));
    }
}
