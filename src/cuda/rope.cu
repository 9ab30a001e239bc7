// Rotary embedding: of whole heads of bf16 whose elements lie side by side eight pairs of several heads a thread, of all
// else one.
#include "cuda/element.cuh"

#include "kernel/call.h"

// Heads of the same places: queries and keys.
struct rope_heads {
    const __nv_bfloat16 *x;
    __nv_bfloat16 *y;
    int64_t x_strides[3], y_strides[3]; // of batch, time and head
    int32_t count;
};

struct rope_args {
    rope_heads heads[2];
    const void *cosines, *sines; // [positions, half]
    const int32_t *positions;    // NULL: t
    int32_t limit, length, half;
    int32_t groups; // of heads that share a thread
    int64_t pieces; // of eight pairs of a group, in all
    bool inverse;
};

enum { ROPE_GROUP = 4 };

template <class T>
__global__ void __launch_bounds__(BLOCK)
    rotate_eights(const __grid_constant__ rope_args args, const __grid_constant__ cuda_reporter reporter)
{
    FOR_EACH_ELEMENT (i, args.pieces) {
        int per_head = args.half / WIDE;
        int64_t row = quotient(i, per_head), line = quotient(row, args.groups), b = quotient(line, args.length);
        int d = (int)(i - row * per_head) * WIDE, t = (int)(line - b * args.length);
        int first_head = (int)(row - line * args.groups) * ROPE_GROUP;
        int position = args.positions ? args.positions[t] : t;
        if (position < 0 || position >= args.limit) {
            report(reporter, CUDA_FAULT_POSITION, position, t, args.limit);
            continue;
        }
        eight_bf16 first[ROPE_GROUP], second[ROPE_GROUP];
        __nv_bfloat16 *to[ROPE_GROUP];
#pragma unroll
        for (int n = 0; n < ROPE_GROUP; n++) {
            int h = first_head + n;
            const rope_heads &heads = args.heads[h < args.heads[0].count ? 0 : 1];
            h -= h < args.heads[0].count ? 0 : args.heads[0].count;
            to[n] = h < heads.count ? heads.y + b * heads.y_strides[0] + t * heads.y_strides[1] + h * heads.y_strides[2] + d
                                    : NULL;
            if (!to[n])
                continue;
            const __nv_bfloat16 *from = heads.x + b * heads.x_strides[0] + t * heads.x_strides[1] +
                                        h * heads.x_strides[2] + d;
            first[n].get(from);
            second[n].get(from + args.half);
        }
        int64_t angle = (int64_t)position * args.half + d;
        float c[WIDE], s[WIDE];
        load_eight((const T *)args.cosines + angle, c);
        load_eight((const T *)args.sines + angle, s);
#pragma unroll
        for (int n = 0; n < ROPE_GROUP; n++) {
            float one[WIDE], other[WIDE];
            if (!to[n])
                continue;
            first[n].widen(one);
            second[n].widen(other);
#pragma unroll
            for (int k = 0; k < WIDE; k++) {
                float sine = args.inverse ? -s[k] : s[k], x = one[k], y = other[k];
                one[k] = x * c[k] - y * sine;
                other[k] = y * c[k] + x * sine;
            }
            store_eight(to[n], one);
            store_eight(to[n] + args.half, other);
        }
    }
}

static bool lies_in_eights(const sl_view *view)
{
    const sl_meta *meta = &view->meta;
    return meta->dtype == SL_BF16 && meta->strides[3] == 1 && meta->strides[0] % WIDE == 0 &&
           meta->strides[1] % WIDE == 0 && meta->strides[2] % WIDE == 0 && ((uintptr_t)view->data & 15) == 0;
}

// ROPE or ROPE_PAIR: `count` tensors to rotate, then tables and positions.
static bool fits_eights(const sl_kernel_call *call, int count)
{
    const sl_view *x = sl_call_input(call, 0), *cosines = sl_call_input(call, count);
    const sl_view *sines = sl_call_input(call, count + 1), *positions = sl_call_input(call, count + 2);
    int dtype = cosines->meta.dtype;
    bool fits = (dtype == SL_F32 || dtype == SL_BF16) && is_packed(cosines, dtype) && is_packed(sines, dtype) &&
                x->meta.shape.dims[3] == 2 * cosines->meta.shape.dims[1] && cosines->meta.shape.dims[0] <= INT32_MAX &&
                (sl_view_is_none(positions) || (positions->meta.shape.rank == 1 && positions->meta.strides[0] == 1));
    for (int i = 0; i < count; i++)
        fits = fits && !sl_call_accumulates(call, i) && lies_in_eights(sl_call_input(call, i)) &&
               lies_in_eights(sl_call_output(call, i)) && sl_meta_count(&sl_call_input(call, i)->meta) > 0;
    return fits;
}

