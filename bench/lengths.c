/* sluice bench lengths: steps of several sequence lengths in turn, beside steps of one length after another. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include "base/json.h"

#include <sluice/nn.h>
#include <sluice/runtime.h>

#include <stdlib.h>
#include <string.h>

static const cli_usage usage = {
    .command = "bench lengths",
    .synopsis = "[OPTIONS]",
    .description =
        "Trains a small GPT-2 with sequences of four lengths, in one process. Each length has its own compiled "
        "runtime, from a cache, and all work on the same weights. Prints the median time of a step that follows "
        "one of the same length, and of one that follows another length.",
    .examples = "sluice bench lengths --format json",
};

enum { LENGTHS = 4, BATCH = 4, VOCAB = 512 };

typedef struct lengths_run {
    int embd, layers, rounds;
    sl_group *group;
    sl_device *device;
    sl_schedule *schedule;
    sl_stage *stages[LENGTHS];
    sl_runtime_cache *cache;
    double alone[LENGTHS], in_turn[LENGTHS]; /* seconds, medians */
} lengths_run;

static int64_t length_of(int64_t key)
{
    return 32 * (key + 1);
}

/* The runtime for one length; its weights are those of the first. */
static sl_status make_runtime(void *user, int64_t key, sl_runtime **out)
{
    sl_status status = SL_OK;
    lengths_run *run = user;
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    sl_model model = sl_model_default(&sl_model_gpt2);
    const sl_model_shape shape = { .batch = BATCH / 2, .seq = length_of(key) };
    model.gpt2.vocab_size = VOCAB;
    model.gpt2.n_positions = length_of(LENGTHS - 1);
    model.gpt2.n_embd = run->embd;
    model.gpt2.n_layer = run->layers;
    model.gpt2.n_head = 4;
    SL_TRY(sl_model_build(&model, SL_MODE_TRAIN, &shape, &graph));
    SL_TRY(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_WHOLE }, &partition));
    SL_TRY(sl_stage_build((const sl_partition *const[]){ partition }, 1, 0, run->device, NULL, &run->stages[key]));
    if (key > 0)
        SL_TRY(sl_stage_share_params(run->stages[key], run->stages[0]));
    SL_TRY(sl_runtime_create(&(sl_runtime_options){ .group = run->group,
                                                    .device = run->device,
                                                    .schedule = run->schedule,
                                                    .stages = &run->stages[key],
                                                    .stage_count = 1 },
                             out));
done:
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
    return status;
}

static sl_status set_weights(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        const sl_param_info info = { params[i].name, SL_F32, params[i].shape, params[i].init };
        sl_param_init(&info, 1, 0, sl_meta_count(&params[i].data.meta), params[i].data.data); /* cpu: host memory */
    }
    SL_TRY(sl_runtime_zero_grads(runtime));
done:
    return status;
}

static sl_status step(lengths_run *run, int64_t key, double *seconds)
{
    static int32_t tokens[BATCH * 32 * LENGTHS];
    sl_status status = SL_OK;
    sl_runtime *runtime = NULL;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tokens[i] = (int32_t)(i * 7 % VOCAB);
    const sl_view batch = { tokens, sl_meta_make(SL_I32, 2, (int64_t[]){ BATCH, length_of(key) }) };
    const sl_arg args[] = { { "tokens", batch }, { "targets", batch } };
    double start = sl_now();
    SL_TRY(sl_runtime_cache_get(run->cache, key, &runtime));
    SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2 }, NULL));
    *seconds = sl_now() - start;
done:
    return status;
}

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[count / 2];
}

