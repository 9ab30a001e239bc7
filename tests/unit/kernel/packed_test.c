/* A weight that is packed beforehand gives the bits of one that the product packs itself, whatever the instruction set,
 * the element types, the sizes and the number of threads; also what the thread sanitizer looks at. */
#include "unit/kernel/calls.h"

#include "kernel/cpu/blas.h"
#include "kernel/cpu/isa.h"
#include "support/amx/amx.h"
#include "support/sample.h"

/* y[rows, out] = x[rows, in] w. */
typedef struct product {
    sl_op op; /* LINEAR, or LINEAR_GRAD_X: dx = dy w^T */
    int64_t rows, in, out;
    sl_dtype x, w, y;
    bool transpose_w, accumulate;
} product;

enum { X, W, Y };

static void make_tensors(const product *p, args *tensors)
{
    bool grad = p->op == SL_OP_LINEAR_GRAD_X;
    const sl_shape shapes[] = { [X] = { 2, { p->rows, grad ? p->out : p->in } },
                                [W] = { 2, { p->transpose_w ? p->out : p->in, p->transpose_w ? p->in : p->out } },
                                [Y] = { 2, { p->rows, grad ? p->in : p->out } } };
    const sl_dtype dtypes[] = { [X] = p->x, [W] = p->w, [Y] = p->y };
    test_random_state = 7;
    for (tensors->count = 0; tensors->count <= Y; tensors->count++) {
        int i = tensors->count;
        tensors->list[i] = make_arg(dtypes[i], &shapes[i], PACKED);
        tensors->views[i] = tensors->list[i].view;
        for (int64_t e = 0; e < sl_meta_count(&tensors->views[i].meta); e++)
            put(&tensors->views[i], e, (float)normal());
    }
}

static sl_kernel_call call_of(const product *p, const args *tensors)
{
    return (sl_kernel_call){ .op = p->op,
                             .attrs = { .transpose_w = p->transpose_w },
                             .inputs = tensors->views,
                             .input_count = 2,
                             .outputs = tensors->views + Y,
                             .output_count = 1,
                             .accumulate = p->accumulate };
}

/* Packed with a call of other rows and with no memory but the weight's, as a stage packs for all its microbatches. */
static void *pack(const product *p, const args *tensors)
{
    product other = *p;
    args metas;
    size_t bytes = 0, own = 0;
    void *packed = NULL;
    other.rows += 11;
    make_tensors(&other, &metas);
    sl_kernel_call call = call_of(&other, &metas), same = call_of(p, tensors);
    metas.views[X].data = metas.views[Y].data = NULL;
    metas.views[W] = tensors->views[W];
    assert_int_equal(sl_kernel_packed_bytes(test_device, &call, &bytes), SL_OK);
    assert_int_equal(sl_kernel_packed_bytes(test_device, &same, &own), SL_OK);
    assert_true(bytes > 0 && bytes == own);
    assert_int_equal(posix_memalign(&packed, SL_DEVICE_ALIGNMENT, bytes), 0);
    memset(packed, 0xA5, bytes);
    assert_int_equal(sl_kernel_pack(test_stream, &call, packed), SL_OK);
    free_args(&metas);
    return packed;
}

static void check(const product *p, int threads)
{
    args plain, given;
    open_device(threads);
    make_tensors(p, &plain);
    make_tensors(p, &given);
    assert_int_equal(run_call(call_of(p, &plain)), SL_OK);
    sl_kernel_call call = call_of(p, &given);
    void *packed = pack(p, &given);
    memset(given.views[W].data, 0x7f, sl_meta_bytes(&given.views[W].meta)); /* nobody reads it any more */
    call.packed = packed;
    assert_int_equal(run_call(call), SL_OK);
    if (memcmp(plain.list[Y].block, given.list[Y].block, plain.list[Y].bytes) != 0)
        fail_msg("%s %lldx%lldx%lld, x %s, w %s, y %s%s on %s with %d threads: other bits", sl_op_name(p->op),
                 (long long)p->rows, (long long)p->in, (long long)p->out, sl_dtype_name(p->x), sl_dtype_name(p->w),
                 sl_dtype_name(p->y), p->transpose_w ? ", transposed" : "", sl_isa_name(sl_isa_get()), threads);
    free(packed);
    free_args(&plain);
    free_args(&given);
    close_device();
}

