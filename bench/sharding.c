/* sluice bench sharding: how much of what replicas tell each other is hidden behind what they compute. */
#include "bench.h"
#include "sharding_measure.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/ranks.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const cli_usage usage = {
    .command = "bench sharding",
    .synopsis = "[OPTIONS]",
    .description =
        "Trains a GPT (forward and backward of all microbatches; no update) on replicas of a pipeline, local ranks of "
        "one thread each, or on GPUs (--device), for each value of parallel.shard. Prints the time of a step of the "
        "pipelines alone, of a "
        "step "
        "with all its collectives, and of these collectives alone; how long a rank waits for them in a step (exposed); "
        "the share of their time that is hidden behind computation (hidden), and how much of it the simulator can hide "
        "(hideable); the time of a step over that of none (over_none). It says something if there are more cores than "
        "ranks.",
    .examples = "sluice bench sharding --format json\n"
                "sluice bench sharding --ranks 1 --replicas 2 --schedule LoopedBFS --stages-per-rank 8\n"
                "sluice bench sharding --device cuda --ranks-as threads --dtype bf16 --embd 1024 --heads 16 --seq 1024",
};

static const char *const modes[] = { "none", "optimizer", "full" };
enum { MODES = sizeof modes / sizeof *modes };

/* The share of the collectives' time in which ranks do not wait for them. */
static double hidden_share(const sharding_case *each)
{
    double hidden = each->collective_s > 0 ? 1 - each->exposed_s / each->collective_s : 1;
    return hidden < 0 ? 0 : hidden;
}

