/* Every op on the GPU: the cases of the cpu's kernels, in f32, bf16 and mixed element types, in every memory layout,
 * against the reference in f64; the same bits each time; bad indices are named. */
#include "gpu/gpu.h"

#include "kernel/fused.h"
#include "kernel/gpu_scratch.h"

#include <pthread.h>

static int failures;

/* All that is wrong is printed before the test fails: time on a GPU is dear. */
static void SL_PRINTF(1, 2) complain(const char *format, ...)
{
    va_list list;
    if (++failures > 60)
        return;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
}

static void check_close(const op_case *c, const char *what, int number, const sl_view *given, const sl_view *expected,
                        double tolerance)
{
    char text[160];
    if (!is_close(given, expected, tolerance, text, sizeof text))
        complain("%s %s -> %s, tensor %d: %s", what, c->inputs, c->outputs, number, text);
}

static void reference(const op_case *c, args *inputs, args *outputs, bool accumulate)
{
    assert_true(sl_isa_set(SL_ISA_REFERENCE));
    open_device(1);
    assert_int_equal(run_call(call_of(c, inputs, outputs, accumulate)), SL_OK);
    close_device();
    assert_true(sl_isa_set(sl_isa_best()));
}

/* compute-sanitizer makes the cases slow. With SLUICE_GPU_SHARE=k/n every op runs in the k-th of n shares of them, from 0 on;
 * only packed and in a random layout, which is as odd as the others; large products, which are cuBLASLt's, are left out. */
static bool is_in_share(size_t i)
{
    const char *share = getenv("SLUICE_GPU_SHARE");
    unsigned k = 0, n = 1;
    if (!share || sscanf(share, "%u/%u", &k, &n) != 2 || n == 0)
        return true;
    return i % n == k && !(cases[i].large && cases[i].op <= SL_OP_MATMUL);
}

static bool runs_in(layout how)
{
    return !getenv("SLUICE_GPU_SHARE") || how == PACKED || how == RANDOM;
}

static void check_f32(size_t i, layout how, bool accumulate, const args *wanted_in, const args *wanted)
{
    const op_case *c = &cases[i];
    char what[128];
    snprintf(what, sizeof what, "%s (%s%s)", sl_op_name(c->op), layout_names[how], accumulate ? ", adding" : "");
    seed_case(i);
    args inputs = make_args(c->inputs, SL_F32, how), outputs = make_args(c->outputs, SL_F32, how);
    double tolerance = c->tolerance > 0 ? c->tolerance : 1e-6;
    if (run_on_gpu(call_of(c, &inputs, &outputs, accumulate)) != SL_OK)
        complain("%s: %s", what, sl_error_message());
    for (int n = 0; n < outputs.count; n++) {
        if (!sl_view_is_none(&outputs.views[n]))
            check_close(c, what, n, &outputs.views[n], &wanted->views[n], tolerance);
    }
    for (int n = 0; n < inputs.count; n++) { /* inputs stay as they were, caches are as the reference made them */
        if (!sl_view_is_none(&inputs.views[n]))
            check_close(c, what, -1 - n, &inputs.views[n], &wanted_in->views[n], tolerance);
    }
    free_args(&inputs);
    free_args(&outputs);
}

static void check_f32_layouts(size_t i, bool accumulate)
{
    const op_case *c = &cases[i];
    seed_case(i);
    args inputs = make_args(c->inputs, SL_F64, PACKED), outputs = make_args(c->outputs, SL_F64, PACKED);
    reference(c, &inputs, &outputs, accumulate);
    for (int how = PACKED; how <= RANDOM; how++) {
        if (runs_in((layout)how))
            check_f32(i, (layout)how, accumulate, &inputs, &outputs);
    }
    free_args(&inputs);
    free_args(&outputs);
}

static void every_op_has_a_case(void **state)
{
    (void)state;
    if (op_without_case())
        fail_msg("no case runs %s", op_without_case());
}

