/* What goes wrong on one rank is the same error on all of them, with its place. */
#include "unit/runtime/job.h"

#include "base/alloc.h"

/* What all ranks must say alike: the message without who failed before it and who was waiting after it. */
static void common_part(const char *message, char *out, size_t size)
{
    const char *start = strstr(message, "pipeline rank"), *end = strstr(message, "; rank ");
    if (!start)
        start = message;
    snprintf(out, size, "%.*s", end ? (int)(end - start) : (int)strlen(start), start);
}

/* Runs the job, which must fail on every rank with a message that has all the words, and the same on all. */
static void assert_all_fail(job *made, sl_status status, const char *const *words)
{
    toy_rank ranks[MAX_RANKS];
    char first[2048], other[2048];
    int own = 0;
    assert_int_not_equal(job_run_on(made, ranks), SL_OK);
    common_part(ranks[0].message, first, sizeof first);
    for (int r = 0; r < sl_schedule_ranks(made->schedule); r++) {
        if (ranks[r].status == status)
            own++;
        else
            assert_int_equal(ranks[r].status, SL_ERR_PEER);
        common_part(ranks[r].message, other, sizeof other);
        assert_string_equal(other, first);
        for (int i = 0; words[i]; i++) {
            if (!strstr(ranks[r].message, words[i]))
                fail_msg("rank %d: no '%s' in: %s", r, words[i], ranks[r].message);
        }
    }
    assert_true(own > 0);
    sl_schedule_destroy(made->schedule);
}

typedef struct seen {
    sl_runtime_failure failures[MAX_RANKS];
    bool failed[MAX_RANKS];
    sl_status again[MAX_RANKS];
    char grid[MAX_RANKS][4096];
} seen;

static sl_status look_at_failure(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    seen *into = self->user;
    sl_step step = { .args = NULL };
    (void)stages;
    (void)count;
    into->failed[rank] = sl_runtime_get_failure(runtime, &into->failures[rank]);
    into->again[rank] = sl_runtime_step(runtime, &step, NULL);
    FILE *file = fmemopen(into->grid[rank], sizeof into->grid[rank], "w");
    sl_status status = sl_runtime_write_failure(runtime, file);
    fclose(file);
    return status;
}

static void a_failing_callback_stops_all_ranks_at_one_place(void **state)
{
    (void)state;
    seen saw = { 0 };
    job made = job_make("1F1B", 3, 0, 4, 8);
    made.shape.fail_stage = 1;
    made.shape.fail_microbatch = 2;
    made.after = look_at_failure;
    made.user = &saw;
    assert_all_fail(
        &made, SL_ERR_STAGE,
        (const char *const[]){ "rank 1", "stage 1", "1F2", "microbatch 2", "step 1)", "the valve is stuck", NULL });
    for (int r = 0; r < 3; r++) {
        assert_true(saw.failed[r]);
        assert_int_equal(saw.failures[r].rank, 1);
        assert_int_equal(saw.failures[r].cell, saw.failures[1].cell);
        assert_int_equal(saw.failures[r].action.kind, SL_KIND_F);
        assert_int_equal(saw.failures[r].action.microbatch, 2);
        assert_string_equal(saw.failures[r].message, saw.failures[1].message);
        assert_int_not_equal(saw.again[r], SL_OK);
        assert_non_null(strstr(saw.grid[r], "1F2"));
        assert_non_null(strstr(saw.grid[r], "ERROR HERE"));
    }
}

static void a_failing_callback_shows_what_the_stage_got(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        job made = job_make("Interleaved1F1B", ranks, 3 / ranks, 4, 8);
        made.shape.skip[2] = 0;
        made.shape.fail_stage = 2; /* the last: it takes the one before, a skip, and the target */
        made.shape.fail_microbatch = 1;
        assert_all_fail(&made, SL_ERR_STAGE,
                        (const char *const[]){ "2F1", "the valve is stuck (inputs: ", "'h1' f32 [2, 3]",
                                               "'h0' f32 [2, 3]", "'t' f32 [2, 3])", NULL });
    }
}

/* Outputs as they were when the step returned, and a while later. */
static sl_status look_twice_at_outputs(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    static float before[MAX_SAMPLES * WIDTH];
    (void)runtime;
    (void)stages;
    (void)count;
    if (rank != sl_schedule_ranks(self->schedule) - 1)
        return SL_OK;
    memcpy(before, self->outputs, sizeof before);
    nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    *(bool *)self->user = memcmp(before, self->outputs, sizeof before) == 0;
    return SL_OK;
}

