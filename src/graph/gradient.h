/* Gradients being collected: the rules of the ops (src/op) give terms, this decides where they are written and whether
 * they belong to I or to W. */
#ifndef SL_GRAPH_GRADIENT_H
#define SL_GRAPH_GRADIENT_H

#include "graph/lower.h"

/* Whether somebody wants the gradient of input i of the node. */
bool sl_gradient_wanted(const sl_lowering *lowering, const sl_graph_node *node, int input);
/* Adds the terms of the node's inputs, given those of its outputs. */
SL_MUST_CHECK sl_status sl_gradient_of_node(sl_lowering *lowering, const sl_graph_node *node);
SL_MUST_CHECK sl_status sl_gradient_of_view(sl_lowering *lowering, const sl_graph_node *node);
/* A term that is an existing tensor: nothing runs if it is the only one. */
SL_MUST_CHECK sl_status sl_gradient_alias(sl_lowering *lowering, int target, const sl_operand *term);

#endif
