/* The CUDA module from the inside: what its C files and its kernels know of each other. */
#ifndef SL_CUDA_CUDA_H
#define SL_CUDA_CUDA_H

#include <sluice/kernel.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_blas cuda_blas;     /* blas.c */
typedef struct cuda_dnn cuda_dnn;       /* dnn.c */
typedef struct cuda_device cuda_device; /* device.c */

/* What a kernel found wrong in its data: an index out of range. Lies in memory that host and device see; the first one
 * to find something takes the lock, which is in device memory. */
typedef struct cuda_fault {
    int32_t found;
    int32_t what; /* cuda_fault_kind */
    int32_t op;
    const char *node;
    int64_t value, element, limit;
} cuda_fault;

typedef enum cuda_fault_kind {
    CUDA_FAULT_ID,
    CUDA_FAULT_TARGET,
    CUDA_FAULT_POSITION,
    CUDA_FAULT_CACHE
} cuda_fault_kind;

/* How a kernel reports: by value with its arguments. */
typedef struct cuda_reporter {
    cuda_fault *fault;
    int32_t *lock;
    int32_t op;
    const char *node;
} cuda_reporter;

/* One call on its way to the GPU. */
typedef struct cuda_run {
    cudaStream_t stream;
    const sl_kernel_call *call;
    cuda_reporter reporter;
    int multiprocessors;
    cuda_blas *blas;
    cuda_dnn *dnn;
    cuda_device *device;
} cuda_run;

/* SL_OK, or CUDA's own words with what failed. */
sl_status cuda_check(cudaError_t error, const char *what);

/* Device memory to device memory, in the order of the stream. */
cudaError_t cuda_copy_bytes(void *to, const void *from, size_t bytes, int multiprocessors, cudaStream_t stream);

/* A node of a graph that does what a memset node does, but by a kernel. */
cudaError_t cuda_add_fill(cudaGraph_t graph, const cudaGraphNode_t *before, size_t count,
                          const struct cudaMemsetParams *set, cudaGraphNode_t *out);

/* ---- Kernels: each gives its call to the stream --------------------------------------------- */

typedef sl_status (*cuda_kernel)(const cuda_run *run);

sl_status cuda_elementwise(const cuda_run *run); /* all ops that work element by element, and their gradients */
sl_status cuda_copy(const cuda_run *run);        /* COPY, CAST, FILL, CONCAT */
sl_status cuda_dropout(const cuda_run *run);
sl_status cuda_rope(const cuda_run *run);        /* any strides and element types */
sl_status cuda_rope_eights(const cuda_run *run); /* by cuda_rope, if it does not fit */
sl_status cuda_norm(const cuda_run *run);        /* LAYERNORM, RMSNORM */
sl_status cuda_norm_grad_x(const cuda_run *run);
sl_status cuda_norm_grad_w(const cuda_run *run);
sl_status cuda_softmax(const cuda_run *run); /* and its gradient */
sl_status cuda_cross_entropy(const cuda_run *run);
sl_status cuda_cross_entropy_grad(const cuda_run *run);
sl_status cuda_embedding(const cuda_run *run);
sl_status cuda_embedding_grad(const cuda_run *run);
sl_status cuda_reduce(const cuda_run *run); /* SUM_TO, SUM, MEAN, MAX */
sl_status cuda_max_grad(const cuda_run *run);
sl_status cuda_square_sum(const cuda_run *run);
sl_status cuda_clip(const cuda_run *run);
sl_status cuda_optim(const cuda_run *run); /* ADAMW, SGD */
/* Fused ops: *is_done stays false if the call is to be run as what it stands for. */
sl_status cuda_add_norm(const cuda_run *run, bool *is_done);
sl_status cuda_norm_grad(const cuda_run *run, bool *is_done);
sl_status cuda_gelu_grad_sum(const cuda_run *run, bool *is_done);
sl_status cuda_rope_pair(const cuda_run *run, bool *is_done);
/* The first calls of a list, as many as go in one launch; *taken may be 0. run->call is not used. */
sl_status cuda_adamw_many(const cuda_run *run, const sl_kernel_call *calls, int count, int *taken);
sl_status cuda_square_sum_many(const cuda_run *run, const sl_kernel_call *calls, int count, int *taken);
sl_status cuda_attention(const cuda_run *run);
sl_status cuda_attention_grad(const cuda_run *run);
sl_status cuda_attention_cached(const cuda_run *run);
/* By the matrix units of sm_90a, if sl_gpu_wgmma_fits; *is_done stays false if a tensor is not aligned. */
sl_status cuda_attention_grad_wgmma(const cuda_run *run, bool *is_done);
sl_status cuda_product(const cuda_run *run); /* LINEAR*, MATMUL: by cuBLASLt, or if it cannot by cuda_plain_product */

/* ---- Products -------------------------------------------------------------------------------- */

/* c[batch][m][n] (+)= a[batch][m][k] * b[batch][k][n] + bias[n], all with strides in elements. */
typedef struct cuda_matrix {
    void *data;
    int32_t dtype;
    int64_t rows, columns; /* strides */
} cuda_matrix;

typedef struct cuda_product_args {
    cuda_matrix a, b, c;
    const void *bias; /* NULL: none */
    int32_t bias_dtype;
    int64_t bias_stride;
    int64_t m, n, k;
    /* Leading dims of c, and the strides of all three along them. */
    int32_t batch_rank;
    int64_t batch_count;
    int64_t batch_dims[SL_MAX_DIMS], batch_a[SL_MAX_DIMS], batch_b[SL_MAX_DIMS], batch_c[SL_MAX_DIMS];
    bool add;
} cuda_product_args;

/* One thread an element, tiles in shared memory: any strides, any element types. */
sl_status cuda_plain_product(const cuda_run *run, const cuda_product_args *args);

/* Called by blas.c while it compares algorithms. */
void cuda_fill_random(cudaStream_t stream, void *data, int32_t dtype, int64_t count);
void cuda_count_different(cudaStream_t stream, const void *a, const void *b, int64_t bytes, int32_t *count);

#ifdef __cplusplus
}
#endif
#endif
