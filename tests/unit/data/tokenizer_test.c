/* The byte-pair tokenizer: merges computed by hand, pieces of the pattern, any bytes there and back, files. */
#include "base/alloc.h"
#include "data/tokenizer/bpe.h"
#include "support/scratch.h"
#include "support/status.h"

#include <sluice/data.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>

static const sl_encode_options with_special = { .special = true };

static unsigned random_state = 1;
static unsigned random_below(unsigned limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (unsigned)(((uint64_t)random_state * limit) >> 32);
}

/* ---- Files made by the test ------------------------------------------------------------------ */

/* A byte as GPT-2 writes it in its files: UTF-8 of the byte itself if Latin-1 prints it, else of 256, 257, .. */
static void byte_text(int byte, char *out)
{
    int character = byte, number = 256;
    for (int b = 0; b <= byte; b++) {
        bool prints = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte && !prints)
            character = number;
        number += !prints;
    }
    if (character < 128)
        snprintf(out, 3, "%c", character);
    else
        snprintf(out, 3, "%c%c", 0xc0 | character >> 6, 0x80 | (character & 63));
}

static const char *const merge_lines[] = { "t h",        "th e",       "\xc4\xa0 the",
                                           "i n",        "h e",        "\xc4\xa0 \xc4\xa0",
                                           "\xc4\xa0 b", "a \xc4\xa0", "' m",
                                           "1 2",        "2 a",        "\xc3\x83 \xc2\xa9" };
enum { MERGES = sizeof merge_lines / sizeof *merge_lines, END_OF_TEXT = 256 + MERGES };

/* {"!":33,...}: id = byte for all 256, then the merges' results from 256 on, then <|endoftext|>. */
static void put_vocab(FILE *file)
{
    char text[3];
    fputc('{', file);
    for (int byte = 0; byte < 256; byte++) {
        byte_text(byte, text);
        fprintf(file, "\"%s%s\":%d,", *text == '"' || *text == '\\' ? "\\" : "", text, byte);
    }
    for (int i = 0; i < MERGES; i++) {
        const char *blank = strchr(merge_lines[i], ' ');
        fprintf(file, "\"%.*s%s\":%d,", (int)(blank - merge_lines[i]), merge_lines[i], blank + 1, 256 + i);
    }
    fprintf(file, "\"<|endoftext|>\":%d}", END_OF_TEXT);
}

static const char *pair_folder(void)
{
    const char *folder = scratch_path("gpt2");
    char path[512];
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/vocab.json", folder);
    FILE *file = fopen(path, "w");
    put_vocab(file);
    fclose(file);
    snprintf(path, sizeof path, "%s/merges.txt", folder);
    file = fopen(path, "w");
    fputs("#version: 0.2\n", file);
    for (int i = 0; i < MERGES; i++)
        fprintf(file, "%s\n", merge_lines[i]);
    fclose(file);
    return folder;
}

static const char *json_file(const char *model_extra, const char *pre_tokenizer, const char *extra)
{
    const char *path = scratch_path("tokenizer.json");
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"model\":{\"type\":\"BPE\",%s\"vocab\":", model_extra);
    put_vocab(file);
    fputs(",\"merges\":[", file);
    for (int i = 0; i < MERGES; i++) { /* both spellings */
        const char *blank = strchr(merge_lines[i], ' ');
        if (i % 2)
            fprintf(file, "%s\"%s\"", i ? "," : "", merge_lines[i]);
        else
            fprintf(file, "%s[\"%.*s\",\"%s\"]", i ? "," : "", (int)(blank - merge_lines[i]), merge_lines[i],
                    blank + 1);
    }
    fprintf(file,
            "]},\"pre_tokenizer\":%s,\"added_tokens\":[{\"id\":%d,\"content\":\"<|endoftext|>\",\"special\":true},"
            "{\"id\":300,\"content\":\"<|end\",\"special\":true}]%s}",
            pre_tokenizer, END_OF_TEXT, extra);
    fclose(file);
    return path;
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"

static sl_tokenizer *open_tokenizer(const char *path)
{
    sl_tokenizer *tokenizer = NULL;
    ok(sl_tokenizer_open(path, &tokenizer));
    return tokenizer;
}

