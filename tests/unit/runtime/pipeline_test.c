/* Pipelines of hand-written stages give the bits of the same stages run one after another, whatever the schedule. */
#include "support/sample.h"
#include "unit/runtime/job.h"

static job make_job(const char *name, int ranks, int stages_per_rank, int microbatches, int samples)
{
    job made = job_make(name, ranks, stages_per_rank, microbatches, samples);
    made.steps = 3;
    return made;
}

static job parse_job(const char *csv, int microbatches, int samples)
{
    job made = { .samples = samples, .microbatches = microbatches, .steps = 3 };
    if (sl_schedule_parse_csv(csv, strlen(csv), "test", &made.schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    made.shape = toy_shape_make(sl_schedule_stages(made.schedule));
    return made;
}

/* The generators that train: their names in turn, NULL past the last. */
static const char *training_name(int index)
{
    for (int i = 0; sl_generator_name(i); i++) {
        sl_generate_options options = { .name = sl_generator_name(i), .ranks = 1, .microbatches = 1 };
        sl_schedule *schedule = NULL;
        bool trains = sl_schedule_generate(&options, &schedule) == SL_OK && sl_schedule_has_backward(schedule);
        sl_schedule_destroy(schedule);
        if (trains && index-- == 0)
            return sl_generator_name(i);
    }
    return NULL;
}

/* A sample has one in four of the numbers of ranks, stages a rank and microbatches for each schedule. */
static void every_schedule_gives_the_bits_of_the_stages_in_turn(void **state)
{
    (void)state;
    static const int microbatches[] = { 1, 2, 3, 4, 7, 8 };
    for (int i = 0; training_name(i); i++) {
        for (int ranks = 1; ranks <= 4; ranks++) {
            for (int per_rank = 1; per_rank <= 3; per_rank++) {
                for (int k = 0; k < 6; k++) {
                    if (!test_in_sample((size_t)(i + ranks + 2 * per_rank + k), 0, 4))
                        continue;
                    sl_generate_options options = { .name = training_name(i),
                                                    .ranks = ranks,
                                                    .microbatches = microbatches[k],
                                                    .stages_per_rank = per_rank };
                    sl_schedule *schedule = NULL;
                    if (sl_schedule_generate(&options, &schedule) != SL_OK)
                        continue; /* not with so many stages a rank */
                    sl_schedule_destroy(schedule);
                    job made = make_job(training_name(i), ranks, per_rank, microbatches[k], 2 * microbatches[k]);
                    job_assert_same_bits(&made);
                }
            }
        }
    }
}

static void skips_and_values_used_by_several_stages(void **state)
{
    (void)state;
    for (int i = 0; training_name(i); i++) {
        job made = make_job(training_name(i), 2, 0, 4, 8);
        int last = made.shape.stages - 1;
        made.shape.skip[last] = 0;
        if (last > 2)
            made.shape.skip[last - 1] = 0; /* h0 goes to stages 1, last - 1 and last */
        if (last == 1) {
            sl_schedule_destroy(made.schedule);
            continue; /* stage 1 has h0 already */
        }
        job_assert_same_bits(&made);
    }
    job single = make_job("GPipe", 4, 0, 4, 8);
    single.shape.skip[2] = 0;
    single.shape.skip[3] = 0;
    job_assert_same_bits(&single);
}

static void tied_parameters_get_the_sum_over_their_stages(void **state)
{
    (void)state;
    for (int i = 0; training_name(i); i++) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            job made = make_job(training_name(i), ranks, 0, 3, 6);
            for (int s = 2; s < made.shape.stages; s += 2)
                made.shape.tied_with[s] = 0;
            job_assert_same_bits(&made);
        }
    }
}

