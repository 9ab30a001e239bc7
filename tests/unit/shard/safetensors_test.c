/* The safetensors reader and writer: what is read is what was written, and every malformed file is refused by name. */
#include "base/alloc.h"
#include "support/scratch.h"
#include "support/tensors.h"

#include <sluice/shard.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <glob.h>
#include <math.h>
#include <string.h>

/* A file with this header text and that many zero bytes of data; the length field as given or, if 0, right. */
static size_t compose(unsigned char *file, const char *header, size_t data, uint64_t length)
{
    size_t header_size = strlen(header);
    length = length ? length : header_size;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, header_size);
    memset(file + 8 + header_size, 0, data);
    return 8 + header_size + data;
}

static void refused_file(const void *bytes, size_t size, const char *says)
{
    sl_safetensors *file = NULL;
    assert_int_not_equal(sl_safetensors_open_memory("f.safetensors", bytes, size, &file), SL_OK);
    assert_null(file);
    if (!strstr(sl_error_message(), says) || !strstr(sl_error_message(), "f.safetensors"))
        fail_msg("expected '%s', the message is: %s", says, sl_error_message());
}

static void refused(const char *header, size_t data, const char *says)
{
    unsigned char bytes[1024];
    refused_file(bytes, compose(bytes, header, data, 0), says);
}

static void refuses_a_file_below_eight_bytes(void **state)
{
    (void)state;
    refused_file("", 0, "too few");
    refused_file("\2\0\0\0\0\0\0", 7, "too few");
}

static void refuses_a_header_past_the_file(void **state)
{
    (void)state;
    unsigned char bytes[64];
    refused_file(bytes, compose(bytes, "{}", 0, 3), "past the end");
}

static void refuses_a_huge_header(void **state)
{
    (void)state;
    unsigned char bytes[64];
    refused_file(bytes, compose(bytes, "{}", 0, 17 << 20), "are allowed");
    refused_file(bytes, compose(bytes, "{}", 0, UINT64_MAX), "are allowed");
}

static void refuses_a_header_that_is_no_object(void **state)
{
    (void)state;
    refused(" {}", 0, "begin with '{'");
    refused("[]", 0, "begin with '{'");
    refused("", 0, "begin with '{'");
    refused("{\"a\":", 0, "header, byte");
    refused("{} {}", 0, "header, byte");
}

static void refuses_invalid_utf8(void **state)
{
    (void)state;
    refused("{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "decode byte 0xff");
}

static void refuses_a_name_given_twice(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
            2, "duplicate");
}

static void refuses_an_unknown_dtype(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"F7\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'a' has the unknown dtype 'F7'");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'a' has no dtype");
}

static void refuses_data_that_begins_late(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "'a' begins at byte 1");
}

static void refuses_a_gap(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
            4, "gap of 2 bytes before tensor 'b'");
}

static void refuses_an_overlap(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
            4, "'a' and 'b' overlap at byte 2");
}

static void refuses_a_shape_that_overflows(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "too large");
    refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, "does not fit");
    refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, "header, byte");
}

static void refuses_a_size_unlike_the_shape(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", 7, "f32[2] does not fit its 7 bytes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "are no range");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "are no range");
}

static void refuses_bytes_left_over(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "1 bytes are left over");
    refused("{}", 1, "left over");
}

static void refuses_a_truncated_file(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "'a' ends at byte 8");
}

static void refuses_wrong_kinds_of_value(void **state)
{
    (void)state;
    refused("{\"a\":7}", 0, "not described by an object");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":3,\"data_offsets\":[0,1]}}", 1, "has no shape");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]}}", 1, "dim 0");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "dim 0");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "7 dims");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "not two integers");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "not two integers");
    refused("{\"__metadata__\":[]}", 0, "__metadata__");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "other than a text");
}

static void empty_scalar_and_zero_dims_are_legal(void **state)
{
    (void)state;
    unsigned char bytes[512];
    sl_safetensors *file = NULL;
    size_t size = compose(bytes, "{}   ", 0, 0);
    assert_int_equal(sl_safetensors_open_memory("m", bytes, size, &file), SL_OK);
    assert_int_equal(sl_safetensors_count(file), 0);
    assert_null(sl_safetensors_find(file, "a"));
    sl_safetensors_close(file);
    size = compose(bytes,
                   "{\"z\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]},"
                   "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                   "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
                   4, 0);
    assert_int_equal(sl_safetensors_open_memory("m", bytes, size, &file), SL_OK);
    assert_int_equal(sl_safetensors_count(file), 3);
    assert_int_equal(sl_safetensors_find(file, "s")->count, 1);
    assert_int_equal(sl_safetensors_find(file, "s")->shape.rank, 0);
    assert_int_equal(sl_safetensors_find(file, "z")->count, 0);
    sl_safetensors_close(file);
}

