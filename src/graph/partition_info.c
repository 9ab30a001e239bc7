/* Looking at a partition: its lists, as text, and as a picture with stages and modules as boxes. */
#include "graph/partition.h"

#include <string.h>

int sl_partition_stage_count(const sl_partition *partition)
{
    return partition->stage_count;
}

const int *sl_partition_cuts(const sl_partition *partition, int *count)
{
    *count = partition->stage_count - 1;
    return partition->cuts;
}

const sl_value_edge *sl_partition_edges(const sl_partition *partition, int *count)
{
    *count = partition->edge_count;
    return partition->edges;
}

const sl_tied_param *sl_partition_tied_params(const sl_partition *partition, int *count)
{
    *count = partition->tied_count;
    return partition->tied;
}

const sl_root_input *sl_partition_root_inputs(const sl_partition *partition, int *count)
{
    *count = partition->root_count;
    return partition->roots;
}

sl_cost sl_partition_stage_cost(const sl_partition *partition, int stage)
{
    return partition->parts[stage].cost;
}

static void dump_part(const sl_partition *partition, int stage, FILE *file)
{
    const sl_graph *graph = partition->graph;
    const sl_stage_part *part = &partition->parts[stage];
    fprintf(file, "stage %d: %d nodes, '%s' to '%s', %.4g GFLOP, %.4g MB\n", stage, part->node_count,
            graph->nodes[part->first].name, graph->nodes[part->end - 1].name, part->cost.flops / 1e9,
            part->cost.bytes / 1e6);
    for (int i = 0; i < part->input_count; i++) {
        if (part->inputs[i].from < 0)
            fprintf(file, "  input %s (root)\n", graph->values[part->inputs[i].value].name);
        else
            fprintf(file, "  input %s from stage %d\n", graph->values[part->inputs[i].value].name,
                    part->inputs[i].from);
    }
    for (int i = 0; i < part->param_count; i++)
        fprintf(file, "  param %s\n", graph->values[part->params[i]].name);
    for (int i = 0; i < part->output_count; i++) {
        const sl_stage_output_port *port = &part->outputs[i];
        if (port->output < 0)
            fprintf(file, "  output %s\n", graph->values[port->value].name);
        else
            fprintf(file, "  output %s = %s (root)\n", graph->outputs[port->output].name,
                    graph->values[port->value].name);
    }
}

void sl_partition_dump(const sl_partition *partition, FILE *file)
{
    for (int s = 0; s < partition->stage_count; s++)
        dump_part(partition, s, file);
    for (int i = 0; i < partition->edge_count; i++) {
        const sl_value_edge *edge = &partition->edges[i];
        fprintf(file, "edge %d -> %d: %s, %zu bytes%s\n", edge->from, edge->to, edge->name, edge->bytes,
                edge->differentiable ? " each way" : "");
    }
    for (int i = 0; i < partition->tied_count; i++) {
        fprintf(file, "tied %s: stages", partition->tied[i].name);
        for (int s = 0; s < partition->tied[i].stage_count; s++)
            fprintf(file, " %d", partition->tied[i].stages[s]);
        fputc('\n', file);
    }
}

/* ---- Graphviz -------------------------------------------------------------------------------- */

typedef struct dot_picture {
    FILE *file;
    int clusters;   /* opened so far: their ids */
    char open[512]; /* module path of the boxes that are open */
    int depth;      /* how many of them */
} dot_picture;

/* Length of the path up to and with its n-th component. */
static size_t path_length(const char *path, int n)
{
    size_t length = 0;
    for (int i = 0; i < n; i++) {
        length += i ? 1 : 0;
        length += strcspn(path + length, ".");
    }
    return length;
}

static int path_depth(const char *path)
{
    int depth = *path ? 1 : 0;
    for (; *path; path++)
        depth += *path == '.';
    return depth;
}

static void open_box(dot_picture *picture, const char *label, size_t length)
{
    fprintf(picture->file, "subgraph cluster_%d { label=\"%.*s\";\n", picture->clusters++, (int)length, label);
}

/* Closes and opens boxes until those of the module's path are open. */
static void enter_module(dot_picture *picture, const char *scope)
{
    int depth = path_depth(scope), common = 0;
    while (common < depth && common < picture->depth) {
        size_t length = path_length(scope, common + 1);
        if (length != path_length(picture->open, common + 1) || memcmp(scope, picture->open, length) != 0)
            break;
        common++;
    }
    for (; picture->depth > common; picture->depth--)
        fputs("}\n", picture->file);
    for (; picture->depth < depth; picture->depth++) {
        size_t start = picture->depth ? path_length(scope, picture->depth) + 1 : 0;
        open_box(picture, scope + start, path_length(scope, picture->depth + 1) - start);
    }
    snprintf(picture->open, sizeof picture->open, "%s", scope);
}

static void draw_nodes(const sl_graph *graph, int first, int end, dot_picture *picture)
{
    char shape[128];
    for (int n = first; n < end; n++) {
        const sl_graph_node *node = &graph->nodes[n];
        enter_module(picture, node->scope);
        fprintf(picture->file, "n%d [label=\"%s\\n%s\"%s];\n", n, sl_node_op_name(node->op),
                sl_shape_text(&graph->values[node->outputs[0]].shape, shape, sizeof shape),
                SL_NODE_IS_VIEW(node->op) ? ", style=dashed" : "");
    }
    enter_module(picture, "");
}

static void draw_edges(const sl_graph *graph, FILE *file)
{
    for (int v = 1; v < graph->value_count; v++) {
        const sl_graph_value *value = &graph->values[v];
        if (value->kind != SL_VALUE_NODE && value->kind != SL_VALUE_CONSTANT)
            fprintf(file, "v%d [label=\"%s\", shape=%s];\n", v, value->name,
                    value->kind == SL_VALUE_PARAM ? "note" : "ellipse");
    }
    for (int n = 0; n < graph->node_count; n++) {
        for (int i = 0; i < graph->nodes[n].input_count; i++) {
            const sl_graph_value *value = &graph->values[graph->nodes[n].inputs[i]];
            if (value->kind == SL_VALUE_NODE && value->node >= 0)
                fprintf(file, "n%d -> n%d;\n", value->node, n);
            else if (graph->nodes[n].inputs[i] && value->kind != SL_VALUE_CONSTANT)
                fprintf(file, "v%d -> n%d;\n", graph->nodes[n].inputs[i], n);
        }
    }
    for (int i = 0; i < graph->output_count; i++) {
        const sl_graph_value *value = &graph->values[graph->outputs[i].value];
        fprintf(file, "o%d [label=\"%s\", shape=ellipse];\n", i, graph->outputs[i].name);
        fprintf(file, "%c%d -> o%d;\n", value->node >= 0 ? 'n' : 'v',
                value->node >= 0 ? value->node : graph->outputs[i].value, i);
    }
}

void sl_graph_dump_dot(const sl_graph *graph, const sl_partition *partition, FILE *file)
{
    dot_picture picture = { .file = file };
    fputs("digraph graph_ {\nrankdir=TB; node [shape=box, fontsize=10];\n", file);
    if (partition) {
        for (int s = 0; s < partition->stage_count; s++) {
            char label[32];
            int length = snprintf(label, sizeof label, "stage %d", s);
            open_box(&picture, label, (size_t)length);
            draw_nodes(graph, partition->parts[s].first, partition->parts[s].end, &picture);
            fputs("}\n", file);
        }
    } else {
        draw_nodes(graph, 0, graph->node_count, &picture);
    }
    draw_edges(graph, file);
    fputs("}\n", file);
}