static void nothing_is_written_once_a_failed_step_has_returned(void **state)
{
    (void)state;
    bool settled = false;
    job made = job_make("1F1B", 3, 0, 4, 8);
    made.shape.fail_stage = 1;
    made.shape.fail_microbatch = 2;
    made.device = "test";
    made.after = look_twice_at_outputs;
    made.user = &settled;
    test_device_set_pause(3); /* outputs arrive late */
    assert_all_fail(&made, SL_ERR_STAGE, (const char *const[]){ "1F2", NULL });
    test_device_set_pause(0);
    assert_true(settled);
}

static void a_callback_that_leaves_no_message_is_named(void **state)
{
    (void)state;
    static const struct {
        int returned;
        sl_status status;
        const char *words;
    } cases[] = {
        { SL_ERR_NUMERIC, SL_ERR_NUMERIC, "forward returned ERR_NUMERIC (not a finite number) and left no message" },
        { SL_ERR_PEER, SL_ERR_PEER, "forward returned ERR_PEER" }, /* which it was not: the others must hear of it */
        { -1, SL_ERR_STAGE, "forward returned -1, which is no status" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job made = job_make("1F1B", 3, 0, 4, 8);
        sl_fail(SL_ERR_IO, "an old message");
        made.shape.fail_stage = 1;
        made.shape.fail_microbatch = 2;
        made.shape.fail_with = cases[i].returned;
        assert_all_fail(&made, cases[i].status, (const char *const[]){ "1F2", cases[i].words, NULL });
    }
}

static void a_loss_that_is_no_number_is_noticed_when_asked_for(void **state)
{
    (void)state;
    job made = job_make("GPipe", 2, 0, 4, 8);
    made.shape.nan_microbatch = 3;
    made.extra.watch_loss = true;
    assert_all_fail(&made, SL_ERR_NUMERIC, (const char *const[]){ "stage 1", "1F3", "microbatch 3", "nan", NULL });
    job far = job_make("GPipe", 2, 0, 4, 8); /* the host looks at the end of the step */
    far.shape.nan_microbatch = 3;
    far.extra.watch_loss = true;
    far.device = "test";
    assert_all_fail(&far, SL_ERR_NUMERIC, (const char *const[]){ "stage 1", "1F3", "microbatch 3", "nan", NULL });
    job unwatched = job_make("GPipe", 2, 0, 4, 8);
    unwatched.shape.nan_microbatch = 3;
    assert_int_equal(job_run(&unwatched), SL_OK);
    assert_true(unwatched.losses[0][3] != unwatched.losses[0][3]);
    sl_schedule_destroy(unwatched.schedule);
}

static void stages_that_do_not_fit_are_refused_on_all_ranks(void **state)
{
    (void)state;
    job made = job_make("1F1B", 3, 0, 2, 4);
    made.shape.wrong_stage = 1;
    assert_all_fail(&made, SL_ERR_SHAPE,
                    (const char *const[]){ "stage 2", "'h1'", "stage 1", "[2, 3]", "[2, 4]", NULL });
    job inferred = job_make("1F1B", 3, 0, 2, 4);
    inferred.shape.open_shapes = true;
    sl_arg_spec specs[2] = { { .name = "x", .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 4, 5 }) },
                             { .name = "t", .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 4, 3 }) } };
    inferred.extra.args = specs;
    inferred.extra.arg_count = 2;
    assert_all_fail(&inferred, SL_ERR_SHAPE, (const char *const[]){ "stage 0", "rows of 5, not of 3", NULL });
}

static void a_batch_smaller_than_the_microbatches_is_refused(void **state)
{
    (void)state;
    job made = job_make("1F1B", 2, 0, 4, 3);
    assert_all_fail(&made, SL_ERR_ARGUMENT, (const char *const[]){ "'x'", "3 samples", "4 microbatches", NULL });
}

/* ---- Arguments of a step ---- */

static sl_status step_with(sl_runtime *runtime, const char *name, sl_dtype dtype, int64_t rows, int64_t stride)
{
    float data[64] = { 0 };
    sl_meta good = sl_meta_make(SL_F32, 2, (int64_t[]){ 4, WIDTH });
    sl_meta meta = sl_meta_make(dtype, 2, (int64_t[]){ rows, WIDTH });
    meta.strides[0] = stride;
    sl_arg args[2] = { { name, { data, meta } }, { "t", { data, good } } };
    return sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = name ? 2 : 1 }, NULL);
}

static sl_status wrong_rows(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)self, (void)rank, (void)stages, (void)count;
    return step_with(runtime, "x", SL_F32, 5, WIDTH);
}

static sl_status wrong_dtype(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)self, (void)rank, (void)stages, (void)count;
    return step_with(runtime, "x", SL_I32, 4, WIDTH);
}

static sl_status wrong_stride(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)self, (void)rank, (void)stages, (void)count;
    return step_with(runtime, "x", SL_F32, 4, WIDTH + 1);
}

static sl_status unknown_name(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)self, (void)rank, (void)stages, (void)count;
    return step_with(runtime, "ex", SL_F32, 4, WIDTH);
}

