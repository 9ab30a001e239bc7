/* The family mlp, a multi-layer perceptron: small enough to follow by hand, with what makes pipelines hard (skips, tied weights). */
#include "nn/family.h"

#include <math.h>

/* Module "layers.index": linear, and unless it is the last, activation and skip. */
static sl_value layer(sl_graph *g, const sl_mlp_config *config, int index, sl_value x, sl_value first)
{
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
        x = sl_nn_activation(g, config->activation, x);
    if (config->skip && !begin && !end)
        x = sl_add(g, x, first);
    sl_graph_pop(g);
    return x;
}

static sl_status build(const void *from, sl_model_mode mode, const sl_model_shape *shape, sl_graph *g)
{
    const sl_mlp_config *config = from;
    if (mode == SL_MODE_DECODE)
        return sl_fail(SL_ERR_UNSUPPORTED, "an mlp has nothing to decode");
    sl_value input = sl_graph_input(g, "x", SL_F32, 2, (int64_t[]){ shape->batch, config->input });
    if (shape->dtype != SL_F32)
        input = sl_cast(g, input, shape->dtype);
    sl_value first = layer(g, config, 0, input, SL_NO_VALUE), x = first;
    for (int i = 1; i < config->layers; i++)
        x = layer(g, config, i, x, first);
    if (mode != SL_MODE_TRAIN)
        sl_nn_logits(g, x);
    if (mode == SL_MODE_TRAIN || mode == SL_MODE_EVAL) {
        sl_value targets = sl_graph_input(g, "targets", SL_I32, 1, &shape->batch);
        sl_graph_loss(g, sl_cross_entropy(g, x, targets, SL_IGNORED_TARGET));
    }
    return SL_OK;
}

#define FIELD(...) SL_NN_FIELD(sl_mlp_config, __VA_ARGS__)

static const sl_model_field fields[] = {
    FIELD(input, "input", SL_FIELD_INT, 1, SL_NN_MAX_INNER, NULL),
    FIELD(hidden, "hidden", SL_FIELD_INT, 1, SL_NN_MAX_WIDTH, NULL),
    FIELD(output, "output", SL_FIELD_INT, 1, SL_NN_MAX_INNER, "vocab"),
    FIELD(layers, "layers", SL_FIELD_INT, 2, SL_NN_MAX_LAYERS, "n_layer"),
    FIELD(activation, "activation", SL_FIELD_ACTIVATION, 0, 0, NULL),
    { .key = NULL },
};

static const sl_mlp_config defaults = {
    .input = 32, .hidden = 64, .output = 10, .layers = 4, .activation = SL_ACT_RELU
};

const sl_model_family sl_model_mlp = {
    .name = "mlp",
    .config_bytes = sizeof(sl_mlp_config),
    .defaults = &defaults,
    .fields = fields,
    .build = build,
};