static void every_truncation_of_a_real_file_is_refused(void **state)
{
    (void)state;
    FILE *from = fopen(data_path("models/gpt2-tiny/model.safetensors"), "rb");
    assert_non_null(from);
    static unsigned char bytes[600000];
    size_t size = fread(bytes, 1, sizeof bytes, from);
    fclose(from);
    assert_true(size > 500000 && size < sizeof bytes);
    sl_safetensors *file = NULL;
    for (size_t cut = 0; cut < size; cut += cut < 64 ? 1 : 977) {
        unsigned char *copy = malloc(cut + 1); /* on the heap, so that a read past the end is seen */
        memcpy(copy, bytes, cut);
        assert_int_not_equal(sl_safetensors_open_memory("m", copy, cut, &file), SL_OK);
        free(copy);
    }
    assert_int_equal(sl_safetensors_open_memory("m", bytes, size, &file), SL_OK);
    assert_int_equal(sl_safetensors_count(file), 52);
    assert_string_equal(sl_safetensors_metadata(file, "format"), "pt");
    assert_null(sl_safetensors_metadata(file, "nothing"));
    sl_safetensors_close(file);
}

static void misaligned_and_narrow_elements_become_f32(void **state)
{
    (void)state;
    unsigned char bytes[512];
    const char *header = "{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]},"
                         "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[9,13]},"
                         "\"h\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[13,21]}}";
    size_t size = compose(bytes, header, 21, 0);
    unsigned char *data = bytes + size - 21;
    memcpy(data + 1, (float[]){ 1.5f, -2.25f }, 8);
    memcpy(data + 9, (uint16_t[]){ 0x3fc0, 0xc010 }, 4);                  /* 1.5, -2.25 */
    memcpy(data + 13, (uint16_t[]){ 0x3e00, 0xc080, 0x0001, 0x7c00 }, 8); /* 1.5, -2.25, 2^-24, inf */
    sl_safetensors *file = NULL;
    float out[4];
    assert_int_equal(sl_safetensors_open_memory("m", bytes, size, &file), SL_OK);
    static const char *const names[] = { "f", "b", "h" };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_tensor_entry_read_f32(sl_safetensors_find(file, names[i]), 0, 2, out), SL_OK);
        assert_true(out[0] == 1.5f && out[1] == -2.25f);
    }
    assert_int_equal(sl_tensor_entry_read_f32(sl_safetensors_find(file, "h"), 2, 2, out), SL_OK);
    assert_true(out[0] == 0x1p-24f && isinf(out[1]));
    assert_int_not_equal(sl_tensor_entry_read_f32(sl_safetensors_find(file, "h"), 3, 2, out), SL_OK);
    assert_int_not_equal(sl_tensor_entry_read_f32(sl_safetensors_find(file, "u"), 0, 1, out), SL_OK);
    assert_non_null(strstr(sl_error_message(), "'u' is u8"));
    sl_safetensors_close(file);
}

