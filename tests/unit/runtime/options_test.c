/* Every option of a runtime and of a step does what its line in the header says. */
#include "unit/runtime/job.h"

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

enum { SAMPLES = 8, MICROBATCHES = 4 };

static job make_job(const char *name, int ranks)
{
    job made = job_make(name, ranks, 0, MICROBATCHES, SAMPLES);
    made.steps = 0; /* the tests run their own */
    return made;
}

/* A batch that lives as long as the thread. */
static sl_step step_make(int number)
{
    static _Thread_local float x[SAMPLES * WIDTH], t[SAMPLES * WIDTH];
    static _Thread_local sl_arg args[2];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ SAMPLES, WIDTH });
    job_batch(number, 0, SAMPLES, x, t);
    args[0] = (sl_arg){ "x", { x, meta } };
    args[1] = (sl_arg){ "t", { t, meta } };
    return (sl_step){ .args = args, .arg_count = 2, .number = number };
}

static void set_weights(sl_runtime *runtime)
{
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        float w[WIDTH];
        toy_initial(params[i].stage, w);
        if (job_copy(runtime, &params[i].data, w, true) != SL_OK)
            abort();
    }
}

/* This rank's first gradient. */
static void copy_grad(sl_runtime *runtime, float *out)
{
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    if (job_copy(runtime, &params[0].grad, out, false) != SL_OK)
        abort();
}

/* ---- Seeds ---- */

typedef struct seeds {
    float plain[2][WIDTH], scaled[2][WIDTH], first_alone[2][WIDTH];
    double loss[2], first_loss[2];
    float losses[2][MICROBATCHES];
} seeds;

static sl_status step_with_seeds(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    static const double first[MICROBATCHES] = { 1, 0, 0, 0 };
    seeds *seen = self->user;
    sl_status status = SL_OK;
    sl_step_result result;
    sl_step step = step_make(0);
    (void)stages, (void)count;
    set_weights(runtime);
    SL_TRY(sl_runtime_step(runtime, &step, &result));
    copy_grad(runtime, seen->plain[rank]);
    step.grad_scale = 8;
    SL_TRY(sl_runtime_step(runtime, &step, &result));
    copy_grad(runtime, seen->scaled[rank]);
    seen->loss[rank] = result.loss; /* of which the scale is no part */
    memcpy(seen->losses[rank], result.losses, sizeof seen->losses[rank]);
    step.grad_scale = 0;
    step.weights = first;
    SL_TRY(sl_runtime_step(runtime, &step, &result));
    copy_grad(runtime, seen->first_alone[rank]);
    seen->first_loss[rank] = result.loss;
done:
    return status;
}

static void gradients_scale_and_microbatches_weigh_as_asked(void **state)
{
    (void)state;
    seeds seen = { 0 };
    job made = make_job("1F1B", 2);
    made.before = step_with_seeds;
    made.user = &seen;
    job_finish(&made);
    double mean = 0;
    for (int m = 0; m < MICROBATCHES; m++)
        mean += (double)seen.losses[0][m] / MICROBATCHES;
    for (int r = 0; r < 2; r++) {
        assert_true(fabs(seen.loss[r] - mean) < 1e-12);
        assert_true(seen.first_loss[r] == (double)seen.losses[r][0]);
        for (int c = 0; c < WIDTH; c++) {
            assert_true(seen.plain[r][c] != 0);
            assert_true(seen.scaled[r][c] == 8 * seen.plain[r][c]);
            assert_true(seen.first_alone[r][c] != seen.plain[r][c]);
        }
    }

    /* The first microbatch alone is what a batch of its samples gives. */
    job small = make_job("1F1B", 2);
    small.samples = SAMPLES / MICROBATCHES;
    small.microbatches = 1;
    small.steps = 1;
    sl_schedule_destroy(small.schedule);
    sl_generate_options options = { .name = "1F1B", .ranks = 2, .microbatches = 1 };
    assert_int_equal(sl_schedule_generate(&options, &small.schedule), SL_OK);
    job_finish(&small);
    for (int r = 0; r < 2; r++)
        assert_memory_equal(small.grads[r], seen.first_alone[r], sizeof small.grads[r]);
}

/* ---- Losses ---- */

typedef struct heard {
    double loss[3];
    bool any[3];
    float losses[3][MICROBATCHES];
} heard;

static sl_status listen(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    heard *seen = self->user;
    sl_status status = SL_OK;
    sl_step_result result;
    sl_step step = step_make(0);
    (void)stages, (void)count;
    set_weights(runtime);
    SL_TRY(sl_runtime_step(runtime, &step, &result));
    seen->loss[rank] = result.loss;
    seen->any[rank] = result.losses != NULL;
    if (result.losses)
        memcpy(seen->losses[rank], result.losses, sizeof seen->losses[rank]);
    if (result.loss_count != (result.losses ? MICROBATCHES : 0))
        return sl_fail(SL_ERR_STAGE, "%d losses", result.loss_count);
done:
    return status;
}