static void uneven_batches_weigh_every_sample_the_same(void **state)
{
    (void)state;
    job made = make_job("1F1B", 2, 0, 4, 7);
    job_assert_same_bits(&made);
    job mean_of_means = make_job("1F1B", 2, 0, 4, 7);
    mean_of_means.mean = SL_MEAN_MICROBATCHES;
    job_assert_same_bits(&mean_of_means);
    job sum = make_job("ZBVZeroBubble", 2, 0, 4, 7);
    sum.mean = SL_MEAN_SUM;
    job_assert_same_bits(&sum);

    /* Sample by sample: the mean over samples is what one microbatch of the whole batch gives. */
    job whole = make_job("GPipe", 1, 1, 1, 7), parts = make_job("GPipe", 1, 1, 3, 7);
    whole.steps = parts.steps = 1;
    assert_int_equal(job_run(&whole), SL_OK);
    assert_int_equal(job_run(&parts), SL_OK);
    assert_true(whole.loss[0] - parts.loss[0] < 1e-6 && parts.loss[0] - whole.loss[0] < 1e-6);
    for (int c = 0; c < WIDTH; c++)
        assert_float_equal(whole.grads[0][c], parts.grads[0][c], 1e-6f);
    sl_schedule_destroy(whole.schedule);
    sl_schedule_destroy(parts.schedule);
}

static void batches_may_come_split_already(void **state)
{
    (void)state;
    job made = make_job("Interleaved1F1B", 2, 2, 4, 10);
    made.split = true;
    job_assert_same_bits(&made);
}

static void gradients_accumulate_over_partial_steps(void **state)
{
    (void)state;
    job made = make_job("Interleaved1F1B", 2, 2, 4, 8);
    made.shape.tied_with[2] = 0;
    made.accumulate = true;
    made.steps = 4;
    job_assert_same_bits(&made);
}

static void shapes_run_through_the_pipeline(void **state)
{
    (void)state;
    job made = make_job("1F1B", 3, 0, 4, 7);
    made.shape.open_shapes = true;
    job_assert_same_bits(&made);
}

static void stages_with_one_backward_function_run_b_schedules(void **state)
{
    (void)state;
    job made = make_job("1F1B", 2, 0, 4, 8);
    made.shape.only_backward = true;
    job_assert_same_bits(&made);
    job apart = make_job("InterleavedZeroBubble", 2, 2, 4, 8);
    apart.shape.only_backward = true;
    assert_int_equal(job_run(&apart), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "backward_input and backward_weight"));
    sl_schedule_destroy(apart.schedule);
}

static void a_stage_may_hand_back_memory_of_its_own(void **state)
{
    (void)state;
    job made = make_job("Interleaved1F1B", 2, 2, 4, 8);
    made.shape.own_output = true;
    job_assert_same_bits(&made);
}

static void any_placement_and_any_order_from_csv(void **state)
{
    (void)state;
    job asymmetric = parse_job("0F0,1F0,0F1,1F1,4F0,4B0,4F1,4B1,1B0,0B0,1B1,0B1\n"
                               "2F0,3F0,2F1,3F1,3B0,2B0,3B1,2B1\n",
                               2, 4);
    job_assert_same_bits(&asymmetric);
    job backwards = parse_job("1F0,1F1,1B1,1B0\n0F1,0F0,0B0,0B1\n", 2, 4);
    /* Stage 1 wants microbatch 0 first, stage 0 makes 1 first: possible, but only if it waits for both. */
    job_assert_same_bits(&backwards);
    job overlap = parse_job("0F0,0F1,(0F2;1B0)OVERLAP_F_B,0B0,1B1,0B1,1B2,0B2\n", 3, 6);
    sl_schedule_destroy(overlap.schedule);
    overlap = parse_job("0F0,1F0,0F1,1F1,(0F2;1B0)OVERLAP_F_B,1F2,0B0,1B1,0B1,1B2,0B2\n", 3, 6);
    job_assert_same_bits(&overlap);
    job lowered = parse_job("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                            "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
                            2, 4);
    job_assert_same_bits(&lowered);
}

/* ---- Orders and placements that nobody thought of ---- */

enum { UNDONE, FORWARD, INPUT, DONE }; /* how far a microbatch is at a stage */

