/* Small models: a graph for any batch, its batches, its first weights, its cuts. */
#include "ranks/support/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *const model_names[MODEL_COUNT] = { "gpt2-tiny", "llama-tiny", "mlp" };

sl_status model_of(int which, sl_model *model)
{
    char folder[4096];
    const char *data = getenv("SLUICE_DATA");
    if (which == MODEL_MLP) {
        *model = sl_model_default(&sl_model_mlp);
        model->mlp = (sl_mlp_config){ .input = MLP_INPUT,
                                      .hidden = 20,
                                      .output = MLP_CLASSES,
                                      .layers = 9,
                                      .activation = SL_ACT_TANH,
                                      .skip = true,
                                      .tie = true };
        return SL_OK;
    }
    snprintf(folder, sizeof folder, "%s/models/%s", data ? data : "tests/data", model_names[which]);
    return sl_model_load_config(folder, model);
}

sl_status open_weights(int which, const sl_model *model, sl_model_weights **out)
{
    char folder[4096];
    const char *data = getenv("SLUICE_DATA");
    *out = NULL;
    if (which == MODEL_MLP)
        return SL_OK;
    snprintf(folder, sizeof folder, "%s/models/%s", data ? data : "tests/data", model_names[which]);
    return sl_model_weights_open(model, folder, out);
}

sl_status first_weight(sl_model_weights *weights, const sl_param_info *param, float *out)
{
    sl_status status = SL_OK;
    int64_t count = 1;
    SL_TRY(sl_shape_count(&param->shape, &count));
    if (weights)
        SL_TRY(sl_model_weights_read(weights, param->name, 0, count, out));
    else
        sl_param_init(param, 7, 0, count, out);
done:
    return status;
}

sl_status read_batch(int which, int step, batch *out)
{
    sl_status status = SL_OK;
    sl_tokens *tokens = NULL;
    char path[4096];
    int32_t row[SEQ + 1];
    const char *data = getenv("SLUICE_DATA");
    int64_t dims[] = { BATCH, which == MODEL_MLP ? MLP_INPUT : SEQ };
    snprintf(path, sizeof path, "%s/models/%s/tokens.bin", data ? data : "tests/data", model_names[which % 2]);
    SL_TRY(sl_tokens_open(path, SL_TOKENS_AUTO, &tokens));
    for (int r = 0; r < BATCH; r++) {
        SL_TRY(sl_tokens_read(tokens, (int64_t)(step * BATCH + r) * SEQ, SEQ + 1, row));
        memcpy(out->tokens + r * SEQ, row, SEQ * sizeof *row);
        memcpy(out->targets + r * SEQ, row + 1, SEQ * sizeof *row);
    }
    for (int i = 0; i < BATCH * MLP_INPUT; i++)
        out->x[i] = (float)(out->tokens[i] % 17) / 17.0f - 0.5f;
    if (which == MODEL_MLP) {
        for (int r = 0; r < BATCH; r++)
            out->targets[r] %= MLP_CLASSES;
        out->args[0] = (sl_arg){ "x", { out->x, sl_meta_make(SL_F32, 2, dims) } };
        out->args[1] = (sl_arg){ "targets", { out->targets, sl_meta_make(SL_I32, 1, dims) } };
    } else {
        out->args[0] = (sl_arg){ "tokens", { out->tokens, sl_meta_make(SL_I32, 2, dims) } };
        out->args[1] = (sl_arg){ "targets", { out->targets, sl_meta_make(SL_I32, 2, dims) } };
    }
done:
    sl_tokens_close(tokens);
    return status;
}

sl_status cut_model(const run_config *config, const sl_model *model, int stages, sl_partition *out[2], int *count)
{
    sl_status status = SL_OK;
    int cut_count = 0, microbatches = config->microbatches;
    *count = BATCH % microbatches ? 2 : 1;
    for (int size = 0; size < *count; size++) {
        sl_graph *graph = NULL;
        sl_model_shape shape = { .batch = (BATCH + microbatches - 1) / microbatches - size,
                                 .seq = SEQ,
                                 .dtype = config->dtype };
        sl_split_spec spec = { .kind = stages == 1 ? SL_SPLIT_WHOLE : SL_SPLIT_EQUAL, .stages = stages };
        if (size == 1 && stages > 1) {
            spec.kind = SL_SPLIT_NODES;
            spec.nodes = sl_partition_cuts(out[0], &cut_count);
            spec.node_count = cut_count;
        }
        SL_TRY(sl_model_build(model, SL_MODE_TRAIN, &shape, &graph));
        status = sl_graph_partition(graph, &spec, &out[size]);
        sl_graph_destroy(graph);
        SL_TRY(status);
    }
done:
    return status;
}

static const sl_dtype f32 = SL_F32;
const sl_program_options program_options = { .grad_dtype = &f32 };

uint64_t hash_of(const void *data, size_t bytes)
{
    return XXH64(data, bytes, 1);
}

sl_status descend(float *w, const float *g, int64_t count, sl_dtype dtype, void *weight)
{
    for (int64_t i = 0; i < count; i++)
        w[i] -= 0.05f * g[i];
    return sl_f32_convert(w, count, dtype, weight);
}

sl_status make_schedule(const run_config *config, sl_schedule **out)
{
    sl_generate_options options = { .name = config->schedule,
                                    .ranks = config->ranks,
                                    .microbatches = config->microbatches,
                                    .stages_per_rank = config->stages_per_rank };
    return sl_schedule_generate(&options, out);
}
