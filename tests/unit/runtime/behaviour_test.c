/* What users of a runtime rely on beside the numbers: hand-over, hooks, outputs. */
#include "unit/runtime/job.h"

#include <stdatomic.h>

/* Where every stage read and wrote, of all ranks. */
static sl_status keep_addresses(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    toy_stage *all = self->user;
    (void)rank, (void)runtime;
    for (int i = 0; i < count; i++)
        all[stages[i].index] = stages[i];
    return SL_OK;
}

static void values_and_gradients_are_handed_over_without_a_copy(void **state)
{
    (void)state;
    /* Two stages a rank in V placement: stages 1 and 2 are neighbors on one rank, the others talk over channels, whose
     * memory is shared by ranks that are threads. */
    toy_stage *all = calloc(MAX_STAGES, sizeof *all);
    job made = job_make("ZBVZeroBubble", 2, 2, 4, 8);
    made.device = "cpu"; /* others get copies */
    made.steps = 1;
    made.after = keep_addresses;
    made.user = all;
    job_finish(&made);
    for (int s = 0; s + 1 < 4; s++) {
        for (int m = 0; m < 4; m++) {
            assert_non_null(all[s].wrote_at[m]);
            assert_ptr_equal(all[s].wrote_at[m], all[s + 1].read_at[m]);
            assert_non_null(all[s].grad_read_at[m]);
            assert_ptr_equal(all[s].grad_read_at[m], all[s + 1].grad_wrote_at[m]);
        }
    }
    free(all);
}

static void every_microbatch_knows_its_place_in_the_batch(void **state)
{
    (void)state;
    static const int firsts[] = { 0, 3, 6, 8 }; /* 3, 3, 2 and 2 samples */
    toy_stage *all = calloc(MAX_STAGES, sizeof *all);
    job made = job_make("1F1B", 2, 1, 4, 10);
    made.shape.open_shapes = true;
    made.after = keep_addresses;
    made.user = all;
    job_finish(&made);
    for (int s = 0; s < 2; s++) {
        for (int m = 0; m < 4; m++) {
            assert_int_equal(all[s].rng[m].sample_offset, firsts[m]);
            assert_int_equal(all[s].rng[m].step, 1); /* the last of two */
            assert_true(all[s].rng[m].training);
        }
    }
    free(all);
}

/* ---- Small questions ---- */

static sl_status look_at_runtime(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sl_status status = SL_OK;
    int *seen = self->user, params = 0;
    const sl_param *list = sl_runtime_params(runtime, &params), *found = NULL;
    (void)stages;
    seen[rank] += sl_runtime_microbatches(runtime) == self->microbatches;
    seen[rank] += sl_schedule_has_messages(sl_runtime_schedule(runtime)); /* the one that was given has none */
    seen[rank] += params == count;                                        /* a toy stage has one */
    for (int i = 0; i < params; i++) {
        SL_TRY(sl_runtime_find_param(runtime, list[i].name, &found));
        seen[rank] += found == &list[i];
    }
    seen[rank] += sl_runtime_find_param(runtime, "nobody", &found) == SL_ERR_ARGUMENT;
    float grad[WIDTH];
    bool any = false;
    SL_TRY(job_copy(runtime, &list[0].grad, grad, false));
    for (int c = 0; c < WIDTH; c++)
        any |= grad[c] != 0;
    seen[rank] += any;
    SL_TRY(sl_runtime_zero_grads(runtime));
    SL_TRY(job_copy(runtime, &list[0].grad, grad, false));
    any = false;
    for (int c = 0; c < WIDTH; c++)
        any |= grad[c] != 0;
    seen[rank] += !any;
done:
    return status;
}

static void a_runtime_tells_what_it_was_made_of(void **state)
{
    (void)state;
    int seen[MAX_RANKS] = { 0 };
    job made = job_make("Interleaved1F1B", 2, 2, 4, 8);
    made.after = look_at_runtime;
    made.user = seen;
    job_finish(&made);
    assert_int_equal(seen[0], 8);
    assert_int_equal(seen[1], 8);
}

/* ---- Arguments ---- */

/* whole is [WIDTH, samples]; a part is the transpose of its columns. */
static sl_status split_columns(void *user, const sl_view *whole, int count, int index, sl_view *part)
{
    sl_status status = SL_OK;
    int64_t start, length, offset = 0;
    sl_meta columns;
    (void)user;
    sl_chunk_range(whole->meta.shape.dims[1], count, index, &start, &length);
    SL_TRY(sl_meta_slice(&whole->meta, 1, start, start + length, 1, &columns, &offset));
    SL_TRY(sl_meta_transpose(&columns, 0, 1, &part->meta));
    part->data = (float *)whole->data + offset;
done:
    return status;
}

