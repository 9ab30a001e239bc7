/* The memory of every rank of a pipeline, to the byte, before any is taken. */
#include "pipeline/pipeline.h"

/* The first weight of the same tie on the same rank: they share their values. NULL: this is it. */
static const sl_wire_weight *find_earlier(const sl_wiring *wiring, int rank, const sl_wire_weight *weight)
{
    for (int i = 0; weight->tie >= 0; i++) {
        sl_tie_member member = wiring->ties[weight->tie].members[i];
        const sl_wire_weight *each = &wiring->stages[member.stage].weights[member.weight];
        if (each == weight)
            return NULL;
        if (wiring->stages[member.stage].rank == rank)
            return each;
    }
    return NULL;
}

static void place_weights(const sl_pipeline *pipeline, int rank, sl_pipeline_memory *memory)
{
    const sl_wiring *wiring = pipeline->wiring;
    for (int k = 0; k < wiring->ranks[rank].stage_count; k++) {
        sl_wire_stage *stage = &wiring->stages[wiring->ranks[rank].stages[k]];
        if (wiring->shard != SL_SHARD_FULL) {
            stage->packed_offset = memory->packed;
            memory->packed += sl_round_up(stage->packed_bytes);
        }
        for (int i = 0; i < stage->weight_count; i++) {
            sl_wire_weight *weight = &stage->weights[i];
            weight->source = weight->own_data ? NULL : find_earlier(wiring, rank, weight);
            if (!weight->own_data && !weight->source) {
                weight->data_offset = memory->params;
                memory->params += sl_round_up(weight->data_room);
            }
            if (!weight->frozen && pipeline->training && !weight->own_grad) {
                weight->grad_offset = memory->grads;
                memory->grads += sl_round_up(weight->grad_room);
            }
        }
    }
}

bool sl_root_is_contiguous(const sl_wire_root *root)
{
    if (root->kind == SL_CHUNK_REPLICATE)
        return true;
    if (root->kind == SL_CHUNK_CUSTOM)
        return false;
    int dim = root->dim < 0 ? root->dim + root->whole.shape.rank : root->dim;
    for (int i = 0; i < dim; i++) {
        if (root->whole.shape.dims[i] != 1)
            return false;
    }
    return true;
}

/* Else the device works by itself. */
static bool is_on_host(const sl_pipeline *pipeline)
{
    return pipeline->messages == SL_MESSAGES_ON_HOST;
}

/* Root inputs that must be copied, each once however many stages of the rank read it. If they are copied to a device,
 * the state of the generator goes with them, behind the last. */
static void count_inputs(const sl_pipeline *pipeline, int rank, sl_pipeline_memory *memory)
{
    const sl_wiring *wiring = pipeline->wiring;
    for (int r = 0; r < wiring->root_count; r++) {
        const sl_wire_root *root = &wiring->roots[r];
        bool used = false;
        for (int k = 0; k < wiring->ranks[rank].stage_count && !used; k++) {
            const sl_wire_stage *stage = &wiring->stages[wiring->ranks[rank].stages[k]];
            for (int i = 0; i < stage->input_count; i++)
                used |= stage->inputs[i].root == r;
        }
        if (used && !(is_on_host(pipeline) && sl_root_is_contiguous(root)))
            memory->inputs += sl_round_up(sl_wiring_bytes(wiring, root->metas)) * (size_t)wiring->microbatches;
    }
    if (!is_on_host(pipeline))
        memory->inputs += sl_round_up(sizeof(sl_rng));
}

/* Gradients of tied weights come from other ranks, through copies. */
static bool has_far_tie(const sl_pipeline *pipeline, int rank)
{
    for (int i = pipeline->routes.edge_routes; !is_on_host(pipeline) && i < pipeline->routes.count; i++) {
        if (pipeline->routes.list[i].dst == rank)
            return true;
    }
    return false;
}

/* ---- Staging --------------------------------------------------------------------------------- */

/* For one exchange whose largest tensor, all ranks' parts together, has so many bytes. */
static size_t staging_bytes(size_t largest)
{
    const size_t least = (size_t)64 << 10,
                 most = (size_t)16 << 20; /* turns of 16 MiB take far longer than their words */
    size_t half = largest < least ? least : largest > most ? most : largest;
    return 2 * sl_round_up(half);
}

size_t sl_staging_of_tie(const sl_wiring *wiring, const sl_wire_tie *tie)
{
    const sl_wire_weight *first = &wiring->stages[tie->members[0].stage].weights[tie->members[0].weight];
    bool far = false;
    for (int p = 1; p < tie->member_count; p++)
        far |= wiring->stages[tie->members[p].stage].rank != wiring->stages[tie->members[0].stage].rank;
    return far && !first->frozen ? staging_bytes(sl_meta_bytes(&first->kept_grad_meta)) : 0;
}

