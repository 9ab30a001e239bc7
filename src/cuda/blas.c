/* Products by cuBLASLt. Of the algorithms that its heuristics propose for a shape, those are timed once that give the
 * bits of the first, and the fastest is kept: so time decides about speed and never about results. */
#include "cuda/blas.h"

#include "cuda/device.h"

#include "base/alloc.h"

#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

enum { CANDIDATES = 8, ROUNDS = 4 };

/* One product as cuBLASLt sees it, by columns: d (m x n) = op(a) op(b) + bias. What the choice of an algorithm may depend
 * on; leading dims do not count, so that a view and its copy get the same. */
typedef struct blas_shape {
    int32_t transpose_a, transpose_b, dtype, d_dtype, bias, adds, aligned, batches;
    int64_t m, n, k;
} blas_shape;

typedef struct blas_choice {
    blas_shape shape;
    bool usable;
    cublasLtMatmulAlgo_t algorithm;
    struct blas_choice *next;
} blas_choice;

struct cuda_blas {
    cublasLtHandle_t handle;
    blas_choice *choices;
};

typedef struct blas_operand {
    const void *data;
    int64_t rows, columns, leading, batch; /* as it lies in memory, by columns; batch: elements to the next product */
} blas_operand;

typedef struct blas_problem {
    blas_shape shape;
    blas_operand a, b, d;
    const void *bias;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t layouts[3];
} blas_problem;

static sl_status check(cublasStatus_t result, const char *what)
{
    return result == CUBLAS_STATUS_SUCCESS
               ? SL_OK
               : sl_fail(SL_ERR_STAGE, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(result));
}

sl_status cuda_blas_create(cuda_blas **out)
{
    sl_status status = SL_OK;
    cuda_blas *blas = NULL;
    SL_TRY(SL_NEW(blas));
    SL_TRY(check(cublasLtCreate(&blas->handle), "create a handle"));
    *out = blas;
    blas = NULL;
done:
    sl_free(blas);
    return status;
}

void cuda_blas_destroy(cuda_blas *blas)
{
    if (!blas)
        return;
    while (blas->choices) {
        blas_choice *next = blas->choices->next;
        sl_free(blas->choices);
        blas->choices = next;
    }
    cublasLtDestroy(blas->handle);
    sl_free(blas);
}

