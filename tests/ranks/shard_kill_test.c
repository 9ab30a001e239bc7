/* A replica that dies in UNSHARD or in REDUCE_GRAD, before it has posted the collective or in the middle of it: all others
 * know within a second, and nothing is left. SLUICE_KILL_POINTS: how often each; 1 by default. */
#include "support/device/test_device.h"

#include <sluice/runtime.h>

#include <dirent.h>
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

/* The victim's collectives take several messages. */
enum { PIPELINE = 2, REPLICAS = 2, RANKS = PIPELINE * REPLICAS, STAGES = 2 * PIPELINE, WEIGHTS = 1 << 20, VICTIM = 1 };

/* By then streams wait for the other ranks, on a device that works by itself. */
enum { DEATH_STEP = 4 };

/* In memory that all processes share. */
typedef struct seen {
    sl_kind kind;     /* of the action in which the victim dies */
    bool posted;      /* after it has posted the collective */
    useconds_t pause; /* and this much later */
    sl_status status[RANKS];
    double seconds[RANKS]; /* from the death to the error */
    double died;
    char message[RANKS][512];
} seen;

static seen *shared;

/* ---- Stages: h = h' + w[0] ---- */

/* Of a kernel: the input is NULL if there is none. */
typedef struct stage_args {
    const float *in, *weights;
    float *out, *in_grad, *grad;
} stage_args;

static void run_forward(const void *given)
{
    const stage_args *args = given;
    const float *in = args->in ? test_device_near(args->in) : NULL, *weights = test_device_near(args->weights);
    *(float *)test_device_near(args->out) = (in ? *in : 0) + weights[0];
}

static void run_backward(const void *given)
{
    const stage_args *args = given;
    if (args->in_grad)
        *(float *)test_device_near(args->in_grad) = 1;
    *(float *)test_device_near(args->grad) += 1;
}

static sl_status forward(void *user, const sl_stage_call *call)
{
    (void)user;
    const stage_args args = { .in = call->stage ? call->inputs[0].data : NULL,
                              .weights = call->params[0].data,
                              .out = call->outputs[0].data };
    return test_device_launch(call->stream, run_forward, &args, sizeof args);
}

static sl_status backward(void *user, const sl_stage_call *call)
{
    (void)user;
    const stage_args args = { .in_grad = call->input_count ? call->input_grads[0].data : NULL,
                              .grad = call->grads[0].data };
    return test_device_launch(call->stream, run_backward, &args, sizeof args);
}

static sl_status create_stage(int index, sl_stage **out)
{
    char input[16], output[16], name[16];
    const sl_meta scalar = sl_meta_make(SL_F32, 1, (int64_t[]){ 1 }),
                  many = sl_meta_make(SL_F32, 1, (int64_t[]){ WEIGHTS });
    snprintf(input, sizeof input, "h%d", index - 1);
    snprintf(output, sizeof output, "h%d", index);
    snprintf(name, sizeof name, "w%d", index);
    const sl_stage_value in = { .name = input, .meta = scalar },
                         made = { .name = output, .meta = scalar, .no_grad = index == STAGES - 1 };
    const sl_stage_param weight = { .name = name, .meta = many };
    const sl_stage_options options = { .index = index,
                                       .inputs = &in,
                                       .input_count = index > 0,
                                       .outputs = &made,
                                       .output_count = 1,
                                       .params = &weight,
                                       .param_count = 1,
                                       .forward = forward,
                                       .backward = backward,
                                       .replays = true };
    return sl_stage_create(&options, out);
}

/* ---- Ranks ---- */

static int64_t step_number;

static sl_status die_in(void *user, sl_runtime *runtime, sl_action action)
{
    (void)user;
    sl_status status = SL_OK;
    if (step_number == DEATH_STEP && !shared->posted) {
        shared->died = sl_now();
        kill(getpid(), SIGKILL);
    }
    status = sl_runtime_run_action(runtime, action);
    if (step_number == DEATH_STEP) {
        usleep(shared->pause);
        shared->died = sl_now();
        kill(getpid(), SIGKILL);
    }
    return status;
}

typedef struct held {
    sl_group *world, *pipeline, *replicas;
    sl_device *device;
    sl_schedule *schedule;
    sl_stage *stages[2];
    sl_runtime *runtime;
} held;

