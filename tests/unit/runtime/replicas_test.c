/* Replicas start with the same parameters: compared before the first step, or broadcast. Also: what a step hands to its
 * callbacks. */
#include "unit/runtime/job.h"

typedef struct drift {
    int rank, replica; /* whose parameter becomes another */
    bool repair;       /* by a broadcast, after the refused step */
    bool late;         /* only after a first step */
    sl_status status[MAX_RANKS], explicit_status[MAX_RANKS];
    char message[MAX_RANKS][1024];
    float weights[MAX_RANKS][WIDTH]; /* of the rank's first parameter, at the end */
} drift;

static sl_status one_step(job *self, sl_runtime *runtime, int replica)
{
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ self->samples, WIDTH });
    const sl_arg args[] = { { "x", { x, meta } }, { "t", { t, meta } } };
    job_batch(0, replica, self->samples, x, t);
    return sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2 }, NULL);
}

static sl_status step_with_drift(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    drift *saw = self->user;
    sl_status status = SL_OK;
    int params = 0, world = sl_group_world_rank(sl_runtime_group(runtime), rank), replica = world % self->replicas;
    const sl_param *param = sl_runtime_params(runtime, &params);
    float w[WIDTH] = { 0 };
    (void)stages, (void)count;
    if (saw->late)
        SL_TRY(one_step(self, runtime, replica));
    SL_TRY(job_copy(runtime, &param->data, w, false));
    if (rank == saw->rank && replica == saw->replica && param->held.count > 0) {
        w[param->held.count - 1] += 1;
        SL_TRY(job_copy(runtime, &param->data, w, true));
    }
    saw->explicit_status[world] = sl_runtime_compare_params(runtime);
    saw->status[world] = one_step(self, runtime, replica);
    snprintf(saw->message[world], sizeof saw->message[world], "%s", sl_error_message());
    if (saw->repair) {
        SL_TRY(sl_runtime_broadcast_params(runtime));
        SL_TRY(sl_runtime_compare_params(runtime));
        SL_TRY(one_step(self, runtime, replica));
    }
    SL_TRY(job_copy(runtime, &param->data, w, false));
    memcpy(saw->weights[world], w, sizeof w);
done:
    return status;
}

static job drifting_job(int ranks, int replicas, drift *saw)
{
    job made = job_make("1F1B", ranks, 0, 4, 8);
    made.replicas = replicas;
    made.steps = 0;
    made.after = step_with_drift;
    made.user = saw;
    return made;
}

static void other_values_on_one_replica_are_refused_by_name_and_can_be_repaired(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        drift saw = { .rank = ranks - 1, .replica = 1, .repair = true };
        char name[32];
        job made = drifting_job(ranks, 2, &saw);
        job_finish(&made);
        snprintf(name, sizeof name, "parameter 'w%d' of stage %d", ranks - 1, ranks - 1);
        for (int r = 0; r < 2 * ranks; r++) {
            assert_int_equal(saw.status[r], SL_ERR_ARGUMENT);
            if (!strstr(saw.message[r], name))
                fail_msg("no %s in: %s", name, saw.message[r]);
            assert_string_equal(saw.message[r], saw.message[0]);
            /* asked directly, those who hold the parameter know */
            assert_int_equal(saw.explicit_status[r], r / 2 == ranks - 1 ? SL_ERR_ARGUMENT : SL_OK);
            assert_memory_equal(saw.weights[r], saw.weights[r - r % 2], sizeof saw.weights[r]);
        }
    }
}

static void a_broadcast_before_the_first_step_can_be_asked_for(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        drift saw = { .rank = 0, .replica = 1 };
        job made = drifting_job(ranks, 2, &saw);
        made.extra.replica_params = SL_REPLICAS_BROADCAST;
        job_finish(&made);
        float initial[WIDTH];
        toy_initial(0, initial);
        for (int r = 0; r < 2 * ranks; r++)
            assert_int_equal(saw.status[r], SL_OK);
        for (int r = 0; r < 2; r++)
            assert_memory_equal(saw.weights[r], initial, sizeof initial); /* those of replica 0 */
    }
}

static void nothing_is_compared_if_the_caller_says_so_or_after_the_first_step(void **state)
{
    (void)state;
    drift trusted = { .rank = 0, .replica = 1 }, late = { .rank = 0, .replica = 1, .late = true };
    job made = drifting_job(1, 2, &trusted), second = drifting_job(1, 2, &late);
    made.extra.replica_params = SL_REPLICAS_TRUST;
    job_finish(&made);
    job_finish(&second);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(trusted.status[r], SL_OK);
        assert_int_equal(late.status[r], SL_OK);
        assert_int_equal(trusted.explicit_status[r], SL_ERR_ARGUMENT);
        assert_int_equal(late.explicit_status[r], SL_ERR_ARGUMENT);
    }
}

static void of_shares_those_are_compared_that_several_replicas_hold(void **state)
{
    (void)state;
    drift shared = { .rank = 0, .replica = 1 }, grouped = { .rank = 0, .replica = 3 };
    job all = drifting_job(1, 2, &shared), pairs = drifting_job(1, 4, &grouped);
    all.extra.shard = pairs.extra.shard = SL_SHARD_FULL;
    pairs.extra.shard_group = 2;
    job_finish(&all);
    job_finish(&pairs);
    for (int r = 0; r < 2; r++)
        assert_int_equal(shared.status[r], SL_OK);
    for (int r = 0; r < 4; r++)
        assert_int_equal(grouped.status[r], SL_ERR_ARGUMENT);
}

