/* Helpers that the op builders share: checks whose messages show node, arguments and shapes. */
#ifndef SL_GRAPH_BUILD_H
#define SL_GRAPH_BUILD_H

#include "graph/graph.h"

/* One op being added. names are the arguments' names for messages, "x w b". */
typedef struct sl_build {
    sl_graph *graph;
    int op;
    const char *names;
    const sl_value *inputs;
    int count;
} sl_build;

/* Checks that the values exist and that the floating ones share a dtype. */
bool sl_build_begin(const sl_build *build, uint32_t optional);
/* The error "NODE(x f32 [2, 3], w f32 [4]): WHY"; returns an invalid value. */
sl_value sl_build_refuse(const sl_build *build, const char *format, ...) SL_PRINTF(2, 3);
const sl_graph_value *sl_build_input(const sl_build *build, int i);
/* True where input i has this many dims; else an error. */
bool sl_build_has_rank(const sl_build *build, int i, int rank);
bool sl_build_is_floating(const sl_build *build, int i);
/* A negative dim counts from the end; an error where it is out of range. */
bool sl_build_dim(const sl_build *build, int i, int dim, int *out);
/* Adds a node with one output. */
sl_value sl_build_add(const sl_build *build, const sl_op_attrs *attrs, sl_dtype dtype, const sl_shape *shape);
/* Adds a node with several; returns the first. */
sl_value sl_build_add_several(const sl_build *build, const sl_op_attrs *attrs, int output_count, const sl_dtype *dtypes,
                              const sl_shape *shapes);

#endif
