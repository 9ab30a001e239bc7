/* The plan's schedule and stages: a generator or a CSV file, and the model cut to fit it. */
#include "train/plan.h"

#include "base/alloc.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- Schedule -------------------------------------------------------------------------------- */

static bool is_file_name(const char *text)
{
    size_t length = strlen(text);
    return strchr(text, '/') || (length > 4 && sl_case_compare(text + length - 4, ".csv", 4) == 0) ||
           access(text, R_OK) == 0;
}

static sl_status load_schedule(sl_train_plan *plan)
{
    const sl_train_config *config = plan->config;
    sl_status status = sl_schedule_load_csv(config->parallel.schedule, &plan->own_schedule);
    if (status != SL_OK)
        return sl_train_config_context(config, "parallel.schedule", status);
    int ranks = sl_schedule_ranks(plan->own_schedule), microbatches = sl_schedule_microbatches(plan->own_schedule);
    if (ranks != config->parallel.pp)
        return sl_train_config_fail(config, "parallel.schedule", "it is for %d ranks, parallel.pp is %" PRId64, ranks,
                                    config->parallel.pp);
    if (microbatches != config->batch.microbatches)
        return sl_train_config_fail(config, "parallel.schedule",
                                    "it has %d microbatches, batch.microbatches is %" PRId64, microbatches,
                                    config->batch.microbatches);
    return SL_OK;
}

static sl_status generate_schedule(sl_train_plan *plan)
{
    const sl_train_config *config = plan->config;
    int64_t pp = config->parallel.pp, per_rank = config->parallel.stages_per_rank;
    if (per_rank == 0 && config->parallel.split.count > 0) {
        if ((config->parallel.split.count + 1) % pp != 0)
            return sl_train_config_fail(config, "parallel.split",
                                        "%" PRId64 " stages cannot be shared equally by %" PRId64 " ranks",
                                        config->parallel.split.count + 1, pp);
        per_rank = (config->parallel.split.count + 1) / pp;
    }
    const sl_generate_options options = { .name = config->parallel.schedule,
                                          .ranks = (int)pp,
                                          .microbatches = (int)config->batch.microbatches,
                                          .stages_per_rank = (int)per_rank };
    sl_status status = sl_schedule_generate(&options, &plan->own_schedule);
    return status == SL_OK ? SL_OK : sl_train_config_context(config, "parallel.schedule", status);
}

sl_status sl_plan_make_schedule(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    bool known = false;
    for (int i = 0; sl_generator_name(i); i++)
        known |= sl_case_compare(sl_generator_name(i), config->parallel.schedule, SIZE_MAX) == 0;
    if (!plan->schedule) {
        SL_TRY(!known && is_file_name(config->parallel.schedule) ? load_schedule(plan) : generate_schedule(plan));
        plan->schedule = plan->own_schedule;
    }
    plan->stage_count = sl_schedule_stages(plan->schedule);
    int64_t points = config->parallel.split.count, per_rank = config->parallel.stages_per_rank;
    if (!sl_schedule_has_backward(plan->schedule))
        SL_TRY(sl_train_config_fail(config, "parallel.schedule", "it has no backward actions"));
    if (per_rank > 0 && per_rank * config->parallel.pp != plan->stage_count)
        SL_TRY(sl_train_config_fail(config, "parallel.stages_per_rank",
                                    "the schedule has %d stages on %" PRId64 " ranks", plan->stage_count,
                                    config->parallel.pp));
    if (points > 0 && points + 1 != plan->stage_count)
        SL_TRY(sl_train_config_fail(config, "parallel.split",
                                    "%" PRId64 " points make %" PRId64 " stages, the schedule has %d", points,
                                    points + 1, plan->stage_count));
done:
    return status;
}

/* ---- Cut ------------------------------------------------------------------------------------- */

/* Rows of the microbatches: the first rows % m of them have one more. */
static void choose_sizes(sl_train_plan *plan)
{
    int64_t microbatches = plan->config->batch.microbatches;
    plan->rows = plan->config->batch.size / plan->config->parallel.dp;
    plan->sizes[0] = (plan->rows + microbatches - 1) / microbatches;
    plan->sizes[1] = plan->rows / microbatches;
    plan->size_count = plan->sizes[0] == plan->sizes[1] ? 1 : 2;
}

/* Modules by their names in the graph: "h.1" stands for "transformer.h.1". */
static sl_status complete_names(sl_train_plan *plan, const sl_texts *given, sl_texts *out)
{
    sl_status status = SL_OK;
    SL_TRY(SL_ARENA_ARRAY(plan->arena, out->items, given->count + 1));
    for (int64_t i = 0; i < given->count; i++) {
        char full[512];
        SL_TRY(sl_model_module(&plan->model, given->items[i], full, sizeof full));
        SL_TRY(sl_arena_strdup(plan->arena, full, (char **)(void *)&out->items[i]));
    }
    out->count = given->count;
done:
    return status;
}

