/* The pure compile, step by step: wiring, schedule, programs, capacities, memory. */
#include "pipeline/pipeline.h"

#include "base/alloc.h"
#include "schedule/schedule.h"

#include <inttypes.h>

/* ---- Schedule -------------------------------------------------------------------------------- */

/* The caller's schedule with all that its stages and replicas need. One that has messages keeps their order. Waits for
 * sends are checked and left out: a message lies in its channel once it is sent. */
static sl_status add_actions(const sl_pipeline_options *options, const sl_edge *edges, int edge_count,
                             sl_schedule **out)
{
    sl_status status = SL_OK;
    const sl_schedule *given = options->schedule;
    sl_schedule *posted = NULL, *tight = NULL, *more = NULL;
    bool full = options->shard == SL_SHARD_FULL;
    bool reduce = (options->replicas > 1 || full) && sl_schedule_has_backward(given) &&
                  !sl_schedule_has_kind(given, SL_KIND_REDUCE_GRAD);
    bool unshard = full && !sl_schedule_has_kind(given, SL_KIND_UNSHARD);
    if (!sl_schedule_has_messages(given)) {
        const sl_lower_options passes = {
            .edges = edges,
            .edge_count = edge_count,
            .max_active_stages = options->unsharded_stages,
            .no_unshard = !unshard,
            .no_reduce_grad = !reduce,
        };
        return sl_schedule_lower(given, &passes, out);
    }
    SL_TRY(sl_schedule_check(given, &(sl_check_options){ .edges = edges, .edge_count = edge_count }, NULL));
    SL_TRY(sl_schedule_drop_send_waits(given, &posted));
    SL_TRY(sl_schedule_tighten_messages(posted, edges, edge_count, &tight));
    if (unshard) {
        SL_TRY(sl_schedule_add_unshard(tight, options->unsharded_stages, &more));
        sl_schedule_destroy(tight);
        tight = more;
    }
    if (reduce) {
        SL_TRY(sl_schedule_add_reduce_grad(tight, out));
    } else {
        *out = tight;
        tight = NULL;
    }
done:
    sl_schedule_destroy(posted);
    sl_schedule_destroy(tight);
    return status;
}

/* A receive holds up its rank here, while elsewhere it may only be posted. So it stands right before its use; channels will
 * have room for what is received later than in the order of all messages. Only a message that has to be copied first is
 * received in that order, which leaves time for the copy. */
static sl_status lower(const sl_pipeline_options *options, const sl_edge *edges, int edge_count, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_schedule *whole = NULL;
    SL_TRY(add_actions(options, edges, edge_count, &whole));
    if (options->messages != SL_MESSAGES_STAGED)
        SL_TRY(sl_schedule_defer_receives(whole));
    *out = whole;
    whole = NULL;
done:
    sl_schedule_destroy(whole);
    return status;
}

static sl_status prepare_schedule(sl_pipeline *pipeline, const sl_pipeline_options *options)
{
    sl_status status = SL_OK;
    sl_edge *edges = NULL;
    int edge_count = 0;
    sl_violation violation = { .rank = -1 };
    SL_TRY(sl_wiring_stage_edges(pipeline->wiring, &edges, NULL, &edge_count));
    status = lower(options, edges, edge_count, &pipeline->schedule);
    if (status == SL_ERR_SCHEDULE)
        sl_fail_context(status, "schedule");
    SL_TRY(status);
    const sl_check_options checks = { .edges = edges, .edge_count = edge_count };
    status = sl_schedule_check(pipeline->schedule, &checks, &violation);
    if (status == SL_ERR_SCHEDULE && violation.rank >= 0)
        sl_fail(status, "schedule: rank %d, cell %lld, '%s': %s", violation.rank, (long long)violation.cell,
                violation.text, violation.reason);
done:
    sl_free(edges);
    return status;
}

