/* Fused ops by the plain ones that they stand for: their definition, and how a device without a kernel for them runs
 * them. */
#ifndef SL_KERNEL_FUSED_H
#define SL_KERNEL_FUSED_H

#include "op/op.h"

#include <sluice/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_FUSED_PARTS = 3 };

typedef struct sl_fused_part {
    sl_kernel_call call; /* of inputs and outputs; scratch is that of the whole */
    sl_view inputs[SL_OP_INPUTS], outputs[SL_OP_OUTPUTS];
} sl_fused_part;

/* Writes the calls that the call stands for, in the order in which they run, and returns how many there are; 0 for a
 * plain op. Their views are those of the call; later parts may read what earlier ones wrote. */
int sl_fused_parts(const sl_kernel_call *call, sl_fused_part parts[SL_FUSED_PARTS]);

#ifdef __cplusplus
}
#endif
#endif
