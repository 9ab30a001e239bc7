/* Kernels give the same bits for every layout that stage programs hand them: a cut turns views into contiguous
 * tensors, and that must not show. */
#include "unit/graph/harness.h"

#include "op/op.h"

enum { MOST = 6 };

/* Shapes of an op's arguments; the first input_count are inputs. */
typedef struct sample {
    sl_op op;
    sl_op_attrs attrs;
    int input_count, output_count;
    sl_shape shapes[MOST + 3];
} sample;

#define S(...)                                                                                                         \
    {                                                                                                                  \
        .rank = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), .dims = { __VA_ARGS__ }                   \
    }

/* Sizes around the kernels' own widths: odd ones, and ones that fill vectors and blocks. */
#define SAMPLES(B, T, H, D, C, N)                                                                                      \
    { SL_OP_LINEAR, { .transpose_w = true }, 3, 1, { S(B, T, C), S(N, C), S(N), S(B, T, N) } },                        \
        { SL_OP_LINEAR, { 0 }, 3, 1, { S(B, T, C), S(C, N), S(N), S(B, T, N) } },                                      \
        { SL_OP_LINEAR_GRAD_X, { .transpose_w = true }, 2, 1, { S(B, T, N), S(N, C), S(B, T, C) } },                   \
        { SL_OP_LINEAR_GRAD_W, { .transpose_w = true }, 2, 1, { S(B, T, C), S(B, T, N), S(N, C) } },                   \
        { SL_OP_LAYERNORM,                                                                                             \
          { .eps = 1e-5 },                                                                                             \
          3,                                                                                                           \
          3,                                                                                                           \
          { S(B, T, H, D), S(D), S(D), S(B, T, H, D), S(B, T, H), S(B, T, H) } },                                      \
        { SL_OP_LAYERNORM_GRAD_X,                                                                                      \
          { 0 },                                                                                                       \
          5,                                                                                                           \
          1,                                                                                                           \
          { S(B, T, H, D), S(B, T, H, D), S(D), S(B, T, H), S(B, T, H), S(B, T, H, D) } },                             \
        { SL_OP_LAYERNORM_GRAD_W, { 0 }, 4, 2, { S(B, T, H, D), S(B, T, H, D), S(B, T, H), S(B, T, H), S(D), S(D) } }, \
        { SL_OP_RMSNORM, { .eps = 1e-5 }, 2, 2, { S(B, T, H, D), S(D), S(B, T, H, D), S(B, T, H) } },                  \
        { SL_OP_RMSNORM_GRAD_X, { 0 }, 4, 1, { S(B, T, H, D), S(B, T, H, D), S(D), S(B, T, H), S(B, T, H, D) } },      \
        { SL_OP_SOFTMAX, { 0 }, 1, 1, { S(B, T, H, D), S(B, T, H, D) } },                                              \
        { SL_OP_SOFTMAX_GRAD, { 0 }, 2, 1, { S(B, T, H, D), S(B, T, H, D), S(B, T, H, D) } },                          \
        { SL_OP_ATTENTION,                                                                                             \
          { .scale = 0.3, .causal = true },                                                                            \
          3,                                                                                                           \
          2,                                                                                                           \
          { S(B, T, H, D), S(B, T, 1, D), S(B, T, 1, D), S(B, T, H, D), S(B, H, T) } },                                \
        { SL_OP_ATTENTION_GRAD,                                                                                        \
          { .scale = 0.3, .causal = true },                                                                            \
          6,                                                                                                           \
          3,                                                                                                           \
          { S(B, T, H, D), S(B, T, 1, D), S(B, T, 1, D), S(B, T, H, D), S(B, H, T), S(B, T, H, D), S(B, T, H, D),      \
            S(B, T, 1, D), S(B, T, 1, D) } },                                                                          \
        { SL_OP_ROPE, { 0 }, 3, 1, { S(B, T, H, D), S(T, (D) / 2), S(T, (D) / 2), S(B, T, H, D) } },                   \
        { SL_OP_GELU_TANH, { 0 }, 1, 1, { S(B, T, C), S(B, T, C) } },                                                  \
        { SL_OP_GELU_TANH_GRAD, { 0 }, 2, 1, { S(B, T, C), S(B, T, C), S(B, T, C) } },                                 \
        { SL_OP_GELU_ERF, { 0 }, 1, 1, { S(B, T, C), S(B, T, C) } },                                                   \
        { SL_OP_SILU, { 0 }, 1, 1, { S(B, T, C), S(B, T, C) } },                                                       \
        { SL_OP_TANH, { 0 }, 1, 1, { S(B, T, C), S(B, T, C) } },                                                       \
        { SL_OP_EXP, { 0 }, 1, 1, { S(B, T, C), S(B, T, C) } },                                                        \
        { SL_OP_SWIGLU, { 0 }, 2, 1, { S(B, T, C), S(B, T, C), S(B, T, C) } },                                         \
        { SL_OP_SWIGLU_GRAD, { 0 }, 3, 2, { S(B, T, C), S(B, T, C), S(B, T, C), S(B, T, C), S(B, T, C) } },            \
        { SL_OP_ADD, { 0 }, 2, 1, { S(B, T, C), S(C), S(B, T, C) } },                                                  \
        { SL_OP_DIV, { 0 }, 2, 1, { S(B, T, C), S(T, 1), S(B, T, C) } },                                               \
        { SL_OP_SCALE, { .alpha = 1.7, .beta = 0.3 }, 1, 1, { S(B, T, C), S(B, T, C) } },                              \
    {                                                                                                                  \
        SL_OP_COPY, { 0 }, 1, 1,                                                                                       \
        {                                                                                                              \
            S(B, T, C), S(B, T, C)                                                                                     \
        }                                                                                                              \
    }