char *cuda_blas_version(char *text, size_t size)
{
    size_t version = cublasLtGetVersion();
    snprintf(text, size, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    return text;
}

/* ---- Problems -------------------------------------------------------------------------------- */

/* A matrix of which one dim is contiguous, by columns; *transposed if it must be turned to be rows x columns. */
static bool take_operand(const cuda_matrix *matrix, int64_t rows, int64_t columns, blas_operand *out,
                         int32_t *transposed)
{
    int64_t row_stride = rows == 1 ? 1 : matrix->rows, column_stride = columns == 1 ? 1 : matrix->columns;
    out->data = matrix->data;
    *transposed = row_stride != 1;
    if (row_stride == 1) {
        out->rows = rows;
        out->columns = columns;
        out->leading = columns == 1 ? rows : column_stride;
    } else if (column_stride == 1) {
        out->rows = columns;
        out->columns = rows;
        out->leading = row_stride;
    } else {
        return false;
    }
    return out->leading >= out->rows && out->rows <= INT32_MAX && out->columns <= INT32_MAX;
}

static bool is_aligned(const blas_operand *operand, size_t size)
{
    return ((uintptr_t)operand->data | (uintptr_t)operand->leading * size | (uintptr_t)operand->batch * size) % 16 == 0;
}

static cudaDataType_t cuda_type(int32_t dtype)
{
    return dtype == SL_F32 ? CUDA_R_32F : dtype == SL_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* c by rows is its transpose by columns: c' = b' a'. */
static bool take_problem(const cuda_product_args *args, blas_problem *out)
{
    const cuda_matrix *left = &args->b, *right = &args->a, *result = &args->c;
    int64_t m = args->n, n = args->m;
    int32_t turned = 0;
    int32_t type = args->a.dtype;
    bool by_rows = args->c.columns == 1 || args->n == 1;
    blas_shape *shape = &out->shape;
    if (args->b.dtype != type || (type != SL_F32 && type != SL_BF16 && type != SL_F16) ||
        (args->c.dtype != type && args->c.dtype != SL_F32) || args->m == 0 || args->n == 0 || args->k == 0 ||
        args->batch_count == 0 || args->batch_rank > 1)
        return false;
    if (args->bias && (!by_rows || args->bias_dtype != args->c.dtype || args->bias_stride != 1))
        return false;
    if (by_rows) { /* the left operand is b', which is m x k */
        cuda_matrix first = { left->data, left->dtype, left->columns, left->rows };
        cuda_matrix second = { right->data, right->dtype, right->columns, right->rows };
        cuda_matrix third = { result->data, result->dtype, result->columns, result->rows };
        if (!take_operand(&first, m, args->k, &out->a, &shape->transpose_a) ||
            !take_operand(&second, args->k, n, &out->b, &shape->transpose_b) ||
            !take_operand(&third, m, n, &out->d, &turned) || turned)
            return false;
        out->a.batch = args->batch_rank ? args->batch_b[0] : 0;
        out->b.batch = args->batch_rank ? args->batch_a[0] : 0;
    } else {
        m = args->m;
        n = args->n;
        if (!take_operand(&args->a, m, args->k, &out->a, &shape->transpose_a) ||
            !take_operand(&args->b, args->k, n, &out->b, &shape->transpose_b) ||
            !take_operand(&args->c, m, n, &out->d, &turned) || turned)
            return false;
        out->a.batch = args->batch_rank ? args->batch_a[0] : 0;
        out->b.batch = args->batch_rank ? args->batch_b[0] : 0;
    }
    out->d.batch = args->batch_rank ? args->batch_c[0] : 0;
    out->bias = args->bias;
    shape->dtype = type;
    shape->d_dtype = args->c.dtype;
    shape->bias = args->bias != NULL;
    shape->adds = args->add;
    shape->batches = (int32_t)args->batch_count;
    shape->m = m;
    shape->n = n;
    shape->k = args->k;
    size_t size = sl_dtype_size((sl_dtype)type), d_size = sl_dtype_size((sl_dtype)args->c.dtype);
    shape->aligned = is_aligned(&out->a, size) && is_aligned(&out->b, size) && is_aligned(&out->d, d_size) &&
                     (uintptr_t)args->bias % 16 == 0;
    return true;
}

static sl_status make_layout(const blas_operand *operand, cudaDataType_t type, int32_t batches,
                             cublasLtMatrixLayout_t *out)
{
    sl_status status = SL_OK;
    SL_TRY(check(
        cublasLtMatrixLayoutCreate(out, type, (uint64_t)operand->rows, (uint64_t)operand->columns, operand->leading),
        "describe a matrix"));
    if (batches > 1) {
        SL_TRY(
            check(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches),
                  "set the number of products"));
        SL_TRY(check(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                      &operand->batch, sizeof operand->batch),
                     "set the distance of products"));
    }
done:
    return status;
}

static sl_status set_attribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name, const void *value,
                               size_t bytes)
{
    return check(cublasLtMatmulDescSetAttribute(description, name, value, bytes), "describe a product");
}

