/* The training loop: start or resume, steps, checkpoints, reports, the end. */
#include "train/attributes.h"
#include "train/output.h"
#include "train/tokenizer_files.h"
#include "train/trace.h"
#include "train/trainer.h"

#include "base/alloc.h"
#include "base/file.h"
#include "comm/environment.h"
#include "comm/launch/vault.h"
#include "shard/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct train_run {
    const sl_train_plan *plan;
    const sl_train_config *config;
    const sl_train_options *options;
    sl_group *group;
    bool leads;  /* rank 0 of all */
    int vault;   /* of a launcher that starts again what it lost; -1: there is none */
    int restart; /* how often it has */
    sl_trainer *trainer;
    sl_output_folder output;
    sl_progress progress;
    double peak_flops; /* of one rank; NAN if it is not known */
    sl_validation validation;
    sl_train_result result;
} train_run;

/* What the launcher says of starts before this one. */
static sl_status look_at_launcher(train_run *run)
{
    sl_environment environment;
    sl_status status = sl_environment_read(&environment);
    if (status != SL_OK)
        return status;
    run->vault = environment.vault_fd;
    run->restart = environment.restart;
    return SL_OK;
}

/* ---- Start ----------------------------------------------------------------------------------- */

typedef enum start_from { FROM_START, FROM_CHECKPOINT, FROM_MEMORY } start_from;

/* What rank 0 found, for all; plain data. */
typedef struct start_point {
    int32_t from;    /* start_from */
    int64_t on_disk; /* step of the newest checkpoint that has a manifest; -1: there is none */
    char path[1008]; /* of the checkpoint that is used */
} start_point;

/* The newest that looks whole; its files are not read. */
static sl_status find_on_disk(const char *folder, int64_t *out)
{
    sl_status status = SL_OK;
    int64_t *steps = NULL;
    int count = 0;
    bool found = false;
    SL_TRY(sl_checkpoint_list(folder, &steps, &count));
    for (int i = 0; i < count && !found; i++) {
        SL_TRY(sl_checkpoint_has_manifest(folder, steps[i], &found));
        *out = found ? steps[i] : -1;
    }
done:
    sl_free(steps);
    return status;
}

/* Whether the launcher kept a snapshot that can be read and is as new as what is on disk. */
static bool is_kept(const train_run *run, int64_t on_disk, int64_t *step)
{
    sl_vault_content kept = { .parts = 0 };
    sl_snapshot *snapshot = NULL;
    bool usable = false;
    if (run->vault < 0)
        return false;
    if (sl_vault_get(run->vault, &kept) != SL_OK ||
        sl_snapshot_open(kept.data, kept.bytes, kept.parts, &snapshot) != SL_OK)
        sl_log(SL_LOG_WARN, "%s; going on from the disk", sl_error_message());
    else
        usable = kept.parts > 0 && kept.step >= on_disk;
    *step = kept.step;
    sl_snapshot_close(snapshot);
    sl_vault_release(&kept);
    return usable;
}

/* Nothing is changed before it is clear that the run can go on from it. */
static sl_status choose_checkpoint(train_run *run, const char *folder, start_point *out)
{
    sl_status status = SL_OK;
    sl_checkpoint *checkpoint = NULL;
    if (run->options->resume)
        SL_TRY(sl_checkpoint_open_newest(folder, &checkpoint));
    else if (run->options->overwrite)
        SL_TRY(sl_output_clear(run->config));
    if (!run->options->resume)
        SL_TRY(sl_output_check_unused(run->config)); /* now that the folder is locked */
    if (checkpoint) {
        SL_TRY(sl_attributes_check(run->plan, checkpoint));
        SL_TRY(sl_attributes_warn(run->plan, run->trainer->data_hash, checkpoint));
        if (strlen(sl_checkpoint_path(checkpoint)) >= sizeof out->path)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%s: the path is too long", sl_checkpoint_path(checkpoint)));
        out->from = FROM_CHECKPOINT;
        strcpy(out->path, sl_checkpoint_path(checkpoint));
    } else if (run->options->resume) {
        sl_log(SL_LOG_WARN, "%s holds no checkpoint: starting at the beginning", folder);
    }
    SL_TRY(sl_checkpoint_clean(folder, checkpoint ? sl_checkpoint_step(checkpoint) : -1));
done:
    sl_checkpoint_close(checkpoint);
    return status;
}

