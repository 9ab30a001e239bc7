/* All stages in one process, one after another, written without the runtime. */
#include "ranks/support/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of one microbatch at one stage. */
typedef struct cell {
    void *inputs[8], *outputs[8], *output_grads[8], *input_grads[8];
    void *saved_i, *saved_w, *kept;
} cell;

typedef struct sequential {
    const run_config *config;
    sl_partition *partitions[2];
    sl_device *device;
    sl_stream *stream;
    int stages, sizes;
    sl_stage_program **programs; /* [stage * 2 + size] */
    void **constants;            /* likewise */
    float ***masters, ***grads;  /* [stage][param] */
    void ***weights;             /* likewise: the masters rounded */
    cell *cells;                 /* [stage * MAX_MICROBATCHES + microbatch] */
    void *scratch;
    float seeds[MAX_MICROBATCHES];
    float *losses[MAX_MICROBATCHES];
} sequential;

static void *room_of(size_t bytes)
{
    void *block = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(block, 0xff, (bytes + 127) / 64 * 64); /* not a number, should anybody read it */
    return block;
}

static int size_of_microbatch(const run_config *config, int m)
{
    int larger = BATCH % config->microbatches;
    return larger && m >= larger;
}

static const sl_program_info *info_of(const sequential *run, int stage, int m)
{
    return sl_stage_program_info(run->programs[stage * 2 + size_of_microbatch(run->config, m)]);
}

static void make_cells(sequential *run)
{
    for (int s = 0; s < run->stages; s++) {
        for (int m = 0; m < run->config->microbatches; m++) {
            const sl_program_info *info = info_of(run, s, m);
            cell *each = &run->cells[s * MAX_MICROBATCHES + m];
            for (int j = 0; j < info->output_count; j++)
                each->outputs[j] = room_of(info->outputs[j].bytes);
            for (int i = 0; i < info->input_count; i++)
                each->input_grads[i] = room_of(info->inputs[i].bytes);
            each->saved_i = room_of(info->saved_i_bytes);
            each->saved_w = room_of(info->saved_w_bytes);
            each->kept = room_of(info->kept_bytes);
            if (info->loss >= 0) {
                each->output_grads[info->loss] = &run->seeds[m];
                run->losses[m] = (float *)each->outputs[info->loss];
            }
        }
    }
    int count = 0;
    const sl_value_edge *edges = sl_partition_edges(run->partitions[0], &count);
    for (int e = 0; e < count; e++) {
        for (int m = 0; m < run->config->microbatches; m++) {
            cell *from = &run->cells[edges[e].from * MAX_MICROBATCHES + m];
            cell *to = &run->cells[edges[e].to * MAX_MICROBATCHES + m];
            to->inputs[edges[e].input] = from->outputs[edges[e].output];
            if (edges[e].differentiable)
                from->output_grads[edges[e].output] = to->input_grads[edges[e].input];
        }
    }
}

static sl_status run_phase(sequential *run, int s, int m, sl_phase phase, bool first)
{
    cell *each = &run->cells[s * MAX_MICROBATCHES + m];
    int size = size_of_microbatch(run->config, m);
    sl_bindings bindings = {
        .params = (const void *const *)run->weights[s],
        .grads = (void *const *)run->grads[s],
        .overwrite_grads = first,
        .inputs = (const void *const *)each->inputs,
        .outputs = each->outputs,
        .output_grads = (const void *const *)each->output_grads,
        .input_grads = each->input_grads,
        .constants = run->constants[s * 2 + size],
        .saved_i = each->saved_i,
        .saved_w = each->saved_w,
        .kept = each->kept,
        .scratch = run->scratch,
        .rng = { .training = true },
    };
    return sl_stage_program_run(run->programs[s * 2 + size], phase, run->stream, &bindings);
}

/* Gradients are f32. */
static int64_t elements_of(const sl_port *param)
{
    return (int64_t)(param->grad_bytes / sizeof(float));
}