static void every_op_in_f32_agrees_with_the_reference(void **state)
{
    (void)state;
    failures = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (int accumulate = 0; accumulate <= sl_op_get_info(cases[i].op)->accumulates && is_in_share(i); accumulate++)
            check_f32_layouts(i, accumulate);
    }
    assert_int_equal(failures, 0);
}

/* ---- bf16 and mixed types -------------------------------------------------------------------- */

/* All: data, weights and results in bf16, statistics in f32. Training: results of gradients of weights in f32 as well.
 * Mixed: weights in f16, results in f32. */
typedef enum recipe { ALL_BF16, TRAINING, MIXED } recipe;

static sl_dtype dtype_in(recipe how, const op_case *c, const sl_op_arg *place, sl_dtype own, bool output)
{
    switch (place->kind) {
    case SL_ARG_DATA:
        if (!output || how == ALL_BF16)
            return SL_BF16;
        return how == MIXED || strstr(sl_op_name(c->op), "grad_w") || c->op == SL_OP_EMBEDDING_GRAD ||
                       (sl_op_is_fused(c->op) && strstr(sl_op_name(c->op), "_grad") &&
                        place != sl_op_get_info(c->op)->outputs)
                   ? SL_F32
                   : SL_BF16;
    case SL_ARG_MOVED:
        return SL_BF16;
    case SL_ARG_ANY:
    case SL_ARG_FLOAT:
        return output && how == MIXED ? SL_F32 : how == MIXED ? SL_F16 : SL_BF16;
    case SL_ARG_STATISTIC:
        return SL_F32;
    default:
        return own;
    }
}

/* Copies the arguments into other element types, and what they lose there back into the f64 ones. */
static args converted(const op_case *c, const args *from, recipe how, layout where, bool output)
{
    args to = { .count = from->count };
    const sl_op_info *info = sl_op_get_info(c->op);
    for (int i = 0; i < from->count; i++) {
        const sl_view *view = &from->views[i];
        const sl_op_arg *place = output ? &info->outputs[i] : sl_op_input_arg(info, i);
        if (sl_view_is_none(view)) {
            to.views[i] = to.list[i].view = *view;
            continue;
        }
        to.list[i] = make_arg(dtype_in(how, c, place, view->meta.dtype, output), &view->meta.shape, where);
        to.views[i] = to.list[i].view;
        for (int64_t e = 0; e < sl_meta_count(&view->meta); e++) {
            put(&to.views[i], e, get(view, e));
            put(view, e, get(&to.views[i], e));
        }
    }
    return to;
}

/* A result in bf16 is as near as a bf16 number can be, but for what f32 loses on the way: nothing in between was rounded to
 * bf16. Chance decides about a few elements; many of them tell. Attention of cuDNN, and its gradient by the units of
 * sm_90a, round weights. */
static void check_rounded_once(const op_case *c, const char *what, int number, const sl_view *given,
                               const sl_view *expected)
{
    enum { MANY_ENOUGH = 200 };
    int64_t count = sl_meta_count(&expected->meta);
    double error = 0, least = 0;
    arg rounded = make_arg(SL_BF16, &expected->meta.shape, PACKED);
    for (int64_t i = 0; i < count; i++) {
        double exact = get(expected, i);
        put(&rounded.view, i, exact);
        double difference = get(given, i) - exact, smallest = get(&rounded.view, i) - exact;
        if (isfinite(difference) && isfinite(smallest)) {
            error += difference * difference;
            least += smallest * smallest;
        }
    }
    free(rounded.block);
    if (count >= MANY_ENOUGH && !(sqrt(error) <= 1.05 * sqrt(least) + 1e-12))
        complain("%s %s -> %s, tensor %d: error %.3g, that of rounding once %.3g", what, c->inputs, c->outputs, number,
                 sqrt(error), sqrt(least));
}

