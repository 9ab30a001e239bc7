/* Values that need care: the ends of the range, infinities and NaN, conversions, random masks. */
#include "unit/kernel/calls.h"

#include "kernel/cpu/isa.h"
#include "kernel/philox.h"
#include "support/amx/amx.h"

static const sl_isa isas[] = { SL_ISA_REFERENCE, SL_ISA_SCALAR,      SL_ISA_AVX2,
                               SL_ISA_AVX512,    SL_ISA_AVX512_BF16, SL_ISA_AMX };

enum { ISAS = sizeof isas / sizeof *isas };

static int open_all(void **state)
{
    (void)state;
    open_device(1);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    close_device();
    return 0;
}

/* y = op(x) on n floats. */
static void run_unary(sl_op op, const float *x, float *y, int64_t n)
{
    sl_view in = { (void *)(uintptr_t)x, sl_meta_make(SL_F32, 1, &n) }, out = { y, sl_meta_make(SL_F32, 1, &n) };
    sl_kernel_call call = { .op = op, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1 };
    assert_int_equal(run_call(call), SL_OK);
}

static void exponentials_hold_over_the_whole_range(void **state)
{
    (void)state;
    enum { N = 4001 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = -110 + 200.0f * (float)i / (N - 1);
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        run_unary(SL_OP_EXP, x, y, N);
        for (int i = 0; i < N; i++) {
            double expected = exp((double)x[i]);
            double smallest = 0x1p-149; /* of the subnormal floats: results there are rounded to its multiples */
            if (expected > 3.4028235e38) {
                assert_true(isinf(y[i]));
            } else if (fabs(y[i] - expected) > 3e-7 * expected + smallest) {
                fail_msg("exp(%.9g) is %.9g on %s, expected %.9g", (double)x[i], (double)y[i], sl_isa_name(isas[isa]),
                         expected);
            }
        }
    }
    sl_isa_set(sl_isa_best());
}

/* Largest error in units of `unit` * max(|f(x)|, floor). */
static void check_function(sl_op op, double (*f)(double), double from, double to, double unit, double floor)
{
    enum { N = 3001 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(from + (to - from) * i / (N - 1));
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        run_unary(op, x, y, N);
        for (int i = 0; i < N; i++) {
            double expected = f((double)x[i]);
            if (!(fabs(y[i] - expected) <= unit * fmax(fabs(expected), floor)))
                fail_msg("%s(%.9g) is %.9g on %s, expected %.9g", sl_op_name(op), (double)x[i], (double)y[i],
                         sl_isa_name(isas[isa]), expected);
        }
    }
    sl_isa_set(sl_isa_best());
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x * M_SQRT1_2);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void activations_are_accurate(void **state)
{
    (void)state;
    check_function(SL_OP_TANH, tanh, -12, 12, 4e-7, 0);
    check_function(SL_OP_TANH, tanh, -1e-3, 1e-3, 4e-7, 0);
    check_function(SL_OP_GELU_TANH, gelu_tanh, -30, 30, 5e-7, 1e-2);
    check_function(SL_OP_GELU_ERF, gelu_erf, -30, 30, 5e-7, 1e-2);
    check_function(SL_OP_SILU, silu, -90, 90, 1e-6, 1e-2);
    check_function(SL_OP_SILU, silu, -82, 82, 5e-7, 0);
}

static void infinities_and_nan_travel(void **state)
{
    (void)state;
    const float x[5] = { INFINITY, -INFINITY, NAN, 1e38f, -1e38f };
    float y[5];
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        run_unary(SL_OP_EXP, x, y, 5);
        assert_true(isinf(y[0]) && y[1] == 0 && isnan(y[2]) && isinf(y[3]) && y[4] == 0);
        run_unary(SL_OP_RELU, x, y, 5);
        assert_true(isinf(y[0]) && y[1] == 0 && isnan(y[2]) && y[3] == 1e38f && y[4] == 0);
        run_unary(SL_OP_TANH, x, y, 5);
        assert_true(y[0] == 1 && y[1] == -1 && isnan(y[2]) && y[3] == 1 && y[4] == -1);
        run_unary(SL_OP_SILU, x, y, 5);
        assert_true(isinf(y[0]) && isnan(y[2]) && y[3] == 1e38f && y[4] == 0);
        run_unary(SL_OP_GELU_ERF, x, y, 5);
        assert_true(isinf(y[0]) && isnan(y[2]) && y[3] == 1e38f && y[4] == 0);
    }
    sl_isa_set(sl_isa_best());
}

