/* Partition: what each stage holds, the edges between stages, tied parameters and root inputs. */
#include "graph/partition.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* What one stage does with each value: bits. */
enum {
    NEEDS = 1,    /* reads it, or has it as an output */
    MAKES = 2,    /* runs its node */
    GRADIENT = 4, /* a gradient flows back from this stage's use of it */
    RELAYS = 8,   /* hands it on to a later stage */
    WANTED = 16,  /* a later stage gets it from here */
    RETURNS = 32, /* and gives back a gradient */
};

typedef struct value_use {
    int value;
    uint8_t bits;
    int from; /* the stage that it comes from; -1: none */
} value_use;

/* The values that a stage has to do with, by id. */
typedef struct stage_uses {
    value_use *items;
    int count;
} stage_uses;

typedef struct cut_work {
    const sl_graph *graph;
    sl_partition *partition;
    int stages;
    stage_uses *uses; /* by stage; in the partition's arena */
    /* While one stage is looked at: */
    uint8_t *bits; /* of each value of the graph */
    int *touched;  /* values whose bits are not 0 */
    int touched_count;
    int *pending; /* fixed nodes that are still to be looked at */
    int pending_count;
    bool *seen; /* of each node: it is among the stage's */
} cut_work;

/* The last stage that begins at or before the node. */
static int stage_of_node(const sl_partition *partition, int node)
{
    int low = 0, high = partition->stage_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (partition->cuts[middle - 1] <= node)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool output_has_grad(const sl_graph *graph, int output)
{
    return sl_value_has_grad(graph, graph->outputs[output].value) && (graph->loss < 0 || graph->loss == output);
}

/* The graph's outputs belong to the stage of their node; what has none, to the first. */
static int stage_of_output(const cut_work *work, int output)
{
    int node = work->graph->values[work->graph->outputs[output].value].node;
    return node < 0 ? 0 : stage_of_node(work->partition, node);
}

/* ---- One stage ------------------------------------------------------------------------------- */

/* A fixed node runs in every stage that needs its value. */
static void mark_value(cut_work *work, int value, uint8_t bits)
{
    int node = work->graph->values[value].node;
    if (work->bits[value] == 0)
        work->touched[work->touched_count++] = value;
    work->bits[value] |= bits;
    if ((bits & NEEDS) && node >= 0 && work->graph->nodes[node].fixed && !work->seen[node]) {
        work->seen[node] = true;
        work->pending[work->pending_count++] = node;
    }
}

static void mark_node(cut_work *work, int n, sl_stage_part *part)
{
    const sl_graph *graph = work->graph;
    const sl_graph_node *node = &graph->nodes[n];
    bool gradient = false;
    part->nodes[part->node_count++] = n;
    for (int i = 0; i < node->output_count; i++) {
        gradient = gradient || sl_value_has_grad(graph, node->outputs[i]);
        mark_value(work, node->outputs[i], MAKES);
    }
    for (int i = 0; i < node->input_count; i++) {
        if (!node->inputs[i])
            continue;
        bool flows = gradient && sl_node_input_differentiable(node, i) && sl_value_has_grad(graph, node->inputs[i]);
        mark_value(work, node->inputs[i], (uint8_t)(NEEDS | (flows ? GRADIENT : 0)));
    }
}

static int by_number(const void *left, const void *right)
{
    return *(const int *)left - *(const int *)right;
}

/* Takes the marks of a stage as its list of uses and clears them for the next. */
static sl_status take_uses(cut_work *work, int stage, const sl_stage_part *part)
{
    sl_status status = SL_OK;
    stage_uses *uses = &work->uses[stage];
    qsort(work->touched, (size_t)work->touched_count, sizeof *work->touched, by_number);
    SL_TRY(SL_ARENA_ARRAY(work->partition->arena, uses->items, work->touched_count));
    for (int i = 0; i < work->touched_count; i++) {
        int value = work->touched[i];
        uses->items[uses->count++] = (value_use){ .value = value, .bits = work->bits[value], .from = -1 };
        work->bits[value] = 0;
    }
    work->touched_count = 0;
    for (int i = 0; i < part->node_count; i++)
        work->seen[part->nodes[i]] = false;
done:
    return status;
}

static sl_status check_work(const cut_work *work, int stage, const sl_stage_part *part)
{
    const sl_graph *graph = work->graph;
    for (int i = 0; i < part->node_count; i++) {
        if (sl_node_has_work(&graph->nodes[part->nodes[i]]))
            return SL_OK;
    }
    if (work->stages == 1)
        return SL_OK;
    if (part->first >= part->end)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d would be empty: two cuts at node %d", stage, part->first);
    return sl_fail(SL_ERR_ARGUMENT, "stage %d would be empty: nothing to run from '%s' to '%s'", stage,
                   graph->nodes[part->first].name, graph->nodes[part->end - 1].name);
}

/* Finds the nodes that the stage runs and what it does with their values. */
static sl_status look_at_stage(cut_work *work, int stage)
{
    sl_status status = SL_OK;
    const sl_graph *graph = work->graph;
    sl_partition *partition = work->partition;
    sl_stage_part *part = &partition->parts[stage];
    int *nodes = NULL;
    part->first = stage ? partition->cuts[stage - 1] : 0;
    part->end = stage < work->stages - 1 ? partition->cuts[stage] : graph->node_count;
    part->nodes = work->pending + graph->node_count; /* room for all, until their number is known */
    for (int i = 0; i < graph->output_count; i++) {
        if (stage_of_output(work, i) == stage)
            mark_value(work, graph->outputs[i].value, (uint8_t)(NEEDS | (output_has_grad(graph, i) ? GRADIENT : 0)));
    }
    for (int n = part->end - 1; n >= part->first; n--) {
        if (graph->nodes[n].live && !graph->nodes[n].fixed)
            mark_node(work, n, part);
    }
    while (work->pending_count > 0)
        mark_node(work, work->pending[--work->pending_count], part);
    qsort(part->nodes, (size_t)part->node_count, sizeof *part->nodes, by_number);
    SL_TRY(sl_arena_copy(partition->arena, part->nodes, (size_t)part->node_count * sizeof *nodes, (void **)&nodes));
    part->nodes = nodes;
    for (int i = 0; i < part->node_count; i++) {
        sl_cost cost = sl_graph_node_cost(graph, part->nodes[i]);
        part->cost.flops += cost.flops;
        part->cost.bytes += cost.bytes;
    }
    SL_TRY(check_work(work, stage, part));
    SL_TRY(take_uses(work, stage, part));
done:
    return status;
}

/* ---- Between stages -------------------------------------------------------------------------- */

static bool comes_from_outside(const cut_work *work, const value_use *use)
{
    sl_value_kind kind = work->graph->values[use->value].kind;
    return (use->bits & NEEDS) && !(use->bits & MAKES) && (kind == SL_VALUE_INPUT || kind == SL_VALUE_NODE);
}

/* A value whose gradient flows back from several stages is handed on from one of them to the next. */
static void mark_relays(cut_work *work)
{
    for (int s = work->stages - 1; s >= 0; s--) {
        for (int i = 0; i < work->uses[s].count; i++) {
            value_use *use = &work->uses[s].items[i];
            if (!comes_from_outside(work, use) || !(use->bits & GRADIENT))
                continue;
            if (work->bits[use->value])
                use->bits |= RELAYS;
            work->bits[use->value] = 1; /* a later stage gives back a gradient */
        }
    }
    memset(work->bits, 0, (size_t)work->graph->value_count);
}

/* Each value comes from the nearest earlier stage that makes it or hands it on; with none, it is a root. */
static sl_status find_sources(cut_work *work)
{
    sl_status status = SL_OK;
    value_use **latest = NULL; /* of each value: the use by the nearest stage so far that has it to give */
    int *stages = NULL;
    SL_TRY(SL_NEW_ARRAY(latest, work->graph->value_count));
    SL_TRY(SL_NEW_ARRAY(stages, work->graph->value_count));
    for (int s = 0; s < work->stages; s++) {
        for (int i = 0; i < work->uses[s].count; i++) {
            value_use *use = &work->uses[s].items[i], *source = latest[use->value];
            if (comes_from_outside(work, use) && source) {
                use->from = stages[use->value];
                source->bits |= (uint8_t)(WANTED | (use->bits & GRADIENT ? RETURNS : 0));
            }
            if (use->bits & (MAKES | RELAYS)) {
                latest[use->value] = use;
                stages[use->value] = s;
            }
        }
    }
done:
    sl_free(latest);
    sl_free(stages);
    return status;
}

/* Values of one kind that the stage needs, in the graph's order. */
static sl_status list_values(const cut_work *work, int stage, sl_value_kind kind, int **out, int *count)
{
    const stage_uses *uses = &work->uses[stage];
    int found = 0, *ids = NULL;
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, ids, uses->count);
    for (int i = 0; i < uses->count && status == SL_OK; i++) {
        if ((uses->items[i].bits & NEEDS) && work->graph->values[uses->items[i].value].kind == kind)
            ids[found++] = uses->items[i].value;
    }
    *out = ids;
    *count = found;
    return status;
}

