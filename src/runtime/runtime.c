/* Creates a runtime: agrees with the other ranks, lowers and checks the schedule, compiles, allocates, connects. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- What this rank was given ---------------------------------------------------------------- */

static sl_status check_options(const sl_runtime_options *options)
{
    if (!options->device || !options->schedule)
        return sl_fail(SL_ERR_ARGUMENT, "no %s was given", options->device ? "schedule" : "device");
    int ranks = sl_schedule_ranks(options->schedule), size = sl_group_size(options->group);
    if (ranks != size)
        return sl_fail(SL_ERR_ARGUMENT, "the schedule is for %d ranks, the group has %d", ranks, size);
    if (options->stage_count < 0 || (options->stage_count > 0 && !options->stages))
        return sl_fail(SL_ERR_ARGUMENT, "%d stages are announced, but their list is NULL", options->stage_count);
    if (options->arg_count < 0 || (options->arg_count > 0 && !options->args))
        return sl_fail(SL_ERR_ARGUMENT, "%d argument specs are announced, but their list is NULL", options->arg_count);
    for (int i = 0; i < options->stage_count; i++) {
        if (!options->stages[i])
            return sl_fail(SL_ERR_ARGUMENT, "stage %d of the list is NULL", i);
        if (options->stages[i]->owner)
            return sl_fail(SL_ERR_ARGUMENT, "stage %d belongs to another runtime", options->stages[i]->index);
    }
    for (int i = 0; i < options->arg_count; i++) {
        if (!options->args[i].name)
            return sl_fail(SL_ERR_ARGUMENT, "argument spec %d has no name", i);
    }
    return SL_OK;
}

static int by_index(const void *left, const void *right)
{
    return (*(sl_stage *const *)left)->index - (*(sl_stage *const *)right)->index;
}

static sl_status take_options(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    runtime->replicas = options->replicas;
    runtime->device = options->device;
    runtime->host = sl_device_is_host(options->device);
    runtime->mean = options->mean;
    runtime->watch_loss = options->watch_loss;
    runtime->local_loss = options->local_loss;
    runtime->stage_count = options->stage_count;
    SL_TRY(SL_NEW_ARRAY(runtime->stages, options->stage_count));
    if (options->stage_count)
        memcpy(runtime->stages, options->stages, (size_t)options->stage_count * sizeof *runtime->stages);
    qsort(runtime->stages, (size_t)options->stage_count, sizeof *runtime->stages, by_index);
    for (int i = 0; i < options->stage_count; i++) {
        runtime->stages[i]->owner = runtime;
        sl_stage_reset(runtime->stages[i]);
    }
    SL_TRY(sl_stream_create(options->device, &runtime->stream));
    runtime->context.stream = runtime->stream;
    runtime->trace.capacity = options->trace_events > 0 ? options->trace_events : 0;
    SL_TRY(SL_NEW_ARRAY(runtime->trace.events, runtime->trace.capacity));
    if (runtime->trace.capacity)
        sl_clock_start(&runtime->trace.clock);
done:
    return status;
}

/* ---- Schedule -------------------------------------------------------------------------------- */

/* The caller's schedule with all that its stages and replicas need. One that has messages keeps their order, but waits
 * for each as late as it can: here a receive holds up its rank, where elsewhere it may only be posted. */
static sl_status lower(sl_runtime *runtime, const sl_schedule *given, const sl_edge *edges, int edge_count)
{
    sl_status status = SL_OK;
    sl_schedule *tight = NULL;
    bool reduce =
        runtime->replicas && sl_schedule_has_backward(given) && !sl_schedule_has_kind(given, SL_KIND_REDUCE_GRAD);
    if (!sl_schedule_has_messages(given)) {
        sl_lower_options options = { edges, edge_count, 0, true, !reduce, false };
        return sl_schedule_lower(given, &options, &runtime->schedule);
    }
    SL_TRY(sl_schedule_tighten_messages(given, edges, edge_count, &tight));
    if (reduce)
        SL_TRY(sl_schedule_add_reduce_grad(tight, &runtime->schedule));
    else
        runtime->schedule = tight;
done:
    if (tight != runtime->schedule)
        sl_schedule_destroy(tight);
    return status;
}