/* ---- A frozen parameter ---- */

static sl_status pass(void *user, const sl_stage_call *call)
{
    (void)user, (void)call;
    return SL_OK;
}

static sl_status evaluate_with_a_frozen_parameter(toy_rank *self)
{
    sl_status status = SL_OK;
    sl_group *pipeline = NULL, *replicas = NULL;
    sl_device *device = NULL;
    sl_stage *stage = NULL;
    sl_runtime *runtime = NULL;
    int count = 0;
    float values[WIDTH] = { 1, 2, (float)(3 + self->rank) };
    const sl_stage_param param = { .name = "table",
                                   .meta = sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH }),
                                   .frozen = true };
    const sl_stage_options options = { .params = &param, .param_count = 1, .forward = pass, .backward = pass };
    SL_TRY(sl_group_mesh(self->group, 1, 2, &pipeline, &replicas));
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(sl_stage_create(&options, &stage));
    SL_TRY(sl_runtime_create(&(sl_runtime_options){ .group = pipeline,
                                                    .replicas = replicas,
                                                    .device = device,
                                                    .schedule = self->user,
                                                    .stages = &stage,
                                                    .stage_count = 1 },
                             &runtime));
    SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &count)[0].data, values, true));
    SL_TRY(sl_runtime_eval(runtime, &(sl_step){ .number = 0 }, NULL));
done:
    sl_runtime_destroy(runtime);
    sl_stage_destroy(stage);
    sl_device_close(device);
    sl_group_close(pipeline);
    sl_group_close(replicas);
    return status;
}

static void frozen_parameters_are_compared_too_and_before_an_evaluation(void **state)
{
    (void)state;
    toy_rank ranks[MAX_RANKS];
    sl_schedule *schedule = NULL;
    test_device_install();
    assert_int_equal(sl_schedule_parse_csv("0F0\n", 4, "test", &schedule), SL_OK);
    assert_int_equal(toy_run_ranks(2, evaluate_with_a_frozen_parameter, schedule, ranks), SL_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, SL_ERR_ARGUMENT);
        assert_non_null(strstr(ranks[r].message, "parameter 'table' of stage 0"));
    }
    sl_schedule_destroy(schedule);
}

/* ---- The step's user pointer ---- */

typedef struct notes {
    int mark;
    int calls[SL_PHASE_COUNT];
} notes;

static sl_status write_note(void *user, const sl_stage_call *call)
{
    notes *own = call->step_user;
    (void)user;
    own->calls[call->phase] += own->mark;
    return SL_OK;
}

static sl_status step_with_notes(toy_rank *self)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_stage *stage = NULL;
    sl_runtime *runtime = NULL;
    notes first = { .mark = 1 }, second = { .mark = 10 };
    const sl_stage_options options = {
        .index = self->rank, .forward = write_note, .backward_input = write_note, .backward_weight = write_note
    };
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(sl_stage_create(&options, &stage));
    SL_TRY(sl_runtime_create(
        &(sl_runtime_options){
            .group = self->group, .device = device, .schedule = self->user, .stages = &stage, .stage_count = 1 },
        &runtime));
    SL_TRY(sl_runtime_step(runtime, &(sl_step){ .user = &first }, NULL));
    SL_TRY(sl_runtime_eval(runtime, &(sl_step){ .user = &second }, NULL));
    if (first.calls[SL_PHASE_F] != 4 || first.calls[SL_PHASE_I] != 4 || first.calls[SL_PHASE_W] != 4 ||
        second.calls[SL_PHASE_F] != 40 || second.calls[SL_PHASE_I] != 0)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "calls: %d %d %d, %d", first.calls[SL_PHASE_F], first.calls[SL_PHASE_I],
                       first.calls[SL_PHASE_W], second.calls[SL_PHASE_F]));
done:
    sl_runtime_destroy(runtime);
    sl_stage_destroy(stage);
    sl_device_close(device);
    return status;
}

static void the_users_pointer_of_a_step_reaches_every_callback(void **state)
{
    (void)state;
    test_device_install();
    for (int count = 1; count <= 3; count += 2) {
        toy_rank ranks[MAX_RANKS];
        sl_schedule *schedule = NULL;
        assert_int_equal(sl_schedule_generate(
                             &(sl_generate_options){ .name = "1F1B", .ranks = count, .microbatches = 4 }, &schedule),
                         SL_OK);
        assert_int_equal(toy_run_ranks(count, step_with_notes, schedule, ranks), SL_OK);
        for (int r = 0; r < count; r++) {
            if (ranks[r].status != SL_OK)
                fail_msg("rank %d: %s", r, ranks[r].message);
        }
        sl_schedule_destroy(schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_values_on_one_replica_are_refused_by_name_and_can_be_repaired),
        cmocka_unit_test(a_broadcast_before_the_first_step_can_be_asked_for),
        cmocka_unit_test(nothing_is_compared_if_the_caller_says_so_or_after_the_first_step),
        cmocka_unit_test(of_shares_those_are_compared_that_several_replicas_hold),
        cmocka_unit_test(frozen_parameters_are_compared_too_and_before_an_evaluation),
        cmocka_unit_test(the_users_pointer_of_a_step_reaches_every_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
