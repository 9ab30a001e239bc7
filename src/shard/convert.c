/* Elements of files to and from f32. The bytes may be misaligned, so they are read with memcpy. */
#include <sluice/shard.h>
#include <sluice/tensor.h>

#include <inttypes.h>
#include <string.h>

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
            out[i] = sl_bf16_to_f32(half);
        }
        return SL_OK;
    case SL_F16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = sl_f16_to_f32(half);
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
            uint16_t half = dtype == SL_BF16 ? sl_bf16_from_f32(from[i]) : sl_f16_from_f32(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        return SL_OK;
    default:
        return sl_fail(SL_ERR_UNSUPPORTED, "f32 cannot be written as %s; f32, bf16 and f16 can", sl_dtype_name(dtype));
    }
}
