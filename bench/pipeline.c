/* sluice bench pipeline: a GPT trained under every schedule, beside one process and beside the simulator. */
#include "bench.h"
#include "pipeline_measure.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/ranks.h"

#include "base/json.h"

#include <stdio.h>

enum { MAX_CASES = 16 };

static const cli_usage usage = {
    .command = "bench pipeline",
    .synopsis = "[OPTIONS]",
    .description =
        "Trains a GPT (forward and backward of all microbatches; no optimizer) under every schedule on local ranks of "
        "one thread each, and in one process with as many threads as there are ranks. Prints tokens per second beside "
        "the simulator's prediction from the mean time of every stage's phases in the same run; bubble is the share of "
        "the ranks' time in which no phase runs. On a GPU the one process has one stage, and the steps whose tokens "
        "are "
        "counted run without the trace that the costs come from. With --ranks 1 and --stages-per-rank 4 it shows what "
        "several stages on one GPU cost.",
    .examples = "sluice bench pipeline --format json\n"
                "sluice bench pipeline --schedule 1F1B --layers 4 --steps 5\n"
                "sluice bench pipeline --device cuda --dtype bf16 --ranks 1 --stages-per-rank 4 --batch 64 --seq 1024 "
                "--embd 768 --layers 12 --heads 12 --vocab 50304",
};

/* All schedules that train, or the one asked for. */
static int list_cases(const pipeline_options *options, const char *only, pipeline_case *cases)
{
    int count = 0;
    for (int i = 0; sl_generator_name(i) && count < MAX_CASES; i++) {
        const char *name = only ? only : sl_generator_name(i);
        sl_generate_options generate = {
            .name = name, .ranks = 1, .microbatches = 1, .stages_per_rank = options->stages_per_rank
        };
        sl_schedule *schedule = NULL;
        bool trains = sl_schedule_generate(&generate, &schedule) == SL_OK && sl_schedule_has_backward(schedule);
        sl_schedule_destroy(schedule);
        if (trains) {
            cases[count] =
                (pipeline_case){ .ranks = options->ranks, .stages_per_rank = options->stages_per_rank, .threads = 1 };
            snprintf(cases[count].schedule, sizeof cases[count].schedule, "%s", name);
            count++;
        }
        if (only)
            break;
    }
    return count;
}

static void print_json(const pipeline_case *single, const pipeline_case *cases, int count)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_double(&json, "single_tokens_per_s", single->tokens_per_s);
    sl_json_put_int(&json, "single_threads", single->threads);
    sl_json_key(&json, "cases");
    sl_json_begin(&json, '[');
    for (int i = 0; i < count; i++) {
        sl_json_newline(&json);
        sl_json_begin(&json, '{');
        sl_json_put_string(&json, "schedule", cases[i].schedule);
        sl_json_put_int(&json, "ranks", cases[i].ranks);
        sl_json_put_int(&json, "stages", cases[i].stages);
        sl_json_put_double(&json, "tokens_per_s", cases[i].tokens_per_s);
        sl_json_put_double(&json, "over_single", cases[i].tokens_per_s / single->tokens_per_s);
        sl_json_put_double(&json, "predicted_tokens_per_s", cases[i].predicted_tokens_per_s);
        sl_json_put_double(&json, "bubble", cases[i].bubble);
        sl_json_put_double(&json, "predicted_bubble", cases[i].predicted_bubble);
        sl_json_end(&json, '}');
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const pipeline_case *single, const pipeline_case *cases, int count)
{
    printf("%-24s %5s %10s %10s %8s %10s\n", "schedule", "ranks", "tokens/s", "predicted", "bubble", "predicted");
    printf("%-24s %5d %10.0f\n", single->threads > 1 ? "one process, threads" : "one process", 1, single->tokens_per_s);
    for (int i = 0; i < count; i++)
        printf("%-24s %5d %10.0f %10.0f %6.1f %% %8.1f %%\n", cases[i].schedule, cases[i].ranks, cases[i].tokens_per_s,
               cases[i].predicted_tokens_per_s, 100 * cases[i].bubble, 100 * cases[i].predicted_bubble);
}

int bench_pipeline(int argc, char **argv)
{
    pipeline_options run = { .batch = 8,
                             .seq = 256,
                             .embd = 512,
                             .layers = 8,
                             .heads = 8,
                             .vocab = 8192,
                             .ranks = 2,
                             .microbatches = 8,
                             .steps = 3,
                             .device = "cpu" };
    const char *only = NULL;
    int format = 0, dtype = 0, code;
    const cli_option options[] = {
        DEVICE_OPTION_ROW(run.device),
        DTYPE_OPTION_ROW(dtype),
        { .name = "schedule", .value = "NAME", .text = &only, .help = "This schedule alone." },
        { .name = "ranks", .value = "P", .integer = &run.ranks, .min = 1, .max = 64, .help = "Number of ranks; 2." },
        RANKS_AS_OPTION_ROW(run.ranks_as),
        { .name = "stages-per-rank",
          .value = "S",
          .integer = &run.stages_per_rank,
          .min = 1,
          .max = 16,
          .help = "Stages of each rank; what the schedule has by default." },
        { .name = "microbatches",
          .value = "M",
          .integer = &run.microbatches,
          .min = 1,
          .max = 1024,
          .help = "Number of microbatches; 8. It must divide the batch." },
        { .name = "steps", .value = "N", .integer = &run.steps, .min = 1, .max = 1000, .help = "Timed steps; 3." },
        { .name = "batch", .value = "N", .wide = &run.batch, .min = 1, .max = 65536, .help = "Batch size; 8." },
        { .name = "seq", .value = "N", .wide = &run.seq, .min = 1, .max = 65536, .help = "Sequence length; 256." },
        { .name = "embd", .value = "N", .wide = &run.embd, .min = 1, .max = 65536, .help = "Width; 512." },
        { .name = "layers", .value = "N", .wide = &run.layers, .min = 1, .max = 1024, .help = "Layers; 8." },
        { .name = "heads", .value = "N", .wide = &run.heads, .min = 1, .max = 1024, .help = "Heads; 8." },
        { .name = "vocab", .value = "N", .wide = &run.vocab, .min = 2, .max = 1 << 20, .help = "Vocabulary; 8192." },
        { .name = "untied",
          .flag = &run.untied,
          .help = "A head of its own, so that no gradient is summed between the first rank and the last." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    if (run.batch % run.microbatches)
        return usage_error("bench pipeline", "%d microbatches do not divide a batch of %lld", run.microbatches,
                           (long long)run.batch);
    run.dtype = (sl_dtype)dtype;
    pipeline_case cases[MAX_CASES], single = { .schedule = "GPipe", .ranks = 1, .threads = run.ranks };
    int count = list_cases(&run, only, cases);
    if (count == 0)
        return usage_error("bench pipeline", "there is no schedule '%.100s' that trains with that many stages",
                           only ? only : "");
    sl_status status = pipeline_measure(&run, &single);
    for (int i = 0; i < count && status == SL_OK; i++)
        status = pipeline_measure(&run, &cases[i]);
    if (status != SL_OK)
        return failure("bench pipeline");
    (format == FORMAT_JSON ? print_json : print_text)(&single, cases, count);
    return EXIT_OK;
}
