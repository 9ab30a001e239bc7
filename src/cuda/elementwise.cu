// Ops that work element by element: functions of one, two and three arguments, with numpy's broadcasting.
#include "cuda/columns.cuh"

#include "kernel/call.h"

enum { MOST_ARGS = 5 };

// The tensors of a call over the elements of its result: inputs, then outputs. Dims that lie alike are joined.
struct element_args {
    int op, input_count, output_count, rank;
    int64_t count, dims[SL_MAX_DIMS];
    void *data[MOST_ARGS];
    int dtype[MOST_ARGS];
    int64_t strides[MOST_ARGS][SL_MAX_DIMS];
    bool add[2], quick; // quick: functions good to bf16
    double alpha, beta;
};

// ---- Formulas ---------------------------------------------------------------------------------

#define ROOT_2_PI 0.79788456080286535588 // sqrt(2 / pi)
#define ROOT_HALF 0.70710678118654752440
#define ROOT_1_2PI 0.39894228040143267794 // 1 / sqrt(2 pi)

template <class S> __device__ __forceinline__ S sigmoid(S x, bool quick)
{
    return quick ? quick_reciprocal(1 + quick_exponential(-x)) : 1 / (1 + exponential(-x));
}

template <class S> __device__ __forceinline__ S gelu_inner(S x)
{
    return hyperbolic((S)ROOT_2_PI * (x + (S)0.044715 * x * x * x));
}

// gelu(x) is x * gate(x): the gate is the sigmoid of twice the inner argument. Good to bf16, and half the work.
template <class S> __device__ __forceinline__ S gelu_gate(S x)
{
    S power = x * fma((S)(-2 * LOG_2_E * ROOT_2_PI * 0.044715), x * x, (S)(-2 * LOG_2_E * ROOT_2_PI)); // of 2
    return quick_reciprocal(1 + quick_exponential_of_2(power));
}

template <class S> __device__ __forceinline__ S gelu_gate_slope(S x)
{
    S gate = gelu_gate(x), inner = fma((S)(6 * ROOT_2_PI * 0.044715), x * x, (S)(2 * ROOT_2_PI));
    return fma(fma(-(x * gate), gate, x * gate), inner, gate);
}

template <class S> __device__ __forceinline__ S gelu_tanh_slope(S x, bool quick)
{
    if (quick)
        return gelu_gate_slope(x);
    S t = gelu_inner(x);
    return (S)0.5 * (1 + t) + (S)0.5 * x * (1 - t * t) * (S)ROOT_2_PI * (1 + (S)(3 * 0.044715) * x * x);
}

template <class S> __device__ __forceinline__ S gelu_erf_slope(S x)
{
    return (S)0.5 * (1 + error_function(x * (S)ROOT_HALF)) + x * exponential((S)-0.5 * x * x) * (S)ROOT_1_2PI;
}

// Result 0 of the op, and result 1 if it has one.
template <class S>
__device__ __forceinline__ S formula(int op, S a, S b, S c, S alpha, S beta, bool quick, S *second)
{
    switch (op) {
    case SL_OP_GELU_TANH:
        return quick ? a * gelu_gate(a) : (S)0.5 * a * (1 + gelu_inner(a));
    case SL_OP_GELU_TANH_GRAD:
        return gelu_tanh_slope(a, quick) * b;
    case SL_OP_GELU_ERF:
        return (S)0.5 * a * (1 + error_function(a * (S)ROOT_HALF));
    case SL_OP_GELU_ERF_GRAD:
        return gelu_erf_slope(a) * b;
    case SL_OP_SILU:
        return sigmoid(a, quick) * a;
    case SL_OP_SILU_GRAD:
        return sigmoid(a, quick) * b * (1 + a * (1 - sigmoid(a, quick)));
    case SL_OP_RELU:
        return a > 0 ? a : a != a ? a : 0;
    case SL_OP_RELU_GRAD:
        return a > 0 ? b : 0;
    case SL_OP_TANH:
        return hyperbolic(a);
    case SL_OP_TANH_GRAD:
        return (1 - a * a) * b;
    case SL_OP_EXP:
        return exponential(a);
    case SL_OP_LOG:
        return logarithm(a);
    case SL_OP_NEG:
        return -a;
    case SL_OP_SCALE:
        return beta + alpha * a;
    case SL_OP_SWIGLU:
        return a * sigmoid(a, quick) * b;
    case SL_OP_SWIGLU_GRAD: {
        S s = sigmoid(a, quick);
        *second = c * a * s;
        return c * b * s * (1 + a * (1 - s));
    }
    case SL_OP_ADD:
        return a + b;
    case SL_OP_SUB:
        return a - b;
    case SL_OP_MUL:
        return a * b;
    case SL_OP_DIV:
        return a / b;
    default: // COPY, CAST, CONCAT
        return a;
    }
}

