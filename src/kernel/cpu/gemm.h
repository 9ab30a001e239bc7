/* Matrix products: our own, or through a BLAS library. */
#ifndef SL_KERNEL_CPU_GEMM_H
#define SL_KERNEL_CPU_GEMM_H

#include "kernel/cpu/cpu.h"
#include "kernel/cpu/tile.h"

/* C[m,n] = A[m,k] B[k,n] + bias, or += with add. A, B and C are f32, bf16 or f16; sums are f32. */
typedef struct sl_gemm {
    int64_t m, n, k;
    sl_factor a, b;
    const void *packed_b; /* b as sl_gemm_pack left it; NULL: it is packed anew */
    void *c;              /* rows are contiguous and c_row apart */
    sl_dtype c_dtype;
    int64_t c_row;
    const float *bias; /* n numbers, or NULL */
    bool add;
} sl_gemm;

/* Bytes of scratch of the product on the calling thread alone. Pointers may be NULL. */
size_t sl_gemm_scratch(const sl_gemm *g);
void sl_gemm_run(const sl_simd *simd, const sl_gemm *g, void *scratch);

/* Shared out among the threads. */
size_t sl_gemm_scratch_split(const sl_cpu *cpu, const sl_gemm *g);
void sl_gemm_run_split(const sl_cpu *cpu, const sl_gemm *g, void *scratch);

/* B packed once, for all products with this B and the same element types, whatever their rows are. 0 bytes: it is not worth
 * it, or BLAS has the product. */
size_t sl_gemm_packed_bytes(const sl_gemm *g);
void sl_gemm_pack(const sl_cpu *cpu, const sl_gemm *g, void *to);

/* Our own product on `parts` threads of the pool; NULL: on the calling thread. */
int sl_product_parts(const sl_cpu *cpu, const sl_gemm *g);
size_t sl_product_scratch(const sl_gemm *g, int parts);
void sl_product_run(sl_pool *pool, int parts, const sl_simd *simd, const sl_gemm *g, void *scratch);
size_t sl_product_packed_bytes(const sl_gemm *g);
void sl_product_pack(sl_pool *pool, const sl_gemm *g, void *to);

#endif