static sl_status prepare(sequential *run, const sl_model *model)
{
    sl_status status = SL_OK;
    sl_model_weights *weights = NULL;
    size_t scratch = 0;
    int stages = run->stages;
    SL_TRY(open_weights(run->config->model, model, &weights));
    SL_TRY(sl_device_open("cpu", NULL, &run->device));
    SL_TRY(sl_stream_create(run->device, &run->stream));
    SL_TRY(cut_model(run->config, model, stages, run->partitions, &run->sizes));
    run->programs = (sl_stage_program **)calloc((size_t)stages * 2, sizeof *run->programs);
    run->constants = (void **)calloc((size_t)stages * 2, sizeof *run->constants);
    run->masters = (float ***)calloc((size_t)stages, sizeof *run->masters);
    run->weights = (void ***)calloc((size_t)stages, sizeof *run->weights);
    run->grads = (float ***)calloc((size_t)stages, sizeof *run->grads);
    run->cells = (cell *)calloc((size_t)stages * MAX_MICROBATCHES, sizeof *run->cells);
    for (int s = 0; s < stages; s++) {
        for (int size = 0; size < run->sizes; size++) {
            sl_stage_program **program = &run->programs[s * 2 + size];
            SL_TRY(sl_stage_program_create(run->partitions[size], s, run->device, &program_options, program));
            const sl_program_info *info = sl_stage_program_info(*program);
            run->constants[s * 2 + size] = room_of(info->constant_bytes);
            sl_stage_program_constants(*program, run->constants[s * 2 + size]);
            for (int phase = 0; phase < SL_PHASE_COUNT; phase++)
                scratch = info->scratch_bytes[phase] > scratch ? info->scratch_bytes[phase] : scratch;
        }
        const sl_program_info *info = sl_stage_program_info(run->programs[s * 2]);
        run->masters[s] = (float **)calloc((size_t)info->param_count + 1, sizeof **run->masters);
        run->weights[s] = (void **)calloc((size_t)info->param_count + 1, sizeof **run->weights);
        run->grads[s] = (float **)calloc((size_t)info->param_count + 1, sizeof **run->grads);
        for (int p = 0; p < info->param_count; p++) {
            sl_param_info param = { info->params[p].name, SL_F32, info->params[p].shape, info->params[p].init };
            run->masters[s][p] = (float *)room_of(info->params[p].grad_bytes);
            run->weights[s][p] = room_of(info->params[p].bytes);
            run->grads[s][p] = (float *)room_of(info->params[p].grad_bytes);
            SL_TRY(first_weight(weights, &param, run->masters[s][p]));
            SL_TRY(sl_f32_convert(run->masters[s][p], elements_of(&info->params[p]), info->params[p].dtype,
                                  run->weights[s][p]));
        }
    }
    run->scratch = room_of(scratch);
    make_cells(run);
done:
    sl_model_weights_close(weights);
    return status;
}

static void release(sequential *run)
{
    for (int s = 0; s < run->stages && run->cells; s++) {
        for (int m = 0; m < MAX_MICROBATCHES; m++) {
            cell *each = &run->cells[s * MAX_MICROBATCHES + m];
            for (int i = 0; i < 8; i++) {
                free(each->outputs[i]);
                free(each->input_grads[i]);
            }
            free(each->saved_i);
            free(each->saved_w);
            free(each->kept);
        }
        const sl_program_info *info = run->programs[s * 2] ? sl_stage_program_info(run->programs[s * 2]) : NULL;
        for (int p = 0; info && run->grads[s] && p < info->param_count; p++) {
            free(run->masters[s][p]);
            free(run->weights[s][p]);
            free(run->grads[s][p]);
        }
        free(run->masters[s]);
        free(run->weights[s]);
        free(run->grads[s]);
        for (int size = 0; size < 2; size++) {
            sl_stage_program_destroy(run->programs[s * 2 + size]);
            free(run->constants[s * 2 + size]);
        }
    }
    free(run->programs);
    free(run->constants);
    free(run->masters);
    free(run->weights);
    free(run->grads);
    free(run->cells);
    free(run->scratch);
    sl_partition_destroy(run->partitions[0]);
    sl_partition_destroy(run->partitions[1]);
    sl_stream_destroy(run->stream);
    sl_device_close(run->device);
}

/* Forward and input gradients, microbatch by microbatch. */
static sl_status run_microbatch(sequential *run, const batch *data, int m)
{
    sl_status status = SL_OK;
    for (int s = 0; s < run->stages; s++) {
        const sl_program_info *info = info_of(run, s, m);
        for (int i = 0; i < info->input_count; i++) {
            if (!info->inputs[i].root)
                continue;
            const sl_arg *arg = &data->args[strcmp(info->inputs[i].name, data->args[0].name) != 0];
            int64_t start, length;
            sl_chunk_range(BATCH, run->config->microbatches, m, &start, &length);
            run->cells[s * MAX_MICROBATCHES + m].inputs[i] =
                (char *)arg->view.data + (size_t)start * (size_t)arg->view.meta.strides[0] * 4;
            run->seeds[m] = (float)((double)length / BATCH);
        }
        SL_TRY(run_phase(run, s, m, SL_PHASE_F, false));
    }
    for (int s = run->stages - 1; s >= 0; s--)
        SL_TRY(run_phase(run, s, m, SL_PHASE_I, false));
done:
    return status;
}

