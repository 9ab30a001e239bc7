/* A callback or a kernel that never returns, or a message that is never sent: the run ends, and every rank's error
 * names the rank, the action and the stack of the host. A rank that waits for a slow one is not blamed. */
#include "ranks/support/chain.h"
#include "support/device/test_device.h"
#include "support/sanitized.h"

#include <sluice/runtime.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 3 };

/* In memory that all processes share. */
static struct scene {
    int ranks;
    bool hangs;     /* rank 1 (0 if there is one rank) does not return from its F of microbatch 2 of step 3 */
    int slow_us;    /* that rank 1 needs for every action */
    bool on_device; /* the stages launch kernels, and their steps are captured */
    int loses;      /* microbatch whose message rank 0 does not send in step 3; 0: none */
    int launches;   /* of that kernel: once a step */
    double hung_at;
    sl_status status[RANKS];
    char message[RANKS][2048];
    double at[RANKS]; /* when it got its error */
} * shared;

__attribute__((noinline)) static void spin_for_ever(void)
{
    for (volatile int i = 0;; i++)
        ;
}

static bool is_victim(const sl_stage_call *call)
{
    return call->stage == (shared->ranks > 1 ? 1 : 0);
}

static sl_status forward(void *user, const sl_stage_call *call)
{
    (void)user;
    if (is_victim(call) && shared->slow_us)
        usleep((useconds_t)shared->slow_us);
    if (is_victim(call) && shared->hangs && call->microbatch == 2 && call->step == 2) {
        shared->hung_at = sl_now();
        spin_for_ever();
    }
    *(float *)call->outputs[0].data = call->stage ? *(const float *)call->inputs[0].data + 1 : 0;
    return SL_OK;
}

static sl_status backward(void *user, const sl_stage_call *call)
{
    (void)user;
    if (is_victim(call) && shared->slow_us)
        usleep((useconds_t)shared->slow_us);
    if (call->input_count)
        *(float *)call->input_grads[0].data = 1;
    return SL_OK;
}

/* A kernel of microbatch args[1] at stage args[0]. */
static void run_kernel(const void *args)
{
    const int *of = args;
    if (of[0] != 1)
        return;
    if (shared->slow_us && shared->launches == 2)
        usleep((useconds_t)shared->slow_us);
    if (of[1] != 2 || ++shared->launches < 3 || !shared->hangs)
        return;
    shared->hung_at = sl_now();
    for (;;)
        pause();
}

static sl_status launch_forward(void *user, const sl_stage_call *call)
{
    const int of[] = { call->stage, call->microbatch };
    (void)user;
    return test_device_launch(call->stream, run_kernel, of, sizeof of);
}

static sl_status launch_nothing(void *user, const sl_stage_call *call)
{
    (void)user;
    (void)call;
    return SL_OK;
}

/* Stands in for SEND_F. */
static sl_status send_or_lose(void *user, sl_runtime *runtime, sl_action action)
{
    int *step = user;
    *step += action.microbatch == 0;
    if (*step == 3 && action.microbatch == shared->loses) {
        shared->hung_at = sl_now();
        return SL_OK;
    }
    return sl_runtime_run_action(runtime, action);
}

static sl_status create_stage(int index, int count, sl_stage **out)
{
    sl_meta meta = sl_meta_make(SL_F32, 1, (int64_t[]){ 1 });
    const sl_stage_options options = { .index = index,
                                       .forward = shared->on_device ? launch_forward : forward,
                                       .backward = shared->on_device ? launch_nothing : backward,
                                       .replays = shared->on_device };
    return chain_create_stage(options, (sl_stage_value){ .meta = meta },
                              (sl_stage_value){ .meta = meta, .no_grad = index == count - 1 }, out);
}