static void losses_are_on_every_rank_unless_they_shall_stay(void **state)
{
    (void)state;
    heard all = { 0 }, local = { 0 };
    job made = make_job("1F1B", 3), quiet = make_job("1F1B", 3);
    made.before = quiet.before = listen;
    made.user = &all;
    job_finish(&made);
    quiet.user = &local;
    quiet.extra.local_loss = true;
    job_finish(&quiet);
    for (int r = 0; r < 3; r++) {
        assert_true(all.any[r] && all.loss[r] == all.loss[2] && all.loss[r] > 0);
        assert_memory_equal(all.losses[r], all.losses[2], sizeof all.losses[r]);
        assert_true(local.any[r] == (r == 2));
        assert_true(r == 2 ? local.loss[r] == all.loss[2] : isnan(local.loss[r]));
    }
}

/* ---- Evaluation ---- */

typedef struct evaluated {
    float outputs[SAMPLES * WIDTH], side_by_side[SAMPLES * WIDTH];
    float grad_before[2][WIDTH], grad_after[2][WIDTH];
} evaluated;

/* y of the last stage, once along dim 0 and once with the microbatches side by side. */
static sl_status evaluate(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    evaluated *seen = self->user;
    sl_status status = SL_OK;
    sl_step step = step_make(0);
    sl_output below = { .name = "y",
                        .view = { seen->outputs, sl_meta_make(SL_F32, 2, (int64_t[]){ SAMPLES, WIDTH }) } };
    sl_output beside = { .name = "y",
                         .view = { seen->side_by_side,
                                   sl_meta_make(SL_F32, 2,
                                                (int64_t[]){ SAMPLES / MICROBATCHES, MICROBATCHES * WIDTH }) },
                         .chunk = { .dim = -1 } };
    bool trains = sl_schedule_has_backward(self->schedule);
    (void)stages, (void)count;
    set_weights(runtime);
    if (trains) {
        SL_TRY(sl_runtime_step(runtime, &step, NULL));
        copy_grad(runtime, seen->grad_before[rank]);
    }
    step.output_count = sl_schedule_rank_of(self->schedule, self->shape.stages - 1) == rank;
    step.outputs = &below;
    SL_TRY(sl_runtime_eval(runtime, &step, NULL));
    step.outputs = &beside;
    SL_TRY(sl_runtime_eval(runtime, &step, NULL));
    if (trains)
        copy_grad(runtime, seen->grad_after[rank]);
done:
    return status;
}

static void outputs_are_merged_along_any_dim_and_evaluation_leaves_gradients_alone(void **state)
{
    (void)state;
    static const char *const names[] = { "ForwardOnly", "1F1B" };
    float x[SAMPLES * WIDTH], t[SAMPLES * WIDTH], h[SAMPLES * WIDTH], y[SAMPLES * WIDTH], w[2][WIDTH];
    job_batch(0, 0, SAMPLES, x, t);
    toy_initial(0, w[0]);
    toy_initial(1, w[1]);
    toy_forward(x, NULL, w[0], SAMPLES, h);
    toy_forward(h, NULL, w[1], SAMPLES, y);
    for (int i = 0; i < 2; i++) {
        evaluated seen = { .grad_before = { { 0 } } };
        job made = make_job(names[i], 2);
        assert_int_equal(made.shape.stages, 2);
        made.before = evaluate;
        made.user = &seen;
        job_finish(&made);
        assert_memory_equal(seen.outputs, y, sizeof y);
        for (int k = 0; k < SAMPLES * WIDTH; k++) {
            int row = k / WIDTH, part = row / (SAMPLES / MICROBATCHES), within = row % (SAMPLES / MICROBATCHES);
            assert_true(seen.side_by_side[(within * MICROBATCHES + part) * WIDTH + k % WIDTH] == y[k]);
        }
        assert_memory_equal(seen.grad_before, seen.grad_after, sizeof seen.grad_before);
    }
}

static void evaluation_between_partial_steps_changes_nothing(void **state)
{
    (void)state;
    job made = make_job("Interleaved1F1B", 2), plain = make_job("Interleaved1F1B", 2);
    made.accumulate = plain.accumulate = made.eval_first = true;
    made.steps = plain.steps = 4;
    job_finish(&made);
    job_finish(&plain);
    assert_memory_equal(made.weights, plain.weights, sizeof made.weights);
    assert_memory_equal(made.losses, plain.losses, sizeof made.losses);
}

/* ---- Weights as a whole ---- */

typedef struct weights {
    atomic_int unshards, reshards, wrong;
    bool fail;
    char path[64];
} weights;

static sl_status handle_weights(void *user, sl_runtime *runtime, sl_action action)
{
    weights *seen = user;
    (void)runtime;
    if (action.microbatch != -1)
        atomic_fetch_add(&seen->wrong, 1);
    atomic_fetch_add(action.kind == SL_KIND_UNSHARD ? &seen->unshards : &seen->reshards, 1);
    if (seen->fail && action.kind == SL_KIND_RESHARD && action.stage == 1)
        return sl_fail(SL_ERR_STAGE, "no room for the shard");
    return SL_OK;
}

