/* The loops of simd.h for any machine. */
#include "kernel/cpu/simd/vec_scalar.h"

#define SIMD_TABLE sl_simd_scalar
#include "kernel/cpu/simd/table.h"