static sl_status run_rank(int rank, const sl_group_options *group_options)
{
    sl_status status = SL_OK;
    chain_rank at = { .group = NULL };
    int sent = 0;
    sl_generate_options options = { .name = "1F1B", .ranks = shared->ranks, .microbatches = 4 };
    SL_TRY(sl_group_open(group_options, &at.group));
    if (shared->on_device)
        test_device_install();
    SL_TRY(sl_device_open(shared->on_device ? "test" : "cpu", NULL, &at.device));
    SL_TRY(sl_schedule_generate(&options, &at.schedule));
    SL_TRY(create_stage(rank, shared->ranks, &at.stage));
    SL_TRY(chain_create_runtime(&at, (sl_runtime_options){ .device = NULL }));
    if (shared->loses && rank == 0)
        SL_TRY(sl_runtime_set_action(at.runtime, SL_KIND_SEND_F, send_or_lose, &sent));
    for (int step = 0; step < (shared->on_device ? 3 : 4); step++)
        SL_TRY(sl_runtime_step(at.runtime, &(sl_step){ .number = step }, NULL));
done:
    shared->at[rank] = sl_now();
    shared->status[rank] = status;
    snprintf(shared->message[rank], sizeof shared->message[rank], "%s", status == SL_OK ? "" : sl_error_message());
    chain_close(&at);
    return status;
}

static int rank_main(void *user, int rank)
{
    (void)user;
    return run_rank(rank, NULL) == SL_OK ? 0 : 1;
}

static void set_scene(int ranks, bool hangs, int slow_us)
{
    memset(shared, 0, sizeof *shared);
    shared->ranks = ranks;
    shared->hangs = hangs;
    shared->slow_us = slow_us;
}

/* The thread sanitizer keeps a signal back until the thread makes a call that can block, and one that spins makes none:
 * its stack cannot be had. */
static void skip_if_signals_wait(void)
{
#if TEST_THREAD_SANITIZED
    print_message("the thread sanitizer keeps signals from a thread that spins\n");
    skip();
#endif
}

static void a_callback_that_never_returns_ends_the_run(void **state)
{
    (void)state;
    skip_if_signals_wait();
    static const char place[] = "rank 1 has been in one action for more than 0.5 s: pipeline rank 1, cell ";
    const sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .hang_timeout = 0.5 };
    sl_launch_result result;
    set_scene(RANKS, true, 0);
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    assert_int_equal(result.exit_code, SL_EXIT_AGAIN);
    assert_int_equal(result.rank, 1);
    if (strncmp(result.report, place, strlen(place)) != 0 ||
        !strstr(result.report, "1F2 (stage 1, microbatch 2, step 3); stack: spin_for_ever < forward < "))
        fail_msg("the report is '%s'", result.report);
    for (int r = 0; r < RANKS; r += 2) {
        assert_int_equal(shared->status[r], SL_ERR_PEER);
        if (!strstr(shared->message[r], place))
            fail_msg("rank %d: %s", r, shared->message[r]);
        assert_true(shared->at[r] - shared->hung_at < 2);
    }
}

/* Runs it in a process of its own, with its stderr in text. Returns the exit status. */
static int run_alone(const sl_group_options *options, char *text, size_t size)
{
    int ends[2], end = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        _exit(run_rank(0, options) == SL_OK ? 0 : 1);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &end, 0), pid);
    return end;
}

static void a_single_process_ends_itself_and_says_why(void **state)
{
    (void)state;
    skip_if_signals_wait();
    char text[4096];
    set_scene(1, true, 0);
    int end = run_alone(&(sl_group_options){ .hang_timeout = 0.5 }, text, sizeof text);
    assert_true(WIFEXITED(end));
    assert_int_equal(WEXITSTATUS(end), SL_EXIT_AGAIN);
    if (!strstr(text, "rank 0 has been in one action for more than 0.5 s") ||
        !strstr(text, "0F2 (stage 0, microbatch 2, step 3); stack: spin_for_ever < forward < "))
        fail_msg("it says '%s'", text);
}

static void a_rank_that_waits_or_works_on_is_not_blamed(void **state)
{
    (void)state;
    /* Rank 1 needs 0.2 s for an action and 1.6 s for a step, for which the others wait. */
    const sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .hang_timeout = 0.5 };
    sl_launch_result result;
    set_scene(RANKS, false, 200000);
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    if (result.exit_code != 0)
        fail_msg("%s", result.report);
}

