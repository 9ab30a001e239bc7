/* Joins the stages: makers with users, root inputs with arguments, tied weights with each other. */
#include "pipeline/wiring.h"

#include "base/alloc.h"
#include "pipeline/slots.h"

#include <stdlib.h>
#include <string.h>

/* ---- Descriptions ---------------------------------------------------------------------------- */

static sl_status copy_values(sl_arena *arena, int count, const sl_value_desc **values)
{
    sl_status status = SL_OK;
    sl_value_desc *copy = NULL;
    SL_TRY(sl_arena_copy(arena, *values, (size_t)count * sizeof *copy, (void **)&copy));
    for (int i = 0; i < count; i++)
        SL_TRY(sl_arena_strdup(arena, copy[i].name, (char **)&copy[i].name));
    *values = copy;
done:
    return status;
}

sl_status sl_stage_desc_copy(sl_arena *arena, sl_stage_desc *desc)
{
    sl_status status = SL_OK;
    sl_weight_desc *weights = NULL;
    SL_TRY(copy_values(arena, desc->input_count, &desc->inputs));
    SL_TRY(copy_values(arena, desc->output_count, &desc->outputs));
    SL_TRY(sl_arena_copy(arena, desc->weights, (size_t)desc->weight_count * sizeof *weights, (void **)&weights));
    for (int i = 0; i < desc->weight_count; i++) {
        SL_TRY(sl_arena_strdup(arena, weights[i].name, (char **)&weights[i].name));
        if (weights[i].tie)
            SL_TRY(sl_arena_strdup(arena, weights[i].tie, (char **)&weights[i].tie));
    }
    desc->weights = weights;
done:
    return status;
}

/* ---- What was given -------------------------------------------------------------------------- */

/* Of the sizes that the stage was not made for nothing is known. */
static void copy_metas(const sl_stage_desc *desc, const sl_value_desc *from, sl_meta *to)
{
    for (int size = 0; size < SL_MAX_SIZES; size++) {
        to[size] = from->metas[size];
        if (size > 0 && size >= desc->size_count)
            to[size].shape.rank = -1;
    }
}

static sl_status copy_inputs(sl_wiring *wiring, const sl_stage_desc *desc, sl_wire_stage *stage)
{
    sl_status status = SL_OK;
    stage->input_count = desc->input_count;
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, stage->inputs, desc->input_count));
    for (int i = 0; i < desc->input_count; i++) {
        const sl_value_desc *from = &desc->inputs[i];
        sl_wire_input *to = &stage->inputs[i];
        *to = (sl_wire_input){ .has_grad = from->has_grad,
                               .last_use = from->last_use,
                               .maker = from->maker,
                               .maker_output = from->maker_output,
                               .root = -1,
                               .edge = -1 };
        SL_TRY(sl_arena_strdup(wiring->arena, from->name, (char **)&to->name));
        copy_metas(desc, from, to->metas);
    }
done:
    return status;
}

static sl_status copy_outputs(sl_wiring *wiring, const sl_stage_desc *desc, sl_wire_stage *stage)
{
    sl_status status = SL_OK;
    stage->output_count = desc->output_count;
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, stage->outputs, desc->output_count));
    for (int j = 0; j < desc->output_count; j++) {
        const sl_value_desc *from = &desc->outputs[j];
        sl_wire_output *to = &stage->outputs[j];
        *to = (sl_wire_output){ .has_grad = from->has_grad,
                                .loss = from->loss,
                                .last_use = from->last_use,
                                .grad_last_use = from->grad_last_use };
        SL_TRY(sl_arena_strdup(wiring->arena, from->name, (char **)&to->name));
        copy_metas(desc, from, to->metas);
    }
done:
    return status;
}

static sl_status copy_weights(sl_wiring *wiring, const sl_stage_desc *desc, sl_wire_stage *stage)
{
    sl_status status = SL_OK;
    stage->weight_count = desc->weight_count;
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, stage->weights, desc->weight_count));
    for (int i = 0; i < desc->weight_count; i++) {
        const sl_weight_desc *from = &desc->weights[i];
        sl_wire_weight *to = &stage->weights[i];
        *to = (sl_wire_weight){ .stage = (int)(stage - wiring->stages),
                                .index = i,
                                .meta = from->meta,
                                .grad_meta = sl_meta_contiguous(from->grad_dtype, &from->meta.shape),
                                .frozen = from->frozen,
                                .own_data = from->own_data,
                                .own_grad = from->own_grad,
                                .tie = -1,
                                .data_offset = SL_NO_OFFSET,
                                .grad_offset = SL_NO_OFFSET };
        SL_TRY(sl_arena_strdup(wiring->arena, from->name, (char **)&to->name));
        to->tied_to = to->name;
        if (from->tie)
            SL_TRY(sl_arena_strdup(wiring->arena, from->tie, (char **)&to->tied_to));
    }
