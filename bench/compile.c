/* sluice bench compile: how long it takes to compile a whole pipeline, all ranks, before anything runs. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include "base/alloc.h"
#include "base/json.h"
#include "pipeline/wiring.h"

#include <sluice/nn.h>
#include <sluice/runtime.h>

#include <inttypes.h>

static const cli_usage usage = {
    .command = "bench compile",
    .synopsis = "[OPTIONS]",
    .description =
        "Cuts a GPT-2 into stages, derives their programs, and compiles the pipeline of all ranks: schedule, "
        "channels, programs and memory. Then once more with half the microbatches, to show how time grows. "
        "By default 80 layers in 128 stages on 64 ranks with 512 microbatches.",
    .examples = "sluice bench compile --format json\n"
                "sluice bench compile --ranks 64 --stages-per-rank 64 --layers 1024 --microbatches 64",
};

typedef struct compile_options {
    int ranks, stages_per_rank, microbatches, layers;
} compile_options;

typedef struct compile_result {
    int64_t actions, half_actions;
    double build_s;           /* graph, cut and stages' programs */
    double compile_s, half_s; /* the pure compile, and with half the microbatches */
    int64_t messages;         /* bytes, of all ranks */
} compile_result;

static sl_status cut(const compile_options *options, sl_partition **out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    sl_model model = sl_model_default(&sl_model_gpt2);
    const sl_model_shape shape = { .batch = 1, .seq = 16 };
    model.gpt2.vocab_size = 256;
    model.gpt2.n_positions = shape.seq;
    model.gpt2.n_embd = 64;
    model.gpt2.n_layer = options->layers;
    model.gpt2.n_head = 4;
    const sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = options->ranks * options->stages_per_rank };
    SL_TRY(sl_model_build(&model, SL_MODE_TRAIN, &shape, &graph));
    SL_TRY(sl_graph_partition(graph, &spec, out));
done:
    sl_graph_destroy(graph);
    return status;
}

static sl_status describe(const sl_partition *partition, sl_arena *arena, int count, sl_stage_desc *descs)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_stage *stage = NULL;
    SL_TRY(sl_device_open("cpu", NULL, &device));
    for (int s = 0; s < count; s++) {
        SL_TRY(sl_stage_build(&partition, 1, s, device, NULL, &stage));
        sl_stage_describe(stage, &descs[s]);
        SL_TRY(sl_stage_desc_copy(arena, &descs[s]));
        sl_stage_destroy(stage);
        stage = NULL;
    }
done:
    sl_stage_destroy(stage);
    sl_device_close(device);
    return status;
}

static sl_status compile(const compile_options *options, const sl_stage_desc *descs, int microbatches, double *seconds,
                         int64_t *actions, int64_t *messages)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    sl_pipeline *pipeline = NULL;
    const sl_generate_options generate = { .name = options->stages_per_rank == 1 ? "1F1B" : "Interleaved1F1B",
                                           .ranks = options->ranks,
                                           .microbatches = microbatches,
                                           .stages_per_rank = options->stages_per_rank };
    double start = sl_now();
    SL_TRY(sl_schedule_generate(&generate, &schedule));
    const sl_pipeline_options pipe = { .schedule = schedule,
                                       .stages = descs,
                                       .stage_count = options->ranks * options->stages_per_rank };
    SL_TRY(sl_pipeline_compile(&pipe, &pipeline));
    *seconds = sl_now() - start;
    *actions = sl_schedule_size(sl_pipeline_schedule(pipeline));
    *messages = 0;
    for (int r = 0; r < options->ranks; r++)
        *messages += (int64_t)sl_pipeline_get_memory(pipeline, r).messages;
done:
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
    return status;
}

static sl_status measure(const compile_options *options, compile_result *out)
{
    sl_status status = SL_OK;
    sl_partition *partition = NULL;
    sl_arena *arena = NULL;
    sl_stage_desc *descs = NULL;
    int stages = options->ranks * options->stages_per_rank;
    int64_t ignored;
    double start = sl_now();
    SL_TRY(sl_arena_create(&arena));
    SL_TRY(SL_ARENA_ARRAY(arena, descs, stages));
    SL_TRY(cut(options, &partition));
    SL_TRY(describe(partition, arena, stages, descs));
    out->build_s = sl_now() - start;
    SL_TRY(compile(options, descs, options->microbatches / 2, &out->half_s, &out->half_actions, &ignored));
    SL_TRY(compile(options, descs, options->microbatches, &out->compile_s, &out->actions, &out->messages));
done:
    sl_partition_destroy(partition);
    sl_arena_destroy(arena);
    return status;
}

static void print_json(const compile_options *options, const compile_result *result)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "ranks", options->ranks);
    sl_json_put_int(&json, "stages", (int64_t)options->ranks * options->stages_per_rank);
    sl_json_put_int(&json, "microbatches", options->microbatches);
    sl_json_put_int(&json, "layers", options->layers);
    sl_json_put_int(&json, "actions", result->actions);
    sl_json_put_double(&json, "build_s", result->build_s);
    sl_json_put_double(&json, "compile_s", result->compile_s);
    sl_json_put_double(&json, "half_s", result->half_s);
    sl_json_put_double(&json, "seconds_ratio", result->compile_s / result->half_s);
    sl_json_put_double(&json, "actions_ratio", (double)result->actions / (double)result->half_actions);
    sl_json_put_int(&json, "message_bytes", result->messages);
    sl_json_put_int(&json, "peak_rss", bench_peak_rss());
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const compile_options *options, const compile_result *result)
{
    printf("pipeline  %d ranks, %d stages, %d microbatches, %d layers: %" PRId64 " actions\n", options->ranks,
           options->ranks * options->stages_per_rank, options->microbatches, options->layers, result->actions);
    printf("build     %.3f s (graph, cut, programs of all stages)\n", result->build_s);
    printf("compile   %.3f s (schedule, channels, programs and memory of all ranks)\n", result->compile_s);
    printf("half      %.3f s with half the microbatches: %.2f times the actions take %.2f times as long\n",
           result->half_s, (double)result->actions / (double)result->half_actions, result->compile_s / result->half_s);
    printf("peak rss  %.1f MiB\n", (double)bench_peak_rss() / (1 << 20));
}

int bench_compile(int argc, char **argv)
{
    compile_options given = { .ranks = 64, .stages_per_rank = 2, .microbatches = 512, .layers = 80 };
    compile_result result;
    int format = 0, code;
    const cli_option options[] = {
        { .name = "ranks", .value = "N", .integer = &given.ranks, .min = 1, .max = 4096, .help = "Ranks (64)." },
        { .name = "stages-per-rank",
          .value = "N",
          .integer = &given.stages_per_rank,
          .min = 1,
          .max = 4096,
          .help = "Stages on each rank (2)." },
        { .name = "microbatches",
          .value = "N",
          .integer = &given.microbatches,
          .min = 2,
          .max = 65536,
          .help = "Microbatches (512)." },
        { .name = "layers", .value = "N", .integer = &given.layers, .min = 1, .max = 4096, .help = "Layers (80)." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    switch (measure(&given, &result)) {
    case SL_OK:
        break;
    case SL_ERR_ARGUMENT: /* the model cannot be cut so, or the generator refuses */
        return usage_error(usage.command, "%s", sl_error_message());
    default:
        return failure(usage.command);
    }
    (format == FORMAT_JSON ? print_json : print_text)(&given, &result);
    return EXIT_OK;
}