static sl_status list_inputs(const cut_work *work, int stage, sl_stage_part *part)
{
    const stage_uses *uses = &work->uses[stage];
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, part->inputs, uses->count);
    for (int roots = 1; roots >= 0 && status == SL_OK; roots--) {
        for (int i = 0; i < uses->count; i++) {
            const value_use *use = &uses->items[i];
            if (comes_from_outside(work, use) && (use->from < 0) == (roots == 1))
                part->inputs[part->input_count++] =
                    (sl_stage_input_port){ use->value, use->from, (use->bits & GRADIENT) != 0 };
        }
    }
    return status;
}

static sl_status list_outputs(const cut_work *work, int stage, sl_stage_part *part)
{
    const sl_graph *graph = work->graph;
    const stage_uses *uses = &work->uses[stage];
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, part->outputs, uses->count + graph->output_count);
    if (status != SL_OK)
        return status;
    for (int i = 0; i < uses->count; i++) {
        if (uses->items[i].bits & WANTED)
            part->outputs[part->output_count++] =
                (sl_stage_output_port){ uses->items[i].value, -1, (uses->items[i].bits & RETURNS) != 0 };
    }
    for (int i = 0; i < graph->output_count; i++) {
        if (stage_of_output(work, i) == stage)
            part->outputs[part->output_count++] =
                (sl_stage_output_port){ graph->outputs[i].value, i, output_has_grad(graph, i) };
    }
    return SL_OK;
}

