/* The measurement of `sluice bench step`: steps and products in turn, memory as the operating system sees it. */
#include "step_measure.h"

#include "bench.h"

#include "base/alloc.h"
#include "kernel/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* What a measurement holds. */
typedef struct bench_run {
    sl_group *group;
    sl_device *device;
    sl_graph *graph;
    sl_partition *partition;
    sl_schedule *schedule;
    sl_stage *stage;
    sl_stage_program *program; /* the stage's once more: what it consists of */
    sl_runtime *runtime;
    sl_arg args[2]; /* tokens and targets */
    double loss;    /* of the last step */
    sl_optimizer *optimizer;
    sl_optim_param *params;
    int param_count;
    step_gemms *gemms;
} bench_run;

static const sl_optim_options adamw = {
    .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .master_weights = true
};
static const sl_dtype grad_dtype = SL_F32;

sl_program_options step_program_options(const step_options *options)
{
    return (sl_program_options){ .grad_dtype = &grad_dtype,
                                 .pack_weights = options->microbatches > 1 && !options->unpacked,
                                 .beside_flops = strcmp(options->device, "cpu") != 0 ? SL_GPU_BESIDE_FLOPS : 0,
                                 .fusion = options->unfused ? SL_FUSION_NONE : SL_FUSION_AUTO };
}

static void bench_run_close(bench_run *run)
{
    step_gemms_destroy(run->gemms);
    sl_optimizer_destroy(run->optimizer);
    sl_runtime_destroy(run->runtime);
    sl_stage_program_destroy(run->program);
    sl_stage_destroy(run->stage);
    sl_schedule_destroy(run->schedule);
    sl_partition_destroy(run->partition);
    sl_graph_destroy(run->graph);
    sl_free(run->params);
    for (int i = 0; i < 2; i++)
        sl_device_free_host(run->device, run->args[i].view.data);
    sl_device_close(run->device);
    sl_group_close(run->group);
}

/* Bytes that the process has in memory now, and at most since the mark was reset; 0 if the system does not say. */
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
    sl_model model = sl_model_default(options->family);
    if (options->family == &sl_model_llama) {
        sl_decoder_config *config = &model.decoder;
        config->vocab_size = options->vocab;
        config->max_position_embeddings = options->seq;
        config->hidden_size = options->embd;
        config->intermediate_size = options->inner;
        config->num_hidden_layers = options->layers;
        config->num_attention_heads = options->heads;
        config->num_key_value_heads = options->kv_heads;
        config->bos_token_id = -1;
        config->eos_token_id.count = 0;
    } else {
        sl_gpt2_config *config = &model.gpt2;
        config->vocab_size = options->vocab;
        config->n_positions = options->seq;
        config->n_embd = options->embd;
        config->n_layer = options->layers;
        config->n_head = options->heads;
        config->embd_pdrop = config->resid_pdrop = config->attn_pdrop = 0;
        config->bos_token_id = -1;
        config->eos_token_id.count = 0;
    }
    return model;
}

/* One stage on one rank: the runtime with all of the model and no messages. */
static sl_status open_runtime(const step_options *bench, bench_run *run)
{
    sl_status status = SL_OK;
    const sl_partition *const partition = run->partition;
    SL_TRY(sl_group_open(&(sl_group_options){ .transport = "self" }, &run->group));
    const sl_program_options program = step_program_options(bench);
    SL_TRY(sl_schedule_generate(
        &(sl_generate_options){ .name = "1F1B", .ranks = 1, .microbatches = bench->microbatches }, &run->schedule));
    SL_TRY(sl_stage_build(&partition, 1, 0, run->device, &program, &run->stage));
    SL_TRY(sl_stage_program_create(partition, 0, run->device, &program, &run->program));
    sl_runtime_options options = {
        .group = run->group, .device = run->device, .schedule = run->schedule, .stages = &run->stage, .stage_count = 1
    };
    SL_TRY(sl_runtime_create(&options, &run->runtime));
done:
    return status;
}