static sl_status prepare_schedule(sl_runtime *runtime, const sl_schedule *given)
{
    sl_status status = SL_OK;
    sl_edge *edges = NULL;
    int edge_count = 0;
    sl_violation violation = { .rank = -1 };
    SL_TRY(sl_wiring_stage_edges(runtime->wiring, &edges, &edge_count));
    status = lower(runtime, given, edges, edge_count);
    if (status == SL_ERR_SCHEDULE)
        sl_fail_context(status, "schedule");
    SL_TRY(status);
    sl_check_options options = { .edges = edges, .edge_count = edge_count };
    status = sl_schedule_check(runtime->schedule, &options, &violation);
    if (status == SL_ERR_SCHEDULE && violation.rank >= 0)
        sl_fail(status, "schedule: rank %d, cell %lld, '%s': %s", violation.rank, (long long)violation.cell,
                violation.text, violation.reason);
done:
    sl_free(edges);
    return status;
}

/* Every stage can run what the schedule asks of it. */
static sl_status check_stages(const sl_runtime *runtime)
{
    for (int r = 0; r < runtime->wiring->ranks; r++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(runtime->schedule, r, &count);
        for (int64_t i = 0; i < count; i++) {
            sl_action parts[2];
            int part_count = sl_action_parts(actions[i], parts);
            for (int k = 0; k < part_count; k++) {
                const sl_wire_stage *stage = &runtime->wiring->stages[parts[k].stage];
                bool backward = parts[k].kind != SL_KIND_F;
                bool apart = parts[k].kind == SL_KIND_I || parts[k].kind == SL_KIND_W;
                if (backward && !stage->can_train)
                    return sl_fail(SL_ERR_ARGUMENT, "stage %d has no backward, which the schedule runs",
                                   parts[k].stage);
                if (apart && !stage->can_split)
                    return sl_fail(SL_ERR_ARGUMENT,
                                   "stage %d has no backward_input and backward_weight, which the schedule runs apart",
                                   parts[k].stage);
            }
        }
    }
    return SL_OK;
}

/* ---- Programs -------------------------------------------------------------------------------- */

static sl_status compile_rank(sl_runtime *runtime, int rank, bool training, sl_program *out)
{
    bool own = rank == runtime->rank;
    sl_compile_options options = {
        .wiring = runtime->wiring,
        .schedule = runtime->schedule,
        .routes = &runtime->routes,
        .rank = rank,
        .training = training,
        .in_place = runtime->host,
        .layout = own ? &runtime->layout : NULL,
        .stages = own ? runtime->stages : NULL,
        .stage_count = own ? runtime->stage_count : 0,
    };
    return sl_program_compile(&options, out);
}

/* All ranks' programs, for the capacity of the routes; this rank's is kept. */
static sl_status compile_mode(sl_runtime *runtime, bool training, sl_program *own)
{
    sl_status status = SL_OK;
    int ranks = runtime->wiring->ranks;
    sl_program *programs = NULL;
    SL_TRY(SL_NEW_ARRAY(programs, ranks));
    for (int r = 0; r < ranks; r++)
        SL_TRY(compile_rank(runtime, r, training, &programs[r]));
    SL_TRY(sl_routes_size(&runtime->routes, programs, ranks));
    *own = programs[runtime->rank];
    programs[runtime->rank] = (sl_program){ 0 };
done:
    for (int r = 0; programs && r < ranks; r++)
        sl_program_free(&programs[r]);
    sl_free(programs);
    return status;
}

static sl_status compile_modes(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    SL_TRY(sl_arena_create(&runtime->layout.arena));
    SL_TRY(sl_routes_create(runtime->wiring, &runtime->routes));
    if (sl_schedule_has_backward(runtime->schedule))
        SL_TRY(compile_mode(runtime, true, &runtime->train));
    SL_TRY(compile_mode(runtime, false, &runtime->eval));
done:
    return status;
}

