/* A partition's insides: what each stage holds, takes and gives. */
#ifndef SL_GRAPH_PARTITION_H
#define SL_GRAPH_PARTITION_H

#include "graph/graph.h"

typedef struct sl_stage_input_port {
    int value;
    int from;      /* the stage it comes from; -1: root */
    bool has_grad; /* the stage gives back a gradient */
} sl_stage_input_port;

typedef struct sl_stage_output_port {
    int value;
    int output;    /* index among the graph's outputs; -1: for other stages */
    bool has_grad; /* the stage is given a gradient */
} sl_stage_output_port;

/* One stage. Arrays live in the partition's arena. */
typedef struct sl_stage_part {
    int first, end; /* range of the graph's nodes that the cuts give */
    /* Live nodes in order. Fixed nodes (functions of parameters and constants) are not tied to the range: every stage
     * that needs one has its own, so that no edge carries what does not depend on the microbatch. */
    int *nodes;
    int node_count;
    sl_stage_input_port
        *inputs; /* roots in the graph's order, then values of other stages in the order they are made */
    int input_count;
    sl_stage_output_port *outputs; /* for other stages in the order they are made, then the graph's */
    int output_count;
    int *params, *constants, *states; /* value ids, in the graph's order */
    int param_count, constant_count, state_count;
    sl_cost cost;
} sl_stage_part;

struct sl_partition {
    sl_graph *graph; /* one of its owners */
    sl_arena *arena;
    int stage_count;
    int *cuts;
    sl_stage_part *parts;
    sl_value_edge *edges;
    int edge_count;
    sl_tied_param *tied;
    int tied_count;
    sl_root_input *roots;
    int root_count;
};

/* First node of stages 1, 2, ..; rising, not checked for empty stages. *cuts is in the arena. */
SL_MUST_CHECK sl_status sl_split_resolve(const sl_graph *graph, const sl_split_spec *spec, sl_arena *arena, int **cuts,
                                         int *count);
/* SL_SPLIT_EQUAL. */
SL_MUST_CHECK sl_status sl_split_balance(const sl_graph *graph, const sl_split_spec *spec, int *cuts);
/* True if a kernel runs for the node in every microbatch: a stage without such nodes is empty. */
bool sl_node_has_work(const sl_graph_node *node);

/* Whether a module path ("h.3") contains a scope ("h.3.mlp"). A component "*" of the path matches any one. */
bool sl_module_contains(const char *module, const char *scope);

#endif
