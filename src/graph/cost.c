/* Costs of kernel calls and of a graph's nodes. */
#include "graph/cost.h"

#include "graph/graph.h"

static double elements(const sl_shape *shape)
{
    double count = shape->rank < 0 ? 0 : 1;
    for (int i = 0; i < shape->rank; i++)
        count *= (double)shape->dims[i];
    return count;
}

/* Operations on each element of the largest argument; rough, since such ops are bound by memory. */
static double flops_per_element(sl_op op)
{
    switch (op) {
    case SL_OP_COPY:
    case SL_OP_FILL:
    case SL_OP_CAST:
    case SL_OP_CONCAT:
    case SL_OP_EMBEDDING:
        return 0;
    case SL_OP_GELU_TANH:
    case SL_OP_GELU_ERF:
    case SL_OP_GELU_TANH_GRAD:
    case SL_OP_GELU_ERF_GRAD:
    case SL_OP_SILU_GRAD:
    case SL_OP_SWIGLU_GRAD:
    case SL_OP_DROPOUT:
        return 15;
    case SL_OP_LAYERNORM:
    case SL_OP_LAYERNORM_GRAD_X:
    case SL_OP_RMSNORM:
    case SL_OP_RMSNORM_GRAD_X:
    case SL_OP_SILU:
    case SL_OP_SWIGLU:
    case SL_OP_SOFTMAX:
    case SL_OP_SOFTMAX_GRAD:
    case SL_OP_CROSS_ENTROPY:
    case SL_OP_CROSS_ENTROPY_GRAD:
    case SL_OP_EXP:
    case SL_OP_LOG:
    case SL_OP_TANH:
    case SL_OP_ADAMW:
        return 8;
    case SL_OP_ROPE:
    case SL_OP_LAYERNORM_GRAD_W:
    case SL_OP_RMSNORM_GRAD_W:
        return 3;
    default:
        return 1;
    }
}

/* q[B,T,H,D] against S keys: two products forward, five backward; a causal mask leaves about half. */
static double attention_flops(const sl_shape *q, const sl_shape *k, bool causal, double products)
{
    double flops = 2 * products * elements(q) * (double)k->dims[1];
    return causal ? flops * (double)(q->dims[1] + 1) / (2 * (double)(q->dims[1] ? q->dims[1] : 1)) : flops;
}

static double op_flops(sl_op op, const sl_op_attrs *attrs, const sl_meta *in, const sl_meta *out, double largest)
{
    const sl_shape *x = &in[0].shape;
    switch (op) {
    case SL_OP_LINEAR:
    case SL_OP_LINEAR_GRAD_X:
        return 2 * elements(x) * (double)out[0].shape.dims[out[0].shape.rank - 1];
    case SL_OP_LINEAR_GRAD_W:
        return 2 * elements(x) * (double)in[1].shape.dims[in[1].shape.rank - 1];
    case SL_OP_MATMUL:
        return 2 * elements(&out[0].shape) * (double)x->dims[x->rank - (attrs->transpose_a ? 2 : 1)];
    case SL_OP_ATTENTION:
        return attention_flops(x, &in[1].shape, attrs->causal, 2);
    case SL_OP_ATTENTION_CACHED:
        return attention_flops(x, &in[3].shape, false, 2);
    case SL_OP_ATTENTION_GRAD:
        return attention_flops(x, &in[1].shape, attrs->causal, 5);
    default:
        return flops_per_element(op) * largest;
    }
}

sl_cost sl_op_cost(sl_op op, const sl_op_attrs *attrs, const sl_meta *inputs, int input_count, const sl_meta *outputs,
                   int output_count)
{
    sl_cost cost = { 0, 0 };
    double largest = 0;
    for (int i = 0; i < input_count + output_count; i++) {
        const sl_meta *meta = i < input_count ? &inputs[i] : &outputs[i - input_count];
        double count = elements(&meta->shape);
        if (op == SL_OP_EMBEDDING && i == 1)
            count = elements(&outputs[0].shape); /* the rows that are looked up, not the table */
        if (op == SL_OP_EMBEDDING_GRAD && i == 2)
            count = 2 * elements(&inputs[1].shape);
        largest = count > largest ? count : largest;
        cost.bytes += count * (double)sl_dtype_size(meta->dtype);
    }
    cost.flops = op_flops(op, attrs, inputs, outputs, largest);
    return cost;
}

/* How many times the forward's work the gradients take. */
static double gradient_factor(const sl_graph *graph, const sl_graph_node *node)
{
    double wanted = 0;
    for (int i = 0; i < node->input_count; i++)
        /* vectors (biases, weights of norms) add little to the work of the others */
        wanted += sl_node_input_differentiable(node, i) && sl_value_has_grad(graph, node->inputs[i]) &&
                  graph->values[node->inputs[i]].shape.rank > 1;
    if (node->op == SL_OP_LINEAR || node->op == SL_OP_MATMUL)
        return wanted; /* one product for each */
    if (node->op == SL_OP_ATTENTION)
        return wanted > 0 ? 2.5 : 0;
    return wanted > 0 ? 1.5 : 0;
}

sl_cost sl_graph_node_cost(const sl_graph *graph, int index)
{
    enum { MOST = 8 };
    const sl_graph_node *node = &graph->nodes[index];
    sl_meta inputs[MOST], outputs[SL_NODE_MAX_OUTPUTS];
    if (SL_NODE_IS_VIEW(node->op) || !node->live)
        return (sl_cost){ 0, 0 };
    int count = node->input_count < MOST ? node->input_count : MOST; /* concat alone may have more */
    for (int i = 0; i < count; i++) {
        const sl_graph_value *value = &graph->values[node->inputs[i]];
        inputs[i] = (sl_meta){ .dtype = value->dtype, .shape = value->shape };
    }
    for (int i = 0; i < node->output_count; i++) {
        const sl_graph_value *value = &graph->values[node->outputs[i]];
        outputs[i] = (sl_meta){ .dtype = value->dtype, .shape = value->shape };
    }
    sl_cost cost = sl_op_cost((sl_op)node->op, &node->attrs, inputs, count, outputs, node->output_count);
    double factor = 1 + gradient_factor(graph, node);
    return (sl_cost){ cost.flops * factor, cost.bytes * factor };
}
