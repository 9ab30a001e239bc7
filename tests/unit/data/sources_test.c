/* Several files, folders, patterns and numpy's arrays as one sequence of tokens, and rows that are mixed by weight. */
#include "support/scratch.h"
#include "support/status.h"

#include <sluice/data.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Tokens first, first + 1, ... */
static void save_counting(const char *path, sl_token_format format, int32_t first, int64_t count)
{
    int32_t *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = first + (int32_t)i;
    ok(sl_tokens_save(path, format, values, count));
    free(values);
}

/* The tokens are 0, 1, ... count - 1, whatever piece is read. */
static void assert_counting(const sl_tokens *tokens, int64_t count)
{
    int32_t *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    assert_int_equal(sl_tokens_count(tokens), count);
    for (int64_t first = 0; first < count; first += count / 5 + 1) {
        ok(sl_tokens_read(tokens, first, count - first, values));
        for (int64_t i = first; i < count; i++)
            assert_int_equal(values[i - first], i);
    }
    free(values);
}

static void make_folder(const char *name)
{
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
}

static void files_of_a_pattern_a_folder_and_a_list_are_one_sequence(void **state)
{
    (void)state;
    sl_tokens *tokens = NULL;
    make_folder("shards");
    save_counting(scratch_path("shards/s_2.bin"), SL_TOKENS_LLMC, 300, 50);
    save_counting(scratch_path("shards/s_0.bin"), SL_TOKENS_LLMC, 0, 100);
    save_counting(scratch_path("shards/s_1.bin"), SL_TOKENS_NANOGPT, 100, 200);
    scratch_write(scratch_path("shards/README"), "x", 1);
    scratch_write(scratch_path("shards/.hidden.bin"), "x", 1);
    make_folder("shards/s_9.bin"); /* a folder is no file of the folder */

    ok(sl_tokens_open(scratch_path("shards"), SL_TOKENS_AUTO, &tokens));
    assert_counting(tokens, 350);
    assert_int_equal(sl_tokens_files(tokens), 3);
    assert_non_null(strstr(sl_tokens_path(tokens), "shards/s_0.bin and 2 more files"));
    sl_tokens_close(tokens);

    ok(sl_tokens_open(scratch_path("shards/s_?.b*"), SL_TOKENS_AUTO, &tokens));
    assert_counting(tokens, 350);
    sl_tokens_close(tokens);

    char first[512], rest[512];
    snprintf(first, sizeof first, "%s", scratch_path("shards/s_0.bin"));
    snprintf(rest, sizeof rest, "%s", scratch_path("shards/s_[12].bin"));
    ok(sl_tokens_open_all((const char *const[]){ first, rest }, 2, SL_TOKENS_AUTO, &tokens));
    assert_counting(tokens, 350);
    says(sl_tokens_check(tokens, 0, 350, 320), "s_2.bin: token 20 (byte offset 1064) is 320");
    int64_t largest = 0;
    ok(sl_tokens_max(tokens, &largest));
    assert_int_equal(largest, 349);
    uint64_t before = 0, after = 0;
    ok(sl_tokens_hash(tokens, &before));
    sl_tokens_close(tokens);

    save_counting(scratch_path("shards/s_2.bin"), SL_TOKENS_LLMC, 301, 50); /* any file counts for the hash */
    ok(sl_tokens_open(scratch_path("shards"), SL_TOKENS_AUTO, &tokens));
    ok(sl_tokens_hash(tokens, &after));
    assert_true(before != after);
    sl_tokens_close(tokens);
}

static void a_name_with_letters_of_a_pattern_is_a_name_if_there_is_such_a_file(void **state)
{
    (void)state;
    sl_tokens *tokens = NULL;
    save_counting(scratch_path("a[1].bin"), SL_TOKENS_NANOGPT, 0, 7);
    save_counting(scratch_path("a1.bin"), SL_TOKENS_NANOGPT, 0, 9);
    ok(sl_tokens_open(scratch_path("a[1].bin"), SL_TOKENS_AUTO, &tokens));
    assert_counting(tokens, 7);
    sl_tokens_close(tokens);
}

