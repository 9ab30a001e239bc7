/* The simulator: times against the textbook's formulas and against a second, simpler model; usage of memory. */
#include "fixture.h"
#include "make.h"

#include "base/alloc.h"

#include <math.h>

static sl_timeline *simulate(const sl_schedule *schedule, const sl_costs *costs)
{
    sl_timeline *timeline = NULL;
    if (sl_schedule_simulate(schedule, costs, NULL, 0, &timeline) != SL_OK)
        fail_msg("%s", sl_error_message());
    return timeline;
}

static void assert_close(double a, double b)
{
    if (fabs(a - b) > 1e-9 * (1 + fabs(b)))
        fail_msg("%.12g is not %.12g", a, b);
}

static sl_costs costs_of(const char *text)
{
    sl_costs costs;
    sl_costs_init(&costs);
    if (sl_costs_parse(text, &costs) != SL_OK)
        fail_msg("%s", sl_error_message());
    return costs;
}

static void gives_the_textbook_times(void **state)
{
    (void)state;
    static const char *const names[] = { "GPipe", "1F1B" };
    for (int ranks = 1; ranks <= 5; ranks++) {
        for (int microbatches = ranks; microbatches <= 9; microbatches++) {
            for (int n = 0; n < 2; n++) {
                sl_schedule *schedule = generate(names[n], ranks, microbatches, 1);
                sl_timeline *timeline = simulate(schedule, NULL);
                assert_close(sl_timeline_makespan(timeline), 3 * (microbatches + ranks - 1));
                for (int rank = -1; rank < ranks; rank++)
                    assert_close(sl_timeline_bubble(timeline, rank), (ranks - 1.0) / (microbatches + ranks - 1));
                for (int rank = 0; rank < ranks; rank++)
                    assert_int_equal(sl_timeline_peak_slots(timeline, rank), n == 0 ? microbatches : ranks - rank);
                assert_ptr_equal(sl_timeline_schedule(timeline), schedule);
                sl_timeline_destroy(timeline);
                sl_schedule_destroy(schedule);
            }
        }
    }
}

static void knows_that_zero_bubble_schedules_have_none(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 6; ranks++) {
        sl_schedule *schedule = generate("ZBVZeroBubble", ranks, 4 * ranks, 2);
        sl_timeline *timeline = simulate(schedule, NULL);
        assert_close(sl_timeline_makespan(timeline),
                     6 * 4 * ranks + ranks - 1); /* all waiting is at the start or end */
        sl_timeline_destroy(timeline);
        sl_schedule_destroy(schedule);
    }
}

/* ---- A second model: sweeps over all actions until no time changes any more ----------------------- */

typedef struct model {
    const sl_schedule *schedule;
    const sl_stage_cost *costs;
    double latency;
    double *ended; /* (stages, microbatches, F or B) */
    bool changed;
} model;

static double *ended(const model *self, int stage, int microbatch, int backward)
{
    return &self->ended[((size_t)stage * (size_t)sl_schedule_microbatches(self->schedule) + (size_t)microbatch) * 2 +
                        (size_t)backward];
}

/* When the value of the neighbor is there. */
static double arrival(const model *self, int from, int to, int microbatch, int backward)
{
    bool same = sl_schedule_rank_of(self->schedule, from) == sl_schedule_rank_of(self->schedule, to);
    return *ended(self, from, microbatch, backward) + (same ? 0 : self->latency);
}

static double model_action(model *self, sl_action action, double now)
{
    sl_action parts[2];
    int count = sl_action_parts(action, parts);
    double start = now;
    double cost = 0;
    for (int p = 0; p < count; p++) {
        int s = parts[p].stage;
        int m = parts[p].microbatch;
        const sl_stage_cost *c = &self->costs[s];
        cost += parts[p].kind == SL_KIND_F   ? c->f
                : parts[p].kind == SL_KIND_I ? c->i
                : parts[p].kind == SL_KIND_W ? c->w
                                             : c->b;
        if (parts[p].kind == SL_KIND_F && s > 0)
            start = fmax(start, arrival(self, s - 1, s, m, 0));
        if ((parts[p].kind == SL_KIND_I || parts[p].kind == SL_KIND_B) && s + 1 < sl_schedule_stages(self->schedule))
            start = fmax(start, arrival(self, s + 1, s, m, 1));
    }
    for (int p = 0; p < count; p++) {
        if (parts[p].kind == SL_KIND_W)
            continue;
        double *end = ended(self, parts[p].stage, parts[p].microbatch, parts[p].kind != SL_KIND_F);
        self->changed = self->changed || *end != start + cost;
        *end = start + cost;
    }
    return start + cost;
}