done:
    return status;
}

static sl_status copy_stage(sl_wiring *wiring, const sl_stage_desc *desc, sl_wire_stage *stage)
{
    sl_status status = SL_OK;
    stage->size_count = desc->size_count;
    stage->can_train = desc->can_train;
    stage->can_split = desc->can_split;
    stage->can_infer = desc->can_infer;
    stage->writes_all_grads = desc->writes_all_grads;
    stage->keeps_in_b = desc->keeps_in_b;
    stage->saved_i_bytes = desc->saved_i_bytes;
    stage->saved_w_bytes = desc->saved_w_bytes;
    stage->kept_bytes = desc->kept_bytes;
    stage->scratch_bytes = desc->scratch_bytes;
    stage->packed_bytes = desc->packed_bytes;
    memcpy(stage->constant_bytes, desc->constant_bytes, sizeof stage->constant_bytes);
    SL_TRY(copy_inputs(wiring, desc, stage));
    SL_TRY(copy_outputs(wiring, desc, stage));
    SL_TRY(copy_weights(wiring, desc, stage));
done:
    return status;
}

/* ---- Root inputs ----------------------------------------------------------------------------- */

int sl_wiring_find_root(const sl_wiring *wiring, const char *name)
{
    for (int i = 0; i < wiring->root_count; i++) {
        if (strcmp(wiring->roots[i].name, name) == 0)
            return i;
    }
    return -1;
}

static sl_status add_root(sl_wiring *wiring, const char *name, int *out)
{
    sl_status status = SL_OK;
    sl_wire_root root = { .kind = SL_CHUNK_SPLIT, .position = -1 };
    root.whole.shape.rank = root.metas[0].shape.rank = root.metas[1].shape.rank = -1;
    SL_TRY(sl_arena_strdup(wiring->arena, name, (char **)&root.name));
    SL_TRY(SL_GROW(wiring->roots, &wiring->root_capacity, wiring->root_count + 1));
    wiring->roots[wiring->root_count] = root;
    *out = wiring->root_count++;
done:
    return status;
}

/* A spec that was left zero says nothing about the shape. */
static sl_status add_arg(sl_wiring *wiring, const sl_arg_spec *arg)
{
    sl_status status = SL_OK;
    int root = sl_wiring_find_root(wiring, arg->name);
    if (root >= 0)
        return sl_fail(SL_ERR_ARGUMENT, "argument '%s' has two specs", arg->name);
    SL_TRY(add_root(wiring, arg->name, &root));
    wiring->roots[root].kind = arg->chunk.kind;
    wiring->roots[root].dim = arg->chunk.dim;
    wiring->roots[root].whole = arg->meta;
    wiring->roots[root].grad = arg->grad;
    if (arg->meta.dtype == SL_F32 && arg->meta.shape.rank == 0)
        wiring->roots[root].whole.shape.rank = -1;
done:
    return status;
}

/* ---- Edges ----------------------------------------------------------------------------------- */

static int find_output(const sl_wire_stage *stage, const char *name)
{
    for (int j = 0; j < stage->output_count; j++) {
        if (strcmp(stage->outputs[j].name, name) == 0)
            return j;
    }
    return -1;
}

/* Settles where one input comes from. */
static sl_status find_maker(sl_wiring *wiring, int stage, sl_wire_input *input, int *roots)
{
    sl_status status = SL_OK;
    if (input->maker == SL_MAKER_BY_NAME) {
        input->maker = SL_MAKER_ROOT;
        for (int s = stage - 1; s >= 0 && input->maker < 0; s--) {
            input->maker_output = find_output(&wiring->stages[s], input->name);
            if (input->maker_output >= 0)
                input->maker = s;
        }
    }
    if (input->maker == SL_MAKER_ROOT) {
        input->root = sl_wiring_find_root(wiring, input->name);
        if (input->root < 0)
            SL_TRY(add_root(wiring, input->name, &input->root));
        if (wiring->roots[input->root].position < 0)
            wiring->roots[input->root].position = (*roots)++;
        return SL_OK;
    }
    if (input->maker >= stage || input->maker_output < 0 ||
        input->maker_output >= wiring->stages[input->maker].output_count)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d: input '%s' does not come from an earlier stage's output", stage,
                       input->name);
    input->edge = wiring->edge_count++;