/* Past the blocks of the sum (768, 1536, 2048) and of the columns (2304), odd sizes, more threads than panels; the last ones
 * are worth several threads. */
static const int64_t sizes[][3] = { { 5, 3, 1 },      { 37, 65, 70 },    { 26, 771, 33 },  { 7, 9, 2311 },
                                    { 13, 1540, 35 }, { 70, 2112, 100 }, { 40, 801, 2403 } };
static const sl_dtype dtypes[][3] = {
    { SL_F32, SL_F32, SL_F32 }, { SL_BF16, SL_BF16, SL_BF16 }, { SL_F32, SL_BF16, SL_F32 }, { SL_F16, SL_F16, SL_BF16 }
};

static void a_weight_packed_once_gives_the_same_bits(void **state)
{
    (void)state;
    for (int isa = SL_ISA_SCALAR; isa <= (int)sl_isa_best(); isa++) {
        assert_true(sl_isa_set((sl_isa)isa));
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes * 16; i++) {
            const int64_t *size = sizes[i / 16];
            const sl_dtype *dtype = dtypes[i % 4];
            const product p = { .op = i / 4 % 2 ? SL_OP_LINEAR_GRAD_X : SL_OP_LINEAR,
                                .rows = size[0],
                                .in = size[1],
                                .out = size[2],
                                .x = dtype[0],
                                .w = dtype[1],
                                .y = dtype[2],
                                .transpose_w = i / 8 % 2,
                                .accumulate = (i / 16 + i) % 2 };
            for (int several = 0; several < 2; several++) {
                if (test_in_sample(i + i / 16 + (size_t)isa, several, 2))
                    check(&p, several ? 4 : 1);
            }
        }
    }
    sl_isa_set(sl_isa_best());
}

static size_t packed_bytes(sl_kernel_call call)
{
    size_t bytes = 1;
    assert_int_equal(sl_kernel_packed_bytes(test_device, &call, &bytes), SL_OK);
    return bytes;
}

static void nothing_is_packed_without_use(void **state)
{
    (void)state;
    product p = { .op = SL_OP_LINEAR, .rows = 4, .in = 64, .out = 96, .transpose_w = true };
    args tensors;
    open_device(1);
    make_tensors(&p, &tensors);
    assert_int_equal(packed_bytes(call_of(&p, &tensors)), 0); /* few rows read the weight as it lies */
    free_args(&tensors);
    p.rows = 5;
    make_tensors(&p, &tensors);
    assert_int_equal(packed_bytes(call_of(&p, &tensors)), 64 * 96 * sl_isa_tile(false)->size);
    sl_kernel_call other = call_of(&p, &tensors);
    other.op = SL_OP_MATMUL;
    other.attrs = (sl_op_attrs){ .transpose_b = true };
    assert_int_equal(packed_bytes(other), 0);
    assert_int_equal(sl_kernel_pack(test_stream, &other, tensors.views[Y].data), SL_ERR_ARGUMENT);
    tensors.views[W].meta.strides[0] = 1; /* not as a product takes it */
    tensors.views[W].meta.strides[1] = 96;
    assert_int_equal(packed_bytes(call_of(&p, &tensors)), 0);
    free_args(&tensors);
    sl_isa_set(SL_ISA_REFERENCE);
    make_tensors(&p, &tensors);
    assert_int_equal(packed_bytes(call_of(&p, &tensors)), 0);
    sl_isa_set(sl_isa_best());
    sl_blas_enable(true);
    if (sl_blas_sgemm())
        assert_int_equal(packed_bytes(call_of(&p, &tensors)), 0);
    sl_blas_enable(false);
    free_args(&tensors);
    close_device();
}

int main(void)
{
    emulate_amx();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_weight_packed_once_gives_the_same_bits),
        cmocka_unit_test(nothing_is_packed_without_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
