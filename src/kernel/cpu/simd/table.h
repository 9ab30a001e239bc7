/* The table of one instruction set; simd_*.c gives its name and includes the vectors before this. */
#include "kernel/cpu/simd.h"

#include <math.h>
#include <string.h>

#include "kernel/cpu/simd/math.h"
#include "kernel/cpu/simd/elementwise.h"
#include "kernel/cpu/simd/reduce.h"
#include "kernel/cpu/simd/norm.h"
#include "kernel/cpu/simd/softmax.h"
#include "kernel/cpu/simd/optim.h"
#include "kernel/cpu/simd/gemm.h"
#include "kernel/cpu/simd/pack.h"

const sl_simd SIMD_TABLE = {
    .name = V_NAME,
    .width = VW,
    .unary = simd_unary,
    .unary_bf16 = simd_unary_bf16,
    .binary = simd_binary,
    .binary_bf16 = simd_binary_bf16,
    .swiglu = simd_swiglu,
    .swiglu_bf16 = simd_swiglu_bf16,
    .swiglu_grad = simd_swiglu_grad,
    .swiglu_grad_bf16 = simd_swiglu_grad_bf16,
    .layernorm = simd_layernorm,
    .layernorm_grad_x = simd_layernorm_grad_x,
    .rmsnorm = simd_rmsnorm,
    .rmsnorm_grad_x = simd_rmsnorm_grad_x,
    .norm_grad_w = simd_norm_grad_w,
    .softmax = simd_softmax,
    .softmax_grad = simd_softmax_grad,
    .add_exp = simd_add_exp,
    .scaled_exp = simd_scaled_exp,
    .rotate = simd_rotate,
    .fill = simd_fill,
    .sum = simd_sum,
    .highest = simd_highest,
    .dot = simd_dot,
    .dot_bf16 = simd_dot_bf16,
    .axpy = simd_axpy,
    .square_sum = simd_square_sum,
    .sum_rows = simd_sum_rows,
    .sum_bf16_rows = simd_sum_bf16_rows,
    .to_half = simd_to_half,
    .from_half = simd_from_half,
    .dropout = simd_dropout,
    .adamw = simd_adamw,
    .sgd = simd_sgd,
    .small_gemm = simd_small_gemm,
    .transpose = simd_transpose,
    .highest_score = simd_highest_score,
    .softmax_row = simd_softmax_row,
    .attention_row_grad = simd_attention_row_grad,
    .split_rows = simd_split_rows,
    .join_halves = simd_join_halves,
    .tile = &simd_tile,
    .put_tile = simd_put_tile,
    .fma_flops = 2 * CHAINS * VW,
    .fma_rounds = simd_fma_rounds,
};
