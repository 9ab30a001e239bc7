/* Products and attention in f32 with AMX, which multiplies bf16 alone, are at least as exact as with multiply-adds, whatever
 * the numbers are. */
#include "unit/kernel/calls.h"

#include "kernel/cpu/isa.h"
#include "support/amx/amx.h"

enum { Q, K, V, O, LSE, D_O, D_Q, D_K, D_V, TENSORS, RESULTS = 5 };

static const char *const names[TENSORS] = { "q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv" };

static void use_amx(void)
{
    if (!sl_isa_set(SL_ISA_AMX)) {
        print_message("this machine has neither AMX nor AVX512-BF16\n");
        skip();
    }
}

/* An attention and its gradient. Keys and values have one head. */
typedef struct attention_case {
    int64_t queries, heads, width;
    double spread; /* of the queries: the larger, the less even the weights */
    sl_op_attrs attrs;
} attention_case;

static void make_tensors(const attention_case *c, sl_dtype dtype, arg *tensors)
{
    for (int i = 0; i < TENSORS; i++) {
        bool of_keys = i == K || i == V || i == D_K || i == D_V;
        sl_shape shape = { 4, { 1, c->queries, of_keys ? 1 : c->heads, c->width } };
        if (i == LSE)
            shape = (sl_shape){ 3, { 1, c->heads, c->queries } };
        tensors[i] = make_arg(dtype, &shape, PACKED);
    }
}

static void free_tensors(arg *tensors)
{
    for (int i = 0; i < TENSORS; i++)
        free(tensors[i].block);
}

/* Each number is one of f32. */
static void copy_tensor(const arg *from, const arg *to)
{
    int64_t count = sl_meta_count(&from->view.meta);
    for (int64_t i = 0; i < count; i++)
        put(&to->view, i, (float)get(&from->view, i));
}

