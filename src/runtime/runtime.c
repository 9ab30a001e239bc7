/* Creates a runtime: agrees with the other ranks, lowers and checks the schedule, compiles, allocates, connects. */
#include "runtime/runtime.h"

#include "base/alloc.h"
#include "comm/group.h"

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
        if (options->stages[i]->state_count > 0 && sl_schedule_microbatches(options->schedule) > 1)
            return sl_fail(SL_ERR_ARGUMENT, "stage %d has state buffers: its schedule must have one microbatch, not %d",
                           options->stages[i]->index, sl_schedule_microbatches(options->schedule));
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
    runtime->device = options->device;
    runtime->host = sl_device_is_host(options->device);
    runtime->mean = options->mean;
    runtime->sum = options->sum;
    runtime->replica_params = options->replica_params;
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

/* ---- The pipeline ---------------------------------------------------------------------------- */

/* The stage's own rank infers its shapes and sends them to the others; if it fails, all fail. */
static sl_status infer_together(void *user, int s, int size, const sl_meta *inputs, int input_count, sl_meta *outputs,
                                int output_count)
{
    sl_status status = SL_OK;
    sl_runtime *runtime = user;
    sl_stage *own = NULL;
    for (int i = 0; i < runtime->stage_count; i++) {
        if (runtime->stages[i]->index == s)
            own = runtime->stages[i];
    }
    if (own) {
        for (int i = 0; i < input_count; i++)
            own->inputs[i].metas[size] = inputs[i];
        status = own->table->infer(own, size);
        for (int j = 0; status == SL_OK && j < output_count; j++)
            outputs[j] = own->outputs[j].metas[size];
    }
    SL_TRY(sl_gather_outcomes(runtime->group, "rank", status));
    SL_TRY(sl_group_broadcast(runtime->group, sl_schedule_rank_of(runtime->schedule, s), outputs,
                              (size_t)output_count * sizeof *outputs));
done:
    return status;
}

/* The stages of this rank get what was agreed. */
static void hand_back(const sl_runtime *runtime)
{
    for (int k = 0; k < runtime->stage_count; k++) {
        sl_stage *stage = runtime->stages[k];
        const sl_wire_stage *wire = &runtime->wiring->stages[stage->index];
        for (int i = 0; i < stage->input_count; i++)
            memcpy(stage->inputs[i].metas, wire->inputs[i].metas, sizeof wire->inputs[i].metas);
        for (int j = 0; j < stage->output_count; j++)
            memcpy(stage->outputs[j].metas, wire->outputs[j].metas, sizeof wire->outputs[j].metas);
    }
}

/* Collective. Ranks whose messages lie in the memory of the device that they share work on them in place. What goes to
 * the host meanwhile has streams of its own, which know nothing of messages. */
static sl_status choose_messages(const sl_runtime *runtime, const sl_runtime_options *options, sl_message_place *out)
{
    sl_status status = SL_OK;
    bool shared = false;
    SL_TRY(sl_ranks_share_device(runtime->group, runtime->device, &shared));
    shared = shared && sl_group_size(runtime->group) > 1 && options->offload_bytes == 0 && !options->staged_messages;
    *out = runtime->host ? SL_MESSAGES_ON_HOST : shared ? SL_MESSAGES_ON_DEVICE : SL_MESSAGES_STAGED;
done:
    return status;
}

sl_status sl_overlap_read_switch(sl_overlap_wish *out)
{
    const char *text = getenv("SLUICE_OVERLAP");
    if (text && *text && strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        return sl_fail(SL_ERR_ARGUMENT, "SLUICE_OVERLAP is '%s': it can be on or off", text);
    *out = !text || !*text ? SL_OVERLAP_UNSAID : strcmp(text, "on") == 0 ? SL_OVERLAP_ON : SL_OVERLAP_OFF;
    return SL_OK;
}

/* Collective: whether another rank of the pipeline has this rank's device. */
static sl_status share_device(const sl_runtime *runtime, bool *out)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(runtime->group), own = sl_group_rank(runtime->group);
    sl_rank_offer *offers = NULL;
    SL_TRY(SL_NEW_ARRAY(offers, ranks));
    SL_TRY(sl_rank_offers_gather(runtime->group, runtime->device, offers));
    *out = false;
    for (int r = 0; r < ranks; r++)
        *out = *out || (r != own && offers[r].machine == offers[own].machine && offers[r].kind == offers[own].kind &&
                        offers[r].unit == offers[own].unit);
done:
    sl_free(offers);
    return status;
}

/* Collective. Ranks that share a device fill it with each other's work. If they are threads of one process, they share its
 * queues to the device, too: a graph that has branches takes more of them, and one that stands behind another rank's wait
 * could hold up both for ever. A wrong switch is refused later, with the others. */
