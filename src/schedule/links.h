/* Edges by stage, split by whether the two stages share a rank. */
#ifndef SL_SCHEDULE_LINKS_H
#define SL_SCHEDULE_LINKS_H

#include "schedule/schedule.h"

/* For each stage the stages at the other end of its edges: peer[start[stage]] to peer[start[stage + 1] - 1]. */
typedef struct sl_link_table {
    int *start; /* (stages + 1) */
    int *peer;
    int *edge; /* place of each in the list of edges */
} sl_link_table;

typedef struct sl_links {
    int edge_count;
    bool neighbors;          /* each stage feeds the next, and no other */
    sl_link_table in;        /* from earlier stages on other ranks: messages */
    sl_link_table out;       /* to later stages on other ranks: messages */
    sl_link_table local_in;  /* from earlier stages on the same rank */
    sl_link_table local_out; /* to later stages on the same rank */
} sl_links;

/* edges NULL: each stage feeds the next. Refuses what no edge can be. On failure *out needs no destroying. */
SL_MUST_CHECK sl_status sl_links_create(const sl_schedule *schedule, const sl_edge *edges, int edge_count,
                                        sl_links *out);
void sl_links_destroy(sl_links *links);

static inline bool sl_link_table_has(const sl_link_table *table, int stage)
{
    return table->start[stage] < table->start[stage + 1];
}

#endif