static void run_op(const attention_case *c, sl_op op, const arg *tensors)
{
    sl_view views[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        views[i] = tensors[i].view;
    bool gradient = op == SL_OP_ATTENTION_GRAD;
    sl_kernel_call call = { .op = op,
                            .attrs = c->attrs,
                            .inputs = views,
                            .input_count = gradient ? D_Q : O,
                            .outputs = views + (gradient ? D_Q : O),
                            .output_count = gradient ? 3 : 2,
                            .rng = { .seed = 5, .training = true } };
    assert_int_equal(run_call(call), SL_OK);
}

/* What f64 gives, from numbers that are all of f32, also those that the gradient gets of the forward pass. */
static void find_expected(const attention_case *c, arg *expected, arg *inputs)
{
    assert_true(sl_isa_set(SL_ISA_REFERENCE));
    make_tensors(c, SL_F64, expected);
    make_tensors(c, SL_F64, inputs);
    for (int i = 0; i < TENSORS; i++) {
        int64_t count = sl_meta_count(&inputs[i].view.meta);
        for (int64_t e = 0; e < count; e++)
            put(&inputs[i].view, e, (float)(normal() * (i == Q ? c->spread : 1)));
        copy_tensor(&inputs[i], &expected[i]);
    }
    run_op(c, SL_OP_ATTENTION, expected);
    copy_tensor(&expected[O], &inputs[O]);
    copy_tensor(&expected[LSE], &inputs[LSE]);
    arg given[TENSORS];
    memcpy(given, inputs, sizeof given);
    for (int i = D_Q; i < TENSORS; i++)
        given[i] = expected[i];
    run_op(c, SL_OP_ATTENTION_GRAD, given);
}

static double error_of(const arg *given, const arg *expected)
{
    double sum = 0, norm = 0;
    int64_t count = sl_meta_count(&given->view.meta);
    for (int64_t i = 0; i < count; i++) {
        double right = get(&expected->view, i), error = get(&given->view, i) - right;
        sum += error * error;
        norm += right * right;
    }
    return sqrt(sum / norm);
}

/* The error of o, lse, dq, dk and dv, over their norm. */
static void find_errors(const attention_case *c, sl_isa isa, const arg *expected, const arg *inputs, double *errors)
{
    arg tensors[TENSORS];
    assert_true(sl_isa_set(isa));
    make_tensors(c, SL_F32, tensors);
    for (int i = 0; i < TENSORS; i++)
        copy_tensor(&inputs[i], &tensors[i]);
    run_op(c, SL_OP_ATTENTION, tensors);
    errors[0] = error_of(&tensors[O], &expected[O]);
    errors[1] = error_of(&tensors[LSE], &expected[LSE]);
    copy_tensor(&inputs[O], &tensors[O]);
    copy_tensor(&inputs[LSE], &tensors[LSE]);
    run_op(c, SL_OP_ATTENTION_GRAD, tensors);
    for (int i = D_Q; i < TENSORS; i++)
        errors[i - D_Q + 2] = error_of(&tensors[i], &expected[i]);
    free_tensors(tensors);
}

/* The last two have long sums over queries, of small numbers and of numbers that are much larger at first. */
static const attention_case cases[] = {
    { 200, 2, 64, 1, { .scale = 0.125, .causal = true } },
    { 200, 2, 64, 8, { .scale = 0.125 } },
    { 230, 2, 17, 1, { .scale = 0.25, .causal = true, .p = 0.2, .key = 3 } },
    { 300, 1, 40, 1, { .scale = 0.16, .causal = true, .window = 70, .softcap = 2 } },
    { 130, 2, 128, 1, { .scale = 0.09 } },
    { 512, 4, 24, 1, { .scale = 0.2 } },
    { 512, 4, 32, 1, { .scale = 0.18, .causal = true } },
};

static void attention_with_amx_is_as_exact_as_with_multiply_adds(void **state)
{
    const double most = 1.1; /* times the error: the log-sum-exp has the same on average */
    static const int results[RESULTS] = { O, LSE, D_Q, D_K, D_V };
    (void)state;
    use_amx();
    open_device(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arg expected[TENSORS], inputs[TENSORS];
        double errors[RESULTS], own[RESULTS];
        test_random_state = 300 + i;
        find_expected(&cases[i], expected, inputs);
        find_errors(&cases[i], SL_ISA_AVX512, expected, inputs, errors);
        find_errors(&cases[i], SL_ISA_AMX, expected, inputs, own);
        assert_true(own[0] != errors[0]); /* it is other code */
        for (int r = 0; r < RESULTS; r++) {
            if (!(own[r] <= most * errors[r]))
                fail_msg("case %zu: the error of %s is %.3g with AMX, %.3g with AVX-512", i, names[results[r]], own[r],
                         errors[r]);
        }
        free_tensors(expected);
        free_tensors(inputs);
    }
    close_device();
}

/* ---- Products -------------------------------------------------------------------------------- */

/* c[m,n] = a[m,k] b[k,n], or added to what c holds. Numbers are normal ones, about 2^-range to 2^range times as large. */
typedef struct product_case {
    sl_op op;
    int64_t m, n, k;
    int range;
    double before; /* size of what c holds; 0: it is not added to */
    double most;   /* times the error that multiply-adds make */
} product_case;

enum { A, B, C, MATRICES };

/* x, w and y of LINEAR; dy, w and dx of its gradient; x, dy and dw of that of the weight. */
static sl_shape matrix_shape(const product_case *p, int i)
{
    bool grad_x = p->op == SL_OP_LINEAR_GRAD_X, grad_w = p->op == SL_OP_LINEAR_GRAD_W;
    if (i == A)
        return (sl_shape){ 2, { grad_w ? p->k : p->m, grad_w ? p->m : p->k } };
    if (i == B)
        return (sl_shape){ 2, { grad_x ? p->n : p->k, grad_x ? p->k : p->n } };
    return (sl_shape){ 2, { p->m, p->n } };
}

static void run_product(const product_case *p, const arg *matrices)
{
    sl_view views[MATRICES] = { matrices[A].view, matrices[B].view, matrices[C].view };
    sl_kernel_call call = { .op = p->op,
                            .inputs = views,
                            .input_count = 2,
                            .outputs = views + C,
                            .output_count = 1,
                            .accumulate = p->before > 0 };
    assert_int_equal(run_call(call), SL_OK);
}

static void make_matrices(const product_case *p, sl_dtype dtype, const arg *numbers, arg *matrices)
{
    for (int i = 0; i < MATRICES; i++) {
        sl_shape shape = matrix_shape(p, i);
        matrices[i] = make_arg(dtype, &shape, PACKED);
        if (numbers)
            copy_tensor(&numbers[i], &matrices[i]);
    }
}

static void free_matrices(arg *matrices)
{
    for (int i = 0; i < MATRICES; i++)
        free(matrices[i].block);
}

static void draw(const product_case *p, arg *numbers)
{
    make_matrices(p, SL_F64, NULL, numbers);
    for (int i = 0; i < MATRICES; i++) {
        for (int64_t e = 0; e < sl_meta_count(&numbers[i].view.meta); e++) {
            int power = p->range > 0 ? (int)(normal() * p->range / 2) : 0;
            put(&numbers[i].view, e, (float)(i == C ? p->before * normal() : ldexp(normal(), power)));
        }
    }
}

/* No element is off by more than 2^-19 of the sum of its terms' sizes: each addition may lose 2^-24 of what it has summed. */
static void check_elements(const product_case *p, const arg *numbers, const arg *given, const arg *expected)
{
    arg sizes[MATRICES];
    make_matrices(p, SL_F64, numbers, sizes);
    for (int i = 0; i < MATRICES; i++) {
        for (int64_t e = 0; e < sl_meta_count(&sizes[i].view.meta); e++)
            put(&sizes[i].view, e, fabs(get(&sizes[i].view, e)));
    }
    assert_true(sl_isa_set(SL_ISA_REFERENCE));
    run_product(p, sizes);
    for (int64_t e = 0; e < sl_meta_count(&given->view.meta); e++) {
        double error = fabs(get(&given->view, e) - get(&expected->view, e));
        if (!(error <= 0x1p-19 * get(&sizes[C].view, e)))
            fail_msg("%s, %lld x %lld x %lld: element %lld is off by %.3g", sl_op_name(p->op), (long long)p->m,
                     (long long)p->n, (long long)p->k, (long long)e, error);
    }
    free_matrices(sizes);
}

static double product_error(const product_case *p, sl_isa isa, const arg *numbers, const arg *expected, bool checks)
{
    arg matrices[MATRICES];
    make_matrices(p, SL_F32, numbers, matrices);
    assert_true(sl_isa_set(isa));
    run_product(p, matrices);
    double error = error_of(&matrices[C], &expected[C]);
    if (checks)
        check_elements(p, numbers, &matrices[C], &expected[C]);
    free_matrices(matrices);
    return error;
}

/* With a large range few terms make up a sum. Multiply-adds round such a term once, and AMX the six products of its parts. */
static const product_case products[] = {
    { SL_OP_LINEAR, 70, 100, 768, 0, 0, 0.6 },
    { SL_OP_LINEAR, 64, 64, 3072, 0, 0, 0.6 },
    { SL_OP_LINEAR_GRAD_X, 45, 33, 900, 0, 0, 0.6 },
    { SL_OP_LINEAR_GRAD_W, 64, 96, 2048, 0, 0, 0.6 },
    { SL_OP_LINEAR, 64, 64, 64, 0, 0, 1 },
    { SL_OP_LINEAR, 64, 64, 32, 0, 0, 1 },
    { SL_OP_LINEAR_GRAD_W, 64, 64, 64, 0, 300, 1.01 },
    { SL_OP_LINEAR_GRAD_W, 50, 64, 1700, 0, 2000, 1.01 },
    { SL_OP_LINEAR, 40, 50, 600, 20, 0, 1.25 },
    { SL_OP_LINEAR_GRAD_W, 33, 70, 500, 30, 0, 1.25 },
};

static void products_with_amx_are_as_exact_as_with_multiply_adds(void **state)
{
    (void)state;
    use_amx();
    open_device(1);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const product_case *p = &products[i];
        arg numbers[MATRICES], expected[MATRICES];
        test_random_state = 900 + i;
        draw(p, numbers);
        make_matrices(p, SL_F64, numbers, expected);
        assert_true(sl_isa_set(SL_ISA_REFERENCE));
        run_product(p, expected);
        double error = product_error(p, SL_ISA_AVX512, numbers, expected, false);
        double own = product_error(p, SL_ISA_AMX, numbers, expected, true);
        assert_true(own != error); /* it is other code */
        if (!(own <= p->most * error))
            fail_msg("case %zu: the error is %.3g with AMX, %.3g with AVX-512", i, own, error);
        free_matrices(numbers);
        free_matrices(expected);
    }
    close_device();
}

