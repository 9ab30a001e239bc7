/* A product in cuBLASLt's terms: blas.c makes and runs it, blas_choose.c finds the algorithm. */
#ifndef SL_CUDA_BLAS_PROBLEM_H
#define SL_CUDA_BLAS_PROBLEM_H

#include "cuda/blas.h"
#include "device/choices.h"
#include "kernel/gpu_scratch.h"

#include <cublasLt.h>

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
    size_t workspace; /* that the algorithm needs */
    struct blas_choice *next;
} blas_choice;

struct cuda_blas {
    cublasLtHandle_t handle;
    bool tries; /* algorithms; else the first that is proposed is taken */
    blas_choice *choices;
    sl_choices *saved; /* of earlier starts */
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

sl_status cuda_blas_check(cublasStatus_t result, const char *what);

/* Makes the descriptors of the problem; cuda_blas_forget() frees them, also those of a failed attempt. */
sl_status cuda_blas_describe(blas_problem *problem);
void cuda_blas_forget(blas_problem *problem);

cublasStatus_t cuda_blas_start(cublasLtHandle_t handle, const blas_problem *problem,
                               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                               cudaStream_t stream);

/* The choice for the problem, which stays as it is: from this start, from an earlier one, or found now. bytes: of the
 * workspace; 0: the first that is proposed is taken, untimed. */
sl_status cuda_blas_choose(cuda_blas *blas, const blas_problem *problem, size_t bytes, cudaStream_t stream,
                           const blas_choice **out);

#endif
