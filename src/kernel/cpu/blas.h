/* Matrix products: through OpenBLAS if it is installed, else by our own packed product. */
#ifndef SL_KERNEL_CPU_BLAS_H
#define SL_KERNEL_CPU_BLAS_H

#include "kernel/cpu/cpu.h"

/* C[m,n] = A[m,k] B[k,n], or += with add. Element (i, l) of A is a[i * a_row + l * a_column], and so on: any strides.
 */
typedef struct sl_gemm {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_column;
    const float *b;
    int64_t b_row, b_column;
    float *c;
    int64_t c_row, c_column;
    bool add;
} sl_gemm;

/* Bytes of scratch that one thread needs for the product; 0 if BLAS takes it. Pointers may be NULL. */
size_t sl_gemm_scratch(const sl_simd *simd, const sl_gemm *g);

/* On the calling thread alone. */
void sl_gemm_run(const sl_simd *simd, const sl_gemm *g, void *scratch);

/* The rows or columns of C shared out among the threads, whose scratch lies one after the other. */
void sl_gemm_run_split(const sl_cpu *cpu, const sl_gemm *g, void *scratch);
size_t sl_gemm_scratch_split(const sl_cpu *cpu, const sl_gemm *g);

/* Our own product, blocked for the caches; the scratch is never 0. */
size_t sl_packed_gemm_scratch(const sl_simd *simd, const sl_gemm *g);
void sl_packed_gemm_run(const sl_simd *simd, const sl_gemm *g, void *scratch);

/* cblas_sgemm, found once a process; NULL if there is none or it was switched off.
 * SLUICE_BLAS names another library, or "none". */
typedef void (*sl_cblas_sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
sl_cblas_sgemm sl_blas_sgemm(void);
/* Call it before products that up to that many threads run at once: an error if the address space is limited
 * (ulimit -v) and has no room for OpenBLAS's buffers, which it would try to map for ever. */
SL_MUST_CHECK sl_status sl_blas_reserve(int threads);
const char *sl_blas_name(void); /* "OpenBLAS 0.3.21 SkylakeX", "own sgemm" */
/* For tests and measurements: take or leave BLAS from now on. Not while kernels run. */
void sl_blas_enable(bool enabled);

#endif
