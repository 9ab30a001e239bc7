/* Tuning: from options to the best configurations. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "comm/launch/launch.h"

#include <stdio.h>
#include <string.h>

/* At which all costs are measured, and more of them for those of the best configurations. */
enum { MOMENTS = 3, MORE_MOMENTS = 2 };

enum { LEAST_KEPT = 12 };

/* Devices by their description, whose kernels need the same memory wherever the plan is made. A cluster's file does not
 * name a model: its rates are its own, and its kernels are taken to be those of this one. */
static const char GPU[] = "h200", PROCESSOR[] = "any-cpu";

static const char *const shard_names[] = {
    [SL_SHARD_NONE] = "none", [SL_SHARD_OPTIMIZER] = "optimizer", [SL_SHARD_FULL] = "full"
};

const char *sl_tune_shard_name(sl_shard_mode shard)
{
    return shard_names[shard];
}

/* The configuration with everything that is to be chosen set aside; `last` is one more override or NULL. */
static sl_status load_config(const sl_tune *tune, const char *last, sl_train_config **out)
{
    sl_status status = SL_OK;
    static const char *const neutral[] = { "parallel.pp=1",        "parallel.dp=1",       "parallel.schedule=1F1B",
                                           "parallel.split=",      "parallel.recompute=", "parallel.stages_per_rank=0",
                                           "batch.microbatches=1", "parallel.shard=none", "parallel.shard_group=0",
                                           "parallel.unsharded=0" };
    enum { NEUTRAL = sizeof neutral / sizeof *neutral };
    const char **lines = NULL;
    int count = tune->override_count;
    SL_TRY(SL_NEW_ARRAY(lines, count + NEUTRAL + 1));
    memcpy(lines, tune->overrides, (size_t)count * sizeof *lines);
    memcpy(lines + count, neutral, sizeof neutral);
    lines[count + NEUTRAL] = last;
    SL_TRY(sl_train_config_load(tune->path, lines, count + NEUTRAL + (last != NULL), out));
done:
    sl_free(lines);
    return status;
}

static sl_status copy_options(sl_tune *tune, const sl_tune_options *options)
{
    sl_status status = SL_OK;
    char *path = NULL;
    if (options->config)
        SL_TRY(sl_arena_strdup(tune->arena, options->config, &path));
    tune->path = path;
    SL_TRY(SL_ARENA_ARRAY(tune->arena, tune->overrides, options->override_count + 1));
    for (int i = 0; i < options->override_count; i++)
        SL_TRY(sl_arena_strdup(tune->arena, options->overrides[i], (char **)(void *)&tune->overrides[i]));
    tune->override_count = options->override_count;
    tune->measure = options->measure;
    tune->spread = options->spread;
    tune->top = options->top > 0 ? options->top : 5;
    tune->kept = tune->spread || tune->top > LEAST_KEPT ? tune->top : LEAST_KEPT;
    tune->budget = options->budget_seconds > 0 ? options->budget_seconds : SL_PLAN_BUDGET;
done:
    return status;
}

/* The devices: as given, or this machine. */
static sl_status choose_devices(sl_tune *tune, const sl_tune_options *options)
{
    sl_status status = SL_OK;
    sl_train_config *given = NULL;
    int all = options->cluster ? options->cluster->machines * options->cluster->devices : 0;
    SL_TRY(sl_train_config_load(tune->path, tune->overrides, tune->override_count, &given));
    tune->ranks = options->ranks > 0 ? options->ranks : all > 0 ? all : (int)(given->parallel.pp * given->parallel.dp);
    if (all > 0 && tune->ranks > all)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%d ranks, but the cluster has %d devices", tune->ranks, all));
    if (options->cluster)
        tune->cluster = *options->cluster;
    else
        SL_TRY(sl_cluster_measure(given, tune->ranks, &tune->cluster));
    tune->device = !tune->cluster.processors ? GPU : options->cluster ? PROCESSOR : "cpu";
    if (!options->cluster)
        SL_TRY(sl_launch_count_shared(tune->ranks, (int)given->parallel.threads, &tune->setting.bound_cores));
done:
    sl_train_config_destroy(given);
    return status;
}

/* What one element of a parameter costs the optimizer, and what tied ends exchange. */
static sl_status set_rates(sl_tune *tune)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    const sl_optim_options optim = sl_plan_optim_options(tune->config);
    enum { MANY = 1 << 20 };
    sl_dtype dtype = (sl_dtype)tune->config->precision.dtype, grad = (sl_dtype)tune->config->precision.grad;
    double state = (double)sl_optim_state_bytes(&optim, dtype, MANY) / MANY;
    /* The gradient is read twice, parameter and state are read and written. */
    double moved = 2 * (double)sl_dtype_size(grad) + 2 * (double)sl_dtype_size(dtype) + 2 * state;
    tune->setting = (tune_setting){ .cluster = &tune->cluster,
                                    .state_bytes = state,
                                    .update_seconds = moved / tune->cluster.bytes_per_s,
                                    .bound_cores = tune->setting.bound_cores,
                                    .own_memory = !tune->cluster.processors };
    SL_TRY(sl_device_open(tune->device, NULL, &device));
    tune->setting.context = (double)sl_device_get_memory(device).context;
    tune->setting.launch = (double)sl_device_get_memory(device).launch;
    int place = tune->plan->tied ? sl_param_list_find(tune->plan->params, tune->plan->embedding) : -1;
    if (place >= 0) {
        const sl_param_info *param = sl_param_list_at(tune->plan->params, place);
        const sl_meta meta = sl_meta_contiguous(param->dtype, &param->shape);
        tune->setting.tied_bytes = (double)sl_meta_bytes(&meta);
        tune->setting.tied_elements = (double)sl_meta_count(&meta);
    }
