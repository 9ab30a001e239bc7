/* Partition: what each stage holds, the edges between stages, tied parameters and root inputs. */
#include "graph/partition.h"

#include "base/alloc.h"

#include <string.h>

/* What one stage does with each value: bits. */
enum {
    NEEDS = 1,    /* reads it, or has it as an output */
    MAKES = 2,    /* runs its node */
    GRADIENT = 4, /* a gradient flows back from this stage's use of it */
    RELAYS = 8,   /* hands it on to a later stage */
};

typedef struct cut_work {
    const sl_graph *graph;
    sl_partition *partition;
    uint8_t *use; /* [stage][value] */
    int stages;
} cut_work;

static uint8_t *use_of(const cut_work *work, int stage, int value)
{
    return &work->use[(size_t)stage * (size_t)work->graph->value_count + (size_t)value];
}

static int stage_of_node(const sl_partition *partition, int node)
{
    int stage = 0;
    while (stage < partition->stage_count - 1 && node >= partition->cuts[stage])
        stage++;
    return stage;
}

/* Marks what the stage's nodes read; walks backwards so that the fixed nodes it needs follow. */
static void mark_uses(const cut_work *work, int stage)
{
    const sl_graph *graph = work->graph;
    for (int n = graph->node_count - 1; n >= 0; n--) {
        const sl_graph_node *node = &graph->nodes[n];
        bool runs = node->live && !node->fixed && stage_of_node(work->partition, n) == stage;
        bool gradient = false;
        for (int i = 0; i < node->output_count; i++) {
            runs = runs || (node->fixed && (*use_of(work, stage, node->outputs[i]) & NEEDS));
            gradient = gradient || sl_value_has_grad(graph, node->outputs[i]);
        }
        if (!runs)
            continue;
        for (int i = 0; i < node->output_count; i++)
            *use_of(work, stage, node->outputs[i]) |= MAKES;
        for (int i = 0; i < node->input_count; i++) {
            if (!node->inputs[i])
                continue;
            bool flows = gradient && sl_node_input_differentiable(node, i) && sl_value_has_grad(graph, node->inputs[i]);
            *use_of(work, stage, node->inputs[i]) |= (uint8_t)(NEEDS | (flows ? GRADIENT : 0));
        }
    }
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

/* The stage from which `stage` gets the value: the nearest before it that has it to give; -1: none, it is a root. */
static int source_of(const cut_work *work, int stage, int value)
{
    for (int s = stage - 1; s >= 0; s--) {
        if (*use_of(work, s, value) & (MAKES | RELAYS))
            return s;
    }
    return -1;
}

static bool comes_from_outside(const cut_work *work, int stage, int value)
{
    const sl_graph_value *v = &work->graph->values[value];
    uint8_t use = *use_of(work, stage, value);
    return (use & NEEDS) && !(use & MAKES) && (v->kind == SL_VALUE_INPUT || v->kind == SL_VALUE_NODE);
}

/* A value whose gradient flows back from several stages is handed on from one of them to the next. */
static void mark_relays(const cut_work *work)
{
    for (int v = 1; v < work->graph->value_count; v++) {
        bool later = false;
        for (int s = work->stages - 1; s >= 0; s--) {
            if (!comes_from_outside(work, s, v) || !(*use_of(work, s, v) & GRADIENT))
                continue;
            if (later)
                *use_of(work, s, v) |= RELAYS;
            later = true;
        }
    }
}

static sl_status list_values(const cut_work *work, int stage, const sl_id_list *all, int **out, int *count)
{
    int found = 0, *ids = NULL;
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, ids, all->count);
    if (status != SL_OK)
        return status;
    for (int i = 0; i < all->count; i++) {
        if (*use_of(work, stage, all->ids[i]) & NEEDS)
            ids[found++] = all->ids[i];
    }
    *out = ids;
    *count = found;
    return SL_OK;
}

