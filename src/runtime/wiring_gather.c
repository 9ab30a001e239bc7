/* Every rank tells all others of its stages, its arguments and its schedule, or of what went wrong with it. */
#include "runtime/wiring.h"

#include "base/alloc.h"
#include "runtime/pack.h"

#include <string.h>
#include <xxhash.h>

/* ---- Telling --------------------------------------------------------------------------------- */

static sl_status pack_metas(sl_pack *pack, const sl_meta *metas)
{
    return sl_pack_put(pack, metas, SL_MAX_SIZES * sizeof *metas);
}

/* A weight runner may read what the stage itself is done with before its weight gradient. */
static sl_phase last_use(const sl_stage *stage, sl_phase own)
{
    return stage->weight_runner ? SL_PHASE_W : own;
}

static sl_status pack_stage(sl_pack *pack, const sl_stage *stage)
{
    sl_status status = SL_OK;
    SL_TRY(sl_pack_int(pack, stage->index));
    SL_TRY(sl_pack_int(pack, stage->size_count));
    SL_TRY(sl_pack_int(pack, stage->can_train));
    SL_TRY(sl_pack_int(pack, stage->can_split));
    SL_TRY(sl_pack_int(pack, stage->table->infer != NULL));
    SL_TRY(sl_pack_int(pack, stage->table->writes_all_grads));
    SL_TRY(sl_pack_int(pack, stage->input_count));
    for (int i = 0; i < stage->input_count; i++) {
        const sl_border_value *value = &stage->inputs[i];
        SL_TRY(sl_pack_text(pack, value->name));
        SL_TRY(pack_metas(pack, value->metas));
        SL_TRY(sl_pack_int(pack, value->has_grad));
        SL_TRY(sl_pack_int(pack, last_use(stage, value->last_use)));
        SL_TRY(sl_pack_int(pack, value->maker));
        SL_TRY(sl_pack_int(pack, value->maker_output));
    }
    SL_TRY(sl_pack_int(pack, stage->output_count));
    for (int j = 0; j < stage->output_count; j++) {
        const sl_border_value *value = &stage->outputs[j];
        SL_TRY(sl_pack_text(pack, value->name));
        SL_TRY(pack_metas(pack, value->metas));
        SL_TRY(sl_pack_int(pack, value->has_grad));
        SL_TRY(sl_pack_int(pack, last_use(stage, value->last_use)));
        SL_TRY(sl_pack_int(pack, last_use(stage, value->grad_last_use)));
        SL_TRY(sl_pack_int(pack, value->loss));
    }
    SL_TRY(sl_pack_int(pack, stage->weight_count));
    for (int i = 0; i < stage->weight_count; i++) {
        SL_TRY(sl_pack_text(pack, stage->weights[i].name));
        SL_TRY(sl_pack_put(pack, &stage->weights[i].meta, sizeof stage->weights[i].meta));
        SL_TRY(sl_pack_int(pack, stage->weights[i].frozen));
    }
done:
    return status;
}

/* All actions of all ranks in one number. */
static int64_t hash_schedule(const sl_schedule *schedule)
{
    XXH64_hash_t hash = 0;
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
        hash = XXH64(actions, (size_t)count * sizeof *actions, hash);
    }
    return (int64_t)hash;
}

/* A rank's trouble so far, with the message it left. */
static sl_status pack_outcome(sl_pack *pack, sl_status outcome)
{
    sl_status status = SL_OK;
    SL_TRY(sl_pack_int(pack, outcome));
    SL_TRY(sl_pack_text(pack, outcome == SL_OK ? "" : sl_error_message()));
done:
    return status;
}

/* A spec that was left zero says nothing of the shape, either. */
static sl_meta spec_meta(const sl_arg_spec *arg)
{
    sl_meta meta = arg->meta;
    if (meta.dtype == SL_F32 && meta.shape.rank == 0)
        meta.shape.rank = -1;
    return meta;
}