/* Weight gradients of a stage in the order of the schedule's W and B. */
static sl_status run_weights(sequential *run, const sl_schedule *schedule, int s)
{
    sl_status status = SL_OK;
    int64_t count = 0;
    bool first = true;
    const sl_action *actions = sl_schedule_actions(schedule, sl_schedule_rank_of(schedule, s), &count);
    for (int64_t i = 0; i < count; i++) {
        sl_action parts[2];
        int n = sl_action_parts(actions[i], parts);
        for (int k = 0; k < n; k++) {
            if (parts[k].stage != s || (parts[k].kind != SL_KIND_W && parts[k].kind != SL_KIND_B))
                continue;
            SL_TRY(run_phase(run, s, parts[k].microbatch, SL_PHASE_W, first));
            first = false;
        }
    }
done:
    return status;
}

static int find_port(const sl_program_info *info, const char *name)
{
    for (int p = 0; p < info->param_count; p++) {
        if (strcmp(info->params[p].name, name) == 0)
            return p;
    }
    return -1;
}

static void sum_tied(sequential *run)
{
    int count = 0;
    const sl_tied_param *ties = sl_partition_tied_params(run->partitions[0], &count);
    for (int t = 0; t < count; t++) {
        float *sum = NULL;
        size_t bytes = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int k = 0; k < ties[t].stage_count; k++) {
                const sl_program_info *info = sl_stage_program_info(run->programs[ties[t].stages[k] * 2]);
                int p = find_port(info, ties[t].name);
                float *grad = run->grads[ties[t].stages[k]][p];
                bytes = info->params[p].grad_bytes;
                if (pass == 1)
                    memmove(grad, sum, bytes);
                else if (k == 0)
                    sum = (float *)memcpy(room_of(bytes), grad, bytes);
                else
                    for (size_t i = 0; i < bytes / 4; i++)
                        sum[i] += grad[i];
            }
        }
        free(sum);
    }
}

static void take_hashes(sequential *run, const sl_param_list *list, bool grads, uint64_t *out)
{
    for (int s = 0; s < run->stages; s++) {
        const sl_program_info *info = sl_stage_program_info(run->programs[s * 2]);
        for (int p = 0; p < info->param_count; p++) {
            const sl_port *port = &info->params[p];
            out[sl_param_list_find(list, port->name)] =
                grads ? hash_of(run->grads[s][p], port->grad_bytes) : hash_of(run->weights[s][p], port->bytes);
        }
    }
}

sl_status run_sequential(const run_config *config, run_result *result)
{
    sl_status status = SL_OK;
    sl_model model;
    sl_schedule *schedule = NULL;
    sl_param_list *list = NULL;
    sequential run = { .config = config };
    SL_TRY(make_schedule(config, &schedule));
    SL_TRY(model_of(config->model, &model));
    SL_TRY(sl_model_params(&model, &list));
    run.stages = sl_schedule_stages(schedule);
    SL_TRY(prepare(&run, &model));
    for (int step = 0; step < STEPS; step++) {
        batch data;
        SL_TRY(read_batch(config->model, step, &data));
        for (int m = 0; m < config->microbatches; m++) {
            SL_TRY(run_microbatch(&run, &data, m));
            result->losses[step][m] = *run.losses[m];
        }
        for (int s = 0; s < run.stages; s++)
            SL_TRY(run_weights(&run, schedule, s));
        sum_tied(&run);
        if (step == 0)
            take_hashes(&run, list, true, result->first_grads);
        for (int s = 0; s < run.stages; s++) {
            const sl_program_info *info = sl_stage_program_info(run.programs[s * 2]);
            for (int p = 0; p < info->param_count; p++)
                SL_TRY(descend(run.masters[s][p], run.grads[s][p], elements_of(&info->params[p]), info->params[p].dtype,
                               run.weights[s][p]));
        }
    }
    take_hashes(&run, list, true, result->last_grads);
    take_hashes(&run, list, false, result->weights);
done:
    if (status != SL_OK)
        snprintf(result->error, sizeof result->error, "%s", sl_error_message());
    release(&run);
    sl_param_list_destroy(list);
    sl_schedule_destroy(schedule);
    return status;
}
