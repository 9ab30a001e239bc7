/* sluice bench pipeline: a GPT trained under every schedule, beside one process and beside the simulator. */
#include "bench.h"
#include "pipeline_measure.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/ranks.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CASES = 64 };

typedef struct case_list {
    pipeline_case cases[MAX_CASES];
    int count;
} case_list;

static const cli_usage usage = {
    .command = "bench pipeline",
    .synopsis = "[OPTIONS]",
    .description =
        "Trains a GPT (forward and backward of all microbatches, AdamW) under every schedule on local ranks, and in "
        "one "
        "process. Prints tokens per second, their ratio to the one process at the same microbatch size, and the "
        "simulator's prediction from measured times of every stage's phases; bubble is the share of the devices' time "
        "in "
        "which nothing runs. On processors a rank has one thread and the one process as many as there are ranks. On a "
        "GPU "
        "the model is GPT-2 124M in bf16 with 8 microbatches of 8 sequences of 1024 tokens, if the options do not say "
        "otherwise; ranks that share it slow each other down or take turns, which the prediction counts. With --ranks "
        "1 and "
        "--stages-per-rank 4 it shows what several stages on one GPU cost. bench/torch_pipeline.py runs the same in "
        "PyTorch.",
    .examples = "sluice bench pipeline --format json\n"
                "sluice bench pipeline --schedule 1F1B --layers 4 --steps 5\n"
                "sluice bench pipeline --device cuda --ranks 2,4 --ranks-as threads --schedule 1F1B,ZBVZeroBubble",
};

/* ---- Cases ----------------------------------------------------------------------------------- */

/* Adds the schedule on so many ranks if it trains with that many stages a rank. */
static void add_case(const pipeline_options *options, const char *name, int ranks, case_list *list)
{
    sl_generate_options generate = {
        .name = name, .ranks = 1, .microbatches = 1, .stages_per_rank = options->stages_per_rank
    };
    sl_schedule *schedule = NULL;
    bool trains = sl_schedule_generate(&generate, &schedule) == SL_OK && sl_schedule_has_backward(schedule);
    sl_schedule_destroy(schedule);
    if (!trains || list->count == MAX_CASES)
        return;
    pipeline_case *each = &list->cases[list->count++];
    *each = (pipeline_case){ .ranks = ranks, .stages_per_rank = options->stages_per_rank, .threads = 1 };
    snprintf(each->schedule, sizeof each->schedule, "%s", name);
}

/* The next part of a list that is separated by commas; false after the last. */
static bool next_part(const char **list, char *part, size_t size)
{
    if (!*list || !**list)
        return false;
    size_t length = strcspn(*list, ",");
    snprintf(part, size, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ',');
    return true;
}

/* The schedules asked for, or all that train. False: one of them does not. */
static bool add_cases(const pipeline_options *options, const char *only, int ranks, case_list *list)
{
    char name[32];
    for (int i = 0; !only && sl_generator_name(i); i++)
        add_case(options, sl_generator_name(i), ranks, list);
    while (next_part(&only, name, sizeof name)) {
        int before = list->count;
        add_case(options, name, ranks, list);
        if (list->count == before)
            return false;
    }
    return true;
}

/* What the options leave open: a GPT that is small enough for a processor, or GPT-2 124M on a GPU. */
static void fill_in(pipeline_options *run, int *dtype)
{
    bool small = strcmp(run->device, "cpu") == 0;
    const pipeline_options models[] = {
        { .batch = 64, .seq = 1024, .embd = 768, .layers = 12, .heads = 12, .vocab = 50304, .steps = 10 },
        { .batch = 8, .seq = 256, .embd = 512, .layers = 8, .heads = 8, .vocab = 8192, .steps = 3 },
    };
    const pipeline_options *model = &models[small];
    run->batch = run->batch ? run->batch : model->batch;
    run->seq = run->seq ? run->seq : model->seq;
    run->embd = run->embd ? run->embd : model->embd;
    run->layers = run->layers ? run->layers : model->layers;
    run->heads = run->heads ? run->heads : model->heads;
    run->vocab = run->vocab ? run->vocab : model->vocab;
    run->steps = run->steps ? run->steps : model->steps;
    *dtype = *dtype >= 0 ? *dtype : small ? (int)SL_F32 : (int)SL_BF16;
}

/* ---- Printing -------------------------------------------------------------------------------- */

static void print_json(const pipeline_case *single, const pipeline_case *cases, int count)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_string(&json, "device", single->device);
    sl_json_put_bool(&json, "mps", strstr(single->device, ", MPS") != NULL);
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
        sl_json_put_int(&json, "devices", cases[i].devices);
        sl_json_put_string(&json, "messages", cases[i].messages);
        sl_json_put_double(&json, "tokens_per_s", cases[i].tokens_per_s);
        sl_json_put_double(&json, "over_single", cases[i].tokens_per_s / single->tokens_per_s);
        sl_json_put_double(&json, "predicted_tokens_per_s", cases[i].predicted_tokens_per_s);
        sl_json_put_double(&json, "bubble", cases[i].bubble);
        sl_json_put_double(&json, "predicted_bubble", cases[i].predicted_bubble);
        sl_json_put_double(&json, "ties_ms", cases[i].ties * 1e3);
        sl_json_put_double(&json, "slice_us", cases[i].turns.slice * 1e6);
        sl_json_put_double(&json, "change_us", cases[i].turns.change * 1e6);
        sl_json_put_double(&json, "hand_over_us", cases[i].turns.hand_over * 1e6);
        sl_json_end(&json, '}');
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_head(const pipeline_case *single)
{
    printf("%s\n", single->device);
    printf("%-24s %5s %10s %6s %10s %8s %10s\n", "schedule", "ranks", "tokens/s", "ratio", "predicted", "bubble",
           "predicted");
    printf("%-24s %5d %10.0f\n", single->threads > 1 ? "one process, threads" : "one process", 1, single->tokens_per_s);
    fflush(stdout);
}

