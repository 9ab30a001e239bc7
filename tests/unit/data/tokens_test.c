/* Token files and the order in which a run reads them. */
#include "support/scratch.h"
#include "support/status.h"

#include <sluice/data.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static sl_tokens *open_tokens(const char *path, sl_token_format format)
{
    sl_tokens *tokens = NULL;
    if (sl_tokens_open(path, format, &tokens) != SL_OK)
        fail_msg("%s", sl_error_message());
    return tokens;
}

static void every_format_reads_back_what_was_saved(void **state)
{
    (void)state;
    const int32_t values[] = { 0, 1, 255, 7, 9 };
    for (int format = SL_TOKENS_NANOGPT; format <= SL_TOKENS_BYTES; format++) {
        const char *path = scratch_path("t.bin");
        int32_t read[5] = { 0 };
        assert_int_equal(sl_tokens_save(path, (sl_token_format)format, values, 5), SL_OK);
        sl_tokens *tokens = open_tokens(path, format == SL_TOKENS_BYTES ? SL_TOKENS_BYTES : SL_TOKENS_AUTO);
        assert_int_equal(sl_tokens_format(tokens), format);
        assert_int_equal(sl_tokens_count(tokens), 5);
        assert_int_equal(sl_tokens_read(tokens, 0, 5, read), SL_OK);
        assert_memory_equal(read, values, sizeof values);
        int64_t largest = 0;
        assert_int_equal(sl_tokens_max(tokens, &largest), SL_OK);
        assert_int_equal(largest, 255);
        says(sl_tokens_read(tokens, 4, 2, read), "5 tokens");
        sl_tokens_close(tokens);
        sl_token_format parsed;
        assert_int_equal(sl_token_format_parse(sl_token_format_name((sl_token_format)format), &parsed), SL_OK);
        assert_int_equal(parsed, format);
    }
    says(sl_tokens_save(scratch_path("x"), SL_TOKENS_NANOGPT, (int32_t[]){ 1, 65536 }, 2), "token 1 is 65536");
    says(sl_tokens_save(scratch_path("x"), SL_TOKENS_BYTES, (int32_t[]){ 256 }, 1), "token 0 is 256");
    says(sl_tokens_save(scratch_path("x"), SL_TOKENS_AUTO, values, 5), "no token format");
}

static void headers_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    sl_tokens *tokens = NULL;
    int32_t file[300] = { 20240520, 1, 10 };
    const char *path = scratch_path("h.bin");
    scratch_write(path, file, 1024 + 20);
    sl_tokens_close(open_tokens(path, SL_TOKENS_AUTO));
    scratch_write(path, file, 1024 + 18);
    says(sl_tokens_open(path, SL_TOKENS_AUTO, &tokens), "says 10 tokens of 2 bytes, the file has 18");
    file[1] = 2;
    scratch_write(path, file, 1024 + 20);
    says(sl_tokens_open(path, SL_TOKENS_AUTO, &tokens), "version 2");
    file[1] = 1, file[2] = -1;
    scratch_write(path, file, 1024 + 20);
    says(sl_tokens_open(path, SL_TOKENS_AUTO, &tokens), "says -1 tokens");
    says(sl_tokens_open(path, SL_TOKENS_LLMC_U32, &tokens), "begins with 20240520");
    scratch_write(path, file, 100);
    says(sl_tokens_open(path, SL_TOKENS_LLMC, &tokens), "too few for a header");
    scratch_write(path, file, 7);
    says(sl_tokens_open(path, SL_TOKENS_NANOGPT, &tokens), "no whole number");
    scratch_write(path, file, 0);
    says(sl_tokens_open(path, SL_TOKENS_AUTO, &tokens), "has no tokens");
    says(sl_tokens_open(scratch_path("gone.bin"), SL_TOKENS_AUTO, &tokens), "gone.bin");
    says(sl_tokens_open("/dev/null", SL_TOKENS_AUTO, &tokens), "not a regular file");
}

