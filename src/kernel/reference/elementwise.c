/* Elementwise functions of one, two and three arguments, with and without broadcasting. */
#include "kernel/reference/reference.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_tanh_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static double gelu_erf(double x)
{
    return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}

static double gelu_erf_slope(double x)
{
    return 0.5 * (1 + erf(x * M_SQRT1_2)) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
}

/* a is x (or y for RELU_GRAD and TANH_GRAD), dy is 0 where the op has none. */
static double apply(const sl_kernel_call *call, double a, double dy)
{
    switch (call->op) {
    case SL_OP_GELU_TANH:
        return gelu_tanh(a);
    case SL_OP_GELU_TANH_GRAD:
        return dy * gelu_tanh_slope(a);
    case SL_OP_GELU_ERF:
        return gelu_erf(a);
    case SL_OP_GELU_ERF_GRAD:
        return dy * gelu_erf_slope(a);
    case SL_OP_SILU:
        return a * sigmoid(a);
    case SL_OP_SILU_GRAD:
        return dy * sigmoid(a) * (1 + a * (1 - sigmoid(a)));
    case SL_OP_RELU:
        return a > 0 ? a : a != a ? a : 0;
    case SL_OP_RELU_GRAD:
        return a > 0 ? dy : 0;
    case SL_OP_TANH:
        return tanh(a);
    case SL_OP_TANH_GRAD:
        return dy * (1 - a * a);
    case SL_OP_EXP:
        return exp(a);
    case SL_OP_LOG:
        return log(a);
    case SL_OP_NEG:
        return -a;
    default: /* SL_OP_SCALE */
        return call->attrs.alpha * a + call->attrs.beta;
    }
}

static double element(const sl_view *view, int64_t index)
{
    return sl_get(view, sl_row_offset(&view->meta, index, 0));
}

static void put_element(const sl_kernel_call *call, int output, int64_t index, double value)
{
    const sl_view *view = sl_call_output(call, output);
    sl_put(view, sl_row_offset(&view->meta, index, 0), value, sl_call_accumulates(call, output));
}

sl_status sl_reference_unary(const sl_kernel_call *call)
{
    const sl_view *a = sl_call_input(call, 0), *dy = sl_call_input(call, 1);
    for (int64_t i = 0; i < sl_meta_count(&a->meta); i++)
        put_element(call, 0, i, apply(call, element(a, i), sl_view_is_none(dy) ? 0 : element(dy, i)));
    return SL_OK;
}

sl_status sl_reference_swiglu(const sl_kernel_call *call)
{
    const sl_view *gate = sl_call_input(call, 0), *up = sl_call_input(call, 1);
    for (int64_t i = 0; i < sl_meta_count(&gate->meta); i++) {
        double g = element(gate, i);
        put_element(call, 0, i, g * sigmoid(g) * element(up, i));
    }
    return SL_OK;
}

sl_status sl_reference_swiglu_grad(const sl_kernel_call *call)
{
    const sl_view *gate = sl_call_input(call, 0), *up = sl_call_input(call, 1), *dy = sl_call_input(call, 2);
    for (int64_t i = 0; i < sl_meta_count(&gate->meta); i++) {
        double g = element(gate, i), u = element(up, i), d = element(dy, i), s = sigmoid(g);
        put_element(call, 0, i, d * u * s * (1 + g * (1 - s)));
        if (!sl_view_is_none(sl_call_output(call, 1)))
            put_element(call, 1, i, d * g * s);
    }
    return SL_OK;
}

sl_status sl_reference_binary(const sl_kernel_call *call)
{
    const sl_view *c = sl_call_output(call, 0);
    sl_view a = *sl_call_input(call, 0), b = *sl_call_input(call, 1);
    a.meta = sl_meta_stretched(&a.meta, &c->meta.shape);
    b.meta = sl_meta_stretched(&b.meta, &c->meta.shape);
    for (int64_t i = 0; i < sl_meta_count(&c->meta); i++) {
        double x = element(&a, i), y = element(&b, i);
        double value = call->op == SL_OP_ADD   ? x + y
                       : call->op == SL_OP_SUB ? x - y
                       : call->op == SL_OP_MUL ? x * y
                                               : x / y;
        put_element(call, 0, i, value);
    }
    return SL_OK;
}