static const sample samples[] = { SAMPLES(2, 3, 2, 4, 5, 7), SAMPLES(3, 17, 3, 10, 33, 40),
                                  SAMPLES(2, 64, 2, 64, 128, 96) };

/* Strides of a shape: contiguous, padded rows, parts of a wider tensor (q of qkv), dims in reverse order. */
static sl_meta layout_meta(const sl_shape *shape, int layout)
{
    sl_meta meta = sl_meta_contiguous(SL_F32, shape);
    int64_t stride = 1;
    for (int i = 0; i < shape->rank; i++) {
        int dim = layout == 3 ? i : shape->rank - 1 - i;
        meta.strides[dim] = stride;
        stride *= shape->dims[dim];
        stride += layout == 1 && i == 0 ? 5 : layout == 2 && i == 1 ? 3 * stride : 0;
    }
    return meta;
}

static int64_t position(const sl_meta *meta, int64_t index)
{
    int64_t at = 0;
    for (int i = meta->shape.rank - 1; i >= 0; i--) {
        at += index % meta->shape.dims[i] * meta->strides[i];
        index /= meta->shape.dims[i];
    }
    return at;
}

static sl_view new_view(const sl_shape *shape, int layout, const char *name)
{
    sl_meta meta = layout_meta(shape, layout);
    int64_t count = sl_meta_count(&meta);
    size_t bytes = (size_t)(position(&meta, count - 1) + 1) * sizeof(float);
    sl_view view = { aligned_alloc(64, (bytes + 63) / 64 * 64), meta };
    for (int64_t i = 0; i < count; i++)
        ((float *)view.data)[position(&meta, i)] = (float)noise(name, (uint64_t)i);
    return view;
}

/* Runs the op with arguments laid out as the digits of `layouts` say; the results row-major. */
static results run_sample(sl_stream *stream, const sample *s, unsigned layouts, uint32_t accumulate)
{
    static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", "h", "i" };
    sl_view views[MOST + 3];
    results out = { NULL, 0 };
    for (int i = 0; i < s->input_count + s->output_count; i++) {
        views[i] = new_view(&s->shapes[i], (int)(layouts % 4), names[i]);
        layouts /= 4;
    }
    sl_kernel_call call = { .op = s->op,
                            .attrs = s->attrs,
                            .inputs = views,
                            .input_count = s->input_count,
                            .outputs = views + s->input_count,
                            .output_count = s->output_count,
                            .accumulate = accumulate };
    ASSERT_OK(sl_kernel_scratch(sl_stream_device(stream), &call, &call.scratch_bytes));
    call.scratch = aligned_alloc(64, (call.scratch_bytes + 64) / 64 * 64);
    ASSERT_OK(sl_kernel_run(stream, &call));
    for (int o = 0; o < s->output_count; o++) {
        const sl_view *view = &call.outputs[o];
        int64_t count = sl_meta_count(&view->meta);
        out.bytes = realloc(out.bytes, out.size + (size_t)count * sizeof(float));
        for (int64_t i = 0; i < count; i++) {
            float value = ((const float *)view->data)[position(&view->meta, i)];
            memcpy(out.bytes + out.size, &value, sizeof value);
            out.size += sizeof value;
        }
    }
    for (int i = 0; i < s->input_count + s->output_count; i++)
        free(views[i].data);
    free(call.scratch);
    return out;
}

/* A number whose digits are layouts that fit the op. */
static unsigned fitting_layouts(const sample *s, uint64_t round)
{
    unsigned digits = 0, place = 1;
    for (int i = 0; i < s->input_count + s->output_count; i++, place *= 4) {
        int layout = (int)((noise("layout", round * 16 + (uint64_t)i) + 1) * 2) % 4;
        sl_meta meta = layout_meta(&s->shapes[i], layout);
        digits += place * (unsigned)(sl_layout_fits(&meta, sl_op_get_info(s->op)->layout) ? layout : 0);
    }
    return digits;
}

static void every_layout_that_fits_gives_the_bits_of_the_contiguous(void **state)
{
    (void)state;
    sl_device *device = open_cpu();
    sl_stream *stream = NULL;
    ASSERT_OK(sl_stream_create(device, &stream));
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        uint32_t all = (1u << s->output_count) - 1;
        for (int adds = 0; adds < (sl_op_get_info(s->op)->accumulates ? 2 : 1); adds++) {
            results contiguous = run_sample(stream, s, 0, adds ? all : 0);
            for (uint64_t round = 0; round < 12; round++) {
                results other = run_sample(stream, s, fitting_layouts(s, round), adds ? all : 0);
                assert_same_bits(&contiguous, &other, sl_op_name(s->op));
                free(other.bytes);
            }
            free(contiguous.bytes);
        }
    }
    sl_stream_destroy(stream);
    sl_device_close(device);
}

static void layouts_are_told_apart(void **state)
{
    (void)state;
    const sl_shape shape = S(2, 3, 4, 5);
    static const bool fits[4][4] = { /* any, heads, rows, contiguous */
                                     { true, true, true, true },
                                     { true, true, true, false },
                                     { true, true, false, false },
                                     { true, false, false, false }
    };
    for (int layout = 0; layout < 4; layout++) {
        sl_meta meta = layout_meta(&shape, layout);
        for (int needed = 0; needed < 4; needed++)
            assert_int_equal(sl_layout_fits(&meta, (sl_op_layout)needed), fits[layout][needed]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_told_apart),
        cmocka_unit_test(every_layout_that_fits_gives_the_bits_of_the_contiguous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