static sl_status list_part(const cut_work *work, int stage)
{
    sl_status status = SL_OK;
    sl_stage_part *part = &work->partition->parts[stage];
    SL_TRY(list_inputs(work, stage, part));
    SL_TRY(list_outputs(work, stage, part));
    SL_TRY(list_values(work, stage, SL_VALUE_PARAM, &part->params, &part->param_count));
    SL_TRY(list_values(work, stage, SL_VALUE_CONSTANT, &part->constants, &part->constant_count));
    SL_TRY(list_values(work, stage, SL_VALUE_STATE, &part->states, &part->state_count));
done:
    return status;
}

static int find_output(const sl_stage_part *part, int value)
{
    for (int i = 0; i < part->output_count; i++) {
        if (part->outputs[i].value == value && part->outputs[i].output < 0)
            return i;
    }
    return -1;
}

static int by_ends(const void *left, const void *right)
{
    const sl_value_edge *a = left, *b = right;
    if (a->from != b->from)
        return a->from - b->from;
    return a->to != b->to ? a->to - b->to : a->input - b->input;
}

static sl_status list_edges(const cut_work *work)
{
    sl_partition *partition = work->partition;
    int count = 0;
    for (int t = 0; t < work->stages; t++)
        count += partition->parts[t].input_count;
    sl_status status = SL_ARENA_ARRAY(partition->arena, partition->edges, count);
    for (int t = 0; t < work->stages && status == SL_OK; t++) {
        const sl_stage_part *to = &partition->parts[t];
        for (int i = 0; i < to->input_count; i++) {
            const sl_graph_value *value = &work->graph->values[to->inputs[i].value];
            const sl_meta meta = { .dtype = value->dtype, .shape = value->shape };
            int from = to->inputs[i].from;
            if (from < 0)
                continue;
            partition->edges[partition->edge_count++] =
                (sl_value_edge){ .name = value->name,
                                 .from = from,
                                 .to = t,
                                 .output = find_output(&partition->parts[from], to->inputs[i].value),
                                 .input = i,
                                 .differentiable = to->inputs[i].has_grad,
                                 .bytes = sl_meta_bytes(&meta) };
        }
    }
    if (status == SL_OK)
        qsort(partition->edges, (size_t)partition->edge_count, sizeof *partition->edges, by_ends);
    return status;
}

/* The stages that need each value of a list: of[i] for list->ids[i]. With roots, those that get it from no stage. */
typedef struct stage_list {
    int *stages;
    int count;
} stage_list;

static sl_status list_stages(const cut_work *work, const sl_id_list *list, bool roots, stage_list **out)
{
    sl_status status = SL_OK;
    stage_list *lists = NULL;
    int *places = NULL; /* of each value: 1 + its place in the list */
    SL_TRY(SL_NEW_ARRAY(places, work->graph->value_count));
    SL_TRY(SL_ARENA_ARRAY(work->partition->arena, lists, list->count));
    for (int i = 0; i < list->count; i++)
        places[list->ids[i]] = i + 1;
    for (int pass = 0; pass < 2; pass++) { /* counts, then fills */
        for (int s = 0; s < work->stages; s++) {
            for (int i = 0; i < work->uses[s].count; i++) {
                const value_use *use = &work->uses[s].items[i];
                stage_list *found = places[use->value] ? &lists[places[use->value] - 1] : NULL;
                if (!found || !(use->bits & NEEDS) || (roots && use->from >= 0))
                    continue;
                if (pass == 1)
                    found->stages[found->count] = s;
                found->count++;
            }
        }
        for (int i = 0; i < list->count && pass == 0; i++) {
            SL_TRY(SL_ARENA_ARRAY(work->partition->arena, lists[i].stages, lists[i].count));
            lists[i].count = 0;
        }
    }
    *out = lists;
done:
    sl_free(places);
    return status;
}