/* Encodes and compares; ends of lists are negative. */
static void encodes(sl_tokenizer *tokenizer, const char *text, bool special, const int32_t *expected)
{
    int32_t *ids = NULL;
    int64_t count = 0, wanted = 0;
    char *back = NULL;
    size_t bytes = 0;
    while (expected[wanted] >= 0)
        wanted++;
    ok(sl_tokenizer_encode(tokenizer, text, strlen(text), &(sl_encode_options){ .special = special }, &ids, &count));
    if (count != wanted || memcmp(ids, expected, (size_t)count * sizeof *ids) != 0)
        fail_msg("'%s' gives %d tokens, first %d", text, (int)count, count ? ids[0] : -1);
    ok(sl_tokenizer_decode(tokenizer, ids, count, &back, &bytes));
    assert_string_equal(back, text);
    assert_int_equal(bytes, strlen(text));
    sl_free(ids);
    sl_free(back);
}
#define IDS(...) ((const int32_t[]){ __VA_ARGS__, -1 })

/* ---- Merging --------------------------------------------------------------------------------- */

static void merges_follow_their_rank(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = open_tokenizer(pair_folder());
    assert_int_equal(sl_tokenizer_vocab(tokenizer), END_OF_TEXT + 1);
    encodes(tokenizer, "", false, (const int32_t[]){ -1 });
    encodes(tokenizer, "the", false, IDS(257));
    encodes(tokenizer, " the", false, IDS(258));
    encodes(tokenizer, "he", false, IDS(260));
    encodes(tokenizer, "thin", false, IDS(256, 259));
    encodes(tokenizer, "ththe", false, IDS(256, 257)); /* t h comes before h e, also in the middle */
    encodes(tokenizer, "hhe", false, IDS('h', 260));
    encodes(tokenizer, "then", false, IDS(257, 'n'));
    sl_tokenizer_close(tokenizer);
}

static void pieces_are_those_of_the_pattern(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = open_tokenizer(pair_folder());
    encodes(tokenizer, "a b", false, IDS('a', 262));        /* the blank belongs to b: "a " is never merged */
    encodes(tokenizer, "a   b", false, IDS('a', 261, 262)); /* blanks before the last one are a piece */
    encodes(tokenizer, "a  ", false, IDS('a', 261));        /* at the end they all are */
    encodes(tokenizer, "I'm", false, IDS('I', 264));        /* a contraction */
    encodes(tokenizer, "12a", false, IDS(265, 'a'));        /* digits and letters part */
    encodes(tokenizer, "b!a\nb", false, IDS('b', '!', 'a', '\n', 'b'));
    encodes(tokenizer, "\xc3\xa9t", false, IDS(267, 't')); /* e acute is a letter of two bytes */
    sl_tokenizer_close(tokenizer);
}

static void special_tokens_are_found_only_when_asked(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = open_tokenizer(pair_folder());
    assert_int_equal(sl_tokenizer_special(tokenizer, "<|endoftext|>"), END_OF_TEXT);
    assert_int_equal(sl_tokenizer_special(tokenizer, "<|pad|>"), -1);
    encodes(tokenizer, "the<|endoftext|> the", true, IDS(257, END_OF_TEXT, 258));
    encodes(tokenizer, "<|e", true, IDS('<', '|', 'e'));
    int32_t *ids = NULL;
    int64_t count = 0;
    ok(sl_tokenizer_encode(tokenizer, "<|endoftext|>", 13, NULL, &ids, &count));
    assert_int_equal(count, 13);
    sl_free(ids);
    sl_tokenizer_close(tokenizer);

    tokenizer = open_tokenizer(json_file("", BYTE_LEVEL, ""));
    encodes(tokenizer, "<|endoftext|><|end", true, IDS(END_OF_TEXT, 300)); /* the longest counts */
    sl_tokenizer_close(tokenizer);
}

/* Seconds of processor time to encode blanks and beginnings of special tokens, with so many special tokens. */
static double seconds_with(int specials)
{
    enum { TEXT = 100000 };
    static char extra[1 << 20], text[TEXT];
    size_t used = 0;
    for (int i = 0; i < specials; i++)
        used += (size_t)snprintf(extra + used, sizeof extra - used,
                                 ",{\"id\":%d,\"content\":\"<s%d>\",\"special\":true}", 400 + i, i);
    const char *path = scratch_path("many.json");
    static char json[1 << 16];
    FILE *from = fopen(json_file("", BYTE_LEVEL, ""), "r"), *to = fopen(path, "w");
    assert_true(from && to);
    size_t length = fread(json, 1, sizeof json, from);
    assert_memory_equal(json + length - 2, "]}", 2); /* the end of the list and of the file */
    fwrite(json, 1, length - 2, to);
    fprintf(to, "%s]}", extra);
    fclose(from);
    fclose(to);
    for (int i = 0; i < TEXT; i++)
        text[i] = "<s "[i % 3];
    sl_tokenizer *tokenizer = open_tokenizer(path);
    int32_t *ids = NULL;
    int64_t count = 0;
    clock_t start = clock();
    ok(sl_tokenizer_encode(tokenizer, text, sizeof text, &with_special, &ids, &count));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    sl_free(ids);
    sl_tokenizer_close(tokenizer);
    return seconds;
}

