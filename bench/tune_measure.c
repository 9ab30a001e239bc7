/* Configurations of a small model, predicted and then trained by real ranks. */
#include "tune_compare.h"

#include "base/alloc.h"
#include "base/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEYS = 7, MOST_STEPS = 1000 };

static const struct {
    const char *name;
    const char *keys[KEYS];
} models[TUNE_MODELS] = {
    { "gpt2, 4 layers of 128",
      { "model.family=gpt2", "model.n_layer=4", "model.n_embd=128", "model.n_head=4", "batch.seq=128", "batch.size=8",
        "model.vocab=256" } },
    { "llama, 6 layers of 192",
      { "model.family=llama", "model.n_layer=6", "model.n_embd=192", "model.n_head=6", "batch.seq=64", "batch.size=8",
        "model.vocab=256" } },
    { "gpt2, 2 layers of 256, vocabulary of 4096",
      { "model.family=gpt2", "model.n_layer=2", "model.n_embd=256", "model.n_head=4", "batch.seq=64", "batch.size=8",
        "model.vocab=4096" } },
};

/* The files of a case: text, schedules and the folder of the run. */
typedef struct case_folder {
    char root[64];
    char text[96], out[96], schedule[96]; /* paths */
    char text_key[112], out_key[112], steps_key[48];
    const char *lines[KEYS + 5 + SL_TUNE_LINES];
    int count;
} case_folder;

/* ---- Files ----------------------------------------------------------------------------------- */

static sl_status open_folder(int model, int steps, case_folder *folder)
{
    sl_status status = SL_OK;
    const char *where = getenv("TMPDIR");
    FILE *file = NULL;
    snprintf(folder->root, sizeof folder->root, "%.40s/sluice-bench-XXXXXX", where ? where : "/tmp");
    if (!mkdtemp(folder->root))
        return sl_fail(SL_ERR_IO, "no folder %s", folder->root);
    snprintf(folder->text, sizeof folder->text, "%s/text", folder->root);
    snprintf(folder->out, sizeof folder->out, "%s/out", folder->root);
    snprintf(folder->schedule, sizeof folder->schedule, "%s/plan.csv", folder->root);
    snprintf(folder->text_key, sizeof folder->text_key, "data.text=%s", folder->text);
    snprintf(folder->out_key, sizeof folder->out_key, "run.out=%s", folder->out);
    snprintf(folder->steps_key, sizeof folder->steps_key, "run.steps=%d", steps);
    file = fopen(folder->text, "w");
    if (!file)
        return sl_fail(SL_ERR_IO, "write %s", folder->text);
    for (int i = 0; i < 1 << 16; i++)
        fputc('a' + (i * 7919 >> 3) % 26, file);
    if (fclose(file) != 0)
        status = sl_fail(SL_ERR_IO, "write %s", folder->text);
    for (int i = 0; i < KEYS; i++)
        folder->lines[folder->count++] = models[model].keys[i];
    folder->lines[folder->count++] = folder->text_key;
    folder->lines[folder->count++] = folder->out_key;
    folder->lines[folder->count++] = folder->steps_key;
    folder->lines[folder->count++] = "checkpoint.every=0";
    folder->lines[folder->count++] = "log.peak_gflops=100"; /* measuring it would take time in every run */
    return status;
}

static void remove_run(const case_folder *folder)
{
    char command[256]; /* a path that mkdtemp made */
    snprintf(command, sizeof command, "rm -rf '%s'", folder->out);
    if (system(command) != 0) // NOLINT(cert-env33-c)
        sl_log(SL_LOG_WARN, "%s was not removed", folder->out);
}

static void close_folder(const case_folder *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder->root);
    if (folder->root[0] && system(command) != 0) // NOLINT(cert-env33-c)
        sl_log(SL_LOG_WARN, "%s was not removed", folder->root);
}

/* ---- A run ----------------------------------------------------------------------------------- */

typedef struct shared_run {
    const case_folder *folder;
    char error[512];
} shared_run;

static sl_status train(const case_folder *folder)
{
    sl_status status = SL_OK;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    sl_group *group = NULL;
    SL_TRY(sl_train_config_load(NULL, folder->lines, folder->count, &config));
    SL_TRY(sl_train_plan_create(config, NULL, &plan));
    SL_TRY(sl_group_open(NULL, &group));
    SL_TRY(sl_train_run(plan, group, &(sl_train_options){ .overwrite = true }, NULL));
done:
    sl_group_close(group);
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    return status;
}

