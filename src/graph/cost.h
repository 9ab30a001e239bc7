/* Costs: floating-point operations and bytes moved, from shapes alone. */
#ifndef SL_GRAPH_COST_H
#define SL_GRAPH_COST_H

#include <sluice/graph.h>

/* Of one kernel call. Absent arguments have rank -1. */
sl_cost sl_op_cost(sl_op op, const sl_op_attrs *attrs, const sl_meta *inputs, int input_count, const sl_meta *outputs,
                   int output_count);

#endif