static sl_status list_nodes(const cut_work *work, int stage, sl_stage_part *part)
{
    const sl_graph *graph = work->graph;
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, part->nodes, graph->node_count);
    if (status != SL_OK)
        return status;
    bool empty = true;
    for (int n = 0; n < graph->node_count; n++) {
        const sl_graph_node *node = &graph->nodes[n];
        if (!(*use_of(work, stage, node->outputs[0]) & MAKES))
            continue;
        part->nodes[part->node_count++] = n;
        sl_cost cost = sl_graph_node_cost(graph, n);
        part->cost.flops += cost.flops;
        part->cost.bytes += cost.bytes;
        empty = empty && !sl_node_has_work(node);
    }
    if (!empty || work->stages == 1)
        return SL_OK;
    if (part->first >= part->end)
        return sl_fail(SL_ERR_ARGUMENT, "stage %d would be empty: two cuts at node %d", stage, part->first);
    return sl_fail(SL_ERR_ARGUMENT, "stage %d would be empty: nothing to run from '%s' to '%s'", stage,
                   graph->nodes[part->first].name, graph->nodes[part->end - 1].name);
}

static sl_status list_inputs(const cut_work *work, int stage, sl_stage_part *part)
{
    const sl_graph *graph = work->graph;
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, part->inputs, graph->value_count);
    if (status != SL_OK)
        return status;
    for (int roots = 1; roots >= 0; roots--) {
        for (int v = 1; v < graph->value_count; v++) {
            if (!comes_from_outside(work, stage, v))
                continue;
            int from = source_of(work, stage, v);
            if ((from < 0) == (roots == 1))
                part->inputs[part->input_count++] =
                    (sl_stage_input_port){ v, from, (*use_of(work, stage, v) & GRADIENT) != 0 };
        }
    }
    return SL_OK;
}

static sl_status list_outputs(const cut_work *work, int stage, sl_stage_part *part)
{
    const sl_graph *graph = work->graph;
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, part->outputs, graph->value_count + graph->output_count);
    if (status != SL_OK)
        return status;
    for (int v = 1; v < graph->value_count; v++) {
        bool wanted = false, gradient = false;
        if (!(*use_of(work, stage, v) & (MAKES | RELAYS)))
            continue;
        for (int t = stage + 1; t < work->stages; t++) {
            if (comes_from_outside(work, t, v) && source_of(work, t, v) == stage) {
                wanted = true;
                gradient = gradient || (*use_of(work, t, v) & GRADIENT);
            }
        }
        if (wanted)
            part->outputs[part->output_count++] = (sl_stage_output_port){ v, -1, gradient };
    }
    for (int i = 0; i < graph->output_count; i++) {
        int value = graph->outputs[i].value;
        if (stage_of_output(work, i) == stage)
            part->outputs[part->output_count++] = (sl_stage_output_port){ value, i, output_has_grad(graph, i) };
    }
    return SL_OK;
}

static sl_status list_part(const cut_work *work, int stage)
{
    sl_status status = SL_OK;
    sl_partition *partition = work->partition;
    const sl_graph *graph = work->graph;
    sl_stage_part *part = &partition->parts[stage];
    part->first = stage ? partition->cuts[stage - 1] : 0;
    part->end = stage < work->stages - 1 ? partition->cuts[stage] : graph->node_count;
    SL_TRY(list_nodes(work, stage, part));
    SL_TRY(list_inputs(work, stage, part));
    SL_TRY(list_outputs(work, stage, part));
    SL_TRY(list_values(work, stage, &graph->params, &part->params, &part->param_count));
    SL_TRY(list_values(work, stage, &graph->constants, &part->constants, &part->constant_count));
    SL_TRY(list_values(work, stage, &graph->states, &part->states, &part->state_count));
done:
    return status;
}

/* ---- What holds between stages --------------------------------------------------------------- */

static int find_output(const sl_stage_part *part, int value)
{
    for (int i = 0; i < part->output_count; i++) {
        if (part->outputs[i].value == value && part->outputs[i].output < 0)
            return i;
    }
    return -1;
}

static sl_status list_edges(const cut_work *work)
{
    sl_partition *partition = work->partition;
    int count = 0;
    for (int t = 0; t < work->stages; t++)
        count += partition->parts[t].input_count;
    sl_status status = SL_ARENA_ARRAY(partition->arena, partition->edges, count);
    for (int s = 0; s < work->stages && status == SL_OK; s++) {
        for (int t = s + 1; t < work->stages; t++) {
            const sl_stage_part *to = &partition->parts[t];
            for (int i = 0; i < to->input_count; i++) {
                const sl_graph_value *value = &work->graph->values[to->inputs[i].value];
                const sl_meta meta = { .dtype = value->dtype, .shape = value->shape };
                if (to->inputs[i].from != s)
                    continue;
                partition->edges[partition->edge_count++] =
                    (sl_value_edge){ .name = value->name,
                                     .from = s,
                                     .to = t,
                                     .output = find_output(&partition->parts[s], to->inputs[i].value),
                                     .input = i,
                                     .differentiable = to->inputs[i].has_grad,
                                     .bytes = sl_meta_bytes(&meta) };
            }
        }
    }
    return status;
}