// ---- Kernels ----------------------------------------------------------------------------------

template <class S> __global__ void each_element(const __grid_constant__ element_args args)
{
    FOR_EACH_ELEMENT (i, args.count) {
        int64_t at[MOST_ARGS] = {}, index = i;
        for (int d = args.rank - 1; d >= 0; d--) {
            int64_t rest = d == 0 ? 0 : quotient(index, args.dims[d]), place = index - rest * args.dims[d];
#pragma unroll
            for (int n = 0; n < MOST_ARGS; n++)
                at[n] += place * args.strides[n][d]; // of tensors that are not there it is 0
            index = rest;
        }
        S in[3] = {}, second = 0;
#pragma unroll
        for (int n = 0; n < 3; n++) {
            if (n < args.input_count)
                in[n] = load<S>(args.data[n], args.dtype[n], at[n]);
        }
        S first = formula<S>(args.op, in[0], in[1], in[2], (S)args.alpha, (S)args.beta, args.quick, &second);
#pragma unroll
        for (int n = 0; n < MOST_ARGS; n++) {
            if (n == args.input_count)
                store<S>(args.data[n], args.dtype[n], at[n], first, args.add[0]);
            if (n == args.input_count + 1 && args.output_count > 1)
                store<S>(args.data[n], args.dtype[n], at[n], second, args.add[1]);
        }
    }
}

// All tensors packed, aligned and of one type: eight elements a thread. OP -1: args.op says which. QUICK is args.quick.
template <int OP, bool QUICK> __global__ void __launch_bounds__(BLOCK) each_eight(const __grid_constant__ element_args args)
{
    int64_t groups = (args.count + WIDE - 1) / WIDE;
    int op = OP >= 0 ? OP : args.op;
    FOR_EACH_ELEMENT (g, groups) {
        float in[3][WIDE] = {}, first[WIDE], second[WIDE] = {};
#pragma unroll
        for (int n = 0; n < 3; n++) {
            if (n >= args.input_count)
                continue;
            tensor_view flat = flat_view(args.data[n], args.dtype[n], args.count);
            row_view<float>(flat, 0).get_wide(g * WIDE, args.count, 0, in[n]);
        }
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            first[k] = formula<float>(op, in[0][k], in[1][k], in[2][k], (float)args.alpha, (float)args.beta, QUICK,
                                      &second[k]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            if (n >= args.output_count)
                continue;
            int at = args.input_count + n;
            tensor_view flat = flat_view(args.data[at], args.dtype[at], args.count);
            row_view<float>(flat, 0).put_wide(g * WIDE, args.count, n == 0 ? first : second, args.add[n]);
        }
    }
}

// The ops that steps are made of, on packed bf16: nothing is asked per access, and the loads of two pieces are on their
// way at once. ROWS: rows of packed elements, which may lie apart, or come again (stride 0). Then blocks go through pairs of
// rows one after the other, from the last to the first: what the product before wrote last is still in the cache.
template <int OP, int INPUTS, int OUTPUTS, bool ROWS>
__global__ void __launch_bounds__(BLOCK) each_packed(const __grid_constant__ element_args args)
{
    unsigned across = ROWS ? (unsigned)((args.dims[1] / WIDE + BLOCK - 1) / BLOCK) : 1; // blocks of a pair of rows
    unsigned block = ROWS ? gridDim.x - 1 - blockIdx.x : blockIdx.x, pair = block / across;
    int64_t column = ROWS ? ((int64_t)(block - pair * across) * BLOCK + threadIdx.x) * WIDE
                          : ((int64_t)block * 2 * BLOCK + threadIdx.x) * WIDE;
    int64_t row = (int64_t)pair * 2;
    uint4 bits[2][INPUTS];
    float in[3][WIDE] = {}, first[WIDE], second[WIDE];
    bool is_there[2];
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
        is_there[piece] = ROWS ? column < args.dims[1] && row + piece < args.dims[0]
                               : column + piece * BLOCK * WIDE < args.count;
#pragma unroll
        for (int n = 0; n < INPUTS; n++) {
            int64_t at = ROWS ? (row + piece) * args.strides[n][0] + column : column + piece * BLOCK * WIDE;
            if (is_there[piece])
                bits[piece][n] = *(const uint4 *)((const __nv_bfloat16 *)args.data[n] + at);
        }
    }
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
        if (!is_there[piece])
            return;