static sl_status choose_overlap(const sl_runtime *runtime, const sl_runtime_options *options, bool *out)
{
    sl_status status = SL_OK;
    sl_overlap_wish wish = SL_OVERLAP_OFF;
    bool shared = false;
    bool threads = strcmp(sl_group_transport(runtime->group), "threads") == 0;
    bool alone = sl_group_size(runtime->group) == 1 && (!options->replicas || sl_group_size(options->replicas) == 1);
    SL_TRY(share_device(runtime, &shared));
    bool is_read = sl_overlap_read_switch(&wish) == SL_OK;
    double obstacles =
        runtime->host || (shared && wish != SL_OVERLAP_ON) || (threads && !alone) || !is_read || wish == SL_OVERLAP_OFF;
    SL_TRY(sl_group_all_reduce(runtime->group, &obstacles, 1, SL_F64, SL_REDUCE_MAX));
    *out = obstacles == 0;
done:
    return status;
}

/* Collective: from what all ranks were given, the same pipeline on every rank, or the same error. */
static sl_status compile_together(sl_runtime *runtime, const sl_runtime_options *options, sl_status outcome)
{
    sl_status status = SL_OK;
    sl_arena *arena = NULL;
    sl_pipeline_options all;
    SL_TRY(sl_arena_create(&arena));
    SL_TRY(sl_gather_stages(options, outcome, arena, &all));
    all.replicas = options->replicas ? sl_group_size(options->replicas) : 1;
    all.shard = options->shard;
    all.shard_group = options->shard_group;
    all.unsharded_stages = options->unsharded_stages;
    all.offload_bytes = options->offload_bytes;
    SL_TRY(choose_messages(runtime, options, &all.messages));
    SL_TRY(choose_overlap(runtime, options, &all.overlaps));
    all.infer = infer_together;
    all.user = runtime;
    runtime->schedule = options->schedule; /* for infer_together, until it is lowered */
    SL_TRY(sl_pipeline_compile(&all, &runtime->pipeline));
    runtime->schedule = runtime->pipeline->schedule;
    runtime->wiring = runtime->pipeline->wiring;
    hand_back(runtime);
done:
    sl_arena_destroy(arena);
    return status;
}

/* For who looks at the run: where messages lie, and why. */
static void describe_messages(sl_runtime *runtime, const char *reason)
{
    int all = runtime->pipeline->routes.edge_routes,
        linked = runtime->links ? sl_device_links_count(runtime->links) : 0;
    size_t size = sizeof runtime->messages_text;
    if (runtime->host)
        snprintf(runtime->messages_text, size, "host memory");
    else if (all == 0)
        snprintf(runtime->messages_text, size, "none");
    else if (linked == all)
        snprintf(runtime->messages_text, size, "device memory, %s: %s", sl_device_links_way(runtime->links), reason);
    else if (linked == 0)
        snprintf(runtime->messages_text, size, "host memory: %s", reason);
    else
        snprintf(runtime->messages_text, size, "device memory on %d of %d routes, %s, else host memory: %s", linked,
                 all, sl_device_links_way(runtime->links), reason);
}

/* Collective: the routes of edges whose ends reach each other's device memory become links. */
static sl_status open_links(sl_runtime *runtime, const sl_channel_spec *specs)
{
    sl_status status = SL_OK;
    int count = runtime->pipeline->routes.edge_routes;
    if (runtime->words && count > 0)
        SL_TRY(sl_device_links_open(runtime->words, specs, count, runtime->wiring->microbatches, &runtime->links));
    describe_messages(runtime, runtime->links ? sl_device_links_reason(runtime->links) : "");
    if (runtime->links && runtime->pipeline->messages == SL_MESSAGES_ON_DEVICE &&
        sl_device_links_count(runtime->links) < count)
        return sl_fail(SL_ERR_COMM, "messages between ranks that share a device: %s",
                       sl_device_links_reason(runtime->links));
    if (runtime->links && sl_device_links_count(runtime->links) == 0) {
        sl_device_links_close(runtime->links);
        runtime->links = NULL;
    }
    if (runtime->links)
        SL_TRY(SL_NEW_ARRAY(runtime->link_counts, 3 * (int64_t)count));
done:
    return status;
}

