/* bf16 and f16 to and from f32, rounding to nearest even; inline for loops over many. */
#ifndef SL_BASE_HALF_H
#define SL_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t sl_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sl_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t sl_to_bf16(float value)
{
    uint32_t bits = sl_f32_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* NaN, made quiet */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float sl_from_bf16(uint16_t bits)
{
    return sl_f32_of_bits((uint32_t)bits << 16);
}

static inline uint16_t sl_to_f16(float value)
{
    uint32_t bits = sl_f32_bits(value);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) /* 65536 and above, infinity too */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: the sum is rounded to a multiple of 2^-24 by the addition itself */
        float shifted = sl_f32_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (sl_f32_bits(shifted) - 0x3f000000));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

static inline float sl_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00)
        return sl_f32_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude < 0x400) { /* zero or subnormal: a multiple of 2^-24 */
        float value = (float)magnitude * 0x1p-24f;
        return sl_f32_of_bits(sign | sl_f32_bits(value));
    }
    return sl_f32_of_bits(sign | ((magnitude << 13) + 0x38000000));
}

#endif