static void what_cannot_be_a_sequence_is_refused_by_name(void **state)
{
    (void)state;
    sl_tokens *tokens = NULL;
    char narrow[512], wide[512];
    make_folder("none");
    scratch_write(scratch_path("none/notes.txt"), "x", 1);
    says(sl_tokens_open(scratch_path("none/*.bin"), SL_TOKENS_AUTO, &tokens), "no file fits the pattern");
    assert_non_null(strstr(sl_error_message(), "none/*.bin"));
    says(sl_tokens_open(scratch_path("none"), SL_TOKENS_AUTO, &tokens), "none has no .bin or .npy file");
    says(sl_tokens_open_all(NULL, 0, SL_TOKENS_AUTO, &tokens), "no file");
    save_counting(scratch_path("narrow.bin"), SL_TOKENS_LLMC, 0, 10);
    save_counting(scratch_path("wide.bin"), SL_TOKENS_LLMC_U32, 0, 10);
    snprintf(narrow, sizeof narrow, "%s", scratch_path("narrow.bin"));
    snprintf(wide, sizeof wide, "%s", scratch_path("wide.bin"));
    says(sl_tokens_open_all((const char *const[]){ narrow, wide }, 2, SL_TOKENS_AUTO, &tokens),
         "wide.bin has tokens of the type uint32");
    assert_non_null(strstr(sl_error_message(), "narrow.bin has uint16"));
}

/* More files than stay open, each a token and a half block long in all. */
static void a_file_that_changes_while_it_is_read_is_an_error_that_names_it(void **state)
{
    (void)state;
    enum { FILES = 80, EACH = 300 };
    sl_tokens *tokens = NULL;
    char name[64];
    int32_t values[EACH];
    make_folder("many");
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "many/%03d.bin", i);
        save_counting(scratch_path(name), SL_TOKENS_NANOGPT, i * EACH, EACH);
    }
    ok(sl_tokens_open(scratch_path("many"), SL_TOKENS_AUTO, &tokens));
    assert_counting(tokens, FILES * EACH);
    assert_int_equal(truncate(scratch_path("many/003.bin"), 100), 0);
    says(sl_tokens_read(tokens, 3 * EACH, EACH, values), "many/003.bin: it had 600 bytes");
    assert_int_equal(truncate(scratch_path("many/077.bin"), 100), 0);
    says(sl_tokens_read(tokens, 77 * EACH, EACH, values), "many/077.bin: it is not the file that it was");
    assert_int_equal(unlink(scratch_path("many/078.bin")), 0);
    says(sl_tokens_read(tokens, 78 * EACH, EACH, values), "many/078.bin");
    ok(sl_tokens_read(tokens, 79 * EACH, EACH, values));
    sl_tokens_close(tokens);
}

/* ---- numpy ---- */

/* A file with this header and these bytes behind it; version 1 or 2. */
static const char *write_npy(const char *name, int version, const char *header, const void *data, size_t bytes)
{
    unsigned char file[1024] = { 0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)version, 0 };
    size_t begin = version == 1 ? 10 : 12, length = strlen(header);
    file[8] = (unsigned char)length;
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + begin, header, length);
    if (bytes > 0)
        memcpy(file + begin + length, data, bytes);
    scratch_write(scratch_path(name), file, begin + length + bytes);
    return scratch_path(name);
}

static void arrays_of_numpy_are_read_in_every_type(void **state)
{
    (void)state;
    static const uint16_t u2[] = { 0, 1, 2, 3, 4, 5 };
    static const uint32_t u4[] = { 0, 1, 2, 3, 4, 5 };
    static const int64_t i8[] = { 0, 1, 2, 3, 4, 5 };
    const struct {
        const char *type, *name;
        const void *data;
        size_t bytes;
    } kinds[] = { { "<u2", "uint16", u2, sizeof u2 },
                  { "<u4", "uint32", u4, sizeof u4 },
                  { "<i4", "int32", u4, sizeof u4 },
                  { "<i8", "int64", i8, sizeof i8 } };
    for (size_t k = 0; k < 4; k++) {
        for (int version = 1; version <= 2; version++) {
            char header[128];
            sl_tokens *tokens = NULL;
            snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (6,), }   \n",
                     kinds[k].type);
            ok(sl_tokens_open(write_npy("a.npy", version, header, kinds[k].data, kinds[k].bytes), SL_TOKENS_AUTO,
                              &tokens));
            assert_counting(tokens, 6);
            assert_int_equal(sl_tokens_format(tokens), SL_TOKENS_NPY);
            assert_string_equal(sl_tokens_type(tokens), kinds[k].name);
            says(sl_tokens_check(tokens, 0, 6, 4), "token 4 (byte offset");
            sl_tokens_close(tokens);
        }
    }
}