done:
    return status;
}

/* The outputs' lists of edges, in the order of users. */
static sl_status list_users(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    for (int s = 0; s < wiring->stage_count; s++) {
        for (int j = 0; j < wiring->stages[s].output_count; j++) {
            sl_wire_output *output = &wiring->stages[s].outputs[j];
            int *users = NULL;
            SL_TRY(SL_ARENA_ARRAY(wiring->arena, users, output->edge_count));
            output->edges = users;
            output->edge_count = 0;
        }
    }
    for (int e = 0; e < wiring->edge_count; e++) {
        const sl_pipeline_edge *edge = &wiring->edges[e];
        sl_wire_output *output = &wiring->stages[edge->from].outputs[edge->output];
        ((int *)output->edges)[output->edge_count++] = e;
    }
done:
    return status;
}

static sl_status make_edges(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    int roots = 0;
    for (int s = 0; s < wiring->stage_count; s++) {
        for (int i = 0; i < wiring->stages[s].input_count; i++)
            SL_TRY(find_maker(wiring, s, &wiring->stages[s].inputs[i], &roots));
    }
    for (int i = 0; i < wiring->root_count; i++) {
        if (wiring->roots[i].position < 0)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "no stage has an input '%s', which the arguments' specs name",
                           wiring->roots[i].name));
    }
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->edges, wiring->edge_count));
    for (int s = 0; s < wiring->stage_count; s++) {
        for (int i = 0; i < wiring->stages[s].input_count; i++) {
            const sl_wire_input *input = &wiring->stages[s].inputs[i];
            if (input->edge < 0)
                continue;
            const sl_wire_stage *maker = &wiring->stages[input->maker];
            sl_wire_output *output = &wiring->stages[input->maker].outputs[input->maker_output];
            output->edge_count++;
            wiring->edges[input->edge] = (sl_pipeline_edge){
                .name = output->name,
                .from = input->maker,
                .output = input->maker_output,
                .to = s,
                .input = i,
                .has_grad = input->has_grad && output->has_grad,
                .remote = maker->rank != wiring->stages[s].rank,
            };
        }
    }
    SL_TRY(list_users(wiring));
done:
    return status;
}

/* ---- Loss and tied parameters ---------------------------------------------------------------- */

static sl_status find_loss(sl_wiring *wiring)
{
    wiring->loss_stage = wiring->loss_output = -1;
    for (int s = 0; s < wiring->stage_count; s++) {
        for (int j = 0; j < wiring->stages[s].output_count; j++) {
            const sl_wire_output *output = &wiring->stages[s].outputs[j];
            if (!output->loss)
                continue;
            if (wiring->loss_stage >= 0)
                return sl_fail(SL_ERR_ARGUMENT, "stage %d has a loss, '%s', and stage %d another, '%s'",
                               wiring->loss_stage, wiring->stages[wiring->loss_stage].outputs[wiring->loss_output].name,
                               s, output->name);
            if (output->edge_count)
                return sl_fail(SL_ERR_ARGUMENT, "stage %d: the loss '%s' is an input of another stage", s,
                               output->name);
            wiring->loss_stage = s;
            wiring->loss_output = j;
        }
    }
    return SL_OK;
}

/* Sorted by what they are tied to, then by stage and place in it. */
typedef struct weight_use {
    const char *tied_to;
    sl_tie_member member;
} weight_use;

static int by_tie(const void *left, const void *right)
{
    const weight_use *a = left, *b = right;
    int order = strcmp(a->tied_to, b->tied_to);
    if (order == 0)
        order = a->member.stage - b->member.stage;
    return order ? order : a->member.weight - b->member.weight;
}

