// Optimizer updates, elementwise and in place.
#include "cuda/element.cuh"

#include "kernel/call.h"

#include <math.h>

template <class S> struct update {
    S beta1, beta2, rest1, rest2, correction1, correction2, keep, lr, eps, scale, momentum, decay;
};

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

// One parameter's new moments and value; first and second are replaced.
template <class S> __device__ __forceinline__ S adamw_step(const update<S> &o, S g, S p, S *first, S *second)
{
    S gradient = o.scale * g;
    *first = o.beta1 * *first + o.rest1 * gradient;
    *second = o.beta2 * *second + o.rest2 * gradient * gradient;
    return p * o.keep - o.lr * (*first / o.correction1) / (root(*second / o.correction2) + o.eps);
}

template <class S>
__global__ void adamw(const __grid_constant__ tensor_view g, const __grid_constant__ tensor_view p,
                      const __grid_constant__ tensor_view m, const __grid_constant__ tensor_view v, int64_t count,
                      const __grid_constant__ update<S> o)
{
    FOR_EACH_ELEMENT (i, count) {
        int64_t p_at = p.offset(i), m_at = m.offset(i), v_at = v.offset(i);
        S first = load<S>(m.data, m.dtype, m_at), second = load<S>(v.data, v.dtype, v_at);
        S value = adamw_step<S>(o, load<S>(g.data, g.dtype, g.offset(i)), load<S>(p.data, p.dtype, p_at), &first, &second);
        store<S>(m.data, m.dtype, m_at, first, false);
        store<S>(v.data, v.dtype, v_at, second, false);
        store<S>(p.data, p.dtype, p_at, value, false);
    }
}

// Packed tensors: eight elements a thread.
__global__ void __launch_bounds__(BLOCK)
    adamw_eights(const __grid_constant__ tensor_view g_view, const __grid_constant__ tensor_view p_view,
                 const __grid_constant__ tensor_view m_view, const __grid_constant__ tensor_view v_view, int64_t count,
                 const __grid_constant__ update<float> o)
{
    row_view<float> g(g_view, 0), p(p_view, 0), m(m_view, 0), v(v_view, 0);
    FOR_EACH_ELEMENT (group, (count + WIDE - 1) / WIDE) {
        float gradient[WIDE], value[WIDE], first[WIDE], second[WIDE];
        g.get_wide(group * WIDE, count, 0, gradient);
        p.get_wide(group * WIDE, count, 0, value);
        m.get_wide(group * WIDE, count, 0, first);
        v.get_wide(group * WIDE, count, 0, second);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            value[k] = adamw_step<float>(o, gradient[k], value[k], &first[k], &second[k]);
        m.put_wide(group * WIDE, count, first, false);
        v.put_wide(group * WIDE, count, second, false);
        p.put_wide(group * WIDE, count, value, false);
    }
}

static bool is_flat(const tensor_view &view)
{
    return view.rank == 1 && view.strides[0] == 1 && (view.dtype == SL_F32 || view.dtype == SL_BF16);
}

static bool launch_eights(const cuda_run *run, const tensor_view &g, const tensor_view &p, const tensor_view &m,
                          const tensor_view &v, int64_t count, const update<float> &o)
{
    if (!is_flat(g) || !is_flat(p) || !is_flat(m) || !is_flat(v))
        return false;
    adamw_eights<<<element_blocks((count + WIDE - 1) / WIDE), BLOCK, 0, run->stream>>>(g, p, m, v, count, o);
    return true;
}

static bool launch_eights(const cuda_run *, const tensor_view &, const tensor_view &, const tensor_view &,
                          const tensor_view &, int64_t, const update<double> &)
{
    return false;
}

template <class S> __global__ void sgd(const __grid_constant__ tensor_view g, const __grid_constant__ tensor_view p, const __grid_constant__ tensor_view m, int64_t count, const __grid_constant__ update<S> o)
{
    FOR_EACH_ELEMENT (i, count) {
        int64_t p_at = p.offset(i);
        S value = load<S>(p.data, p.dtype, p_at);
        S change = o.scale * load<S>(g.data, g.dtype, g.offset(i)) + o.decay * value;
        if (m.data) {
            int64_t m_at = m.offset(i);
            change += o.momentum * load<S>(m.data, m.dtype, m_at);
            store<S>(m.data, m.dtype, m_at, change, false);
        }
        store<S>(p.data, p.dtype, p_at, value - o.lr * change, false);
    }
}

template <class S> static void run_update(const cuda_run *run, int64_t count)
{
    const sl_kernel_call *call = run->call;
    const sl_optim_attrs *o = &call->attrs.optim;
    update<S> numbers;
    numbers.beta1 = (S)o->beta1;
    numbers.beta2 = (S)o->beta2;
    numbers.rest1 = (S)(1 - o->beta1);
    numbers.rest2 = (S)(1 - o->beta2);
    numbers.correction1 = (S)(1 - pow(o->beta1, (double)o->t));
    numbers.correction2 = (S)(1 - pow(o->beta2, (double)o->t));
    numbers.keep = (S)(1 - o->lr * o->weight_decay);
    numbers.lr = (S)o->lr;
    numbers.eps = (S)o->eps;
    numbers.scale = (S)o->grad_scale;
    numbers.momentum = (S)o->momentum;
    numbers.decay = (S)o->weight_decay;
    tensor_view g = merged(sl_call_input(call, 0), 0), p = merged(sl_call_output(call, 0), 0);
    tensor_view m = sl_view_is_none(sl_call_output(call, 1)) ? tensor_view() : merged(sl_call_output(call, 1), 0);
    unsigned blocks = element_blocks(count);
    if (call->op == SL_OP_ADAMW) {
        tensor_view v = merged(sl_call_output(call, 2), 0);
        if (!launch_eights(run, g, p, m, v, count, numbers))
            adamw<S><<<blocks, BLOCK, 0, run->stream>>>(g, p, m, v, count, numbers);
    } else {
        sgd<S><<<blocks, BLOCK, 0, run->stream>>>(g, p, m, count, numbers);
    }
}

sl_status cuda_optim(const cuda_run *run)
{
    int64_t count = sl_meta_count(&run->call->inputs[0].meta);
    if (count == 0)
        return SL_OK;
    if (is_double(run->call))
        run_update<double>(run, count);
    else
        run_update<float>(run, count);
    return launched("optimizer kernel");
}
