/* Errors that can be survived: wrong arguments are found before the first action, are the same error on all ranks, and
 * the next right step works. After an error inside a step a new group can be used with the same stages. */
#include "unit/runtime/job.h"

/* ---- Wrong arguments ---- */

typedef enum mistake {
    WRONG_ROWS,
    WRONG_DTYPE,
    UNKNOWN_NAME,
    NO_DATA,
    GIVEN_TWICE,
    MISSING,
    NO_STEP,
    ANOTHER_STEP,
    AN_EVALUATION,
    KEEP_AFTER_WHOLE,
    UNKNOWN_OUTPUT,
    OUTPUT_SHAPE,
    MISTAKES
} mistake;

static const char *const said[MISTAKES] = {
    [WRONG_ROWS] = "expected [8, 3], given [9, 3]",
    [WRONG_DTYPE] = "dtype mismatch: expected f32, given i32",
    [UNKNOWN_NAME] = "no stage has an input 'ex'",
    [NO_DATA] = "the data of argument",
    [GIVEN_TWICE] = "is given twice",
    [MISSING] = "the batch was given without",
    [NO_STEP] = "no step was given",
    [ANOTHER_STEP] = "number is ",
    [AN_EVALUATION] = "training is ",
    [KEEP_AFTER_WHOLE] = "keep_grads",
    [UNKNOWN_OUTPUT] = "has an output 'why'",
    [OUTPUT_SHAPE] = "output 'y': of the whole batch: shape mismatch: expected [8, 3], given [7, 3]",
};

/* What the ranks saw, [pipeline rank * replicas + replica]. */
typedef struct seen {
    int wrong_rank, wrong_replica; /* who makes the mistake */
    mistake what;
    sl_status status[MAX_RANKS];
    char message[MAX_RANKS][1024];
    bool failed[MAX_RANKS], group_failed[MAX_RANKS];
} seen;

/* The step as it should be, with the mistake in it if this rank makes it. */
static sl_status wrong_step(const seen *saw, bool mine, sl_runtime *runtime, bool last)
{
    float x[9 * WIDTH] = { 0 }, y[9 * WIDTH];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 8, WIDTH });
    sl_arg args[3] = { { "x", { x, meta } }, { "t", { x, meta } }, { "t", { x, meta } } };
    sl_output output = { .name = "y", .view = { y, meta } };
    sl_step step = { .args = args, .arg_count = 2, .number = 3, .outputs = &output, .output_count = last };
    int own = last ? 1 : 0; /* the argument that this rank's stages read */
    switch (mine ? saw->what : MISTAKES) {
    case WRONG_ROWS:
        args[own].view.meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 9, WIDTH });
        break;
    case WRONG_DTYPE:
        args[own].view.meta.dtype = SL_I32;
        break;
    case UNKNOWN_NAME:
        args[own].name = "ex";
        break;
    case NO_DATA:
        args[own].view.data = NULL;
        break;
    case GIVEN_TWICE:
        step.arg_count = 3;
        break;
    case MISSING:
        step.arg_count = 0;
        break;
    case ANOTHER_STEP:
        step.number = 4;
        break;
    case KEEP_AFTER_WHOLE:
        step.keep_grads = true;
        break;
    case UNKNOWN_OUTPUT:
        output.name = "why";
        step.output_count = 1;
        break;
    case OUTPUT_SHAPE:
        output.view.meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 7, WIDTH });
        break;
    case NO_STEP:
        return sl_runtime_step(runtime, NULL, NULL);
    case AN_EVALUATION:
        return sl_runtime_eval(runtime, &step, NULL);
    default:
        break;
    }
    return sl_runtime_step(runtime, &step, NULL);
}

static sl_status make_a_mistake(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    seen *saw = self->user;
    sl_runtime_failure failure;
    int replicas = self->replicas ? self->replicas : 1;
    int world = sl_group_world_rank(sl_runtime_group(runtime), rank), replica = world % replicas;
    bool mine = rank == saw->wrong_rank && replica == saw->wrong_replica;
    (void)stages, (void)count;
    saw->status[world] = wrong_step(saw, mine, runtime, rank == sl_schedule_ranks(self->schedule) - 1);
    snprintf(saw->message[world], sizeof saw->message[world], "%s", sl_error_message());
    saw->failed[world] = sl_runtime_get_failure(runtime, &failure);
    saw->group_failed[world] = sl_group_check(sl_runtime_group(runtime)) != SL_OK;
    return SL_OK; /* and the job's own steps follow */
}

static void assert_survives(const char *schedule, int ranks, int replicas, seen saw)
{
    job made = job_make(schedule, ranks, 0, 4, 8);
    made.replicas = replicas;
    made.extra.replica_params = SL_REPLICAS_TRUST; /* the weights are set after the mistake */
    made.before = make_a_mistake;
    made.user = &saw;
    job reference = made;
    job_reference(&reference);
    if (job_run(&made) != SL_OK)
        fail_msg("mistake %d on rank %d of %d, replica %d: %s", saw.what, saw.wrong_rank, ranks, saw.wrong_replica,
                 sl_error_message());
    for (int r = 0; r < ranks * replicas; r++) {
        if (saw.status[r] == SL_OK || !strstr(saw.message[r], said[saw.what]))
            fail_msg("no '%s' on rank %d: %s", said[saw.what], r, saw.message[r]);
        assert_string_equal(saw.message[r], saw.message[0]);
        assert_int_equal(saw.status[r], saw.status[0]);
        assert_false(saw.failed[r]);
        assert_false(saw.group_failed[r]);
    }
    assert_memory_equal(made.losses, reference.losses, sizeof made.losses);
    assert_memory_equal(made.weights, reference.weights, (size_t)made.shape.stages * sizeof *made.weights);
    sl_schedule_destroy(made.schedule);
}

