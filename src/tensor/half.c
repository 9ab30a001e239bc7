/* bf16 and f16 to and from f32, for callers outside. */
#include <sluice/tensor.h>

#include "base/half.h"

uint16_t sl_bf16_from_f32(float value)
{
    return sl_to_bf16(value);
}

float sl_bf16_to_f32(uint16_t bits)
{
    return sl_from_bf16(bits);
}

uint16_t sl_f16_from_f32(float value)
{
    return sl_to_f16(value);
}

float sl_f16_to_f32(uint16_t bits)
{
    return sl_from_f16(bits);
}