static sl_status run_rank(held *h, int rank)
{
    sl_status status = SL_OK;
    const sl_generate_options generate = {
        .name = "Interleaved1F1B", .ranks = PIPELINE, .stages_per_rank = 2, .microbatches = 4
    };
    SL_TRY(sl_group_open(NULL, &h->world));
    SL_TRY(sl_group_mesh(h->world, PIPELINE, REPLICAS, &h->pipeline, &h->replicas));
    SL_TRY(sl_device_open(test_device_spec(), NULL, &h->device));
    SL_TRY(sl_schedule_generate(&generate, &h->schedule));
    for (int k = 0; k < 2; k++)
        SL_TRY(create_stage(sl_group_rank(h->pipeline) + k * PIPELINE, &h->stages[k]));
    const sl_runtime_options options = { .group = h->pipeline,
                                         .replicas = h->replicas,
                                         .device = h->device,
                                         .schedule = h->schedule,
                                         .stages = h->stages,
                                         .stage_count = 2,
                                         .shard = SL_SHARD_FULL,
                                         .unsharded_stages = 1 };
    SL_TRY(sl_runtime_create(&options, &h->runtime));
    if (rank == VICTIM)
        SL_TRY(sl_runtime_set_action(h->runtime, shared->kind, die_in, NULL));
    for (step_number = 0; step_number < DEATH_STEP + 3; step_number++)
        SL_TRY(sl_runtime_step(h->runtime, &(sl_step){ .number = step_number }, NULL));
done:
    return status;
}

static int rank_main(void *user, int rank)
{
    (void)user;
    held h = { 0 };
    shared->status[rank] = run_rank(&h, rank);
    shared->seconds[rank] = sl_now() - shared->died;
    snprintf(shared->message[rank], sizeof shared->message[rank], "%s",
             shared->status[rank] == SL_OK ? "" : sl_error_message());
    sl_runtime_destroy(h.runtime);
    for (int k = 0; k < 2; k++)
        sl_stage_destroy(h.stages[k]);
    sl_schedule_destroy(h.schedule);
    sl_device_close(h.device);
    sl_group_close(h.replicas);
    sl_group_close(h.pipeline);
    sl_group_close(h.world);
    return shared->status[rank] == SL_OK ? 0 : 1;
}

/* ---- What is left ---- */

static int count_shared_memory(void)
{
    int count = 0;
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry = NULL; folder && (entry = readdir(folder));)
        count += strstr(entry->d_name, "sluice") != NULL;
    if (folder)
        closedir(folder);
    return count;
}

static void assert_all_know(sl_kind kind, bool posted, useconds_t pause)
{
    const sl_launch_options launch = { .ranks = RANKS, .run = rank_main, .grace = 2 };
    sl_launch_result result;
    *shared = (seen){ .kind = kind, .posted = posted, .pause = pause };
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    assert_int_equal(result.rank, VICTIM);
    assert_int_equal(result.exit_code, 128 + SIGKILL);
    for (int r = 0; r < RANKS; r++) {
        if (r == VICTIM)
            continue;
        if (shared->status[r] != SL_ERR_PEER || !strstr(shared->message[r], "rank 1"))
            fail_msg("rank %d: %s", r, shared->message[r]);
        if (shared->seconds[r] > 1)
            fail_msg("rank %d needed %g s", r, shared->seconds[r]);
    }
}

static int points(void)
{
    const char *given = getenv("SLUICE_KILL_POINTS");
    return given ? atoi(given) : 1;
}

static void check_kind(sl_kind kind)
{
    int before = count_shared_memory();
    for (int i = 0; i < points(); i++) {
        assert_all_know(kind, false, 0);
        assert_all_know(kind, true, (useconds_t)(37 * i)); /* from the first message on */
    }
    assert_int_equal(count_shared_memory(), before);
}

static void a_death_in_unshard_reaches_all(void **state)
{
    (void)state;
    check_kind(SL_KIND_UNSHARD);
}

static void a_death_in_reduce_grad_reaches_all(void **state)
{
    (void)state;
    check_kind(SL_KIND_REDUCE_GRAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_in_unshard_reaches_all),
        cmocka_unit_test(a_death_in_reduce_grad_reaches_all),
    };
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