static sl_status nameless(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float data[4 * WIDTH] = { 0 };
    sl_view view = { data, sl_meta_make(SL_F32, 2, (int64_t[]){ 4, WIDTH }) };
    sl_arg args[] = { { NULL, view }, { NULL, view }, { NULL, view } };
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 3 }, NULL);
}

/* Microbatch 1 has a row more than agreed. */
static sl_status wrong_part(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float data[4 * WIDTH] = { 0 };
    sl_view two = { data, sl_meta_make(SL_F32, 2, (int64_t[]){ 2, WIDTH }) };
    sl_view three = { data, sl_meta_make(SL_F32, 2, (int64_t[]){ 3, WIDTH }) };
    sl_arg args[] = { { "x", two }, { "t", two }, { "x", three }, { "t", three } };
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2, .split = true }, NULL);
}

static sl_status missing(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, &(sl_step){ .arg_count = 0 }, NULL);
}

static void arguments_are_checked_at_each_step_and_all_ranks_hear_of_it(void **state)
{
    (void)state;
    static const struct {
        sl_status (*before)(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count);
        sl_status status;
        const char *words[5];
    } cases[] = {
        { wrong_rows, SL_ERR_SHAPE, { "stage 0", "'x'", "[5, 3]", NULL } },
        { wrong_dtype, SL_ERR_SHAPE, { "stage 0", "'x'", "i32", NULL } },
        { wrong_stride, SL_ERR_SHAPE, { "stage 0", "'x'", "stride", NULL } },
        { unknown_name, SL_ERR_ARGUMENT, { "before the first action", "'ex'", "'x', 't'", NULL } },
        { nameless, SL_ERR_ARGUMENT, { "3 arguments without a name, the pipeline takes 2", NULL } },
        { wrong_part, SL_ERR_SHAPE, { "microbatch 1", "expected [2, 3], given [3, 3]", NULL } },
        { missing, SL_ERR_ARGUMENT, { "has an input", "no stage before it makes", "given without", NULL } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job made = job_make("1F1B", 2, 0, 2, 4);
        made.before = cases[i].before;
        assert_all_fail(&made, cases[i].status, cases[i].words);
    }
}

static void outputs_are_checked_at_each_forward(void **state)
{
    (void)state;
    static const char *const given[] = { "[3, 3]", "i32", "stride" };
    for (int how = 1; how <= 3; how++) {
        job made = job_make("1F1B", 3, 0, 2, 4);
        made.shape.bad_output = how;
        made.shape.bad_stage = 1;
        assert_all_fail(&made, SL_ERR_SHAPE,
                        (const char *const[]){ "stage 1", "1F1", "output 'h1'", given[how - 1], NULL });
    }
}

static sl_status keep_after_whole(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, &(sl_step){ .keep_grads = true }, NULL);
}

static void adding_to_a_finished_step_is_refused(void **state)
{
    (void)state;
    job made = job_make("1F1B", 2, 0, 2, 4);
    made.before = keep_after_whole;
    assert_all_fail(&made, SL_ERR_ARGUMENT, (const char *const[]){ "keep_grads", NULL });
}

static sl_status seven_of_eight(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float data[7 * WIDTH] = { 0 };
    sl_view view = { data, sl_meta_make(SL_F32, 2, (int64_t[]){ 7, WIDTH }) };
    (void)self, (void)rank, (void)stages, (void)count;
    return sl_runtime_step(runtime, &(sl_step){ .args = (sl_arg[]){ { "x", view }, { "t", view } }, .arg_count = 2 },
                           NULL);
}

static void a_batch_of_another_size_than_the_stages_have_says_what_to_do(void **state)
{
    (void)state;
    sl_arg_spec zero[2] = { { .name = "x" }, { .name = "t" } }; /* the stages say that a microbatch has 2 samples */
    job made = job_make("1F1B", 2, 0, 4, 8);
    made.extra.args = zero;
    made.extra.arg_count = 2;
    made.before = seven_of_eight;
    assert_all_fail(&made, SL_ERR_SHAPE,
                    (const char *const[]){ "[7, 3]", "4 microbatches of [2, 3]", "sl_runtime_options.args", NULL });
}

static void arguments_without_a_size_follow_the_one_that_has_it(void **state)
{
    (void)state;
    sl_arg_spec one = { .name = "x", .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 7, WIDTH }) };
    job made = job_make("1F1B", 2, 0, 4, 7), said = job_make("1F1B", 2, 0, 4, 7);
    made.extra.args = &one;
    made.extra.arg_count = 1;
    assert_int_equal(job_run(&made), SL_OK);
    assert_int_equal(job_run(&said), SL_OK);
    assert_memory_equal(made.weights, said.weights, sizeof made.weights);
    sl_schedule_destroy(made.schedule);
    sl_schedule_destroy(said.schedule);
}