/* It would be decoded to the other's text. */
static void a_special_token_with_the_id_of_another_is_refused(void **state)
{
    (void)state;
    static char json[1 << 16];
    sl_tokenizer *tokenizer = NULL;
    const char *path = json_file("", BYTE_LEVEL, "");
    FILE *file = fopen(path, "r");
    size_t length = fread(json, 1, sizeof json, file);
    fclose(file);
    file = fopen(path, "w");
    fwrite(json, 1, length - 2, file);
    fputs(",{\"id\":65,\"content\":\"<|a|>\",\"special\":true}]}", file);
    fclose(file);
    assert_int_equal(sl_tokenizer_open(path, &tokenizer), SL_ERR_FORMAT);
    assert_non_null(strstr(sl_error_message(), "added token '<|a|>' has the id 65 of another token"));
}

static void many_special_tokens_cost_no_more_than_a_few(void **state)
{
    (void)state;
    double few = seconds_with(20), many = seconds_with(15000);
    print_message("20 special tokens: %.3f s, 15000: %.3f s\n", few, many);
    assert_true(many < 5 * few + 0.05);
}

static void any_bytes_come_back(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = open_tokenizer(pair_folder());
    for (int round = 0; round < 2000; round++) {
        static const char alphabet[] = "the in b12a'm \n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
        unsigned char text[64];
        size_t length = random_below(sizeof text);
        for (size_t i = 0; i < length; i++)
            text[i] = round % 2 ? (unsigned char)random_below(256)
                                : (unsigned char)alphabet[random_below(sizeof alphabet - 1)];
        int32_t *ids = NULL;
        int64_t count = 0;
        char *back = NULL;
        size_t bytes = 0;
        ok(sl_tokenizer_encode(tokenizer, text, length, &(sl_encode_options){ .special = round % 3 == 0 }, &ids,
                               &count));
        ok(sl_tokenizer_decode(tokenizer, ids, count, &back, &bytes));
        assert_int_equal(bytes, length);
        assert_memory_equal(back, text, length);
        sl_free(ids);
        sl_free(back);
    }
    sl_tokenizer_close(tokenizer);
}

/* Merges the best pair, leftmost first, until none is left: the definition, in quadratic time. */
static size_t merge_slowly(const int32_t (*pairs)[2], int pair_count, int32_t *ids, size_t count)
{
    for (;;) {
        int best = pair_count;
        size_t place = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            for (int rank = 0; rank < best; rank++) {
                if (pairs[rank][0] == ids[i] && pairs[rank][1] == ids[i + 1]) {
                    best = rank;
                    place = i;
                }
            }
        }
        if (best == pair_count)
            return count;
        ids[place] = 4 + best;
        memmove(ids + place + 1, ids + place + 2, (count - place - 2) * sizeof *ids);
        count--;
    }
}

static void merging_agrees_with_its_definition(void **state)
{
    (void)state;
    enum { PAIRS = 30, LENGTH = 60 };
    for (int round = 0; round < 500; round++) {
        bpe *merges = NULL;
        bpe_work *work = NULL;
        int32_t pairs[PAIRS][2], slow[LENGTH], fast[LENGTH];
        size_t length = random_below(LENGTH + 1), merged = 0;
        ok(sl_bpe_create(&merges));
        ok(sl_bpe_work_create(&work));
        for (int rank = 0; rank < PAIRS; rank++) { /* of earlier tokens, as training makes them */
            pairs[rank][0] = (int32_t)random_below(4 + (unsigned)rank);
            pairs[rank][1] = (int32_t)random_below(4 + (unsigned)rank);
            ok(sl_bpe_add(merges, pairs[rank][0], pairs[rank][1], rank, 4 + rank));
        }
        for (size_t i = 0; i < length; i++)
            slow[i] = fast[i] = (int32_t)random_below(4);
        size_t expected = merge_slowly((const int32_t(*)[2])pairs, PAIRS, slow, length);
        ok(sl_bpe_merge(merges, work, fast, length, &merged));
        assert_int_equal(merged, expected);
        assert_memory_equal(fast, slow, merged * sizeof *fast);
        sl_bpe_destroy(merges);
        sl_bpe_work_destroy(work);
    }
}