typedef struct lottery {
    uint32_t state;
    job *job;
    int rank_of[MAX_STAGES];
    bool split[MAX_STAGES]; /* the stage's backward is I and W */
    bool in_order;          /* microbatches pass every stage in order: a stage that is fed by two needs both to agree */
    uint8_t reached[MAX_STAGES][MAX_MICROBATCHES];
} lottery;

static int draw(lottery *self, int count)
{
    self->state = self->state * 1664525u + 1013904223u;
    return (int)((self->state >> 8) % (uint32_t)count);
}

/* What microbatch m can do next at stage s; false if it must wait or is done. */
static bool next_action(const lottery *self, int s, int m, sl_action *out)
{
    const toy_shape *shape = &self->job->shape;
    if (self->reached[s][m] == DONE)
        return false;
    if (self->reached[s][m] == INPUT) {
        *out = sl_action_make(SL_KIND_W, s, m);
        return true;
    }
    bool forward = self->reached[s][m] == UNDONE;
    if (self->in_order && m > 0 && self->reached[s][m - 1] <= self->reached[s][m])
        return false;
    *out = sl_action_make(forward ? SL_KIND_F : self->split[s] ? SL_KIND_I : SL_KIND_B, s, m);
    if (forward)
        return (s == 0 || self->reached[s - 1][m] > UNDONE) &&
               (shape->skip[s] < 0 || self->reached[shape->skip[s]][m] > UNDONE);
    for (int user = s + 1; user < shape->stages; user++) {
        if ((user == s + 1 || shape->skip[user] == s) && self->reached[user][m] < INPUT)
            return false;
    }
    return true;
}

/* Appends actions of any stage and microbatch that can go on, until all are done. */
static void draw_order(lottery *self, sl_schedule_builder *builder)
{
    int stages = self->job->shape.stages, cells = stages * self->job->microbatches, left = cells;
    while (left > 0) {
        int cell = draw(self, cells), s = cell % stages, m = cell / stages;
        sl_action action;
        if (!next_action(self, s, m, &action))
            continue;
        assert_int_equal(sl_schedule_builder_add(builder, self->rank_of[s], action), SL_OK);
        self->reached[s][m] = action.kind == SL_KIND_F ? FORWARD : action.kind == SL_KIND_I ? INPUT : DONE;
        left -= self->reached[s][m] == DONE;
    }
}

/* Up to 4 ranks, 7 stages anywhere on them, skips, ties, an uneven batch. */
static job draw_job(uint32_t seed)
{
    job made = { .steps = 2 };
    lottery self = { .state = seed * 2654435761u + 1, .job = &made };
    sl_schedule_builder *builder = NULL;
    int ranks = 1 + draw(&self, 4), stages = ranks + draw(&self, 4);
    made.microbatches = 1 + draw(&self, 5);
    made.samples = made.microbatches + draw(&self, 2 * made.microbatches);
    made.eval_first = draw(&self, 2);
    self.in_order = draw(&self, 2);
    made.shape = toy_shape_make(stages);
    for (int s = 0; s < stages; s++) {
        self.rank_of[s] = s < ranks ? s : draw(&self, ranks);
        self.split[s] = draw(&self, 2);
        if (self.in_order && s > 1 && draw(&self, 2))
            made.shape.skip[s] = draw(&self, s - 1);
        int owner = draw(&self, stages);
        if (owner < s && made.shape.tied_with[owner] < 0)
            made.shape.tied_with[s] = owner;
    }
    for (int s = stages - 1; s > 0; s--) { /* the ranks in any order */
        int other = draw(&self, s + 1), rank = self.rank_of[s];
        self.rank_of[s] = self.rank_of[other];
        self.rank_of[other] = rank;
    }
    assert_int_equal(sl_schedule_builder_create(ranks, &builder), SL_OK);
    draw_order(&self, builder);
    assert_int_equal(sl_schedule_builder_finish(builder, &made.schedule), SL_OK);
    sl_schedule_builder_destroy(builder);
    return made;
}

static void random_orders_and_placements_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 150; seed++) {
        job made = draw_job(seed);
        job_assert_same_bits(&made);
    }
}

