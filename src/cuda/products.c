/* The four products as one: which matrices a call multiplies, by their strides. */
#include "cuda/blas.h"

#include "kernel/call.h"
#include "kernel/gpu_scratch.h"
#include "op/op.h"

#include <string.h>

/* The last two dims of a tensor as a matrix; a vector is one row. */
static cuda_matrix last_dims(const sl_view *view, const sl_meta *meta)
{
    return (cuda_matrix){ .data = view->data,
                          .dtype = (int32_t)view->meta.dtype,
                          .rows = sl_stride_from_last(meta, 2),
                          .columns = sl_stride_from_last(meta, 1) };
}

static cuda_matrix transposed(cuda_matrix m)
{
    return (cuda_matrix){ .data = m.data, .dtype = m.dtype, .rows = m.columns, .columns = m.rows };
}

/* Adds the leading dims of c, along which a and b have the strides of their metas. */
static void set_batch(cuda_product_args *args, const sl_meta *a, const sl_meta *b, const sl_meta *c)
{
    args->batch_count = 1;
    for (int i = 0; i < c->shape.rank - 2; i++) {
        int64_t dim = c->shape.dims[i];
        args->batch_count *= dim;
        if (dim == 1)
            continue;
        args->batch_dims[args->batch_rank] = dim;
        args->batch_a[args->batch_rank] = a ? a->strides[i] : 0;
        args->batch_b[args->batch_rank] = b ? b->strides[i] : 0;
        args->batch_c[args->batch_rank++] = c->strides[i];
    }
}

/* x [..,K] times w [K,N] into y [..,N]; w is seen that way round. Rows that do not lie alike are several products. */
static void set_linear(cuda_product_args *args, const sl_view *x, cuda_matrix w, const sl_view *y)
{
    int64_t x_stride, y_stride;
    bool merge = sl_gpu_rows_merge(&x->meta, &x_stride) && sl_gpu_rows_merge(&y->meta, &y_stride);
    args->a = last_dims(x, &x->meta);
    args->b = w;
    args->c = last_dims(y, &y->meta);
    args->n = sl_dim_from_last(&y->meta, 1);
    args->k = sl_dim_from_last(&x->meta, 1);
    if (merge) {
        args->m = sl_row_count(&x->meta, 1);
        args->a.rows = x_stride;
        args->c.rows = y_stride;
        args->batch_count = 1;
    } else {
        args->m = sl_dim_from_last(&x->meta, 2);
        set_batch(args, &x->meta, NULL, &y->meta);
    }
}

/* The gradient of w sums over all rows, so they must lie alike: x or dy is packed into the scratch if they do not. The
 * view of what is multiplied; *place moves behind it. */
static sl_view packed_view(const sl_kernel_call *call, int input, char **place)
{
    sl_view view = call->inputs[input];
    if (sl_gpu_packed_bytes(call, input) == 0)
        return view;
    view.data = *place;
    view.meta = sl_meta_contiguous(view.meta.dtype, &view.meta.shape);
    *place += sl_gpu_packed_bytes(call, input);
    return view;
}

static sl_status pack_inputs(const cuda_run *run, char *scratch)
{
    sl_status status = SL_OK;
    for (int i = 0; i < 2; i++) {
        const sl_view to = packed_view(run->call, i, &scratch);
        if (to.data == run->call->inputs[i].data)
            continue;
        const sl_kernel_call copy = {
            .op = SL_OP_COPY, .inputs = &run->call->inputs[i], .input_count = 1, .outputs = &to, .output_count = 1
        };
        const cuda_run copying = { .stream = run->stream, .call = &copy };
        SL_TRY(cuda_copy(&copying));
    }
done:
    return status;
}

static void set_grad_w(const sl_kernel_call *call, cuda_product_args *args, char *scratch)
{
    const sl_view *dw = sl_call_output(call, 0);
    int64_t x_stride, dy_stride;
    const sl_view x = packed_view(call, 0, &scratch), dy = packed_view(call, 1, &scratch);
    (void)sl_gpu_rows_merge(&x.meta, &x_stride);
    (void)sl_gpu_rows_merge(&dy.meta, &dy_stride);
    args->a = (cuda_matrix){ x.data, (int32_t)x.meta.dtype, sl_stride_from_last(&x.meta, 1), x_stride };
    args->b = (cuda_matrix){ dy.data, (int32_t)dy.meta.dtype, dy_stride, sl_stride_from_last(&dy.meta, 1) };
    args->c = last_dims(dw, &dw->meta);
    if (call->attrs.transpose_w)
        args->c = transposed(args->c);
    args->m = sl_dim_from_last(&x.meta, 1);
    args->n = sl_dim_from_last(&dy.meta, 1);
    args->k = sl_row_count(&x.meta, 1);
    args->batch_count = 1;
}