static void check_mixed(const op_case *c, const char *what, const sl_kernel_call *call, const args *wanted)
{
    if (run_on_gpu(*call) != SL_OK)
        complain("%s: %s", what, sl_error_message());
    for (int n = 0; n < call->output_count; n++) {
        const sl_view *output = &call->outputs[n];
        if (sl_view_is_none(output))
            continue;
        /* Results are rounded once, to 8 bits; f32 sums of products of bf16 are exact but for their additions. */
        double tolerance = output->meta.dtype == SL_BF16 ? 0x1p-8 : c->tolerance > 0 ? c->tolerance : 2e-6;
        if (sl_op_is_fused(c->op))
            tolerance = 0x1p-8; /* of what is rounded between its parts, too; its bits have a test of their own */
        check_close(c, what, n, output, &wanted->views[n], tolerance);
        if (output->meta.dtype == SL_BF16 && !sl_op_is_fused(c->op) && !sl_gpu_dnn_fits(call) &&
            !sl_gpu_wgmma_fits(call))
            check_rounded_once(c, what, n, output, &wanted->views[n]);
    }
}

static void check_mixed_layouts(size_t i, recipe how, bool accumulate)
{
    static const char *const names[] = { "bf16", "training in bf16", "mixed" };
    static const layout layouts[] = { PACKED, RANDOM };
    enum { LAYOUTS = sizeof layouts / sizeof *layouts };
    const op_case *c = &cases[i];
    args inputs[LAYOUTS], outputs[LAYOUTS];
    seed_case(i);
    args wanted_in = make_args(c->inputs, SL_F64, PACKED), wanted = make_args(c->outputs, SL_F64, PACKED);
    for (int n = 0; n < LAYOUTS; n++) {
        inputs[n] = converted(c, &wanted_in, how, layouts[n], false);
        outputs[n] = converted(c, &wanted, how, layouts[n], true);
    }
    reference(c, &wanted_in, &wanted, accumulate);
    for (int n = 0; n < LAYOUTS; n++) {
        const sl_kernel_call call = call_of(c, &inputs[n], &outputs[n], accumulate);
        char what[128];
        snprintf(what, sizeof what, "%s (%s, %s%s)", sl_op_name(c->op), names[how], layout_names[layouts[n]],
                 accumulate ? ", adding" : "");
        check_mixed(c, what, &call, &wanted);
        free_args(&inputs[n]);
        free_args(&outputs[n]);
    }
    free_args(&wanted_in);
    free_args(&wanted);
}

static void every_op_in_bf16_and_mixed_types_agrees_with_the_reference(void **state)
{
    (void)state;
    failures = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (int how = ALL_BF16; how <= MIXED && is_in_share(i); how++) {
            check_mixed_layouts(i, (recipe)how, false);
            if (sl_op_get_info(cases[i].op)->accumulates)
                check_mixed_layouts(i, (recipe)how, true);
        }
    }
    assert_int_equal(failures, 0);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static void run_case(size_t i, layout how, sl_dtype dtype, args *inputs, args *outputs)
{
    seed_case(i);
    *inputs = make_args(cases[i].inputs, dtype, how);
    *outputs = make_args(cases[i].outputs, dtype, how);
    assert_int_equal(run_on_gpu(call_of(&cases[i], inputs, outputs, false)), SL_OK);
}

static void check_same(size_t i, const char *what, const args *a, const args *b)
{
    for (int n = 0; n < a->count; n++) {
        if (sl_view_is_none(&a->views[n]))
            continue;
        for (int64_t e = 0; e < sl_meta_count(&a->views[n].meta); e++) {
            double x = get(&a->views[n], e), y = get(&b->views[n], e);
            if (memcmp((const void *)&x, (const void *)&y, sizeof x) != 0) {
                complain("%s %s: element %lld of output %d is %.9g and %.9g %s", sl_op_name(cases[i].op),
                         cases[i].inputs, (long long)e, n, x, y, what);
                return;
            }
        }
    }
}

/* What an op says that it takes without a copy gives the bits that contiguous tensors give. */
static bool fits(const op_case *c, layout how)
{
    if (how == TURNED)
        return sl_op_get_info(c->op)->layout == SL_LAYOUT_ANY;
    return how != PADDED || sl_op_get_info(c->op)->layout == SL_LAYOUT_ANY;
}

