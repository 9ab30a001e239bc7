/* Every rank tells all others of its stages, its arguments and its schedule, or of what went wrong with it. */
#include "runtime/gather.h"

#include "base/alloc.h"
#include "runtime/pack.h"

#include <string.h>
#include <xxhash.h>

/* ---- Telling --------------------------------------------------------------------------------- */

static sl_status pack_values(sl_pack *pack, const sl_value_desc *values, int count)
{
    sl_status status = SL_OK;
    SL_TRY(sl_pack_int(pack, count));
    for (int i = 0; i < count; i++) {
        SL_TRY(sl_pack_text(pack, values[i].name));
        SL_TRY(sl_pack_put(pack, &values[i], sizeof values[i]));
    }
done:
    return status;
}

static sl_status pack_weights(sl_pack *pack, const sl_weight_desc *weights, int count)
{
    sl_status status = SL_OK;
    SL_TRY(sl_pack_int(pack, count));
    for (int i = 0; i < count; i++) {
        SL_TRY(sl_pack_text(pack, weights[i].name));
        SL_TRY(sl_pack_text(pack, weights[i].tie ? weights[i].tie : weights[i].name));
        SL_TRY(sl_pack_put(pack, &weights[i], sizeof weights[i]));
    }
done:
    return status;
}

/* Plain structs travel as they are; the pointers in them are set again by whoever reads them. */
static sl_status pack_stage(sl_pack *pack, sl_stage *stage)
{
    sl_status status = SL_OK;
    sl_stage_desc desc;
    sl_stage_describe(stage, &desc);
    SL_TRY(sl_pack_int(pack, stage->index));
    SL_TRY(sl_pack_put(pack, &desc, sizeof desc));
    SL_TRY(pack_values(pack, desc.inputs, desc.input_count));
    SL_TRY(pack_values(pack, desc.outputs, desc.output_count));
    SL_TRY(pack_weights(pack, desc.weights, desc.weight_count));
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
        SL_TRY(sl_pack_text(pack, arg->name));
        SL_TRY(sl_pack_put(pack, &arg->meta, sizeof arg->meta));
        SL_TRY(sl_pack_int(pack, arg->chunk.kind));
        SL_TRY(sl_pack_int(pack, arg->chunk.dim));
        SL_TRY(sl_pack_int(pack, arg->grad));
    }
    SL_TRY(sl_pack_int(pack, options->stage_count));
    for (int i = 0; i < options->stage_count; i++)
        SL_TRY(pack_stage(pack, options->stages[i]));
done:
    return status;
}

/* ---- Hearing --------------------------------------------------------------------------------- */

/* What has been heard so far. */
typedef struct heard {
    sl_arena *arena;
    sl_stage_desc *stages;
    int *ranks; /* of each stage: who has it; -1: nobody yet */
    int stage_count;
    sl_arg_spec *args;
    int arg_count;
} heard;

static sl_status unpack_values(heard *all, sl_unpack *in, const sl_value_desc **out, int *count)
{
    sl_status status = SL_OK;
    sl_value_desc *values = NULL;
    *count = (int)sl_unpack_int(in);
    SL_TRY(SL_ARENA_ARRAY(all->arena, values, *count));
    for (int i = 0; i < *count; i++) {
        const char *name = sl_unpack_text(in);
        sl_unpack_get(in, &values[i], sizeof values[i]);
        SL_TRY(sl_arena_strdup(all->arena, name, (char **)&values[i].name));
    }
    *out = values;
done:
    return status;
}

static sl_status unpack_weights(heard *all, sl_unpack *in, const sl_weight_desc **out, int *count)
{
    sl_status status = SL_OK;
    sl_weight_desc *weights = NULL;
    *count = (int)sl_unpack_int(in);
    SL_TRY(SL_ARENA_ARRAY(all->arena, weights, *count));
    for (int i = 0; i < *count; i++) {
        const char *name = sl_unpack_text(in), *tie = sl_unpack_text(in);
        sl_unpack_get(in, &weights[i], sizeof weights[i]);
        SL_TRY(sl_arena_strdup(all->arena, name, (char **)&weights[i].name));
        SL_TRY(sl_arena_strdup(all->arena, tie, (char **)&weights[i].tie));
    }
    *out = weights;
done:
    return status;
}

