/* A graph as text. */
#include "graph/graph.h"

#include <inttypes.h>

static void dump_sources(const sl_graph *graph, const char *kind, const sl_id_list *list, FILE *file)
{
    char shape[128];
    for (int i = 0; i < list->count; i++) {
        const sl_graph_value *value = &graph->values[list->ids[i]];
        fprintf(file, "%%%d = %s %s %s %s\n", list->ids[i], kind, value->name, sl_dtype_name(value->dtype),
                sl_shape_text(&value->shape, shape, sizeof shape));
    }
}

/* What a node does beyond its arguments; rank is that of its result. */
static void dump_attrs(const sl_graph_node *node, int rank, FILE *file)
{
    const sl_op_attrs *a = &node->attrs;
    if (a->transpose_w)
        fputs(" transpose_w", file);
    if (a->transpose_a)
        fputs(" transpose_a", file);
    if (a->transpose_b)
        fputs(" transpose_b", file);
    if (a->causal)
        fputs(" causal", file);
    if (a->eps != 0)
        fprintf(file, " eps=%g", a->eps);
    if (a->scale != 0)
        fprintf(file, " scale=%g", a->scale);
    if (node->op == SL_OP_SCALE)
        fprintf(file, " alpha=%g beta=%g", a->alpha, a->beta);
    if (a->p != 0)
        fprintf(file, " p=%g", a->p);
    if (a->dims != 0)
        fprintf(file, " dims=0x%x", a->dims);
    if (node->op == SL_OP_CROSS_ENTROPY)
        fprintf(file, " ignore_index=%" PRId64, a->ignore_index);
    if (node->op == SL_NODE_SLICE)
        fprintf(file, " dim=%d start=%" PRId64, node->dim, node->start);
    if (node->op == SL_NODE_SPLIT || node->op == SL_OP_CONCAT)
        fprintf(file, " dim=%d", node->op == SL_OP_CONCAT ? a->dim : node->dim);
    for (int i = 0; i < rank && node->op == SL_NODE_PERMUTE; i++)
        fprintf(file, "%s%d", i ? "," : " order=", node->order[i]);
}

static void dump_node(const sl_graph *graph, const sl_graph_node *node, FILE *file)
{
    char shape[128];
    for (int i = 0; i < node->output_count; i++)
        fprintf(file, "%s%%%d", i ? ", " : "", node->outputs[i]);
    fprintf(file, " = %s(", sl_node_op_name(node->op));
    for (int i = 0; i < node->input_count; i++) {
        if (node->inputs[i])
            fprintf(file, "%s%%%d", i ? ", " : "", node->inputs[i]);
        else
            fprintf(file, "%s-", i ? ", " : "");
    }
    fputs(")", file);
    dump_attrs(node, graph->values[node->outputs[0]].shape.rank, file);
    fputs(" ->", file);
    for (int i = 0; i < node->output_count; i++) {
        const sl_graph_value *value = &graph->values[node->outputs[i]];
        fprintf(file, "%s %s %s", i ? "," : "", sl_dtype_name(value->dtype),
                sl_shape_text(&value->shape, shape, sizeof shape));
    }
    fprintf(file, "  # %s%s\n", node->name, graph->finished && !node->live ? " (unused)" : "");
}

void sl_graph_dump(const sl_graph *graph, FILE *file)
{
    dump_sources(graph, "input", &graph->inputs, file);
    dump_sources(graph, "param", &graph->params, file);
    dump_sources(graph, "constant", &graph->constants, file);
    dump_sources(graph, "state", &graph->states, file);
    for (int n = 0, mark = 0; n < graph->node_count; n++) {
        for (; mark < graph->mark_count && graph->marks[mark] <= n; mark++)
            fputs("---- split\n", file);
        dump_node(graph, &graph->nodes[n], file);
    }
    for (int i = 0; i < graph->output_count; i++)
        fprintf(file, "%s %s = %%%d\n", i == graph->loss ? "loss" : "output", graph->outputs[i].name,
                graph->outputs[i].value);
}
