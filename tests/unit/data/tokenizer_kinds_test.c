/* Tokenizers of every kind against what Hugging Face's and SentencePiece's own libraries give (tests/interop makes such
 * files), and threads that change nothing. */
#include "support/scratch.h"
#include "support/status.h"

#include <sluice/data.h>

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static sl_tokenizer *open_kind(const char *name)
{
    char path[1024];
    sl_tokenizer *tokenizer = NULL;
    snprintf(path, sizeof path, "%s/tokenizers/%s.%s", getenv("SLUICE_DATA"), name,
             strncmp(name, "sp_", 3) == 0 ? "model" : "json");
    ok(sl_tokenizer_open(path, &tokenizer));
    return tokenizer;
}

static json_t *read_cases(void)
{
    char path[1024];
    json_error_t error;
    snprintf(path, sizeof path, "%s/tokenizers/cases.json", getenv("SLUICE_DATA"));
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!cases)
        fail_msg("%s: %s", path, error.text);
    return cases;
}

static void check_case(const char *name, const sl_tokenizer *tokenizer, const json_t *text, const json_t *expected)
{
    const sl_encode_options options = { .special = strncmp(name, "sp_", 3) != 0,
                                        .frame = strncmp(name, "sp_", 3) != 0 };
    const json_t *ids = json_array_get(expected, 0), *decoded = json_array_get(expected, 1);
    int32_t *got = NULL;
    int64_t count = 0;
    char *back = NULL;
    size_t bytes = 0;
    ok(sl_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), &options, &got, &count));
    if (count != (int64_t)json_array_size(ids))
        fail_msg("%s: '%s' has %d ids, not %d", name, json_string_value(text), (int)count, (int)json_array_size(ids));
    for (int64_t i = 0; i < count; i++) {
        if (got[i] != json_integer_value(json_array_get(ids, (size_t)i)))
            fail_msg("%s: '%s': id %d is %d, not %d", name, json_string_value(text), (int)i, (int)got[i],
                     (int)json_integer_value(json_array_get(ids, (size_t)i)));
    }
    ok(sl_tokenizer_decode(tokenizer, got, count, &back, &bytes));
    if (json_is_string(decoded) &&
        (bytes != json_string_length(decoded) || memcmp(back, json_string_value(decoded), bytes) != 0))
        fail_msg("%s: comes back as '%s', not as '%s'", name, back, json_string_value(decoded));
    sl_free(back);
    sl_free(got);
}

static void every_kind_gives_the_ids_of_the_reference(void **state)
{
    (void)state;
    json_t *cases = read_cases(), *texts = json_object_get(cases, "texts"), *expected, *text;
    const char *name;
    size_t index;
    int kinds = 0;
    json_object_foreach(cases, name, expected)
    {
        if (strcmp(name, "texts") == 0)
            continue;
        sl_tokenizer *tokenizer = open_kind(name);
        json_array_foreach(texts, index, text) check_case(name, tokenizer, text, json_array_get(expected, index));
        sl_tokenizer_close(tokenizer);
        kinds++;
    }
    assert_int_equal(kinds, 9);
    json_decref(cases);
}

/* All texts of the cases one after the other, again and again. */
static char *long_text(const json_t *texts, size_t least, size_t *out)
{
    char *text = malloc(2 * least);
    size_t used = 0;
    for (size_t i = 0; used < least; i = (i * 7 + 3) % json_array_size(texts)) {
        const json_t *each = json_array_get(texts, (i + used) % json_array_size(texts));
        memcpy(text + used, json_string_value(each), json_string_length(each));
        used += json_string_length(each);
        text[used++] = ' ';
    }
    *out = used;
    return text;
}

static void threads_change_no_id(void **state)
{
    (void)state;
    static const char *const kinds[] = { "gpt2", "qwen2", "llama2", "mistral_first", "bert" };
    json_t *cases = read_cases();
    size_t size = 0;
    char *text = long_text(json_object_get(cases, "texts"), 400000, &size);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        sl_tokenizer *tokenizer = open_kind(kinds[k]);
        int32_t *one = NULL, *many = NULL;
        int64_t one_count = 0, many_count = 0;
        ok(sl_tokenizer_encode(tokenizer, text, size, NULL, &one, &one_count));
        for (int threads = 2; threads < 8; threads++) {
            ok(sl_tokenizer_encode(tokenizer, text, size, &(sl_encode_options){ .threads = threads }, &many,
                                   &many_count));
            assert_int_equal(many_count, one_count);
            assert_memory_equal(many, one, (size_t)one_count * sizeof *one);
            sl_free(many);
        }
        sl_free(one);
        sl_tokenizer_close(tokenizer);
    }
    free(text);
    json_decref(cases);
}