#pragma unroll
        for (int n = 0; n < INPUTS; n++)
            load_eight((const __nv_bfloat16 *)&bits[piece][n], in[n]);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            first[k] = formula<float>(OP, in[0][k], in[1][k], in[2][k], 0, 0, true, &second[k]);
#pragma unroll
        for (int n = 0; n < OUTPUTS; n++) {
            int64_t at = ROWS ? (row + piece) * args.strides[INPUTS + n][0] + column : column + piece * BLOCK * WIDE;
            store_eight((__nv_bfloat16 *)args.data[INPUTS + n] + at, n == 0 ? first : second);
        }
    }
}

// ---- Calls ------------------------------------------------------------------------------------

static void add_tensor(element_args *args, int n, const sl_view *view, const sl_shape *shape)
{
    sl_meta meta = sl_meta_stretched(&view->meta, shape);
    args->data[n] = view->data;
    args->dtype[n] = view->meta.dtype;
    for (int d = 0; d < shape->rank; d++)
        args->strides[n][d] = meta.strides[d];
}

// Joins dims that lie alike in all tensors, and drops those of size 1.
static void join_dims(element_args *args)
{
    int rank = 0, tensors = args->input_count + args->output_count;
    for (int d = 0; d < args->rank; d++) {
        int64_t dim = args->dims[d];
        if (dim == 1)
            continue;
        bool joins = rank > 0;
        for (int n = 0; n < tensors && joins; n++)
            joins = args->strides[n][rank - 1] == args->strides[n][d] * dim;
        if (joins)
            args->dims[rank - 1] *= dim;
        else
            args->dims[rank++] = dim;
        for (int n = 0; n < tensors; n++)
            args->strides[n][rank - 1] = args->strides[n][d];
    }
    args->rank = rank;
}

static bool fits_eight(const element_args *args)
{
    for (int n = 0; n < args->input_count + args->output_count; n++) {
        bool packed = args->rank == 0 || (args->rank == 1 && args->strides[n][0] == 1);
        if (!packed || (args->dtype[n] != SL_F32 && args->dtype[n] != SL_BF16) || ((uintptr_t)args->data[n] & 15))
            return false;
    }
    return true;
}

static int64_t row_pair_blocks(const element_args *args)
{
    return (args->dims[0] + 1) / 2 * ((args->dims[1] / WIDE + BLOCK - 1) / BLOCK);
}

// Packed bf16 everywhere, a whole number of eights, nothing to add to. rows: rows of that, each aligned.
static bool fits_packed(const element_args *args, bool rows)
{
    bool fits = args->count % WIDE == 0 && !args->add[0] && !args->add[1];
    if (rows)
        fits = fits && args->rank == 2 && args->dims[1] % WIDE == 0 && row_pair_blocks(args) <= INT32_MAX;
    for (int n = 0; n < args->input_count + args->output_count && fits; n++) {
        const int64_t *strides = args->strides[n];
        bool packed = rows ? strides[1] == 1 && strides[0] % WIDE == 0
                           : args->rank == 0 || (args->rank == 1 && strides[0] == 1);
        fits = packed && args->dtype[n] == SL_BF16 && ((uintptr_t)args->data[n] & 15) == 0;
    }
    return fits;
}