static void the_same_call_gives_the_same_bits(void **state)
{
    (void)state;
    failures = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (int kind = 0; kind < 2; kind++) {
            args inputs, outputs, again_in, again;
            sl_dtype dtype = kind ? SL_BF16 : SL_F32;
            run_case(i, PACKED, dtype, &inputs, &outputs);
            for (int how = PACKED; how < LAYOUT_COUNT; how++) {
                if (!fits(&cases[i], (layout)how))
                    continue;
                run_case(i, (layout)how, dtype, &again_in, &again);
                check_same(i, layout_names[how], &outputs, &again);
                free_args(&again_in);
                free_args(&again);
            }
            free_args(&inputs);
            free_args(&outputs);
        }
    }
    assert_int_equal(failures, 0);
}

static void results_in_place_have_the_same_bits(void **state)
{
    (void)state;
    failures = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        const op_case *c = &cases[i];
        args apart_in, apart, inputs, outputs;
        run_case(i, PACKED, SL_F32, &apart_in, &apart);
        for (int k = 0; k < apart_in.count; k++) {
            if (!(sl_op_input_arg(sl_op_get_info(c->op), k)->flags & SL_ARG_INPLACE) ||
                !sl_shape_equal(&apart_in.views[k].meta.shape, &apart.views[0].meta.shape))
                continue;
            seed_case(i);
            inputs = make_args(c->inputs, SL_F32, PACKED);
            outputs = make_args(c->outputs, SL_F32, PACKED);
            outputs.views[0] = inputs.views[k];
            assert_int_equal(run_on_gpu(call_of(c, &inputs, &outputs, false)), SL_OK);
            check_same(i, "in place", &apart, &outputs);
            free_args(&inputs);
            free_args(&outputs);
        }
        free_args(&apart_in);
        free_args(&apart);
    }
    assert_int_equal(failures, 0);
}

/* ---- Fused ops ------------------------------------------------------------------------------- */

static void check_fused(size_t i, recipe how, bool accumulate)
{
    const op_case *c = &cases[i];
    sl_fused_part parts[SL_FUSED_PARTS];
    seed_case(i);
    args wide_in = make_args(c->inputs, SL_F64, PACKED), wide = make_args(c->outputs, SL_F64, PACKED);
    args inputs = converted(c, &wide_in, how, PACKED, false), whole = converted(c, &wide, how, PACKED, true);
    args apart = converted(c, &wide, how, PACKED, true);
    assert_int_equal(run_on_gpu(call_of(c, &inputs, &whole, accumulate)), SL_OK);
    sl_kernel_call call = call_of(c, &inputs, &apart, accumulate);
    for (int p = 0, count = sl_fused_parts(&call, parts); p < count; p++)
        assert_int_equal(run_on_gpu(parts[p].call), SL_OK);
    check_same(i, accumulate ? "by its parts, adding" : "by its parts", &whole, &apart);
    free_args(&wide_in);
    free_args(&wide);
    free_args(&inputs);
    free_args(&whole);
    free_args(&apart);
}

static void fused_ops_have_the_bits_of_their_parts(void **state)
{
    (void)state;
    failures = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (int how = ALL_BF16; how <= MIXED && sl_op_is_fused(cases[i].op); how++) {
            check_fused(i, (recipe)how, false);
            if (sl_op_get_info(cases[i].op)->accumulates)
                check_fused(i, (recipe)how, true);
        }
    }
    assert_int_equal(failures, 0);
}

/* ---- Dropout, conversions, faults --------------------------------------------------------------- */

