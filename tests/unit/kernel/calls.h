/* Shared by the kernel tests: arguments from a short text, in several memory layouts.
 *
 * Arguments are separated by blanks: "2x3x5" is a tensor of small normal numbers, "s" a scalar, "-" an absent one.
 * Before the shape: "p:" positive numbers (0.5..2), "i9:" i32 indices below 9, "l9:" the same as i64, "d:" always f64.
 */
#ifndef TESTS_KERNEL_CALLS_H
#define TESTS_KERNEL_CALLS_H

#include <sluice/kernel.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not every test uses every helper. */
#define HELPER static inline

enum { MAX_ARGS = 8 };

typedef enum layout {
    PACKED,
    SHIFTED, /* starts one element off the alignment */
    PADDED,  /* rows have gaps between them, the last dim is contiguous */
    TURNED,  /* dims lie in reverse order: the last one is strided */
    LAYOUT_COUNT,
    RANDOM = LAYOUT_COUNT /* dims in any order, gaps after any of them, another one each time */
} layout;

static const char *const layout_names[] = { "packed", "shifted", "padded", "turned", "random" };

/* A tensor in a block of its own with canaries around it. */
typedef struct arg {
    sl_view view;
    char *block;
    size_t bytes;
} arg;

typedef struct args {
    arg list[MAX_ARGS];
    sl_view views[MAX_ARGS];
    int count;
} args;

static uint64_t test_random_state = 1;

HELPER double uniform(void) /* 0..1 */
{
    test_random_state = test_random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(test_random_state >> 11) * 0x1p-53;
}

HELPER double normal(void) /* nearly so: mean 0, variance 1, within -3..3 */
{
    return 2 * (uniform() + uniform() + uniform()) - 3;
}

HELPER sl_shape parse_shape(const char *text)
{
    sl_shape shape = { .rank = 0 };
    if (*text == 's')
        return shape;
    for (;;) {
        char *end;
        shape.dims[shape.rank++] = strtoll(text, &end, 10);
        if (*end != 'x')
            return shape;
        text = end + 1;
    }
}

/* A number below `count` for layouts: the numbers in the tensors do not depend on them. */
HELPER int random_choice(int count)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)count);
}

HELPER sl_meta meta_in_layout(sl_dtype dtype, const sl_shape *shape, layout how, int64_t *span)
{
    sl_meta meta = sl_meta_contiguous(dtype, shape);
    int64_t stride = how == RANDOM && random_choice(4) == 0 ? 2 : 1;
    int order[SL_MAX_DIMS]; /* from the dim whose elements lie nearest to each other on */
    for (int n = 0; n < shape->rank; n++) {
        order[n] = how == TURNED ? n : shape->rank - 1 - n;
        if (how == RANDOM) { /* takes any of the places so far; who was there comes here */
            int place = random_choice(n + 1);
            int mine = order[n];
            order[n] = order[place];
            order[place] = mine;
        }
    }
    for (int n = 0; n < shape->rank; n++) {
        int i = order[n];
        meta.strides[i] = stride;
        stride *= shape->dims[i] > 0 ? shape->dims[i] : 1;
        if (how == PADDED)
            stride += n == 0 ? 3 : 1;
        if (how == RANDOM)
            stride += random_choice(4);
    }
    *span = stride;
    return meta;
}

HELPER bool is_packed(const sl_meta *meta)
{
    int64_t stride = 1;
    for (int i = meta->shape.rank - 1; i >= 0; i--) {
        if (meta->strides[i] != stride)
            return false;
        stride *= meta->shape.dims[i];
    }
    return true;
}

/* Where the element with this row-major index lies. Without a division if the elements lie in that order: these tests
 * spend most of their time here. */
HELPER int64_t offset_of(const sl_meta *meta, int64_t index)
{
    int64_t offset = 0;
    if (is_packed(meta))
        return index;
    for (int i = meta->shape.rank - 1; i >= 0; i--) {
        offset += index % meta->shape.dims[i] * meta->strides[i];
        index /= meta->shape.dims[i];
    }
    return offset;
}

HELPER double get(const sl_view *view, int64_t index)
{
    int64_t offset = offset_of(&view->meta, index);
    switch (view->meta.dtype) {
    case SL_F32:
        return ((float *)view->data)[offset];
    case SL_F64:
        return ((double *)view->data)[offset];
    case SL_I32:
        return ((int32_t *)view->data)[offset];
    case SL_I64:
        return (double)((int64_t *)view->data)[offset];
    case SL_BF16:
        return sl_bf16_to_f32(((uint16_t *)view->data)[offset]);
    case SL_F16:
        return sl_f16_to_f32(((uint16_t *)view->data)[offset]);
    default:
        return ((uint8_t *)view->data)[offset];
    }
}

