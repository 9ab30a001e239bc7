/* Element types and shapes. */
#include <sluice/base.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[SL_DTYPE_COUNT] = {
#define ROW(name, text, bytes, safetensors) { text, bytes },
    SL_DTYPE_LIST(ROW)
#undef ROW
};

const char *sl_dtype_name(sl_dtype dtype)
{
    return (unsigned)dtype < SL_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

size_t sl_dtype_size(sl_dtype dtype)
{
    return (unsigned)dtype < SL_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

sl_status sl_dtype_parse(const char *text, sl_dtype *out)
{
    for (int i = 0; i < SL_DTYPE_COUNT; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *out = (sl_dtype)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "unknown element type '%.40s'", text);
}

bool sl_shape_equal(const sl_shape *a, const sl_shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank && i < SL_MAX_DIMS; i++) { /* rank -1: no shape at all */
        if (a->dims[i] != b->dims[i])
            return false;
    }
    return true;
}

sl_status sl_shape_count(const sl_shape *shape, int64_t *out)
{
    char text[128];
    if (shape->rank < 0 || shape->rank > SL_MAX_DIMS)
        return sl_fail(SL_ERR_SHAPE, "a shape of rank %d; 0 to %d are possible", shape->rank, SL_MAX_DIMS);
    int64_t count = 1, nonzero = 1; /* overflow is judged without the zero dims */
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dims[i] < 0)
            return sl_fail(SL_ERR_SHAPE, "shape %s has a negative dim", sl_shape_text(shape, text, sizeof text));
        if (shape->dims[i] > 0 && __builtin_mul_overflow(nonzero, shape->dims[i], &nonzero))
            return sl_fail(SL_ERR_SHAPE, "shape %s is too large", sl_shape_text(shape, text, sizeof text));
        count = shape->dims[i] == 0 ? 0 : count;
    }
    *out = count == 0 ? 0 : nonzero;
    return SL_OK;
}

char *sl_shape_text(const sl_shape *shape, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < shape->rank && i < SL_MAX_DIMS && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "", shape->dims[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}