static void expect_named_kernel(const char *links)
{
    static const char place[] = "rank 1 has been in one action for more than 0.5 s: pipeline rank 1, cell ";
    const sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .hang_timeout = 0.5 };
    sl_launch_result result;
    setenv("SLUICE_DEVICE_LINKS", links, 1);
    set_scene(RANKS, true, 0);
    shared->on_device = true;
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    assert_int_equal(result.exit_code, SL_EXIT_AGAIN);
    assert_int_equal(result.rank, 1);
    if (strncmp(result.report, place, strlen(place)) != 0 ||
        !strstr(result.report, "1F2 (stage 1, microbatch 2, step 3)"))
        fail_msg("the report is '%s'", result.report);
    for (int r = 0; r < RANKS; r += 2) {
        assert_int_equal(shared->status[r], SL_ERR_PEER);
        if (!strstr(shared->message[r], place))
            fail_msg("rank %d: %s", r, shared->message[r]);
        assert_true(shared->at[r] - shared->hung_at < 3);
    }
    set_scene(RANKS, false, 200000); /* a rank that works on is not blamed */
    shared->on_device = true;
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    if (result.exit_code != 0)
        fail_msg("%s", result.report);
}

static void a_kernel_that_never_ends_in_a_captured_step_is_named(void **state)
{
    (void)state;
    expect_named_kernel("1");
}

/* The host of its rank waits for messages like all others. */
static void a_kernel_that_never_ends_is_named_if_messages_go_through_the_host(void **state)
{
    (void)state;
    expect_named_kernel("0");
}

static void lose_a_message(bool on_device)
{
    const sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .hang_timeout = 0.5 };
    sl_launch_result result;
    setenv("SLUICE_DEVICE_LINKS", "1", 1);
    set_scene(RANKS, false, 0);
    shared->loses = on_device ? 2 : 3;
    shared->on_device = on_device;
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    assert_int_not_equal(result.exit_code, 0);
    for (int r = 0; r < RANKS; r++) { /* a sanitizer takes seconds to name the functions of a stack */
        if (shared->at[r] - shared->hung_at > (on_device ? 8 : 2))
            fail_msg("rank %d after %.3f s: %s", r, shared->at[r] - shared->hung_at, shared->message[r]);
    }
}

/* The last message: rank 0 goes on to wait for a gradient that rank 1 does not send before it has come. */
static void ranks_that_wait_for_each_other_are_named(void **state)
{
    (void)state;
    lose_a_message(false);
    for (int r = 0; r < RANKS; r++) {
        if (!strstr(shared->message[r], "rank 0 waits in a circle that nothing ends; last doing: rank 0: step 3 0") ||
            !strstr(shared->message[r], "; rank 1: step 3 1") ||
            !strstr(shared->message[r], ", waiting to receive on channel 0 from rank 0 (step 3, microbatch 3)"))
            fail_msg("rank %d: %s", r, shared->message[r]);
    }
}

/* Both ends see which one has not come. Rank 0 makes the next output in a slot that rank 1 does not free. */
static void a_message_that_a_stream_does_not_send_is_named(void **state)
{
    (void)state;
    lose_a_message(true);
    for (int r = 0; r < RANKS; r++) {
        if (!strstr(shared->message[r], "rank 0 has been in one action for more than 0.5 s: pipeline rank 0, cell ") ||
            !strstr(shared->message[r], "0F3 (stage 0, microbatch 3, step 3)"))
            fail_msg("rank %d: %s", r, shared->message[r]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_callback_that_never_returns_ends_the_run),
        cmocka_unit_test(a_single_process_ends_itself_and_says_why),
        cmocka_unit_test(a_rank_that_waits_or_works_on_is_not_blamed),
        cmocka_unit_test(a_kernel_that_never_ends_in_a_captured_step_is_named),
        cmocka_unit_test(a_kernel_that_never_ends_is_named_if_messages_go_through_the_host),
        cmocka_unit_test(ranks_that_wait_for_each_other_are_named),
        cmocka_unit_test(a_message_that_a_stream_does_not_send_is_named),
    };
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