static sl_status check_member(const sl_wiring *wiring, const sl_wire_tie *tie, int i)
{
    sl_status status = SL_OK;
    sl_tie_member a = tie->members[0], b = tie->members[i];
    const sl_wire_weight *first = &wiring->stages[a.stage].weights[a.weight];
    const sl_wire_weight *weight = &wiring->stages[b.stage].weights[b.weight];
    char what[256];
    if (i > 0 && tie->members[i - 1].stage == b.stage &&
        strcmp(wiring->stages[b.stage].weights[tie->members[i - 1].weight].name, weight->name) == 0)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d has the parameter '%s' twice", b.stage, weight->name);
    snprintf(what, sizeof what, "parameter '%s', tied between stages %d and %d", weight->name, a.stage, b.stage);
    SL_TRY(sl_meta_check(what, &first->meta, &weight->meta));
    if (weight->frozen != first->frozen)
        return sl_fail(SL_ERR_ARGUMENT, "%s, is frozen in one of them only", what);
    if (weight->grad_meta.dtype != first->grad_meta.dtype)
        return sl_fail(SL_ERR_ARGUMENT, "%s, has gradients of two dtypes", what);
done:
    return status;
}

static sl_status add_tie(sl_wiring *wiring, const weight_use *uses, int count)
{
    sl_status status = SL_OK;
    sl_tie_member *members = NULL;
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, members, count));
    sl_wire_tie tie = { .name = uses[0].tied_to, .members = members, .member_count = count };
    for (int i = 0; i < count; i++) {
        members[i] = uses[i].member;
        wiring->stages[members[i].stage].weights[members[i].weight].tie = wiring->tie_count;
    }
    for (int i = 0; i < count; i++)
        SL_TRY(check_member(wiring, &tie, i));
    wiring->ties[wiring->tie_count++] = tie;
done:
    return status;
}

static sl_status find_ties(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    weight_use *uses = NULL;
    int count = 0, last = 0;
    for (int s = 0; s < wiring->stage_count; s++)
        count += wiring->stages[s].weight_count;
    SL_TRY(SL_NEW_ARRAY(uses, count));
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->ties, count / 2));
    count = 0;
    for (int s = 0; s < wiring->stage_count; s++) {
        for (int i = 0; i < wiring->stages[s].weight_count; i++)
            uses[count++] = (weight_use){ wiring->stages[s].weights[i].tied_to, { s, i } };
    }
    qsort(uses, (size_t)count, sizeof *uses, by_tie);
    for (int first = 0; first < count; first = last) {
        last = first + 1;
        while (last < count && strcmp(uses[last].tied_to, uses[first].tied_to) == 0)
            last++;
        if (last - first > 1)
            SL_TRY(add_tie(wiring, uses + first, last - first));
    }
done:
    sl_free(uses);
    return status;
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

/* Numbers stages, values and gradients within their ranks, so that compiling a rank looks at nothing else. */
static sl_status number_ranks(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    int *list = NULL, *next = NULL;
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, list, wiring->stage_count));
    SL_TRY(SL_NEW_ARRAY(next, wiring->rank_count + 1));
    for (int s = 0; s < wiring->stage_count; s++)
        next[wiring->stages[s].rank + 1]++;
    for (int r = 0; r < wiring->rank_count; r++) {
        wiring->ranks[r].stages = list + next[r];
        next[r + 1] += next[r];
    }
    for (int s = 0; s < wiring->stage_count; s++) {
        sl_wire_stage *stage = &wiring->stages[s];
        sl_wire_rank *rank = &wiring->ranks[stage->rank];
        list[next[stage->rank]++] = s;
        stage->local = rank->stage_count++;
        stage->first_input = rank->input_rows;
        stage->first_output = rank->output_rows;
        rank->input_rows += stage->input_count;
        rank->output_rows += stage->output_count;
    }
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->grad_rows, wiring->edge_count));
    for (int e = 0; e < wiring->edge_count; e++)
        wiring->grad_rows[e] = wiring->ranks[wiring->stages[wiring->edges[e].from].rank].grad_rows++;
done:
    sl_free(next);
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static sl_status take_stages(sl_wiring *wiring, const sl_pipeline_options *options)
{
    sl_status status = SL_OK;
    const sl_schedule *schedule = options->schedule;
    wiring->rank_count = sl_schedule_ranks(schedule);
    wiring->stage_count = sl_schedule_stages(schedule);
    wiring->microbatches = sl_schedule_microbatches(schedule);
    wiring->replicas = options->replicas > 1 ? options->replicas : 1;
    wiring->shard = options->shard;
    wiring->shard_group = options->shard_group > 0 ? options->shard_group : wiring->replicas;
    if (wiring->replicas % wiring->shard_group != 0)
        return sl_fail(SL_ERR_ARGUMENT, "%d replicas cannot be shared out to groups of %d", wiring->replicas,
                       wiring->shard_group);
    if (options->stage_count != wiring->stage_count)
        return sl_fail(SL_ERR_ARGUMENT, "%d stages are described, the schedule has %d", options->stage_count,
                       wiring->stage_count);
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->ranks, wiring->rank_count));
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->stages, wiring->stage_count));
    for (int s = 0; s < wiring->stage_count; s++) {
        wiring->stages[s].rank = sl_schedule_rank_of(schedule, s);
        if (wiring->stages[s].rank < 0)
            SL_TRY(sl_fail(SL_ERR_SCHEDULE, "schedule: stage %d is on no rank", s));
        SL_TRY(copy_stage(wiring, &options->stages[s], &wiring->stages[s]));
    }
    SL_TRY(sl_wiring_shard_weights(wiring));
    for (int i = 0; i < options->arg_count; i++)
        SL_TRY(add_arg(wiring, &options->args[i]));