/* Initial values of a parameter, made in host memory. */
static sl_status init_param(const bench_run *run, const sl_param *param)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(run->runtime);
    float *values = NULL;
    const sl_param_info info = { .name = param->name, .dtype = SL_F32, .shape = param->shape, .init = param->init };
    int64_t count = sl_meta_count(&param->data.meta);
    SL_TRY(sl_device_alloc_host(run->device, (size_t)count * sizeof *values, (void **)&values));
    sl_param_init(&info, 1, 0, count, values);
    SL_TRY(sl_f32_convert(values, count, param->data.meta.dtype, values));
    SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, param->data.data, values, sl_meta_bytes(&param->data.meta)));
    SL_TRY(sl_stream_synchronize(stream));
done:
    sl_device_free_host(run->device, values);
    return status;
}

static sl_status init_params(bench_run *run)
{
    sl_status status = SL_OK;
    const sl_param *params = sl_runtime_params(run->runtime, &run->param_count);
    SL_TRY(SL_NEW_ARRAY(run->params, run->param_count));
    for (int i = 0; i < run->param_count; i++) {
        SL_TRY(init_param(run, &params[i]));
        run->params[i] = (sl_optim_param){
            .name = params[i].name, .data = params[i].data, .grad = params[i].grad, .decay = params[i].shape.rank >= 2
        };
    }
done:
    return status;
}

/* Tokens without a pattern; the speed does not depend on them. */
static sl_status create_tokens(const bench_run *run, const step_options *options, const char *name, sl_arg *out)
{
    sl_status status = SL_OK;
    sl_meta meta = sl_meta_make(SL_I32, 2, (int64_t[]){ options->batch, options->seq });
    void *data = NULL;
    uint64_t state = 12345;
    SL_TRY(sl_device_alloc_host(run->device, sl_meta_bytes(&meta), &data));
    for (int64_t i = 0; i < sl_meta_count(&meta); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ((int32_t *)data)[i] = (int32_t)((state >> 33) % (uint64_t)options->vocab);
    }
    *out = (sl_arg){ .name = name, .view = { data, meta } };
done:
    return status;
}

