/* Calls that are wrong are refused with a message that says what and where, before anything is touched. */
#include "unit/kernel/calls.h"

#include "kernel/cpu/isa.h"

typedef struct refusal {
    sl_op op;
    const char *inputs, *outputs;
    sl_op_attrs attrs;
    uint32_t accumulate;
    const char *message; /* is part of it */
} refusal;

static const refusal refusals[] = {
    { SL_OP_LINEAR,
      "2x3 4x5",
      "2x5",
      { 0 },
      0,
      "linear(x f32 [2, 3], w f32 [4, 5]) -> y f32 [2, 5]: w takes 4 features" },
    { SL_OP_LINEAR, "2x3 3x5 4", "2x5", { 0 }, 0, "b f32 [4]) -> y f32 [2, 5]: b must be [5]" },
    { SL_OP_LINEAR, "2x3 3x5", "3x5", { 0 }, 0, "-> y f32 [3, 5]: y must be [2, 5]" },
    { SL_OP_LINEAR, "2x3", "2x5", { 0 }, 0, "linear: takes 2 to 3 inputs, given 1" },
    { SL_OP_LINEAR_GRAD_W, "2x3 3x5", "3x5", { 0 }, 0, "dy must be [2, 5]" },
    { SL_OP_MATMUL, "2x3 4x5", "2x5", { 0 }, 0, "inner dims 3 and 4 differ" },
    { SL_OP_MATMUL, "2x2x3 3x3x5", "2x2x5", { 0 }, 0, "leading dims do not broadcast" },
    { SL_OP_MATMUL, "3 3x5", "5", { 0 }, 0, "a must have at least 2 dims" },
    { SL_OP_LAYERNORM, "2x3 4", "2x3 2 2", { 0 }, 0, "w must be [3]" },
    { SL_OP_LAYERNORM, "2x3 3 3", "2x3 3 2", { 0 }, 0, "mean must be [2]" },
    { SL_OP_LAYERNORM, "2x3", "2x3 2 2", { 0 }, 1, "layernorm: cannot accumulate" },
    { SL_OP_RMSNORM_GRAD_X, "2x3 2x4 4 2", "2x4", { 0 }, 0, "x must be [2, 3]" },
    { SL_OP_GELU_TANH, "2x3", "3x2", { 0 }, 0, "y must be [2, 3]" },
    { SL_OP_GELU_TANH, "i5:2x3", "2x3", { 0 }, 0, "gelu_tanh(x i32 [2, 3]) -> y f32 [2, 3]: x must be floating" },
    { SL_OP_GELU_TANH, "2x3", "i5:2x3", { 0 }, 0, "y must be floating" },
    { SL_OP_ADD,
      "2x3 d:2x3",
      "2x3",
      { 0 },
      0,
      "add(a f32 [2, 3], b f64 [2, 3]) -> c f32 [2, 3]: b must be f32 like a" },
    { SL_OP_LINEAR, "2x3 i5:3x5", "2x5", { 0 }, 0, "w must be floating" },
    { SL_OP_LINEAR, "2x3 -", "2x5", { 0 }, 0, "linear(x f32 [2, 3]) -> y f32 [2, 5]: w is missing" },
    { SL_OP_NEG, "i5:2", "i5:2", { 0 }, 0, "x must be floating" },
    { SL_OP_ATTENTION,
      "1x4x3x2 1x4x2x2 1x4x2x2",
      "1x4x3x2 1x3x4",
      { 0 },
      0,
      "3 query heads do not share 2 key heads evenly" },
    { SL_OP_ATTENTION, "1x4x2 1x4x2 1x4x2", "1x4x2 1x4", { 0 }, 0, "q must have 4 dims" },
    { SL_OP_ATTENTION_CACHED,
      "1x2x1x2 1x2x1x2 1x2x1x2 1x4x1x2 1x4x1x2 l2:s",
      "1x2x1x2",
      { 0 },
      0,
      "position must be i32" },
    { SL_OP_ROPE, "1x2x1x3 2x2 2x2", "1x2x1x3", { 0 }, 0, "the table is for heads of 4 or more" },
    { SL_OP_ATTENTION,
      "1x2x1x2 1x2x1x2 1x2x1x2",
      "1x2x1x2 1x1x2",
      { .scale = 1, .window = 2 },
      0,
      "a window needs a causal mask" },
    { SL_OP_ATTENTION,
      "1x2x1x2 1x2x1x2 1x2x1x2",
      "1x2x1x2 1x1x2",
      { .scale = 1, .causal = true, .window = -1 },
      0,
      "the window -1 is below 0" },
    { SL_OP_ATTENTION,
      "1x2x1x2 1x2x1x2 1x2x1x2",
      "1x2x1x2 1x1x2",
      { .scale = 1, .softcap = -2 },
      0,
      "the softcap -2 is below 0" },
    { SL_OP_ATTENTION, "1x4x2x2 1x4x2x2 1x4x2x2 i4:1x4", "1x4x2x2 1x2x4", { 0 }, 0, "documents need a causal mask" },
    { SL_OP_ATTENTION,
      "1x4x2x2 1x5x2x2 1x5x2x2 i4:1x4",
      "1x4x2x2 1x2x4",
      { .causal = true },
      0,
      "documents need as many keys as queries" },
    { SL_OP_ATTENTION,
      "2x4x2x2 2x4x2x2 2x4x2x2 i4:4",
      "2x4x2x2 2x2x4",
      { .causal = true },
      0,
      "positions must be [2, 4]" },
    { SL_OP_ROPE, "2x4x1x2 4x1 4x1 i4:3x4", "2x4x1x2", { 0 }, 0, "positions must be [2, 4]" },
    { SL_OP_ROPE, "1x4x1x2 3x1 3x1", "1x4x1x2", { 0 }, 0, "the table ends at position 3" },
    { SL_OP_EMBEDDING, "2 4x3", "2x3", { 0 }, 0, "ids must be i32 or i64" },
    { SL_OP_EMBEDDING, "i4:2 4x3", "2x5", { 0 }, 0, "y must be [2, 3]" },
    { SL_OP_CROSS_ENTROPY, "2x3 i3:3", "s 2", { 0 }, 0, "there must be one target for each row of logits" },
    { SL_OP_CROSS_ENTROPY, "2x3 i3:2", "1 2", { 0 }, 0, "loss must be []" },
    { SL_OP_ADD, "2x3 4", "2x3", { 0 }, 0, "the shapes do not broadcast" },
    { SL_OP_SUM_TO, "2x3", "2", { 0 }, 0, "y does not stretch to [2, 3]" },
    { SL_OP_SUM, "2x3", "3", { .dims = 4 }, 0, "dims 0x4 are not all among the 2 of x" },
    { SL_OP_SUM, "2x3", "2", { .dims = 1 }, 0, "y must be [3]" },
    { SL_OP_MAX, "0x3", "3", { .dims = 1 }, 0, "no element to take the maximum of" },
    { SL_OP_CONCAT, "2x3 2x4", "2x8", { .dim = 1 }, 0, "y must be [2, 7]" },
    { SL_OP_CONCAT, "2x3 3x4", "2x7", { .dim = 1 }, 0, "argument 1 differs in more than dim 1" },
    { SL_OP_CONCAT, "2x3", "2x3", { .dim = 2 }, 0, "there is no dim 2" },
    { SL_OP_COPY, "2x3", "d:2x3", { 0 }, 0, "y must be f32 like x" },
    { SL_OP_SQUARE_SUM, "2x3", "s", { 0 }, 0, "y must be f64" },
    { SL_OP_ADD, "2 2", "2 2", { 0 }, 0, "add: has 1 outputs, given 2" },
    { SL_OP_DROPOUT, "2", "2", { .p = 1 }, 0, "p is 1, not in [0, 1)" },
    { SL_OP_ATTENTION, "1x4x2x2 1x4x2x2 1x4x2x2", "1x4x2x2 1x2x4", { .p = -0.5 }, 0, "p is -0.5, not in [0, 1)" },
    { SL_OP_COUNT, "2", "2", { 0 }, 0, "there is no op" },
};