static void set_matmul(const sl_kernel_call *call, cuda_product_args *args)
{
    const sl_view *a = sl_call_input(call, 0), *b = sl_call_input(call, 1), *c = sl_call_output(call, 0);
    sl_shape a_shape = c->meta.shape, b_shape = c->meta.shape;
    int rank = c->meta.shape.rank;
    for (int place = 1; place <= 2; place++) {
        a_shape.dims[rank - place] = sl_dim_from_last(&a->meta, place);
        b_shape.dims[rank - place] = sl_dim_from_last(&b->meta, place);
    }
    sl_meta a_meta = sl_meta_stretched(&a->meta, &a_shape), b_meta = sl_meta_stretched(&b->meta, &b_shape);
    args->a = last_dims(a, &a_meta);
    args->b = last_dims(b, &b_meta);
    args->c = last_dims(c, &c->meta);
    args->k = sl_dim_from_last(&a->meta, call->attrs.transpose_a ? 2 : 1);
    if (call->attrs.transpose_a)
        args->a = transposed(args->a);
    if (call->attrs.transpose_b)
        args->b = transposed(args->b);
    args->m = sl_dim_from_last(&c->meta, 2);
    args->n = sl_dim_from_last(&c->meta, 1);
    set_batch(args, &a_meta, &b_meta, &c->meta);
}

/* scratch: behind the workspace. */
static void set_args(const sl_kernel_call *call, cuda_product_args *args, char *scratch)
{
    const sl_view *first = sl_call_input(call, 0), *second = sl_call_input(call, 1), *bias = sl_call_input(call, 2);
    cuda_matrix w = last_dims(second, &second->meta);
    memset(args, 0, sizeof *args);
    args->add = sl_call_accumulates(call, 0);
    switch (call->op) {
    case SL_OP_LINEAR:
        set_linear(args, first, call->attrs.transpose_w ? transposed(w) : w, sl_call_output(call, 0));
        if (!sl_view_is_none(bias)) {
            args->bias = bias->data;
            args->bias_dtype = (int32_t)bias->meta.dtype;
            args->bias_stride = bias->meta.strides[0];
        }
        break;
    case SL_OP_LINEAR_GRAD_X:
        set_linear(args, first, call->attrs.transpose_w ? w : transposed(w), sl_call_output(call, 0));
        break;
    case SL_OP_LINEAR_GRAD_W:
        set_grad_w(call, args, scratch);
        break;
    default:
        set_matmul(call, args);
    }
}

/* Views as they will be, at addresses that are aligned and never used. */
static void place_views(const sl_view *views, int count, sl_view *out)
{
    for (int i = 0; i < count; i++) {
        out[i] = views[i];
        out[i].data = sl_view_is_none(&views[i]) ? NULL : (void *)(uintptr_t)SL_GPU_SCRATCH_ALIGNMENT;
    }
}

sl_status cuda_product_prepare(cuda_blas *blas, const sl_kernel_call *call)
{
    cuda_product_args args;
    sl_view inputs[SL_OP_INPUTS], outputs[SL_OP_OUTPUTS];
    sl_kernel_call placed = *call;
    size_t workspace = sl_gpu_product_workspace(call);
    if (workspace == 0)
        return SL_OK;
    place_views(call->inputs, call->input_count, inputs);
    place_views(call->outputs, call->output_count, outputs);
    placed.inputs = inputs;
    placed.outputs = outputs;
    set_args(&placed, &args, (char *)(uintptr_t)SL_GPU_SCRATCH_ALIGNMENT);
    return cuda_blas_prepare(blas, &args, workspace);
}

sl_status cuda_product(const cuda_run *run)
{
    sl_status status = SL_OK;
    cuda_product_args args;
    size_t workspace = sl_gpu_product_workspace(run->call);
    char *scratch = (char *)(((uintptr_t)run->call->scratch + 255) / 256 * 256);
    char *behind = scratch ? scratch + workspace : NULL;
    bool done_by_blas = false;
    if (run->call->op == SL_OP_LINEAR_GRAD_W)
        SL_TRY(pack_inputs(run, behind));
    set_args(run->call, &args, behind);
    SL_TRY(cuda_blas_multiply(run, &args, scratch, workspace, &done_by_blas));
    if (!done_by_blas)
        SL_TRY(cuda_plain_product(run, &args));
done:
    return status;
}
