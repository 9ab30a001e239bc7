/* Generation with a cache, on any number of ranks, chooses what the whole model without a cache would choose. */
#include "support/device/test_device.h"
#include <sluice/train.h>

#include "train/infer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 5, TOKENS = 12, SAMPLES = 3, RANKS_MAX = 4 };

static const int32_t prompt[PROMPT] = { 7, 1, 200, 33, 7 };

static char *model_path(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/models/%s", getenv("SLUICE_DATA"), name);
    return path;
}

/* ---- Ranks as threads ------------------------------------------------------------------------ */

typedef struct rank_job {
    const sl_model_source *source;
    sl_group *group;
    const sl_generate_text_options *options;
    int32_t *tokens;
    sl_status status;
    char message[256];
} rank_job;

static void *run_rank(void *argument)
{
    rank_job *job = argument;
    job->status = sl_model_generate(job->source, job->group, job->options, job->tokens);
    snprintf(job->message, sizeof job->message, "%s", job->status == SL_OK ? "" : sl_error_message());
    return NULL;
}

static void generate(const sl_model_source *source, int ranks, const sl_generate_text_options *options, int32_t *tokens)
{
    sl_group *groups[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    rank_job jobs[RANKS_MAX];
    sl_generate_text_options own = *options;
    own.device = test_device_spec();
    assert_int_equal(sl_group_open_threads(ranks, NULL, groups), SL_OK);
    for (int r = 0; r < ranks; r++) {
        jobs[r] = (rank_job){ source, groups[r], &own, r == 0 ? tokens : NULL, SL_OK, "" };
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++) {
        assert_string_equal(jobs[r].message, "");
        sl_group_close(groups[r]);
    }
}

/* ---- The slow way ---------------------------------------------------------------------------- */

/* The likeliest next token by running the whole sequence through the whole model. */
static int32_t next_token(const sl_model_source *source, const int32_t *sequence, int64_t length)
{
    sl_device *device = NULL;
    sl_group *group = NULL;
    sl_infer *infer = NULL;
    const sl_model *model = sl_model_source_model(source);
    int64_t vocab = sl_model_vocab(model), best = 0;
    float *logits = malloc((size_t)(length * vocab) * sizeof *logits);
    assert_int_equal(sl_device_open(test_device_spec(), NULL, &device), SL_OK);
    assert_int_equal(sl_group_open_threads(1, NULL, &group), SL_OK);
    const sl_infer_options options = {
        .group = group, .device = device, .mode = SL_MODE_LOGITS, .shape = { .batch = 1, .seq = length }
    };
    assert_int_equal(sl_infer_create(source, &options, &infer), SL_OK);
    assert_int_equal(sl_infer_run(infer, 0, &(sl_infer_input){ "tokens", sequence }, 1, logits, NULL), SL_OK);
    const float *last = logits + (length - 1) * vocab;
    for (int64_t i = 1; i < vocab; i++)
        best = last[i] > last[best] ? i : best;
    sl_infer_destroy(infer);
    sl_device_close(device);
    sl_group_close(group);
    free(logits);
    return (int32_t)best;
}

static void the_cache_changes_nothing(void **state)
{
    static const char *const names[] = { "gpt2-tiny", "llama-tiny" };
    (void)state;
    for (int m = 0; m < 2; m++) {
        sl_model_source *source = NULL;
        int32_t tokens[TOKENS], sequence[PROMPT + TOKENS];
        const sl_generate_text_options options = { .prompt = prompt, .prompt_count = PROMPT, .new_tokens = TOKENS };
        assert_int_equal(sl_model_source_open(model_path(names[m]), &source), SL_OK);
        generate(source, 1, &options, tokens);
        memcpy(sequence, prompt, sizeof prompt);
        for (int64_t i = 0; i < TOKENS; i++) {
            sequence[PROMPT + i] = next_token(source, sequence, PROMPT + i);
            assert_int_equal(tokens[i], sequence[PROMPT + i]);
        }
        sl_model_source_close(source);
    }
}

static void the_number_of_ranks_changes_nothing(void **state)
{
    static const char *const names[] = { "gpt2-tiny", "llama-tiny" };
    (void)state;
    for (int m = 0; m < 2; m++) {
        sl_model_source *source = NULL;
        int32_t alone[SAMPLES * TOKENS], together[SAMPLES * TOKENS];
        const sl_generate_text_options options = { .prompt = prompt,
                                                   .prompt_count = PROMPT,
                                                   .new_tokens = TOKENS,
                                                   .samples = SAMPLES,
                                                   .temperature = 0.9,
                                                   .top_k = 50,
                                                   .seed = 11 };
        assert_int_equal(sl_model_source_open(model_path(names[m]), &source), SL_OK);
        generate(source, 1, &options, alone);
        assert_memory_not_equal(alone, alone + TOKENS, TOKENS * sizeof *alone); /* samples differ */
        for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
            generate(source, ranks, &options, together);
            assert_memory_equal(alone, together, sizeof alone);
        }
        sl_model_source_close(source);
    }
}

static void what_cannot_be_continued_is_refused(void **state)
{
    (void)state;
    sl_model_source *source = NULL;
    sl_group *group = NULL;
    const int32_t wrong[] = { 3, 257 };
    sl_generate_text_options options = { .prompt = prompt, .prompt_count = PROMPT, .new_tokens = 60 };
    assert_int_equal(sl_model_source_open(model_path("gpt2-tiny"), &source), SL_OK);
    assert_int_equal(sl_group_open_threads(1, NULL, &group), SL_OK);
    assert_int_equal(sl_model_generate(source, group, &options, NULL), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(),
                        "5 tokens of prompt and 60 new ones are more than the model's 64 positions");
    sl_group_close(group);
    assert_int_equal(sl_group_open_threads(1, NULL, &group), SL_OK);
    options = (sl_generate_text_options){ .prompt = wrong, .prompt_count = 2, .new_tokens = 1 };
    assert_int_equal(sl_model_generate(source, group, &options, NULL), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "token 1 of the prompt is 257, the vocabulary has 257");
    sl_group_close(group);
    sl_model_source_close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cache_changes_nothing),
        cmocka_unit_test(the_number_of_ranks_changes_nothing),
        cmocka_unit_test(what_cannot_be_continued_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
