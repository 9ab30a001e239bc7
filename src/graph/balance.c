/* The equal-cost split: contiguous stages whose largest cost is as small as any choice of cuts allows. */
#include "graph/partition.h"

#include "base/alloc.h"

#include <math.h>

/* The places where a cut may stand, place 0 and the end among them. */
typedef struct places {
    int *node;     /* first node after the place */
    double *cost;  /* seconds of all nodes before it */
    double *cross; /* seconds to move all values that are alive at it, both ways */
    int count;     /* places; one more than there are nodes with work */
} places;

static double node_seconds(const sl_graph *graph, const sl_split_spec *spec, int node)
{
    if (spec->node_costs)
        return spec->node_costs[node];
    sl_cost cost = sl_graph_node_cost(graph, node);
    return cost.flops / (spec->flops_per_s > 0 ? spec->flops_per_s : 1e11) +
           cost.bytes / (spec->bytes_per_s > 0 ? spec->bytes_per_s : 1e10);
}

/* Adds each value's bytes to the places between its producer and its last user. */
static sl_status add_crossings(const sl_graph *graph, const sl_split_spec *spec, places *at)
{
    sl_status status = SL_OK;
    int *last = NULL;
    double *change = NULL, sum = 0;
    double rate = spec->link_bytes_per_s > 0 ? spec->link_bytes_per_s : 1e10;
    SL_TRY(SL_NEW_ARRAY(last, graph->value_count));
    SL_TRY(SL_NEW_ARRAY(change, graph->node_count + 1));
    for (int n = 0; n < graph->node_count; n++) {
        const sl_graph_node *node = &graph->nodes[n];
        for (int i = 0; i < node->input_count && node->live && !node->fixed; i++)
            last[node->inputs[i]] = n;
    }
    for (int v = 1; v < graph->value_count; v++) {
        const sl_graph_value *value = &graph->values[v];
        if (value->node < 0 || value->fixed || last[v] <= value->node)
            continue;
        int64_t count = 0;
        SL_TRY(sl_shape_count(&value->shape, &count));
        double seconds = (double)count * (double)sl_dtype_size(value->dtype) / rate;
        seconds *= sl_value_has_grad(graph, v) ? 2 : 1;
        change[value->node + 1] += seconds;
        change[last[v] + 1] -= seconds;
    }
    for (int n = 0, p = 0; n < graph->node_count; n++) {
        sum += change[n];
        if (p < at->count - 1 && at->node[p] == n)
            at->cross[p++] = sum;
    }
done:
    sl_free(last);
    sl_free(change);
    return status;
}

static sl_status find_places(const sl_graph *graph, const sl_split_spec *spec, places *at)
{
    sl_status status = SL_OK;
    double sum = 0;
    SL_TRY(SL_NEW_ARRAY(at->node, graph->node_count + 1));
    SL_TRY(SL_NEW_ARRAY(at->cost, graph->node_count + 1));
    SL_TRY(SL_NEW_ARRAY(at->cross, graph->node_count + 1));
    for (int n = 0; n < graph->node_count; n++) {
        double seconds = node_seconds(graph, spec, n);
        if (!(seconds >= 0) || isinf(seconds)) {
            status = sl_fail(SL_ERR_ARGUMENT, "cost %g of node '%s'", seconds, graph->nodes[n].name);
            goto done;
        }
        if (sl_node_has_work(&graph->nodes[n])) {
            at->node[at->count] = n;
            at->cost[at->count++] = sum;
        }
        sum += seconds;
    }
    at->node[at->count] = graph->node_count;
    at->cost[at->count++] = sum;
    SL_TRY(add_crossings(graph, spec, at));
done:
    return status;
}

/* best[k][p]: the smallest possible maximum over k + 1 stages that end at place p; from[k][p]: where the last of them
 * starts. Ties go to the cut that fewer bytes cross. */
static void choose(const places *at, int stages, double *best, int *from)
{
    int count = at->count;
    for (int p = 1; p < count; p++)
        best[p] = at->cost[p] + at->cross[p];
    for (int k = 1; k < stages; k++) {
        for (int p = k + 1; p < count; p++) {
            double least = INFINITY;
            int where = k;
            for (int q = p - 1; q >= k; q--) {
                double own = at->cost[p] - at->cost[q] + at->cross[p], cost = own + at->cross[q];
                if (own > least)
                    break; /* it grows with every q that follows */
                double before = best[(k - 1) * count + q], larger = cost > before ? cost : before;
                if (larger < least || (larger == least && at->cross[q] < at->cross[where])) {
                    least = larger;
                    where = q;
                }
            }
            best[k * count + p] = least;
            from[k * count + p] = where;
        }
    }
}

sl_status sl_split_balance(const sl_graph *graph, const sl_split_spec *spec, int *cuts)
{
    sl_status status = SL_OK;
    places at = { 0 };
    double *best = NULL;
    int *from = NULL;
    SL_TRY(find_places(graph, spec, &at));
    if (spec->stages > at.count - 1) {
        status = sl_fail(SL_ERR_ARGUMENT, "%d stages of a graph with %d nodes to run: some would be empty",
                         spec->stages, at.count - 1);
        goto done;
    }
    SL_TRY(SL_NEW_ARRAY(best, (size_t)spec->stages * (size_t)at.count));
    SL_TRY(SL_NEW_ARRAY(from, (size_t)spec->stages * (size_t)at.count));
    choose(&at, spec->stages, best, from);
    for (int k = spec->stages - 1, p = at.count - 1; k > 0; k--) {
        p = from[k * at.count + p];
        cuts[k - 1] = at.node[p];
    }
done:
    sl_free(at.node);
    sl_free(at.cost);
    sl_free(at.cross);
    sl_free(best);
    sl_free(from);
    return status;
}