static void softmax_stands_large_logits(void **state)
{
    (void)state;
    float x[35], y[35];
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        for (int i = 0; i < 35; i++)
            x[i] = i == 7 ? 3e4f : i == 20 ? -INFINITY : 3e4f - 1000;
        run_unary(SL_OP_SOFTMAX, x, y, 35);
        assert_true(y[7] == 1 && y[20] == 0 && y[0] == 0);
        x[34] = NAN;
        run_unary(SL_OP_SOFTMAX, x, y, 35);
        assert_true(isnan(y[0]));
    }
    sl_isa_set(sl_isa_best());
}

static void softmax_added_to_zeros_has_the_same_bits(void **state)
{
    (void)state;
    enum { N = 1001 };
    static float x[N], y[N], sum[N];
    const int64_t n = N;
    sl_view in = { x, sl_meta_make(SL_F32, 1, &n) }, out = { sum, sl_meta_make(SL_F32, 1, &n) };
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        for (int i = 0; i < N; i++) {
            x[i] = (float)(20 * normal());
            sum[i] = 0;
        }
        run_unary(SL_OP_SOFTMAX, x, y, N);
        assert_int_equal(run_call((sl_kernel_call){ .op = SL_OP_SOFTMAX,
                                                    .inputs = &in,
                                                    .input_count = 1,
                                                    .outputs = &out,
                                                    .output_count = 1,
                                                    .accumulate = 1 }),
                         SL_OK);
        assert_memory_equal(y, sum, sizeof y);
    }
    sl_isa_set(sl_isa_best());
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* One head, of which only the first column is not 0. There all queries are 1, so keys are scores: one is high, the others
 * half of it, and all weight is that one's. */
static void attend_to_one(sl_dtype dtype, int64_t width, double score, sl_isa isa)
{
    enum { T = 160, HIGH = 133, WIDEST = 40, Q = 0, K, V, O, LSE, D_O, D_Q, D_K, D_V, TENSORS };
    static double numbers[TENSORS][T * WIDEST];
    static char blocks[TENSORS][sizeof(float) * T * WIDEST];
    sl_view views[TENSORS];
    memset(numbers, 0, sizeof numbers);
    for (int i = 0; i < TENSORS; i++) {
        sl_meta heads = sl_meta_make(dtype, 4, (int64_t[]){ 1, T, 1, width });
        views[i] = (sl_view){ blocks[i], i == LSE ? sl_meta_make(SL_F32, 3, (int64_t[]){ 1, 1, T }) : heads };
        for (int t = 0; t < T; t++)
            numbers[i][t * width] = i == Q || i == D_O ? 1
                                    : i == K           ? (t == HIGH ? score : score / 2)
                                    : t == HIGH        ? 7
                                                       : 3;
        sl_view from = { numbers[i], views[i].meta };
        from.meta.dtype = SL_F64;
        if (i != LSE)
            assert_int_equal(
                run_call((sl_kernel_call){
                    .op = SL_OP_CAST, .inputs = &from, .input_count = 1, .outputs = &views[i], .output_count = 1 }),
                SL_OK);
    }
    const sl_op_attrs attrs = { .scale = 1 };
    assert_int_equal(run_call((sl_kernel_call){ .op = SL_OP_ATTENTION,
                                                .attrs = attrs,
                                                .inputs = views,
                                                .input_count = 3,
                                                .outputs = views + O,
                                                .output_count = 2 }),
                     SL_OK);
    const sl_view inputs[] = { views[Q], views[K], views[V], views[O], views[LSE], views[D_O] };
    sl_kernel_call gradient = { .op = SL_OP_ATTENTION_GRAD,
                                .attrs = attrs,
                                .inputs = inputs,
                                .input_count = 6,
                                .outputs = views + D_Q,
                                .output_count = 3 };
    assert_int_equal(run_call(gradient), SL_OK);
    for (int t = 0; t < T; t++) {
        const int seen[] = { O, D_Q, D_K, D_V };
        const double expected[] = { 7, 0, 0, t == HIGH ? T : 0 };
        for (int i = 0; i < 4; i++) {
            double value = 0;
            sl_view from = views[seen[i]], to = { &value, sl_meta_make(SL_F64, 1, (int64_t[]){ 1 }) };
            from.data = blocks[seen[i]] + (size_t)(t * width) * sl_dtype_size(dtype);
            from.meta = sl_meta_make(dtype, 1, (int64_t[]){ 1 });
            assert_int_equal(
                run_call((sl_kernel_call){
                    .op = SL_OP_CAST, .inputs = &from, .input_count = 1, .outputs = &to, .output_count = 1 }),
                SL_OK);
            if (value != expected[i])
                fail_msg("score %g, width %d, %s on %s: tensor %d has %g at %d, not %g", score, (int)width,
                         sl_dtype_name(dtype), sl_isa_name(isa), seen[i], value, t, expected[i]);
        }
    }
}

