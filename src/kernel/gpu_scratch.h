/* Scratch memory of the kernels of a GPU. Plain C, and apart from them: the CUDA module takes it from here, and so does a
 * plan for a GPU that is not here. */
#ifndef SL_KERNEL_GPU_SCRATCH_H
#define SL_KERNEL_GPU_SCRATCH_H

#include <sluice/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SL_GPU_CHUNK_ROWS = 64,      /* rows whose column sums one block of threads adds up */
    SL_GPU_SQUARE_CHUNK = 32768, /* elements whose squares one block of threads adds up */
    SL_GPU_SCRATCH_ALIGNMENT = 256
};
#define SL_GPU_PRODUCT_WORKSPACE ((size_t)32 << 20)
#define SL_GPU_PRODUCT_WORTH_TUNING 1e9 /* operations of a product; below it has no workspace and nothing is timed */

/* Whether all dims but the last can be walked with one stride; *stride is that one. */
bool sl_gpu_rows_merge(const sl_meta *meta, int64_t *stride);
/* A product begins with its workspace. Its size does not depend on the layout. */
size_t sl_gpu_product_workspace(const sl_kernel_call *call);
/* LINEAR_GRAD_W: bytes for a copy of an input whose rows do not lie alike; 0 if it is used as it lies. */
size_t sl_gpu_packed_bytes(const sl_kernel_call *call, int input);

/* Whether our kernel for the matrix units takes this call of attention: all data is bf16, heads are at most 256 wide. */
bool sl_gpu_mma_fits(const sl_kernel_call *call);
/* ATTENTION_GRAD: scratch begins with a number for each query of each head. After it lie the bits of dropout that
 * one kernel draws and the other reads, a word for 64 weights of a query. */
size_t sl_gpu_deltas_bytes(const sl_kernel_call *call);

/* Whether our kernels for the matrix units of sm_90a take this call of ATTENTION_GRAD, if its tensors begin at multiples of
 * 16 bytes: bf16, heads of 64 or 128, a positive scale, without dropout, documents, windows and capped scores. */
bool sl_gpu_wgmma_fits(const sl_kernel_call *call);
/* They work on tiles of so many queries and keys. */
enum { SL_GPU_WGMMA_ROWS = 64 };
/* What they need: two f32 for each query, and a bf16 for each score of the tiles that count. */
size_t sl_gpu_wgmma_scratch(const sl_kernel_call *call);

/* Bytes that our own kernel of the op needs. */
size_t sl_gpu_scratch(const sl_kernel_call *call);

/* Whether cuDNN takes this call of attention or its gradient. */
bool sl_gpu_dnn_fits(const sl_kernel_call *call);
/* What it then needs, as far as that is known without asking it: in the deterministic form of the gradient its workspace
 * is a matrix of bf16 for each head. */
size_t sl_gpu_dnn_scratch(const sl_kernel_call *call);

#ifdef __cplusplus
}
#endif
#endif