/* All f16 and bf16 bit patterns survive the way to f32 and back; what lies between rounds to the nearest. */
static void halves_convert_exactly_and_round_to_nearest_even(void **state)
{
    (void)state;
    static const sl_dtype dtypes[] = { SL_BF16, SL_F16 };
    for (int d = 0; d < 2; d++) {
        float previous = 0;
        for (uint32_t bits = 0; bits < 65536; bits++) {
            uint16_t half = (uint16_t)bits, back, between;
            float value;
            sl_tensor_entry entry = { .name = "x", .dtype = dtypes[d], .count = 1, .data = &half };
            assert_int_equal(sl_tensor_entry_read_f32(&entry, 0, 1, &value), SL_OK);
            assert_int_equal(sl_f32_convert(&value, 1, dtypes[d], &back), SL_OK);
            if (isnan(value)) {
                sl_tensor_entry again = { .name = "x", .dtype = dtypes[d], .count = 1, .data = &back };
                assert_int_equal(sl_tensor_entry_read_f32(&again, 0, 1, &value), SL_OK);
                assert_true(isnan(value));
                continue;
            }
            assert_int_equal(back, half);
            if (bits > 0 && bits < 0x7c00 && !isinf(value)) { /* positive: the middle goes to the even neighbor */
                float middle = previous + (value - previous) / 2, above = nextafterf(middle, INFINITY);
                assert_int_equal(sl_f32_convert(&middle, 1, dtypes[d], &between), SL_OK);
                assert_int_equal(between, bits & 1 ? bits - 1 : bits);
                assert_int_equal(sl_f32_convert(&above, 1, dtypes[d], &between), SL_OK);
                assert_int_equal(between, bits);
            }
            previous = value;
        }
    }
    uint16_t half;
    assert_int_equal(sl_f32_convert(&(float){ 65519.0f }, 1, SL_F16, &half), SL_OK);
    assert_int_equal(half, 0x7bff);
    assert_int_equal(sl_f32_convert(&(float){ 65520.0f }, 1, SL_F16, &half), SL_OK);
    assert_int_equal(half, 0x7c00);
    assert_int_not_equal(sl_f32_convert(&(float){ 1 }, 1, SL_I32, &half), SL_OK);
}

static void reads_back_what_was_written_in_pieces(void **state)
{
    (void)state;
    const char *path = scratch_path("pieces.safetensors");
    sl_safetensors_writer *writer = NULL;
    const unsigned char bytes[3] = { 1, 2, 3 };
    const float floats[4] = { 1, 2, 3, 4 };
    const int64_t longs[1] = { -5 };
    int u, f, l, empty;
    assert_int_equal(sl_safetensors_writer_create(path, &writer), SL_OK);
    assert_int_equal(sl_safetensors_writer_metadata(writer, "step", "12"), SL_OK);
    assert_int_equal(sl_safetensors_writer_add(writer, "bytes", SL_U8, &(sl_shape){ 1, { 3 } }, &u), SL_OK);
    assert_int_equal(sl_safetensors_writer_add(writer, "floats", SL_F32, &(sl_shape){ 2, { 2, 2 } }, &f), SL_OK);
    assert_int_equal(sl_safetensors_writer_add(writer, "long", SL_I64, &(sl_shape){ 0 }, &l), SL_OK);
    assert_int_equal(sl_safetensors_writer_add(writer, "empty", SL_F32, &(sl_shape){ 2, { 0, 9 } }, &empty), SL_OK);
    assert_int_equal(sl_safetensors_writer_write(writer, f, 8, floats + 2, 8), SL_OK);
    assert_int_not_equal(access(path, F_OK), 0); /* nothing under the name before it is whole */
    assert_int_not_equal(sl_safetensors_writer_finish(writer), SL_OK);
    assert_non_null(strstr(sl_error_message(), "'bytes' got 0 of its 3 bytes"));
    assert_int_equal(sl_safetensors_writer_write(writer, u, 0, bytes, 3), SL_OK);
    assert_int_equal(sl_safetensors_writer_write(writer, f, 0, floats, 8), SL_OK);
    assert_int_equal(sl_safetensors_writer_write(writer, l, 0, longs, 8), SL_OK);
    assert_int_not_equal(sl_safetensors_writer_write(writer, l, 1, longs, 8), SL_OK);
    assert_int_not_equal(sl_safetensors_writer_add(writer, "late", SL_U8, &(sl_shape){ 0 }, &u), SL_OK);
    assert_int_equal(sl_safetensors_writer_finish(writer), SL_OK);
    sl_safetensors_writer_destroy(writer);
    sl_safetensors *file = NULL;
    assert_int_equal(sl_safetensors_open(path, &file), SL_OK);
    assert_int_equal(sl_safetensors_count(file), 4);
    assert_string_equal(sl_safetensors_metadata(file, "step"), "12");
    assert_holds(sl_safetensors_find(file, "bytes"), bytes, 3);
    assert_holds(sl_safetensors_find(file, "floats"), floats, 16);
    assert_holds(sl_safetensors_find(file, "long"), longs, 8);
    for (int i = 0; i < 4; i++) { /* naturally aligned, also after the odd number of bytes */
        const sl_tensor_entry *entry = sl_safetensors_at(file, i);
        assert_int_equal(entry->offset % sl_dtype_size(entry->dtype), 0);
    }
    sl_safetensors_close(file);
}

