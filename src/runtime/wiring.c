/* Joins the stages of all ranks: makers with users, root inputs with arguments, tied parameters with each other. */
#include "runtime/wiring.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- Root inputs ----------------------------------------------------------------------------- */

int sl_wiring_find_root(const sl_wiring *wiring, const char *name)
{
    for (int i = 0; i < wiring->root_count; i++) {
        if (strcmp(wiring->roots[i].name, name) == 0)
            return i;
    }
    return -1;
}

sl_status sl_wiring_add_root(sl_wiring *wiring, const char *name, int *out)
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
            SL_TRY(sl_wiring_add_root(wiring, input->name, &input->root));
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
        const sl_wire_edge *edge = &wiring->edges[e];
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
            wiring->edges[input->edge] = (sl_wire_edge){
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

typedef struct use {
    const sl_wire_weight *weight;
    int stage;
} use;

static int by_name_and_stage(const void *left, const void *right)
{
    const use *a = left, *b = right;
    int order = strcmp(a->weight->name, b->weight->name);
    return order ? order : a->stage - b->stage;
}

static sl_status add_tie(sl_wiring *wiring, const use *uses, int count)
{
    sl_status status = SL_OK;
    sl_wire_tie *tie = &wiring->ties[wiring->tie_count];
    int *stages = NULL;
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, stages, count));
    for (int i = 0; i < count; i++) {
        const sl_wire_weight *weight = uses[i].weight;
        char what[256];
        snprintf(what, sizeof what, "parameter '%s', tied between stages %d and %d", weight->name, uses[0].stage,
                 uses[i].stage);
        SL_TRY(sl_meta_check(what, &uses[0].weight->meta, &weight->meta));
        if (weight->frozen != uses[0].weight->frozen)
            return sl_fail(SL_ERR_ARGUMENT, "%s, is frozen in one of them only", what);
        stages[i] = uses[i].stage;
    }
    *tie = (sl_wire_tie){ uses[0].weight->name, uses[0].weight->meta, uses[0].weight->frozen, stages, count };
    wiring->tie_count++;
done:
    return status;
}

static sl_status find_ties(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    use *uses = NULL;
    int count = 0, last = 0;
    for (int s = 0; s < wiring->stage_count; s++)
        count += wiring->stages[s].weight_count;
    SL_TRY(SL_NEW_ARRAY(uses, count));
    SL_TRY(SL_ARENA_ARRAY(wiring->arena, wiring->ties, count / 2));
    count = 0;
    for (int s = 0; s < wiring->stage_count; s++) {
        for (int i = 0; i < wiring->stages[s].weight_count; i++)
            uses[count++] = (use){ &wiring->stages[s].weights[i], s };
    }
    qsort(uses, (size_t)count, sizeof *uses, by_name_and_stage);
    for (int first = 0; first < count; first = last) {
        for (last = first + 1; last < count && strcmp(uses[last].weight->name, uses[first].weight->name) == 0; last++) {
            if (uses[last].stage == uses[last - 1].stage)
                SL_TRY(sl_fail(SL_ERR_ARGUMENT, "stage %d has the parameter '%s' twice", uses[last].stage,
                               uses[last].weight->name));
        }
        if (last - first > 1)
            SL_TRY(add_tie(wiring, uses + first, last - first));
    }
done:
    sl_free(uses);
    return status;
}

static sl_status connect_all(sl_wiring *wiring)
{
    sl_status status = SL_OK;
    SL_TRY(make_edges(wiring));
    SL_TRY(find_loss(wiring));
    SL_TRY(find_ties(wiring));
done:
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

sl_status sl_wiring_create(const sl_runtime_options *options, sl_status outcome, sl_wiring **out)
{
    sl_status status = SL_OK;
    sl_wiring *wiring = NULL;
    SL_TRY(SL_NEW(wiring));
    SL_TRY(sl_arena_create(&wiring->arena));
    SL_TRY(sl_wiring_gather(wiring, options, outcome));
    SL_TRY(connect_all(wiring));
    SL_TRY(sl_wiring_agree_shapes(wiring, options));
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

static int by_stages(const void *left, const void *right)
{
    const sl_edge *a = left, *b = right;
    return a->from != b->from ? a->from - b->from : a->to - b->to;
}

sl_status sl_wiring_stage_edges(const sl_wiring *wiring, sl_edge **out, int *count)
{
    sl_status status = SL_OK;
    sl_edge *pairs = NULL;
    int kept = 0;
    SL_TRY(SL_NEW_ARRAY(pairs, wiring->edge_count));
    for (int e = 0; e < wiring->edge_count; e++)
        pairs[e] = (sl_edge){ wiring->edges[e].from, wiring->edges[e].to };
    qsort(pairs, (size_t)wiring->edge_count, sizeof *pairs, by_stages);
    for (int e = 0; e < wiring->edge_count; e++) {
        if (kept == 0 || by_stages(&pairs[kept - 1], &pairs[e]) != 0)
            pairs[kept++] = pairs[e];
    }
    *out = pairs;
    *count = kept;
done:
    return status;
}
