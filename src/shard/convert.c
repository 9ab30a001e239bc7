/* Elements of files to and from f32. The bytes may be misaligned, so they are read with memcpy. */
#include <sluice/shard.h>

#include <inttypes.h>
#include <string.h>

static float bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float f32_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
    if (exponent == 31) /* infinity, or a NaN that keeps its payload */
        return bits_to_f32(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) { /* zero or subnormal: the value is fraction * 2^-24, exact in f32 */
        float magnitude = (float)fraction * 0x1p-24f;
        return bits_to_f32(sign | bits_of_f32(magnitude));
    }
    return bits_to_f32(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Drops `shift` bits, rounding to nearest, ties to even. */
static uint32_t round_shift(uint32_t bits, int shift)
{
    uint32_t kept = bits >> shift, half = 1u << (shift - 1), rest = bits & ((1u << shift) - 1);
    return kept + (rest > half || (rest == half && (kept & 1)) ? 1 : 0);
}

static uint16_t bf16_of_f32(float value)
{
    uint32_t bits = bits_of_f32(value);
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40); /* quiet, and never rounded to infinity */
    return (uint16_t)round_shift(bits, 16);
}

static uint16_t f16_of_f32(float value)
{
    uint32_t bits = bits_of_f32(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) /* 2^16 and more; what rounds up to 2^16 gets there by its carry */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000) /* normal in f16: 2^-14 and more */
        return (uint16_t)(sign | round_shift(magnitude - (112u << 23), 13));
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) /* below 2^-25, half of the smallest subnormal */
        return (uint16_t)sign;
    return (uint16_t)(sign | round_shift((magnitude & 0x7fffff) | 0x800000, (int)(126 - exponent)));
}

sl_status sl_tensor_entry_read_f32(const sl_tensor_entry *entry, int64_t first, int64_t count, float *out)
{
    if (first < 0 || count < 0 || count > entry->count - first)
        return sl_fail(SL_ERR_ARGUMENT, "tensor '%s' has %" PRId64 " elements, asked for %" PRId64 " from %" PRId64,
                       entry->name, entry->count, count, first);
    const unsigned char *from = (const unsigned char *)entry->data + (size_t)first * sl_dtype_size(entry->dtype);
    uint16_t half;
    double wide;
    switch (entry->dtype) {
    case SL_F32:
        if (count > 0)
            memcpy(out, from, (size_t)count * sizeof *out);
        return SL_OK;
    case SL_BF16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = bits_to_f32((uint32_t)half << 16);
        }
        return SL_OK;
    case SL_F16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = f32_of_f16(half);
        }
        return SL_OK;
    case SL_F64:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&wide, from + 8 * i, sizeof wide);
            out[i] = (float)wide;
        }
        return SL_OK;
    default:
        return sl_fail(SL_ERR_UNSUPPORTED, "tensor '%s' is %s; f32, bf16, f16 and f64 can be read as f32", entry->name,
                       sl_dtype_name(entry->dtype));
    }
}

sl_status sl_f32_convert(const float *from, int64_t count, sl_dtype dtype, void *out)
{
    unsigned char *to = out;
    switch (dtype) {
    case SL_F32:
        if (count > 0)
            memcpy(out, from, (size_t)count * sizeof *from);
        return SL_OK;
    case SL_BF16:
    case SL_F16:
        for (int64_t i = 0; i < count; i++) {
            uint16_t half = dtype == SL_BF16 ? bf16_of_f32(from[i]) : f16_of_f32(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        return SL_OK;
    default:
        return sl_fail(SL_ERR_UNSUPPORTED, "f32 cannot be written as %s; f32, bf16 and f16 can", sl_dtype_name(dtype));
    }
}