static void a_token_past_the_vocabulary_is_named_with_file_and_offset(void **state)
{
    (void)state;
    static int32_t values[100000];
    values[70001] = 300;
    const char *path = scratch_path("v.bin");
    assert_int_equal(sl_tokens_save(path, SL_TOKENS_LLMC, values, 100000), SL_OK);
    sl_tokens *tokens = open_tokens(path, SL_TOKENS_AUTO);
    assert_int_equal(sl_tokens_check(tokens, 0, 100000, 301), SL_OK);
    assert_int_equal(sl_tokens_check(tokens, 0, 70001, 300), SL_OK);
    says(sl_tokens_check(tokens, 0, 100000, 300),
         "token 70001 (byte offset 141026) is 300, past the vocabulary of 300");
    assert_non_null(strstr(sl_error_message(), path));

    int32_t inputs[100], targets[100];
    sl_batches *batches = NULL;
    sl_batch_options options = { .batch = 10, .seq = 10, .vocab = 300 };
    assert_int_equal(sl_batches_create(tokens, &options, &batches), SL_OK);
    assert_int_equal(sl_batches_read(batches, 699, 0, 10, inputs, targets), SL_OK);
    says(sl_batches_read(batches, 700, 0, 1, inputs, targets), "token 70001");
    assert_int_equal(sl_batches_check(batches, 0, 700), SL_OK);
    says(sl_batches_check(batches, 0, 701), "token 70001");
    says(sl_batches_check(batches, 0, INT64_MAX), "token 70001");
    sl_batches_destroy(batches);
    sl_tokens_close(tokens);
}

static void rows_of_a_step_follow_each_other_and_wrap_by_epochs(void **state)
{
    (void)state;
    const int32_t values[] = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    }; /* windows of 2: at 0, 2, 4, 6; token 9 is never needed */
    const char *path = scratch_path("s.bin");
    int32_t inputs[6], targets[6];
    sl_batches *batches = NULL;
    assert_int_equal(sl_tokens_save(path, SL_TOKENS_NANOGPT, values, 10), SL_OK);
    sl_tokens *tokens = open_tokens(path, SL_TOKENS_AUTO);
    sl_batch_options options = { .batch = 3, .seq = 2 };
    assert_int_equal(sl_batches_create(tokens, &options, &batches), SL_OK);
    assert_int_equal(sl_batches_windows(batches), 4);
    assert_int_equal(sl_batches_read(batches, 0, 0, 3, inputs, targets), SL_OK);
    assert_memory_equal(inputs, ((int32_t[]){ 0, 1, 2, 3, 4, 5 }), 24);
    assert_memory_equal(targets, ((int32_t[]){ 1, 2, 3, 4, 5, 6 }), 24);
    assert_int_equal(sl_batches_read(batches, 1, 0, 3, inputs, targets), SL_OK);
    assert_memory_equal(inputs, ((int32_t[]){ 6, 7, 0, 1, 2, 3 }), 24); /* the second epoch begins in row 1 */
    assert_int_equal(sl_batches_read(batches, 1, 1, 1, inputs, targets), SL_OK);
    assert_memory_equal(targets, ((int32_t[]){ 1, 2 }), 8);
    says(sl_batches_read(batches, 1, 2, 2, inputs, targets), "not in a batch of 3");
    sl_batches_destroy(batches);
    options.seq = 10;
    says(sl_batches_create(tokens, &options, &batches), "has 10 tokens; a sequence of 10 needs one more");
    options.seq = 0;
    says(sl_batches_create(tokens, &options, &batches), "at least 1");
    sl_tokens_close(tokens);
}

