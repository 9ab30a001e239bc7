/* A small transformer for tests of stage programs. */
#ifndef TEST_GRAPH_TRANSFORMER_H
#define TEST_GRAPH_TRANSFORMER_H

#include "unit/graph/harness.h"

enum { B = 2, T = 4, C = 8, V = 11 };

static inline sl_value param(sl_graph *g, const char *name, int rank, const int64_t *dims)
{
    return sl_graph_param(g, name, rank, dims, zeros);
}

/* A transformer with `layers` blocks "h.0", "h.1", .. whose look-up table is also its head if tied. */
static inline sl_graph *transformer(int batch, int layers, bool tied, double dropout)
{
    sl_graph *g = NULL;
    ASSERT_OK(sl_graph_create(&g));
    sl_value ids = sl_graph_input(g, "ids", SL_I32, DIMS(batch, T));
    sl_value targets = sl_graph_input(g, "targets", SL_I32, DIMS(batch, T));
    sl_value table = param(g, "wte.weight", DIMS(V, C)), h = sl_embedding(g, ids, table);
    for (int i = 0; i < layers; i++) {
        sl_value qkv[3], x;
        sl_graph_push_index(g, "h", i);
        x = sl_layernorm(g, h, param(g, "ln_1.weight", DIMS(C)), param(g, "ln_1.bias", DIMS(C)), 1e-5);
        x = sl_affine(g, x, param(g, "c_attn.weight", DIMS(C, 3 * C)), param(g, "c_attn.bias", DIMS(3 * C)));
        sl_split(g, x, 2, (int64_t[]){ C, C, C }, 3, qkv);
        for (int k = 0; k < 3; k++)
            qkv[k] = sl_reshape(g, qkv[k], DIMS(batch, T, 2, C / 2));
        x = sl_reshape(
            g,
            sl_attention_with(g, qkv[0], qkv[1], qkv[2], &(sl_attention_options){ .causal = true, .dropout = dropout }),
            DIMS(batch, T, C));
        x = sl_affine(g, x, param(g, "c_proj.weight", DIMS(C, C)), param(g, "c_proj.bias", DIMS(C)));
        h = sl_add(g, h, sl_dropout(g, x, dropout));
        x = sl_layernorm(g, h, param(g, "ln_2.weight", DIMS(C)), param(g, "ln_2.bias", DIMS(C)), 1e-5);
        x = sl_gelu_tanh(g, sl_affine(g, x, param(g, "fc.weight", DIMS(C, 4 * C)), param(g, "fc.bias", DIMS(4 * C))));
        x = sl_affine(g, x, param(g, "proj.weight", DIMS(4 * C, C)), param(g, "proj.bias", DIMS(C)));
        h = sl_add(g, h, x);
        sl_graph_pop(g);
    }
    sl_value head = tied ? table : param(g, "lm_head.weight", DIMS(V, C));
    sl_value logits = sl_linear(g, h, head, SL_NO_VALUE);
    sl_graph_output(g, "logits", logits);
    sl_graph_loss(g, sl_cross_entropy(g, logits, targets, -100));
    ASSERT_OK(sl_graph_finish(g));
    return g;
}

/* The program of one stage of a graph, cut as the specification says. */
static inline sl_stage_program *program_of(const sl_graph *g, const sl_split_spec *spec, int stage,
                                           const sl_program_options *options)
{
    sl_partition *partition = NULL;
    sl_stage_program *program = NULL;
    sl_device *device = open_cpu();
    ASSERT_OK(sl_graph_partition(g, spec, &partition));
    ASSERT_OK(sl_stage_program_create(partition, stage, device, options, &program));
    sl_partition_destroy(partition);
    sl_device_close(device);
    return program;
}

#endif
