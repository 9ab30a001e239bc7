/* OpenBLAS, or another BLAS library: for machines that our own product has no fast tile for, and for whoever names one. */
#ifndef SL_KERNEL_CPU_BLAS_H
#define SL_KERNEL_CPU_BLAS_H

#include <sluice/base.h>

/* cblas_sgemm, found once a process; NULL if there is none or our own product is to be used: with AVX2 or better, unless
 * SLUICE_BLAS names a library. SLUICE_BLAS=none never uses one. */
typedef void (*sl_cblas_sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
sl_cblas_sgemm sl_blas_sgemm(void);
/* Call it before products that up to that many threads run at once: an error if the address space is limited
 * (ulimit -v) and has no room for OpenBLAS's buffers, which it would try to map for ever. */
SL_MUST_CHECK sl_status sl_blas_reserve(int threads);
const char *sl_blas_name(void); /* "OpenBLAS 0.3.21 SkylakeX", "own products" */
/* For tests and measurements: take or leave BLAS from now on, whatever the machine is. Not while kernels run. */
void sl_blas_enable(bool enabled);

#endif
