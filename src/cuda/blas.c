/* Products by cuBLASLt: which product a call is in its terms, and giving it to the stream. */
#include "cuda/blas_problem.h"

#include "cuda/clears.h"
#include "cuda/device.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sl_status cuda_blas_check(cublasStatus_t result, const char *what)
{
    return result == CUBLAS_STATUS_SUCCESS
               ? SL_OK
               : sl_fail(SL_ERR_STAGE, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(result));
}

/* Choices are good for this device and these versions alone. */
static sl_status open_choices(const struct cudaDeviceProp *properties, sl_choices **out)
{
    char scope[512], version[32];
    snprintf(scope, sizeof scope, "products, %s, %d multiprocessors, %s, workspace %zu", properties->name,
             properties->multiProcessorCount, cuda_blas_version(version, sizeof version), SL_GPU_PRODUCT_WORKSPACE);
    return cuda_host->choices_open(scope, out);
}

/* SLUICE_TRIALS=off: products take the first algorithm that is proposed, to measure or to look for an error. */
static sl_status read_trials(bool *out)
{
    const char *text = getenv("SLUICE_TRIALS");
    if (text && strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        return sl_fail(SL_ERR_ARGUMENT, "SLUICE_TRIALS is '%s': it can be on or off", text);
    *out = !text || strcmp(text, "on") == 0;
    return SL_OK;
}

sl_status cuda_blas_create(const struct cudaDeviceProp *properties, cuda_blas **out)
{
    sl_status status = SL_OK;
    cuda_blas *blas = NULL;
    SL_TRY(SL_NEW(blas));
    SL_TRY(read_trials(&blas->tries));
    SL_TRY(cuda_blas_check(cublasLtCreate(&blas->handle), "create a handle"));
    SL_TRY(open_choices(properties, &blas->saved));
    *out = blas;
    blas = NULL;
done:
    cuda_blas_destroy(blas);
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
    cuda_host->choices_close(blas->saved);
    if (blas->handle)
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
    if (args->bias && args->add && args->c.dtype != SL_F32) /* cuBLASLt would round before it adds the bias */
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
    SL_TRY(cuda_blas_check(
        cublasLtMatrixLayoutCreate(out, type, (uint64_t)operand->rows, (uint64_t)operand->columns, operand->leading),
        "describe a matrix"));
    if (batches > 1) {
        SL_TRY(cuda_blas_check(
            cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches),
            "set the number of products"));
        SL_TRY(cuda_blas_check(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                                &operand->batch, sizeof operand->batch),
                               "set the distance of products"));
    }
done:
    return status;
}

static sl_status set_attribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name, const void *value,
                               size_t bytes)
{
    return cuda_blas_check(cublasLtMatmulDescSetAttribute(description, name, value, bytes), "describe a product");
}

sl_status cuda_blas_describe(blas_problem *problem)
{
    sl_status status = SL_OK;
    const blas_shape *shape = &problem->shape;
    cublasOperation_t a = shape->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = shape->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t type = cuda_type(shape->dtype), d_type = cuda_type(shape->d_dtype);
    SL_TRY(cuda_blas_check(cublasLtMatmulDescCreate(&problem->description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                           "describe a product"));
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

void cuda_blas_forget(blas_problem *problem)
{
    for (int i = 0; i < 3; i++) {
        if (problem->layouts[i])
            cublasLtMatrixLayoutDestroy(problem->layouts[i]);
        problem->layouts[i] = NULL;
    }
    if (problem->description)
        cublasLtMatmulDescDestroy(problem->description);
    problem->description = NULL;
}

/* ---- Products -------------------------------------------------------------------------------- */

cublasStatus_t cuda_blas_start(cublasLtHandle_t handle, const blas_problem *problem,
                               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                               cudaStream_t stream)
{
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle, problem->description, &one, problem->a.data, problem->layouts[0], problem->b.data,
                          problem->layouts[1], problem->shape.adds ? &one : &zero, problem->d.data, problem->layouts[2],
                          (void *)problem->d.data, problem->layouts[2], algorithm, workspace, bytes, stream);
}

sl_status cuda_blas_prepare(cuda_blas *blas, const cuda_product_args *args, size_t bytes)
{
    sl_status status = SL_OK;
    blas_problem problem;
    const blas_choice *choice = NULL;
    memset(&problem, 0, sizeof problem);
    if (bytes == 0 || !take_problem(args, &problem))
        return SL_OK;
    SL_TRY(cuda_blas_describe(&problem));
    SL_TRY(cuda_blas_choose(blas, &problem, bytes, cudaStreamPerThread, &choice));
done:
    cuda_blas_forget(&problem);
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
    SL_TRY(cuda_blas_describe(&problem));
    SL_TRY(cuda_blas_choose(run->blas, &problem, bytes, run->stream, &choice));
    if (choice->usable) {
        void *clears = cuda_clears_take(run->device, run->stream, choice->workspace);
        if (clears) {
            workspace = clears;
            bytes = choice->workspace;
        }
        SL_TRY(cuda_blas_check(
            cuda_blas_start(run->blas->handle, &problem, &choice->algorithm, workspace, bytes, run->stream),
            "multiply"));
        *done_by_blas = true;
    }
done:
    cuda_blas_forget(&problem);
    return status;
}