/* Numbers of which the second and the third part are as large as they get: what is left out of their product is, too. */
static void one_product_is_off_by_two_units_at_most(void **state)
{
    enum { COUNT = 96 };
    static float x[COUNT], w[COUNT], y[COUNT][COUNT];
    (void)state;
    use_amx();
    open_device(1);
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(1 + 0x1p-8 + (i % 2 ? 0x1p-16 : -0x1p-16) - i * 0x1p-23);
        w[i] = (float)(-1 - 0x1p-8 + (i % 3 ? 0x1p-16 : -0x1p-16) + i * 0x1p-22);
    }
    sl_view views[] = { { x, sl_meta_make(SL_F32, 2, (int64_t[]){ COUNT, 1 }) },
                        { w, sl_meta_make(SL_F32, 2, (int64_t[]){ 1, COUNT }) },
                        { y, sl_meta_make(SL_F32, 2, (int64_t[]){ COUNT, COUNT }) } };
    sl_kernel_call call = {
        .op = SL_OP_LINEAR, .inputs = views, .input_count = 2, .outputs = views + 2, .output_count = 1
    };
    assert_int_equal(run_call(call), SL_OK);
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < COUNT; k++) {
            double right = (double)x[i] * (double)w[k];
            assert_true(fabs((double)y[i][k] - right) <= 0x1p-22 * fabs(right));
        }
    }
    close_device();
}