HELPER void put(const sl_view *view, int64_t index, double value)
{
    int64_t offset = offset_of(&view->meta, index);
    switch (view->meta.dtype) {
    case SL_F32:
        ((float *)view->data)[offset] = (float)value;
        break;
    case SL_F64:
        ((double *)view->data)[offset] = value;
        break;
    case SL_I32:
        ((int32_t *)view->data)[offset] = (int32_t)value;
        break;
    case SL_I64:
        ((int64_t *)view->data)[offset] = (int64_t)value;
        break;
    case SL_BF16:
        ((uint16_t *)view->data)[offset] = sl_bf16_from_f32((float)value);
        break;
    case SL_F16:
        ((uint16_t *)view->data)[offset] = sl_f16_from_f32((float)value);
        break;
    default:
        ((uint8_t *)view->data)[offset] = (uint8_t)value;
    }
}

/* Filled with 0xA5 bytes: what a kernel writes outside its elements shows. */
HELPER arg make_arg(sl_dtype dtype, const sl_shape *shape, layout how)
{
    int64_t span;
    arg a = { .view = { .meta = meta_in_layout(dtype, shape, how, &span) } };
    size_t size = sl_dtype_size(dtype), lead = 64 + (how == SHIFTED  ? size
                                                     : how == RANDOM ? (size_t)random_choice(8) * size
                                                                     : 0);
    a.bytes = (lead + (size_t)span * size + 64 + 63) / 64 * 64;
    a.block = aligned_alloc(64, a.bytes);
    memset(a.block, 0xA5, a.bytes);
    a.view.data = a.block + lead;
    return a;
}

HELPER void free_args(args *list)
{
    for (int i = 0; i < list->count; i++)
        free(list->list[i].block);
    list->count = 0;
}

/* Values are rounded to f32 whatever the dtype, so that an f64 run sees the same numbers. */
HELPER args make_args(const char *text, sl_dtype dtype, layout how)
{
    args result = { .count = 0 };
    char copy[512], *save = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *token = strtok_r(copy, " ", &save); token; token = strtok_r(NULL, " ", &save)) {
        int i = result.count++;
        char kind = 'n';
        int64_t below = 0;
        sl_dtype own = dtype;
        if (*token == '-') {
            result.views[i] = result.list[i].view = sl_view_none();
            continue;
        }
        char *colon = strchr(token, ':');
        if (colon) {
            kind = *token;
            below = strtoll(token + 1, NULL, 10);
            own = kind == 'i' ? SL_I32 : kind == 'l' ? SL_I64 : kind == 'd' ? SL_F64 : dtype;
            token = colon + 1;
        }
        sl_shape shape = parse_shape(token);
        result.list[i] = make_arg(own, &shape, how);
        const sl_view *view = &result.list[i].view;
        int64_t count = sl_meta_count(&view->meta);
        for (int64_t e = 0; e < count; e++) {
            double value = kind == 'p' ? 0.5 + 1.5 * uniform() : kind == 'n' || kind == 'd' ? normal() : 0;
            if (kind == 'i' || kind == 'l')
                value = floor(uniform() * (double)below);
            put(view, e, (float)value);
        }
        result.views[i] = *view;
    }
    return result;
}

static sl_device *test_device;
static sl_stream *test_stream;

HELPER void open_device(int threads)
{
    sl_device_options options = { .threads = threads };
    assert_int_equal(sl_device_open("cpu", &options, &test_device), SL_OK);
    assert_int_equal(sl_stream_create(test_device, &test_stream), SL_OK);
}

HELPER void close_device(void)
{
    sl_stream_destroy(test_stream);
    sl_device_close(test_device);
}

/* Runs the call with the scratch it asks for, no byte more. */
HELPER sl_status run_call(sl_kernel_call call)
{
    size_t bytes = 0;
    sl_status status = sl_kernel_scratch(test_device, &call, &bytes);
    if (status != SL_OK)
        return status;
    void *scratch = NULL;
    if (bytes > 0) {
        assert_int_equal(posix_memalign(&scratch, 64, bytes), 0);
        memset(scratch, 0xA5, bytes);
    }
    call.scratch = scratch;
    call.scratch_bytes = bytes;
    status = sl_kernel_run(test_stream, &call);
    if (status == SL_OK)
        status = sl_stream_synchronize(test_stream);
    free(scratch);
    return status;
}

#endif