static sl_status open_channels(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_channel_spec *specs = NULL, *others = NULL;
    sl_channel **opened = NULL;
    const sl_routes *routes = &runtime->pipeline->routes;
    uint8_t *ties_on_device = NULL;
    int count = 0;
    SL_TRY(SL_NEW_ARRAY(ties_on_device, runtime->tie_count));
    SL_TRY(sl_ties_open(runtime, ties_on_device));
    SL_TRY(SL_NEW_ARRAY(runtime->channels, routes->count));
    SL_TRY(SL_NEW_ARRAY(opened, routes->count));
    SL_TRY(SL_NEW_ARRAY(specs, routes->count));
    SL_TRY(SL_NEW_ARRAY(others, routes->count));
    for (int i = 0; i < routes->count; i++) {
        const sl_route *route = &routes->list[i];
        specs[i] = (sl_channel_spec){
            .id = i, .src = route->src, .dst = route->dst, .capacity = route->capacity, .max_bytes = route->bytes
        };
        if (route->dst == runtime->rank && !(i >= routes->edge_routes && ties_on_device[route->tie]))
            runtime->memory.messages += (size_t)route->capacity * route->bytes;
    }
    SL_TRY(open_links(runtime, specs));
    for (int i = 0; i < routes->count; i++) {
        bool on_device =
            i < routes->edge_routes ? sl_device_links_has(runtime->links, i) : ties_on_device[routes->list[i].tie];
        if (!on_device)
            others[count++] = specs[i];
    }
    SL_TRY(sl_group_open_channels(runtime->group, others, count, opened));
    for (int k = 0; k < count; k++)
        runtime->channels[others[k].id] = opened[k];
    sl_ties_take_channels(runtime);
    sl_group_set_in_order(runtime->group);
    if (runtime->links)
        sl_device_words_set_watch(runtime->words, sl_progress_is_held_up, runtime);
done:
    sl_free(ties_on_device);
    sl_free(opened);
    sl_free(others);
    sl_free(specs);
    return status;
}

static sl_exchange_ways count_exchanges(const sl_runtime *runtime)
{
    sl_exchange_ways ways = { .all = 0 };
    sl_exchange_count(&runtime->sharers.sums, &ways);
    sl_exchange_count(&runtime->sharers.gathers, &ways);
    sl_exchange_count(&runtime->sharers.joins, &ways);
    sl_ties_count_exchanges(runtime, &ways);
    return ways;
}

static void describe_collectives(sl_runtime *runtime)
{
    const sl_exchange_ways ways = count_exchanges(runtime);
    size_t size = sizeof runtime->collectives_text;
    char *text = runtime->collectives_text;
    if (ways.all > 0 && ways.on_device == ways.all)
        snprintf(text, size, "device memory, %s: %s", ways.way, ways.why);
    else if (ways.all > 0 && (runtime->host || !*ways.reason))
        snprintf(text, size, "host memory");
    else if (ways.all > 0 && ways.on_device == 0)
        snprintf(text, size, "host memory: %s", ways.reason);
    else if (ways.all > 0)
        snprintf(text, size, "device memory for %d of %d groups, %s, else host memory: %s", ways.on_device, ways.all,
                 ways.way, ways.reason);
    size_t used = strlen(text);
    if (used > 0 && runtime->sum == SL_SUM_FAST && runtime->replicas)
        snprintf(text + used, size - used, "; sums in %s",
                 sl_exchange_adds_in_order(&runtime->sharers.sums)
                     ? "the order of the replicas: without NCCL none is faster"
                     : "NCCL's order");
}

static void count_nccl(sl_runtime *runtime)
{
    sl_nccl_use use = { .groups = count_exchanges(runtime).communicators };
    if (runtime->links)
        runtime->memory.messages += sl_device_links_count_memory(runtime->links, &use);
    runtime->memory.messages += sl_nccl_memory(&use);
}

