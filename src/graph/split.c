/* From a split specification to the nodes that stages start with. */
#include "graph/partition.h"

#include <stdlib.h>
#include <string.h>

bool sl_module_contains(const char *module, const char *scope)
{
    while (*module && *scope) {
        size_t m = strcspn(module, "."), s = strcspn(scope, ".");
        if (!(m == 1 && *module == '*') && (m != s || memcmp(module, scope, m) != 0))
            return false;
        module += m + (module[m] == '.');
        scope += s + (scope[s] == '.');
    }
    return *module == '\0';
}

bool sl_node_has_work(const sl_graph_node *node)
{
    return node->live && !node->fixed && !SL_NODE_IS_VIEW(node->op);
}

/* Range of the nodes of a module, or the one node of that name. */
static sl_status find_module(const sl_graph *graph, const char *module, int *first, int *end)
{
    int low = -1, high = -1;
    if (!module || !*module)
        return sl_fail(SL_ERR_ARGUMENT, "a split point without a module");
    for (int n = 0; n < graph->node_count; n++) {
        if (sl_module_contains(module, graph->nodes[n].scope) || strcmp(module, graph->nodes[n].name) == 0) {
            low = low < 0 ? n : low;
            high = n + 1;
        }
    }
    if (low < 0)
        return sl_fail(SL_ERR_ARGUMENT, "split point '%s': the graph has no such module or node", module);
    *first = low;
    *end = high;
    return SL_OK;
}

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static sl_status resolve_points(const sl_graph *graph, const sl_split_spec *spec, int *cuts)
{
    for (int i = 0; i < spec->point_count; i++) {
        int first = 0, end = 0;
        sl_status status = find_module(graph, spec->points[i].module, &first, &end);
        if (status != SL_OK)
            return status;
        cuts[i] = spec->points[i].after ? end : first;
    }
    qsort(cuts, (size_t)spec->point_count, sizeof *cuts, compare_ints);
    return SL_OK;
}

static sl_status resolve_nodes(const sl_graph *graph, const sl_split_spec *spec, int *cuts)
{
    for (int i = 0; i < spec->node_count; i++) {
        int previous = i ? spec->nodes[i - 1] : 0;
        if (spec->nodes[i] <= previous || spec->nodes[i] >= graph->node_count)
            return sl_fail(SL_ERR_ARGUMENT, "split at node %d: it must lie after node %d and before node %d",
                           spec->nodes[i], previous, graph->node_count);
        cuts[i] = spec->nodes[i];
    }
    return SL_OK;
}

sl_status sl_split_resolve(const sl_graph *graph, const sl_split_spec *spec, sl_arena *arena, int **cuts, int *count)
{
    sl_status status = SL_OK;
    int number = 0, *found = NULL;
    switch (spec->kind) {
    case SL_SPLIT_WHOLE:
        break;
    case SL_SPLIT_POINTS:
        number = spec->point_count;
        break;
    case SL_SPLIT_MARKS:
        number = graph->mark_count;
        break;
    case SL_SPLIT_NODES:
        number = spec->node_count;
        break;
    case SL_SPLIT_EQUAL:
        if (spec->stages < 1)
            return sl_fail(SL_ERR_ARGUMENT, "a split into %d stages", spec->stages);
        number = spec->stages - 1;
        break;
    default:
        return sl_fail(SL_ERR_ARGUMENT, "unknown kind of split %d", (int)spec->kind);
    }
    if (number < 0 || number >= graph->node_count)
        return sl_fail(SL_ERR_ARGUMENT, "%d stages of a graph with %d nodes: some would be empty", number + 1,
                       graph->node_count);
    SL_TRY(SL_ARENA_ARRAY(arena, found, number));
    if (spec->kind == SL_SPLIT_POINTS)
        SL_TRY(resolve_points(graph, spec, found));
    else if (spec->kind == SL_SPLIT_MARKS && number > 0)
        memcpy(found, graph->marks, (size_t)number * sizeof *found);
    else if (spec->kind == SL_SPLIT_NODES)
        SL_TRY(resolve_nodes(graph, spec, found));
    else if (spec->kind == SL_SPLIT_EQUAL)
        SL_TRY(sl_split_balance(graph, spec, found));
    *cuts = found;
    *count = number;
done:
    return status;
}