static sl_status open_channels(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_channel_spec *specs = NULL;
    int routes = runtime->routes.count, count = routes + sl_ties_channel_count(runtime);
    SL_TRY(SL_NEW_ARRAY(runtime->channels, count));
    SL_TRY(SL_NEW_ARRAY(specs, count));
    for (int i = 0; i < routes; i++) {
        const sl_route *route = &runtime->routes.list[i];
        specs[i] = (sl_channel_spec){
            .id = i, .src = route->src, .dst = route->dst, .capacity = route->capacity, .max_bytes = route->bytes
        };
        if (route->dst == runtime->rank)
            runtime->memory.messages += (size_t)route->capacity * route->bytes;
    }
    sl_ties_channel_specs(runtime, routes, specs + routes);
    SL_TRY(sl_group_open_channels(runtime->group, specs, count, runtime->channels));
    sl_ties_take_channels(runtime, runtime->channels + routes);
done:
    sl_free(specs);
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* What each rank does on its own once the wiring is agreed; the caller lets all ranks agree on the outcome. */
static sl_status build_local(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    SL_TRY(compile_modes(runtime));
    SL_TRY(sl_runtime_allocate(runtime, options));
    SL_TRY(sl_ties_create(runtime));
done:
    return status;
}

static sl_status build(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    SL_TRY(sl_group_split(options->group, 0, sl_group_rank(options->group), &runtime->group));
    runtime->rank = sl_group_rank(runtime->group);
    sl_status outcome = check_options(options);
    if (outcome == SL_OK)
        outcome = take_options(runtime, options);
    sl_runtime_options own = *options;
    own.group = runtime->group;
    SL_TRY(sl_wiring_create(&own, outcome, &runtime->wiring));
    SL_TRY(prepare_schedule(runtime, options->schedule)); /* from what all ranks know: all find the same */
    SL_TRY(check_stages(runtime));
    SL_TRY(sl_wiring_agree(runtime->group, build_local(runtime, &own)));
    SL_TRY(open_channels(runtime));
done:
    return status;
}

/* Every rank has found the same error, or hears of it now: none leaves before all have, for one that is gone is an error
 * of its own to those who wait for it. */
static void fail_together(sl_runtime *runtime, sl_status status)
{
    char message[2048];
    snprintf(message, sizeof message, "%s", sl_error_message());
    if (status == SL_ERR_MEMORY) /* one rank's own, which may have kept it from telling the others */
        sl_group_fail(runtime->group, status);
    else
        (void)!sl_group_barrier(runtime->group);
    sl_fail(status, "%s", message);
}

sl_status sl_runtime_create(const sl_runtime_options *options, sl_runtime **out)
{
    sl_status status = SL_OK;
    sl_runtime *runtime = NULL;
    if (!options || !options->group)
        return sl_fail(SL_ERR_ARGUMENT, "a runtime needs a group; a single process opens the transport 'self'");
    SL_TRY(SL_NEW(runtime));
    SL_TRY(build(runtime, options));
    *out = runtime;
    runtime = NULL;
done:
    if (status == SL_ERR_MEMORY && !(runtime && runtime->group))
        sl_group_fail(options->group, status);
    else if (status != SL_OK && status != SL_ERR_PEER)
        fail_together(runtime, status);
    sl_runtime_destroy(runtime);
    return status;
}

void sl_runtime_destroy(sl_runtime *runtime)
{
    if (!runtime)
        return;
    sl_group_close(runtime->group); /* and with it the channels */
    for (int i = 0; runtime->stages && i < runtime->stage_count; i++)
        runtime->stages[i]->owner = NULL;
    sl_ties_destroy(runtime);
    sl_runtime_free_memory(runtime);
    sl_stream_destroy(runtime->stream);
    sl_program_free(&runtime->train);
    sl_program_free(&runtime->eval);
    sl_routes_free(&runtime->routes);
    sl_slots_free(&runtime->layout.slots);
    sl_free(runtime->layout.places);
    sl_arena_destroy(runtime->layout.arena);
    sl_wiring_destroy(runtime->wiring);
    sl_schedule_destroy(runtime->schedule);
    sl_free(runtime->stages);
    sl_free(runtime->channels);
    sl_free(runtime->trace.events);
    sl_free(runtime);
}

/* ---- Small questions ------------------------------------------------------------------------- */

int sl_runtime_microbatches(const sl_runtime *runtime)
{
    return runtime->wiring->microbatches;
}

const sl_schedule *sl_runtime_schedule(const sl_runtime *runtime)
{
    return runtime->schedule;
}

sl_stream *sl_runtime_stream(const sl_runtime *runtime)
{
    return runtime->stream;
}

sl_group *sl_runtime_group(const sl_runtime *runtime)
{
    return runtime->group;
}

sl_runtime_memory sl_runtime_get_memory(const sl_runtime *runtime)
{
    return runtime->memory;
}

sl_status sl_runtime_set_action(sl_runtime *runtime, sl_kind kind, sl_action_fn fn, void *user)
{
    if ((int)kind < 0 || kind >= SL_KIND_COUNT)
        return sl_fail(SL_ERR_ARGUMENT, "there is no kind of action %d", (int)kind);
    runtime->custom[kind].fn = fn;
    runtime->custom[kind].user = user;
    return SL_OK;
}