/* ---- Schedules ---- */

static job parse_job(const char *csv, int microbatches, int samples)
{
    job made = { .samples = samples, .microbatches = microbatches, .steps = 1 };
    if (sl_schedule_parse_csv(csv, strlen(csv), "test", &made.schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    made.shape = toy_shape_make(sl_schedule_stages(made.schedule));
    return made;
}

static void schedules_that_cannot_run_are_refused_with_their_cell(void **state)
{
    (void)state;
    job early = parse_job("0F0,0W0,0I0\n", 1, 2);
    assert_all_fail(&early, SL_ERR_SCHEDULE, (const char *const[]){ "rank 0", "0W0", NULL });
    job twice = parse_job("0F0,0F0,0B0\n", 1, 2);
    assert_all_fail(&twice, SL_ERR_SCHEDULE, (const char *const[]){ "rank 0", "0F0", NULL });
    job silent = parse_job("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1, 2);
    assert_all_fail(&silent, SL_ERR_SCHEDULE,
                    (const char *const[]){ "schedule: rank 0, cell 3, 0SEND_F0: it is missing", NULL });
    job forward = parse_job("0F0\n1F0\n", 1, 2);
    assert_all_fail(&forward, SL_ERR_ARGUMENT, (const char *const[]){ "forward only", NULL });
}

static sl_status wrong_group(toy_rank *self)
{
    job *made = self->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    sl_runtime_options options = { .group = self->group, .device = device, .schedule = made->schedule };
    SL_TRY(sl_runtime_create(&options, &runtime));
done:
    sl_runtime_destroy(runtime);
    sl_device_close(device);
    return status;
}

static void missing_stages_and_wrong_group_sizes_are_named(void **state)
{
    (void)state;
    toy_rank ranks[MAX_RANKS];
    job made = job_make("1F1B", 2, 0, 2, 4);
    assert_int_equal(toy_run_ranks(2, wrong_group, &made, ranks), SL_OK);
    assert_int_equal(ranks[0].status, SL_ERR_ARGUMENT);
    assert_string_equal(ranks[0].message, ranks[1].message);
    assert_non_null(strstr(ranks[0].message, "rank 0 was not given stage 0"));
    assert_int_equal(toy_run_ranks(3, wrong_group, &made, ranks), SL_OK);
    assert_string_equal(ranks[0].message, ranks[2].message);
    assert_non_null(strstr(ranks[2].message, "for 2 ranks, the group has 3"));
    sl_schedule_destroy(made.schedule);
}

/* ---- Memory ---- */

static sl_status train_alone(job *made, sl_group *group)
{
    toy_rank self = { .group = group, .user = made };
    return job_rank(&self);
}

static void running_out_of_memory_is_an_error_and_nothing_more(void **state)
{
    (void)state;
    job made = job_make("Interleaved1F1B", 1, 0, 2, 4);
    made.shape.tied_with[1] = 0;
    made.extra.trace_events = 10;
    int failures = 0;
    for (int64_t n = 0; n < 100000; n++) {
        sl_group *group = NULL;
        assert_int_equal(sl_group_open_threads(1, NULL, &group), SL_OK);
        sl_alloc_fail_after(n);
        sl_status status = train_alone(&made, group);
        sl_alloc_fail_after(-1);
        sl_group_close(group);
        if (status == SL_OK)
            break;
        assert_int_equal(status, SL_ERR_MEMORY);
        failures++;
    }
    assert_true(failures > 50);
    sl_schedule_destroy(made.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_callback_stops_all_ranks_at_one_place),
        cmocka_unit_test(nothing_is_written_once_a_failed_step_has_returned),
        cmocka_unit_test(a_callback_that_leaves_no_message_is_named),
        cmocka_unit_test(a_failing_callback_shows_what_the_stage_got),
        cmocka_unit_test(a_loss_that_is_no_number_is_noticed_when_asked_for),
        cmocka_unit_test(stages_that_do_not_fit_are_refused_on_all_ranks),
        cmocka_unit_test(a_batch_smaller_than_the_microbatches_is_refused),
        cmocka_unit_test(arguments_are_checked_at_each_step_and_all_ranks_hear_of_it),
        cmocka_unit_test(a_batch_of_another_size_than_the_stages_have_says_what_to_do),
        cmocka_unit_test(arguments_without_a_size_follow_the_one_that_has_it),
        cmocka_unit_test(outputs_are_checked_at_each_forward),
        cmocka_unit_test(adding_to_a_finished_step_is_refused),
        cmocka_unit_test(schedules_that_cannot_run_are_refused_with_their_cell),
        cmocka_unit_test(missing_stages_and_wrong_group_sizes_are_named),
        cmocka_unit_test(running_out_of_memory_is_an_error_and_nothing_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
