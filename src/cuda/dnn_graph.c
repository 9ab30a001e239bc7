/* Attention as a graph of cuDNN's operations, forward and backward. The plans are those whose results are the same each
 * time: dQ is written by the product itself and not added up by atomics, for which cuDNN keeps the T x T gradients in
 * its workspace. */
#if CUDA_HAS_DNN

#include "cuda/device.h"
#include "cuda/dnn_plan.h"

#include <float.h>
#include <string.h>

enum { MOST_OPS = 32, MOST_PARTS = 128 };

/* ---- Parts of a graph ------------------------------------------------------------------------ */

/* A graph of operations under construction. The first thing that goes wrong sets failed; the rest does nothing then. */
typedef struct dnn_graph {
    cuda_dnn *dnn;
    dnn_plan *plan;
    bool failed;
    int64_t next_id;
    dnn_descriptor ops[MOST_OPS], parts[MOST_PARTS];
    int op_count, part_count;
} dnn_graph;

static void require(dnn_graph *graph, cudnnStatus_t status)
{
    graph->failed = graph->failed || status != CUDNN_STATUS_SUCCESS;
}

static dnn_descriptor make(dnn_graph *graph, cudnnBackendDescriptorType_t type)
{
    dnn_descriptor made = NULL;
    if (graph->failed || graph->part_count == MOST_PARTS) {
        graph->failed = true;
        return NULL;
    }
    require(graph, graph->dnn->cudnnBackendCreateDescriptor(type, &made));
    if (made)
        graph->parts[graph->part_count++] = made;
    return made;
}

static void set(dnn_graph *graph, dnn_descriptor to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    if (!graph->failed)
        require(graph, graph->dnn->cudnnBackendSetAttribute(to, name, type, count, values));
}