static void evaluation_before_training_changes_nothing(void **state)
{
    (void)state;
    for (int i = 0; training_name(i); i++) {
        job made = make_job(training_name(i), 2, 0, 4, 8);
        made.eval_first = true;
        made.steps = 1;
        job_assert_same_bits(&made);
        assert_memory_equal(made.eval_losses, made.losses[0], sizeof made.eval_losses);
    }
}

static void one_stage_on_one_rank_is_a_pipeline_too(void **state)
{
    (void)state;
    job made = make_job("GPipe", 1, 1, 1, 3);
    job_assert_same_bits(&made);
}

static void devices_out_of_the_hosts_reach_give_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; training_name(i); i++) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            job made = make_job(training_name(i), ranks, 0, 4, 7);
            made.device = "test";
            if (made.shape.stages > 2)
                made.shape.tied_with[made.shape.stages - 1] = 0;
            made.eval_first = true;
            job_assert_same_bits(&made);
        }
    }
    job wide = make_job("1F1B", 2, 0, 2, 4);
    wide.device = "test";
    wide.replicas = 2;
    job_assert_same_bits(&wide);
}

/* Streams that do not wait for each other's events: the tests' device is there to notice. Messages go through the host,
 * for those of links are in one stream with the kernels. */
static void a_missing_event_shows(void **state)
{
    (void)state;
    if (TEST_THREAD_SANITIZED)
        skip(); /* it ends the test for a race, and this is one */
    int wrong = 0;
    assert_int_equal(setenv("SLUICE_DEVICE_LINKS", "0", 1), 0);
    for (int i = 0; i < 20 && !wrong; i++) {
        job made = make_job("1F1B", 2, 0, 4, 8);
        made.device = "test";
        job expected = made;
        job_reference(&expected);
        test_device_ignore_waits(true);
        sl_status status = job_run(&made);
        test_device_ignore_waits(false);
        wrong = status != SL_OK || memcmp(made.weights, expected.weights, sizeof made.weights) != 0;
        sl_schedule_destroy(made.schedule);
    }
    assert_int_equal(unsetenv("SLUICE_DEVICE_LINKS"), 0);
    assert_true(wrong);
}

static void replicas_get_the_mean_gradient_of_all(void **state)
{
    (void)state;
    for (int i = 0; training_name(i); i++) {
        job made = make_job(training_name(i), 2, 0, 4, 8);
        made.replicas = 3;
        if (made.shape.stages > 2)
            made.shape.tied_with[made.shape.stages - 1] = 0;
        job_assert_same_bits(&made);
    }
    job lowered = parse_job("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
                            2, 4);
    lowered.replicas = 2;
    lowered.extra.trace_events = 100;
    job_assert_same_bits(&lowered);
    job partial = make_job("1F1B", 2, 0, 4, 8);
    partial.replicas = 2;
    partial.accumulate = true;
    partial.steps = 4;
    job_assert_same_bits(&partial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage_on_one_rank_is_a_pipeline_too),
        cmocka_unit_test(every_schedule_gives_the_bits_of_the_stages_in_turn),
        cmocka_unit_test(skips_and_values_used_by_several_stages),
        cmocka_unit_test(tied_parameters_get_the_sum_over_their_stages),
        cmocka_unit_test(uneven_batches_weigh_every_sample_the_same),
        cmocka_unit_test(batches_may_come_split_already),
        cmocka_unit_test(gradients_accumulate_over_partial_steps),
        cmocka_unit_test(shapes_run_through_the_pipeline),
        cmocka_unit_test(stages_with_one_backward_function_run_b_schedules),
        cmocka_unit_test(a_stage_may_hand_back_memory_of_its_own),
        cmocka_unit_test(any_placement_and_any_order_from_csv),
        cmocka_unit_test(random_orders_and_placements_give_the_same_bits),
        cmocka_unit_test(evaluation_before_training_changes_nothing),
        cmocka_unit_test(devices_out_of_the_hosts_reach_give_the_same_bits),
        cmocka_unit_test(a_missing_event_shows),
        cmocka_unit_test(replicas_get_the_mean_gradient_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