static double model_makespan(const sl_schedule *schedule, const sl_stage_cost *costs, double latency)
{
    model self = { .schedule = schedule, .costs = costs, .latency = latency, .changed = true };
    size_t cells = (size_t)sl_schedule_stages(schedule) * (size_t)sl_schedule_microbatches(schedule) * 2;
    double makespan = 0;
    self.ended = calloc(cells, sizeof *self.ended);
    while (self.changed) {
        self.changed = false;
        makespan = 0;
        for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
            int64_t count;
            double now = 0;
            const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
            for (int64_t i = 0; i < count; i++)
                now = model_action(&self, actions[i], now);
            makespan = fmax(makespan, now);
        }
    }
    free(self.ended);
    return makespan;
}

static void compare_with_model(const fixture *given)
{
    sl_schedule *schedule = NULL;
    sl_schedule *lowered = NULL;
    assert_int_equal(sl_schedule_load_csv(given->path, &schedule), SL_OK);
    assert_int_equal(sl_schedule_lower(schedule, NULL, &lowered), SL_OK);
    int stages = sl_schedule_stages(schedule);
    sl_stage_cost *stage_costs = calloc((size_t)stages, sizeof *stage_costs);
    for (int turn = 0; turn < 3; turn++) {
        double latency = 0.25 * turn;
        for (int s = 0; s < stages; s++) {
            int uneven = turn * (s * 7 % 5);
            stage_costs[s] = (sl_stage_cost){ .f = 1 + uneven,
                                              .i = 1 + uneven / 2.0,
                                              .w = 0.5 + uneven,
                                              .b = 2 + uneven,
                                              .activation = 1,
                                              .release = 0.5 };
        }
        sl_costs costs = costs_of("comm=0");
        costs.latency = latency;
        costs.stages = stage_costs;
        double expected = model_makespan(schedule, stage_costs, latency);
        sl_timeline *plain = simulate(schedule, &costs);
        sl_timeline *with_messages = simulate(lowered, &costs);
        assert_close(sl_timeline_makespan(plain), expected);
        assert_close(sl_timeline_makespan(with_messages), expected);
        sl_timeline_destroy(plain);
        sl_timeline_destroy(with_messages);
    }
    free(stage_costs);
    sl_schedule_destroy(schedule);
    sl_schedule_destroy(lowered);
}

static void agrees_with_a_simpler_model(void **state)
{
    (void)state;
    assert_int_equal(fixtures_visit(false, compare_with_model), 238);
}

static void overlaps_messages_and_computation(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                  "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n");
    sl_costs costs = costs_of("F=2,B=4,comm=1,size=12,bandwidth=4");
    sl_timeline *timeline = simulate(schedule, &costs);
    /* A message takes 1 + 3, and the link is busy for 3 of it. */
    static const sl_span rank0[] = { { 0, 2 },  { 2, 6 },   { 2, 4 },   { 4, 9 },
                                     { 4, 16 }, { 16, 20 }, { 20, 22 }, { 22, 26 } };
    static const sl_span rank1[] = { { 0, 6 },   { 6, 8 },   { 8, 12 },  { 12, 12 },
                                     { 12, 16 }, { 12, 14 }, { 14, 18 }, { 18, 22 } };
    for (int i = 0; i < 8; i++) {
        assert_close(sl_timeline_spans(timeline, 0)[i].start, rank0[i].start);
        assert_close(sl_timeline_spans(timeline, 0)[i].end, rank0[i].end);
        assert_close(sl_timeline_spans(timeline, 1)[i].start, rank1[i].start);
        assert_close(sl_timeline_spans(timeline, 1)[i].end, rank1[i].end);
    }
    assert_close(sl_timeline_makespan(timeline), 26);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

