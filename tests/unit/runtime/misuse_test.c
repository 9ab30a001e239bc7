/* What a caller gets wrong is an error with a message, never a crash and never a silent other meaning. */
#include "unit/runtime/job.h"

#include <sluice/data.h>
#include <sluice/optim.h>

static void assert_refused(sl_status status, const char *word)
{
    assert_int_equal(status, SL_ERR_ARGUMENT);
    if (!strstr(sl_error_message(), word))
        fail_msg("no '%s' in: %s", word, sl_error_message());
}

/* ---- Arguments of calls ---- */

static sl_status do_nothing(void *user, const sl_stage_call *call)
{
    (void)user, (void)call;
    return SL_OK;
}

static void options_that_are_missing_are_refused(void **state)
{
    (void)state;
    sl_stage *stage = NULL;
    sl_runtime *runtime = NULL;
    sl_schedule *schedule = NULL;
    sl_optimizer *optimizer = NULL;
    sl_batches *batches = NULL;
    sl_tokenizer *tokenizer = NULL;
    sl_launch_result result;
    assert_refused(sl_stage_create(NULL, &stage), "options");
    assert_refused(sl_stage_build(NULL, 1, 0, NULL, NULL, &stage), "partition");
    assert_refused(sl_runtime_create(NULL, &runtime), "group");
    assert_refused(sl_schedule_generate(NULL, &schedule), "options");
    assert_refused(sl_optimizer_create(NULL, NULL, NULL, 0, &optimizer), "options");
    assert_refused(sl_batches_create(NULL, NULL, &batches), "tokens");
    assert_refused(sl_tokenizer_open(NULL, &tokenizer), "path");
    assert_refused(sl_launch(NULL, &result), "options");
}

static void a_count_without_its_list_is_refused(void **state)
{
    (void)state;
    sl_stage *stage = NULL;
    sl_stage_options inputs = { .forward = do_nothing, .input_count = 1 };
    sl_stage_options outputs = { .forward = do_nothing, .output_count = 2 };
    sl_stage_options params = { .forward = do_nothing, .param_count = 3 };
    sl_stage_options negative = { .forward = do_nothing, .input_count = -1 };
    assert_refused(sl_stage_create(&inputs, &stage), "1 inputs");
    assert_refused(sl_stage_create(&outputs, &stage), "2 outputs");
    assert_refused(sl_stage_create(&params, &stage), "3 parameters");
    assert_refused(sl_stage_create(&negative, &stage), "-1 inputs");

    sl_optimizer *optimizer = NULL;
    sl_optim_options sgd = { .kind = SL_OPTIM_SGD };
    assert_refused(sl_optimizer_create(&sgd, NULL, NULL, 1, &optimizer), "1 parameters");
}

static sl_status create_without_stages(toy_rank *self)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    const sl_runtime_options options = {
        .group = self->group, .device = device, .schedule = self->user, .stage_count = 1
    };
    status = sl_runtime_create(&options, &runtime);
    sl_runtime_destroy(runtime);
done:
    sl_device_close(device);
    return status;
}

static void a_runtime_with_a_count_and_no_stages_is_refused_on_every_rank(void **state)
{
    (void)state;
    toy_rank ranks[MAX_RANKS];
    job made = job_make("1F1B", 2, 0, 4, 8);
    assert_int_equal(toy_run_ranks(2, create_without_stages, made.schedule, ranks), SL_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, SL_ERR_ARGUMENT);
        assert_non_null(strstr(ranks[r].message, "1 stages are announced, but their list is NULL"));
    }
    sl_schedule_destroy(made.schedule);
}

static sl_status step_without_a_step(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, NULL, NULL);
}

static sl_status step_without_arguments(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    const sl_step step = { .arg_count = 2 };
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, &step, NULL);
}

static sl_status step_without_outputs(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    const sl_step step = { .output_count = 1 };
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, &step, NULL);
}

/* The rank whose step has failed, and its group with it, makes another runtime. */
static sl_status create_after_failure(toy_rank *self)
{
    sl_status status = SL_OK;
    job *made = self->user;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    toy_stage *toy = calloc(1, sizeof *toy);
    float x[8 * WIDTH] = { 0 };
    const sl_view view = { x, sl_meta_make(SL_F32, 2, (int64_t[]){ 8, WIDTH }) };
    const sl_arg args[] = { { "x", view }, { "t", view } };
    const sl_step step = { .args = args, .arg_count = 2 };
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(toy_create(toy, &made->shape, self->rank, made->samples / made->microbatches));
    const sl_runtime_options options = {
        .group = self->group, .device = device, .schedule = made->schedule, .stages = &toy->stage, .stage_count = 1
    };
    /* Another rank may have failed before this one has finished. */
    if (sl_runtime_create(&options, &runtime) == SL_OK && sl_runtime_step(runtime, &step, NULL) == SL_OK)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "the failing stage did not fail"));
    sl_runtime_destroy(runtime);
    runtime = NULL;
    if (sl_runtime_create(&options, &runtime) == SL_OK)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "a group that has failed makes a runtime"));