static sl_status describe(blas_problem *problem)
{
    sl_status status = SL_OK;
    const blas_shape *shape = &problem->shape;
    cublasOperation_t a = shape->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = shape->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t type = cuda_type(shape->dtype), d_type = cuda_type(shape->d_dtype);
    SL_TRY(
        check(cublasLtMatmulDescCreate(&problem->description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product"));
    SL_TRY(set_attribute(problem->description, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    SL_TRY(set_attribute(problem->description, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    if (problem->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        SL_TRY(set_attribute(problem->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        SL_TRY(set_attribute(problem->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &problem->bias,
                             sizeof problem->bias));
        SL_TRY(set_attribute(problem->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &d_type, sizeof d_type));
    }
    SL_TRY(make_layout(&problem->a, type, shape->batches, &problem->layouts[0]));
    SL_TRY(make_layout(&problem->b, type, shape->batches, &problem->layouts[1]));
    SL_TRY(make_layout(&problem->d, d_type, shape->batches, &problem->layouts[2]));
done:
    return status;
}

static void forget(blas_problem *problem)
{
    for (int i = 0; i < 3; i++) {
        if (problem->layouts[i])
            cublasLtMatrixLayoutDestroy(problem->layouts[i]);
    }
    if (problem->description)
        cublasLtMatmulDescDestroy(problem->description);
}

/* ---- Choices --------------------------------------------------------------------------------- */

static sl_status propose(const cuda_blas *blas, const blas_problem *problem, size_t workspace,
                         cublasLtMatmulHeuristicResult_t found[CANDIDATES], int *count)
{
    sl_status status = SL_OK;
    cublasLtMatmulPreference_t preference = NULL;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* parts in the workspace, added in order */
    uint32_t alignment = problem->shape.aligned ? 16 : (uint32_t)sl_dtype_size((sl_dtype)problem->shape.dtype);
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES };
    SL_TRY(check(cublasLtMatmulPreferenceCreate(&preference), "ask for algorithms"));
    SL_TRY(check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                      sizeof workspace),
                 "ask for algorithms"));
    SL_TRY(check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &reduction, sizeof reduction),
                 "ask for algorithms"));
    for (int i = 0; i < 4; i++)
        SL_TRY(check(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment),
                     "ask for algorithms"));
    if (cublasLtMatmulAlgoGetHeuristic(blas->handle, problem->description, problem->layouts[0], problem->layouts[1],
                                       problem->layouts[2], problem->layouts[2], preference, CANDIDATES, found,
                                       count) != CUBLAS_STATUS_SUCCESS)
        *count = 0; /* none: not an error */
done:
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static cublasStatus_t multiply(const cuda_blas *blas, const blas_problem *problem,
                               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                               cudaStream_t stream)
{
    const float one = 1, zero = 0;
    return cublasLtMatmul(blas->handle, problem->description, &one, problem->a.data, problem->layouts[0],
                          problem->b.data, problem->layouts[1], problem->shape.adds ? &one : &zero, problem->d.data,
                          problem->layouts[2], (void *)problem->d.data, problem->layouts[2], algorithm, workspace,
                          bytes, stream);
}

/* Memory to try algorithms in. */
typedef struct blas_trial {
    blas_problem problem; /* with operands of its own */
    void *a, *b, *d, *first;
    int32_t *different;
    size_t d_bytes;
    cudaEvent_t begin, end;
} blas_trial;

static size_t span(const blas_operand *operand, int32_t batches, int32_t dtype)
{
    int64_t one = (operand->columns - 1) * operand->leading + operand->rows;
    return (size_t)((batches - 1) * operand->batch + one) * sl_dtype_size((sl_dtype)dtype);
}

static void close_trial(blas_trial *trial)
{
    cudaFree(trial->a);
    cudaFree(trial->b);
    cudaFree(trial->d);
    cudaFree(trial->first);
    cudaFree(trial->different);
    if (trial->begin)
        cudaEventDestroy(trial->begin);
    if (trial->end)
        cudaEventDestroy(trial->end);
}

static bool open_trial(const blas_problem *problem, cudaStream_t stream, blas_trial *trial)
{
    const blas_shape *shape = &problem->shape;
    size_t a = span(&problem->a, shape->batches, shape->dtype), b = span(&problem->b, shape->batches, shape->dtype);
    trial->problem = *problem;
    trial->d_bytes = span(&problem->d, shape->batches, shape->d_dtype);
    if (cudaMalloc(&trial->a, a) != cudaSuccess || cudaMalloc(&trial->b, b) != cudaSuccess ||
        cudaMalloc(&trial->d, trial->d_bytes) != cudaSuccess ||
        cudaMalloc(&trial->first, trial->d_bytes) != cudaSuccess ||
        cudaMalloc((void **)&trial->different, sizeof(int32_t)) != cudaSuccess ||
        cudaEventCreate(&trial->begin) != cudaSuccess || cudaEventCreate(&trial->end) != cudaSuccess)
        return false;
    cuda_fill_random(stream, trial->a, shape->dtype, (int64_t)(a / sl_dtype_size((sl_dtype)shape->dtype)));
    cuda_fill_random(stream, trial->b, shape->dtype, (int64_t)(b / sl_dtype_size((sl_dtype)shape->dtype)));
    trial->problem.a.data = trial->a;
    trial->problem.b.data = trial->b;
    trial->problem.d.data = trial->d;
    return true;
}

/* Seconds of a candidate, and whether its bits are those of the first (which sets them); negative if it fails. */
static double try_candidate(const cuda_blas *blas, blas_trial *trial, const cublasLtMatmulAlgo_t *algorithm, bool first,
                            void *workspace, size_t bytes, cudaStream_t stream)
{
    int32_t different = 0;
    float milliseconds = 0, best = 1e9f;
    cudaMemsetAsync(trial->d, 0, trial->d_bytes, stream);
    if (multiply(blas, &trial->problem, algorithm, workspace, bytes, stream) != CUBLAS_STATUS_SUCCESS)
        return -1;
    if (first) {
        cudaMemcpyAsync(trial->first, trial->d, trial->d_bytes, cudaMemcpyDeviceToDevice, stream);
    } else {
        cudaMemsetAsync(trial->different, 0, sizeof different, stream);
        cuda_count_different(stream, trial->first, trial->d, (int64_t)trial->d_bytes, trial->different);
        cudaMemcpyAsync(&different, trial->different, sizeof different, cudaMemcpyDeviceToHost, stream);
    }
    for (int round = 0; round < ROUNDS; round++) {
        cudaEventRecord(trial->begin, stream);
        multiply(blas, &trial->problem, algorithm, workspace, bytes, stream);
        cudaEventRecord(trial->end, stream);
        if (cudaStreamSynchronize(stream) != cudaSuccess)
            return -1;
        cudaEventElapsedTime(&milliseconds, trial->begin, trial->end);
        best = milliseconds < best ? milliseconds : best;
    }
    return different ? -1 : (double)best * 1e-3;
}

/* The number of the candidate to take. */
static int fastest(const cuda_blas *blas, const blas_problem *problem, const cublasLtMatmulHeuristicResult_t *found,
                   int count, void *workspace, size_t bytes, cudaStream_t stream)
{
    blas_trial trial = { 0 };
    int chosen = 0, same = 0;
    double best = 0, top = 0;
    if (open_trial(problem, stream, &trial)) {
        for (int i = 0; i < count; i++) {
            double seconds = try_candidate(blas, &trial, &found[i].algo, i == 0, workspace, bytes, stream);
            top = i == 0 ? seconds : top;
            same += seconds > 0;
            if (seconds > 0 && (best == 0 || seconds < best)) {
                best = seconds;
                chosen = i;
            }
        }
        const blas_shape *shape = &problem->shape;
        cuda_host->log(SL_LOG_DEBUG,
                       "product %lld x %lld x %lld %s -> %s%s%s: %d of %d algorithms with the same bits, number %d "
                       "takes %.1f us (the first %.1f), %.0f TFLOP/s",
                       (long long)shape->m, (long long)shape->n, (long long)shape->k,
                       sl_dtype_name((sl_dtype)shape->dtype), sl_dtype_name((sl_dtype)shape->d_dtype),
                       shape->bias ? ", bias" : "", shape->adds ? ", adding" : "", same, count, chosen + 1, best * 1e6,
                       top * 1e6, 2e-12 * (double)shape->m * (double)shape->n * (double)shape->k / best);
    }
    (void)cudaGetLastError(); /* no memory to try in: the first is taken */
    close_trial(&trial);
    return chosen;
}

static sl_status choose(cuda_blas *blas, const blas_problem *problem, void *workspace, size_t bytes,
                        cudaStream_t stream, const blas_choice **out)
{
    sl_status status = SL_OK;
    blas_choice *choice = NULL;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count = 0;
    for (const blas_choice *known = blas->choices; known; known = known->next) {
        if (memcmp(&known->shape, &problem->shape, sizeof known->shape) == 0) {
            *out = known;
            return SL_OK;
        }
    }
    SL_TRY(SL_NEW(choice));
    choice->shape = problem->shape;
    SL_TRY(propose(blas, problem, bytes, found, &count));
    if (count > 0) {
        int chosen = count > 1 && bytes > 0 ? fastest(blas, problem, found, count, workspace, bytes, stream) : 0;
        choice->algorithm = found[chosen].algo;
        choice->usable = true;
    }
    choice->next = blas->choices;
    blas->choices = choice;
    *out = choice;
    choice = NULL;
done:
    sl_free(choice);
    return status;
}

sl_status cuda_blas_multiply(const cuda_run *run, const cuda_product_args *args, void *workspace, size_t bytes,
                             bool *done_by_blas)
{
    sl_status status = SL_OK;
    blas_problem problem;
    const blas_choice *choice = NULL;
    memset(&problem, 0, sizeof problem); /* padding too: shapes are compared as bytes */
    if (!take_problem(args, &problem))
        return SL_OK;
    SL_TRY(describe(&problem));
    SL_TRY(choose(run->blas, &problem, workspace, bytes, run->stream, &choice));
    if (choice->usable) {
        SL_TRY(check(multiply(run->blas, &problem, &choice->algorithm, workspace, bytes, run->stream), "multiply"));
        *done_by_blas = true;
    }
done:
    forget(&problem);
    return status;
}