static void an_abandoned_file_leaves_the_old_one(void **state)
{
    (void)state;
    const char *path = scratch_path("kept.safetensors");
    const float old = 1, new = 2;
    sl_tensor_entry entry = { .name = "a", .dtype = SL_F32, .shape = { 0 }, .data = &old };
    assert_int_equal(sl_safetensors_save(path, &entry, 1, NULL), SL_OK);
    sl_safetensors_writer *writer = NULL;
    int a;
    assert_int_equal(sl_safetensors_writer_create(path, &writer), SL_OK);
    assert_int_equal(sl_safetensors_writer_add(writer, "a", SL_F32, &entry.shape, &a), SL_OK);
    assert_int_equal(sl_safetensors_writer_write(writer, a, 0, &new, 4), SL_OK);
    sl_safetensors_writer_destroy(writer);
    sl_safetensors *file = NULL;
    assert_int_equal(sl_safetensors_open(path, &file), SL_OK);
    assert_holds(sl_safetensors_find(file, "a"), &old, 4);
    sl_safetensors_close(file);
    glob_t found;
    assert_int_equal(glob(scratch_path("kept*"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1); /* no temporary file beside it */
    globfree(&found);
}

static void a_name_declared_twice_is_refused_by_the_writer(void **state)
{
    (void)state;
    const float value = 1;
    sl_tensor_entry twice[] = { { .name = "a", .dtype = SL_F32, .data = &value },
                                { .name = "a", .dtype = SL_F32, .data = &value } };
    assert_int_not_equal(sl_safetensors_save(scratch_path("twice.safetensors"), twice, 2, NULL), SL_OK);
    assert_non_null(strstr(sl_error_message(), "'a' is declared twice"));
    assert_int_not_equal(sl_safetensors_save("/nonexistent/x.safetensors", twice, 1, NULL), SL_OK);
    assert_non_null(strstr(sl_error_message(), "/nonexistent/x.safetensors"));
}

static void running_out_of_memory_is_an_error_like_others(void **state)
{
    (void)state;
    const float value = 1;
    sl_tensor_entry entry = { .name = "a", .dtype = SL_F32, .data = &value };
    const char *path = scratch_path("memory.safetensors");
    assert_int_equal(sl_safetensors_save(path, &entry, 1, NULL), SL_OK);
    int refusals = 0;
    for (int n = 0; n < 40; n++) {
        sl_safetensors *file = NULL;
        sl_alloc_fail_after(n);
        sl_status saved = sl_safetensors_save(path, &entry, 1, NULL), opened = sl_safetensors_open(path, &file);
        sl_alloc_fail_after(-1);
        assert_true(saved == SL_OK || saved == SL_ERR_MEMORY);
        assert_true(opened == SL_OK || opened == SL_ERR_MEMORY);
        refusals += opened != SL_OK;
        sl_safetensors_close(file);
    }
    assert_true(refusals > 0 && refusals < 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_a_file_below_eight_bytes),
        cmocka_unit_test(refuses_a_header_past_the_file),
        cmocka_unit_test(refuses_a_huge_header),
        cmocka_unit_test(refuses_a_header_that_is_no_object),
        cmocka_unit_test(refuses_invalid_utf8),
        cmocka_unit_test(refuses_a_name_given_twice),
        cmocka_unit_test(refuses_an_unknown_dtype),
        cmocka_unit_test(refuses_data_that_begins_late),
        cmocka_unit_test(refuses_a_gap),
        cmocka_unit_test(refuses_an_overlap),
        cmocka_unit_test(refuses_a_shape_that_overflows),
        cmocka_unit_test(refuses_a_size_unlike_the_shape),
        cmocka_unit_test(refuses_bytes_left_over),
        cmocka_unit_test(refuses_a_truncated_file),
        cmocka_unit_test(refuses_wrong_kinds_of_value),
        cmocka_unit_test(empty_scalar_and_zero_dims_are_legal),
        cmocka_unit_test(every_truncation_of_a_real_file_is_refused),
        cmocka_unit_test(misaligned_and_narrow_elements_become_f32),
        cmocka_unit_test(halves_convert_exactly_and_round_to_nearest_even),
        cmocka_unit_test(reads_back_what_was_written_in_pieces),
        cmocka_unit_test(an_abandoned_file_leaves_the_old_one),
        cmocka_unit_test(a_name_declared_twice_is_refused_by_the_writer),
        cmocka_unit_test(running_out_of_memory_is_an_error_like_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