static void wrong_calls_are_named(void **state)
{
    (void)state;
    open_device(1);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        args inputs = make_args(r->inputs, SL_F32, PACKED), outputs = make_args(r->outputs, SL_F32, PACKED);
        sl_kernel_call call = { .op = r->op,
                                .attrs = r->attrs,
                                .inputs = inputs.views,
                                .input_count = inputs.count,
                                .outputs = outputs.views,
                                .output_count = outputs.count,
                                .accumulate = r->accumulate };
        size_t bytes = 77;
        sl_status status = sl_kernel_run(test_stream, &call);
        if (status == SL_OK || !strstr(sl_error_message(), r->message))
            fail_msg("refusal %zu (%s): status %s, message '%s'", i, r->message, sl_status_name(status),
                     sl_error_message());
        assert_int_equal(sl_kernel_scratch(test_device, &call, &bytes), status);
        assert_int_equal(bytes, 77);
        free_args(&inputs);
        free_args(&outputs);
    }
    close_device();
}

/* What only the data can show. */
static void check_data(sl_op op, const char *inputs_text, const char *outputs_text, int input, int64_t element,
                       double value, const char *message)
{
    args inputs = make_args(inputs_text, SL_F32, PACKED), outputs = make_args(outputs_text, SL_F32, PACKED);
    put(&inputs.views[input], element, value);
    sl_kernel_call call = { .op = op,
                            .attrs = { .ignore_index = -100 },
                            .inputs = inputs.views,
                            .input_count = inputs.count,
                            .outputs = outputs.views,
                            .output_count = outputs.count };
    assert_int_equal(run_call(call), SL_ERR_ARGUMENT);
    if (!strstr(sl_error_message(), message))
        fail_msg("'%s' lacks '%s'", sl_error_message(), message);
    free_args(&inputs);
    free_args(&outputs);
}