static void attention_stands_large_scores(void **state)
{
    (void)state;
    const double scores[] = { 500, 9e4, 9e6, 1.2e8, 1.7e10, 1e12 };
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
            attend_to_one(SL_F32, 1, scores[i], isas[isa]);
            attend_to_one(SL_F32, 40, scores[i], isas[isa]);
            attend_to_one(SL_BF16, 1, scores[i], isas[isa]);
            attend_to_one(SL_BF16, 40, scores[i], isas[isa]);
        }
    }
    sl_isa_set(sl_isa_best());
}

/* ---- Conversions ----------------------------------------------------------------------------- */

static void cast(sl_dtype from, const void *x, sl_dtype to, void *y, int64_t n)
{
    sl_view in = { (void *)(uintptr_t)x, sl_meta_make(from, 1, &n) }, out = { y, sl_meta_make(to, 1, &n) };
    sl_kernel_call call = { .op = SL_OP_CAST, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1 };
    assert_int_equal(run_call(call), SL_OK);
}

static void casts_to_half_precision_round_to_even(void **state)
{
    (void)state;
    enum { N = 4099 };
    static float x[N], back[N];
    static uint16_t half[N];
    const float special[] = { 0,     -0.0f, INFINITY, -INFINITY,   NAN,       65504,     65520,
                              1e-8f, 6e-8f, 3.4e38f,  1.00390625f, 0x1p-127f, -0x1p-134f };
    const int specials = sizeof special / sizeof *special;
    for (int i = 0; i < N; i++)
        x[i] = i < specials ? special[i] : (float)(normal() * exp(20 * (uniform() - 0.5)));
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        cast(SL_F32, x, SL_BF16, half, N);
        cast(SL_BF16, half, SL_F32, back, N);
        for (int i = 0; i < N; i++) {
            assert_int_equal(half[i], sl_bf16_from_f32(x[i]));
            assert_true(back[i] == sl_bf16_to_f32(half[i]) || isnan(x[i]));
        }
        cast(SL_F32, x, SL_F16, half, N);
        cast(SL_F16, half, SL_F32, back, N);
        for (int i = 0; i < N; i++) {
            assert_true(half[i] == sl_f16_from_f32(x[i]) || isnan(x[i]));
            assert_true(back[i] == sl_f16_to_f32(half[i]) || isnan(x[i]));
        }
    }
    sl_isa_set(sl_isa_best());
}

/* Whole tiles, in which each sum is the bias: every number is rounded as a cast rounds it. */
static void products_round_to_even_also_what_is_tiny(void **state)
{
    (void)state;
    enum { SIZE = 64 };
    static uint16_t x[SIZE * SIZE], w[SIZE * SIZE], y[SIZE * SIZE];
    float bias[SIZE];
    const float special[] = { 0x1p-127f, -0x1.fp-130f, 0x1p-149f, 0x1p-126f, INFINITY, NAN, 1.00390625f, 3.4e38f };
    const int specials = sizeof special / sizeof *special;
    for (int tiny = 0; tiny < 2; tiny++) {
        for (int i = 0; i < SIZE; i++)
            bias[i] = tiny && i < specials ? special[i] : (float)normal();
        sl_view inputs[] = { { x, sl_meta_make(SL_BF16, 2, (int64_t[]){ SIZE, SIZE }) },
                             { w, sl_meta_make(SL_BF16, 2, (int64_t[]){ SIZE, SIZE }) },
                             { bias, sl_meta_make(SL_F32, 1, (int64_t[]){ SIZE }) } };
        sl_view out = { y, sl_meta_make(SL_BF16, 2, (int64_t[]){ SIZE, SIZE }) };
        sl_kernel_call call = {
            .op = SL_OP_LINEAR, .inputs = inputs, .input_count = 3, .outputs = &out, .output_count = 1
        };
        for (int isa = 0; isa < ISAS; isa++) {
            if (!sl_isa_set(isas[isa]))
                continue;
            memset(y, 0xff, sizeof y);
            assert_int_equal(run_call(call), SL_OK);
            for (int i = 0; i < SIZE * SIZE; i++)
                assert_int_equal(y[i], sl_bf16_from_f32(bias[i % SIZE]));
        }
    }
    sl_isa_set(sl_isa_best());
}

