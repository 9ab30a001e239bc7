/* What a gradient rule works with. Autodiff (graph/gradient.c) is behind the calls and decides where terms are written
 * and whether they belong to I or to W; a rule only says which kernels give them. */
#ifndef SL_OP_GRADIENT_H
#define SL_OP_GRADIENT_H

#include "op/op.h"

/* A tensor of a program that has no memory yet: a view into a storage. */
typedef struct sl_operand {
    int storage;    /* -1: absent */
    int64_t offset; /* elements */
    sl_meta meta;
} sl_operand;

sl_operand sl_operand_none(void);
/* Part of a dim. */
SL_MUST_CHECK sl_status sl_operand_slice(const sl_operand *x, int dim, int64_t start, int64_t stop, sl_operand *out);

/* A kernel call whose output i is a term of the gradient of the node's input targets[i]. If nobody wants that gradient,
 * an optional output is left off and another one is computed and dropped. */
typedef struct sl_gradient_term {
    sl_op op;
    const sl_op_attrs *attrs; /* NULL: those of the node */
    const sl_operand *inputs;
    int input_count;
    int targets[SL_OP_OUTPUTS];
    int target_count;
} sl_gradient_term;

typedef struct sl_gradient_calls {
    sl_operand (*input)(const sl_gradient_rule *rule, int input); /* as the forward kernel had it; absent if left out */
    sl_operand (*output)(const sl_gradient_rule *rule, int output);
    bool (*wanted)(const sl_gradient_rule *rule, int input); /* somebody wants the gradient of the input */
    sl_status (*emit)(const sl_gradient_rule *rule, const sl_gradient_term *term);
    /* A term that is an existing tensor; nothing runs if it is the only one. */
    sl_status (*alias)(const sl_gradient_rule *rule, int target, const sl_operand *term);
    /* A term that was broadcast in the forward: summed over the dims that the target was stretched in. */
    sl_status (*sum_to)(const sl_gradient_rule *rule, int target, const sl_operand *term);
    /* The output of the call in a tensor of its own, on the way to the gradient of targets[0]. */
    sl_status (*temporary)(const sl_gradient_rule *rule, const sl_gradient_term *term, const sl_shape *shape,
                           sl_operand *out);
} sl_gradient_calls;

struct sl_gradient_rule {
    sl_op op;
    const sl_op_attrs *attrs;
    int input_count;
    sl_operand dy; /* gradient of output 0, in the description's dy_layout */
    const sl_gradient_calls *calls;
    void *lowering;
    const void *node;
};

/* ---- Short forms for rules; `rule` is the rule ----------------------------------------------- */

#define SL_X(i) rule->calls->input(rule, i)
#define SL_Y(i) rule->calls->output(rule, i)
#define SL_WANTED(i) rule->calls->wanted(rule, i)

SL_MUST_CHECK sl_status sl_gradient_emit_one(const sl_gradient_rule *rule, sl_op op, const sl_op_attrs *attrs,
                                             int target, int count, const sl_operand *inputs);
/* One call, its inputs at the end, that gives the term of one input. */
#define SL_EMIT(op, attrs, target, ...)                                                                                \
    sl_gradient_emit_one(rule, op, attrs, target, (int)(sizeof((sl_operand[]){ __VA_ARGS__ }) / sizeof(sl_operand)),   \
                         (sl_operand[]){ __VA_ARGS__ })

/* op(a, b) in a tensor of the given shape on the way to a target; b may be absent. */
SL_MUST_CHECK sl_status sl_gradient_temporary_of(const sl_gradient_rule *rule, sl_op op, const sl_op_attrs *attrs,
                                                 int target, sl_operand a, sl_operand b, const sl_shape *shape,
                                                 sl_operand *out);
/* op(a, b), which has the given shape, summed to the shape of the target. */
SL_MUST_CHECK sl_status sl_gradient_emit_reduced(const sl_gradient_rule *rule, sl_op op, const sl_op_attrs *attrs,
                                                 int target, sl_operand a, sl_operand b, const sl_shape *shape);

#endif