static void indices_out_of_range_name_the_element(void **state)
{
    (void)state;
    for (int isa = SL_ISA_REFERENCE; isa <= (int)sl_isa_best(); isa++) {
        assert_true(sl_isa_set((sl_isa)isa));
        open_device(1);
        check_data(SL_OP_EMBEDDING, "i5:2x3 5x4", "2x3x4", 0, 4, 5, "embedding: id 5 at element 4 is not in 0..4");
        check_data(SL_OP_EMBEDDING, "l5:2x3 5x4", "2x3x4", 0, 0, -1, "embedding: id -1 at element 0 is not in 0..4");
        check_data(SL_OP_EMBEDDING_GRAD, "i5:6 6x4", "5x4", 0, 5, 9, "embedding_grad: id 9 at element 5");
        check_data(SL_OP_CROSS_ENTROPY, "4x7 i7:4", "s 4", 1, 2, 7, "cross_entropy: target 7 at element 2");
        check_data(SL_OP_ROPE, "1x3x1x4 5x2 5x2 i5:3", "1x3x1x4", 3, 1, 5, "rope: position 5 at element 1");
        check_data(SL_OP_ATTENTION_CACHED, "1x2x1x2 1x2x1x2 1x2x1x2 1x4x1x2 1x4x1x2 i2:s", "1x2x1x2", 5, 0, 3,
                   "attention_cached: positions 3..4 do not fit into a cache of 4");
        close_device();
    }
    sl_isa_set(sl_isa_best());
}

static void a_stretched_output_is_refused(void **state)
{
    (void)state;
    float x[6] = { 0 }, y[2] = { 0 };
    sl_view in = { x, sl_meta_make(SL_F32, 2, (int64_t[]){ 3, 2 }) }, out = { y, in.meta };
    sl_kernel_call call = { .op = SL_OP_COPY, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1 };
    out.meta.strides[0] = 0;
    open_device(1);
    assert_int_equal(sl_kernel_run(test_stream, &call), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(),
                        "copy(x f32 [3, 2]) -> y f32 [3, 2] strides [0, 1]: y has several elements at one address");
    close_device();
}

static void too_little_scratch_is_refused(void **state)
{
    (void)state;
    open_device(1);
    args inputs = make_args("1x4x1x8 1x4x1x8 1x4x1x8", SL_F32, PACKED);
    args outputs = make_args("1x4x1x8 1x1x4", SL_F32, PACKED);
    sl_kernel_call call = { .op = SL_OP_ATTENTION,
                            .attrs = { .scale = 1 },
                            .inputs = inputs.views,
                            .input_count = 3,
                            .outputs = outputs.views,
                            .output_count = 2 };
    size_t bytes = 0;
    assert_int_equal(sl_kernel_scratch(test_device, &call, &bytes), SL_OK);
    assert_true(bytes > 0);
    call.scratch_bytes = bytes - 1;
    assert_int_equal(sl_kernel_run(test_stream, &call), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "bytes of scratch"));
    free_args(&inputs);
    free_args(&outputs);
    close_device();
}

static void the_description_names_what_runs(void **state)
{
    (void)state;
    char text[160];
    open_device(2);
    assert_non_null(strstr(sl_kernel_describe(test_device, text, sizeof text), sl_isa_name(sl_isa_get())));
    assert_non_null(strstr(text, "2 threads"));
    assert_true(sl_kernel_measure_peak(test_device) > 1e8);
    close_device();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_calls_are_named),           cmocka_unit_test(indices_out_of_range_name_the_element),
        cmocka_unit_test(a_stretched_output_is_refused),   cmocka_unit_test(too_little_scratch_is_refused),
        cmocka_unit_test(the_description_names_what_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