/* Dropout draws the same bits as on the cpu. */
static void dropout_keeps_what_the_cpu_keeps(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (cases[i].op != SL_OP_DROPOUT)
            continue;
        args inputs, outputs, cpu_in, cpu_out;
        run_case(i, PACKED, SL_F32, &inputs, &outputs);
        seed_case(i);
        cpu_in = make_args(cases[i].inputs, SL_F32, PACKED);
        cpu_out = make_args(cases[i].outputs, SL_F32, PACKED);
        open_device(1);
        assert_int_equal(run_call(call_of(&cases[i], &cpu_in, &cpu_out, false)), SL_OK);
        close_device();
        for (int64_t e = 0; e < sl_meta_count(&outputs.views[0].meta); e++)
            assert_true((get(&outputs.views[0], e) == 0) == (get(&cpu_out.views[0], e) == 0));
        free_args(&inputs);
        free_args(&outputs);
        free_args(&cpu_in);
        free_args(&cpu_out);
    }
}

static void casts_give_what_the_cpu_gives(void **state)
{
    (void)state;
    static const sl_dtype dtypes[] = { SL_F32, SL_BF16, SL_F16, SL_I32, SL_I64, SL_U8, SL_BOOL, SL_F64 };
    static const double values[] = { 0, 1, -1, 2.5, -2.5, 300, -300, 1e10, -1e20, 7e-8, INFINITY, -INFINITY, NAN, 255 };
    enum { COUNT = sizeof values / sizeof *values };
    sl_shape shape = { 1, { COUNT } };
    failures = 0;
    for (int from = 0; from < 8; from++) {
        for (int to = 0; to < 8; to++) {
            arg x = make_arg(dtypes[from], &shape, PACKED), y = make_arg(dtypes[to], &shape, PACKED);
            arg z = make_arg(dtypes[to], &shape, PACKED);
            bool floating = sl_dtype_is_floating(dtypes[from]);
            for (int i = 0; i < COUNT; i++)
                put(&x.view, i, floating ? values[i] : (double)(i % 2));
            sl_kernel_call call = {
                .op = SL_OP_CAST, .inputs = &x.view, .input_count = 1, .outputs = &y.view, .output_count = 1
            };
            assert_int_equal(run_on_gpu(call), SL_OK);
            call.outputs = &z.view;
            open_device(1);
            assert_int_equal(run_call(call), SL_OK);
            close_device();
            for (int i = 0; i < COUNT; i++) {
                double a = get(&y.view, i), b = get(&z.view, i);
                if (a != b && !(isnan(a) && isnan(b)))
                    complain("%g from %s to %s is %g, expected %g", get(&x.view, i), sl_dtype_name(dtypes[from]),
                             sl_dtype_name(dtypes[to]), a, b);
            }
            free(x.block);
            free(y.block);
            free(z.block);
        }
    }
    assert_int_equal(failures, 0);
}

static void check_fault(sl_op op, const char *inputs_text, const char *outputs_text, int input, int place, double value,
                        const char *message)
{
    const op_case c = { .op = op, .inputs = inputs_text, .outputs = outputs_text, .attrs = { .ignore_index = -100 } };
    args inputs = make_args(c.inputs, SL_F32, PACKED), outputs = make_args(c.outputs, SL_F32, PACKED);
    sl_kernel_call call = call_of(&c, &inputs, &outputs, false);
    call.node = "h.3.somewhere";
    put(&inputs.views[input], place, value);
    assert_int_not_equal(run_on_gpu(call), SL_OK);
    assert_string_equal(sl_error_message(), message);
    assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK); /* it is reported once */
    free_args(&inputs);
    free_args(&outputs);
}

static void an_index_out_of_range_is_named_with_its_node(void **state)
{
    (void)state;
    check_fault(SL_OP_EMBEDDING, "i7:2x5 7x37", "2x5x37", 0, 3, 7,
                "'h.3.somewhere': embedding: id 7 at element 3 is not in 0..6");
    check_fault(SL_OP_EMBEDDING_GRAD, "l7:2x5 2x5x37", "7x37", 0, 9, -1,
                "'h.3.somewhere': embedding_grad: id -1 at element 9 is not in 0..6");
    check_fault(SL_OP_CROSS_ENTROPY, "2x5x37 i37:2x5", "s 2x5", 1, 4, 37,
                "'h.3.somewhere': cross_entropy: target 37 at element 4 is not in 0..36");
    check_fault(SL_OP_ROPE, "2x3x2x6 9x3 9x3 i9:3", "2x3x2x6", 3, 1, 9,
                "'h.3.somewhere': rope: position 9 at element 1 is not in 0..8");
    check_fault(SL_OP_ATTENTION_CACHED, "2x3x4x5 2x3x2x5 2x3x2x5 2x9x2x5 2x9x2x5 i4:s", "2x3x4x5", 5, 0, 7,
                "'h.3.somewhere': attention_cached: positions 7..9 do not fit into a cache of 9");
}