static void numbers_that_are_no_tokens_are_named_as_they_stand(void **state)
{
    (void)state;
    static const int64_t values[] = { 5, -7, (int64_t)1 << 40 };
    const char *header = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n";
    sl_tokens *tokens = NULL;
    ok(sl_tokens_open(write_npy("w.npy", 1, header, values, sizeof values), SL_TOKENS_AUTO, &tokens));
    says(sl_tokens_check(tokens, 0, 3, 1000), "token 1 (byte offset 76) is -7, not in the vocabulary of 1000");
    says(sl_tokens_check(tokens, 2, 1, 1000), "token 2 (byte offset 84) is 1099511627776, past the vocabulary");
    sl_tokens_close(tokens);
}

static void arrays_that_are_no_tokens_are_refused(void **state)
{
    (void)state;
    static const char data[64];
    static const struct {
        const char *header, *says;
    } cases[] = {
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", "the type '<f4'" },
        { "{'descr': '>u2', 'fortran_order': False, 'shape': (8,), }", "the type '>u2'" },
        { "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 4), }", "several dimensions" },
        { "{'descr': '<u2', 'fortran_order': False, 'shape': (), }", "no shape of one dimension" },
        { "{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }", "says 9 tokens of 2 bytes, the file has 16" },
        { "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }", "tokens of 2 bytes" },
        { "{'descr': '<u2', 'fortran_order': False, }", "no shape" },
        { "{'shape': (8,), }", "no element type" },
        { "{'descr': '<u2", "no element type" },
        { "", "no element type" },
    };
    sl_tokens *tokens = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        says(sl_tokens_open(write_npy("b.npy", 1, cases[i].header, data, 16), SL_TOKENS_AUTO, &tokens), cases[i].says);
        assert_non_null(strstr(sl_error_message(), "b.npy"));
    }
    says(sl_tokens_open(write_npy("b.npy", 9, cases[0].header, data, 16), SL_TOKENS_AUTO, &tokens), "version 9");
    scratch_write(scratch_path("b.npy"), "\x93NUMPY\x01\x00\xff\xff", 10);
    says(sl_tokens_open(scratch_path("b.npy"), SL_TOKENS_AUTO, &tokens), "a .npy header of 65535 bytes");
    says(sl_tokens_open(scratch_path("gone"), SL_TOKENS_NPY, &tokens), "gone");
}

/* ---- Mixing ---- */

enum { SOURCES = 3, SEQ = 4, BATCH = 5 };

/* Sources whose tokens say which source they are of. */
static void open_mixed(sl_tokens **tokens)
{
    static const int64_t counts[SOURCES] = { 401, 81, 41 }; /* windows: 100, 20, 10 */
    for (int i = 0; i < SOURCES; i++) {
        char name[32];
        snprintf(name, sizeof name, "m%d.bin", i);
        save_counting(scratch_path(name), SL_TOKENS_NANOGPT, 1000 * i, counts[i]);
        ok(sl_tokens_open(scratch_path(name), SL_TOKENS_AUTO, &tokens[i]));
    }
}

static void rows_are_mixed_by_weight_and_every_source_is_read_in_its_own_order(void **state)
{
    (void)state;
    sl_tokens *tokens[SOURCES];
    open_mixed(tokens);
    const double weights[SOURCES] = { 7, 2, 1 };
    sl_batch_source sources[SOURCES];
    for (int i = 0; i < SOURCES; i++)
        sources[i] = (sl_batch_source){ .tokens = tokens[i], .weight = weights[i] };
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        const sl_batch_options options = { .batch = BATCH, .seq = SEQ, .shuffled = shuffled, .seed = 3, .vocab = 3000 };
        sl_batches *batches = NULL;
        int64_t seen[SOURCES] = { 0 };
        ok(sl_batches_create_mixed(sources, SOURCES, &options, &batches));
        for (int64_t step = 0; step < 200; step++) {
            int32_t inputs[BATCH * SEQ], targets[BATCH * SEQ];
            ok(sl_batches_read(batches, step, 0, BATCH, inputs, targets));
            for (int row = 0; row < BATCH; row++) {
                int source = sl_batches_source(batches, step, row);
                int64_t start = sl_batches_start(batches, step, row);
                assert_int_equal(inputs[row * SEQ], 1000 * source + start);
                assert_int_equal(targets[row * SEQ + SEQ - 1], 1000 * source + start + SEQ);
                if (!shuffled)
                    assert_int_equal(start, seen[source] % sl_batches_windows_of(batches, source) * SEQ);
                seen[source]++;
            }
            for (int i = 0; i < SOURCES; i++) { /* the shares hold after every step */
                double due = weights[i] / 10 * (double)((step + 1) * BATCH);
                assert_true((double)seen[i] > due - SOURCES && (double)seen[i] < due + SOURCES);
                assert_int_equal(seen[i], sl_batches_rows_of(batches, i, (step + 1) * BATCH));
            }
        }
        int64_t windows = sl_batches_windows(batches); /* about 10 / 0.1, with one row more or less */
        for (int i = 0; i < SOURCES; i++)
            assert_true(sl_batches_rows_of(batches, i, windows) <= sl_batches_windows_of(batches, i));
        assert_in_range(windows, shuffled ? 85 : 95, 105);
        ok(sl_batches_check(batches, 0, 1000));
        sl_batches_destroy(batches);
    }
    for (int i = 0; i < SOURCES; i++)
        sl_tokens_close(tokens[i]);
}

