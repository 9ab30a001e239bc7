/* The loops of simd.h for machines with AVX2, FMA and F16C. */
#include "kernel/cpu/simd/vec_avx2.h"

#define SIMD_TABLE sl_simd_avx2
#include "kernel/cpu/simd/table.h"
