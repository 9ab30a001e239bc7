/* Gradients being collected: the rules of the ops (gradient_rules.c) add terms, this decides where they are written and
 * whether they belong to I or to W. */
#ifndef SL_GRAPH_GRADIENT_H
#define SL_GRAPH_GRADIENT_H

#include "graph/layout.h"

enum {
    SL_TARGET_NONE = -1,   /* an optional output that is left off */
    SL_TARGET_DISCARD = 0, /* an output that nobody wants but the kernel writes */
};

/* A kernel call whose outputs are terms of the gradients of the target values. like[i] is the value whose shape a
 * discarded output i has. The call belongs to W where all its targets are fixed (functions of parameters alone), else
 * to I. */
typedef struct sl_gradient_call {
    sl_op op;
    sl_op_attrs attrs;
    sl_operand inputs[SL_STEP_INPUTS];
    int input_count;
    int targets[SL_STEP_OUTPUTS]; /* value ids */
    int like[SL_STEP_OUTPUTS];
    int target_count;
} sl_gradient_call;

SL_MUST_CHECK sl_status sl_gradient_emit(sl_lowering *lowering, const sl_gradient_call *call);
/* A term that is an existing tensor: nothing runs where it is the only one. */
SL_MUST_CHECK sl_status sl_gradient_alias(sl_lowering *lowering, int target, const sl_operand *term);
/* A tensor on the way to the gradient of `target`, in a storage of its own. */
SL_MUST_CHECK sl_status sl_gradient_temporary(sl_lowering *lowering, int target, sl_op op, const sl_op_attrs *attrs,
                                              const sl_operand *inputs, int input_count, const sl_shape *shape,
                                              sl_operand *out);
/* The term of a target that was broadcast: summed over the dims it was stretched in. */
SL_MUST_CHECK sl_status sl_gradient_sum_to(sl_lowering *lowering, int target, const sl_operand *term);
/* Replaces *operand, a tensor on the way to the gradient of `target`, by a contiguous copy where it does not fit. */
SL_MUST_CHECK sl_status sl_gradient_straight(sl_lowering *lowering, int target, sl_op_layout needed,
                                             sl_operand *operand);

/* Whether somebody wants the gradient of input i of the node. */
bool sl_gradient_wanted(const sl_lowering *lowering, const sl_graph_node *node, int input);
/* Adds the terms of the node's inputs, given those of its outputs. */
SL_MUST_CHECK sl_status sl_gradient_of_node(sl_lowering *lowering, const sl_graph_node *node);
SL_MUST_CHECK sl_status sl_gradient_of_view(sl_lowering *lowering, const sl_graph_node *node);

/* Where the value's gradient is best written, made on first demand. */
SL_MUST_CHECK sl_status sl_gradient_home(sl_lowering *lowering, int value, sl_operand *out);

#endif
