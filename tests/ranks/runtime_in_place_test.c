/* Processes whose messages lie in memory of the device that they share work on them in place; those that cannot reach each
 * other's memory, or are asked to, have copies of them. ranks/bits_test.c has their bits. */
#include "ranks/support/chain.h"
#include "support/device/test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

enum { RANKS = 3, MICROBATCHES = 4, STEPS = 3, VALUE_BYTES = 4096 };

/* In memory that all processes share. */
typedef struct seen {
    bool apart, staged;
    size_t slots[RANKS]; /* bytes of device memory for values */
    char messages[RANKS][320];
    char error[512];
} seen;

static sl_status pass_on(void *user, const sl_stage_call *call)
{
    (void)user, (void)call;
    return SL_OK;
}

static sl_status create_stage(int index, sl_stage **out)
{
    char names[2][16];
    const sl_meta meta = sl_meta_make(SL_F32, 1, (int64_t[]){ VALUE_BYTES / 4 });
    snprintf(names[0], sizeof names[0], "h%d", index - 1);
    snprintf(names[1], sizeof names[1], "h%d", index);
    sl_stage_value input = { .name = names[0], .meta = meta, .last_use = SL_LAST_USE_F };
    sl_stage_value output = {
        .name = names[1], .meta = meta, .last_use = SL_LAST_USE_F, .grad_last_use = SL_LAST_USE_I
    };
    sl_stage_options options = { .index = index,
                                 .inputs = &input,
                                 .input_count = index > 0,
                                 .outputs = &output,
                                 .output_count = index < RANKS - 1,
                                 .forward = pass_on,
                                 .backward = pass_on,
                                 .replays = true };
    return sl_stage_create(&options, out);
}

static sl_status run_rank(seen *shared, int rank)
{
    sl_status status = SL_OK;
    chain_rank at = { .group = NULL };
    const sl_generate_options options = { .name = "1F1B", .ranks = RANKS, .microbatches = MICROBATCHES };
    SL_TRY(sl_group_open(NULL, &at.group));
    test_device_set_apart(shared->apart);
    SL_TRY(sl_device_open("test", NULL, &at.device));
    SL_TRY(sl_schedule_generate(&options, &at.schedule));
    SL_TRY(create_stage(rank, &at.stage));
    SL_TRY(chain_create_runtime(&at, (sl_runtime_options){ .staged_messages = shared->staged }));
    for (int step = 0; step < STEPS; step++)
        SL_TRY(sl_runtime_step(at.runtime, &(sl_step){ .number = step }, NULL));
    shared->slots[rank] = sl_runtime_get_memory(at.runtime).slots;
    snprintf(shared->messages[rank], sizeof shared->messages[rank], "%s", sl_runtime_messages(at.runtime));
done:
    if (status != SL_OK)
        snprintf(shared->error, sizeof shared->error, "%s", sl_error_message());
    chain_close(&at);
    return status;
}

static int rank_main(void *user, int rank)
{
    return run_rank(user, rank) == SL_OK ? 0 : 1;
}

/* All ranks' messages go that way, and values take memory beside them, or none. */
static void assert_runs(bool apart, bool staged, const char *way, bool copies)
{
    seen *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .user = shared };
    sl_launch_result result;
    assert_ptr_not_equal(shared, MAP_FAILED);
    test_device_install();
    *shared = (seen){ .apart = apart, .staged = staged };
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    if (result.exit_code != 0)
        fail_msg("%s: %s", shared->error, result.report);
    for (int r = 0; r < RANKS; r++) {
        if (strncmp(shared->messages[r], way, strlen(way)) != 0)
            fail_msg("rank %d: messages in %s, not in %s", r, shared->messages[r], way);
        if (copies)
            assert_true(shared->slots[r] >= VALUE_BYTES);
        else
            assert_int_equal(shared->slots[r], 0);
    }
    munmap(shared, sizeof *shared);
}

static void processes_that_share_a_device_copy_nothing(void **state)
{
    (void)state;
    assert_runs(false, false, "device memory, handed over by streams", false);
}

static void messages_are_copied_if_that_is_asked_for(void **state)
{
    (void)state;
    assert_runs(false, true, "device memory, handed over by streams", true);
}

/* As in containers that share a GPU: in each process the device has the same number. */
static void messages_are_copied_if_processes_cannot_reach_the_memory(void **state)
{
    (void)state;
    assert_runs(true, false, "host memory: ", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_that_share_a_device_copy_nothing),
        cmocka_unit_test(messages_are_copied_if_that_is_asked_for),
        cmocka_unit_test(messages_are_copied_if_processes_cannot_reach_the_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
