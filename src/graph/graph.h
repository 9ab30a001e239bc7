/* The graph's insides: values and nodes in the order they were added, which is a topological one (cycles cannot be
 * written down). */
#ifndef SL_GRAPH_GRAPH_H
#define SL_GRAPH_GRAPH_H

#include <sluice/graph.h>

#include "base/arena.h"
#include "graph/names.h"
#include "op/op.h"

#include <stdatomic.h>

/* What a node does: a kernel's op (sl_op) or one of the views, which no kernel runs. */
typedef enum sl_node_op {
    SL_NODE_RESHAPE = SL_OP_COUNT,
    SL_NODE_PERMUTE,
    SL_NODE_SLICE,
    SL_NODE_SPLIT, /* several outputs: consecutive parts of one dim */
    SL_NODE_EXPAND,
    SL_NODE_OP_COUNT
} sl_node_op;

#define SL_NODE_IS_VIEW(op) ((int)(op) >= (int)SL_OP_COUNT)
const char *sl_node_op_name(int op); /* "reshape" */

typedef enum sl_value_kind {
    SL_VALUE_NODE, /* an output of a node */
    SL_VALUE_INPUT,
    SL_VALUE_PARAM,
    SL_VALUE_CONSTANT,
    SL_VALUE_STATE
} sl_value_kind;

typedef struct sl_graph_value {
    sl_value_kind kind;
    const char *name; /* full; a node's further outputs are "NODE:1" */
    sl_dtype dtype;
    sl_shape shape;
    int node;           /* producer; -1 if it has none */
    int output;         /* which of its outputs */
    int index;          /* among the values of its kind (nodes: unused) */
    bool requires_grad; /* depends on a parameter or a differentiable input, through ops that have a gradient */
    bool fixed;         /* depends on parameters and constants alone: the same for every microbatch */
    bool live;          /* an output depends on it; known once the graph is finished */
    bool reaches;       /* what is differentiated depends on it in a differentiable way; likewise */
    sl_init init;       /* PARAM */
    const void *data;   /* CONSTANT */
} sl_graph_value;

typedef struct sl_graph_node {
    int op; /* sl_op or sl_node_op */
    sl_op_attrs attrs;
    const char *name;
    const char *scope; /* path of the module that it belongs to; "" outside all */
    int *inputs;       /* value ids; 0 if an optional one is absent */
    int input_count;
    int *outputs; /* value ids */
    int output_count;
    int order[SL_MAX_DIMS]; /* PERMUTE */
    int dim;                /* SLICE, SPLIT */
    int64_t start;          /* SLICE */
    bool fixed;             /* all its inputs are */
    bool live;
} sl_graph_node;

typedef struct sl_graph_output_entry {
    const char *name;
    int value;
} sl_graph_output_entry;

/* A growing list of value ids. */
typedef struct sl_id_list {
    int *ids;
    int count;
    size_t capacity;
} sl_id_list;

struct sl_graph {
    atomic_int owners; /* the user's handle and the partitions */
    sl_arena *arena;
    sl_graph_value *values; /* values[0] is unused: id 0 means none */
    int value_count;
    size_t value_capacity;
    sl_graph_node *nodes;
    int node_count;
    size_t node_capacity;
    sl_id_list inputs, params, constants, states;
    sl_graph_output_entry *outputs;
    int output_count;
    size_t output_capacity;
    int loss;   /* index among the outputs; -1 without */
    int *marks; /* a cut stands before this node */
    int mark_count;
    size_t mark_capacity;
    sl_names node_names, value_names, output_names; /* value_names: of inputs, params, constants and states */
    sl_dtype param_dtype;
    char scope[512]; /* "h.3.mlp" */
    int scope_depth;
    size_t scope_lengths[32]; /* of the text before each push */
    bool finished;
    sl_status status; /* the first error */
    char *message;    /* its text; NULL if memory ran out */
};

/* Keeps the first error and returns the value that stands for failure. */
sl_value sl_graph_refuse(sl_graph *graph, sl_status code, const char *format, ...) SL_PRINTF(3, 4);

/* Takes over the message of a failure that another function has just reported. */
sl_value sl_graph_keep_error(sl_graph *graph, sl_status code);
/* Whether a building call may go on; what names it. */
bool sl_graph_is_open(sl_graph *graph, const char *what);
/* The scope's prefix and the name, in text; NULL (an error) if it does not fit. */
const char *sl_graph_full_name(sl_graph *graph, const char *name, char *text, size_t size);
SL_MUST_CHECK sl_status sl_graph_append_value(sl_graph *graph, const sl_graph_value *value, int *id);

/* Adds a node whose outputs have the given types; on success outputs[] has the new values. */
typedef struct sl_node_draft {
    int op;
    sl_op_attrs attrs;
    const sl_value *inputs;
    int input_count;
    int order[SL_MAX_DIMS];
    int dim;
    int64_t start;
    int output_count;
    const sl_dtype *dtypes;
    const sl_shape *shapes;
} sl_node_draft;

/* The name that a node of this op would get now; valid as long as the graph. NULL if memory ran out. */
const char *sl_graph_next_name(sl_graph *graph, int op);
/* False if the graph failed before or an argument is not a value of this graph (that becomes the error). */
bool sl_graph_accepts(sl_graph *graph, int op, const sl_value *inputs, int count);
/* The error "NODE(x f32 [2, 3]): WHY" of a node with one argument; returns an invalid value. */
sl_value sl_graph_refuse_node(sl_graph *graph, int op, sl_value x, const char *format, ...) SL_PRINTF(4, 5);
void sl_graph_add(sl_graph *graph, const sl_node_draft *draft, sl_value *outputs);
/* Which values have a gradient, from those of the parameters and inputs on. */
void sl_graph_derive_grads(sl_graph *graph);
/* Adds a node that runs a kernel, with results as the op's description says; returns the first. attrs may be NULL,
 * dtype is that of a result that may have any (SL_OP_CAST). */
sl_value sl_graph_add_op(sl_graph *graph, sl_op op, const sl_op_attrs *attrs, sl_dtype dtype, const sl_value *inputs,
                         int count);

/* Whether gradients flow from the node's outputs to this input. */
bool sl_node_input_differentiable(const sl_graph_node *node, int input);
/* Whether the node has an effect beyond its outputs, so that it runs even if nobody uses them. */
bool sl_node_writes_state(const sl_graph_node *node);
/* Whether the gradient of a value is computed anywhere. */
bool sl_value_has_grad(const sl_graph *graph, int value);

#endif
