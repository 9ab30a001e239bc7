/* Lowering: one stage's graph becomes a list of kernel calls on storages that are not placed yet; forward first, then
 * gradients in reverse order, each marked I or W. The plan (plan.h) then decides where each storage lives. */
#ifndef SL_GRAPH_LOWER_H
#define SL_GRAPH_LOWER_H

#include "graph/partition.h"
#include "op/gradient.h"

/* Where a storage lives: a port's buffer or a region of one microbatch. */
typedef enum sl_home {
    SL_HOME_FREE, /* up to the plan */
    SL_HOME_PARAM,
    SL_HOME_GRAD,
    SL_HOME_INPUT,
    SL_HOME_OUTPUT,
    SL_HOME_OUTPUT_GRAD,
    SL_HOME_INPUT_GRAD,
    SL_HOME_STATE,
    SL_HOME_CONSTANT,
    SL_HOME_SAVED_I,
    SL_HOME_SAVED_W,
    SL_HOME_KEPT,
    SL_HOME_SCRATCH
} sl_home;

const char *sl_home_name(sl_home home);

typedef struct sl_storage {
    sl_home home;
    int index; /* of the port */
    size_t bytes;
    int more; /* parameters and their gradients: ports after that one whose buffers lie right behind, and belong to it */
} sl_storage;

/* One kernel call. */
typedef struct sl_instruction {
    sl_op op;
    sl_op_attrs attrs;
    int node;       /* of the graph, that it serves */
    sl_phase phase; /* F, I or W */
    sl_operand inputs[SL_OP_INPUTS];
    int input_count;
    sl_operand outputs[SL_OP_OUTPUTS];
    int output_count;
    uint32_t accumulate; /* bit i: output i += result */
    /* If output i adds to a tensor of another storage: that tensor (prior) and the one that output i lies in
     * (whole). The plan lets both share memory, or copies prior to whole first. Absent elsewhere. */
    sl_operand priors[SL_OP_OUTPUTS], wholes[SL_OP_OUTPUTS];
    /* Set by the plan: */
    int time;    /* step of the timeline; copies of priors have that of what they serve */
    int until;   /* the step before which it must be done; that of its own time if it runs in order */
    bool beside; /* it can run beside the steps before that one */
    int awaits;  /* how many of those that run beside others must be done before it */
    size_t scratch_offset, scratch_bytes; /* of the kernel, within the phase's scratch */
    size_t packed_offset, packed_bytes;   /* of input 1, within the region of packed weights; 0 bytes: not packed */
    uint32_t starts;                      /* bit i: output i is the phase's first of a parameter's whole gradient */
    bool is_done;                         /* a copy whose ends came to lie at the same place: nothing to run */
} sl_instruction;

typedef struct sl_instruction_list {
    sl_instruction *items;
    int count;
    size_t capacity;
} sl_instruction_list;

/* The gradient of a value so far. */
typedef struct sl_gradient {
    sl_operand operand;
    bool present;
    bool owned; /* nobody else reads the storage: further terms are added in place */
} sl_gradient;

/* One value of the stage. */
typedef struct sl_lowered_value {
    sl_operand value;     /* the forward tensor; absent while it has none */
    sl_operand straight;  /* its contiguous copy, if a kernel needed one */
    sl_operand home;      /* where its gradient is best written; absent while undecided */
    sl_gradient gradient; /* as the walk goes */
    int terms;            /* how many terms its gradient has in this stage */
    int input_port;       /* index among the stage's inputs; -1 */
    int param_port;       /* index among the stage's params; -1 */
    bool joined;          /* a concat of parameters that lie side by side: a view of them all */
} sl_lowered_value;

typedef struct sl_lowering {
    const sl_graph *graph;
    const sl_stage_part *part;
    bool forward_only;
    double beside_flops;        /* gradients of weights with so many operations can run beside the rest of B; 0: none */
    const sl_dtype *grad_dtype; /* of the gradients of parameters; NULL: each has that of its parameter */
    sl_storage *storages;
    int storage_count;
    size_t storage_capacity;
    sl_instruction_list forward, backward;
    sl_instruction_list whole; /* backward as B runs it, if fusion made another of it; else empty */
    sl_lowered_value *values;  /* those that the stage holds; the first stands for all others and is absent */
    int value_count;
    int *slots;                      /* by value id of the graph: its place in values */
    int *input_grads, *output_grads; /* storages of the ports; -1 if there is none */
    sl_operand *grads;               /* of the parameters */
    int node;                        /* whose gradient is being written */
} sl_lowering;

/* Fills both lists. *lowering starts as zero with graph, part and forward_only set, and is to be cleared by the caller
 * in any case. */
SL_MUST_CHECK sl_status sl_lower_stage(sl_lowering *lowering);
void sl_lowering_clear(sl_lowering *lowering);

/* The value of that id of the graph. */
static inline sl_lowered_value *sl_lowered(const sl_lowering *lowering, int id)
{
    return &lowering->values[lowering->slots[id]];
}

/* Parts of it, in the order they run. First the parameters that a concat joins, and later their gradients, become parts of
 * one storage. */
SL_MUST_CHECK sl_status sl_lower_joins(sl_lowering *lowering);
SL_MUST_CHECK sl_status sl_lower_join_grads(sl_lowering *lowering);
SL_MUST_CHECK sl_status sl_lower_forward(sl_lowering *lowering);
SL_MUST_CHECK sl_status sl_lower_backward(sl_lowering *lowering);
/* Makes I compute again what lies in the modules and would otherwise be saved by F. */
SL_MUST_CHECK sl_status sl_lower_recompute(sl_lowering *lowering, const char *const *modules, int count);

/* Lets fused ops take the place of plain ones (fuse.c has the rules). */
SL_MUST_CHECK sl_status sl_lower_fuse(sl_lowering *lowering);

/* Of the gradient of a value: that of the value, unless it is a parameter whose gradients have another. */
sl_dtype sl_lowering_grad_dtype(const sl_lowering *lowering, int value);

SL_MUST_CHECK sl_status sl_storage_add(sl_lowering *lowering, sl_home home, int index, size_t bytes, int *out);
/* A contiguous tensor in a storage of its own. */
SL_MUST_CHECK sl_status sl_operand_new(sl_lowering *lowering, sl_dtype dtype, const sl_shape *shape, sl_operand *out);
/* A contiguous tensor that fills a given storage. */
sl_operand sl_operand_whole(int storage, sl_dtype dtype, const sl_shape *shape);
bool sl_operand_same(const sl_operand *a, const sl_operand *b); /* the same elements in the same order */
/* True if the tensor is contiguous and fills its storage. */
bool sl_operand_fills(const sl_lowering *lowering, const sl_operand *operand);
SL_MUST_CHECK sl_status sl_instruction_append(sl_instruction_list *list, const sl_instruction *item);

/* A matrix product takes a transposed weight as it is, with the other setting of transpose_w: turns both if that makes
 * the weight fit. */
void sl_operand_transpose_weight(sl_operand *weight, sl_op_attrs *attrs);

/* What the view node does, applied to a tensor (of the node's input, or of its gradient); output is the part of a
 * split. *possible is false if strides forbid it. */
SL_MUST_CHECK sl_status sl_view_apply(const sl_graph *graph, const sl_graph_node *node, int output, const sl_operand *x,
                                      bool *possible, sl_operand *out);
/* First element of part `output` of a split. */
int64_t sl_split_start(const sl_graph *graph, const sl_graph_node *node, int output);

#endif