static bool launch_packed(const cuda_run *run, const element_args *args)
{
    int64_t blocks = (args->count / WIDE + 2 * BLOCK - 1) / (2 * BLOCK);
    if (blocks > INT32_MAX)
        return false;
    bool rows = fits_packed(args, true);
    if (!rows && !fits_packed(args, false))
        return false;
    if (rows)
        blocks = row_pair_blocks(args);
    switch (args->op) {
#define HOT(op, inputs, outputs)                                                                                       \
    case op:                                                                                                           \
        if (args->output_count != (outputs))                                                                           \
            return false;                                                                                              \
        if (rows)                                                                                                      \
            each_packed<op, inputs, outputs, true><<<(unsigned)blocks, BLOCK, 0, run->stream>>>(*args);                \
        else                                                                                                           \
            each_packed<op, inputs, outputs, false><<<(unsigned)blocks, BLOCK, 0, run->stream>>>(*args);               \
        return true
        HOT(SL_OP_GELU_TANH, 1, 1);
        HOT(SL_OP_GELU_TANH_GRAD, 2, 1);
        HOT(SL_OP_SWIGLU, 2, 1);
        HOT(SL_OP_SWIGLU_GRAD, 3, 2);
        HOT(SL_OP_ADD, 2, 1);
        HOT(SL_OP_MUL, 2, 1);
#undef HOT
    default:
        return false;
    }
}

static sl_status launch(const cuda_run *run, element_args *args, bool in_double)
{
    join_dims(args);
    if (args->count == 0)
        return SL_OK;
    if (!in_double && launch_packed(run, args))
        return launched("elementwise kernel");
    if (in_double) {
        each_element<double><<<element_blocks(args->count), BLOCK, 0, run->stream>>>(*args);
    } else if (fits_eight(args)) {
        unsigned blocks = element_blocks((args->count + WIDE - 1) / WIDE);
        switch (args->op) {
#define HOT(op)                                                                                                        \
    case op:                                                                                                           \
        if (args->quick)                                                                                               \
            each_eight<op, true><<<blocks, BLOCK, 0, run->stream>>>(*args);                                            \
        else                                                                                                           \
            each_eight<op, false><<<blocks, BLOCK, 0, run->stream>>>(*args);                                           \
        break
            HOT(SL_OP_GELU_TANH);
            HOT(SL_OP_GELU_TANH_GRAD);
            HOT(SL_OP_SWIGLU);
            HOT(SL_OP_SWIGLU_GRAD);
            HOT(SL_OP_ADD);
            HOT(SL_OP_CAST);
#undef HOT
        default:
            if (args->quick)
                each_eight<-1, true><<<blocks, BLOCK, 0, run->stream>>>(*args);
            else
                each_eight<-1, false><<<blocks, BLOCK, 0, run->stream>>>(*args);
        }
    } else {
        each_element<float><<<element_blocks(args->count), BLOCK, 0, run->stream>>>(*args);
    }
    return launched("elementwise kernel");
}

sl_status cuda_elementwise(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_shape *shape = &call->outputs[0].meta.shape;
    element_args args = {};
    args.op = call->op;
    args.rank = shape->rank;
    args.count = sl_meta_count(&call->outputs[0].meta);
    args.alpha = call->attrs.alpha;
    args.beta = call->attrs.beta;
    args.quick = call->input_count > 0 && call->inputs[0].meta.dtype == SL_BF16;
    for (int d = 0; d < shape->rank; d++)
        args.dims[d] = shape->dims[d];
    for (int i = 0; i < call->input_count; i++)
        add_tensor(&args, args.input_count++, &call->inputs[i], shape);
    for (int i = 0; i < call->output_count && !sl_view_is_none(&call->outputs[i]); i++) {
        args.add[args.output_count] = sl_call_accumulates(call, i);
        add_tensor(&args, args.input_count + args.output_count++, &call->outputs[i], shape);
    }
    return launch(run, &args, is_double(call));
}

// ---- Gradient and its sum over rows -----------------------------------------------------------

// What is stored of eight elements of dx, given x in a; added to the sums.
template <bool QUICK>
__device__ __forceinline__ void gelu_grad_eight(float a[WIDE], const float dy[WIDE], const float old[WIDE], int dtype,
                                                float sums[WIDE])
{
    float second;
#pragma unroll
    for (int k = 0; k < WIDE; k++) {
        a[k] = formula<float>(SL_OP_GELU_TANH_GRAD, a[k], dy[k], 0, 0, 0, QUICK, &second);
        a[k] = as_stored<float>(old ? a[k] + old[k] : a[k], dtype);
        sums[k] += a[k];
    }
}

