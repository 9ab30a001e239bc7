/* Layouts: what strides a kernel's tensors may have so that it runs fast and gives the bits that it gives for
 * contiguous ones. A cut makes contiguous what is a view in the uncut graph, so the two must not differ; whatever does
 * not fit is copied first, on either side of any cut. */
#ifndef SL_GRAPH_LAYOUT_H
#define SL_GRAPH_LAYOUT_H

#include "graph/lower.h"

typedef enum sl_op_layout {
    SL_LAYOUT_ANY,       /* elementwise ops */
    SL_LAYOUT_HEADS,     /* the last dim is contiguous */
    SL_LAYOUT_ROWS,      /* ... and the others lie like one: a matrix with padded rows */
    SL_LAYOUT_CONTIGUOUS /* reductions, whose order of additions would change */
} sl_op_layout;

/* Of the floating tensors of a kernel. Views have no needs. */
sl_op_layout sl_layout_needed(int op);
bool sl_layout_fits(const sl_meta *meta, sl_op_layout needed);

/* The input of a node as its kernel is given it: the tensor itself, or a contiguous copy that F makes once. */
SL_MUST_CHECK sl_status sl_layout_input(sl_lowering *lowering, const sl_graph_node *node, int input, sl_operand *out);
/* A matrix product takes a transposed weight as it is with the other setting of transpose_w: turns both where that
 * makes the weight fit. */
void sl_layout_turn_weight(sl_operand *weight, sl_op_attrs *attrs);

#endif