static void print_row(const pipeline_case *single, const pipeline_case *each)
{
    printf("%-24s %5d %10.0f %6.3f %10.0f %6.1f %% %8.1f %%\n", each->schedule, each->ranks, each->tokens_per_s,
           each->tokens_per_s / single->tokens_per_s, each->predicted_tokens_per_s, 100 * each->bubble,
           100 * each->predicted_bubble);
    fflush(stdout);
}

int bench_pipeline(int argc, char **argv)
{
    pipeline_options run = { .microbatches = 8, .device = "cpu" };
    const char *only = NULL, *ranks = "2";
    int format = 0, dtype = -1, code;
    const cli_option options[] = {
        DEVICE_OPTION_ROW(run.device),
        { .name = "dtype",
          .value = "TYPE",
          .words = "f32|bf16",
          .choice = &dtype,
          .help = "Type of weights and activations: f32 (the default on processors) or bf16 (on a GPU)." },
        { .name = "schedule", .value = "NAMES", .text = &only, .help = "These schedules alone, separated by commas." },
        { .name = "ranks", .value = "P,..", .text = &ranks, .help = "Numbers of ranks, separated by commas; 2." },
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
        { .name = "steps",
          .value = "N",
          .integer = &run.steps,
          .min = 1,
          .max = 1000,
          .help = "Timed steps; 3, on a GPU 10." },
        { .name = "batch",
          .value = "N",
          .wide = &run.batch,
          .min = 1,
          .max = 65536,
          .help = "Batch size; 8, on a GPU 64." },
        { .name = "seq",
          .value = "N",
          .wide = &run.seq,
          .min = 1,
          .max = 65536,
          .help = "Sequence length; 256, on a GPU 1024." },
        { .name = "embd",
          .value = "N",
          .wide = &run.embd,
          .min = 1,
          .max = 65536,
          .help = "Width; 512, on a GPU 768." },
        { .name = "layers",
          .value = "N",
          .wide = &run.layers,
          .min = 1,
          .max = 1024,
          .help = "Layers; 8, on a GPU 12." },
        { .name = "heads", .value = "N", .wide = &run.heads, .min = 1, .max = 1024, .help = "Heads; 8, on a GPU 12." },
        { .name = "vocab",
          .value = "N",
          .wide = &run.vocab,
          .min = 2,
          .max = 1 << 20,
          .help = "Vocabulary; 8192, on a GPU 50304." },
        { .name = "untied",
          .flag = &run.untied,
          .help = "A head of its own, so that no gradient is summed between the first rank and the last." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    fill_in(&run, &dtype);
    if (run.batch % run.microbatches)
        return usage_error("bench pipeline", "%d microbatches do not divide a batch of %lld", run.microbatches,
                           (long long)run.batch);
    run.dtype = (sl_dtype)dtype;
    case_list list = { .count = 0 };
    int most = 1;
    char part[32];
    while (next_part(&ranks, part, sizeof part)) {
        char *end = NULL;
        long count = strtol(part, &end, 10);
        if (*end || count < 1 || count > PIPELINE_MAX_RANKS)
            return usage_error("bench pipeline", "--ranks %s: numbers from 1 to %d", part, PIPELINE_MAX_RANKS);
        if (!add_cases(&run, only, (int)count, &list))
            return usage_error(
                "bench pipeline",
                "--schedule %.100s, %ld ranks: there is no such schedule, or it does not train this model", only,
                count);
        most = count > most ? (int)count : most;
    }
    pipeline_case single = { .schedule = "GPipe", .ranks = 1, .threads = most };
    sl_status status = pipeline_measure(&run, &single, NULL);
    bool as_text = format != FORMAT_JSON;
    tune_turns turns = { 0 };
    if (status == SL_OK && !single.is_host && run.ranks_as == RANKS_AS_PROCESSES && most > 1)
        status = pipeline_measure_turns(&run, &single, &turns);
    if (status == SL_OK && as_text)
        print_head(&single);
    for (int i = 0; i < list.count && status == SL_OK; i++) {
        status = pipeline_measure_and_predict(&run, &turns, &list.cases[i]);
        if (status == SL_OK && as_text)
            print_row(&single, &list.cases[i]);
    }
    if (status != SL_OK)
        return failure("bench pipeline");
    if (!as_text)
        print_json(&single, list.cases, list.count);
    return EXIT_OK;
}