static sl_status merge_sum(void *user, const sl_view *part, int count, int index, const sl_view *whole)
{
    (void)user, (void)count, (void)index;
    for (int64_t i = 0; i < sl_meta_count(&part->meta); i++)
        ((float *)whole->data)[i] += ((const float *)part->data)[i];
    return SL_OK;
}

static sl_status step_with_specs(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float x[WIDTH * 4], t[2 * WIDTH], sum[2 * WIDTH] = { 0 }, w[WIDTH] = { 1, 2, 3 };
    float expected_sum[2 * WIDTH] = { 0 };
    float *losses = self->user;
    sl_step_result result;
    sl_status status = SL_OK;
    int param_count = 0;
    (void)rank, (void)stages, (void)count;
    toy_fill(x, WIDTH * 4, 1);
    toy_fill(t, 2 * WIDTH, 2);
    SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &param_count)->data, w, true));
    sl_arg args[2] = { { "t", { t, sl_meta_make(SL_F32, 2, (int64_t[]){ 2, WIDTH }) } },
                       { NULL, { x, sl_meta_make(SL_F32, 2, (int64_t[]){ WIDTH, 4 }) } } };
    sl_output output = { .name = "y",
                         .view = { sum, sl_meta_make(SL_F32, 2, (int64_t[]){ 2, WIDTH }) },
                         .chunk = { .kind = SL_CHUNK_CUSTOM, .merge = merge_sum } };
    SL_TRY(sl_runtime_eval(runtime, &(sl_step){ .args = args, .arg_count = 2, .outputs = &output, .output_count = 1 },
                           &result));
    for (int m = 0; m < 2; m++) {
        float part[2 * WIDTH], y[2 * WIDTH];
        for (int i = 0; i < 2 * WIDTH; i++)
            part[i] = x[i % WIDTH * 4 + 2 * m + i / WIDTH];
        toy_forward(part, NULL, w, 2, y);
        losses[m] = result.losses[m] - toy_loss(y, t, 2);
        for (int i = 0; i < 2 * WIDTH; i++)
            expected_sum[i] += y[i];
    }
    losses[2] = memcmp(sum, expected_sum, sizeof sum) == 0 ? 0 : 1;
done:
    return status;
}

static void arguments_may_be_cut_and_outputs_merged_in_any_way(void **state)
{
    (void)state;
    float differences[3] = { 1, 1, 1 };
    sl_arg_spec specs[2] = { { .name = "x", .chunk = { .kind = SL_CHUNK_CUSTOM, .split = split_columns } },
                             { .name = "t", .chunk = { .kind = SL_CHUNK_REPLICATE } } };
    specs[0].meta.shape.rank = specs[1].meta.shape.rank = -1;
    job made = job_make("GPipe", 1, 1, 2, 4);
    made.extra.args = specs;
    made.extra.arg_count = 2;
    made.before = step_with_specs;
    made.steps = 0;
    made.user = differences;
    job_finish(&made);
    for (int i = 0; i < 3; i++)
        assert_true(differences[i] == 0);
}

/* ---- Hooks ---- */

typedef struct hooks {
    atomic_int kinds[SL_KIND_COUNT], runs, wrong;
} hooks;

static sl_status run_weights(void *user, const sl_stage_call *call)
{
    toy_stage *toy = user;
    if (call->phase != SL_PHASE_W)
        return sl_fail(SL_ERR_STAGE, "phase %d", (int)call->phase);
    toy->calls[SL_PHASE_B] += 1000;
    return toy_run_weight(toy, call);
}

static sl_status count_runs(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    hooks *seen = self->user;
    (void)rank, (void)runtime;
    for (int i = 0; i < count; i++)
        atomic_fetch_add(stages[i].calls[SL_PHASE_B] == 1000 * 2 * self->microbatches ? &seen->runs : &seen->wrong, 1);
    return SL_OK;
}

static sl_status set_runner(job *self, toy_stage *stage)
{
    (void)self;
    return sl_stage_set_weight_runner(stage->stage, run_weights, stage);
}

static sl_status set_runner_late(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)rank, (void)runtime, (void)count;
    return set_runner(self, &stages[0]);
}

static void a_weight_runner_runs_once_a_microbatch(void **state)
{
    (void)state;
    static const char *const names[] = { "1F1B", "InterleavedZeroBubble", "DualPipeV" }; /* B, I and W, both */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        hooks seen = { 0 };
        job made = job_make(names[i], 2, 0, 4, 8), plain = job_make(names[i], 2, 0, 4, 8);
        made.prepare = set_runner;
        made.after = count_runs;
        made.user = &seen;
        job_finish(&made);
        job_finish(&plain);
        assert_int_equal(seen.wrong, 0);
        assert_int_equal(seen.runs, made.shape.stages);
        assert_memory_equal(made.weights, plain.weights, sizeof made.weights);
    }
}

