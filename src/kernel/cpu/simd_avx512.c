/* The loops of simd.h for machines with AVX-512 F, DQ, BW and VL. */
#include "kernel/cpu/simd/vec_avx512.h"

#define SIMD_TABLE sl_simd_avx512
#include "kernel/cpu/simd/table.h"