static int train_rank(void *user, int rank)
{
    shared_run *run = user;
    (void)rank;
    if (train(run->folder) == SL_OK)
        return 0;
    snprintf(run->error, sizeof run->error, "%s", sl_error_message());
    return 1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of all steps but the first. */
static sl_status read_median(const case_folder *folder, double *seconds)
{
    sl_status status = SL_OK;
    char path[160], line[4096];
    double values[MOST_STEPS];
    int count = 0, seen = 0;
    FILE *file = NULL;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder->out);
    SL_TRY(sl_file_open_stream(path, &file));
    while (fgets(line, sizeof line, file) && count < MOST_STEPS) {
        json_t *root = json_loads(line, 0, NULL);
        if (seen++ > 0)
            values[count++] = json_number_value(json_object_get(root, "ms")) / 1e3;
        json_decref(root);
    }
    if (count == 0)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s has no second step", path));
    qsort(values, (size_t)count, sizeof *values, by_value);
    *seconds = values[count / 2];
done:
    if (file)
        fclose(file);
    return status;
}

static void describe_row(const sl_tune *tune, int index, tune_row *row)
{
    sl_tune_choice choice = sl_tune_get(tune, index);
    snprintf(row->text, sizeof row->text, "%d x %d, %d a rank, %s, %" PRId64 " x %" PRId64 "%s%s%s%s", choice.pp,
             choice.dp, choice.stages_per_rank, choice.schedule, choice.microbatches, choice.rows,
             choice.dp > 1 ? ", shard " : "", choice.dp > 1 ? choice.shard : "",
             *choice.recompute ? ", recompute " : "", choice.recompute);
}

/* Trains a few steps. */
static sl_status train_row(case_folder *folder, sl_tune *tune, int index, const tune_row *row, double *median)
{
    sl_status status = SL_OK;
    const char *lines[SL_TUNE_LINES];
    int count = 0, before = folder->count;
    sl_tune_choice choice = sl_tune_get(tune, index);
    sl_launch_result result;
    shared_run *run = mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "no memory for the results");
    *run = (shared_run){ .folder = folder };
    SL_TRY(sl_schedule_save_csv(sl_tune_schedule(tune, index), folder->schedule));
    SL_TRY(sl_tune_overrides(tune, index, folder->schedule, lines, &count));
    memcpy(folder->lines + before, lines, (size_t)count * sizeof *lines);
    folder->count += count;
    SL_TRY(sl_launch(&(sl_launch_options){ .ranks = choice.pp * choice.dp, .run = train_rank, .user = run }, &result));
    if (result.exit_code != 0)
        SL_TRY(sl_fail(SL_ERR_PEER, "%s: %s", row->text, *run->error ? run->error : result.report));
    SL_TRY(read_median(folder, median));
    remove_run(folder);
done:
    folder->count = before;
    munmap(run, sizeof *run);
    return status;
}

/* Processors change their speed by the minute. So what the prediction is made of is measured right before and after the
 * training. */
static sl_status measure_row(case_folder *folder, sl_tune *tune, int index, const tune_row *row, tune_moments *rounds)
{
    sl_status status = SL_OK;
    double median = 0;
    sl_tune_forget_entry(tune, index);
    SL_TRY(sl_tune_measure_entry(tune, index));
    SL_TRY(train_row(folder, tune, index, row, &median));
    SL_TRY(sl_tune_measure_entry(tune, index));
    SL_TRY(sl_tune_time_entries(tune));
    const sl_tune_choice choice = sl_tune_get(tune, index);
    SL_TRY(tune_add_round(rounds, median, &choice));
done:
    return status;
}

/* ---- A case ---------------------------------------------------------------------------------- */

sl_status tune_measure(int model, int ranks, const tune_effort *effort, tune_case *out)
{
    sl_status status = SL_OK;
    case_folder folder = { .count = 0 };
    sl_tune *tune = NULL;
    tune_moments rounds[TUNE_ROWS] = { 0 };
    *out = (tune_case){ .model = models[model].name, .ranks = ranks };
    SL_TRY(open_folder(model, effort->steps, &folder));
    const sl_tune_options options = { .overrides = folder.lines,
                                      .override_count = folder.count,
                                      .ranks = ranks,
                                      .measure = true,
                                      .top = effort->configurations,
                                      .spread = true,
                                      .budget_seconds = 0.1 };
    SL_TRY(sl_tune_create(&options, &tune));
    out->count = sl_tune_count(tune);
    for (int i = 0; i < out->count; i++)
        describe_row(tune, i, &out->rows[i]);
    for (int round = 0; round < effort->rounds; round++) { /* so that a bad moment does not meet one of them alone */
        SL_TRY(sl_tune_measure_ranks(tune));
        for (int i = 0; i < out->count; i++)
            SL_TRY(measure_row(&folder, tune, i, &out->rows[i], &rounds[i]));
    }
    for (int i = 0; i < out->count; i++)
        tune_take_rounds(&rounds[i], &out->rows[i]);
    tune_compare_rows(out);
done:
    for (int i = 0; i < TUNE_ROWS; i++)
        sl_tune_moments_clear(&rounds[i]);
    sl_tune_destroy(tune);
    close_folder(&folder);
    return status;
}