static void set_descriptor(dnn_graph *graph, dnn_descriptor to, cudnnBackendAttributeName_t name, dnn_descriptor value)
{
    set(graph, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(dnn_graph *graph, dnn_descriptor descriptor)
{
    if (!graph->failed)
        require(graph, graph->dnn->cudnnBackendFinalize(descriptor));
}

typedef enum dnn_place { IN_MEMORY, VIRTUAL, BY_VALUE } dnn_place;

static dnn_descriptor make_tensor(dnn_graph *graph, cudnnDataType_t type, const int64_t dims[4],
                                  const int64_t strides[4], dnn_place place, int64_t *id)
{
    dnn_descriptor tensor = make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = 16, own = ++graph->next_id;
    bool is_virtual = place == VIRTUAL, by_value = place == BY_VALUE;
    set(graph, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &own);
    set(graph, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(graph, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set(graph, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(graph, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(graph, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value)
        set(graph, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(graph, tensor);
    if (id)
        *id = own;
    return tensor;
}

static float scale_of(const dnn_shape *shape)
{
    float scale;
    memcpy(&scale, &shape->scale, sizeof scale);
    return scale;
}

static dnn_descriptor make_scalar(dnn_graph *graph, float value)
{
    const int64_t one[4] = { 1, 1, 1, 1 };
    dnn_plan *plan = graph->plan;
    int at = plan->scalar_count++;
    plan->scalars[at] = value;
    return make_tensor(graph, CUDNN_DATA_FLOAT, one, one, BY_VALUE, &plan->scalar_ids[at]);
}

/* [batch, heads, length, length], and one number a row of it. */
static dnn_descriptor square(dnn_graph *graph, cudnnDataType_t type)
{
    const dnn_shape *s = &graph->plan->shape;
    const int64_t dims[4] = { s->batch, s->heads, s->length, s->length };
    const int64_t strides[4] = { s->heads * s->length * s->length, s->length * s->length, s->length, 1 };
    return make_tensor(graph, type, dims, strides, VIRTUAL, NULL);
}

static dnn_descriptor column(dnn_graph *graph, dnn_place place, int64_t *id)
{
    const dnn_shape *s = &graph->plan->shape;
    const int64_t dims[4] = { s->batch, s->heads, s->length, 1 };
    const int64_t strides[4] = { s->heads * s->length, s->length, 1, 1 };
    return make_tensor(graph, CUDNN_DATA_FLOAT, dims, strides, place, id);
}

/* The tensor at a place, [batch, heads, length, width] or with the last two dims turned. */
static dnn_descriptor operand(dnn_graph *graph, int at, int64_t heads, bool turned)
{
    const dnn_shape *s = &graph->plan->shape;
    const int64_t *own = s->strides[at];
    const int64_t plain_dims[4] = { s->batch, heads, s->length, s->width };
    const int64_t plain[4] = { own[0], own[2], own[1], 1 };
    const int64_t turned_dims[4] = { s->batch, heads, s->width, s->length };
    const int64_t turned_strides[4] = { own[0], own[2], 1, own[1] };
    return make_tensor(graph, CUDNN_DATA_BFLOAT16, turned ? turned_dims : plain_dims, turned ? turned_strides : plain,
                       IN_MEMORY, &graph->plan->ids[at]);
}

static dnn_descriptor add_op(dnn_graph *graph, dnn_descriptor op)
{
    finish(graph, op);
    if (graph->op_count < MOST_OPS)
        graph->ops[graph->op_count++] = op;
    return op;
}

typedef struct dnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math; /* CUDNN_DATA_FLOAT is 0 */
    dnn_descriptor x, b, t, y;
    int64_t axis; /* of GEN_INDEX; else 0 */
} dnn_pointwise;

static dnn_descriptor pointwise(dnn_graph *graph, dnn_pointwise what)
{
    dnn_descriptor mode = make(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(graph, mode, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &what.mode);
    set(graph, mode, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &what.math);
    if (what.axis > 0)
        set(graph, mode, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &what.axis);
    finish(graph, mode);
    dnn_descriptor op = make(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, what.x);
    if (what.b)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, what.b);
    if (what.t)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, what.t);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, what.y);
    add_op(graph, op);
    return what.y;
}

static dnn_descriptor combine(dnn_graph *graph, cudnnPointwiseMode_t mode, dnn_descriptor x, dnn_descriptor b,
                              dnn_descriptor y)
{
    return pointwise(graph, (dnn_pointwise){ .mode = mode, .x = x, .b = b, .y = y });
}

static dnn_descriptor reduce(dnn_graph *graph, cudnnReduceTensorOp_t how, dnn_descriptor x, dnn_descriptor y)
{
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    dnn_descriptor mode = make(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(graph, mode, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    set(graph, mode, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finish(graph, mode);
    dnn_descriptor op = make(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode);
    add_op(graph, op);
    return y;
}

static dnn_descriptor product(dnn_graph *graph, dnn_descriptor a, dnn_descriptor b, dnn_descriptor c)
{
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    dnn_descriptor mode = make(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(graph, mode, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finish(graph, mode);
    dnn_descriptor op = make(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, mode);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_op(graph, op);
    return c;
}

static dnn_descriptor turn(dnn_graph *graph, dnn_descriptor x, const int64_t dims[4], const int64_t strides[4])
{
    dnn_descriptor y = make_tensor(graph, CUDNN_DATA_BFLOAT16, dims, strides, VIRTUAL, NULL);
    dnn_descriptor op = make(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(graph, op);
    return y;
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Scores of keys that a query must not see become the least number. */
static dnn_descriptor mask(dnn_graph *graph, dnn_descriptor x)
{
    if (!graph->plan->shape.causal)
        return x;
    dnn_descriptor row = pointwise(
        graph,
        (dnn_pointwise){ .mode = CUDNN_POINTWISE_GEN_INDEX, .x = x, .y = square(graph, CUDNN_DATA_INT32), .axis = 2 });
    dnn_descriptor key = pointwise(
        graph,
        (dnn_pointwise){ .mode = CUDNN_POINTWISE_GEN_INDEX, .x = x, .y = square(graph, CUDNN_DATA_INT32), .axis = 3 });
    dnn_descriptor seen = pointwise(graph, (dnn_pointwise){ .mode = CUDNN_POINTWISE_CMP_GE,
                                                            .math = CUDNN_DATA_BOOLEAN,
                                                            .x = row,
                                                            .b = key,
                                                            .y = square(graph, CUDNN_DATA_BOOLEAN) });
    return pointwise(graph, (dnn_pointwise){ .mode = CUDNN_POINTWISE_BINARY_SELECT,
                                             .x = x,
                                             .b = make_scalar(graph, -FLT_MAX),
                                             .t = seen,
                                             .y = square(graph, CUDNN_DATA_FLOAT) });
}

static void build_forward(dnn_graph *graph)
{
    const dnn_shape *s = &graph->plan->shape;
    dnn_descriptor q = operand(graph, AT_Q, s->heads, false), k = operand(graph, AT_K, s->groups, true);
    dnn_descriptor v = operand(graph, AT_V, s->groups, false), o = operand(graph, AT_O, s->heads, false);
    dnn_descriptor x = product(graph, q, k, square(graph, CUDNN_DATA_FLOAT));
    x = combine(graph, CUDNN_POINTWISE_MUL, x, make_scalar(graph, scale_of(s)), square(graph, CUDNN_DATA_FLOAT));
    x = mask(graph, x);
    dnn_descriptor max = reduce(graph, CUDNN_REDUCE_TENSOR_MAX, x, column(graph, VIRTUAL, NULL));
    x = combine(graph, CUDNN_POINTWISE_SUB, x, max, square(graph, CUDNN_DATA_FLOAT));
    x = combine(graph, CUDNN_POINTWISE_EXP, x, NULL, square(graph, CUDNN_DATA_FLOAT));
    dnn_descriptor sum = reduce(graph, CUDNN_REDUCE_TENSOR_ADD, x, column(graph, VIRTUAL, NULL));
    dnn_descriptor log = combine(graph, CUDNN_POINTWISE_LOG, sum, NULL, column(graph, VIRTUAL, NULL));
    combine(graph, CUDNN_POINTWISE_ADD, max, log, column(graph, IN_MEMORY, &graph->plan->ids[AT_LSE]));
    x = combine(graph, CUDNN_POINTWISE_DIV, x, sum, square(graph, CUDNN_DATA_BFLOAT16));
    product(graph, x, v, o);
}

/* The gradient of keys or values: for each query head first if several share one, then their sum. */
static void add_gradient(dnn_graph *graph, dnn_descriptor a, dnn_descriptor b, int at, int full)
{
    const dnn_shape *s = &graph->plan->shape;
    dnn_descriptor to = operand(graph, at, s->groups, false);
    if (s->heads == s->groups) {
        product(graph, a, b, to);
        return;
    }
    const int64_t dims[4] = { s->batch, s->heads, s->length, s->width };
    const int64_t strides[4] = { s->heads * s->length * s->width, s->length * s->width, s->width, 1 };
    dnn_descriptor each = make_tensor(graph, CUDNN_DATA_BFLOAT16, dims, strides, IN_MEMORY, &graph->plan->ids[full]);
    reduce(graph, CUDNN_REDUCE_TENSOR_ADD, product(graph, a, b, each), to);
}

static void build_backward(dnn_graph *graph)
{
    const dnn_shape *s = &graph->plan->shape;
    const int64_t wide[4] = { s->batch, s->heads, s->length, s->width };
    const int64_t wide_strides[4] = { s->heads * s->length * s->width, s->length * s->width, s->width, 1 };
    const int64_t turned[4] = { s->batch, s->heads, s->length, s->length };
    const int64_t turned_strides[4] = { s->heads * s->length * s->length, s->length * s->length, 1, s->length };
    const int64_t k_dims[4] = { s->batch, s->groups, s->length, s->width };
    const int64_t k_strides[4] = { s->strides[AT_K][0], s->strides[AT_K][2], s->strides[AT_K][1], 1 };
    dnn_descriptor q = operand(graph, AT_Q, s->heads, false), k = operand(graph, AT_K, s->groups, true);
    dnn_descriptor v = operand(graph, AT_V, s->groups, true), o = operand(graph, AT_O, s->heads, false);
    dnn_descriptor d_o = operand(graph, AT_DO, s->heads, false), dq = operand(graph, AT_DQ, s->heads, false);
    dnn_descriptor lse = column(graph, IN_MEMORY, &graph->plan->ids[AT_LSE]);
    dnn_descriptor delta = column(graph, IN_MEMORY, &graph->plan->ids[AT_DELTA]);
    dnn_descriptor scale = make_scalar(graph, scale_of(s));

    dnn_descriptor x = combine(graph, CUDNN_POINTWISE_MUL, d_o, o,
                               make_tensor(graph, CUDNN_DATA_FLOAT, wide, wide_strides, VIRTUAL, NULL));
    x = reduce(graph, CUDNN_REDUCE_TENSOR_ADD, x, column(graph, VIRTUAL, NULL));
    combine(graph, CUDNN_POINTWISE_MUL, x, make_scalar(graph, 1), delta);

    x = product(graph, q, k, square(graph, CUDNN_DATA_FLOAT));
    x = combine(graph, CUDNN_POINTWISE_MUL, x, scale, square(graph, CUDNN_DATA_FLOAT));
    x = combine(graph, CUDNN_POINTWISE_SUB, x, lse, square(graph, CUDNN_DATA_FLOAT));
    x = mask(graph, x);
    dnn_descriptor p = combine(graph, CUDNN_POINTWISE_EXP, x, NULL, square(graph, CUDNN_DATA_FLOAT));
    add_gradient(graph, turn(graph, p, turned, turned_strides), d_o, AT_DV, AT_FULL_DV);

    dnn_descriptor dp = product(graph, d_o, v, square(graph, CUDNN_DATA_FLOAT));
    dp = combine(graph, CUDNN_POINTWISE_SUB, dp, delta, square(graph, CUDNN_DATA_FLOAT));
    dp = combine(graph, CUDNN_POINTWISE_MUL, dp, p, square(graph, CUDNN_DATA_FLOAT));
    dp = combine(graph, CUDNN_POINTWISE_MUL, dp, scale, square(graph, CUDNN_DATA_BFLOAT16));
    add_gradient(graph, turn(graph, dp, turned, turned_strides), q, AT_DK, AT_FULL_DK);
    product(graph, dp, turn(graph, k, k_dims, k_strides), dq);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* The first configuration of the heuristics that can be compiled. */
static void compile(dnn_graph *graph)
{
    enum { CONFIGURATIONS = 4 };
    cuda_dnn *dnn = graph->dnn;
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    dnn_descriptor operations = make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->op_count, graph->ops);
    set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle);
    finish(graph, operations);
    dnn_descriptor heuristics = make(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), found[CONFIGURATIONS];
    set_descriptor(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(graph, heuristics);
    for (int i = 0; i < CONFIGURATIONS; i++)
        found[i] = make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t count = 0, one = 0, workspace = 0;
    if (!graph->failed)
        require(graph, dnn->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGURATIONS, &count, found));
    for (int i = 0; i < count && i < CONFIGURATIONS && !graph->failed && !graph->plan->usable; i++) {
        dnn_descriptor plan = NULL;
        if (dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS)
            return;
        bool made =
            dnn->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle) ==
                CUDNN_STATUS_SUCCESS &&
            dnn->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                          1, &found[i]) == CUDNN_STATUS_SUCCESS &&
            dnn->cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS &&
            dnn->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one,
                                          &workspace) == CUDNN_STATUS_SUCCESS;
        if (made) {
            graph->plan->plan = plan;
            graph->plan->workspace = (size_t)workspace;
            graph->plan->usable = true;
        } else {
            dnn->cudnnBackendDestroyDescriptor(plan);
        }
    }
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

void cuda_dnn_build(cuda_dnn *dnn, dnn_plan *plan)
{
    dnn_graph graph = { .dnn = dnn, .plan = plan };
    const dnn_shape *s = &plan->shape;
    if (s->backward)
        build_backward(&graph);
    else
        build_forward(&graph);
    compile(&graph);
    for (int i = graph.part_count - 1; i >= 0; i--)
        dnn->cudnnBackendDestroyDescriptor(graph.parts[i]);
    if (s->backward) {
        plan->delta_bytes = aligned((size_t)(s->batch * s->heads * s->length) * sizeof(float));
        if (s->heads != s->groups)
            plan->full_bytes = aligned((size_t)(s->batch * s->heads * s->length * s->width) * 2);
    }
    cuda_host->log(SL_LOG_DEBUG, "cuDNN attention%s [%lld, %lld, %lld/%lld, %lld]: %s, workspace %.1f MiB",
                   s->backward ? " gradient" : "", (long long)s->batch, (long long)s->length, (long long)s->heads,
                   (long long)s->groups, (long long)s->width, plan->usable ? "planned" : "not possible",
                   (double)plan->workspace / (1 << 20));
}

#else
typedef int cuda_dnn_is_not_built; /* a file must not be empty */
#endif