static sl_status unpack_stage(heard *all, sl_unpack *in, int rank, const sl_schedule *schedule)
{
    sl_status status = SL_OK;
    sl_stage_desc desc;
    int index = (int)sl_unpack_int(in);
    sl_unpack_get(in, &desc, sizeof desc);
    SL_TRY(unpack_values(all, in, &desc.inputs, &desc.input_count));
    SL_TRY(unpack_values(all, in, &desc.outputs, &desc.output_count));
    SL_TRY(unpack_weights(all, in, &desc.weights, &desc.weight_count));
    if (index >= all->stage_count)
        return sl_fail(SL_ERR_ARGUMENT, "rank %d has stage %d, the schedule ends at stage %d", rank, index,
                       all->stage_count - 1);
    if (all->ranks[index] >= 0)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d is on rank %d and again on rank %d", index, all->ranks[index], rank);
    if (sl_schedule_rank_of(schedule, index) != rank)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d is on rank %d, the schedule has it on rank %d", index, rank,
                       sl_schedule_rank_of(schedule, index));
    all->stages[index] = desc;
    all->ranks[index] = rank;
done:
    return status;
}

/* An argument's spec: the first rank that names it decides, the others must say the same. */
static sl_status unpack_arg(heard *all, sl_unpack *in, int rank)
{
    sl_status status = SL_OK;
    sl_arg_spec arg = { .name = sl_unpack_text(in) };
    sl_unpack_get(in, &arg.meta, sizeof arg.meta);
    arg.chunk.kind = (sl_chunk_kind)sl_unpack_int(in);
    arg.chunk.dim = (int)sl_unpack_int(in);
    arg.grad = sl_unpack_int(in) != 0;
    for (int i = 0; i < all->arg_count; i++) {
        const sl_arg_spec *known = &all->args[i];
        if (strcmp(known->name, arg.name) != 0)
            continue;
        if (known->chunk.kind == arg.chunk.kind && known->chunk.dim == arg.chunk.dim && known->grad == arg.grad &&
            known->meta.dtype == arg.meta.dtype && known->meta.shape.rank == arg.meta.shape.rank &&
            (arg.meta.shape.rank < 0 || sl_meta_equal(&known->meta, &arg.meta)))
            return SL_OK;
        return sl_fail(SL_ERR_ARGUMENT, "argument '%s' has another spec on rank %d than on an earlier rank", arg.name,
                       rank);
    }
    SL_TRY(sl_arena_strdup(all->arena, arg.name, (char **)&arg.name));
    all->args[all->arg_count++] = arg;
done:
    return status;
}

/* Reads past a rank's outcome; a failure becomes this rank's, too. */
static sl_status hear_outcome(const sl_blobs *blobs, const char *member, int rank, sl_unpack *in)
{
    *in = (sl_unpack){ blobs->data[rank], (char *)blobs->data[rank] + blobs->bytes[rank], false };
    sl_status outcome = (sl_status)sl_unpack_int(in);
    const char *message = sl_unpack_text(in);
    return outcome == SL_OK ? SL_OK : sl_fail(outcome, "%s %d: %s", member, rank, message);
}

/* The lowest rank's trouble is everybody's. */
static sl_status hear_outcomes(const sl_blobs *blobs, const char *member)
{
    sl_status status = SL_OK;
    sl_unpack in;
    for (int rank = 0; rank < blobs->count && status == SL_OK; rank++)
        status = hear_outcome(blobs, member, rank, &in);
    return status;
}