static sl_status cut_first(sl_train_plan *plan, const sl_graph *graph)
{
    sl_status status = SL_OK;
    const sl_texts *split = &plan->split;
    sl_split_point *points = NULL;
    sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = plan->stage_count };
    SL_TRY(SL_NEW_ARRAY(points, split->count + 1));
    if (split->count > 0) {
        for (int64_t i = 0; i < split->count; i++)
            points[i] = (sl_split_point){ .module = split->items[i] };
        spec = (sl_split_spec){ .kind = SL_SPLIT_POINTS, .points = points, .point_count = (int)split->count };
    } else if (plan->stage_count == 1) {
        spec.kind = SL_SPLIT_WHOLE;
    }
    status = sl_graph_partition(graph, &spec, &plan->partitions[0]);
    if (status != SL_OK && status != SL_ERR_MEMORY)
        status =
            sl_train_config_fail(plan->config, split->count > 0 ? "parallel.split" : "parallel.pp",
                                 "the model cannot be cut into %d stages: %s", plan->stage_count, sl_error_message());
done:
    sl_free(points);
    return status;
}

static sl_status cut_again(sl_train_plan *plan, const sl_graph *graph)
{
    sl_split_spec spec = { .kind = SL_SPLIT_NODES };
    spec.nodes = sl_partition_cuts(plan->partitions[0], &spec.node_count);
    if (spec.node_count == 0)
        spec.kind = SL_SPLIT_WHOLE;
    return sl_graph_partition(graph, &spec, &plan->partitions[1]);
}

static sl_status note_stages(sl_train_plan *plan, const sl_graph *graph)
{
    sl_status status = SL_OK;
    int cut_count = 0;
    const int *cuts = sl_partition_cuts(plan->partitions[0], &cut_count);
    int *slots = NULL;
    SL_TRY(SL_ARENA_ARRAY(plan->arena, plan->stages, plan->stage_count));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, slots, plan->stage_count));
    SL_TRY(sl_schedule_count_slots(plan->schedule, NULL, slots));
    for (int s = 0; s < plan->stage_count; s++) {
        sl_plan_stage *stage = &plan->stages[s];
        int first = s == 0 ? 0 : cuts[s - 1];
        int last = (s < cut_count ? cuts[s] : sl_graph_node_count(graph)) - 1;
        stage->rank = sl_schedule_rank_of(plan->schedule, s);
        stage->cost = sl_partition_stage_cost(plan->partitions[0], s);
        stage->slots = slots[s];
        SL_TRY(sl_arena_strdup(plan->arena, sl_graph_node_name(graph, first), (char **)(void *)&stage->first));
        SL_TRY(sl_arena_strdup(plan->arena, sl_graph_node_name(graph, last), (char **)(void *)&stage->last));
    }
done:
    return status;
}

static sl_status build_graph(const sl_train_plan *plan, const sl_model_shape *shape, sl_graph **out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    SL_TRY(sl_model_build(&plan->graph_model, SL_MODE_TRAIN, shape, &graph));
    SL_TRY(sl_graph_freeze(graph, plan->frozen_names.items, (int)plan->frozen_names.count));
    *out = graph;
    graph = NULL;
done:
    sl_graph_destroy(graph);
    return status;
}

sl_status sl_plan_shape(const sl_train_plan *plan, int64_t rows, sl_model_shape *out)
{
    sl_device_kind kind = SL_DEVICE_CPU;
    sl_status status = sl_device_find_kind(plan->device, &kind);
    if (status != SL_OK)
        return status;
    /* Replicas may share weights, which then lie otherwise; the bits are not to depend on that. */
    *out = (sl_model_shape){ .batch = rows,
                             .seq = plan->config->batch.seq,
                             .dtype = (sl_dtype)plan->config->precision.dtype,
                             .documents = plan->config->data.documents,
                             .joined = kind == SL_DEVICE_CUDA && plan->config->parallel.dp == 1 &&
                                       plan->frozen_names.count == 0 };
    return SL_OK;
}

sl_status sl_plan_cut(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL, *smaller = NULL;
    sl_model_shape shape;
    choose_sizes(plan);
    SL_TRY(sl_plan_shape(plan, plan->sizes[0], &shape));
    SL_TRY(build_graph(plan, &shape, &graph));
    SL_TRY(complete_names(plan, &plan->config->parallel.split, &plan->split));
    SL_TRY(complete_names(plan, &plan->config->parallel.recompute, &plan->recompute));
    SL_TRY(cut_first(plan, graph));
    if (plan->size_count == 2) {
        shape.batch = plan->sizes[1];
        SL_TRY(build_graph(plan, &shape, &smaller));
        SL_TRY(cut_again(plan, smaller));
    }
    SL_TRY(note_stages(plan, graph));
done:
    sl_graph_destroy(smaller);
    sl_graph_destroy(graph);
    return status;
}
