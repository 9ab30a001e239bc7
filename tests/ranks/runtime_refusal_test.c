/* Stages that do not fit, arguments that are wrong: every process gets the same error, though each ends as soon as it has it. */
#include "ranks/support/chain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

enum { RANKS = 4, ROUNDS = 5 };

/* In memory that all processes share. */
typedef struct seen {
    int wrong; /* what is wrong: 0 a shape, 1 a missing stage, 2 a schedule of one rank's own, 3 an argument of a step */
    sl_status status[RANKS];
    char message[RANKS][1024];
} seen;

static sl_status pass_on(void *user, const sl_stage_call *call)
{
    (void)user, (void)call;
    return SL_OK;
}

static sl_status create_stage(const seen *shared, int index, sl_stage **out)
{
    const int64_t width = 3, made = shared->wrong == 0 && index == 1 ? 5 : width;
    const sl_stage_options options = { .index = index, .forward = pass_on, .backward = pass_on };
    return chain_create_stage(options, (sl_stage_value){ .meta = sl_meta_make(SL_F32, 1, &width) },
                              (sl_stage_value){ .meta = sl_meta_make(SL_F32, 1, &made) }, out);
}

static sl_status run_rank(const seen *shared, int rank)
{
    sl_status status = SL_OK;
    chain_rank at = { .group = NULL };
    bool odd = rank == 2;
    sl_generate_options options = { .name = shared->wrong == 2 && odd ? "GPipe" : "1F1B",
                                    .ranks = RANKS,
                                    .microbatches = 4 };
    SL_TRY(sl_group_open(NULL, &at.group));
    SL_TRY(sl_device_open("cpu", NULL, &at.device));
    SL_TRY(sl_schedule_generate(&options, &at.schedule));
    SL_TRY(create_stage(shared, rank, &at.stage));
    sl_runtime_options what = { .group = at.group,
                                .device = at.device,
                                .schedule = at.schedule,
                                .stages = &at.stage,
                                .stage_count = !(shared->wrong == 1 && odd) };
    SL_TRY(sl_runtime_create(&what, &at.runtime));
    const sl_arg unknown = { .name = "ex" };
    SL_TRY(sl_runtime_eval(at.runtime, &(sl_step){ .number = 0 }, NULL));
    SL_TRY(sl_runtime_eval(at.runtime, &(sl_step){ .args = &unknown, .arg_count = odd, .number = 1 }, NULL));
done:
    chain_close(&at);
    return status;
}

static int rank_main(void *user, int rank)
{
    seen *shared = user;
    shared->status[rank] = run_rank(shared, rank);
    snprintf(shared->message[rank], sizeof shared->message[rank], "%s", sl_error_message());
    return shared->status[rank] == SL_OK ? 0 : 1;
}

static void assert_all_say(int wrong, sl_status status, const char *message)
{
    seen *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .user = shared };
    for (int round = 0; round < ROUNDS; round++) {
        sl_launch_result result;
        memset(shared, 0, sizeof *shared);
        shared->wrong = wrong;
        assert_int_equal(sl_launch(&launch, &result), SL_OK);
        for (int r = 0; r < RANKS; r++) {
            assert_string_equal(shared->message[r], message);
            assert_int_equal(shared->status[r], status);
        }
    }
    munmap(shared, sizeof *shared);
}

static void a_shape_that_does_not_fit(void **state)
{
    (void)state;
    assert_all_say(0, SL_ERR_SHAPE,
                   "stage 2: input 'h1' from output 'h1' of stage 1: shape mismatch: expected [3], given [5]");
}

static void a_stage_that_nobody_has(void **state)
{
    (void)state;
    assert_all_say(1, SL_ERR_ARGUMENT, "rank 2 was not given stage 2, which the schedule has there");
}

static void a_schedule_of_ones_own(void **state)
{
    (void)state;
    assert_all_say(2, SL_ERR_SCHEDULE, "ranks were given different schedules (rank 2 another than rank 0)");
}

static void an_argument_that_nobody_takes(void **state)
{
    (void)state;
    assert_all_say(3, SL_ERR_ARGUMENT,
                   "rank 2: before the first action of step 2: no stage has an input 'ex'; the batch consists of "
                   "nothing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_that_does_not_fit),
        cmocka_unit_test(a_stage_that_nobody_has),
        cmocka_unit_test(a_schedule_of_ones_own),
        cmocka_unit_test(an_argument_that_nobody_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
