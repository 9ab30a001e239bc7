/* Stages cut from a graph, with skip connections and tied weights, on ranks that are threads: the bits of one process.
 */
#include "ranks/support/pipeline.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_RANKS = 4 };

typedef struct rank_job {
    sl_group *group;
    const run_config *config;
    run_result *result;
} rank_job;

static void *rank_main(void *user)
{
    rank_job *job = user;
    (void)!run_pipelined(job->group, job->config, job->result); /* an error stands in the result */
    sl_group_close(job->group);
    return NULL;
}

static void run_threads(const run_config *config, run_result *result)
{
    sl_group *groups[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    rank_job jobs[MAX_RANKS];
    if (sl_group_open_threads(config->ranks, NULL, groups) != SL_OK)
        fail_msg("%s", sl_error_message());
    for (int r = 0; r < config->ranks; r++) {
        jobs[r] = (rank_job){ groups[r], config, result };
        pthread_create(&threads[r], NULL, rank_main, &jobs[r]);
    }
    for (int r = 0; r < config->ranks; r++)
        pthread_join(threads[r], NULL);
}

static void assert_same_bits(const run_config *config)
{
    run_result given = { 0 }, expected = { 0 };
    run_threads(config, &given);
    (void)!run_sequential(config, &expected);
    if (*given.error || *expected.error)
        fail_msg("%s, %d ranks, %d stages a rank, %d microbatches: %s%s", config->schedule, config->ranks,
                 config->stages_per_rank, config->microbatches, given.error, expected.error);
    assert_int_not_equal(expected.weights[0], 0);
    assert_int_equal(given.copies_differ, 0);
    assert_memory_equal(given.losses, expected.losses, sizeof given.losses);
    assert_memory_equal(given.first_grads, expected.first_grads, sizeof given.first_grads);
    assert_memory_equal(given.last_grads, expected.last_grads, sizeof given.last_grads);
    assert_memory_equal(given.weights, expected.weights, sizeof given.weights);
}

static void a_perceptron_with_skips_and_tied_weights(void **state)
{
    (void)state;
    static const int microbatches[] = { 1, 3, 8 };
    for (int i = 0; sl_generator_name(i); i++) {
        for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
            for (int k = 0; k < 3; k++) {
                run_config config = { .model = MODEL_MLP, .ranks = ranks, .microbatches = microbatches[k] };
                sl_schedule *schedule = NULL;
                snprintf(config.schedule, sizeof config.schedule, "%s", sl_generator_name(i));
                bool trains = make_schedule(&config, &schedule) == SL_OK && sl_schedule_has_backward(schedule);
                sl_schedule_destroy(schedule);
                if (trains)
                    assert_same_bits(&config);
            }
        }
    }
}

static void transformers_with_uneven_microbatches(void **state)
{
    (void)state;
    run_config interleaved = {
        .model = MODEL_GPT2, .schedule = "InterleavedZeroBubble", .ranks = 2, .stages_per_rank = 2, .microbatches = 3
    };
    run_config plain = {
        .model = MODEL_LLAMA, .schedule = "1F1B", .ranks = 3, .stages_per_rank = 1, .microbatches = 7
    };
    for (int bf16 = 0; bf16 < 2; bf16++) {
        interleaved.dtype = plain.dtype = bf16 ? SL_BF16 : SL_F32;
        assert_same_bits(&interleaved);
        assert_same_bits(&plain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_perceptron_with_skips_and_tied_weights),
        cmocka_unit_test(transformers_with_uneven_microbatches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