static void a_stage_does_not_change_under_its_runtime(void **state)
{
    (void)state;
    job made = job_make("1F1B", 1, 1, 2, 2);
    made.before = set_runner_late;
    assert_int_equal(job_run(&made), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "stage 0 belongs to a runtime already");
    sl_schedule_destroy(made.schedule);
}

static sl_status count_action(void *user, sl_runtime *runtime, sl_action action)
{
    hooks *seen = user;
    atomic_fetch_add(&seen->kinds[action.kind], 1);
    return sl_runtime_run_action(runtime, action);
}

static sl_status set_actions(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sl_status status = SL_OK;
    (void)rank, (void)stages, (void)count;
    for (int kind = 0; kind < SL_KIND_COUNT; kind++) {
        if (kind != SL_KIND_WAIT_SEND_F && kind != SL_KIND_WAIT_SEND_B) /* which are never run */
            SL_TRY(sl_runtime_set_action(runtime, (sl_kind)kind, count_action, self->user));
    }
done:
    return status;
}

static void every_kind_of_action_that_runs_can_be_replaced(void **state)
{
    (void)state;
    hooks seen = { 0 };
    job made = job_make("InterleavedZeroBubble", 2, 2, 4, 8), plain = job_make("InterleavedZeroBubble", 2, 2, 4, 8);
    made.before = set_actions;
    made.user = &seen;
    job_finish(&made);
    job_finish(&plain);
    assert_memory_equal(made.weights, plain.weights, sizeof made.weights);
    assert_int_equal(seen.kinds[SL_KIND_F], 2 * 4 * 4); /* steps, stages, microbatches */
    assert_int_equal(seen.kinds[SL_KIND_I] + seen.kinds[SL_KIND_B], 2 * 4 * 4);
    assert_int_equal(seen.kinds[SL_KIND_SEND_F], 2 * 3 * 4);
    assert_int_equal(seen.kinds[SL_KIND_RECV_B], 2 * 3 * 4);

    hooks both = { 0 };
    job overlapped = job_make("DualPipeV", 2, 0, 8, 8), untouched = job_make("DualPipeV", 2, 0, 8, 8);
    overlapped.before = set_actions;
    overlapped.user = &both;
    job_finish(&overlapped);
    job_finish(&untouched);
    assert_memory_equal(overlapped.weights, untouched.weights, sizeof overlapped.weights);
    assert_true(both.kinds[SL_KIND_OVERLAP_F_B] > 0);
    assert_int_equal(both.kinds[SL_KIND_F] + both.kinds[SL_KIND_OVERLAP_F_B], 2 * 4 * 8);
}

/* ---- Outputs ---- */

static sl_status ask_first_rank(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float room[MAX_SAMPLES * WIDTH];
    sl_output output = { .name = "y", .view = { room, sl_meta_make(SL_F32, 2, (int64_t[]){ self->samples, WIDTH }) } };
    float x[MAX_SAMPLES * WIDTH];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ self->samples, WIDTH });
    sl_arg args[2] = { { NULL, { x, meta } }, { NULL, { x, meta } } };
    (void)stages, (void)count;
    job_batch(0, 0, self->samples, x, room);
    return sl_runtime_eval(
        runtime,
        &(sl_step){ .args = args, .arg_count = 2, .outputs = rank == 0 ? &output : NULL, .output_count = rank == 0 },
        NULL);
}

static void outputs_are_kept_by_the_rank_with_their_stage_alone(void **state)
{
    (void)state;
    job made = job_make("1F1B", 2, 0, 4, 8);
    made.before = ask_first_rank;
    assert_int_equal(job_run(&made), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "no stage of rank 0 has an output 'y'"));
    sl_schedule_destroy(made.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_are_handed_over_without_a_copy),
        cmocka_unit_test(every_microbatch_knows_its_place_in_the_batch),
        cmocka_unit_test(a_runtime_tells_what_it_was_made_of),
        cmocka_unit_test(arguments_may_be_cut_and_outputs_merged_in_any_way),
        cmocka_unit_test(a_weight_runner_runs_once_a_microbatch),
        cmocka_unit_test(a_stage_does_not_change_under_its_runtime),
        cmocka_unit_test(every_kind_of_action_that_runs_can_be_replaced),
        cmocka_unit_test(outputs_are_kept_by_the_rank_with_their_stage_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