/* Every stage can run what the schedule asks of it. */
static sl_status check_stages(const sl_pipeline *pipeline)
{
    for (int r = 0; r < pipeline->wiring->rank_count; r++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(pipeline->schedule, r, &count);
        for (int64_t i = 0; i < count; i++) {
            sl_action parts[2];
            int part_count = sl_action_parts(actions[i], parts);
            for (int k = 0; k < part_count; k++) {
                const sl_wire_stage *stage = &pipeline->wiring->stages[parts[k].stage];
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

/* All ranks' programs of one mode, and with them the capacity of the routes. */
static sl_status compile_mode(sl_pipeline *pipeline, bool training)
{
    sl_status status = SL_OK;
    int ranks = pipeline->wiring->rank_count;
    const sl_rank_program **programs = NULL;
    SL_TRY(SL_NEW_ARRAY(programs, ranks));
    for (int r = 0; r < ranks; r++) {
        sl_rank_plan *plan = &pipeline->ranks[r];
        sl_rank_program *program = training ? &plan->train : &plan->eval;
        const sl_compile_options options = { .wiring = pipeline->wiring,
                                             .schedule = pipeline->schedule,
                                             .routes = &pipeline->routes,
                                             .rank = r,
                                             .training = training,
                                             .in_place = pipeline->messages != SL_MESSAGES_STAGED,
                                             .overlaps = pipeline->overlaps,
                                             .slots = &plan->slots,
                                             .host_slots = &plan->host_slots,
                                             .offload_bytes = training ? pipeline->offload_bytes : 0 };
        SL_TRY(sl_rank_program_compile(&options, program));
        programs[r] = program;
    }
    SL_TRY(sl_routes_size(&pipeline->routes, programs, ranks, pipeline->messages == SL_MESSAGES_ON_HOST));
done:
    sl_free(programs);
    return status;
}

sl_status sl_pipeline_compile(const sl_pipeline_options *options, sl_pipeline **out)
{
    sl_status status = SL_OK;
    sl_pipeline *pipeline = NULL;
    if (!options || !options->schedule)
        return sl_fail(SL_ERR_ARGUMENT, "no schedule was given");
    SL_TRY(SL_NEW(pipeline));
    pipeline->messages = options->messages;
    pipeline->offload_bytes = options->offload_bytes;
    pipeline->overlaps = options->overlaps;
    SL_TRY(sl_wiring_create(options, &pipeline->wiring));
    SL_TRY(prepare_schedule(pipeline, options));
    pipeline->training = sl_schedule_has_backward(pipeline->schedule);
    SL_TRY(check_stages(pipeline));
    SL_TRY(sl_routes_create(pipeline->wiring, pipeline->training, &pipeline->routes));
    SL_TRY(SL_NEW_ARRAY(pipeline->ranks, pipeline->wiring->rank_count));
    if (pipeline->training)
        SL_TRY(compile_mode(pipeline, true));
    SL_TRY(compile_mode(pipeline, false));
    sl_pipeline_count_memory(pipeline);
    *out = pipeline;
    pipeline = NULL;
done:
    sl_pipeline_destroy(pipeline);
    return status;
}

void sl_pipeline_destroy(sl_pipeline *pipeline)
{
    if (!pipeline)
        return;
    for (int r = 0; pipeline->ranks && r < pipeline->wiring->rank_count; r++) {
        sl_rank_program_free(&pipeline->ranks[r].train);
        sl_rank_program_free(&pipeline->ranks[r].eval);
        sl_slots_free(&pipeline->ranks[r].slots);
        sl_slots_free(&pipeline->ranks[r].host_slots);
    }
    sl_free(pipeline->ranks);
    sl_routes_free(&pipeline->routes);
    sl_schedule_destroy(pipeline->schedule);
    sl_wiring_destroy(pipeline->wiring);
    sl_free(pipeline);
}

/* ---- Questions ------------------------------------------------------------------------------- */

const sl_schedule *sl_pipeline_schedule(const sl_pipeline *pipeline)
{
    return pipeline->schedule;
}

int sl_pipeline_ranks(const sl_pipeline *pipeline)
{
    return pipeline->wiring->rank_count;
}

int sl_pipeline_stages(const sl_pipeline *pipeline)
{
    return pipeline->wiring->stage_count;
}

int sl_pipeline_microbatches(const sl_pipeline *pipeline)
{
    return pipeline->wiring->microbatches;
}

sl_pipeline_memory sl_pipeline_get_memory(const sl_pipeline *pipeline, int rank)
{
    return pipeline->ranks[rank].memory;
}

size_t sl_pipeline_offloaded(const sl_pipeline *pipeline, int stage)
{
    const sl_wire_stage *wire = &pipeline->wiring->stages[stage];
    const sl_rank_program *program = &pipeline->ranks[wire->rank].train;
    size_t bytes = 0;
    for (int64_t i = 0; i < program->instr_count; i++) {
        const sl_pipeline_instr *instr = &program->instrs[i];
        if (instr->code == SL_CODE_OFFLOAD && instr->stage == stage)
            bytes += instr->index == SL_REGION_SAVED_I ? wire->saved_i_bytes : wire->saved_w_bytes;
    }
    return bytes;
}

const sl_route *sl_pipeline_routes(const sl_pipeline *pipeline, int *count)
{
    *count = pipeline->routes.count;
    return pipeline->routes.list;
}

const sl_pipeline_edge *sl_pipeline_edges(const sl_pipeline *pipeline, int *count)
{
    *count = pipeline->wiring->edge_count;
    return pipeline->wiring->edges;
}

sl_pipeline_program sl_pipeline_get_program(const sl_pipeline *pipeline, int rank, bool training)
{
    const sl_rank_program *program = training ? &pipeline->ranks[rank].train : &pipeline->ranks[rank].eval;
    return (sl_pipeline_program){ .actions = program->actions,
                                  .action_count = program->action_count,
                                  .instrs = program->instrs,
                                  .instr_count = program->instr_count,
                                  .tail = program->tail,
                                  .cell_count = program->cell_count };
}

/* In a gather or a scattered sum a rank gets all but its own part; a sum that all ranks get is both. */
void sl_pipeline_cost_collectives(const sl_pipeline *pipeline, double bytes_per_s, sl_stage_cost *stages)
{
    const sl_wiring *wiring = pipeline->wiring;
    double dp = wiring->replicas, group = wiring->shard_group;
    for (int s = 0; s < wiring->stage_count; s++) {
        double weights = 0, updated = 0, grads = 0;
        for (int i = 0; i < wiring->stages[s].weight_count; i++) {
            const sl_wire_weight *weight = &wiring->stages[s].weights[i];
            weights += (double)sl_meta_bytes(&weight->meta);
            updated += weight->frozen || weight->source ? 0 : (double)sl_meta_bytes(&weight->meta);
            grads += weight->frozen ? 0 : (double)sl_meta_bytes(&weight->grad_meta);
        }
        double scatter = (dp - 1) / dp * grads / bytes_per_s;
        double join = (dp - group) / dp / group * grads / bytes_per_s; /* a shard, from the other groups */
        double gathered = (group - 1) / group / bytes_per_s;           /* of a byte */
        stages[s].reshard = 0;
        stages[s].unshard = wiring->shard == SL_SHARD_FULL ? gathered * weights : 0;
        stages[s].gather = wiring->shard == SL_SHARD_OPTIMIZER ? gathered * updated : 0;
        stages[s].reduce_grad = wiring->shard == SL_SHARD_NONE ? 2 * scatter : scatter + join;
    }
}

sl_status sl_pipeline_simulate(const sl_pipeline *pipeline, const sl_costs *costs, sl_timeline **out)
{
    sl_status status = SL_OK;
    sl_edge *edges = NULL;
    double *bytes = NULL;
    int count = 0;
    sl_costs own;
    sl_costs_init(&own);
    if (costs)
        own = *costs;
    SL_TRY(sl_wiring_stage_edges(pipeline->wiring, &edges, &bytes, &count));
    own.edge_sizes = bytes;
    SL_TRY(sl_schedule_simulate(pipeline->schedule, &own, edges, count, out));
done:
    sl_free(edges);
    sl_free(bytes);
    return status;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static const char *const code_names[] = {
    [SL_CODE_RECEIVE] = "receive",
    [SL_CODE_RELEASE] = "release",
    [SL_CODE_RESERVE] = "reserve",
    [SL_CODE_COMMIT] = "commit",
    [SL_CODE_TO_MESSAGE] = "to_message",
    [SL_CODE_FROM_MESSAGE] = "from_message",
    [SL_CODE_ADD] = "add",
    [SL_CODE_RUN] = "run",
    [SL_CODE_LOSS] = "loss",
    [SL_CODE_OUTPUT] = "output",
    [SL_CODE_INPUT_GRAD] = "input_grad",
    [SL_CODE_OFFLOAD] = "offload",
    [SL_CODE_FETCH] = "fetch",
    [SL_CODE_UNSHARD] = "unshard",
    [SL_CODE_AWAIT_WEIGHTS] = "await_weights",
    [SL_CODE_RESHARD] = "reshard",
    [SL_CODE_OPEN_GRADS] = "open_grads",
    [SL_CODE_REDUCE_GRADS] = "reduce_grads",
    [SL_CODE_AWAIT_GRADS] = "await_grads",
};

static void dump_instr(const sl_pipeline *pipeline, const sl_pipeline_instr *instr, FILE *file)
{
    char text[128];
    fprintf(file, "    %-12s", code_names[instr->code]);
    if (instr->code >= SL_CODE_UNSHARD)
        fprintf(file, " stage %d", instr->stage);
    else if (instr->code == SL_CODE_RUN)
        fprintf(file, " phase %c%s", "FIWB"[instr->phase], instr -> beside ? " beside" : "");
    else if (instr->code == SL_CODE_OFFLOAD || instr->code == SL_CODE_FETCH)
        fprintf(file, " stage %d microbatch %d region %d", instr->stage, instr->microbatch, instr->index);
    else if (instr->code <= SL_CODE_COMMIT)
        fprintf(file, " route %d '%s'", instr->index, pipeline->routes.list[instr->index].name);
    if (instr->cell >= 0)
        fprintf(file, " cell %d", instr->cell);
    if (instr->from >= 0)
        fprintf(file, " from %d", instr->from);
    if (instr->meta)
        fprintf(file, " %s", sl_meta_text(instr->meta, text, sizeof text));
    fputc('\n', file);
}

sl_status sl_pipeline_dump(const sl_pipeline *pipeline, int rank, FILE *file)
{
    if (rank < 0 || rank >= pipeline->wiring->rank_count)
        return sl_fail(SL_ERR_ARGUMENT, "there is no rank %d among %d", rank, pipeline->wiring->rank_count);
    const sl_rank_plan *plan = &pipeline->ranks[rank];
    for (int training = pipeline->training; training >= 0; training--) {
        const sl_rank_program *program = training ? &plan->train : &plan->eval;
        fprintf(file, "rank %d, %s: %" PRId64 " instructions, %" PRId32 " cells\n", rank,
                training ? "training" : "evaluation", program->instr_count, program->cell_count);
        for (int64_t i = 0; i < program->action_count; i++) {
            const sl_pipeline_action *action = &program->actions[i];
            char text[SL_ACTION_TEXT_SIZE];
            fprintf(file, "  %s\n", sl_action_text(action->action, text, sizeof text));
            for (int64_t k = 0; k < action->count; k++)
                dump_instr(pipeline, &program->instrs[action->first + k], file);
        }
        for (int64_t k = program->tail; k < program->instr_count; k++)
            dump_instr(pipeline, &program->instrs[k], file);
    }
    return ferror(file) ? sl_fail(SL_ERR_IO, "writing the program of rank %d failed", rank) : SL_OK;
}