/* A text that is shorter than many batches is not cut at the same places in every epoch. */
static void shuffled_epochs_start_at_different_tokens(void **state)
{
    (void)state;
    enum { COUNT = 5121, SEQ = 32, EPOCHS = 400 };
    sl_tokens *tokens = open_tokens(data_path("models/gpt2-tiny/tokens.bin"), SL_TOKENS_AUTO);
    sl_batches *batches = NULL;
    sl_batch_options options = { .batch = 1, .seq = SEQ, .shuffled = true, .seed = 3 };
    assert_int_equal(sl_batches_create(tokens, &options, &batches), SL_OK);
    int64_t windows = sl_batches_windows(batches);
    bool seen[SEQ] = { false };
    int64_t last = 0;
    assert_int_equal(windows, (COUNT - SEQ) / SEQ);
    for (int64_t i = 0; i < EPOCHS * windows; i++) {
        int64_t start = sl_batches_start(batches, i, 0);
        assert_true(start >= 0 && start + SEQ + 1 <= COUNT);
        seen[start % SEQ] = true;
        last = start > last ? start : last;
    }
    for (int s = 0; s < SEQ; s++)
        assert_true(seen[s]);
    assert_true(last + SEQ + 1 > COUNT - SEQ); /* the end of the text is read too */
    sl_batches_destroy(batches);
    sl_tokens_close(tokens);
}

static void a_shuffled_epoch_visits_every_window_once(void **state)
{
    (void)state;
    static int32_t values[2001];
    const char *path = scratch_path("e.bin");
    assert_int_equal(sl_tokens_save(path, SL_TOKENS_NANOGPT, values, 2001), SL_OK);
    sl_tokens *tokens = open_tokens(path, SL_TOKENS_AUTO);
    int moved = 0, same_order = 0;
    for (int64_t seq = 1; seq <= 2000; seq = seq * 3 + 1) {
        sl_batches *batches = NULL, *other = NULL;
        sl_batch_options options = { .batch = 1, .seq = seq, .shuffled = true, .seed = 7 };
        assert_int_equal(sl_batches_create(tokens, &options, &batches), SL_OK);
        options.seed = 8;
        assert_int_equal(sl_batches_create(tokens, &options, &other), SL_OK);
        int64_t windows = sl_batches_windows(batches);
        for (int epoch = 0; epoch < 3; epoch++) {
            char seen[2001] = { 0 };
            int64_t first = sl_batches_start(batches, epoch * windows, 0) % seq;
            for (int64_t i = 0; i < windows; i++) {
                int64_t start = sl_batches_start(batches, epoch * windows + i, 0);
                assert_int_equal(start % seq, first);
                assert_true(start + seq < 2001);
                assert_int_equal(seen[start / seq]++, 0);
                moved += start != i * seq + first;
                same_order += windows > 100 && start == sl_batches_start(other, epoch * windows + i, 0);
                same_order += windows > 100 && start == sl_batches_start(batches, (epoch + 1) * windows + i, 0);
            }
        }
        sl_batches_destroy(batches);
        sl_batches_destroy(other);
    }
    assert_true(moved > 5000);    /* of about 8000: shuffled indeed */
    assert_true(same_order < 60); /* by chance one a comparison of two orders */
    sl_tokens_close(tokens);
}

static void the_reference_tokens_are_twenty_steps(void **state)
{
    (void)state;
    sl_tokens *tokens = open_tokens(data_path("models/gpt2-tiny/tokens.bin"), SL_TOKENS_AUTO);
    sl_batch_options options = { .batch = 8, .seq = 32, .vocab = 257 };
    sl_batches *batches = NULL;
    assert_int_equal(sl_batches_create(tokens, &options, &batches), SL_OK);
    assert_int_equal(sl_batches_windows(batches), 160);
    assert_int_equal(sl_batches_start(batches, 19, 7), (19 * 8 + 7) * 32);
    assert_int_equal(sl_batches_check(batches, 0, 20), SL_OK);
    sl_batches_destroy(batches);
    sl_tokens_close(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_reads_back_what_was_saved),
        cmocka_unit_test(headers_that_do_not_fit_are_refused),
        cmocka_unit_test(a_token_past_the_vocabulary_is_named_with_file_and_offset),
        cmocka_unit_test(rows_of_a_step_follow_each_other_and_wrap_by_epochs),
        cmocka_unit_test(a_shuffled_epoch_visits_every_window_once),
        cmocka_unit_test(shuffled_epochs_start_at_different_tokens),
        cmocka_unit_test(the_reference_tokens_are_twenty_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