static void a_long_text_without_breaks_takes_no_quadratic_time(void **state)
{
    (void)state;
    enum { LENGTH = 1 << 20 };
    bpe *merges = NULL;
    bpe_work *work = NULL;
    int32_t *ids = calloc(LENGTH, sizeof *ids);
    size_t merged = 0;
    ok(sl_bpe_create(&merges));
    ok(sl_bpe_work_create(&work));
    for (int32_t rank = 0; rank < 10; rank++) /* pairs, fours, eights, .. of the token 0 */
        ok(sl_bpe_add(merges, rank, rank, rank, rank + 1));
    double start = sl_now();
    ok(sl_bpe_merge(merges, work, ids, LENGTH, &merged));
    assert_true(sl_now() - start < 20); /* a million squared would be hours */
    assert_int_equal(merged, LENGTH >> 10);
    assert_int_equal(ids[0], 10);
    sl_bpe_destroy(merges);
    sl_bpe_work_destroy(work);
    free(ids);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void both_kinds_of_files_give_the_same_tokens(void **state)
{
    (void)state;
    static const char llama3[] =
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|"
        " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        "\"behavior\":\"Isolated\",\"invert\":false},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]}";
    sl_tokenizer *tokenizer = open_tokenizer(json_file("", BYTE_LEVEL, ""));
    encodes(tokenizer, "I'm the 12 he", false, IDS('I', 264, 258, ' ', 265, ' ', 260));
    sl_tokenizer_close(tokenizer);
    tokenizer = open_tokenizer(json_file("\"ignore_merges\":true,", llama3, ",\"normalizer\":null"));
    encodes(tokenizer, "I'M 1212", false, IDS('I', '\'', 'M', ' ', 265, '1', '2')); /* digits by threes */
    encodes(tokenizer, "the", false, IDS(257));
    sl_tokenizer_close(tokenizer);
    tokenizer = open_tokenizer(json_file("", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", ""));
    int32_t *ids = NULL;
    int64_t count = 0;
    ok(sl_tokenizer_encode(tokenizer, "the", 3, NULL, &ids, &count));
    assert_true(count == 1 && ids[0] == 258);
    sl_free(ids);
    sl_tokenizer_close(tokenizer);
}

static void refuses(const char *content, const char *text)
{
    const char *path = scratch_path("bad.json");
    sl_tokenizer *tokenizer = NULL;
    scratch_write(path, content, strlen(content));
    says(sl_tokenizer_open(path, &tokenizer), text);
    assert_non_null(strstr(sl_error_message(), "bad.json"));
}

static void what_cannot_be_read_is_refused_with_its_place(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = NULL;
#define MODEL(vocab, merges)                                                                                           \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "},\"pre_tokenizer\":" BYTE_LEVEL "}"
    refuses("{", "line 1");
    refuses("{\"model\":{\"type\":\"Markov\"}}", "the model 'Markov' is not known");
    refuses("{\"model\":{\"type\":\"Unigram\"}}", "the vocabulary is not a list");
    refuses("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", "entry 0 of the vocabulary");
    refuses("{\"model\":{\"type\":\"Unigram\",\"unk_id\":3,\"vocab\":[[\"a\",-1]]}}", "unk_id is past");
    refuses("{\"model\":{\"type\":\"BPE\"},\"normalizer\":{\"type\":\"Rot13\"}}", "normalizer 'Rot13' is not known");
    refuses("{\"model\":{\"type\":\"BPE\"},\"decoder\":{\"type\":\"Rot13\"}}", "decoder 'Rot13' is not known");
    refuses(
        "{\"model\":{\"type\":\"BPE\"},\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA=\"}}",
        "the table of characters is cut off");
    refuses(MODEL("7", "[]"), "not an object");
    refuses(MODEL("{\"a\":\"x\"}", "[]"), "'a' has an id that is no whole number");
    refuses(MODEL("{\"a\":-1}", "[]"), "'a' has the id -1");
    refuses(MODEL("{\"a\":999999999999}", "[]"), "'a' has the id 999999999999");
    refuses(MODEL("{\"a\":1,\"b\":1}", "[]"), "have the id 1");
    refuses(MODEL("{\"a\":1,\"b\":2}", "7"), "not a list");
    refuses(MODEL("{\"a\":1,\"b\":2}", "[\"a b\"]"), "merge 1: merge 'a b': 'ab' is not in the vocabulary");
    refuses(MODEL("{\"a\":1,\"b\":2}", "[\"a c\"]"), "'c' is not in the vocabulary");
    refuses(MODEL("{\"a\":1,\"b\":2}", "[\"ab\"]"), "merge 1: 'ab' is not two tokens");
    refuses(MODEL("{\"a\":1,\"b\":2}", "[[\"a\"]]"), "merge 1 is not two tokens");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Scissors\"}}",
            "pre_tokenizer 'Scissors' is not known");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Sequence\","
            "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"},"
            "{\"type\":\"ByteLevel\"}]}}",
            "pattern '('");
    says(sl_tokenizer_open(scratch_path("nowhere"), &tokenizer), "neither tokenizer.json nor vocab.json");
    const char *folder = pair_folder();
    char path[512];
    snprintf(path, sizeof path, "%s/merges.txt", folder);
    scratch_write(path, "#version: 0.2\nt h\nth  e\n", 24);
    says(sl_tokenizer_open(folder, &tokenizer), "merges.txt, line 3: 'th  e' is not two tokens");
    assert_null(tokenizer);
}