static void gives_each_edge_its_own_size(void **state)
{
    (void)state;
    static const sl_edge edges[] = { { 0, 1 }, { 0, 2 }, { 1, 2 } };
    static const double sizes[] = { 1, 10, 0 };
    sl_costs costs = costs_of("F=1,bandwidth=1");
    costs.edge_sizes = sizes;
    sl_schedule *schedule = parse("0F0\n1F0\n2F0\n");
    sl_timeline *timeline = NULL;
    assert_int_equal(sl_schedule_simulate(schedule, &costs, edges, 3, &timeline), SL_OK);
    assert_close(sl_timeline_spans(timeline, 1)[0].start, 2);
    assert_close(sl_timeline_spans(timeline, 2)[0].start, 11);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

static void runs_weight_actions_beside_computation(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,1RESHARD,0B0,0REDUCE_GRAD,0RESHARD\n");
    sl_costs costs = costs_of("unshard=2,reshard=1,reduce=5");
    sl_timeline *timeline = simulate(schedule, &costs);
    static const sl_span spans[] = { { 0, 2 },  { 2, 4 },   { 2, 3 }, { 4, 5 },   { 5, 7 },
                                     { 7, 12 }, { 12, 13 }, { 7, 9 }, { 13, 18 }, { 18, 19 } };
    for (int i = 0; i < 10; i++) {
        assert_close(sl_timeline_spans(timeline, 0)[i].start, spans[i].start);
        assert_close(sl_timeline_spans(timeline, 0)[i].end, spans[i].end);
    }
    assert_close(sl_timeline_bubble(timeline, 0), 1 - 6.0 / 19);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

static void gives_each_stage_its_own_weight_costs(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,0RESHARD,1RESHARD\n");
    sl_costs costs = costs_of("unshard=9,reduce=9");
    sl_stage_cost stages[] = { { .f = 1, .b = 2, .unshard = 1, .reduce_grad = 3 },
                               { .f = 1, .b = 2, .unshard = 4, .reduce_grad = 1 } };
    costs.stages = stages;
    sl_timeline *timeline = simulate(schedule, &costs);
    static const sl_span spans[] = {
        { 0, 1 }, { 1, 5 }, { 1, 2 }, { 5, 6 }, { 6, 8 }, { 8, 9 }, { 8, 10 }, { 10, 13 }
    };
    for (int i = 0; i < 8; i++) {
        assert_close(sl_timeline_spans(timeline, 0)[i].start, spans[i].start);
        assert_close(sl_timeline_spans(timeline, 0)[i].end, spans[i].end);
    }
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

static void a_stage_waits_for_weights_that_are_gathered_from_the_start_on(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0F0,1F0,1B0,0B0\n");
    sl_costs costs = costs_of("F=1,B=2");
    sl_stage_cost stages[] = { { .f = 1, .b = 2, .gather = 2 }, { .f = 1, .b = 2, .gather = 4 } };
    costs.stages = stages;
    sl_timeline *timeline = simulate(schedule, &costs);
    assert_close(sl_timeline_spans(timeline, 0)[0].start, 2); /* its own */
    assert_close(sl_timeline_spans(timeline, 0)[1].start, 6); /* after those of stage 0 */
    assert_close(sl_timeline_makespan(timeline), 11);
    stages[1].gather = -1;
    sl_timeline_destroy(timeline);
    assert_int_equal(sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline), SL_ERR_ARGUMENT);
    sl_schedule_destroy(schedule);
}

static void hides_part_of_an_overlap(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
    sl_costs costs = costs_of("overlap=0.5");
    sl_timeline *timeline = simulate(schedule, &costs);
    assert_close(sl_timeline_makespan(timeline), 1 + 2.5 + 2);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

typedef struct usages {
    sl_usage list[16];
    int count;
} usages;

static bool collect(void *user, sl_usage usage)
{
    usages *seen = user;
    seen->list[seen->count++] = usage;
    return seen->count < 16;
}

static void follows_the_memory_of_a_rank(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0F0,0F1,0I0,0W0,0B1\n");
    sl_costs costs = costs_of("activation=8,release=0.25");
    sl_timeline *timeline = simulate(schedule, &costs);
    static const sl_usage expected[] = { { 0, 1, 8 }, { 1, 2, 16 }, { 3, 2, 14 }, { 4, 1, 8 }, { 6, 0, 0 } };
    usages seen = { .count = 0 };
    sl_timeline_usage(timeline, 0, collect, &seen);
    assert_int_equal(seen.count, 5);
    for (int i = 0; i < 5; i++) {
        assert_close(seen.list[i].time, expected[i].time);
        assert_int_equal(seen.list[i].slots, expected[i].slots);
        assert_close(seen.list[i].memory, expected[i].memory);
    }
    assert_close(sl_timeline_peak_memory(timeline, 0), 16);
    assert_int_equal(sl_timeline_peak_slots(timeline, 0), 2);
    seen.count = 15; /* the callback stops the walk */
    sl_timeline_usage(timeline, 0, collect, &seen);
    assert_int_equal(seen.count, 16);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

static void agrees_with_the_counted_slots(void **state)
{
    (void)state;
    for (int g = 0; sl_generator_name(g); g++) {
        int slots[4];
        sl_schedule *schedule = generate(sl_generator_name(g), 4, 11, 0);
        sl_timeline *timeline = simulate(schedule, NULL);
        assert_int_equal(sl_schedule_count_slots(schedule, slots, NULL), SL_OK);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(sl_timeline_peak_slots(timeline, rank), slots[rank]);
        sl_timeline_destroy(timeline);
        sl_schedule_destroy(schedule);
    }
}

static void reads_costs(void **state)
{
    (void)state;
    sl_costs costs = costs_of("F=1.5,i=2,W=3,B=4,comm=0.5,size=7,bandwidth=2,release=1");
    assert_close(costs.stage.f, 1.5);
    assert_close(costs.stage.i, 2);
    assert_close(costs.latency, 0.5);
    assert_close(costs.stage.release, 1);
    static const char *const bad[] = { "",    "F",       "F=",        "F=x",   "F=-1", "F=1,",
                                       "X=1", "F=1;B=2", "release=2", "F=inf", "F=nan" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sl_costs_parse(bad[i], &costs), SL_ERR_ARGUMENT);
        assert_close(costs.stage.f, 1.5);
    }
}

static void refuses_costs_out_of_range(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0F0\n1F0\n");
    sl_timeline *timeline = NULL;
    sl_costs costs = costs_of("F=1");
    costs.stage.b = -1;
    assert_int_equal(sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline), SL_ERR_ARGUMENT);
    costs = costs_of("F=1");
    sl_stage_cost stages[] = { costs.stage, costs.stage };
    stages[1].release = NAN;
    costs.stages = stages;
    assert_int_equal(sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "stage 1"));
    costs.stages = NULL;
    double size = -1;
    costs.edge_sizes = &size;
    assert_int_equal(sl_schedule_simulate(schedule, &costs, NULL, 0, &timeline), SL_ERR_ARGUMENT);
    assert_null(timeline);
    sl_schedule_destroy(schedule);
}

static void refuses_what_cannot_run(void **state)
{
    (void)state;
    sl_schedule *schedule = parse("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
    sl_timeline *timeline = NULL;
    assert_int_equal(sl_schedule_simulate(schedule, NULL, NULL, 0, &timeline), SL_ERR_SCHEDULE);
    assert_null(timeline);
    sl_schedule_destroy(schedule);
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    sl_schedule *schedule = generate("DualPipeV", 2, 4, 2);
    for (int n = 0;; n++) {
        sl_timeline *timeline = NULL;
        sl_alloc_fail_after(n);
        sl_status status = sl_schedule_simulate(schedule, NULL, NULL, 0, &timeline);
        sl_alloc_fail_after(-1);
        if (status == SL_OK) {
            sl_timeline_destroy(timeline);
            assert_true(n > 20);
            break;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
        assert_null(timeline);
    }
    sl_schedule_destroy(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_textbook_times),
        cmocka_unit_test(knows_that_zero_bubble_schedules_have_none),
        cmocka_unit_test(agrees_with_a_simpler_model),
        cmocka_unit_test(overlaps_messages_and_computation),
        cmocka_unit_test(gives_each_edge_its_own_size),
        cmocka_unit_test(runs_weight_actions_beside_computation),
        cmocka_unit_test(gives_each_stage_its_own_weight_costs),
        cmocka_unit_test(a_stage_waits_for_weights_that_are_gathered_from_the_start_on),
        cmocka_unit_test(hides_part_of_an_overlap),
        cmocka_unit_test(follows_the_memory_of_a_rank),
        cmocka_unit_test(agrees_with_the_counted_slots),
        cmocka_unit_test(reads_costs),
        cmocka_unit_test(refuses_costs_out_of_range),
        cmocka_unit_test(refuses_what_cannot_run),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