/* The stages for which pick is true of the value, in an array of the arena. */
static sl_status list_stages(const cut_work *work, int value, bool roots, const int **out, int *count)
{
    int *stages = NULL, found = 0;
    sl_status status = SL_ARENA_ARRAY(work->partition->arena, stages, work->stages);
    if (status != SL_OK)
        return status;
    for (int s = 0; s < work->stages; s++) {
        if ((*use_of(work, s, value) & NEEDS) && !(roots && source_of(work, s, value) >= 0))
            stages[found++] = s;
    }
    *out = stages;
    *count = found;
    return SL_OK;
}

static sl_status list_tied_params(const cut_work *work)
{
    sl_status status = SL_OK;
    sl_partition *partition = work->partition;
    const sl_graph *graph = work->graph;
    SL_TRY(SL_ARENA_ARRAY(partition->arena, partition->tied, graph->params.count));
    for (int i = 0; i < graph->params.count; i++) {
        sl_tied_param tied = { .name = graph->values[graph->params.ids[i]].name };
        SL_TRY(list_stages(work, graph->params.ids[i], false, &tied.stages, &tied.stage_count));
        if (tied.stage_count > 1)
            partition->tied[partition->tied_count++] = tied;
    }
done:
    return status;
}

static sl_status list_root_inputs(const cut_work *work)
{
    sl_status status = SL_OK;
    sl_partition *partition = work->partition;
    const sl_graph *graph = work->graph;
    SL_TRY(SL_ARENA_ARRAY(partition->arena, partition->roots, graph->inputs.count));
    for (int i = 0; i < graph->inputs.count; i++) {
        const sl_graph_value *value = &graph->values[graph->inputs.ids[i]];
        sl_root_input root = { .name = value->name,
                               .dtype = value->dtype,
                               .shape = value->shape,
                               .differentiable = sl_value_has_grad(graph, graph->inputs.ids[i]) };
        SL_TRY(list_stages(work, graph->inputs.ids[i], true, &root.stages, &root.stage_count));
        partition->roots[partition->root_count++] = root;
    }
done:
    return status;
}

static sl_status check_states(const cut_work *work)
{
    const sl_id_list *states = &work->graph->states;
    for (int i = 0; i < states->count; i++) {
        int first = -1;
        for (int s = 0; s < work->stages; s++) {
            if (!(*use_of(work, s, states->ids[i]) & NEEDS))
                continue;
            if (first >= 0)
                return sl_fail(SL_ERR_ARGUMENT, "state '%s' is used by stages %d and %d: it cannot be in both",
                               work->graph->values[states->ids[i]].name, first, s);
            first = s;
        }
    }
    return SL_OK;
}

static sl_status fill(cut_work *work)
{
    sl_status status = SL_OK;
    const sl_graph *graph = work->graph;
    SL_TRY(SL_NEW_ARRAY(work->use, (size_t)work->stages * (size_t)graph->value_count));
    for (int i = 0; i < graph->output_count; i++) {
        uint8_t gradient = output_has_grad(graph, i) ? GRADIENT : 0;
        *use_of(work, stage_of_output(work, i), graph->outputs[i].value) |= (uint8_t)(NEEDS | gradient);
    }
    for (int s = 0; s < work->stages; s++)
        mark_uses(work, s);
    mark_relays(work);
    SL_TRY(check_states(work));
    SL_TRY(SL_ARENA_ARRAY(work->partition->arena, work->partition->parts, work->stages));
    for (int s = 0; s < work->stages; s++)
        SL_TRY(list_part(work, s));
    SL_TRY(list_edges(work));
    SL_TRY(list_tied_params(work));
    SL_TRY(list_root_inputs(work));
done:
    sl_free(work->use);
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