static sl_status open_run(const step_options *options, bench_run *run, step_result *result)
{
    sl_status status = SL_OK;
    sl_model model = model_of(options);
    SL_TRY(sl_model_check(&model));
    const sl_model_shape shape = { .batch = options->batch / options->microbatches,
                                   .seq = options->seq,
                                   .dtype = options->dtype,
                                   .joined = sl_device_get_kind(run->device) == SL_DEVICE_CUDA && !options->unfused };
    SL_TRY(sl_model_build(&model, SL_MODE_TRAIN, &shape, &run->graph));
    SL_TRY(sl_graph_partition(run->graph, NULL, &run->partition));
    SL_TRY(open_runtime(options, run));
    SL_TRY(init_params(run));
    SL_TRY(create_tokens(run, options, "tokens", &run->args[0]));
    SL_TRY(create_tokens(run, options, "targets", &run->args[1]));
    SL_TRY(sl_optimizer_create(&adamw, run->device, run->params, run->param_count, &run->optimizer));

    result->flops = options->microbatches * (sl_stage_phase_cost(run->stage, SL_PHASE_F).flops +
                                             sl_stage_phase_cost(run->stage, SL_PHASE_B).flops);
    const sl_device_memory memory = sl_device_get_memory(run->device);
    int launches = sl_stage_phase_launches(run->stage, SL_PHASE_F) + sl_stage_phase_launches(run->stage, SL_PHASE_B);
    result->predicted_memory = (int64_t)(sl_runtime_get_memory(run->runtime).device + memory.context) +
                               (int64_t)memory.launch * options->microbatches * launches;
    for (int i = 0; i < run->param_count; i++) {
        int64_t count = sl_meta_count(&run->params[i].data.meta);
        result->parameters += count;
        result->predicted_memory += (int64_t)sl_optim_state_bytes(&adamw, options->dtype, count);
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

static sl_status update(void *user, sl_stream *stream)
{
    const bench_run *run = user;
    return sl_optimizer_update(run->optimizer, stream, 1);
}

/* Ticks of all processors since the machine started. Zeros if the system does not say. */
typedef struct machine_ticks {
    double stolen, all;
} machine_ticks;

static machine_ticks read_ticks(void)
{
    enum { STOLEN = 7, FIELDS }; /* of the line "cpu" in /proc/stat; those behind are parts of the others */
    machine_ticks ticks = { 0 };
    double fields[FIELDS] = { 0 };
    FILE *file = fopen("/proc/stat", "r");
    if (!file)
        return ticks;
    if (fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &fields[0], &fields[1], &fields[2], &fields[3], &fields[4],
               &fields[5], &fields[6], &fields[STOLEN]) == FIELDS) {
        ticks.stolen = fields[STOLEN];
        for (int i = 0; i < FIELDS; i++)
            ticks.all += fields[i];
    }
    fclose(file);
    return ticks;
}

static int64_t interruptions(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}

/* Peaks between the steps: those of short bursts, the best of which count, and those over as long as a step takes. */
static void measure_peaks(const bench_run *run, const step_options *options, int rounds, step_result *result)
{
    sl_device *device = run->device;
    double seconds = fmin(result->step_s, 1);
    result->product_peak = fmax(result->product_peak, sl_kernel_measure_product_peak(device, options->dtype));
    result->fma_peak = fmax(result->fma_peak, sl_kernel_measure_peak(device));
    if (strcmp(options->device, "cpu") != 0)
        return;
    result->burst_clock = fmax(result->burst_clock, sl_cpu_measure_clock(device));
    double fma = sl_cpu_measure_sustained(device, seconds), products = fma;
    if (sl_cpu_products_beat_fma(options->dtype))
        products = sl_cpu_measure_product_sustained(device, options->dtype, seconds);
    result->fma_sustained += fma / rounds;
    result->product_sustained += products / rounds;
}

/* *seconds: of this step. */
static sl_status run_step(bench_run *run, int64_t number, step_result *best, double *seconds)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(run->runtime);
    sl_step step = { .args = run->args, .arg_count = 2, .number = number, .seed = 1, .update = true };
    sl_step_result result;
    double start = sl_now(), cpu = cpu_now();
    SL_TRY(sl_optimizer_begin_update(run->optimizer, stream, number, 1e-4));
    SL_TRY(sl_runtime_step(run->runtime, &step, &result));
    double end = sl_now();
    run->loss = result.loss;
    best->step_cpu_s = fmin(best->step_cpu_s, cpu_now() - cpu);
    best->step_s = fmin(best->step_s, end - start);
    *seconds = end - start;
done:
    return status;
}

static int by_length(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x > y ? 1 : x < y ? -1 : 0;
}

/* The end of the step once more, by itself; it changes the parameters again, so it comes last. */
static sl_status measure_update(bench_run *run, step_result *best)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(run->runtime);
    best->optimizer_s = INFINITY;
    for (int i = 0; i < 3; i++) {
        double start = sl_now();
        SL_TRY(update(run, stream));
        SL_TRY(sl_stream_synchronize(stream));
        best->optimizer_s = fmin(best->optimizer_s, sl_now() - start);
    }
    best->forward_backward_s = best->step_s - best->optimizer_s;
done:
    return status;
}

static sl_status run_gemms(bench_run *run, step_result *best)
{
    double start = sl_now(), cpu = cpu_now();
    sl_status status = step_gemms_run(run->gemms, sl_runtime_stream(run->runtime));
    best->gemm_s = fmin(best->gemm_s, sl_now() - start);
    best->gemm_cpu_s = fmin(best->gemm_cpu_s, cpu_now() - cpu);
    return status;
}