/* Each special value comes to every place of a group of vectors, alone among others, contiguous and with gaps. */
static void sums_of_bf16_round_to_even_also_what_is_tiny(void **state)
{
    (void)state;
    enum { N = 150, STRIDES = 2 };
    static uint16_t a[N * STRIDES], b[N * STRIDES], c[N * STRIDES];
    const float special[][2] = { { 0x1p-127f, 0x1p-133f },  { -0x1p-127f, 0 },   { 0, 0 },   { -0.0f, -0.0f },
                                 { 0x1p-126f, -0x1p-127f }, { INFINITY, 1 },     { NAN, 1 }, { INFINITY, -INFINITY },
                                 { 3.38e38f, 3e36f },       { 1.0f, 0x1.01p-8f } };
    const int specials = sizeof special / sizeof *special;
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        for (int i = 0; i < specials * N * STRIDES; i++) {
            int64_t stride = i % STRIDES + 1, place = i / STRIDES % N;
            const float *values = special[i / STRIDES / N];
            sl_meta meta = sl_meta_make(SL_BF16, 1, (int64_t[]){ N });
            meta.strides[0] = stride;
            for (int k = 0; k < N; k++) {
                a[k * stride] = sl_bf16_from_f32(k == place ? values[0] : 1.5f);
                b[k * stride] = sl_bf16_from_f32(k == place ? values[1] : (float)(k + 1));
            }
            sl_view in[] = { { a, meta }, { b, meta } }, out = { c, meta };
            assert_int_equal(run_call((sl_kernel_call){
                                 .op = SL_OP_ADD, .inputs = in, .input_count = 2, .outputs = &out, .output_count = 1 }),
                             SL_OK);
            for (int k = 0; k < N; k++) {
                float x = sl_bf16_to_f32(a[k * stride]), y = sl_bf16_to_f32(b[k * stride]);
                uint16_t expected = sl_bf16_from_f32(x + y), got = c[k * stride];
                if (isnan(x + y) ? !isnan(sl_bf16_to_f32(got)) : got != expected)
                    fail_msg("%g + %g at %d of stride %d on %s: bits %04x, not %04x", (double)x, (double)y, k,
                             (int)stride, sl_isa_name(isas[isa]), got, expected);
            }
        }
    }
    sl_isa_set(sl_isa_best());
}

static void casts_to_integers_truncate_and_stay_in_range(void **state)
{
    (void)state;
    const float x[6] = { 2.9f, -2.9f, 3e10f, -3e10f, NAN, 300 };
    const int64_t large[2] = { (INT64_C(1) << 53) + 1, -5 };
    int32_t i32[6];
    uint8_t u8[6], flags[6];
    int64_t i64[2];
    cast(SL_F32, x, SL_I32, i32, 6);
    assert_true(i32[0] == 2 && i32[1] == -2 && i32[2] == INT32_MAX && i32[3] == INT32_MIN && i32[4] == 0);
    cast(SL_F32, x, SL_U8, u8, 6);
    assert_true(u8[0] == 2 && u8[1] == 0 && u8[5] == 255);
    cast(SL_F32, x, SL_BOOL, flags, 6);
    assert_true(flags[0] == 1);
    cast(SL_I64, large, SL_I64, i64, 2);
    assert_true(i64[0] == large[0] && i64[1] == -5);
    cast(SL_I64, large, SL_I32, i32, 2);
    assert_true(i32[0] == INT32_MAX && i32[1] == -5);
}