done:
    return status;
}

sl_status sl_wiring_create(const sl_pipeline_options *options, sl_wiring **out)
{
    sl_status status = SL_OK;
    sl_wiring *wiring = NULL;
    SL_TRY(SL_NEW(wiring));
    SL_TRY(sl_arena_create(&wiring->arena));
    SL_TRY(take_stages(wiring, options));
    SL_TRY(make_edges(wiring));
    SL_TRY(find_loss(wiring));
    SL_TRY(find_ties(wiring));
    SL_TRY(number_ranks(wiring));
    SL_TRY(sl_wiring_settle_shapes(wiring, options));
    *out = wiring;
    wiring = NULL;
done:
    sl_wiring_destroy(wiring);
    return status;
}

void sl_wiring_destroy(sl_wiring *wiring)
{
    if (!wiring)
        return;
    sl_wiring_free_shardings(wiring);
    sl_free(wiring->roots);
    sl_arena_destroy(wiring->arena);
    sl_free(wiring);
}

int sl_wiring_size(const sl_wiring *wiring, int microbatch)
{
    return microbatch >= wiring->large_count;
}

int64_t sl_wiring_samples(const sl_wiring *wiring, int microbatch)
{
    return wiring->samples[sl_wiring_size(wiring, microbatch)];
}

int64_t sl_wiring_first_sample(const sl_wiring *wiring, int microbatch)
{
    int64_t large = microbatch < wiring->large_count ? microbatch : wiring->large_count;
    return large * wiring->samples[0] + (microbatch - large) * wiring->samples[1];
}

size_t sl_wiring_bytes(const sl_wiring *wiring, const sl_meta *metas)
{
    size_t bytes = 0;
    for (int size = 0; size < wiring->size_count; size++) {
        size_t each = sl_meta_bytes(&metas[size]);
        bytes = each > bytes ? each : bytes;
    }
    return bytes;
}

typedef struct stage_pair {
    sl_edge edge;
    double bytes;
} stage_pair;

static int by_stages(const void *left, const void *right)
{
    const sl_edge *a = &((const stage_pair *)left)->edge, *b = &((const stage_pair *)right)->edge;
    return a->from != b->from ? a->from - b->from : a->to - b->to;
}

sl_status sl_wiring_stage_edges(const sl_wiring *wiring, sl_edge **out, double **bytes, int *count)
{
    sl_status status = SL_OK;
    stage_pair *pairs = NULL;
    sl_edge *edges = NULL;
    double *sizes = NULL;
    int kept = 0;
    SL_TRY(SL_NEW_ARRAY(pairs, wiring->edge_count));
    SL_TRY(SL_NEW_ARRAY(edges, wiring->edge_count));
    SL_TRY(SL_NEW_ARRAY(sizes, wiring->edge_count));
    for (int e = 0; e < wiring->edge_count; e++) {
        const sl_pipeline_edge *edge = &wiring->edges[e];
        pairs[e] = (stage_pair){ { edge->from, edge->to }, (double)edge->bytes };
    }
    qsort(pairs, (size_t)wiring->edge_count, sizeof *pairs, by_stages);
    for (int e = 0; e < wiring->edge_count; e++) {
        if (e == 0 || by_stages(&pairs[e - 1], &pairs[e]) != 0)
            edges[kept++] = pairs[e].edge;
        sizes[kept - 1] += pairs[e].bytes;
    }
    *out = edges;
    edges = NULL;
    if (bytes) {
        *bytes = sizes;
        sizes = NULL;
    }
    *count = kept;
done:
    sl_free(pairs);
    sl_free(edges);
    sl_free(sizes);
    return status;
}
