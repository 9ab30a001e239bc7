/* What a plan of cuDNN consists of: dnn_graph.c makes it, dnn.c runs it. */
#ifndef SL_CUDA_DNN_PLAN_H
#define SL_CUDA_DNN_PLAN_H

#include "cuda/dnn.h"

#include <cudnn_graph.h>

#define DNN_FUNCTIONS(X)                                                                                               \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

typedef cudnnBackendDescriptor_t dnn_descriptor;

enum { MOST_SCALARS = 4 };

/* What a plan is for. */
typedef struct dnn_shape {
    int64_t backward, causal;
    int64_t batch, heads, groups, length, width;
    int64_t scale;         /* bits of the float */
    int64_t strides[8][3]; /* of q, k, v, o, do, dq, dk, dv along batch, position and head */
} dnn_shape;

/* The tensors that a plan reads and writes, by place. */
enum { AT_Q, AT_K, AT_V, AT_O, AT_DO, AT_DQ, AT_DK, AT_DV, AT_LSE, AT_DELTA, AT_FULL_DK, AT_FULL_DV, AT_COUNT };

typedef struct dnn_plan {
    dnn_shape shape;
    dnn_descriptor plan;
    int64_t ids[AT_COUNT]; /* 0: not used */
    int64_t scalar_ids[MOST_SCALARS];
    float scalars[MOST_SCALARS];
    int scalar_count;
    size_t delta_bytes, full_bytes, workspace; /* full: of all query heads, if several share a key head */
    bool usable;
    struct dnn_plan *next;
} dnn_plan;

struct cuda_dnn {
#define DECLARE(name) __typeof__(&name) name;
    DNN_FUNCTIONS(DECLARE)
#undef DECLARE
    cudnnHandle_t handle;
    dnn_plan *plans;
};

/* Compiles the plan for its shape; it stays unusable if cuDNN has no engine for it. */
void cuda_dnn_build(cuda_dnn *dnn, dnn_plan *plan);

#endif
