/* The measurement of `sluice bench step`: steps and products in turn, memory as the operating system sees it. */
#include "step_measure.h"

#include "bench.h"

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a measurement holds. */
typedef struct bench_run {
    sl_device *device;
    sl_graph *graph;
    sl_partition *partition;
    sl_runner *runner;
    sl_optimizer *optimizer;
    sl_optim_param *params;
    double *square_sums;
    int param_count;
    step_gemms *gemms;
} bench_run;

static const sl_optim_options adamw = {
    .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
};

static void bench_run_close(bench_run *run)
{
    step_gemms_destroy(run->gemms);
    sl_optimizer_destroy(run->optimizer);
    sl_runner_destroy(run->runner);
    sl_partition_destroy(run->partition);
    sl_graph_destroy(run->graph);
    sl_free(run->params);
    sl_free(run->square_sums);
    sl_device_close(run->device);
}

/* Bytes that the process has in memory now, and at most since the mark was reset; 0 where the system does not say. */
static int64_t resident(const char *field)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long long kib = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, field, strlen(field)) == 0)
            sscanf(line + strlen(field), ": %lld", &kib);
    }
    if (file)
        fclose(file);
    return (int64_t)kib * 1024;
}

static void reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) {
        fputs("5", file);
        fclose(file);
    }
}

static sl_model model_of(const step_options *options)
{
    sl_model model = sl_model_default(&sl_model_gpt2);
    model.gpt2.vocab_size = options->vocab;
    model.gpt2.n_positions = options->seq;
    model.gpt2.n_embd = options->embd;
    model.gpt2.n_layer = options->layers;
    model.gpt2.n_head = options->heads;
    model.gpt2.embd_pdrop = model.gpt2.resid_pdrop = model.gpt2.attn_pdrop = 0;
    model.gpt2.bos_token_id = -1;
    model.gpt2.eos_token_id.count = 0;
    return model;
}

static sl_status init_params(bench_run *run)
{
    sl_status status = SL_OK;
    float *values = NULL;
    for (int i = 0; i < sl_graph_param_count(run->graph); i++) {
        sl_param_info info = sl_graph_param_at(run->graph, i);
        sl_view data = sl_runner_param(run->runner, info.name);
        int64_t count = sl_meta_count(&data.meta);
        sl_free(values);
        values = NULL;
        SL_TRY(SL_NEW_ARRAY(values, count));
        sl_param_init(&info, 1, 0, count, values);
        SL_TRY(sl_stream_copy(sl_runner_stream(run->runner), SL_COPY_HOST_TO_DEVICE, data.data, values,
                              (size_t)count * sizeof *values));
        SL_TRY(sl_stream_synchronize(sl_runner_stream(run->runner)));
        run->params[i] = (sl_optim_param){ .name = info.name,
                                           .data = data,
                                           .grad = sl_runner_grad(run->runner, info.name),
                                           .decay = info.shape.rank >= 2 };
    }
done:
    sl_free(values);
    return status;
}

/* Tokens without a pattern; the speed does not depend on them. */
static sl_status fill_tokens(const bench_run *run, const step_options *options, const char *name)
{
    sl_status status = SL_OK;
    sl_view view = sl_runner_input(run->runner, 0, name);
    int64_t count = sl_meta_count(&view.meta);
    int32_t *ids = NULL;
    uint64_t state = 12345;
    SL_TRY(SL_NEW_ARRAY(ids, count));
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)options->vocab);
    }
    SL_TRY(sl_stream_copy(sl_runner_stream(run->runner), SL_COPY_HOST_TO_DEVICE, view.data, ids,
                          (size_t)count * sizeof *ids));
    SL_TRY(sl_stream_synchronize(sl_runner_stream(run->runner)));
done:
    sl_free(ids);
    return status;
}

static sl_status open_run(const step_options *options, bench_run *run, step_result *result)
{
    sl_status status = SL_OK;
    sl_model model = model_of(options);
    SL_TRY(sl_model_check(&model));
    SL_TRY(sl_model_build(&model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = options->batch, .seq = options->seq },
                          &run->graph));
    SL_TRY(sl_graph_partition(run->graph, NULL, &run->partition));
    SL_TRY(sl_runner_create(run->partition, run->device, NULL, &run->runner));
    run->param_count = sl_graph_param_count(run->graph);
    SL_TRY(SL_NEW_ARRAY(run->params, run->param_count));
    SL_TRY(SL_NEW_ARRAY(run->square_sums, run->param_count));
    SL_TRY(init_params(run));
    SL_TRY(fill_tokens(run, options, "tokens"));
    SL_TRY(fill_tokens(run, options, "targets"));
    SL_TRY(sl_optimizer_create(&adamw, run->device, run->params, run->param_count, &run->optimizer));

    const sl_program_info *info = sl_stage_program_info(sl_runner_program(run->runner, 0));
    result->flops = info->cost[SL_PHASE_F].flops + info->cost[SL_PHASE_B].flops;
    result->predicted_memory = (int64_t)sl_runner_bytes(run->runner);
    for (int i = 0; i < run->param_count; i++) {
        int64_t count = sl_meta_count(&run->params[i].data.meta);
        result->parameters += count;
        result->predicted_memory += (int64_t)sl_optim_state_bytes(&adamw, SL_F32, count);
    }