static sl_status handle_all_weights(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    weights *seen = self->user;
    sl_status status = SL_OK;
    sl_step step = step_make(0);
    (void)rank, (void)stages, (void)count;
    SL_TRY(sl_runtime_set_action(runtime, SL_KIND_UNSHARD, handle_weights, seen));
    SL_TRY(sl_runtime_set_action(runtime, SL_KIND_RESHARD, handle_weights, seen));
    SL_TRY(sl_runtime_step(runtime, &step, NULL)); /* is not in the trace */
    sl_runtime_clear_trace(runtime);
    SL_TRY(sl_runtime_step(runtime, &step, NULL));
    SL_TRY(sl_runtime_save_trace(runtime, seen->path));
done:
    return status;
}

static job make_sharded_job(weights *seen)
{
    static const char csv[] = "0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD\n1UNSHARD,1F0,1B0,1F1,1B1,1RESHARD\n";
    job made = { .samples = 4, .microbatches = 2 };
    if (sl_schedule_parse_csv(csv, strlen(csv), "test", &made.schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    made.shape = toy_shape_make(2);
    made.samples = SAMPLES;
    made.extra.trace_events = 100;
    made.before = handle_all_weights;
    made.user = seen;
    return made;
}

static int count_text(const char *path, const char *text)
{
    static char content[1 << 16];
    FILE *file = fopen(path, "r");
    int found = 0;
    content[fread(content, 1, sizeof content - 1, file)] = '\0';
    fclose(file);
    for (const char *at = content; (at = strstr(at, text)); at++)
        found++;
    return found;
}

static void functions_for_weights_are_called_and_traced(void **state)
{
    (void)state;
    weights seen = { .path = "/tmp/sluice_weights_XXXXXX" };
    int file = mkstemp(seen.path);
    assert_true(file >= 0);
    close(file);
    job made = make_sharded_job(&seen);
    job_finish(&made);
    assert_int_equal(seen.unshards, 2 * 2); /* steps, stages */
    assert_int_equal(seen.reshards, 2 * 2);
    assert_int_equal(seen.wrong, 0);
    assert_int_equal(count_text(seen.path, "\"name\":\"0UNSHARD\""), 1);
    assert_int_equal(count_text(seen.path, "\"name\":\"1RESHARD\""), 1);
    assert_int_equal(count_text(seen.path, "\"name\":\"1F0\""), 1);
    unlink(seen.path);
}

static void a_failure_of_such_a_function_has_its_place(void **state)
{
    (void)state;
    toy_rank ranks[MAX_RANKS];
    weights seen = { .fail = true, .path = "/tmp/never" };
    job made = make_sharded_job(&seen);
    assert_int_not_equal(job_run_on(&made, ranks), SL_OK);
    for (int r = 0; r < 2; r++) {
        if (!strstr(ranks[r].message, "1RESHARD (stage 1, step 1): no room for the shard"))
            fail_msg("rank %d: %s", r, ranks[r].message);
    }
    sl_schedule_destroy(made.schedule);
}

static sl_status misuse(void *user, sl_runtime *runtime, sl_action action)
{
    (void)user;
    return sl_runtime_run_action(runtime, sl_action_make(SL_KIND_F, action.stage, action.microbatch + 1));
}

static sl_status step_misused(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sl_status status = SL_OK;
    sl_step step = step_make(0);
    (void)self, (void)rank, (void)stages, (void)count;
    if (sl_runtime_set_action(runtime, SL_KIND_COUNT, misuse, NULL) != SL_ERR_ARGUMENT ||
        sl_runtime_run_action(runtime, sl_action_make(SL_KIND_F, 0, 0)) != SL_ERR_ARGUMENT)
        return sl_fail(SL_ERR_INTERNAL, "what is no action was taken");
    SL_TRY(sl_runtime_set_action(runtime, SL_KIND_F, misuse, NULL));
    SL_TRY(sl_runtime_step(runtime, &step, NULL));
done:
    return status;
}

static void a_function_runs_its_own_action_and_no_other(void **state)
{
    (void)state;
    job made = make_job("1F1B", 1);
    made.before = step_misused;
    assert_int_equal(job_run(&made), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "0F1 is not the action that is being run"));
    sl_schedule_destroy(made.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_scale_and_microbatches_weigh_as_asked),
        cmocka_unit_test(losses_are_on_every_rank_unless_they_shall_stay),
        cmocka_unit_test(outputs_are_merged_along_any_dim_and_evaluation_leaves_gradients_alone),
        cmocka_unit_test(evaluation_between_partial_steps_changes_nothing),
        cmocka_unit_test(functions_for_weights_are_called_and_traced),
        cmocka_unit_test(a_failure_of_such_a_function_has_its_place),
        cmocka_unit_test(a_function_runs_its_own_action_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