/* Collective: messages and collectives, through device memory if possible. */
static sl_status connect_ranks(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    if (!runtime->host && (runtime->wiring->rank_count > 1 || runtime->wiring->replicas > 1))
        SL_TRY(sl_device_words_open(runtime->group, runtime->device, &runtime->words));
    SL_TRY(open_channels(runtime));
    SL_TRY(sl_weights_connect(runtime));
    describe_collectives(runtime);
    count_nccl(runtime);
    if (runtime->words && !runtime->links && !sl_device_words_are_used(runtime->words)) {
        sl_device_words_close(runtime->words);
        runtime->words = NULL;
    }
done:
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* What each rank does on its own once the pipeline is compiled; the caller lets all ranks agree on the outcome. */
static sl_status build_local(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    SL_TRY(sl_runtime_check_environment());
    SL_TRY(sl_runtime_allocate(runtime, options));
    SL_TRY(sl_ties_create(runtime));
done:
    return status;
}

/* What the user has set wins over what the caller thinks right. */
static sl_status start_watchdog(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    double given = sl_group_action_timeout(runtime->group), seconds = given != 0 ? given : options->action_timeout;
    if (seconds <= 0)
        return SL_OK;
    SL_TRY(sl_phases_create(runtime));
    SL_TRY(sl_watchdog_start(runtime, seconds, &runtime->watchdog));
done:
    return status;
}

static sl_status build(sl_runtime *runtime, const sl_runtime_options *options)
{
    sl_status status = SL_OK;
    SL_TRY(sl_group_split(options->group, 0, sl_group_rank(options->group), &runtime->group));
    if (options->replicas) /* its own, too: it closes before the device, whose memory its collectives may hold */
        SL_TRY(sl_group_split(options->replicas, 0, sl_group_rank(options->replicas), &runtime->replicas));
    runtime->rank = sl_group_rank(runtime->group);
    sl_status outcome = check_options(options);
    if (outcome == SL_OK)
        outcome = take_options(runtime, options);
    sl_runtime_options own = *options;
    own.group = runtime->group;
    SL_TRY(compile_together(runtime, &own, outcome));
    SL_TRY(sl_weights_split_groups(runtime));
    SL_TRY(sl_gather_outcomes(runtime->group, "rank", build_local(runtime, &own)));
    SL_TRY(connect_ranks(runtime));
    SL_TRY(sl_gather_outcomes(runtime->group, "rank", sl_lanes_create(runtime)));
    if (runtime->host && runtime->replicas && sl_group_size(runtime->replicas) > 1 &&
        sl_mover_is_wanted(options->helper, runtime->replicas, runtime->device))
        SL_TRY(sl_mover_start(runtime->replicas, &runtime->mover));
    SL_TRY(start_watchdog(runtime, options));
    sl_store_commit(runtime);
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
    else if (status != SL_OK && status != SL_ERR_PEER && runtime && runtime->group)
        fail_together(runtime, status); /* without a group of its own: the caller's has failed before */
    sl_runtime_destroy(runtime);
    return status;
}

void sl_runtime_destroy(sl_runtime *runtime)
{
    if (!runtime)
        return;
    sl_watchdog_stop(runtime->watchdog);
    sl_mover_stop(runtime->mover);
    sl_weights_destroy(runtime); /* ends what is posted */
    sl_lanes_destroy(runtime);   /* streams may still use what follows */
    sl_phases_destroy(runtime);
    if (runtime->words)
        sl_device_words_leave(runtime->words);
    sl_weights_disconnect(runtime);
    sl_ties_close(runtime);
    sl_device_links_close(runtime->links);
    sl_free(runtime->link_counts);
    sl_device_words_close(runtime->words);
    sl_group_close(runtime->group); /* and with it the channels */
    sl_group_close(runtime->sharers.across);
    sl_group_close(runtime->sharers.shards);
    sl_group_close(runtime->replicas);
    for (int i = 0; runtime->stages && i < runtime->stage_count; i++)
        runtime->stages[i]->owner = NULL;
    sl_ties_destroy(runtime);
    sl_runtime_free_memory(runtime);
    sl_stream_destroy(runtime->stream);
    sl_program_free(&runtime->train);
    sl_program_free(&runtime->eval);
    sl_pipeline_destroy(runtime->pipeline);
    sl_free(runtime->stages);
    sl_free(runtime->channels);
    sl_trace_free(&runtime->trace);
    sl_free(runtime);
}

/* ---- Small questions ------------------------------------------------------------------------- */

int sl_runtime_microbatches(const sl_runtime *runtime)
{
    return runtime->wiring->microbatches;
}

const sl_pipeline *sl_runtime_pipeline(const sl_runtime *runtime)
{
    return runtime->pipeline;
}

const sl_schedule *sl_runtime_schedule(const sl_runtime *runtime)
{
    return runtime->schedule;
}

sl_stream *sl_runtime_stream(const sl_runtime *runtime)
{
    return runtime->stream;
}

const char *sl_runtime_messages(const sl_runtime *runtime)
{
    return runtime->messages_text;
}

const char *sl_runtime_collectives(const sl_runtime *runtime)
{
    return runtime->collectives_text;
}

sl_group *sl_runtime_group(const sl_runtime *runtime)
{
    return runtime->group;
}

sl_pipeline_memory sl_runtime_get_memory(const sl_runtime *runtime)
{
    return runtime->memory;
}

sl_status sl_runtime_set_action(sl_runtime *runtime, sl_kind kind, sl_action_fn fn, void *user)
{
    if ((int)kind < 0 || kind >= SL_KIND_COUNT)
        return sl_fail(SL_ERR_ARGUMENT, "there is no kind of action %d", (int)kind);
    if (kind == SL_KIND_WAIT_SEND_F || kind == SL_KIND_WAIT_SEND_B)
        return sl_fail(SL_ERR_ARGUMENT, "%s is never run: a message that was sent holds nobody up", sl_kind_name(kind));
    runtime->custom[kind].fn = fn;
    runtime->custom[kind].user = user;
    return SL_OK;
}