static void every_dtype_can_be_copied_filled_and_joined(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < SL_DTYPE_COUNT; dtype++) {
        sl_shape shape = { .rank = 2, .dims = { 3, 4 } }, joined = { .rank = 2, .dims = { 6, 4 } };
        arg a = make_arg((sl_dtype)dtype, &shape, TURNED), b = make_arg((sl_dtype)dtype, &joined, PACKED);
        sl_kernel_call call = { .op = SL_OP_FILL, .attrs = { .alpha = 1 }, .outputs = &a.view, .output_count = 1 };
        assert_int_equal(run_call(call), SL_OK);
        sl_view parts[2] = { a.view, a.view };
        call = (sl_kernel_call){
            .op = SL_OP_CONCAT, .inputs = parts, .input_count = 2, .outputs = &b.view, .output_count = 1
        };
        assert_int_equal(run_call(call), SL_OK);
        for (int64_t i = 0; i < 24; i++)
            assert_true(get(&b.view, i) == 1);
        free(a.block);
        free(b.block);
    }
}

/* ---- Dropout --------------------------------------------------------------------------------- */

static void philox_gives_the_published_numbers(void **state)
{
    (void)state;
    uint32_t zero[4] = { 0, 0, 0, 0 }, ones[4] = { ~0u, ~0u, ~0u, ~0u };
    static const uint32_t from_zero[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    static const uint32_t from_ones[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
    sl_philox(zero, 0, 0);
    sl_philox(ones, ~0u, ~0u);
    assert_memory_equal(zero, from_zero, sizeof zero);
    assert_memory_equal(ones, from_ones, sizeof ones);
}

enum { SAMPLES = 6, EACH = 1003 };

/* Samples first..first+count of a batch of ones, each EACH long. */
static void drop(float *y, int64_t first, int64_t count, sl_rng rng, uint64_t key, double p)
{
    static float ones[SAMPLES * EACH];
    for (int i = 0; i < SAMPLES * EACH; i++)
        ones[i] = 1;
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ count, EACH });
    sl_view in = { ones, meta }, out = { y, meta };
    rng.sample_offset = first;
    rng.training = true;
    sl_kernel_call call = { .op = SL_OP_DROPOUT,
                            .attrs = { .p = p, .key = key },
                            .inputs = &in,
                            .input_count = 1,
                            .outputs = &out,
                            .output_count = 1,
                            .rng = rng };
    assert_int_equal(run_call(call), SL_OK);
}

static void dropout_depends_on_the_element_not_on_the_split(void **state)
{
    (void)state;
    static float whole[SAMPLES * EACH], parts[SAMPLES * EACH];
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        drop(whole, 10, SAMPLES, (sl_rng){ .seed = 3, .step = 4 }, 5, 0.25);
        drop(parts, 10, 1, (sl_rng){ .seed = 3, .step = 4 }, 5, 0.25);
        drop(parts + EACH, 11, SAMPLES - 1, (sl_rng){ .seed = 3, .step = 4 }, 5, 0.25);
        assert_memory_equal(whole, parts, sizeof whole);
    }
    sl_isa_set(sl_isa_best());
}

static void dropout_keeps_the_mean_and_changes_with_seed_step_and_node(void **state)
{
    (void)state;
    static float first[SAMPLES * EACH], other[SAMPLES * EACH];
    const sl_rng rng = { .seed = 3, .step = 4 }, seed = { .seed = 4, .step = 4 }, step = { .seed = 3, .step = 5 };
    double sum = 0;
    drop(first, 0, SAMPLES, rng, 5, 0.25);
    for (int i = 0; i < SAMPLES * EACH; i++) {
        assert_true(first[i] == 0 || fabsf(first[i] - 4.0f / 3) < 1e-6f);
        sum += first[i];
    }
    assert_true(fabs(sum / (SAMPLES * EACH) - 1) < 0.05);
    drop(other, 0, SAMPLES, seed, 5, 0.25);
    assert_memory_not_equal(first, other, sizeof first);
    drop(other, 0, SAMPLES, step, 5, 0.25);
    assert_memory_not_equal(first, other, sizeof first);
    drop(other, 0, SAMPLES, rng, 6, 0.25);
    assert_memory_not_equal(first, other, sizeof first);
}

enum { HEADS = 2, PLACES = 70, HEAD = 8, WEIGHTS = SAMPLES * HEADS * PLACES * PLACES };