// Writes dx where column_parts passes, and adds what was stored.
template <bool QUICK> struct gelu_grad_columns {
    tensor_view x, dy, dx;
    bool adds;
    struct fetched {
        row_view<float>::piece x, dy;
    };
    __device__ __forceinline__ fetched fetch(int64_t row, int64_t column, int64_t columns) const
    {
        return { row_view<float>(x, row).fetch(column, columns), row_view<float>(dy, row).fetch(column, columns) };
    }
    __device__ __forceinline__ void add(fetched &what, int64_t row, int64_t column, int64_t columns,
                                        float sums[1][WIDE]) const
    {
        row_view<float> to(dx, row);
        float old[WIDE];
        if (adds)
            to.get_wide(column, columns, 0, old);
        gelu_grad_eight<QUICK>(what.x.values, what.dy.values, adds ? old : NULL, to.dtype, sums[0]);
        to.put_wide(column, columns, what.x.values, false);
    }
};

// Packed bf16, nothing to add to.
struct packed_gelu_grad_columns {
    const __nv_bfloat16 *x, *dy;
    __nv_bfloat16 *dx;
    struct fetched {
        eight_bf16 x, dy;
    };
    __device__ __forceinline__ fetched fetch(int64_t row, int64_t column, int64_t columns) const
    {
        fetched what;
        what.x.get(x + row * columns + column);
        what.dy.get(dy + row * columns + column);
        return what;
    }
    __device__ __forceinline__ void add(const fetched &what, int64_t row, int64_t column, int64_t columns,
                                        float sums[1][WIDE]) const
    {
        float a[WIDE], b[WIDE];
        what.x.widen(a);
        what.dy.widen(b);
        gelu_grad_eight<true>(a, b, NULL, SL_BF16, sums[0]);
        store_eight(dx + row * columns + column, a);
    }
};

template <bool QUICK> static gelu_grad_columns<QUICK> gelu_source(const sl_kernel_call *call)
{
    gelu_grad_columns<QUICK> source;
    source.x = merged(sl_call_input(call, 0), 1);
    source.dy = merged(sl_call_input(call, 1), 1);
    source.dx = merged(sl_call_output(call, 0), 1);
    source.adds = sl_call_accumulates(call, 0);
    return source;
}

sl_status cuda_gelu_grad_sum(const cuda_run *run, bool *is_done)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    int64_t rows = sl_row_count(&x->meta, 1), size = sl_dim_from_last(&x->meta, 1);
    *is_done = !is_double(call) && rows > 1 && size >= 32; // as SUM_TO takes sums by columns
    if (!*is_done)
        return SL_OK;
    const sl_view *dy = sl_call_input(call, 1), *dx = sl_call_output(call, 0);
    column_results results = {};
    results.to[0] = view_of(sl_call_output(call, 1));
    results.add[0] = sl_call_accumulates(call, 1);
    if (is_packed(x, SL_BF16) && is_packed(dy, SL_BF16) && is_packed(dx, SL_BF16) && !sl_call_accumulates(call, 0)) {
        packed_gelu_grad_columns source = { (const __nv_bfloat16 *)x->data, (const __nv_bfloat16 *)dy->data,
                                            (__nv_bfloat16 *)dx->data };
        launch_columns<float, 1>(run, source, rows, size, results, 1);
    } else if (x->meta.dtype == SL_BF16) {
        launch_columns<float, 1>(run, gelu_source<true>(call), rows, size, results, 1);
    } else {
        launch_columns<float, 1>(run, gelu_source<false>(call), rows, size, results, 1);
    }
    return launched("gelu gradient kernel");
}

// ---- Moving data ------------------------------------------------------------------------------

static bool is_integer(int dtype)
{
    return dtype == SL_I32 || dtype == SL_I64 || dtype == SL_U8 || dtype == SL_BOOL;
}

template <class W> __global__ void move_words(const __grid_constant__ tensor_view x, const __grid_constant__ tensor_view y, int64_t count)
{
    FOR_EACH_ELEMENT (i, count)
        ((W *)y.data)[y.offset(i)] = ((const W *)x.data)[x.offset(i)];
}