/* Before anything is read in the light of this rank's schedule. */
static sl_status compare_schedules(const sl_blobs *blobs)
{
    sl_status status = SL_OK;
    int64_t first = 0;
    for (int rank = 0; rank < blobs->count; rank++) {
        sl_unpack in;
        SL_TRY(hear_outcome(blobs, "rank", rank, &in));
        int64_t hash = sl_unpack_int(&in);
        if (rank == 0)
            first = hash;
        if (hash != first)
            return sl_fail(SL_ERR_SCHEDULE, "ranks were given different schedules (rank %d another than rank 0)", rank);
    }
done:
    return status;
}

/* Room for every argument that a rank names. */
static sl_status make_room(const sl_blobs *blobs, heard *all)
{
    sl_status status = SL_OK;
    int64_t args = 0;
    for (int rank = 0; rank < blobs->count; rank++) {
        sl_unpack in;
        SL_TRY(hear_outcome(blobs, "rank", rank, &in));
        (void)sl_unpack_int(&in); /* the schedule's hash */
        args += sl_unpack_int(&in);
    }
    SL_TRY(SL_ARENA_ARRAY(all->arena, all->args, args));
    SL_TRY(SL_ARENA_ARRAY(all->arena, all->stages, all->stage_count));
    SL_TRY(SL_ARENA_ARRAY(all->arena, all->ranks, all->stage_count));
    for (int s = 0; s < all->stage_count; s++)
        all->ranks[s] = -1;
done:
    return status;
}

static sl_status hear_rank(const sl_blobs *blobs, int rank, const sl_schedule *schedule, heard *all)
{
    sl_status status = SL_OK;
    sl_unpack in;
    SL_TRY(hear_outcome(blobs, "rank", rank, &in));
    (void)sl_unpack_int(&in); /* the schedule's hash */
    for (int64_t args = sl_unpack_int(&in); args > 0; args--)
        SL_TRY(unpack_arg(all, &in, rank));
    for (int64_t stages = sl_unpack_int(&in); stages > 0; stages--)
        SL_TRY(unpack_stage(all, &in, rank, schedule));
    if (in.broken)
        return sl_fail(SL_ERR_INTERNAL, "the description of the stages of rank %d is cut short", rank);
done:
    return status;
}

sl_status sl_gather_stages(const sl_runtime_options *options, sl_status outcome, sl_arena *arena,
                           sl_pipeline_options *out)
{
    sl_status status = SL_OK;
    sl_pack pack = { 0 };
    sl_blobs *blobs = NULL;
    heard all = { .arena = arena };
    SL_TRY(pack_rank(&pack, options, outcome));
    SL_TRY(sl_group_gather_blobs(options->group, pack.data, pack.size, &blobs));
    SL_TRY(hear_outcomes(blobs, "rank"));
    SL_TRY(compare_schedules(blobs));
    all.stage_count = sl_schedule_stages(options->schedule);
    SL_TRY(make_room(blobs, &all));
    for (int rank = 0; rank < blobs->count; rank++)
        SL_TRY(hear_rank(blobs, rank, options->schedule, &all));
    for (int s = 0; s < all.stage_count; s++) {
        if (all.ranks[s] < 0)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "rank %d was not given stage %d, which the schedule has there",
                           sl_schedule_rank_of(options->schedule, s), s));
    }
    *out = (sl_pipeline_options){ .schedule = options->schedule,
                                  .stages = all.stages,
                                  .stage_count = all.stage_count,
                                  .args = all.args,
                                  .arg_count = all.arg_count };
done:
    sl_blobs_destroy(blobs);
    sl_pack_free(&pack);
    return status;
}

sl_status sl_gather_outcomes(sl_group *group, const char *member, sl_status outcome)
{
    sl_status status = SL_OK;
    sl_pack pack = { 0 };
    sl_blobs *blobs = NULL;
    SL_TRY(pack_outcome(&pack, outcome));
    SL_TRY(sl_group_gather_blobs(group, pack.data, pack.size, &blobs));
    SL_TRY(hear_outcomes(blobs, member));
done:
    sl_blobs_destroy(blobs);
    sl_pack_free(&pack);
    return status;
}