/* o of samples first..first+count, q, k and v being `x` [SAMPLES, PLACES, HEADS, HEAD]. */
static void attend_dropped(const float *x, int64_t first, int64_t count, const sl_op_attrs *attrs, float *o)
{
    static float lse[SAMPLES * HEADS * PLACES];
    sl_meta meta = sl_meta_make(SL_F32, 4, (int64_t[]){ count, PLACES, HEADS, HEAD });
    sl_view in = { (float *)x + first * PLACES * HEADS * HEAD, meta };
    sl_view out[2] = { { o + first * PLACES * HEADS * HEAD, meta },
                       { lse, sl_meta_make(SL_F32, 3, (int64_t[]){ count, HEADS, PLACES }) } };
    sl_kernel_call call = { .op = SL_OP_ATTENTION,
                            .attrs = *attrs,
                            .inputs = (sl_view[]){ in, in, in },
                            .input_count = 3,
                            .outputs = out,
                            .output_count = 2,
                            .rng = { .seed = 3, .step = 4, .sample_offset = 10 + first, .training = true } };
    assert_int_equal(run_call(call), SL_OK);
}

static void run_step(sl_op op, const sl_op_attrs *attrs, const sl_view *inputs, int count, const sl_view *y)
{
    sl_kernel_call call = { .op = op,
                            .attrs = *attrs,
                            .inputs = inputs,
                            .input_count = count,
                            .outputs = y,
                            .output_count = 1,
                            .rng = { .seed = 3, .step = 4, .sample_offset = 10, .training = true } };
    assert_int_equal(run_call(call), SL_OK);
}

/* The same step by step, the weights in full: softmax(scale q k'), dropout, times v. */
static void attend_in_full(float *x, const sl_op_attrs *attrs, float *o)
{
    static float weights[WEIGHTS];
    sl_meta heads = sl_meta_make(SL_F32, 4, (int64_t[]){ SAMPLES, PLACES, HEADS, HEAD });
    assert_int_equal(sl_meta_permute(&heads, (int[]){ 0, 2, 1, 3 }, &heads), SL_OK);
    sl_view in = { x, heads }, out = { o, heads };
    sl_view full = { weights, sl_meta_make(SL_F32, 4, (int64_t[]){ SAMPLES, HEADS, PLACES, PLACES }) };
    run_step(SL_OP_MATMUL, &(sl_op_attrs){ .transpose_b = true }, (sl_view[]){ in, in }, 2, &full);
    run_step(SL_OP_SCALE, &(sl_op_attrs){ .alpha = attrs->scale }, &full, 1, &full);
    run_step(SL_OP_SOFTMAX, &(sl_op_attrs){ 0 }, &full, 1, &full);
    run_step(SL_OP_DROPOUT, attrs, &full, 1, &full);
    run_step(SL_OP_MATMUL, &(sl_op_attrs){ 0 }, (sl_view[]){ full, in }, 2, &out);
}

static void attention_drops_the_weights_that_dropout_would(void **state)
{
    (void)state;
    enum { COUNT = SAMPLES * PLACES * HEADS * HEAD };
    static float x[COUNT], o[COUNT], parts[COUNT], full[COUNT];
    const sl_op_attrs attrs = { .scale = 0.1, .p = 0.4, .key = 5 };
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)normal();
    for (int isa = 0; isa < ISAS; isa++) {
        if (!sl_isa_set(isas[isa]))
            continue;
        attend_dropped(x, 0, SAMPLES, &attrs, o);
        attend_dropped(x, 0, 1, &attrs, parts);
        attend_dropped(x, 1, SAMPLES - 1, &attrs, parts);
        assert_memory_equal(o, parts, sizeof o);
        attend_in_full(x, &attrs, full);
        for (int i = 0; i < COUNT; i++)
            assert_true(fabsf(o[i] - full[i]) <= 2e-6f);
    }
    sl_isa_set(sl_isa_best());
}

int main(void)
{
    emulate_amx();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponentials_hold_over_the_whole_range),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(infinities_and_nan_travel),
        cmocka_unit_test(softmax_stands_large_logits),
        cmocka_unit_test(softmax_added_to_zeros_has_the_same_bits),
        cmocka_unit_test(attention_stands_large_scores),
        cmocka_unit_test(casts_to_half_precision_round_to_even),
        cmocka_unit_test(products_round_to_even_also_what_is_tiny),
        cmocka_unit_test(sums_of_bf16_round_to_even_also_what_is_tiny),
        cmocka_unit_test(casts_to_integers_truncate_and_stay_in_range),
        cmocka_unit_test(every_dtype_can_be_copied_filled_and_joined),
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(dropout_depends_on_the_element_not_on_the_split),
        cmocka_unit_test(dropout_keeps_the_mean_and_changes_with_seed_step_and_node),
        cmocka_unit_test(attention_drops_the_weights_that_dropout_would),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