static size_t staging_of_ties(const sl_wiring *wiring, int rank)
{
    size_t bytes = 0;
    for (int t = 0; t < wiring->tie_count; t++) {
        const sl_wire_tie *tie = &wiring->ties[t];
        bool here = false;
        for (int p = 0; p < tie->member_count; p++)
            here |= wiring->stages[tie->members[p].stage].rank == rank;
        bytes += here ? sl_staging_of_tie(wiring, tie) : 0;
    }
    return bytes;
}

sl_staging sl_staging_of(const sl_wiring *wiring, int rank, bool training)
{
    size_t weights = 0, grads = 0; /* of the largest stage */
    bool shards = wiring->shard != SL_SHARD_NONE && wiring->replicas > 1;
    for (int k = 0; k < wiring->ranks[rank].stage_count; k++) {
        const sl_wire_stage *stage = &wiring->stages[wiring->ranks[rank].stages[k]];
        size_t stage_weights = 0, stage_grads = 0;
        for (int i = 0; i < stage->weight_count; i++) {
            stage_weights += sl_meta_bytes(&stage->weights[i].meta);
            stage_grads += stage->weights[i].frozen ? 0 : sl_meta_bytes(&stage->weights[i].grad_meta);
        }
        weights = stage_weights > weights ? stage_weights : weights;
        grads = stage_grads > grads ? stage_grads : grads;
    }
    return (sl_staging){ .sums = wiring->replicas > 1 ? staging_bytes(grads) : 0,
                         .gathers = shards && wiring->shard_group > 1 ? staging_bytes(weights) : 0,
                         .joins = shards && wiring->shard_group < wiring->replicas ? staging_bytes(grads) : 0,
                         .ties = training ? staging_of_ties(wiring, rank) : 0 };
}

static bool runs_beside(const sl_rank_program *program)
{
    for (int64_t i = 0; i < program->instr_count; i++) {
        if (program->instrs[i].beside)
            return true;
    }
    return false;
}

static void count_rank(sl_pipeline *pipeline, int rank)
{
    const sl_wiring *wiring = pipeline->wiring;
    sl_rank_plan *plan = &pipeline->ranks[rank];
    sl_pipeline_memory *memory = &plan->memory;
    place_weights(pipeline, rank, memory);
    count_inputs(pipeline, rank, memory);
    for (int k = 0; k < wiring->ranks[rank].stage_count; k++) {
        const sl_wire_stage *stage = &wiring->stages[wiring->ranks[rank].stages[k]];
        memory->scratch = stage->scratch_bytes > memory->scratch ? stage->scratch_bytes : memory->scratch;
        for (int size = 0; size < wiring->size_count; size++)
            memory->constants += sl_round_up(stage->constant_bytes[size]);
    }
    if (runs_beside(&plan->train)) {
        plan->beside_at = sl_round_up(memory->scratch);
        memory->scratch += plan->beside_at;
    }
    if (has_far_tie(pipeline, rank) && memory->scratch < 2 * SL_TIE_PIECE_BYTES)
        memory->scratch = 2 * SL_TIE_PIECE_BYTES; /* pieces of others' gradients, if they cannot be used in place */
    if (wiring->loss_stage >= 0 && wiring->stages[wiring->loss_stage].rank == rank)
        plan->scalar_bytes = 2 * (size_t)wiring->microbatches * SL_SCALAR_STRIDE;
    plan->slot_bytes = sl_slots_layout(&plan->slots);
    memory->slots = plan->slot_bytes + plan->scalar_bytes;
    memory->offload = sl_slots_layout(&plan->host_slots);
    memory->device = memory->params + memory->grads + memory->constants + memory->packed + memory->slots +
                     memory->scratch + memory->inputs;
}

void sl_pipeline_count_memory(sl_pipeline *pipeline)
{
    for (int r = 0; r < pipeline->wiring->rank_count; r++)
        count_rank(pipeline, r);
    /* On a device that works by itself gradients of tied weights have their staging, not routes. */
    int routes = is_on_host(pipeline) ? pipeline->routes.count : pipeline->routes.edge_routes;
    for (int i = 0; i < routes; i++) {
        const sl_route *route = &pipeline->routes.list[i];
        pipeline->ranks[route->dst].memory.messages += (size_t)route->capacity * route->bytes;
    }
    for (int r = 0; !is_on_host(pipeline) && r < pipeline->wiring->rank_count; r++) {
        sl_staging staging = sl_staging_of(pipeline->wiring, r, pipeline->training);
        pipeline->ranks[r].memory.messages += staging.sums + staging.gathers + staging.joins + staging.ties;
    }
}