done:
    sl_device_close(device);
    return status;
}

sl_status sl_tune_measure_ranks(sl_tune *tune)
{
    sl_status status = SL_OK;
    tune_machine *machine = &tune->setting.machine;
    if (!tune->here)
        return SL_OK;
    SL_TRY(
        sl_tune_measure_machine(&tune->model, tune->ranks, tune->cluster.shared_cores, &tune->rank_moments, machine));
    if (machine->update > 0) {
        tune->setting.update_seconds = machine->update;
        tune->cluster.inside = machine->messages;
    }
done:
    return status;
}

/* The best ones at more moments. */
static sl_status measure_entries(sl_tune *tune)
{
    sl_status status = SL_OK;
    if (!tune->measure)
        return SL_OK;
    for (int moment = 0; moment < MORE_MOMENTS; moment++) {
        for (int i = 0; i < tune->entry_count; i++)
            SL_TRY(sl_tune_measure_entry(tune, i));
        SL_TRY(sl_tune_measure_ranks(tune));
    }
    SL_TRY(sl_tune_time_entries(tune));
done:
    return status;
}

sl_status sl_tune_create(const sl_tune_options *options, sl_tune **out)
{
    sl_status status = SL_OK;
    sl_tune *tune = NULL;
    SL_TRY(SL_NEW(tune));
    SL_TRY(sl_arena_create(&tune->arena));
    SL_TRY(copy_options(tune, options));
    SL_TRY(choose_devices(tune, options));
    SL_TRY(load_config(tune, NULL, &tune->config));
    SL_TRY(load_config(tune, "batch.size=1", &tune->sample));
    SL_TRY(sl_plan_create_shape(tune->sample, tune->device, NULL, &tune->plan));
    SL_TRY(sl_tune_read_model(tune->plan, tune->arena, &tune->model));
    SL_TRY(set_rates(tune));
    tune->here = tune->measure && !options->cluster;
    SL_TRY(sl_tune_measure_ranks(tune));
    SL_TRY(sl_tune_search(tune));
    for (int moment = 1; moment < MOMENTS && tune->measure; moment++) {
        SL_TRY(sl_tune_measure_layers(tune));
        SL_TRY(sl_tune_measure_ranks(tune));
    }
    if (tune->measure) {
        sl_tune_drop_entries(tune);
        tune->tried = 0;
        SL_TRY(sl_tune_search(tune));
    }
    SL_TRY(sl_tune_improve_entries(tune));
    SL_TRY(measure_entries(tune));
    SL_TRY(sl_tune_rank_entries(tune));
    *out = tune;
    tune = NULL;
done:
    sl_tune_destroy(tune);
    return status;
}

void sl_tune_destroy(sl_tune *tune)
{
    if (!tune)
        return;
    sl_tune_drop_entries(tune);
    for (int i = 0; i < tune->cost_count; i++) {
        sl_tune_moments_clear(&tune->costs[i].moments);
        sl_tune_moments_clear(&tune->costs[i].crowd_moments);
    }
    sl_tune_moments_clear(&tune->rank_moments);
    sl_free(tune->entries);
    sl_free(tune->costs);
    sl_train_plan_destroy(tune->plan);
    sl_train_config_destroy(tune->sample);
    sl_train_config_destroy(tune->config);
    sl_arena_destroy(tune->arena);
    sl_free(tune);
}

int sl_tune_count(const sl_tune *tune)
{
    return tune->entry_count;
}

int64_t sl_tune_tried(const sl_tune *tune)
{
    return tune->tried;
}

const sl_schedule *sl_tune_schedule(const sl_tune *tune, int index)
{
    return tune->entries[index].schedule;
}

sl_tune_choice sl_tune_get(const sl_tune *tune, int index)
{
    const tune_entry *entry = &tune->entries[index];
    const tune_candidate *own = &entry->candidate;
    double tokens = (double)(tune->config->batch.size * tune->config->batch.seq);
    return (sl_tune_choice){ .pp = own->pp,
                             .dp = own->dp,
                             .stages_per_rank = own->chunks,
                             .microbatches = own->microbatches,
                             .rows = own->rows,
                             .schedule = own->schedule,
                             .shard = shard_names[own->shard],
                             .recompute = own->recompute > 0 ? tune->model.recompute[own->recompute] : "",
                             .seconds = own->seconds,
                             .tokens_per_s = tokens / own->seconds,
                             .bubble = own->bubble,
                             .memory = own->memory,
                             .fullest = own->fullest,
                             .work = own->work,
                             .idle = own->idle,
                             .exchange = own->exchange,
                             .update = own->update,
                             .bound = entry->bound + own->exchange + own->update,
                             .why = entry->why };
}