/* One row of A and one column of B hold special numbers; other elements have no part in that. */
enum { SIZE = 40, ROW = 3, COLUMN = 35 };

static void multiply_special(sl_isa isa, int place, float in_row, float in_column, float c[SIZE][SIZE])
{
    static float a[SIZE][SIZE], b[SIZE][SIZE];
    for (int i = 0; i < SIZE; i++) {
        for (int l = 0; l < SIZE; l++) {
            a[i][l] = (float)(i % 5 - 2);
            b[i][l] = (float)(l % 7 - 3);
        }
    }
    a[ROW][place] = in_row;
    b[place][COLUMN] = in_column;
    const sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ SIZE, SIZE });
    sl_view views[] = { { a, meta }, { b, meta }, { c, meta } };
    sl_kernel_call call = {
        .op = SL_OP_LINEAR, .inputs = views, .input_count = 2, .outputs = views + 2, .output_count = 1
    };
    assert_true(sl_isa_set(isa));
    assert_int_equal(run_call(call), SL_OK);
}

/* The special numbers: in both halves of a step of the sum, and in the next one. */
static void compare_special(const float pair[2], bool overflows)
{
    static const int places[] = { 7, 23, 39 };
    static float expected[SIZE][SIZE], given[SIZE][SIZE];
    for (int i = 0; i < 3; i++) {
        multiply_special(SL_ISA_AVX512, places[i], pair[0], pair[1], expected);
        multiply_special(SL_ISA_AMX, places[i], pair[0], pair[1], given);
        for (int e = 0; e < SIZE * SIZE; e++) {
            float x = given[e / SIZE][e % SIZE], y = expected[e / SIZE][e % SIZE];
            bool right = x == y || (isnan(x) && isnan(y)) || fabsf(x - y) <= 0x1p-22f * fabsf(y);
            if (!right && !(overflows && isinf(y) && isnan(x)))
                fail_msg("%g and %g at %d: element %d, %d is %.9g, expected %.9g", (double)pair[0], (double)pair[1],
                         places[i], e / SIZE, e % SIZE, (double)x, (double)y);
        }
    }
}

static void special_numbers_go_where_they_go_with_multiply_adds(void **state)
{
    static const float special[][2] = {
        { INFINITY, 1 },
        { -INFINITY, 2 },
        { NAN, 1 },
        { 1, INFINITY },
        { -3, NAN },
        { INFINITY, INFINITY },
        { INFINITY, -INFINITY },
        { INFINITY, 0 },
        { 0, -INFINITY },
        { 3.4028234e38f, 1 },
        { -3.4028234e38f, 0.5f },
        { 3.3961775e38f, 0.25f },
        { 0.5f, 3.4028234e38f },
        { 1e38f, 0.5f },
        { 1e-30f, 1e30f },
        { 0x1p-100f, 0x1.234568p100f },
    };
    static const float overflowing[][2] = { { 0x1.ffp99f, 0x1p100f }, { -0x1.ffffp100f, 0x1p60f }, { 3e38f, 3e38f } };
    (void)state;
    use_amx();
    open_device(1);
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        compare_special(special[i], false);
    for (size_t i = 0; i < sizeof overflowing / sizeof *overflowing; i++)
        compare_special(overflowing[i], true);
    close_device();
}