static sl_status launch_eights(const cuda_run *run, int count)
{
    const sl_kernel_call *call = run->call;
    const sl_view *first = sl_call_input(call, 0), *cosines = sl_call_input(call, count);
    const sl_view *positions = sl_call_input(call, count + 2);
    rope_args args = {};
    int64_t heads = 0;
    for (int i = 0; i < count; i++) {
        const sl_view *x = sl_call_input(call, i), *y = sl_call_output(call, i);
        rope_heads *to = &args.heads[i];
        to->x = (const __nv_bfloat16 *)x->data;
        to->y = (__nv_bfloat16 *)y->data;
        to->count = (int32_t)x->meta.shape.dims[2];
        heads += to->count;
        for (int d = 0; d < 3; d++) {
            to->x_strides[d] = x->meta.strides[d];
            to->y_strides[d] = y->meta.strides[d];
        }
    }
    args.cosines = cosines->data;
    args.sines = sl_call_input(call, count + 1)->data;
    args.positions = sl_view_is_none(positions) ? NULL : (const int32_t *)positions->data;
    args.limit = (int32_t)cosines->meta.shape.dims[0];
    args.half = (int32_t)cosines->meta.shape.dims[1];
    args.length = (int32_t)first->meta.shape.dims[1];
    args.groups = (int32_t)((heads + ROPE_GROUP - 1) / ROPE_GROUP);
    args.pieces = first->meta.shape.dims[0] * args.length * args.groups * (args.half / WIDE);
    args.inverse = call->attrs.inverse;
    if (cosines->meta.dtype == SL_F32)
        rotate_eights<float><<<element_blocks(args.pieces), BLOCK, 0, run->stream>>>(args, run->reporter);
    else
        rotate_eights<__nv_bfloat16><<<element_blocks(args.pieces), BLOCK, 0, run->stream>>>(args, run->reporter);
    return launched("rope kernel");
}

sl_status cuda_rope_eights(const cuda_run *run)
{
    return fits_eights(run->call, 1) ? launch_eights(run, 1) : cuda_rope(run);
}

sl_status cuda_rope_pair(const cuda_run *run, bool *is_done)
{
    *is_done = fits_eights(run->call, 2);
    return *is_done ? launch_eights(run, 2) : SL_OK;
}

// ---- Any strides and element types ------------------------------------------------------------

template <class S>
__global__ void rotate(const __grid_constant__ tensor_view x, const __grid_constant__ tensor_view cosines, const __grid_constant__ tensor_view sines, const __grid_constant__ tensor_view positions, const __grid_constant__ tensor_view y,
                       int64_t count, bool inverse, bool add, const __grid_constant__ cuda_reporter reporter)
{
    int64_t half = cosines.dims[1], pairs = x.dims[3] - half; // a pair to rotate, or one element of the rest
    FOR_EACH_ELEMENT (i, count) {
        int64_t row = quotient(i, pairs), d = i - row * pairs, line = quotient(row, x.dims[2]);
        int64_t h = row - line * x.dims[2], b = quotient(line, x.dims[1]), t = line - b * x.dims[1];
        int64_t position = t;
        bool own = positions.rank == 2; // positions of each row of the batch
        if (positions.data)
            position = ((const int32_t *)positions.data)[own ? b * positions.strides[0] + t * positions.strides[1]
                                                             : t * positions.strides[0]];
        if (position < 0 || position >= cosines.dims[0]) {
            report(reporter, CUDA_FAULT_POSITION, position, own ? line : t, cosines.dims[0]);
            continue;
        }
        int64_t from = start_of(x, b, t, h), to = start_of(y, b, t, h);
        if (d >= half) {
            S rest = load<S>(x.data, x.dtype, from + (d + half) * x.strides[3]);
            store<S>(y.data, y.dtype, to + (d + half) * y.strides[3], rest, add);
            continue;
        }
        S c = load<S>(cosines.data, cosines.dtype, position * cosines.strides[0] + d * cosines.strides[1]);
        S s = load<S>(sines.data, sines.dtype, position * sines.strides[0] + d * sines.strides[1]);
        S first = load<S>(x.data, x.dtype, from + d * x.strides[3]);
        S second = load<S>(x.data, x.dtype, from + (d + half) * x.strides[3]);
        s = inverse ? -s : s;
        store<S>(y.data, y.dtype, to + d * y.strides[3], first * c - second * s, add);
        store<S>(y.data, y.dtype, to + (d + half) * y.strides[3], second * c + first * s, add);
    }
}

sl_status cuda_rope(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    tensor_view cosines = view_of(sl_call_input(call, 1)), sines = view_of(sl_call_input(call, 2));
    tensor_view positions = view_of(sl_call_input(call, 3)), y = view_of(sl_call_output(call, 0));
    bool add = sl_call_accumulates(call, 0);
    int64_t width = x->meta.shape.dims[3];
    int64_t count = width > 0 ? sl_meta_count(&x->meta) / width * (width - cosines.dims[1]) : 0;
    if (count == 0)
        return SL_OK;
    if (is_double(call))
        rotate<double><<<element_blocks(count), BLOCK, 0, run->stream>>>(view_of(x), cosines, sines, positions, y, count,
                                                                         call->attrs.inverse, add, run->reporter);
    else
        rotate<float><<<element_blocks(count), BLOCK, 0, run->stream>>>(view_of(x), cosines, sines, positions, y, count,
                                                                        call->attrs.inverse, add, run->reporter);
    return launched("rope kernel");
}
