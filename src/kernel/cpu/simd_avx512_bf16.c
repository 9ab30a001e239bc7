/* The loops of simd.h for machines with AVX512-BF16 besides: they round to bf16 in one instruction. */
#include "kernel/cpu/simd/vec_avx512.h"

#define SIMD_TABLE sl_simd_avx512_bf16
#include "kernel/cpu/simd/table.h"