static sl_status measure_limits(bench_run *run, const step_options *options, step_result *result)
{
    sl_status status = run_gemms(run, result);
    if (sl_device_is_host(run->device))
        result->product_clock += sl_cpu_measure_clock(run->device) / options->repeats;
    measure_peaks(run, options, options->repeats, result);
    return status;
}

/* A host's limits are measured between the steps, since its speed may change by the second. The clock of a GPU follows its
 * power: there steps follow each other, as they do in training. */
static sl_status measure_steps(bench_run *run, const step_options *options, int64_t *number, step_result *result)
{
    sl_status status = SL_OK;
    machine_ticks spent = { 0 };
    double *steps = NULL;
    bool alternates = sl_device_is_host(run->device);
    SL_TRY(SL_NEW_ARRAY(steps, options->repeats));
    for (int i = 0; i < options->repeats; i++) {
        machine_ticks start = read_ticks();
        int64_t switches = interruptions();
        SL_TRY(run_step(run, ++*number, result, &steps[i]));
        machine_ticks end = read_ticks();
        result->interruptions += interruptions() - switches;
        spent.stolen += end.stolen - start.stolen;
        spent.all += end.all - start.all;
        if (alternates)
            SL_TRY(measure_limits(run, options, result));
    }
    for (int i = 0; !alternates && i < options->repeats; i++)
        SL_TRY(measure_limits(run, options, result));
    qsort(steps, (size_t)options->repeats, sizeof *steps, by_length);
    result->median_s = (steps[(options->repeats - 1) / 2] + steps[options->repeats / 2]) / 2;
    result->stolen = spent.all > 0 ? spent.stolen / spent.all : 0;
done:
    sl_free(steps);
    return status;
}

sl_status step_measure(const step_options *options, step_result *out)
{
    sl_status status = SL_OK;
    bench_run run = { 0 };
    step_result result = { .step_s = INFINITY, .gemm_s = INFINITY, .step_cpu_s = INFINITY, .gemm_cpu_s = INFINITY };
    sl_device_options device = { .threads = options->threads };

    SL_TRY(sl_device_open(options->device, &device, &run.device));
    sl_kernel_describe(run.device, result.kernels, sizeof result.kernels);
    result.fma_peak = sl_kernel_measure_peak(run.device);
    result.product_peak = sl_kernel_measure_product_peak(run.device, options->dtype);
    reset_peak();
    int64_t before = resident("VmRSS");
    SL_TRY(open_run(options, &run, &result));
    sl_runtime_set_update(run.runtime, update, &run);
    int64_t number = 0;
    SL_TRY(run_step(&run, ++number, &(step_result){ 0 }, &(double){ 0 }));
    if (!sl_device_is_host(run.device)) /* a GPU makes its graphs in the second step */
        SL_TRY(run_step(&run, ++number, &(step_result){ 0 }, &(double){ 0 }));
    result.peak_memory =
        sl_device_is_host(run.device) ? resident("VmHWM") - before : (int64_t)sl_device_get_memory(run.device).taken;
    SL_TRY(step_gemms_create(options, run.device, run.program, run.runtime, &run.gemms));
    result.gemm_flops = step_gemms_flops(run.gemms);
    SL_TRY(step_gemms_run(run.gemms, sl_runtime_stream(run.runtime)));
    SL_TRY(measure_steps(&run, options, &number, &result));
    result.loss = run.loss;
    SL_TRY(measure_update(&run, &result));
    if (options->profile) {
        step_result warm = { .step_s = INFINITY, .step_cpu_s = INFINITY };
        SL_TRY(
            step_profile(options, run.graph, run.program, run.device, run.runtime, run.optimizer, run.args, &result));
        for (int i = 0; i < 3; i++)
            SL_TRY(run_step(&run, ++number, &warm, &(double){ 0 }));
        step_profile_scale(warm.step_s, &result);
    }
    *out = result;
    result = (step_result){ 0 };
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
    sl_free(result->ops);
    *result = (step_result){ 0 };
}
