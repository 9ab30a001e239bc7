/* See training.h. */
#include "ranks/support/training.h"
#include "support/device/test_device.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MAX = 8, OVERRIDES_MAX = 32 };

static char folder[64], text_path[128];

int training_enter(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sluice-train-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(text_path, sizeof text_path, "%s/text", folder);
    FILE *file = fopen(text_path, "w");
    if (!file)
        return -1;
    uint32_t random = 1;
    for (int i = 0; i < 20000; i++) {
        random = random * UINT32_C(1664525) + UINT32_C(1013904223);
        fputc("the river runs to the sea \n"[(random >> 16) % 27], file);
    }
    return fclose(file);
}

int training_leave(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

const char *training_folder(void)
{
    return folder;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

typedef struct rank_job {
    const sl_train_plan *plan;
    sl_group *group;
    const sl_train_options *options;
    sl_train_result result;
    sl_status status;
    char message[512];
} rank_job;

static void *run_rank(void *argument)
{
    rank_job *job = argument;
    job->status = sl_train_run(job->plan, job->group, job->options, &job->result);
    snprintf(job->message, sizeof job->message, "%s", job->status == SL_OK ? "" : sl_error_message());
    return NULL;
}

static void read_metrics(const char *name, run_outcome *out)
{
    char path[256], line[1024];
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) && out->steps < 64) {
        json_t *one = json_loads(line, 0, NULL);
        assert_non_null(one);
        out->loss[out->steps] = json_number_value(json_object_get(one, "loss"));
        out->grad_norm[out->steps++] = json_number_value(json_object_get(one, "grad_norm"));
        out->peak_memory = json_number_value(json_object_get(one, "peak_memory"));
        json_decref(one);
    }
    fclose(file);
}

sl_status training_plan(const char *device, const char *name, const char *const *more, sl_train_config **config,
                        sl_train_plan **plan)
{
    char text[160], output[160];
    snprintf(text, sizeof text, "data.text=%s", text_path);
    snprintf(output, sizeof output, "run.out=%s/%s", folder, name);
    const char *overrides[OVERRIDES_MAX] = { text,
                                             output,
                                             "model.n_layer=4",
                                             "model.n_embd=32",
                                             "batch.size=8",
                                             "batch.seq=16",
                                             "batch.microbatches=4",
                                             "run.steps=6",
                                             "optimizer.lr=1e-3" };
    int count = 9;
    while (more && *more)
        overrides[count++] = *more++;
    sl_status status = sl_train_config_load(NULL, overrides, count, config);
    return status == SL_OK ? sl_train_plan_create_threads(*config, device, plan) : status;
}

void training_run_on(const char *device, const char *name, const sl_train_options *options, const char *const *more,
                     run_outcome *out)
{
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    sl_group *groups[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    rank_job jobs[RANKS_MAX];
    if (training_plan(device, name, more, &config, &plan) != SL_OK)
        fail_msg("%s: %s", name, sl_error_message());
    int ranks = sl_train_plan_ranks(plan);
    assert_int_equal(sl_group_open_threads(ranks, NULL, groups), SL_OK);
    for (int r = 0; r < ranks; r++) {
        jobs[r] = (rank_job){ .plan = plan, .group = groups[r], .options = options };
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    *out = (run_outcome){ .status = jobs[0].status, .result = jobs[0].result };
    for (int r = 0; r < ranks; r++) {
        if (jobs[r].status != SL_OK && jobs[r].status != SL_ERR_PEER)
            snprintf(out->message, sizeof out->message, "%s", jobs[r].message);
        assert_int_equal(jobs[r].status == SL_OK, jobs[0].status == SL_OK); /* all ranks or none */
        sl_group_close(groups[r]);
    }
    for (int r = 0; r < config->parallel.pp; r++)
        out->planned_memory = fmax(out->planned_memory, (double)sl_train_plan_memory(plan, r).total);
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    if (out->status == SL_OK)
        read_metrics(name, out);
}

void training_run(const char *name, const sl_train_options *options, const char *const *more, run_outcome *out)
{
    training_run_on(test_device_spec(), name, options, more, out);
}

/* ---- Memory ---- */

void training_check_plan(const char *name, int ranks)
{
    static const char *const keys[] = { "total",       "weights",  "gradients", "optimizer",
                                        "activations", "messages", "checkpoint" };
    char path[256];
    snprintf(path, sizeof path, "%s/%s/plan.json", folder, name);
    json_t *plan = json_load_file(path, 0, NULL);
    assert_non_null(plan);
    json_t *planned = json_object_get(plan, "ranks"), *measured = json_object_get(plan, "measured");
    assert_int_equal(json_array_size(planned), ranks);
    assert_int_equal(json_array_size(measured), ranks);
    assert_true(json_is_true(json_object_get(plan, "fits")));
    for (size_t r = 0; r < json_array_size(planned); r++) {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_int_t want = json_integer_value(json_object_get(json_array_get(planned, r), keys[k]));
            json_int_t got = json_integer_value(json_object_get(json_array_get(measured, r), keys[k]));
            if (want != got)
                fail_msg("%s: rank %zu was planned %lld bytes of %s and has taken %lld", name, r, want, keys[k], got);
        }
    }
    json_decref(plan);
}
