/* The JSON writer: what it writes, another library reads back as it was. */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A document in memory: begin() opens it, end() closes it and gives its text, freed by the next begin(). */
static char *text;
static size_t size;

static sl_json begin(void)
{
    free(text);
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    return (sl_json){ .file = file };
}

static const char *end(sl_json *json)
{
    assert_int_equal(fclose(json->file), 0);
    return text;
}

static void commas_and_line_breaks_stand_where_they_belong(void **state)
{
    (void)state;
    sl_json json = begin();
    sl_json_begin(&json, '{');
    sl_json_put_bool(&json, "valid", true);
    sl_json_key(&json, "slots");
    sl_json_begin(&json, '[');
    sl_json_int(&json, 1);
    sl_json_int(&json, -2);
    sl_json_begin(&json, '[');
    sl_json_end(&json, ']');
    sl_json_end(&json, ']');
    sl_json_newline(&json);
    sl_json_put_string(&json, "name", NULL);
    sl_json_newline(&json);
    sl_json_end(&json, '}');
    assert_string_equal(end(&json), "{\"valid\":true,\"slots\":[1,-2,[]],\n\"name\":null\n}");
}

static void strings_come_back_as_they_were(void **state)
{
    (void)state;
    static const char *const samples[] = { "",
                                           "plain",
                                           "\"quoted\" \\ back",
                                           "line\nbreak\ttab\x01\x1f",
                                           "</script><!-- ",
                                           "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        sl_json json = begin();
        sl_json_begin(&json, '[');
        sl_json_string(&json, samples[i]);
        sl_json_end(&json, ']');
        assert_null(strchr(end(&json), '<'));
        json_t *read = json_loads(text, 0, NULL);
        assert_non_null(read);
        assert_string_equal(json_string_value(json_array_get(read, 0)), samples[i]);
        json_decref(read);
    }
}

static void bytes_that_are_no_utf8_are_replaced(void **state)
{
    (void)state;
    /* A stray byte, a cut character, an overlong form, a surrogate, a value past the last character. */
    static const char *const samples[] = { "a\xff", "a\xe2\x82", "a\xc0\xaf", "a\xed\xa0\x80", "a\xf4\x90\x80\x80" };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        sl_json json = begin();
        sl_json_begin(&json, '[');
        sl_json_string(&json, samples[i]);
        sl_json_end(&json, ']');
        json_t *read = json_loads(end(&json), 0, NULL);
        assert_non_null(read);
        assert_int_equal(strncmp(json_string_value(json_array_get(read, 0)), "a\xef\xbf\xbd", 4), 0);
        json_decref(read);
    }
}

static void numbers_come_back_equal(void **state)
{
    (void)state;
    static const double samples[] = { 0, 1, -1.5, 0.1, 1.0 / 3, 1e300, DBL_MIN, DBL_MAX, 123456789.123456789 };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        sl_json json = begin();
        sl_json_double(&json, samples[i]);
        assert_true(strtod(end(&json), NULL) == samples[i]);
    }
    sl_json json = begin();
    sl_json_double(&json, 0.1);
    assert_string_equal(end(&json), "0.1");
    json = begin();
    sl_json_begin(&json, '[');
    sl_json_double(&json, NAN);
    sl_json_double(&json, INFINITY);
    sl_json_int(&json, INT64_MIN);
    sl_json_end(&json, ']');
    assert_string_equal(end(&json), "[null,null,-9223372036854775808]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_and_line_breaks_stand_where_they_belong),
        cmocka_unit_test(strings_come_back_as_they_were),
        cmocka_unit_test(bytes_that_are_no_utf8_are_replaced),
        cmocka_unit_test(numbers_come_back_equal),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(text);
    return failed;
}