static sl_status pack_rank(sl_pack *pack, const sl_runtime_options *options, sl_status outcome)
{
    sl_status status = SL_OK;
    SL_TRY(pack_outcome(pack, outcome));
    if (outcome != SL_OK)
        goto done;
    SL_TRY(sl_pack_int(pack, hash_schedule(options->schedule)));
    SL_TRY(sl_pack_int(pack, options->arg_count));
    for (int i = 0; i < options->arg_count; i++) {
        const sl_arg_spec *arg = &options->args[i];
        sl_meta meta = spec_meta(arg);
        SL_TRY(sl_pack_text(pack, arg->name));
        SL_TRY(sl_pack_put(pack, &meta, sizeof meta));
        SL_TRY(sl_pack_int(pack, arg->chunk.kind));
        SL_TRY(sl_pack_int(pack, arg->chunk.dim));
    }
    SL_TRY(sl_pack_int(pack, options->stage_count));
    for (int i = 0; i < options->stage_count; i++)
        SL_TRY(pack_stage(pack, options->stages[i]));
done:
    return status;
}

/* ---- Hearing --------------------------------------------------------------------------------- */

static sl_status unpack_stage(sl_wiring *wiring, sl_unpack *in, sl_wire_stage *stage)
{
    sl_status status = SL_OK;
    stage->size_count = (int)sl_unpack_int(in);
    stage->can_train = sl_unpack_int(in);
    stage->can_split = sl_unpack_int(in);
    stage->can_infer = sl_unpack_int(in);
    stage->writes_all_grads = sl_unpack_int(in);
    stage->input_count = (int)sl_unpack_int(in);
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, stage->inputs, stage->input_count));
    for (int i = 0; i < stage->input_count; i++) {
        sl_wire_input *value = &stage->inputs[i];
        SL_TRY(sl_arena_strdup(wiring->arena, sl_unpack_text(in), (char **)&value->name));
        sl_unpack_get(in, value->metas, sizeof value->metas);
        value->has_grad = sl_unpack_int(in);
        value->last_use = (sl_phase)sl_unpack_int(in);
        value->maker = (int)sl_unpack_int(in);
        value->maker_output = (int)sl_unpack_int(in);
        value->root = value->edge = -1;
    }
    stage->output_count = (int)sl_unpack_int(in);
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, stage->outputs, stage->output_count));
    for (int j = 0; j < stage->output_count; j++) {
        sl_wire_output *value = &stage->outputs[j];
        SL_TRY(sl_arena_strdup(wiring->arena, sl_unpack_text(in), (char **)&value->name));
        sl_unpack_get(in, value->metas, sizeof value->metas);
        value->has_grad = sl_unpack_int(in);
        value->last_use = (sl_phase)sl_unpack_int(in);
        value->grad_last_use = (sl_phase)sl_unpack_int(in);
        value->loss = sl_unpack_int(in);
    }
    stage->weight_count = (int)sl_unpack_int(in);
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, stage->weights, stage->weight_count));
    for (int i = 0; i < stage->weight_count; i++) {
        sl_wire_weight *weight = &stage->weights[i];
        SL_TRY(sl_arena_strdup(wiring->arena, sl_unpack_text(in), (char **)&weight->name));
        sl_unpack_get(in, &weight->meta, sizeof weight->meta);
        weight->frozen = sl_unpack_int(in);
    }
done:
    return status;
}

/* An argument's spec: the first rank that names it decides, the others must say the same. */
static sl_status unpack_arg(sl_wiring *wiring, sl_unpack *in, int rank)
{
    sl_status status = SL_OK;
    const char *name = sl_unpack_text(in);
    sl_meta whole;
    sl_unpack_get(in, &whole, sizeof whole);
    sl_chunk_kind kind = (sl_chunk_kind)sl_unpack_int(in);
    int dim = (int)sl_unpack_int(in);
    int known = sl_wiring_find_root(wiring, name);
    if (known < 0) {
        SL_TRY(sl_wiring_add_root(wiring, name, &known));
        wiring->roots[known].kind = kind;
        wiring->roots[known].dim = dim;
        wiring->roots[known].whole = whole;
    }
    const sl_wire_root *root = &wiring->roots[known];
    if (root->kind != kind || root->dim != dim || root->whole.shape.rank != whole.shape.rank ||
        (whole.shape.rank >= 0 && !sl_meta_equal(&root->whole, &whole)))
        return sl_fail(SL_ERR_ARGUMENT, "argument '%s' has another spec on rank %d than on an earlier rank", name,
                       rank);
done:
    return status;
}