done:
    return status;
}

/* ---- Measuring ------------------------------------------------------------------------------- */

/* Processor seconds of this process so far. */
static double cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static sl_status run_step(bench_run *run, int64_t number, step_result *best, double *node_seconds)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runner_stream(run->runner);
    sl_rng rng = { .seed = 1, .step = (uint64_t)number, .training = true };
    double start = sl_now(), cpu = cpu_now();
    SL_TRY(sl_runner_step(run->runner, &rng, node_seconds));
    double middle = sl_now();
    SL_TRY(sl_optimizer_square_sums(run->optimizer, stream, run->square_sums));
    double norm = sl_grad_norm(run->square_sums, run->param_count);
    SL_TRY(sl_optimizer_step(run->optimizer, stream, number, 1e-4, sl_clip_scale(norm, 1)));
    SL_TRY(sl_stream_synchronize(stream));
    double end = sl_now();
    best->step_cpu_s = fmin(best->step_cpu_s, cpu_now() - cpu);
    if (end - start < best->step_s) {
        best->step_s = end - start;
        best->forward_backward_s = middle - start;
        best->optimizer_s = end - middle;
    }
done:
    return status;
}

static sl_status run_gemms(bench_run *run, step_result *best)
{
    double start = sl_now(), cpu = cpu_now();
    sl_status status = step_gemms_run(run->gemms, sl_runner_stream(run->runner));
    best->gemm_s = fmin(best->gemm_s, sl_now() - start);
    best->gemm_cpu_s = fmin(best->gemm_cpu_s, cpu_now() - cpu);
    return status;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const step_node *)a)->seconds, y = ((const step_node *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static sl_status measure_nodes(bench_run *run, int64_t number, step_result *result)
{
    sl_status status = SL_OK;
    double *seconds = NULL;
    step_result unused = *result;
    int count = sl_graph_node_count(run->graph);
    SL_TRY(SL_NEW_ARRAY(seconds, count));
    SL_TRY(SL_NEW_ARRAY(result->nodes, count));
    SL_TRY(run_step(run, number, &unused, seconds));
    for (int i = 0; i < count; i++) {
        char *name = NULL;
        SL_TRY(sl_strdup(sl_graph_node_name(run->graph, i), &name));
        result->nodes[result->node_count++] = (step_node){ name, seconds[i] };
    }
    qsort(result->nodes, (size_t)count, sizeof *result->nodes, by_seconds);
done:
    sl_free(seconds);
    return status;
}

sl_status step_measure(const step_options *options, step_result *out)
{
    sl_status status = SL_OK;
    bench_run run = { 0 };
    step_result result = { .step_s = INFINITY, .gemm_s = INFINITY, .step_cpu_s = INFINITY, .gemm_cpu_s = INFINITY };
    sl_device_options device = { .threads = options->threads };

    SL_TRY(sl_device_open("cpu", &device, &run.device));
    sl_kernel_describe(run.device, result.kernels, sizeof result.kernels); /* loads BLAS: not the step's memory */
    result.fma_peak = sl_kernel_measure_peak(run.device);
    reset_peak();
    int64_t before = resident("VmRSS");
    SL_TRY(open_run(options, &run, &result));
    SL_TRY(run_step(&run, 1, &(step_result){ 0 }, NULL));
    result.peak_memory = resident("VmHWM") - before;
    SL_TRY(step_gemms_create(options, run.device, run.runner, &run.gemms));
    result.gemm_flops = step_gemms_flops(run.gemms);
    SL_TRY(step_gemms_run(run.gemms, sl_runner_stream(run.runner)));
    for (int i = 0; i < options->repeats; i++) {
        SL_TRY(run_step(&run, 2 + i, &result, NULL));
        SL_TRY(run_gemms(&run, &result));
        result.fma_peak = fmax(result.fma_peak, sl_kernel_measure_peak(run.device));
    }
    sl_view loss = sl_runner_output(run.runner, 0, "loss");
    float value = 0;
    SL_TRY(sl_stream_copy(sl_runner_stream(run.runner), SL_COPY_DEVICE_TO_HOST, &value, loss.data, sizeof value));
    SL_TRY(sl_stream_synchronize(sl_runner_stream(run.runner)));
    result.loss = value;
    if (options->nodes)
        SL_TRY(measure_nodes(&run, 2 + options->repeats, &result));
    *out = result;
    result.nodes = NULL;
    result.node_count = 0;
done:
    step_result_clear(&result);
    bench_run_close(&run);
    return status;
}

void step_result_clear(step_result *result)
{
    for (int i = 0; i < result->node_count; i++)
        sl_free((void *)result->nodes[i].name);
    sl_free(result->nodes);
    result->nodes = NULL;
    result->node_count = 0;
}