static void several_texts_are_encoded_as_each_alone(void **state)
{
    (void)state;
    json_t *cases = read_cases(), *list = json_object_get(cases, "texts");
    size_t count = json_array_size(list);
    sl_text *texts = calloc(count, sizeof *texts);
    int64_t *ends = calloc(count, sizeof *ends);
    sl_tokenizer *tokenizer = open_kind("qwen2");
    for (size_t i = 0; i < count; i++)
        texts[i] = (sl_text){ json_string_value(json_array_get(list, i)), json_string_length(json_array_get(list, i)) };
    for (int threads = 1; threads < 5; threads++) {
        int32_t *all = NULL;
        ok(sl_tokenizer_encode_all(tokenizer, texts, (int64_t)count, &(sl_encode_options){ .threads = threads }, &all,
                                   ends));
        for (size_t i = 0; i < count; i++) {
            int32_t *one = NULL;
            int64_t length = 0, from = i ? ends[i - 1] : 0;
            ok(sl_tokenizer_encode(tokenizer, texts[i].data, texts[i].bytes, NULL, &one, &length));
            assert_int_equal(ends[i] - from, length);
            if (length > 0)
                assert_memory_equal(all + from, one, (size_t)length * sizeof *one);
            sl_free(one);
        }
        sl_free(all);
    }
    sl_tokenizer_close(tokenizer);
    free(texts);
    free(ends);
    json_decref(cases);
}

static void a_model_file_that_is_cut_off_is_refused(void **state)
{
    (void)state;
    char path[1024];
    static char bytes[1 << 16];
    snprintf(path, sizeof path, "%s/tokenizers/sp_spaces.model", getenv("SLUICE_DATA"));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t cut = 0; cut < size; cut += 1 + size / 200) {
        sl_tokenizer *tokenizer = NULL;
        const char *part = scratch_path("part.model");
        scratch_write(part, bytes, cut);
        if (sl_tokenizer_open(part, &tokenizer) == SL_OK) { /* cut between two pieces */
            int32_t *ids = NULL;
            int64_t count = 0;
            if (sl_tokenizer_encode(tokenizer, "the tale", 8, NULL, &ids, &count) == SL_OK)
                sl_free(ids);
            sl_tokenizer_close(tokenizer);
        } else if (!strstr(sl_error_message(), "part.model")) {
            fail_msg("cut at %zu: %s", cut, sl_error_message());
        }
    }
}

/* A symbol that began with a zero byte counted as an empty one, which is everywhere, and encoding did not end. */
static void a_zero_byte_in_a_piece_is_a_byte_like_any_other(void **state)
{
    (void)state;
    static const unsigned char symbol[] = { 0x0a, 11, 0x0a, 2, 0, 't', 0x15, 0, 0, 0, 0, 0x18, 4 }; /* user defined */
    char path[1024];
    static char bytes[1 << 16];
    snprintf(path, sizeof path, "%s/tokenizers/sp_spaces.model", getenv("SLUICE_DATA"));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes - sizeof symbol, file);
    fclose(file);
    memcpy(bytes + size, symbol, sizeof symbol);
    sl_tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    int64_t count = 0;
    const char *with = scratch_path("zero.model");
    scratch_write(with, bytes, size + sizeof symbol);
    assert_int_equal(sl_tokenizer_open(with, &tokenizer), SL_OK);
    assert_int_equal(sl_tokenizer_encode(tokenizer, "the\0tale", 8, NULL, &ids, &count), SL_OK);
    int found = 0;
    for (int64_t i = 0; i < count; i++)
        found += ids[i] == sl_tokenizer_vocab(tokenizer) - 1;
    assert_int_equal(found, 1);
    sl_free(ids);
    sl_tokenizer_close(tokenizer);
}

/* As `tokenizers` splits it: Japanese and Chinese together, a blank with what comes before it, none at the beginning. */
static void scripts_split_where_the_script_changes(void **state)
{
    (void)state;
    static const char json[] =
        "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"post_processor\": null, \"decoder\": "
        "null, "
        "\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}, \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\", "
        "\"vocab\": {\"?\": 0, \"a b\": 1, \". \": 2, "
        "\"\u6f22\u5b57\u304b\u306a\u30fc \u30ab\": 3, \"\u30fc\": 4, \"a\": 5, \"1\": 6, \"\u0301\": 7}}}";
    static const struct {
        const char *text;
        int32_t ids[4];
        int count;
    } cases[] = {
        { "  a b. \u6f22\u5b57\u304b\u306a\u30fc \u30ab", { 1, 2, 3 }, 3 },
        { "   ", { 0 }, 0 },
        { "\u30fca", { 4, 5 }, 2 },
        { "1\u0301a", { 6, 7, 5 }, 3 },
    };
    sl_tokenizer *tokenizer = NULL;
    scratch_write(scratch_path("scripts.json"), json, strlen(json));
    ok(sl_tokenizer_open(scratch_path("scripts.json"), &tokenizer));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *ids = NULL;
        int64_t count = 0;
        ok(sl_tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), NULL, &ids, &count));
        assert_int_equal(count, cases[i].count);
        assert_memory_equal(ids, cases[i].ids, (size_t)count * sizeof *ids);
        sl_free(ids);
    }
    sl_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_gives_the_ids_of_the_reference),
        cmocka_unit_test(threads_change_no_id),
        cmocka_unit_test(several_texts_are_encoded_as_each_alone),
        cmocka_unit_test(scripts_split_where_the_script_changes),
        cmocka_unit_test(a_model_file_that_is_cut_off_is_refused),
        cmocka_unit_test(a_zero_byte_in_a_piece_is_a_byte_like_any_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
