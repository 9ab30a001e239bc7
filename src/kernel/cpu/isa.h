/* Which instruction set the kernels use. */
#ifndef SL_KERNEL_CPU_ISA_H
#define SL_KERNEL_CPU_ISA_H

#include "kernel/cpu/simd.h"

/* In order: each needs all before it. REFERENCE runs the plain kernels alone; AVX512_BF16 adds products of bf16
 * to what AVX512 does, AMX has others for bf16 and for f32. */
typedef enum sl_isa {
    SL_ISA_REFERENCE,
    SL_ISA_SCALAR,
    SL_ISA_AVX2,
    SL_ISA_AVX512,
    SL_ISA_AVX512_BF16,
    SL_ISA_AMX,
    SL_ISA_COUNT
} sl_isa;

const char *sl_isa_name(sl_isa isa); /* "avx2" */
sl_isa sl_isa_best(void);            /* the best this machine can run */

/* The one in use: the best, or what SLUICE_ISA names (reference, scalar, avx2, avx512, avx512_bf16, amx) if the
 * machine has it. */
sl_isa sl_isa_get(void);
/* For tests: machines with AVX512-BF16 and without AMX offer AMX from now on, with these tiles. */
void sl_isa_emulate_amx(const sl_tile *f32, const sl_tile *bf16);
/* For tests: use another from now on; false if the machine cannot. Not while kernels run. */
bool sl_isa_set(sl_isa isa);

/* From now on what this thread asks for is as with this one, whether the machine has it or not, so that sizes can be
 * asked for; SL_ISA_COUNT: as it was. Nothing may run meanwhile. */
void sl_isa_ask_for(sl_isa isa);
bool sl_isa_is_asked_for(void);

/* The loops of the one in use; NULL for REFERENCE. */
const sl_simd *sl_isa_simd(void);
/* The tile for products of two operands, which may both be bf16; not for REFERENCE. */
const sl_tile *sl_isa_tile(bool bf16);

#endif
