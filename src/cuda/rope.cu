// Rotary embedding: of whole heads of bf16 whose elements lie side by side eight pairs a thread, of all else one.
#include "cuda/element.cuh"

#include "kernel/call.h"

struct rope_args {
    const __nv_bfloat16 *x;
    __nv_bfloat16 *y;
    const void *cosines, *sines; // [positions, half]
    const int32_t *positions;    // NULL: t
    int32_t limit, heads, length, half;
    int64_t x_strides[3], y_strides[3]; // of batch, time and head
    int64_t pieces;                     // of eight pairs, in all
    bool inverse;
};

template <class T>
__global__ void __launch_bounds__(BLOCK)
    rotate_eights(const __grid_constant__ rope_args args, const __grid_constant__ cuda_reporter reporter)
{
    FOR_EACH_ELEMENT (i, args.pieces) {
        int per_head = args.half / WIDE;
        int64_t row = quotient(i, per_head), line = quotient(row, args.heads), b = quotient(line, args.length);
        int d = (int)(i - row * per_head) * WIDE, h = (int)(row - line * args.heads), t = (int)(line - b * args.length);
        int position = args.positions ? args.positions[t] : t;
        if (position < 0 || position >= args.limit) {
            report(reporter, CUDA_FAULT_POSITION, position, t, args.limit);
            continue;
        }
        const __nv_bfloat16 *from = args.x + b * args.x_strides[0] + t * args.x_strides[1] + h * args.x_strides[2] + d;
        __nv_bfloat16 *to = args.y + b * args.y_strides[0] + t * args.y_strides[1] + h * args.y_strides[2] + d;
        int64_t angle = (int64_t)position * args.half + d;
        float first[WIDE], second[WIDE], c[WIDE], s[WIDE];
        load_eight(from, first);
        load_eight(from + args.half, second);
        load_eight((const T *)args.cosines + angle, c);
        load_eight((const T *)args.sines + angle, s);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            float sine = args.inverse ? -s[k] : s[k], x = first[k], y = second[k];
            first[k] = x * c[k] - y * sine;
            second[k] = y * c[k] + x * sine;
        }
        store_eight(to, first);
        store_eight(to + args.half, second);
    }
}

static bool lies_in_eights(const sl_view *view)
{
    const sl_meta *meta = &view->meta;
    return meta->dtype == SL_BF16 && meta->strides[3] == 1 && meta->strides[0] % WIDE == 0 &&
           meta->strides[1] % WIDE == 0 && meta->strides[2] % WIDE == 0 && ((uintptr_t)view->data & 15) == 0;
}

static bool fits_eights(const sl_kernel_call *call)
{
    const sl_view *x = sl_call_input(call, 0), *cosines = sl_call_input(call, 1), *sines = sl_call_input(call, 2);
    const sl_view *positions = sl_call_input(call, 3);
    int dtype = cosines->meta.dtype;
    return !sl_call_accumulates(call, 0) && lies_in_eights(x) && lies_in_eights(sl_call_output(call, 0)) &&
           (dtype == SL_F32 || dtype == SL_BF16) && is_packed(cosines, dtype) && is_packed(sines, dtype) &&
           x->meta.shape.dims[3] == 2 * cosines->meta.shape.dims[1] && cosines->meta.shape.dims[0] <= INT32_MAX &&
           (sl_view_is_none(positions) || positions->meta.strides[0] == 1);
}

sl_status cuda_rope_eights(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0), *y = sl_call_output(call, 0), *cosines = sl_call_input(call, 1);
    rope_args args = {};
    if (sl_meta_count(&x->meta) == 0 || !fits_eights(call))
        return cuda_rope(run);
    args.x = (const __nv_bfloat16 *)x->data;
    args.y = (__nv_bfloat16 *)y->data;
    args.cosines = cosines->data;
    args.sines = sl_call_input(call, 2)->data;
    args.positions = sl_view_is_none(sl_call_input(call, 3)) ? NULL : (const int32_t *)sl_call_input(call, 3)->data;
    args.limit = (int32_t)cosines->meta.shape.dims[0];
    args.half = (int32_t)cosines->meta.shape.dims[1];
    args.length = (int32_t)x->meta.shape.dims[1];
    args.heads = (int32_t)x->meta.shape.dims[2];
    for (int i = 0; i < 3; i++) {
        args.x_strides[i] = x->meta.strides[i];
        args.y_strides[i] = y->meta.strides[i];
    }
    args.pieces = sl_meta_count(&x->meta) / (2 * WIDE);
    args.inverse = call->attrs.inverse;
    if (cosines->meta.dtype == SL_F32)
        rotate_eights<float><<<element_blocks(args.pieces), BLOCK, 0, run->stream>>>(args, run->reporter);
    else
        rotate_eights<__nv_bfloat16><<<element_blocks(args.pieces), BLOCK, 0, run->stream>>>(args, run->reporter);
    return launched("rope kernel");
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