static sl_status list_tied_params(const cut_work *work)
{
    sl_status status = SL_OK;
    sl_partition *partition = work->partition;
    const sl_graph *graph = work->graph;
    stage_list *lists = NULL;
    SL_TRY(list_stages(work, &graph->params, false, &lists));
    SL_TRY(SL_ARENA_ARRAY(partition->arena, partition->tied, graph->params.count));
    for (int i = 0; i < graph->params.count; i++) {
        if (lists[i].count > 1)
            partition->tied[partition->tied_count++] =
                (sl_tied_param){ .name = graph->values[graph->params.ids[i]].name,
                                 .stages = lists[i].stages,
                                 .stage_count = lists[i].count };
    }
done:
    return status;
}

static sl_status list_root_inputs(const cut_work *work)
{
    sl_status status = SL_OK;
    sl_partition *partition = work->partition;
    const sl_graph *graph = work->graph;
    stage_list *lists = NULL;
    SL_TRY(list_stages(work, &graph->inputs, true, &lists));
    SL_TRY(SL_ARENA_ARRAY(partition->arena, partition->roots, graph->inputs.count));
    for (int i = 0; i < graph->inputs.count; i++) {
        const sl_graph_value *value = &graph->values[graph->inputs.ids[i]];
        partition->roots[partition->root_count++] =
            (sl_root_input){ .name = value->name,
                             .dtype = value->dtype,
                             .shape = value->shape,
                             .stages = lists[i].stages,
                             .stage_count = lists[i].count,
                             .differentiable = sl_value_has_grad(graph, graph->inputs.ids[i]) };
    }
done:
    return status;
}

static sl_status check_states(const cut_work *work)
{
    sl_status status = SL_OK;
    stage_list *lists = NULL;
    const sl_id_list *states = &work->graph->states;
    SL_TRY(list_stages(work, states, false, &lists));
    for (int i = 0; i < states->count; i++) {
        if (lists[i].count > 1)
            return sl_fail(SL_ERR_ARGUMENT, "state '%s' is used by stages %d and %d: it cannot be in both",
                           work->graph->values[states->ids[i]].name, lists[i].stages[0], lists[i].stages[1]);
    }
done:
    return status;
}

static sl_status fill(cut_work *work)
{
    sl_status status = SL_OK;
    const sl_graph *graph = work->graph;
    SL_TRY(SL_NEW_ARRAY(work->bits, graph->value_count));
    SL_TRY(SL_NEW_ARRAY(work->touched, graph->value_count));
    SL_TRY(SL_NEW_ARRAY(work->pending, 2 * (int64_t)graph->node_count));
    SL_TRY(SL_NEW_ARRAY(work->seen, graph->node_count));
    SL_TRY(SL_ARENA_ARRAY(work->partition->arena, work->uses, work->stages));
    SL_TRY(SL_ARENA_ARRAY(work->partition->arena, work->partition->parts, work->stages));
    for (int s = 0; s < work->stages; s++)
        SL_TRY(look_at_stage(work, s));
    mark_relays(work);
    SL_TRY(find_sources(work));
    SL_TRY(check_states(work));
    for (int s = 0; s < work->stages; s++)
        SL_TRY(list_part(work, s));
    SL_TRY(list_edges(work));
    SL_TRY(list_tied_params(work));
    SL_TRY(list_root_inputs(work));
done:
    sl_free(work->bits);
    sl_free(work->touched);
    sl_free(work->pending);
    sl_free(work->seen);
    return status;
}

sl_status sl_graph_partition(const sl_graph *graph, const sl_split_spec *spec, sl_partition **out)
{
    sl_status status = SL_OK;
    sl_partition *partition = NULL;
    const sl_split_spec whole = { .kind = SL_SPLIT_WHOLE };
    if (!graph->finished)
        return sl_fail(SL_ERR_ARGUMENT, "partition: the graph is not finished");
    SL_TRY(SL_NEW(partition));
    SL_TRY(sl_arena_create(&partition->arena));
    SL_TRY(sl_split_resolve(graph, spec ? spec : &whole, partition->arena, &partition->cuts, &partition->stage_count));
    partition->stage_count++;
    cut_work work = { .graph = graph, .partition = partition, .stages = partition->stage_count };
    SL_TRY(fill(&work));
    partition->graph = (sl_graph *)(uintptr_t)graph; /* only its number of owners changes */
    atomic_fetch_add(&partition->graph->owners, 1);
    *out = partition;
    partition = NULL;
done:
    sl_partition_destroy(partition);
    return status;
}

void sl_partition_destroy(sl_partition *partition)
{
    if (!partition)
        return;
    sl_graph_destroy(partition->graph);
    sl_arena_destroy(partition->arena);
    sl_free(partition);
}