/* ---- Graphs ------------------------------------------------------------------------------------- */

/* One of two ranks that are threads: both capture the same kernel, for calls that need more and less of its block. */
typedef struct capturing_rank {
    const sl_kernel_call *call;
    sl_stream *stream;
    char error[256]; /* empty: every capture became a graph */
} capturing_rank;

static void *capture_often(void *context)
{
    enum { TIMES = 3000 };
    capturing_rank *rank = context;
    sl_status status = SL_OK;
    for (int i = 0; i < TIMES && status == SL_OK; i++) {
        sl_capture *capture = NULL;
        status = sl_stream_begin_capture(rank->stream);
        if (status == SL_OK)
            status = sl_kernel_run(rank->stream, rank->call);
        if (status == SL_OK)
            status = sl_stream_end_capture(rank->stream, &capture);
        sl_capture_destroy(capture);
    }
    if (status != SL_OK)
        snprintf(rank->error, sizeof rank->error, "%s", sl_error_message());
    return NULL;
}

static void threads_capture_one_kernel_beside_each_other(void **state)
{
    (void)state;
    const op_case c = { .op = SL_OP_LAYERNORM_GRAD,
                        .inputs = "300x768 300x768 768 300 p:300",
                        .outputs = "300x768 768 768 768" };
    far_call adding, plain;
    sl_stream *other = NULL;
    pthread_t thread;
    args wide_in = make_args(c.inputs, SL_F64, PACKED), wide = make_args(c.outputs, SL_F64, PACKED);
    args inputs = converted(&c, &wide_in, TRAINING, PACKED, false),
         outputs = converted(&c, &wide, TRAINING, PACKED, true);
    sl_kernel_call call = call_of(&c, &inputs, &outputs, true);
    assert_int_equal(place_call(&call, &adding), SL_OK);
    call.accumulate = 0;
    assert_int_equal(place_call(&call, &plain), SL_OK);
    assert_int_equal(sl_stream_create(gpu, &other), SL_OK);
    capturing_rank ranks[] = { { .call = &adding.call, .stream = gpu_stream },
                               { .call = &plain.call, .stream = other } };
    assert_int_equal(pthread_create(&thread, NULL, capture_often, &ranks[0]), 0);
    capture_often(&ranks[1]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(ranks[0].error, "");
    assert_string_equal(ranks[1].error, "");
    sl_stream_destroy(other);
    free_call(&adding);
    free_call(&plain);
    free_args(&wide_in);
    free_args(&wide);
    free_args(&inputs);
    free_args(&outputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_case),
        cmocka_unit_test(every_op_in_f32_agrees_with_the_reference),
        cmocka_unit_test(every_op_in_bf16_and_mixed_types_agrees_with_the_reference),
        cmocka_unit_test(the_same_call_gives_the_same_bits),
        cmocka_unit_test(results_in_place_have_the_same_bits),
        cmocka_unit_test(fused_ops_have_the_bits_of_their_parts),
        cmocka_unit_test(dropout_keeps_what_the_cpu_keeps),
        cmocka_unit_test(casts_give_what_the_cpu_gives),
        cmocka_unit_test(an_index_out_of_range_is_named_with_its_node),
        cmocka_unit_test(threads_capture_one_kernel_beside_each_other),
    };
    if (!open_gpu())
        return SKIPPED;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_gpu();
    return failed;
}
