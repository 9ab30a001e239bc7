/* Products by cuBLASLt. */
#ifndef SL_CUDA_BLAS_H
#define SL_CUDA_BLAS_H

#include "cuda/cuda.h"

sl_status cuda_blas_create(const struct cudaDeviceProp *properties, cuda_blas **out);
void cuda_blas_destroy(cuda_blas *blas); /* NULL is fine */
char *cuda_blas_version(char *text, size_t size);

/* Chooses the algorithm of a product that is large enough to have a workspace; its addresses count by alignment alone.
 * Called while a program is planned, so that a run has nothing to try. */
sl_status cuda_blas_prepare(cuda_blas *blas, const cuda_product_args *args, size_t bytes);

/* Gives the product to the stream and sets *done, or leaves it false if cuBLASLt cannot do it. */
sl_status cuda_blas_multiply(const cuda_run *run, const cuda_product_args *args, void *workspace, size_t bytes,
                             bool *done);

/* cuda_blas_prepare for a call, LINEAR* or MATMUL, whose tensors need no memory yet: products.c. */
sl_status cuda_product_prepare(cuda_blas *blas, const sl_kernel_call *call);

#endif
