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

static double element(const sl_view *view, int64_t index)
{
    return sl_get(view, sl_row_offset(&view->meta, index, 0));
}

static void put_element(const sl_kernel_call *call, int output, int64_t index, double value)
{
    const sl_view *view = sl_call_output(call, output);
    sl_put(view, sl_row_offset(&view->meta, index, 0), value, sl_call_accumulates(call, output));
}

/* ---- One argument ---------------------------------------------------------------------------- */

/* The kernel of an op as a formula of a, its first input, and of dy, its second (0 if it has one alone). */
#define UNARY(op, formula)                                                                                             \
    sl_status sl_reference_##op(const sl_kernel_call *call)                                                            \
    {                                                                                                                  \
        const sl_view *first = sl_call_input(call, 0), *second = sl_call_input(call, 1);                               \
        const sl_op_attrs *attrs = &call->attrs;                                                                       \
        (void)attrs;                                                                                                   \
        for (int64_t i = 0; i < sl_meta_count(&first->meta); i++) {                                                    \
            double a = element(first, i), dy = sl_view_is_none(second) ? 0 : element(second, i);                       \
            (void)dy;                                                                                                  \
            put_element(call, 0, i, formula);                                                                          \
        }                                                                                                              \
        return SL_OK;                                                                                                  \
    }
UNARY(gelu_tanh, gelu_tanh(a))
UNARY(gelu_tanh_grad, gelu_tanh_slope(a) * dy)
UNARY(gelu_erf, gelu_erf(a))
UNARY(gelu_erf_grad, gelu_erf_slope(a) * dy)
UNARY(silu, sigmoid(a) * a)
UNARY(silu_grad, sigmoid(a) * dy * (1 + a * (1 - sigmoid(a))))
UNARY(relu, a > 0 ? a : a != a ? a : 0)
UNARY(relu_grad, a > 0 ? dy : 0) /* a is y */
UNARY(tanh, tanh(a))
UNARY(tanh_grad, (1 - a * a) * dy) /* a is y */
UNARY(exp, exp(a))
UNARY(log, log(a))
UNARY(neg, -a)
UNARY(scale, attrs->beta + attrs->alpha * a)

/* ---- Two and three arguments ----------------------------------------------------------------- */

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

/* Likewise for a and b, which broadcast to the shape of the result. */
#define BINARY(op, formula)                                                                                            \
    sl_status sl_reference_##op(const sl_kernel_call *call)                                                            \
    {                                                                                                                  \
        const sl_view *result = sl_call_output(call, 0);                                                               \
        sl_view first = *sl_call_input(call, 0), second = *sl_call_input(call, 1);                                     \
        first.meta = sl_meta_stretched(&first.meta, &result->meta.shape);                                              \
        second.meta = sl_meta_stretched(&second.meta, &result->meta.shape);                                            \
        for (int64_t i = 0; i < sl_meta_count(&result->meta); i++) {                                                   \
            double a = element(&first, i), b = element(&second, i);                                                    \
            put_element(call, 0, i, formula);                                                                          \
        }                                                                                                              \
        return SL_OK;                                                                                                  \
    }
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, (a) * (b))
BINARY(div, a / b)