/* Rank 0: finds what the run goes on from and clears away what stands in the way. */
static sl_status choose_start(train_run *run, start_point *out)
{
    sl_status status = SL_OK;
    char *folder = NULL;
    int64_t kept = -1;
    SL_TRY(sl_output_lock(&run->output, run->config));
    SL_TRY(sl_plan_hash_data(&run->plan->data, &run->trainer->data_hash));
    SL_TRY(sl_path_join(run->config->run.out, "checkpoints", &folder));
    SL_TRY(find_on_disk(folder, &out->on_disk));
    if (run->options->resume && is_kept(run, out->on_disk, &kept)) {
        out->from = FROM_MEMORY;
        SL_TRY(sl_checkpoint_clean(folder, kept));
    } else {
        SL_TRY(choose_checkpoint(run, folder, out));
    }
done:
    sl_free(folder);
    return status;
}

static sl_status load_kept(train_run *run, int64_t on_disk)
{
    sl_status status = SL_OK;
    sl_vault_content kept = { .parts = 0 };
    sl_snapshot *snapshot = NULL;
    SL_TRY(sl_vault_get(run->vault, &kept));
    SL_TRY(sl_snapshot_open(kept.data, kept.bytes, kept.parts, &snapshot));
    SL_TRY(sl_trainer_load_snapshot(run->trainer, snapshot, kept.step));
    run->trainer->committed = on_disk;
done:
    sl_snapshot_close(snapshot);
    sl_vault_release(&kept);
    return status;
}

/* The log and the metrics say that the run was started again, and what it goes on from. */
static sl_status report_restart(train_run *run, start_from from)
{
    static const char *const names[] = { "start", "checkpoint", "memory" };
    const char *reason = getenv("SLUICE_RESTART_REASON");
    const sl_restart_report report = { .step = run->trainer->step,
                                       .restart = run->restart,
                                       .from = names[from],
                                       .ranks = sl_group_size(run->group),
                                       .reason = reason ? reason : "" };
    if (run->restart == 0 || !run->leads)
        return SL_OK;
    sl_log(SL_LOG_WARN, "restart %d: going on after step %" PRId64 " from %s%s", report.restart, report.step,
           from == FROM_START ? "" : "the ",
           from == FROM_MEMORY       ? "snapshot in memory"
           : from == FROM_CHECKPOINT ? "checkpoint"
                                     : "the beginning");
    return sl_metrics_write_restart(run->output.metrics, &report);
}

static bool is_due(const train_run *run, bool last)
{
    int64_t every = run->config->checkpoint.every;
    return last || (every > 0 && run->trainer->step % every == 0);
}

/* What a validation leaves for the rest of the run: which checkpoint stays, and whether it goes on. */
static void judge_validation(train_run *run)
{
    int64_t patience = run->config->eval.patience;
    run->result.best_loss = run->validation.best;
    run->result.best_step = run->validation.best_step;
    run->result.early = patience > 0 && run->validation.since >= patience;
    if (run->config->checkpoint.best && !isnan(run->validation.best))
        run->trainer->best = run->validation.best_step;
}

/* What earlier starts of the run have measured is in the metrics. */
static sl_status recall_validation(train_run *run)
{
    sl_status status = SL_OK;
    if (!run->plan->val_batches)
        return SL_OK;
    if (run->leads)
        SL_TRY(sl_metrics_read_validation(run->output.metrics, &run->validation));
    SL_TRY(sl_group_broadcast(run->group, 0, &run->validation, sizeof run->validation));
    judge_validation(run);
done:
    return status;
}