static bool can_be_made(mistake what, int ranks, int rank)
{
    if (what == ANOTHER_STEP || what == AN_EVALUATION)
        return ranks > 1; /* it takes two to differ */
    if (what == OUTPUT_SHAPE)
        return rank == ranks - 1;
    if (what == WRONG_ROWS || what == WRONG_DTYPE || what == NO_DATA || what == MISSING)
        return rank == 0 || rank == ranks - 1; /* others read no argument */
    return true;
}

static void a_mistake_of_any_rank_is_everybodys_error_and_the_next_step_is_right(void **state)
{
    (void)state;
    for (mistake what = 0; what < MISTAKES; what++) {
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            for (int rank = 0; rank < ranks; rank++) {
                if (can_be_made(what, ranks, rank))
                    assert_survives("1F1B", ranks, 1, (seen){ .what = what, .wrong_rank = rank });
            }
        }
    }
}

static void a_mistake_of_one_replica_stops_the_others_too(void **state)
{
    (void)state;
    for (mistake what = 0; what < MISTAKES; what++)
        assert_survives("InterleavedZeroBubble", 3, 2, (seen){ .what = what, .wrong_rank = 2, .wrong_replica = 1 });
}

/* ---- Errors inside a step ---- */

/* A first group whose step fails, and a second one. */
typedef struct twice {
    job *made;
    sl_group *second[MAX_RANKS];
    char why[MAX_RANKS][1024]; /* what the first group says */
    float losses[MAX_RANKS][MAX_MICROBATCHES];
} twice;

static sl_status run_once(job *made, sl_group *group, sl_device *device, toy_stage *toy, float *losses)
{
    sl_status status = SL_OK;
    sl_runtime *runtime = NULL;
    sl_step_result result;
    int count = 0;
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH], w[WIDTH];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ made->samples, WIDTH });
    const sl_arg args[] = { { "x", { x, meta } }, { "t", { t, meta } } };
    const sl_runtime_options options = {
        .group = group, .device = device, .schedule = made->schedule, .stages = &toy->stage, .stage_count = 1
    };
    job_batch(0, 0, made->samples, x, t);
    SL_TRY(sl_runtime_create(&options, &runtime));
    const sl_param *params = sl_runtime_params(runtime, &count);
    toy_initial(toy->index, w);
    SL_TRY(job_copy(runtime, &params[0].data, w, true));
    SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2 }, &result));
    memcpy(losses, result.losses, (size_t)result.loss_count * sizeof *losses);
done:
    sl_runtime_destroy(runtime);
    return status;
}

static sl_status fail_and_start_again(toy_rank *self)
{
    twice *all = self->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    toy_stage *toy = calloc(1, sizeof *toy);
    toy_shape shape = all->made->shape;
    shape.fail_stage = shape.stages - 1;
    shape.fail_microbatch = 2;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(toy_create(toy, &shape, self->rank, all->made->samples / all->made->microbatches));
    if (run_once(all->made, self->group, device, toy, all->losses[self->rank]) == SL_OK)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "the failing stage did not fail"));
    if (sl_group_check(self->group) == SL_OK)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "the group has forgotten"));
    snprintf(all->why[self->rank], sizeof all->why[self->rank], "%s", sl_error_message());
    shape.fail_stage = -1;
    SL_TRY(run_once(all->made, all->second[self->rank], device, toy, all->losses[self->rank]));
done:
    sl_stage_destroy(toy->stage);
    sl_device_close(device);
    sl_group_close(all->second[self->rank]);
    free(toy);
    return status;
}

static void after_an_error_inside_a_step_a_new_group_works_with_the_same_stages(void **state)
{
    (void)state;
    test_device_install();
    for (int count = 1; count <= 3; count += 2) {
        toy_rank ranks[MAX_RANKS];
        job made = job_make("1F1B", count, 0, 4, 8);
        made.steps = 1;
        job reference = made;
        job_reference(&reference);
        twice all = { .made = &made };
        assert_int_equal(sl_group_open_threads(count, NULL, all.second), SL_OK);
        assert_int_equal(toy_run_ranks(count, fail_and_start_again, &all, ranks), SL_OK);
        for (int r = 0; r < count; r++) {
            if (ranks[r].status != SL_OK)
                fail_msg("rank %d of %d: %s", r, count, ranks[r].message);
            assert_non_null(strstr(all.why[r], "the valve is stuck"));
            assert_memory_equal(all.losses[r], reference.losses[0], 4 * sizeof(float));
        }
        sl_schedule_destroy(made.schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mistake_of_any_rank_is_everybodys_error_and_the_next_step_is_right),
        cmocka_unit_test(a_mistake_of_one_replica_stops_the_others_too),
        cmocka_unit_test(after_an_error_inside_a_step_a_new_group_works_with_the_same_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
