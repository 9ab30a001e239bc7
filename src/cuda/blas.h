/* Products by cuBLASLt. */
#ifndef SL_CUDA_BLAS_H
#define SL_CUDA_BLAS_H

#include "cuda/cuda.h"

sl_status cuda_blas_create(cuda_blas **out);
void cuda_blas_destroy(cuda_blas *blas); /* NULL is fine */
char *cuda_blas_version(char *text, size_t size);

/* Gives the product to the stream and sets *done, or leaves it false if cuBLASLt cannot do it. */
sl_status cuda_blas_multiply(const cuda_run *run, const cuda_product_args *args, void *workspace, size_t bytes,
                             bool *done);

#endif