static sl_status load(train_run *run)
{
    sl_status status = SL_OK;
    start_point start = { .from = FROM_START, .on_disk = -1 };
    if (run->leads)
        SL_TRY(choose_start(run, &start));
    SL_TRY(sl_group_broadcast(run->group, 0, &start, sizeof start));
    SL_TRY(sl_output_check_shared(run->group, run->config));
    SL_TRY(start.from == FROM_MEMORY       ? load_kept(run, start.on_disk)
           : start.from == FROM_CHECKPOINT ? sl_trainer_load_checkpoint(run->trainer, start.path)
                                           : sl_trainer_load_start(run->trainer));
    if (run->leads && run->options->console && start.from == FROM_CHECKPOINT) {
        fprintf(run->options->console, "resumed from %s\n", start.path);
        fflush(run->options->console);
    }
    SL_TRY(sl_trainer_open_writer(run->trainer));
    run->result.first_step = run->result.last_step = run->trainer->step;
    if (run->leads) {
        SL_TRY(sl_tokenizer_files_keep(run->config->model.init, run->config->run.out));
        SL_TRY(sl_output_open(&run->output, run->config, run->trainer->step));
    }
    SL_TRY(recall_validation(run));
    SL_TRY(report_restart(run, (start_from)start.from));
    /* The checkpoint of this step, if the ranks before did not come to write it. */
    if (start.from == FROM_MEMORY && run->trainer->step > start.on_disk &&
        is_due(run, run->trainer->step == run->config->run.steps))
        SL_TRY(sl_trainer_begin_checkpoint(run->trainer));
done:
    return status;
}

/* Collective: run.out/plan.json, what was planned beside what the ranks have taken. */
static sl_status write_plan(train_run *run)
{
    sl_status status = SL_OK;
    sl_plan_memory own = sl_trainer_memory(run->trainer), *all = NULL;
    sl_file *file = NULL;
    char *path = NULL;
    SL_TRY(SL_NEW_ARRAY(all, sl_group_size(run->group)));
    SL_TRY(sl_group_all_gather(run->group, &own, sizeof own, all));
    if (!run->leads)
        goto done;
    SL_TRY(sl_path_join(run->config->run.out, "plan.json", &path));
    SL_TRY(sl_file_create(path, &file));
    sl_train_plan_write_json(run->plan, all, sl_file_stream(file));
    SL_TRY(sl_file_commit(file));
done:
    sl_file_destroy(file);
    sl_free(path);
    sl_free(all);
    return status;
}

/* The first line says what the ranks are; the second which device they have, and the third where their messages lie, unless
 * it is the processor because nothing else was asked for. */
static void print_head(const train_run *run)
{
    char text[256];
    if (!run->leads || !run->options->console)
        return;
    fprintf(run->options->console, "mesh %s\n", sl_plan_mesh_text(run->plan, text, sizeof text));
    if (strcmp(run->plan->device, "cpu") != 0)
        fprintf(run->options->console, "device %s\n", sl_kernel_describe(run->trainer->device, text, sizeof text));
    if (strcmp(run->plan->device, "cpu") != 0 && run->config->parallel.pp > 1)
        fprintf(run->options->console, "messages %s\n", sl_runtime_messages(run->trainer->runtime));
    bool asks = strcmp(run->plan->device, "cpu") != 0 || run->config->parallel.sum != SL_SUM_EXACT;
    if (asks && *sl_runtime_collectives(run->trainer->runtime))
        fprintf(run->options->console, "collectives %s\n", sl_runtime_collectives(run->trainer->runtime));
    fflush(run->options->console);
}