static void print_json(const sharding_options *options, const sharding_case *cases)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_int(&json, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    sl_json_put_int(&json, "ranks", (int64_t)options->model.ranks * options->replicas);
    sl_json_put_int(&json, "replicas", options->replicas);
    sl_json_put_int(&json, "shard_group", options->shard_group ? options->shard_group : options->replicas);
    sl_json_put_string(&json, "schedule", options->schedule);
    sl_json_put_int(&json, "stages_per_rank", options->stages_per_rank);
    sl_json_put_bool(&json, "helper", cases[0].helper);
    sl_json_put_string(&json, "device", options->model.device);
    sl_json_put_string(&json, "collectives", cases[0].collectives);
    sl_json_key(&json, "cases");
    sl_json_begin(&json, '[');
    for (int i = 0; i < MODES; i++) {
        sl_json_newline(&json);
        sl_json_begin(&json, '{');
        sl_json_put_string(&json, "shard", modes[i]);
        sl_json_put_double(&json, "alone_s", cases[i].alone_s);
        sl_json_put_double(&json, "step_s", cases[i].step_s);
        sl_json_put_double(&json, "collective_s", cases[i].collective_s);
        sl_json_put_double(&json, "exposed_s", cases[i].exposed_s);
        sl_json_put_int(&json, "collectives", cases[i].count);
        sl_json_put_int(&json, "bytes", cases[i].bytes);
        sl_json_put_double(&json, "hidden", hidden_share(&cases[i]));
        sl_json_put_double(&json, "hideable", cases[i].hideable);
        sl_json_put_double(&json, "over_none", cases[i].step_s / cases[SL_SHARD_NONE].step_s);
        sl_json_end(&json, '}');
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const sharding_options *options, const sharding_case *cases)
{
    printf("%d ranks: %d replicas of %s, %d stages a rank; collectives %s\n", options->model.ranks * options->replicas,
           options->replicas, options->schedule, options->stages_per_rank,
           cases[0].helper                                    ? "have a thread"
           : strcmp(cases[0].collectives, "host memory") == 0 ? "go on between actions"
                                                              : cases[0].collectives);
    printf("%-10s %10s %10s %18s %10s %10s %9s %9s %10s\n", "shard", "alone", "step", "collectives", "MB", "exposed",
           "hidden", "hideable", "over none");
    for (int i = 0; i < MODES; i++)
        printf("%-10s %7.1f ms %7.1f ms %5" PRId64 " in %6.1f ms %10.1f %7.1f ms %7.1f %% %7.1f %% %10.3f\n", modes[i],
               1e3 * cases[i].alone_s, 1e3 * cases[i].step_s, cases[i].count, 1e3 * cases[i].collective_s,
               1e-6 * (double)cases[i].bytes, 1e3 * cases[i].exposed_s, 100 * hidden_share(&cases[i]),
               100 * cases[i].hideable, cases[i].step_s / cases[SL_SHARD_NONE].step_s);
}

int bench_sharding(int argc, char **argv)
{
    /* Many stages a rank: only the weights of the first and the gradients of the last have nothing to hide behind. */
    sharding_options run = { .model = { .batch = 4,
                                        .seq = 32,
                                        .embd = 256,
                                        .layers = 32,
                                        .heads = 4,
                                        .vocab = 512,
                                        .ranks = 2,
                                        .microbatches = 4,
                                        .steps = 7,
                                        .device = "cpu" },
                             .schedule = "Interleaved1F1B",
                             .replicas = 2,
                             .stages_per_rank = 16 };
    int format = 0, dtype = SL_F32, code;
    const cli_option options[] = {
        DEVICE_OPTION_ROW(run.model.device),
        DTYPE_OPTION_ROW(dtype),
        RANKS_AS_OPTION_ROW(run.model.ranks_as),
        { .name = "schedule", .value = "NAME", .text = &run.schedule, .help = "Schedule; Interleaved1F1B." },
        { .name = "ranks",
          .value = "P",
          .integer = &run.model.ranks,
          .min = 1,
          .max = 64,
          .help = "Ranks of each pipeline; 2." },
        { .name = "replicas", .value = "N", .integer = &run.replicas, .min = 2, .max = 64, .help = "Replicas; 2." },
        { .name = "shard-group",
          .value = "N",
          .integer = &run.shard_group,
          .min = 0,
          .max = 64,
          .help = "Neighboring replicas that share, as parallel.shard_group; 0: all." },
        { .name = "stages-per-rank",
          .value = "N",
          .integer = &run.stages_per_rank,
          .min = 1,
          .max = 64,
          .help = "Stages per rank; 16." },
        { .name = "unsharded",
          .value = "N",
          .integer = &run.unsharded,
          .min = 0,
          .max = 64,
          .help = "Stages gathered at once on a rank, with full; 0: all." },
        { .name = "microbatches",
          .value = "M",
          .integer = &run.model.microbatches,
          .min = 1,
          .max = 1024,
          .help = "Number of microbatches; 4. It must divide the batch." },
        { .name = "steps",
          .value = "N",
          .integer = &run.model.steps,
          .min = 1,
          .max = 1000,
          .help = "Timed steps; 7." },
        { .name = "batch",
          .value = "N",
          .wide = &run.model.batch,
          .min = 1,
          .max = 65536,
          .help = "Rows a replica; 4." },
        { .name = "seq", .value = "N", .wide = &run.model.seq, .min = 1, .max = 65536, .help = "Sequence length; 32." },
        { .name = "embd", .value = "N", .wide = &run.model.embd, .min = 1, .max = 65536, .help = "Width; 256." },
        { .name = "layers", .value = "N", .wide = &run.model.layers, .min = 1, .max = 1024, .help = "Layers; 32." },
        { .name = "heads", .value = "N", .wide = &run.model.heads, .min = 1, .max = 1024, .help = "Heads; 4." },
        { .name = "vocab",
          .value = "N",
          .wide = &run.model.vocab,
          .min = 2,
          .max = 1 << 20,
          .help = "Vocabulary; 512." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    sl_device_kind kind;
    if (sl_device_find_kind(run.model.device, &kind) != SL_OK)
        return usage_error("bench sharding", "--device: %s", sl_error_message());
    if (run.model.batch % run.model.microbatches)
        return usage_error("bench sharding", "%d microbatches do not divide a batch of %lld", run.model.microbatches,
                           (long long)run.model.batch);
    run.model.dtype = (sl_dtype)dtype;
    sharding_case cases[MODES];
    if (run.unsharded == 0)
        run.unsharded = run.stages_per_rank;
    sl_status status = SL_OK;
    for (int i = 0; i < MODES && status == SL_OK; i++) {
        cases[i] = (sharding_case){ .shard = (sl_shard_mode)i };
        status = sharding_measure(&run, &cases[i]);
    }
    if (status != SL_OK)
        return failure("bench sharding");
    (format == FORMAT_JSON ? print_json : print_text)(&run, cases);
    return EXIT_OK;
}