/* What a shuffled epoch of a mixture reads of a source: each window once. */
static void a_shuffled_mixture_reads_every_window_once_an_epoch(void **state)
{
    (void)state;
    sl_tokens *tokens[SOURCES];
    open_mixed(tokens);
    const sl_batch_source sources[] = { { .tokens = tokens[0], .weight = 1 }, { .tokens = tokens[1], .weight = 3 } };
    const sl_batch_options options = { .batch = BATCH, .seq = SEQ, .shuffled = true, .seed = 9 };
    sl_batches *batches = NULL;
    ok(sl_batches_create_mixed(sources, 2, &options, &batches));
    int64_t windows = sl_batches_windows_of(batches, 1), count = 0;
    bool seen[32] = { false };
    assert_int_equal(windows, 19);
    for (int64_t n = 0; count < windows; n++) {
        if (sl_batches_source(batches, n / BATCH, n % BATCH) != 1)
            continue;
        int64_t window = sl_batches_start(batches, n / BATCH, n % BATCH) / SEQ;
        assert_false(n / BATCH < 4 && seen[window]); /* steps before the second epoch can begin */
        seen[window] = true;
        count++;
    }
    sl_batches_destroy(batches);
    for (int i = 0; i < SOURCES; i++)
        sl_tokens_close(tokens[i]);
}

static void bad_mixtures_are_refused(void **state)
{
    (void)state;
    sl_tokens *tokens[SOURCES];
    open_mixed(tokens);
    sl_batches *batches = NULL;
    const sl_batch_options options = { .batch = 1, .seq = 50, .vocab = 1040 };
    sl_batch_source sources[] = { { .tokens = tokens[0], .weight = 1 }, { .tokens = tokens[1], .weight = 0 } };
    says(sl_batches_create_mixed(sources, 2, &options, &batches),
         "m1.bin has the weight 0; a weight is a number above 0");
    sources[1].weight = -2;
    says(sl_batches_create_mixed(sources, 2, &options, &batches), "the weight -2");
    sources[1].weight = 0.5;
    ok(sl_batches_create_mixed(sources, 2, &options, &batches));
    says(sl_batches_check(batches, 0, 100), "m1.bin: token 40 (byte offset 80) is 1040");
    sl_batches_destroy(batches);
    sources[1].tokens = tokens[2];
    says(sl_batches_create_mixed(sources, 2, &options, &batches), "m2.bin has 41 tokens; a sequence of 50");
    says(sl_batches_create_mixed(sources, 0, &options, &batches), "sources");
    for (int i = 0; i < SOURCES; i++)
        sl_tokens_close(tokens[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_a_pattern_a_folder_and_a_list_are_one_sequence),
        cmocka_unit_test(a_name_with_letters_of_a_pattern_is_a_name_if_there_is_such_a_file),
        cmocka_unit_test(what_cannot_be_a_sequence_is_refused_by_name),
        cmocka_unit_test(a_file_that_changes_while_it_is_read_is_an_error_that_names_it),
        cmocka_unit_test(arrays_of_numpy_are_read_in_every_type),
        cmocka_unit_test(numbers_that_are_no_tokens_are_named_as_they_stand),
        cmocka_unit_test(arrays_that_are_no_tokens_are_refused),
        cmocka_unit_test(rows_are_mixed_by_weight_and_every_source_is_read_in_its_own_order),
        cmocka_unit_test(a_shuffled_mixture_reads_every_window_once_an_epoch),
        cmocka_unit_test(bad_mixtures_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