/* Of one rank: what is given, or what rank 0 measures while the others wait. */
static sl_status find_peak(train_run *run)
{
    double peak = run->config->log.peak_gflops * 1e9;
    if (peak <= 0 && run->leads)
        peak = sl_kernel_measure_product_peak(run->trainer->device, (sl_dtype)run->config->precision.dtype);
    sl_status status = sl_group_broadcast(run->group, 0, &peak, sizeof peak);
    run->peak_flops = run->result.peak_flops = peak > 0 ? peak : NAN;
    return status;
}

/* Room for the actions and waits of the steps that are traced. */
static int trace_events(const train_run *run)
{
    int64_t most = 0;
    for (int r = 0; r < sl_schedule_ranks(run->plan->schedule); r++) {
        int64_t count = 0;
        sl_schedule_actions(run->plan->schedule, r, &count);
        most = count > most ? count : most;
    }
    int64_t events = run->options->trace_steps * (most * 8 + 64);
    return events > 1 << 24 ? 1 << 24 : (int)events;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static double highest_memory(const sl_trainer *trainer)
{
    double bytes = 0;
    for (int r = 0; r < sl_group_size(trainer->world); r++)
        bytes = trainer->notes[r].memory > bytes ? trainer->notes[r].memory : bytes;
    return bytes;
}

static bool someone_stops(const sl_trainer *trainer)
{
    for (int r = 0; r < sl_group_size(trainer->world); r++) {
        if (trainer->notes[r].stop)
            return true;
    }
    return false;
}

/* Tells the launcher that this start came to a step, and gives it a snapshot if one is due. */
static sl_status keep(train_run *run, bool first)
{
    sl_status status = SL_OK;
    int64_t every = run->config->checkpoint.memory;
    if (run->vault < 0)
        return SL_OK;
    if (first && run->leads)
        SL_TRY(sl_vault_progress(run->vault));
    if (every > 0 && run->trainer->step % every == 0)
        SL_TRY(sl_trainer_keep(run->trainer, run->vault));
done:
    return status;
}

/* The timeline of steps 2 to N + 1 (1 to N if there are no more): the first warms up. */
static sl_status trace(train_run *run)
{
    sl_status status = SL_OK;
    char *path = NULL;
    int64_t done = run->trainer->step - run->result.first_step;
    int64_t left = run->config->run.steps - run->result.first_step;
    int64_t wanted = run->options->trace_steps;
    bool warm = left > wanted;
    if (wanted <= 0 || run->trainer->dp_rank != 0)
        return SL_OK;
    if (warm && done == 1)
        sl_runtime_clear_trace(run->trainer->runtime);
    if (done == wanted + warm || (done == left && done < wanted)) {
        SL_TRY(sl_path_join(run->config->run.out, "trace.json", &path));
        SL_TRY(sl_runtime_save_trace(run->trainer->runtime, path));
        if (run->leads)
            SL_TRY(sl_trace_draw(run->config, path, &run->result.bubble));
    }
done:
    sl_free(path);
    return status;
}

static sl_status report_step(train_run *run, sl_step_report *report, double seconds)
{
    const sl_train_config *config = run->config;
    report->seconds = seconds;
    report->tokens_per_s = (double)(config->batch.size * config->batch.seq) / seconds;
    report->peak_memory = highest_memory(run->trainer);
    report->mfu = run->plan->flops / (seconds * run->peak_flops * sl_group_size(run->group));
    report->peak_flops = run->peak_flops;
    run->result.seconds += seconds;
    run->result.last_step = report->step;
    run->result.last_loss = report->loss;
    if (isnan(run->result.first_loss))
        run->result.first_loss = report->loss;
    if (!run->leads)
        return SL_OK;
    if (run->options->console)
        sl_progress_step(&run->progress, report);
    return sl_output_write(&run->output, report);
}

/* If one is due. *better: its loss is the best so far. */
static sl_status validate(train_run *run, bool last, sl_step_report *report, bool *better)
{
    sl_status status = SL_OK;
    *better = false;
    if (!run->plan->val_batches || (!last && run->trainer->step % run->config->eval.every != 0))
        return SL_OK;
    SL_TRY(sl_trainer_validate(run->trainer, &report->val_loss));
    *better = sl_validation_add(&run->validation, run->trainer->step, report->val_loss);
    judge_validation(run);
done:
    return status;
}

static sl_status one_step(train_run *run)
{
    sl_status status = SL_OK;
    sl_trainer *trainer = run->trainer;
    sl_step_report report = { .step = 0 };
    double start = sl_now();
    bool first = trainer->step == run->result.first_step, better = false;
    SL_TRY(sl_trainer_step(trainer, first ? run->options->save_grads : NULL, &report));
    SL_TRY(sl_trainer_exchange(trainer, run->options->stop && *run->options->stop));
    double seconds = sl_now() - start;
    run->result.stopped = someone_stops(trainer);
    SL_TRY(validate(run, trainer->step == run->config->run.steps, &report, &better));
    SL_TRY(report_step(run, &report, seconds));
    SL_TRY(trace(run));
    SL_TRY(keep(run, first));
    bool last = run->result.stopped || run->result.early || trainer->step == run->config->run.steps;
    if (is_due(run, last) || (better && run->config->checkpoint.best))
        SL_TRY(sl_trainer_begin_checkpoint(trainer));
done:
    return status;
}

/* What the driver of a GPU says is taken on it, by whichever process, beside the plan of the first rank. */
static void log_memory(const train_run *run)
{
    size_t taken = sl_device_get_memory(run->trainer->device).taken;
    if (run->leads && taken > 0)
        sl_log(SL_LOG_DEBUG, "memory of the device: %zu bytes are taken, %zu were planned", taken,
               sl_train_plan_memory(run->plan, 0).device);
}

static sl_status finish(train_run *run)
{
    sl_status status = SL_OK;
    log_memory(run);
    SL_TRY(sl_trainer_finish_checkpoint(run->trainer));
    SL_TRY(write_plan(run)); /* again: the first snapshot has its memory now */
    if (run->leads)
        SL_TRY(sl_metrics_sync(run->output.metrics));
    if (run->trainer->committed >= 0)
        snprintf(run->result.checkpoint, sizeof run->result.checkpoint, "%s/step-%08" PRId64, run->trainer->checkpoints,
                 run->trainer->committed);
done:
    return status;
}

sl_status sl_train_run(const sl_train_plan *plan, sl_group *group, const sl_train_options *options,
                       sl_train_result *result)
{
    static const sl_train_options defaults = { .resume = false };
    sl_status status = SL_OK;
    if (!options)
        options = &defaults;
    train_run run = { .plan = plan,
                      .config = plan->config,
                      .options = options,
                      .group = group,
                      .leads = sl_group_rank(group) == 0,
                      .vault = -1,
                      .validation = { .best = NAN },
                      .result = { .first_loss = NAN, .last_loss = NAN, .bubble = NAN, .best_loss = NAN } };
    if (sl_group_size(group) != sl_train_plan_ranks(plan))
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "the plan is for %d ranks, there are %d", sl_train_plan_ranks(plan),
                       sl_group_size(group)));
    SL_TRY(look_at_launcher(&run));
    SL_TRY(sl_trainer_create(plan, group, trace_events(&run), &run.trainer));
    print_head(&run);
    SL_TRY(load(&run));
    SL_TRY(write_plan(&run));
    SL_TRY(find_peak(&run));
    if (options->console)
        sl_progress_begin(&run.progress, options->console, run.config);
    while (run.trainer->step < run.config->run.steps && !run.result.stopped && !run.result.early)
        SL_TRY(one_step(&run));
    SL_TRY(finish(&run));
    if (result)
        *result = run.result;
done:
    if (run.leads && options->console)
        sl_progress_end(&run.progress);
    if (status != SL_OK)
        sl_group_fail(group, status);
    sl_output_close(&run.output);
    if (!(status == SL_ERR_PEER && options->ends_process))
        sl_trainer_destroy(run.trainer);
    return status;
}