// Integers to i64 go exactly, also above 2^53.
__global__ void move_integers(const __grid_constant__ tensor_view x, const __grid_constant__ tensor_view y, int64_t count, bool add)
{
    FOR_EACH_ELEMENT (i, count) {
        int64_t from = x.offset(i), value, *to = (int64_t *)y.data + y.offset(i);
        if (x.dtype == SL_I64)
            value = ((const int64_t *)x.data)[from];
        else if (x.dtype == SL_I32)
            value = ((const int32_t *)x.data)[from];
        else
            value = x.dtype == SL_BOOL ? ((const uint8_t *)x.data)[from] != 0 : ((const uint8_t *)x.data)[from];
        *to = (int64_t)((add ? (uint64_t)*to : 0) + (uint64_t)value);
    }
}

// Same type: the bits travel as they are.
static sl_status move_bits(const cuda_run *run, const sl_view *x, const sl_view *y)
{
    int64_t count = sl_meta_count(&x->meta);
    size_t size = sl_dtype_size(x->meta.dtype);
    if (sl_meta_is_contiguous(&x->meta) && sl_meta_is_contiguous(&y->meta))
        return cuda_check(cudaMemcpyAsync(y->data, x->data, (size_t)count * size, cudaMemcpyDeviceToDevice, run->stream),
                          "copy");
    tensor_view from = merged(x, 0), to = merged(y, 0);
    unsigned blocks = element_blocks(count);
    if (size == 1)
        move_words<uint8_t><<<blocks, BLOCK, 0, run->stream>>>(from, to, count);
    else if (size == 2)
        move_words<uint16_t><<<blocks, BLOCK, 0, run->stream>>>(from, to, count);
    else if (size == 4)
        move_words<uint32_t><<<blocks, BLOCK, 0, run->stream>>>(from, to, count);
    else
        move_words<uint64_t><<<blocks, BLOCK, 0, run->stream>>>(from, to, count);
    return launched("copy kernel");
}

static sl_status move(const cuda_run *run, const sl_view *x, const sl_view *y, bool add)
{
    int64_t count = sl_meta_count(&x->meta);
    if (count == 0)
        return SL_OK;
    if (x->meta.dtype == y->meta.dtype && !add)
        return move_bits(run, x, y);
    if (y->meta.dtype == SL_I64 && is_integer(x->meta.dtype)) {
        move_integers<<<element_blocks(count), BLOCK, 0, run->stream>>>(merged(x, 0), merged(y, 0), count, add);
        return launched("copy kernel");
    }
    element_args args = {};
    args.op = SL_OP_CAST;
    args.rank = y->meta.shape.rank;
    args.count = count;
    args.input_count = args.output_count = 1;
    args.add[0] = add;
    for (int d = 0; d < args.rank; d++)
        args.dims[d] = x->meta.shape.dims[d];
    add_tensor(&args, 0, x, &x->meta.shape);
    add_tensor(&args, 1, y, &x->meta.shape);
    int from = x->meta.dtype, to = y->meta.dtype;
    return launch(run, &args, from == SL_F64 || to == SL_F64 || is_integer(from) || is_integer(to));
}

__global__ void fill(const __grid_constant__ tensor_view y, int64_t count, double value, bool add)
{
    FOR_EACH_ELEMENT (i, count)
        store<double>(y.data, y.dtype, y.offset(i), value, add);
}

static sl_status concat(const cuda_run *run)
{
    sl_status status = SL_OK;
    const sl_kernel_call *call = run->call;
    const sl_view *y = sl_call_output(call, 0);
    int64_t start = 0; // along attrs.dim of y
    for (int i = 0; i < call->input_count; i++) {
        const sl_view *x = sl_call_input(call, i);
        sl_view part = *y;
        part.meta.shape = x->meta.shape;
        part.data = (char *)y->data + start * y->meta.strides[call->attrs.dim] * (int64_t)sl_dtype_size(y->meta.dtype);
        SL_TRY(move(run, x, &part, sl_call_accumulates(call, 0)));
        start += x->meta.shape.dims[call->attrs.dim];
    }
done:
    return status;
}

sl_status cuda_copy(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *y = sl_call_output(call, 0);
    int64_t count = sl_meta_count(&y->meta);
    if (count == 0)
        return SL_OK;
    if (call->op == SL_OP_CONCAT)
        return concat(run);
    if (call->op != SL_OP_FILL)
        return move(run, sl_call_input(call, 0), y, sl_call_accumulates(call, 0));
    fill<<<element_blocks(count), BLOCK, 0, run->stream>>>(merged(y, 0), count, call->attrs.alpha,
                                                           sl_call_accumulates(call, 0));
    return launched("fill kernel");
}