static void a_byte_or_id_without_token_is_named(void **state)
{
    (void)state;
    const char *path = scratch_path("small.json"), *content = MODEL("{\"a\":5}", "[]");
    int32_t *ids = NULL;
    int64_t count = 0;
    char *text = NULL;
    size_t bytes = 0;
    scratch_write(path, content, strlen(content));
    sl_tokenizer *tokenizer = open_tokenizer(path);
    says(sl_tokenizer_encode(tokenizer, "ab", 2, NULL, &ids, &count), "no token for the byte 0x62");
    says(sl_tokenizer_decode(tokenizer, (int32_t[]){ 5, 4 }, 2, &text, &bytes), "token 1 is 4");
    says(sl_tokenizer_decode(tokenizer, (int32_t[]){ -1 }, 1, &text, &bytes), "token 0 is -1");
    says(sl_tokenizer_decode(tokenizer, (int32_t[]){ 6 }, 1, &text, &bytes), "token 0 is 6");
    sl_tokenizer_close(tokenizer);
}

static void running_out_of_memory_is_an_error_like_others(void **state)
{
    (void)state;
    const char *folder = pair_folder();
    int refusals = 0;
    sl_status status = SL_ERR_MEMORY;
    for (int64_t n = 0; status != SL_OK; n++) {
        sl_tokenizer *tokenizer = NULL;
        int32_t *ids = NULL;
        int64_t count = 0;
        sl_alloc_fail_after(n);
        status = sl_tokenizer_open(folder, &tokenizer);
        if (status == SL_OK)
            status = sl_tokenizer_encode(tokenizer, "the thing in the", 16, &with_special, &ids, &count);
        sl_alloc_fail_after(-1);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        refusals += status != SL_OK;
        sl_free(ids);
        sl_tokenizer_close(tokenizer);
    }
    assert_true(refusals > 5);
}

static void a_tokenizer_of_bytes_has_a_token_for_each(void **state)
{
    (void)state;
    const char *path = scratch_path("bytes.json");
    unsigned char text[512];
    sl_tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    int64_t count = 0;
    for (int i = 0; i < 512; i++)
        text[i] = (unsigned char)(i < 256 ? (unsigned)i : random_below(256));
    ok(sl_tokenizer_save_bytes(path));
    ok(sl_tokenizer_open(path, &tokenizer));
    assert_int_equal(sl_tokenizer_vocab(tokenizer), 256);
    ok(sl_tokenizer_encode(tokenizer, text, sizeof text, &with_special, &ids, &count));
    assert_int_equal(count, sizeof text);
    for (int i = 0; i < 512; i++)
        assert_int_equal(ids[i], text[i]);
    sl_free(ids);
    sl_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_follow_their_rank),
        cmocka_unit_test(pieces_are_those_of_the_pattern),
        cmocka_unit_test(special_tokens_are_found_only_when_asked),
        cmocka_unit_test(a_special_token_with_the_id_of_another_is_refused),
        cmocka_unit_test(many_special_tokens_cost_no_more_than_a_few),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(merging_agrees_with_its_definition),
        cmocka_unit_test(a_long_text_without_breaks_takes_no_quadratic_time),
        cmocka_unit_test(both_kinds_of_files_give_the_same_tokens),
        cmocka_unit_test(what_cannot_be_read_is_refused_with_its_place),
        cmocka_unit_test(a_byte_or_id_without_token_is_named),
        cmocka_unit_test(running_out_of_memory_is_an_error_like_others),
        cmocka_unit_test(a_tokenizer_of_bytes_has_a_token_for_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
