/* A product in cuBLASLt's terms: blas.c makes and runs it, blas_candidates.c finds algorithms for it, blas_trial.c compares
 * them, blas_choose.c keeps what was found. */
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
    struct blas_choice *next;
} blas_choice;

struct cuda_blas {
    cublasLtHandle_t handle;
    int multiprocessors;
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

/* An algorithm that may be taken. */
typedef struct blas_candidate {
    cublasLtMatmulAlgo_t algorithm;
    bool takes_part; /* it runs, with the bits of the first */
    double seconds;  /* the least of its runs; 0: none yet */
} blas_candidate;

enum { BLAS_CANDIDATES = 128 };
typedef struct blas_candidates {
    blas_candidate items[BLAS_CANDIDATES];
    int count;
} blas_candidates;

sl_status cuda_blas_check(cublasStatus_t result, const char *what);

/* Makes the descriptors of the problem; cuda_blas_forget() frees them, also those of a failed attempt. */
sl_status cuda_blas_describe(blas_problem *problem);
void cuda_blas_forget(blas_problem *problem);

cublasStatus_t cuda_blas_start(cublasLtHandle_t handle, const blas_problem *problem,
                               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                               cudaStream_t stream);

/* Whether a product can take a GPU to its power limit. */
bool cuda_blas_is_large(const blas_shape *shape);
/* What its tiles read for each result, 1/m + 1/n for a tile of m x n; 1 if the tile is not known. */
double cuda_blas_reads_of(const cublasLtMatmulAlgo_t *algorithm);

/* Algorithms for the problem: what cuBLASLt's heuristics propose and, if `more` and the product is large, others that might be
 * faster. The first is the heuristics' first, the same each time. *out starts as zero. */
sl_status cuda_blas_collect(const cuda_blas *blas, const blas_problem *problem, size_t bytes, bool more,
                            blas_candidates *out);
/* Whether an algorithm runs the problem in the workspace, and adds up parts in order if it has any. */
bool cuda_blas_is_sound(const cuda_blas *blas, const blas_problem *problem, const cublasLtMatmulAlgo_t *algorithm,
                        size_t bytes);

enum { BLAS_ALGORITHM_TEXT = 160 };
/* What an algorithm is, for the log. */
char *cuda_blas_algorithm_text(const cublasLtMatmulAlgo_t *algorithm, char text[BLAS_ALGORITHM_TEXT]);

/* The number of the candidate to take; -1 if there is no memory to try them in. */
int cuda_blas_try(const cuda_blas *blas, const blas_problem *problem, size_t bytes, cudaStream_t stream,
                  blas_candidates *all);

/* The choice for the problem, which stays as it is: from this start, from an earlier one, or found now. bytes: of the
 * workspace; 0: the first that is proposed is taken, untimed. */
sl_status cuda_blas_choose(cuda_blas *blas, const blas_problem *problem, size_t bytes, cudaStream_t stream,
                           const blas_choice **out);

#endif