/* Attention packs its weights with the one, all else is packed with the others. */
static void squares_are_packed_like_rows_and_columns(void **state)
{
    enum { ROWS = 32, N = 96, BYTES = ROWS * N * 6 };
    static float from[ROWS][N];
    static char square_a[BYTES], square_b[BYTES], rows[BYTES], columns[BYTES];
    static const float special[] = { INFINITY, -INFINITY, NAN, 3.4028234e38f, -3.4e38f, 1e-42f, -0.0f };
    (void)state;
    use_amx();
    const sl_tile *tile = sl_isa_tile(false);
    test_random_state = 17;
    for (int turn = 0; turn < 30; turn++) {
        for (int i = 0; i < ROWS * N; i++)
            from[i / N][i % N] = (float)ldexp(normal(), (int)(40 * normal()));
        if (turn % 3 > 0)
            from[turn * 7 % ROWS][turn * 11 % N] = special[turn % 7];
        tile->pack_square(from[0], N, N, square_a, square_b, ROWS * ROWS * 6);
        tile->pack_a(&(sl_factor){ from, SL_F32, N, 1 }, ROWS, N, rows);
        for (int64_t l = 0; l < N; l += ROWS)
            tile->pack_b(&(sl_factor){ from[0] + l, SL_F32, 1, N }, ROWS, ROWS, columns + l * ROWS * 6);
        assert_memory_equal(square_a, rows, BYTES);
        assert_memory_equal(square_b, columns, BYTES);
        memset(square_a, 1, BYTES);
        memset(square_b, 1, BYTES);
        tile->pack_square(from[0], N, N, square_a, NULL, 0);
        tile->pack_square(from[0], N, N, NULL, square_b, ROWS * ROWS * 6);
        assert_memory_equal(square_a, rows, BYTES);
        assert_memory_equal(square_b, columns, BYTES);
    }
}

/* y = x scaled by 2^power, as a product with a diagonal matrix on either side. No element may be off by more than `most`. */
static void check_tiny(float (*x)[SIZE], int power, double most)
{
    static float diagonal[SIZE][SIZE], y[SIZE][SIZE];
    const sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ SIZE, SIZE });
    for (int i = 0; i < SIZE; i++)
        diagonal[i][i] = (float)ldexp(1 + 0x1p-12, power);
    for (int turned = 0; turned < 2; turned++) {
        sl_view views[] = { { turned ? diagonal : x, meta }, { turned ? x : diagonal, meta }, { y, meta } };
        sl_kernel_call call = {
            .op = SL_OP_LINEAR, .inputs = views, .input_count = 2, .outputs = views + 2, .output_count = 1
        };
        assert_int_equal(run_call(call), SL_OK);
        for (int e = 0; e < SIZE * SIZE; e++) {
            double right = (double)x[e / SIZE][e % SIZE] * (double)diagonal[0][0],
                   given = (double)y[e / SIZE][e % SIZE];
            if (!(fabs(given - right) <= most + 0x1p-22 * fabs(right)))
                fail_msg("%.9g times 2^%d is %.9g", (double)x[e / SIZE][e % SIZE], power, given);
        }
    }
}

/* Parts and products of parts below 2^-126 count as 0, and nothing else comes of them. */
static void tiny_numbers_lose_no_more_than_the_smallest_normal_ones(void **state)
{
    static float x[SIZE][SIZE];
    (void)state;
    use_amx();
    open_device(1);
    for (int i = 0; i < SIZE * SIZE; i++)
        x[i / SIZE][i % SIZE] = (float)ldexp(normal(), -95 - i % SIZE);
    check_tiny(x, 60, 2 * ldexp(1, 60 - 126));
    for (int i = 0; i < SIZE * SIZE; i++)
        x[i / SIZE][i % SIZE] = (float)ldexp(1 + fabs(normal()), -i % SIZE);
    check_tiny(x, -90, 6 * 0x1p-126);
    for (int i = 0; i < SIZE * SIZE; i++)
        x[i / SIZE][i % SIZE] = (float)ldexp(1 + fabs(normal()), -102 + i % 20);
    check_tiny(x, 0, 0); /* from 2^-102 on no bit is lost */
    close_device();
}

int main(void)
{
    emulate_amx();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_with_amx_is_as_exact_as_with_multiply_adds),
        cmocka_unit_test(products_with_amx_are_as_exact_as_with_multiply_adds),
        cmocka_unit_test(one_product_is_off_by_two_units_at_most),
        cmocka_unit_test(special_numbers_go_where_they_go_with_multiply_adds),
        cmocka_unit_test(squares_are_packed_like_rows_and_columns),
        cmocka_unit_test(tiny_numbers_lose_no_more_than_the_smallest_normal_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