/* In each round every length twice: the first step follows another length, the second the same. */
static sl_status measure_rounds(lengths_run *run)
{
    sl_status status = SL_OK;
    double *alone = calloc((size_t)run->rounds * LENGTHS, sizeof *alone);
    double *in_turn = calloc((size_t)run->rounds * LENGTHS, sizeof *in_turn), warm;
    if (!alone || !in_turn)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "no memory for the times of %d rounds", run->rounds));
    for (int key = 0; key < LENGTHS; key++)
        SL_TRY(step(run, key, &warm));
    for (int round = 0; round < run->rounds; round++) {
        for (int key = 0; key < LENGTHS; key++) {
            SL_TRY(step(run, key, &in_turn[key * run->rounds + round]));
            SL_TRY(step(run, key, &alone[key * run->rounds + round]));
        }
    }
    for (int key = 0; key < LENGTHS; key++) {
        run->alone[key] = median(alone + (ptrdiff_t)key * run->rounds, run->rounds);
        run->in_turn[key] = median(in_turn + (ptrdiff_t)key * run->rounds, run->rounds);
    }
done:
    free(alone);
    free(in_turn);
    return status;
}

static sl_status measure(lengths_run *run)
{
    sl_status status = SL_OK;
    sl_runtime *first = NULL;
    const sl_generate_options generate = { .name = "1F1B", .ranks = 1, .microbatches = 2 };
    SL_TRY(sl_group_open_threads(1, NULL, &run->group));
    SL_TRY(sl_device_open("cpu", NULL, &run->device));
    SL_TRY(sl_schedule_generate(&generate, &run->schedule));
    SL_TRY(sl_runtime_cache_create(
        &(sl_runtime_cache_options){ .capacity = LENGTHS, .make = make_runtime, .user = run }, &run->cache));
    SL_TRY(sl_runtime_cache_get(run->cache, 0, &first));
    SL_TRY(set_weights(first));
    SL_TRY(measure_rounds(run));
done:
    sl_runtime_cache_destroy(run->cache);
    for (int key = LENGTHS - 1; key >= 0; key--)
        sl_stage_destroy(run->stages[key]);
    sl_schedule_destroy(run->schedule);
    sl_device_close(run->device);
    sl_group_close(run->group);
    return status;
}

static double ratio(const lengths_run *run)
{
    double alone = 0, in_turn = 0;
    for (int key = 0; key < LENGTHS; key++) {
        alone += run->alone[key];
        in_turn += run->in_turn[key];
    }
    return in_turn / alone;
}

static void print_json(const lengths_run *run)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_double(&json, "in_turn_over_alone", ratio(run));
    sl_json_key(&json, "lengths");
    sl_json_begin(&json, '[');
    for (int key = 0; key < LENGTHS; key++) {
        sl_json_newline(&json);
        sl_json_begin(&json, '{');
        sl_json_put_int(&json, "length", length_of(key));
        sl_json_put_double(&json, "alone_s", run->alone[key]);
        sl_json_put_double(&json, "in_turn_s", run->in_turn[key]);
        sl_json_end(&json, '}');
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const lengths_run *run)
{
    printf("%-8s %12s %12s\n", "length", "alone ms", "in turn ms");
    for (int key = 0; key < LENGTHS; key++)
        printf("%-8lld %12.3f %12.3f\n", (long long)length_of(key), run->alone[key] * 1e3, run->in_turn[key] * 1e3);
    printf("in turn takes %.3f times as long\n", ratio(run));
}

int bench_lengths(int argc, char **argv)
{
    lengths_run run = { .embd = 256, .layers = 4, .rounds = 30 };
    int format = 0, code;
    const cli_option options[] = {
        { .name = "embd", .value = "N", .integer = &run.embd, .min = 4, .max = 4096, .help = "Width (256)." },
        { .name = "layers", .value = "N", .integer = &run.layers, .min = 1, .max = 100, .help = "Layers (4)." },
        { .name = "rounds", .value = "N", .integer = &run.rounds, .min = 1, .max = 100000, .help = "Rounds (30)." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    switch (measure(&run)) {
    case SL_OK:
        break;
    case SL_ERR_ARGUMENT: /* a width that 4 heads do not divide */
        return usage_error(usage.command, "%s", sl_error_message());
    default:
        return failure(usage.command);
    }
    (format == FORMAT_JSON ? print_json : print_text)(&run);
    return EXIT_OK;
}