done:
    sl_runtime_destroy(runtime);
    sl_stage_destroy(toy->stage);
    sl_device_close(device);
    free(toy);
    return status;
}

static void a_runtime_on_a_group_that_has_failed_is_refused(void **state)
{
    (void)state;
    for (int count = 1; count <= 3; count++) {
        toy_rank ranks[MAX_RANKS];
        job made = job_make("1F1B", count, 0, 4, 8);
        made.shape.fail_stage = 0;
        assert_int_equal(toy_run_ranks(count, create_after_failure, &made, ranks), SL_OK);
        for (int r = 0; r < count; r++) {
            if (ranks[r].status != SL_OK)
                fail_msg("rank %d of %d: %s", r, count, ranks[r].message);
        }
        sl_schedule_destroy(made.schedule);
    }
}

static void a_step_without_its_lists_is_refused(void **state)
{
    (void)state;
    static const struct {
        sl_status (*before)(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count);
        const char *word;
    } cases[] = { { step_without_a_step, "no step was given" },
                  { step_without_arguments, "2 arguments" },
                  { step_without_outputs, "1 outputs" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job made = job_make("1F1B", 1, 0, 4, 8);
        made.before = cases[i].before;
        assert_refused(job_run(&made), cases[i].word);
        sl_schedule_destroy(made.schedule);
    }
}

/* ---- Callbacks ---- */

static void a_forward_that_takes_its_output_away_fails_with_its_place(void **state)
{
    (void)state;
    for (int far = 0; far <= 1; far++) {
        job made = job_make("1F1B", 2, 0, 4, 8);
        made.shape.null_output = true;
        made.device = far ? "test" : "cpu";
        assert_int_not_equal(job_run(&made), SL_OK);
        assert_non_null(strstr(sl_error_message(), "output 'h0' to NULL"));
        assert_non_null(strstr(sl_error_message(), "0F0"));
        sl_schedule_destroy(made.schedule);
    }
}

typedef struct nested {
    sl_runtime *runtime;
    sl_status step, eval;
    char message[256];
} nested;

static sl_status step_inside(void *user, const sl_stage_call *call)
{
    nested *seen = user;
    const sl_step step = { .number = 1 };
    (void)call;
    seen->step = sl_runtime_step(seen->runtime, &step, NULL);
    snprintf(seen->message, sizeof seen->message, "%s", sl_error_message());
    seen->eval = sl_runtime_eval(seen->runtime, &step, NULL);
    return SL_OK;
}

static sl_status take_over_weights(job *self, toy_stage *stage)
{
    return sl_stage_set_weight_runner(stage->stage, step_inside, self->user);
}

static sl_status remember_runtime(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)rank, (void)stages, (void)count;
    ((nested *)self->user)->runtime = runtime;
    return SL_OK;
}

static void a_step_inside_a_callback_is_refused_and_the_running_one_goes_on(void **state)
{
    (void)state;
    nested seen = { .step = SL_OK };
    job made = job_make("1F1B", 1, 0, 2, 4);
    made.prepare = take_over_weights;
    made.before = remember_runtime;
    made.user = &seen;
    job_finish(&made);
    assert_int_equal(seen.step, SL_ERR_ARGUMENT);
    assert_int_equal(seen.eval, SL_ERR_ARGUMENT);
    assert_non_null(strstr(seen.message, "inside a callback"));
}

/* ---- The loss ---- */

static sl_status eval_then_train(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    static const float zeros[8 * WIDTH];
    const sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 8, WIDTH });
    const sl_arg args[2] = { { "x", { (void *)zeros, meta } }, { "t", { (void *)zeros, meta } } };
    const sl_step step = { .args = args, .arg_count = 2 };
    (void)self, (void)rank, (void)stages, (void)count;
    sl_status status = sl_runtime_eval(runtime, &step, NULL);
    return status == SL_OK ? sl_runtime_step(runtime, &step, NULL) : status;
}

static void training_without_a_loss_is_refused_and_evaluation_is_not(void **state)
{
    (void)state;
    job made = job_make("1F1B", 2, 0, 4, 8);
    made.shape.no_loss = true;
    made.before = eval_then_train;
    assert_int_not_equal(job_run(&made), SL_OK);
    assert_non_null(strstr(sl_error_message(), ".loss = true"));
    sl_schedule_destroy(made.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_are_missing_are_refused),
        cmocka_unit_test(a_count_without_its_list_is_refused),
        cmocka_unit_test(a_runtime_with_a_count_and_no_stages_is_refused_on_every_rank),
        cmocka_unit_test(a_runtime_on_a_group_that_has_failed_is_refused),
        cmocka_unit_test(a_step_without_its_lists_is_refused),
        cmocka_unit_test(a_forward_that_takes_its_output_away_fails_with_its_place),
        cmocka_unit_test(a_step_inside_a_callback_is_refused_and_the_running_one_goes_on),
        cmocka_unit_test(training_without_a_loss_is_refused_and_evaluation_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
