/* Reductions element by element: the bits of every half-precision number, and rounding to the nearest. */
#include "comm/reduce.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

/* The value of a half-precision number, from its definition. */
static double value_of(uint16_t bits, int exponent_bits)
{
    int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1), fraction = bits & ((1 << fraction_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    double scaled = exponent ? ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits)
                             : ldexp(fraction, 1 - bias - fraction_bits);
    return sign * scaled;
}

static uint16_t sum_of(uint16_t a, uint16_t b, sl_dtype dtype)
{
    uint16_t out = 0;
    sl_reduce_run((const void *const[]){ &a, &b }, 2, 1, dtype, SL_REDUCE_SUM, &out);
    return out;
}

/* No neighbor of the result may be nearer to the sum, and of two that are as near the even one is right. */
static void check_rounding(uint16_t a, uint16_t b, sl_dtype dtype, int exponent_bits)
{
    uint16_t out = sum_of(a, b, dtype);
    float exact = (float)value_of(a, exponent_bits) + (float)value_of(b, exponent_bits); /* the sum is made in f32 */
    double got = value_of(out, exponent_bits);
    if (isnan(exact)) {
        assert_true(isnan(got));
        return;
    }
    if (isinf(got)) { /* infinite, or beyond the largest number by half a unit or more */
        double largest = value_of((uint16_t)(out - 1), exponent_bits),
               before = value_of((uint16_t)(out - 2), exponent_bits);
        assert_true(fabs((double)exact) >= fabs(largest) + fabs(largest - before) / 2);
        return;
    }
    double error = fabs(got - (double)exact);
    for (int step = -1; step <= 1; step += 2) {
        uint16_t other = (uint16_t)(out + step);
        double away = fabs(value_of(other, exponent_bits) - (double)exact);
        if ((out & 0x7fff) == 0 || isnan(away) || isinf(away))
            continue;
        assert_true(error < away || (error == away && out % 2 == 0));
    }
}

static void half_precision_sums_are_rounded_to_nearest(void **state)
{
    (void)state;
    uint32_t random = 1;
    for (int i = 0; i < 200000; i++) {
        random = random * 1664525 + 1013904223;
        uint16_t a = (uint16_t)(random >> 16);
        random = random * 1664525 + 1013904223;
        uint16_t b = (uint16_t)(random >> 16);
        check_rounding(a, b, SL_F16, 5);
        check_rounding(a, b, SL_BF16, 8);
    }
}

static void every_half_precision_number_survives(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t in = (uint16_t)bits, out = 0;
        const void *source = &in;
        sl_reduce_run(&source, 1, 1, SL_F16, SL_REDUCE_SUM, &out);
        assert_true(out == in || isnan(value_of(in, 5)));
        assert_int_equal(isnan(value_of(out, 5)), isnan(value_of(in, 5)));
        sl_reduce_run(&source, 1, 1, SL_BF16, SL_REDUCE_MAX, &out);
        assert_true(out == in || isnan(value_of(in, 8)));
        assert_int_equal(isnan(value_of(out, 8)), isnan(value_of(in, 8)));
    }
}

static void sums_run_from_left_to_right(void **state)
{
    (void)state;
    enum { COUNT = 3000 }; /* more than a block */
    static float data[3][COUNT], out[COUNT];
    for (int i = 0; i < COUNT; i++) {
        data[0][i] = 1e8f + (float)i;
        data[1][i] = 3.3f;
        data[2][i] = -1e8f;
    }
    sl_reduce_run((const void *const[]){ data[0], data[1], data[2] }, 3, COUNT, SL_F32, SL_REDUCE_SUM, out);
    for (int i = 0; i < COUNT; i++) {
        float expected = data[0][i] + data[1][i];
        expected += data[2][i];
        assert_memory_equal(&out[i], &expected, sizeof expected);
    }
    /* Into one of the sources. */
    sl_reduce_run((const void *const[]){ data[0], data[1], data[2] }, 3, COUNT, SL_F32, SL_REDUCE_SUM, data[1]);
    assert_memory_equal(data[1], out, sizeof out);
}

static void integers_wrap_and_maxima_are_found(void **state)
{
    (void)state;
    int32_t a = INT32_MAX, b = 1, sum = 0;
    sl_reduce_run((const void *const[]){ &a, &b }, 2, 1, SL_I32, SL_REDUCE_SUM, &sum);
    assert_int_equal(sum, INT32_MIN);
    int64_t c = -5, d = -7, most = 0;
    sl_reduce_run((const void *const[]){ &c, &d }, 2, 1, SL_I64, SL_REDUCE_MAX, &most);
    assert_int_equal(most, -5);
    float nan = NAN, one = 1, result = 0;
    sl_reduce_run((const void *const[]){ &nan, &one }, 2, 1, SL_F32, SL_REDUCE_MAX, &result);
    assert_true(isnan(result));
    sl_reduce_run((const void *const[]){ &one, &nan }, 2, 1, SL_F32, SL_REDUCE_MAX, &result);
    assert_true(isnan(result));
    assert_int_not_equal(sl_reduce_check(SL_BOOL, SL_REDUCE_SUM), SL_OK);
    assert_int_not_equal(sl_reduce_check(SL_F32, (sl_reduce)2), SL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_precision_sums_are_rounded_to_nearest),
        cmocka_unit_test(every_half_precision_number_survives),
        cmocka_unit_test(sums_run_from_left_to_right),
        cmocka_unit_test(integers_wrap_and_maxima_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
