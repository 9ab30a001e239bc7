/* A rank that dies in the middle of a step: the others stop with an error that says who, where and in what. */
#include "ranks/support/chain.h"
#include "support/device/test_device.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 3 };

/* In memory that all processes share. */
typedef struct seen {
    int signal; /* what rank 1 does to itself in its F of microbatch 2 of step 3 */
    sl_status status[RANKS];
    bool failed[RANKS];
    sl_runtime_failure failures[RANKS];
    char grid[RANKS][4096];
    double seconds[RANKS]; /* from the death to the error */
    double died;
} seen;

/* Writes a value, or one more than another. */
typedef struct write_args {
    float *to;
    const float *from; /* NULL: none */
    float value;
} write_args;

static void write_value(const void *given)
{
    const write_args *args = given;
    const float *from = args->from ? test_device_near(args->from) : NULL;
    *(float *)test_device_near(args->to) = from ? *from + 1 : args->value;
}

static sl_status forward(void *user, const sl_stage_call *call)
{
    seen *shared = user;
    if (call->stage == 1 && call->microbatch == 2 && call->step == 3) {
        shared->died = sl_now();
        kill(getpid(), shared->signal);
    }
    const write_args args = { .to = call->outputs[0].data, .from = call->stage ? call->inputs[0].data : NULL };
    return test_device_launch(call->stream, write_value, &args, sizeof args);
}

static sl_status backward(void *user, const sl_stage_call *call)
{
    (void)user;
    const write_args args = { .to = call->input_count ? call->input_grads[0].data : NULL, .value = 1 };
    return call->input_count ? test_device_launch(call->stream, write_value, &args, sizeof args) : SL_OK;
}

static sl_status create_stage(seen *shared, int index, sl_stage **out)
{
    sl_meta meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 1 });
    const sl_stage_options options = { .index = index, .forward = forward, .backward = backward, .user = shared };
    return chain_create_stage(options, (sl_stage_value){ .meta = meta },
                              (sl_stage_value){ .meta = meta, .no_grad = index == RANKS - 1 }, out);
}

static sl_status run_rank(seen *shared, int rank)
{
    sl_status status = SL_OK;
    chain_rank at = { .group = NULL };
    sl_generate_options options = { .name = "1F1B", .ranks = RANKS, .microbatches = 4 };
    SL_TRY(sl_group_open(&(sl_group_options){ .hang_timeout = 1 }, &at.group));
    SL_TRY(sl_device_open(test_device_spec(), NULL, &at.device));
    SL_TRY(sl_schedule_generate(&options, &at.schedule));
    SL_TRY(create_stage(shared, rank, &at.stage));
    SL_TRY(chain_create_runtime(&at, (sl_runtime_options){ .device = NULL }));
    for (int step = 0; step < 6 && status == SL_OK; step++)
        status = sl_runtime_step(at.runtime, &(sl_step){ .number = step }, NULL);
    shared->seconds[rank] = sl_now() - shared->died;
    shared->failed[rank] = sl_runtime_get_failure(at.runtime, &shared->failures[rank]);
    FILE *file = fmemopen(shared->grid[rank], sizeof shared->grid[rank], "w");
    (void)!sl_runtime_write_failure(at.runtime, file);
    fclose(file);
done:
    chain_close(&at);
    return status;
}

static int rank_main(void *user, int rank)
{
    seen *shared = user;
    shared->status[rank] = run_rank(shared, rank);
    return shared->status[rank] == SL_OK ? 0 : 1;
}

static void assert_all_know(int signal, double limit)
{
    seen *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .user = shared, .hang_timeout = 1, .grace = 2 };
    sl_launch_result result;
    shared->signal = signal;
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    assert_int_equal(result.rank, 1);
    for (int r = 0; r < RANKS; r += 2) {
        assert_int_equal(shared->status[r], SL_ERR_PEER);
        assert_true(shared->failed[r]);
        if (shared->failures[r].rank != 1 || shared->failures[r].action.kind != SL_KIND_F ||
            shared->failures[r].action.stage != 1 || shared->failures[r].action.microbatch != 2)
            fail_msg("rank %d names another place: %s", r, shared->failures[r].message);
        assert_non_null(strstr(shared->grid[r], "1F2"));
        assert_non_null(strstr(shared->grid[r], "ERROR HERE"));
        if (shared->seconds[r] > limit)
            fail_msg("rank %d needed %g s", r, shared->seconds[r]);
    }
    munmap(shared, sizeof *shared);
}

static void a_killed_rank_is_named_with_its_action(void **state)
{
    (void)state;
    assert_all_know(SIGKILL, 1.0);
}

static void a_rank_that_hangs_is_named_with_its_action(void **state)
{
    (void)state;
    assert_all_know(SIGSTOP, 5.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_with_its_action),
        cmocka_unit_test(a_rank_that_hangs_is_named_with_its_action),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