static sl_status unpack_rank(sl_wiring *wiring, sl_unpack *in, int rank, const sl_schedule *schedule)
{
    sl_status status = SL_OK;
    for (int64_t args = sl_unpack_int(in); args > 0; args--)
        SL_TRY(unpack_arg(wiring, in, rank));
    for (int64_t stages = sl_unpack_int(in); stages > 0; stages--) {
        int index = (int)sl_unpack_int(in);
        if (index >= wiring->stage_count)
            return sl_fail(SL_ERR_ARGUMENT, "rank %d has stage %d, the schedule ends at stage %d", rank, index,
                           wiring->stage_count - 1);
        sl_wire_stage *stage = &wiring->stages[index];
        if (stage->rank >= 0)
            return sl_fail(SL_ERR_ARGUMENT, "stage %d is on rank %d and again on rank %d", index, stage->rank, rank);
        if (sl_schedule_rank_of(schedule, index) != rank)
            return sl_fail(SL_ERR_ARGUMENT, "stage %d is on rank %d, the schedule has it on rank %d", index, rank,
                           sl_schedule_rank_of(schedule, index));
        stage->rank = rank;
        SL_TRY(unpack_stage(wiring, in, stage));
    }
    if (in->broken)
        return sl_fail(SL_ERR_INTERNAL, "what rank %d told of its stages is cut short", rank);
done:
    return status;
}

/* Reads past a rank's outcome; a failure becomes this rank's, too. */
static sl_status hear_outcome(const sl_blobs *blobs, int rank, sl_unpack *in)
{
    *in = (sl_unpack){ blobs->data[rank], (char *)blobs->data[rank] + blobs->bytes[rank], false };
    sl_status outcome = (sl_status)sl_unpack_int(in);
    const char *message = sl_unpack_text(in);
    return outcome == SL_OK ? SL_OK : sl_fail(outcome, "rank %d: %s", rank, message);
}

/* The lowest rank's trouble is everybody's. */
static sl_status hear_outcomes(const sl_blobs *blobs)
{
    sl_status status = SL_OK;
    sl_unpack in;
    for (int rank = 0; rank < blobs->count && status == SL_OK; rank++)
        status = hear_outcome(blobs, rank, &in);
    return status;
}

/* Before anything is read in the light of this rank's schedule. */
static sl_status compare_schedules(const sl_blobs *blobs)
{
    sl_status status = SL_OK;
    int64_t first = 0;
    for (int rank = 0; rank < blobs->count; rank++) {
        sl_unpack in;
        SL_TRY(hear_outcome(blobs, rank, &in));
        int64_t hash = sl_unpack_int(&in);
        if (rank == 0)
            first = hash;
        if (hash != first)
            return sl_fail(SL_ERR_SCHEDULE, "ranks were given different schedules (rank %d another than rank 0)", rank);
    }
done:
    return status;
}

sl_status sl_wiring_gather(sl_wiring *wiring, const sl_runtime_options *options, sl_status outcome)
{
    sl_status status = SL_OK;
    sl_pack pack = { 0 };
    sl_blobs *blobs = NULL;
    SL_TRY(pack_rank(&pack, options, outcome));
    SL_TRY(sl_group_gather_blobs(options->group, pack.data, pack.size, &blobs));
    SL_TRY(hear_outcomes(blobs));
    SL_TRY(compare_schedules(blobs));

    const sl_schedule *schedule = options->schedule;
    wiring->ranks = blobs->count;
    wiring->stage_count = sl_schedule_stages(schedule);
    wiring->microbatches = sl_schedule_microbatches(schedule);
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->stages, wiring->stage_count));
    for (int s = 0; s < wiring->stage_count; s++)
        wiring->stages[s].rank = -1;
    for (int rank = 0; rank < blobs->count; rank++) {
        sl_unpack in;
        SL_TRY(hear_outcome(blobs, rank, &in));
        (void)sl_unpack_int(&in); /* the schedule's hash */
        SL_TRY(unpack_rank(wiring, &in, rank, schedule));
    }
    for (int s = 0; s < wiring->stage_count; s++) {
        if (wiring->stages[s].rank < 0)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "rank %d was not given stage %d, which the schedule has there",
                           sl_schedule_rank_of(schedule, s), s));
    }
done:
    sl_blobs_destroy(blobs);
    sl_pack_free(&pack);
    return status;
}

sl_status sl_wiring_agree(sl_group *group, sl_status outcome)
{
    sl_status status = SL_OK;
    sl_pack pack = { 0 };
    sl_blobs *blobs = NULL;
    SL_TRY(pack_outcome(&pack, outcome));
    SL_TRY(sl_group_gather_blobs(group, pack.data, pack.size, &blobs));
    SL_TRY(hear_outcomes(blobs));
done:
    sl_blobs_destroy(blobs);
    sl_pack_free(&pack);
    return status;
}
