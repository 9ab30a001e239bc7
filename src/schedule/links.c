/* Edges by stage, split by whether the two stages share a rank. */
#include "schedule/links.h"

static void table_destroy(sl_link_table *table)
{
    sl_free(table->start);
    sl_free(table->peer);
    sl_free(table->edge);
}

void sl_links_destroy(sl_links *links)
{
    table_destroy(&links->in);
    table_destroy(&links->out);
    table_destroy(&links->local_in);
    table_destroy(&links->local_out);
    *links = (sl_links){ 0 };
}

/* Sorts by stage the edges that are local or not, seen from the stage that they leave or enter. */
static sl_status table_fill(const sl_schedule *schedule, const sl_edge *edges, int edge_count, bool local, bool out,
                            sl_link_table *table)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(table->start, schedule->stages + 2));
    SL_TRY(SL_NEW_ARRAY(table->peer, edge_count));
    SL_TRY(SL_NEW_ARRAY(table->edge, edge_count));

    /* Counted two places on; the second loop moves each start to its own place. */
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < edge_count; i++) {
            if ((schedule->rank_of[edges[i].from] == schedule->rank_of[edges[i].to]) != local)
                continue;
            int stage = out ? edges[i].from : edges[i].to;
            if (turn == 0) {
                table->start[stage + 2]++;
            } else {
                int place = table->start[stage + 1]++;
                table->peer[place] = out ? edges[i].to : edges[i].from;
                table->edge[place] = i;
            }
        }
        for (int stage = 0; turn == 0 && stage < schedule->stages; stage++)
            table->start[stage + 2] += table->start[stage + 1];
    }
done:
    return status;
}

static sl_status check_range(const sl_schedule *schedule, const sl_edge *edges, int edge_count)
{
    if (edge_count < 0)
        return sl_fail(SL_ERR_ARGUMENT, "%d edges", edge_count);
    for (int i = 0; i < edge_count; i++) {
        sl_edge edge = edges[i];
        if (edge.from < 0 || edge.to < 0 || edge.from >= schedule->stages || edge.to >= schedule->stages)
            return sl_fail(SL_ERR_ARGUMENT, "edge %d, %d to %d: the schedule has %d stages", i, edge.from, edge.to,
                           schedule->stages);
        if (edge.from >= edge.to)
            return sl_fail(SL_ERR_ARGUMENT, "edge %d, %d to %d: an edge goes to a later stage", i, edge.from, edge.to);
    }
    return SL_OK;
}

/* The same edge twice shows as the same peer twice in one stage's part of a table. */
static sl_status check_repeats(const sl_link_table *table, int stages)
{
    sl_status status = SL_OK;
    int *seen_in = NULL;
    SL_TRY(SL_NEW_ARRAY(seen_in, stages));
    for (int stage = 0; stage < stages; stage++) {
        for (int i = table->start[stage]; i < table->start[stage + 1]; i++) {
            int peer = table->peer[i];
            if (seen_in[peer] == stage + 1) {
                status =
                    sl_fail(SL_ERR_ARGUMENT, "edge %d, %d to %d: it is in the list twice", table->edge[i], stage, peer);
                goto done;
            }
            seen_in[peer] = stage + 1;
        }
    }
done:
    sl_free(seen_in);
    return status;
}

static sl_status make_neighbors(int stages, sl_edge **out)
{
    sl_edge *edges = NULL;
    sl_status status = SL_NEW_ARRAY(edges, stages);
    if (status != SL_OK)
        return status;
    for (int stage = 0; stage + 1 < stages; stage++)
        edges[stage] = (sl_edge){ stage, stage + 1 };
    *out = edges;
    return SL_OK;
}

sl_status sl_links_create(const sl_schedule *schedule, const sl_edge *edges, int edge_count, sl_links *out)
{
    sl_status status = SL_OK;
    sl_edge *neighbors = NULL;
    sl_links links = { .neighbors = !edges };

    if (!edges) {
        SL_TRY(make_neighbors(schedule->stages, &neighbors));
        edges = neighbors;
        edge_count = schedule->stages > 0 ? schedule->stages - 1 : 0;
    }
    SL_TRY(check_range(schedule, edges, edge_count));
    links.edge_count = edge_count;
    SL_TRY(table_fill(schedule, edges, edge_count, false, false, &links.in));
    SL_TRY(table_fill(schedule, edges, edge_count, false, true, &links.out));
    SL_TRY(table_fill(schedule, edges, edge_count, true, false, &links.local_in));
    SL_TRY(table_fill(schedule, edges, edge_count, true, true, &links.local_out));
    SL_TRY(check_repeats(&links.out, schedule->stages));
    SL_TRY(check_repeats(&links.local_out, schedule->stages));

    *out = links;
    links = (sl_links){ 0 };
done:
    sl_links_destroy(&links);
    sl_free(neighbors);
    return status;
}
