// Optimizer updates, elementwise and in place.
#include "cuda/element.cuh"

#include "kernel/call.h"

#include <math.h>

template <class S> struct update {
    S beta1, beta2, rest1, rest2, correction1, correction2, keep, lr, eps, scale, momentum;
    double decay;
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

// The numbers of this step instead of those that came with the launch; false: there is nothing to do.
template <class S> __device__ __forceinline__ bool take_numbers(update<S> *o, const sl_update_numbers *numbers)
{
    if (!numbers)
        return true;
    if (isnan(numbers->grad_scale))
        return false;
    o->correction1 = (S)numbers->correction1;
    o->correction2 = (S)numbers->correction2;
    o->keep = (S)(1 - numbers->lr * o->decay);
    o->lr = (S)numbers->lr;
    o->scale = (S)numbers->grad_scale;
    return true;
}

template <class S>
__global__ void adamw(const __grid_constant__ tensor_view g, const __grid_constant__ tensor_view p,
                      const __grid_constant__ tensor_view m, const __grid_constant__ tensor_view v,
                      const __grid_constant__ tensor_view copy, int64_t count, const __grid_constant__ update<S> given,
                      const sl_update_numbers *numbers)
{
    update<S> o = given;
    if (!take_numbers(&o, numbers))
        return;
    FOR_EACH_ELEMENT (i, count) {
        int64_t p_at = p.offset(i), m_at = m.offset(i), v_at = v.offset(i);
        S first = load<S>(m.data, m.dtype, m_at), second = load<S>(v.data, v.dtype, v_at);
        S value = adamw_step<S>(o, load<S>(g.data, g.dtype, g.offset(i)), load<S>(p.data, p.dtype, p_at), &first, &second);
        store<S>(m.data, m.dtype, m_at, first, false);
        store<S>(v.data, v.dtype, v_at, second, false);
        store<S>(p.data, p.dtype, p_at, value, false);
        if (copy.data)
            store<S>(copy.data, copy.dtype, copy.offset(i), load<S>(p.data, p.dtype, p_at), false);
    }
}

template <class S> static update<S> numbers_of(const sl_optim_attrs *o)
{
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
    numbers.decay = o->weight_decay;
    return numbers;
}

// ---- Many packed tensors at once --------------------------------------------------------------

// One tensor of the table, and its first chunk among those of all.
struct adamw_entry {
    void *g, *p, *m, *v, *copy; // copy NULL: none
    int64_t count;
    double decay;
    int32_t chunk;
    uint8_t g_dtype, p_dtype, m_dtype, copy_dtype; // v has that of m
    bool plain;                                    // aligned f32, the copy bf16
};

// The table travels with the launch: a kernel may have 32,764 bytes of arguments.
enum { TABLE_SIZE = 448, CHUNK = 4 * BLOCK * WIDE };

struct adamw_table {
    update<float> given;
    double lr;
    const sl_update_numbers *numbers;
    int32_t count, chunks;
    adamw_entry entries[TABLE_SIZE];
};

// Four elements of f32 each; the copy, if there is one, in bf16.
__device__ __forceinline__ void adamw_four(const adamw_entry &e, const update<float> &o, int64_t at)
{
    float4 g = *(const float4 *)((const float *)e.g + at), p = *(const float4 *)((const float *)e.p + at);
    float4 m = *(const float4 *)((const float *)e.m + at), v = *(const float4 *)((const float *)e.v + at);
    p.x = adamw_step<float>(o, g.x, p.x, &m.x, &v.x);
    p.y = adamw_step<float>(o, g.y, p.y, &m.y, &v.y);
    p.z = adamw_step<float>(o, g.z, p.z, &m.z, &v.z);
    p.w = adamw_step<float>(o, g.w, p.w, &m.w, &v.w);
    *(float4 *)((float *)e.m + at) = m;
    *(float4 *)((float *)e.v + at) = v;
    *(float4 *)((float *)e.p + at) = p;
    if (e.copy) {
        __nv_bfloat162 pairs[2] = { __floats2bfloat162_rn(p.x, p.y), __floats2bfloat162_rn(p.z, p.w) };
        *(uint2 *)((__nv_bfloat16 *)e.copy + at) = *(uint2 *)pairs;
    }
}

__global__ void __launch_bounds__(BLOCK) adamw_chunks(const __grid_constant__ adamw_table table)
{
    const adamw_entry &e = table.entries[entry_of_chunk(table.entries, table.count, (int32_t)blockIdx.x)];
    update<float> o = table.given;
    o.decay = e.decay;
    o.keep = (float)(1 - table.lr * e.decay);
    if (!take_numbers(&o, table.numbers))
        return;
    int64_t begin = (int64_t)((int32_t)blockIdx.x - e.chunk) * CHUNK;
    if (e.plain && begin + CHUNK <= e.count) {
#pragma unroll 2
        for (int i = threadIdx.x * 4; i < CHUNK; i += BLOCK * 4)
            adamw_four(e, o, begin + i);
        return;
    }
    row_view<float> g(e.g, 0, e.g_dtype, 1), p(e.p, 0, e.p_dtype, 1), m(e.m, 0, e.m_dtype, 1), v(e.v, 0, e.m_dtype, 1);
    row_view<float> copy(e.copy, 0, e.copy_dtype, 1);
    int64_t start = (int64_t)((int32_t)blockIdx.x - e.chunk) * CHUNK + threadIdx.x * WIDE;
#pragma unroll 1
    for (int64_t at = start; at < start + CHUNK && at < e.count; at += BLOCK * WIDE) {
        float gradient[WIDE], value[WIDE], first[WIDE], second[WIDE];
        g.get_wide(at, e.count, 0, gradient);
        p.get_wide(at, e.count, 0, value);
        m.get_wide(at, e.count, 0, first);
        v.get_wide(at, e.count, 0, second);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            value[k] = adamw_step<float>(o, gradient[k], value[k], &first[k], &second[k]);
        m.put_wide(at, e.count, first, false);
        v.put_wide(at, e.count, second, false);
        p.put_wide(at, e.count, value, false);
        if (e.copy)
            copy.put_wide(at, e.count, value, false);
    }
}

static bool is_flat(const sl_view *view)
{
    return (view->meta.dtype == SL_F32 || view->meta.dtype == SL_BF16) && sl_meta_is_contiguous(&view->meta);
}

static bool fits_table(const sl_kernel_call *call)
{
    const sl_view *copy = sl_call_output(call, 3);
    return call->op == SL_OP_ADAMW && is_flat(sl_call_input(call, 0)) && is_flat(sl_call_output(call, 0)) &&
           is_flat(sl_call_output(call, 1)) && is_flat(sl_call_output(call, 2)) &&
           sl_call_output(call, 1)->meta.dtype == sl_call_output(call, 2)->meta.dtype &&
           sl_call_output(call, 0)->meta.dtype == SL_F32 &&
           (sl_view_is_none(copy) || is_flat(copy));
}

static bool same_update(const sl_kernel_call *x, const sl_kernel_call *y)
{
    const sl_optim_attrs *a = &x->attrs.optim, *b = &y->attrs.optim;
    return x->numbers == y->numbers && a->lr == b->lr && a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->eps == b->eps &&
           a->grad_scale == b->grad_scale && a->t == b->t;
}

static void add_entry(adamw_table *table, const sl_kernel_call *call)
{
    const sl_view *g = sl_call_input(call, 0), *p = sl_call_output(call, 0), *m = sl_call_output(call, 1);
    const sl_view *v = sl_call_output(call, 2), *copy = sl_call_output(call, 3);
    adamw_entry *e = &table->entries[table->count++];
    e->g = g->data;
    e->p = p->data;
    e->m = m->data;
    e->v = v->data;
    e->copy = sl_view_is_none(copy) ? NULL : copy->data;
    e->count = sl_meta_count(&g->meta);
    e->chunk = table->chunks;
    e->g_dtype = (uint8_t)g->meta.dtype;
    e->p_dtype = (uint8_t)p->meta.dtype;
    e->m_dtype = (uint8_t)m->meta.dtype;
    e->copy_dtype = (uint8_t)(e->copy ? copy->meta.dtype : SL_F32);
    e->plain = e->g_dtype == SL_F32 && e->m_dtype == SL_F32 && (!e->copy || e->copy_dtype == SL_BF16) &&
               (((uintptr_t)e->g | (uintptr_t)e->p | (uintptr_t)e->m | (uintptr_t)e->v | (uintptr_t)e->copy) & 15) == 0;
    e->decay = call->attrs.optim.weight_decay;
    table->chunks += (int32_t)((e->count + CHUNK - 1) / CHUNK);
}

sl_status cuda_adamw_many(const cuda_run *run, const sl_kernel_call *calls, int count, int *taken)
{
    adamw_table table;
    table.given = numbers_of<float>(&calls[0].attrs.optim);
    table.lr = calls[0].attrs.optim.lr;
    table.numbers = calls[0].numbers;
    table.count = table.chunks = 0;
    *taken = 0;
    while (*taken < count && table.count < TABLE_SIZE && fits_table(&calls[*taken]) &&
           same_update(&calls[*taken], &calls[0])) {
        if (sl_meta_count(&calls[*taken].inputs[0].meta) > 0)
            add_entry(&table, &calls[*taken]);
        ++*taken;
    }
    if (table.chunks > 0)
        adamw_chunks<<<(unsigned)table.chunks, BLOCK, 0, run->stream>>>(table);
    return launched("optimizer kernel");
}

// ---- Any tensors ------------------------------------------------------------------------------

template <class S>
__global__ void sgd(const __grid_constant__ tensor_view g, const __grid_constant__ tensor_view p,
                    const __grid_constant__ tensor_view m, const __grid_constant__ tensor_view copy, int64_t count,
                    const __grid_constant__ update<S> given, const sl_update_numbers *numbers)
{
    update<S> o = given;
    if (!take_numbers(&o, numbers))
        return;
    FOR_EACH_ELEMENT (i, count) {
        int64_t p_at = p.offset(i);
        S value = load<S>(p.data, p.dtype, p_at);
        S change = o.scale * load<S>(g.data, g.dtype, g.offset(i)) + (S)o.decay * value;
        if (m.data) {
            int64_t m_at = m.offset(i);
            change += o.momentum * load<S>(m.data, m.dtype, m_at);
            store<S>(m.data, m.dtype, m_at, change, false);
        }
        store<S>(p.data, p.dtype, p_at, value - o.lr * change, false);
        if (copy.data)
            store<S>(copy.data, copy.dtype, copy.offset(i), load<S>(p.data, p.dtype, p_at), false);
    }
}

static tensor_view output_of(const sl_kernel_call *call, int i)
{
    return sl_view_is_none(sl_call_output(call, i)) ? tensor_view() : merged(sl_call_output(call, i), 0);
}

template <class S> static void run_update(const cuda_run *run, int64_t count)
{
    const sl_kernel_call *call = run->call;
    update<S> numbers = numbers_of<S>(&call->attrs.optim);
    tensor_view g = merged(sl_call_input(call, 0), 0), p = output_of(call, 0), m = output_of(call, 1);
    unsigned blocks = element_blocks(count);
    if (call->op == SL_OP_ADAMW)
        adamw<S><<<blocks, BLOCK, 0, run->stream>>>(g, p, m, output_of(call, 2), output_of(call, 3), count, numbers,
                                               call->numbers);
    else
        sgd<S><<<blocks, BLOCK, 0, run->stream>>>(g, p, m, output_of(call, 2), count, numbers, call->numbers);
}

sl_status cuda_optim(const cuda_run *run)
{
    int64_t count = sl_meta_count(&run->call->inputs[0].meta);
    int taken = 0;
    sl_status status = run->call->op == SL_OP_ADAMW ? cuda_adamw_many(run, run->call, 1, &taken) : SL_OK;
    if (count == 0 || taken > 0 || status != SL_OK)
        return status;
    if (is_double(run->call))
        run_update<double>(run, count);
    else
        run_update<float>(run, count);
    return launched("optimizer kernel");
}
