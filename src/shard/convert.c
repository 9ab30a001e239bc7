/* Elements of tensors: bytes, comparison, to and from f32. The bytes may be misaligned, so they are read with memcpy. */
#include "shard/safetensors.h"
#include "shard/slices.h"

#include <sluice/tensor.h>

#include <inttypes.h>
#include <string.h>

enum { BLOCK = 1 << 14 }; /* bytes at a time */

static sl_status fetch_file(const sl_tensor_entry *entry, size_t offset, size_t bytes, void *out)
{
    sl_file_reader reader = { .fd = -1 };
    sl_status status = sl_safetensors_open_reader(entry->file, &reader);
    if (status == SL_OK)
        status = sl_file_read_at(&reader, out, bytes, entry->offset + offset);
    sl_file_close(&reader);
    return status;
}

static sl_status fetch_elements(const sl_tensor_entry *entry, size_t offset, size_t bytes, void *out)
{
    size_t size = sl_dtype_size(entry->dtype);
    if (offset % size != 0 || bytes % size != 0)
        return sl_fail(SL_ERR_ARGUMENT, "tensor '%s': bytes %zu + %zu are no whole elements of %zu", entry->name,
                       offset, bytes, size);
    return sl_slices_read(entry->slices, (int64_t)((entry->offset + offset) / size), (int64_t)(bytes / size), out);
}

static sl_status fetch(const sl_tensor_entry *entry, size_t offset, size_t bytes, void *out)
{
    if (bytes == 0)
        return SL_OK;
    if (entry->slices)
        return fetch_elements(entry, offset, bytes, out);
    if (!entry->data)
        return fetch_file(entry, offset, bytes, out);
    memcpy(out, (const unsigned char *)entry->data + offset, bytes);
    return SL_OK;
}

sl_status sl_tensor_entry_read(const sl_tensor_entry *entry, size_t offset, size_t bytes, void *out)
{
    if (offset > entry->bytes || bytes > entry->bytes - offset)
        return sl_fail(SL_ERR_ARGUMENT, "tensor '%s' has %zu bytes, asked for %zu from %zu", entry->name, entry->bytes,
                       bytes, offset);
    return fetch(entry, offset, bytes, out);
}

sl_status sl_tensor_entry_compare(const sl_tensor_entry *a, const sl_tensor_entry *b, bool *same)
{
    sl_status status = SL_OK;
    unsigned char left[BLOCK], right[BLOCK];
    bool equal = a->dtype == b->dtype && sl_shape_equal(&a->shape, &b->shape) && a->bytes == b->bytes;
    for (size_t at = 0; equal && at < a->bytes; at += BLOCK) {
        size_t bytes = a->bytes - at < BLOCK ? a->bytes - at : BLOCK;
        SL_TRY(sl_tensor_entry_read(a, at, bytes, left));
        SL_TRY(sl_tensor_entry_read(b, at, bytes, right));
        equal = memcmp(left, right, bytes) == 0;
    }
    *same = equal;
done:
    return status;
}

/* count elements of the type as f32. */
static void widen(sl_dtype dtype, const unsigned char *from, int64_t count, float *out)
{
    uint16_t half;
    double wide;
    for (int64_t i = 0; i < count; i++) {
        if (dtype == SL_F64) {
            memcpy(&wide, from + 8 * i, sizeof wide);
            out[i] = (float)wide;
        } else {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = dtype == SL_BF16 ? sl_bf16_to_f32(half) : sl_f16_to_f32(half);
        }
    }
}

sl_status sl_tensor_entry_read_f32(const sl_tensor_entry *entry, int64_t first, int64_t count, float *out)
{
    sl_status status = SL_OK;
    size_t size = sl_dtype_size(entry->dtype);
    if (first < 0 || count < 0 || count > entry->count - first)
        return sl_fail(SL_ERR_ARGUMENT, "tensor '%s' has %" PRId64 " elements, asked for %" PRId64 " from %" PRId64,
                       entry->name, entry->count, count, first);
    if (entry->dtype == SL_F32)
        return fetch(entry, (size_t)first * size, (size_t)count * size, out);
    if (entry->dtype != SL_BF16 && entry->dtype != SL_F16 && entry->dtype != SL_F64)
        return sl_fail(SL_ERR_UNSUPPORTED, "tensor '%s' is %s; f32, bf16, f16 and f64 can be read as f32", entry->name,
                       sl_dtype_name(entry->dtype));
    unsigned char block[BLOCK];
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < (int64_t)(BLOCK / size) ? count - done : (int64_t)(BLOCK / size);
        SL_TRY(fetch(entry, (size_t)(first + done) * size, (size_t)n * size, block));
        widen(entry->dtype, block, n, out + done);
    }
done:
    return status;
}

sl_status sl_f32_convert(const float *from, int64_t count, sl_dtype dtype, void *out)
{
    unsigned char *to = out;
    switch (dtype) {
    case SL_F32:
        if (count > 0)
            memmove(out, from, (size_t)count * sizeof *from);
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

/* ---- Values that are not finite -------------------------------------------------------------- */

/* A value is infinite or not a number if all bits of its exponent (mask) are set. */
static int64_t find_masked(const unsigned char *from, int64_t count, size_t size, uint64_t mask)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, from + (size_t)i * size, size);
        if ((bits & mask) == mask)
            return i;
    }
    return -1;
}

/* Without a branch inside, so that compilers vectorize it: most blocks hold nothing of the kind. */
static bool f32_block_is_finite(const unsigned char *from, int64_t count)
{
    const uint32_t mask = 0x7f800000;
    uint32_t found = 0, bits;
    for (int64_t i = 0; i < count; i++) {
        memcpy(&bits, from + (size_t)i * sizeof bits, sizeof bits);
        found |= (bits & mask) == mask;
    }
    return !found;
}

static int64_t find_f32(const unsigned char *from, int64_t count)
{
    enum { FLOATS = BLOCK / 4 };
    int64_t start = 0;
    while (start < count && f32_block_is_finite(from + 4 * start, count - start < FLOATS ? count - start : FLOATS))
        start += FLOATS;
    return start >= count ? -1 : start + find_masked(from + 4 * start, count - start, 4, 0x7f800000);
}

int64_t sl_find_nonfinite(sl_dtype dtype, const void *data, int64_t count)
{
    switch (dtype) {
    case SL_F32:
        return find_f32(data, count);
    case SL_BF16:
        return find_masked(data, count, 2, 0x7f80);
    case SL_F16:
        return find_masked(data, count, 2, 0x7c00);
    case SL_F64:
        return find_masked(data, count, 8, UINT64_C(0x7ff0000000000000));
    default:
        return -1;
    }
}
