/* Ranks that share processors, and processes that take turns on a GPU, beside simulations in small ticks. */
#include "tune/tune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* ---- Shared processors ----------------------------------------------------------------------- */

enum { STAGES = 8, MICROBATCHES = 8, COPIES = 4 };

/* A pipeline in ticks: in each, whoever can work does as much as the cores allow. It knows nothing of events. */
typedef struct ticking {
    const sl_schedule *schedule;
    const tune_stages *stages;
    int64_t at[STAGES]; /* (rank) action under way */
    int part[STAGES];
    double left[STAGES];                       /* of it; below 0: it has not begun */
    double made[2][STAGES][MICROBATCHES], now; /* when F, and I or B, were done; infinity before */
} ticking;

static sl_action action_of(const ticking *self, int rank)
{
    int64_t count = 0;
    sl_action parts[2];
    int n = sl_action_parts(sl_schedule_actions(self->schedule, rank, &count)[self->at[rank]], parts);
    return parts[self->part[rank] < n ? self->part[rank] : 0];
}

static bool can_work(ticking *self, int rank)
{
    int64_t count = 0;
    sl_schedule_actions(self->schedule, rank, &count);
    if (self->at[rank] == count)
        return false;
    if (self->left[rank] >= 0)
        return true;
    sl_action action = action_of(self, rank);
    const sl_stage_cost *cost = &self->stages->costs[action.stage];
    double ready = 0;
    if (action.kind == SL_KIND_F && action.stage > 0)
        ready = self->made[0][action.stage - 1][action.microbatch] + self->stages->hops[action.stage - 1];
    else if ((action.kind == SL_KIND_I || action.kind == SL_KIND_B) && action.stage + 1 < self->stages->count)
        ready = self->made[1][action.stage + 1][action.microbatch] + self->stages->hops[action.stage];
    if (ready > self->now)
        return false;
    self->left[rank] = action.kind == SL_KIND_F   ? cost->f
                       : action.kind == SL_KIND_I ? cost->i
                       : action.kind == SL_KIND_W ? cost->w
                                                  : cost->b;
    return true;
}

static void finish(ticking *self, int rank)
{
    int64_t count = 0;
    sl_action parts[2], action = action_of(self, rank);
    if (action.kind != SL_KIND_W)
        self->made[action.kind != SL_KIND_F][action.stage][action.microbatch] = self->now;
    int n = sl_action_parts(sl_schedule_actions(self->schedule, rank, &count)[self->at[rank]], parts);
    self->left[rank] = -1;
    if (++self->part[rank] >= n) {
        self->part[rank] = 0;
        self->at[rank]++;
    }
}

static void begin_ticking(ticking *self, const sl_schedule *schedule, const tune_stages *stages)
{
    *self = (ticking){ .schedule = schedule, .stages = stages };
    for (int s = 0; s < STAGES; s++) {
        self->left[s] = -1;
        for (int m = 0; m < MICROBATCHES; m++)
            self->made[0][s][m] = self->made[1][s][m] = INFINITY;
    }
}

static double end_by_ticks(const sl_schedule *schedule, const tune_stages *stages, int copies, double cores,
                           double tick)
{
    ticking self;
    int ranks = sl_schedule_ranks(schedule), working = 1, idle = 0;
    double end = 0;
    begin_ticking(&self, schedule, stages);
    while (idle < 1000) {
        bool works[STAGES];
        working = 0;
        for (int r = 0; r < ranks; r++)
            working += works[r] = can_work(&self, r);
        idle = working ? 0 : idle + 1;
        double speed = fmin(1, cores / fmax(1, working * copies));
        speed /= working * copies > cores ? fmax(1, stages->crowded) : 1;
        if (working > 1 && cores > copies)
            speed /= 1 + fmax(0, stages->waking - 1) * (fmin(cores, working * copies) - copies) / (cores - copies);
        self.now += tick;
        for (int r = 0; r < ranks; r++) {
            self.left[r] -= works[r] ? tick * speed : 0;
            if (works[r] && self.left[r] <= 0) {
                finish(&self, r);
                end = self.now;
            }
        }
    }
    return end;
}

static uint64_t seed = 5;

static double draw(double low, double high)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(seed >> 11) * 0x1p-53;
}

static void draw_stages(int count, sl_stage_cost *costs, double *hops)
{
    for (int s = 0; s < count; s++) {
        costs[s] = (sl_stage_cost){ .f = draw(0.5, 2), .i = draw(0.5, 2), .w = draw(0.5, 2), .b = draw(1, 4) };
        hops[s] = draw(0, 0.5);
    }
}

static void ranks_that_share_cores_take_as_long_as_in_small_ticks(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int ranks, chunks;
    } kinds[] = { { "1F1B", 4, 1 }, { "GPipe", 3, 1 },         { "Interleaved1F1B", 2, 2 },
                  { "1F1B", 2, 1 }, { "ZBVZeroBubble", 4, 2 }, { "InterleavedZeroBubble", 2, 4 } };
    const double tick = 4e-3;
    for (int round = 0; round < 18; round++) {
        sl_schedule *schedule = NULL;
        sl_stage_cost costs[STAGES];
        double hops[STAGES], ends[STAGES], most = 0;
        int kind = round % 6, ranks = kinds[kind].ranks, count = ranks * kinds[kind].chunks, copies = (int)draw(1, 3);
        const sl_generate_options options = {
            .name = kinds[kind].name, .ranks = ranks, .microbatches = 8, .stages_per_rank = kinds[kind].chunks
        };
        assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
        draw_stages(count, costs, hops);
        const tune_stages stages = { .count = count,
                                     .costs = costs,
                                     .hops = hops,
                                     .crowded = round % 2 ? draw(1, 1.5) : 0,
                                     .waking = round % 3 ? draw(1, 1.5) : 0 };
        double cores = floor(draw(1, 1 + ranks * copies));
        assert_int_equal(sl_tune_share_cores(schedule, &stages, copies, cores, ends), SL_OK);
        for (int r = 0; r < ranks; r++)
            most = fmax(most, ends[r]);
        double ticked = end_by_ticks(schedule, &stages, copies, cores, tick);
        double actions = 3.0 * count * options.microbatches; /* each may end in the middle of a tick */
        if (fabs(ticked - most) > tick * actions)
            fail_msg("%s, %d ranks, %d copies, %g cores: %g, but %g in ticks", options.name, ranks, copies, cores, most,
                     ticked);
        sl_schedule_destroy(schedule);
    }
}

/* All replicas, each rank on a core of its own or with others. */
static double end_bound_by_ticks(const sl_schedule *schedule, const tune_stages *stages, int copies, int cores,
                                 double tick)
{
    ticking all[COPIES];
    int ranks = sl_schedule_ranks(schedule), idle = 0;
    double end = 0;
    for (int c = 0; c < copies; c++)
        begin_ticking(&all[c], schedule, stages);
    while (idle++ < 1000) {
        bool works[COPIES][STAGES];
        int at_work[COPIES * STAGES] = { 0 };
        for (int r = 0; r < ranks; r++) {
            for (int c = 0; c < copies; c++)
                at_work[(r * copies + c) % cores] += works[c][r] = can_work(&all[c], r);
        }
        for (int r = 0; r < ranks; r++) {
            for (int c = 0; c < copies; c++) {
                double sharers = at_work[(r * copies + c) % cores];
                all[c].left[r] -= works[c][r] ? tick / (sharers > 1 ? sharers * fmax(1, stages->crowded) : 1) : 0;
            }
        }
        for (int c = 0; c < copies; c++) {
            all[c].now += tick;
            for (int r = 0; r < ranks; r++) {
                idle = works[c][r] ? 0 : idle;
                if (works[c][r] && all[c].left[r] <= 0) {
                    finish(&all[c], r);
                    end = all[c].now;
                }
            }
        }
    }
    return end;
}

static void bound_ranks_take_as_long_as_in_small_ticks(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int ranks, chunks, copies, cores;
    } kinds[] = { { "1F1B", 4, 1, 1, 2 },          { "1F1B", 2, 1, 2, 2 },  { "GPipe", 3, 1, 2, 2 },
                  { "ZBVZeroBubble", 4, 2, 1, 2 }, { "1F1B", 1, 1, 4, 2 },  { "Interleaved1F1B", 2, 2, 3, 2 },
                  { "1F1B", 4, 1, 2, 4 },          { "GPipe", 4, 1, 1, 1 }, { "InterleavedZeroBubble", 2, 4, 3, 3 },
                  { "LoopedBFS", 4, 2, 1, 2 } };
    const double tick = 4e-3;
    for (int round = 0; round < 20; round++) {
        sl_schedule *schedule = NULL;
        sl_stage_cost costs[STAGES];
        double hops[STAGES], ends[STAGES], most = 0;
        int kind = round % 10, ranks = kinds[kind].ranks, count = ranks * kinds[kind].chunks,
            copies = kinds[kind].copies, cores = kinds[kind].cores;
        const sl_generate_options options = {
            .name = kinds[kind].name, .ranks = ranks, .microbatches = 8, .stages_per_rank = kinds[kind].chunks
        };
        assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
        draw_stages(count, costs, hops);
        const tune_stages stages = {
            .count = count, .costs = costs, .hops = hops, .crowded = round % 2 ? draw(1, 1.5) : 0, .waking = 2
        };
        assert_int_equal(sl_tune_share_bound(schedule, &stages, copies, cores, ends), SL_OK);
        for (int r = 0; r < ranks; r++)
            most = fmax(most, ends[r]);
        double ticked = end_bound_by_ticks(schedule, &stages, copies, cores, tick);
        double actions = 3.0 * count * options.microbatches * copies; /* each may end in the middle of a tick */
        if (fabs(ticked - most) > tick * actions)
            fail_msg("%s, %d ranks, %d copies, %d cores: %g, but %g in ticks", options.name, ranks, copies, cores, most,
                     ticked);
        sl_schedule_destroy(schedule);
    }
}

/* F takes a second, B two; one pipeline with a core a rank, then two with a core each. */
static void a_bound_rank_takes_no_other_core(void **state)
{
    (void)state;
    sl_schedule *schedule = NULL;
    sl_stage_cost costs[] = { { .f = 1, .b = 2 }, { .f = 1, .b = 2 } };
    double hops[2] = { 0 }, ends[2];
    const tune_stages stages = { .count = 2, .costs = costs, .hops = hops, .crowded = 1.5 };
    const sl_generate_options options = { .name = "GPipe", .ranks = 2, .microbatches = 2 };
    assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
    assert_int_equal(sl_tune_share_bound(schedule, &stages, 1, 2, ends), SL_OK); /* F F . B B and . F F B B */
    assert_true(fabs(ends[1] - 7) < 1e-9 && fabs(ends[0] - 9) < 1e-9);
    assert_int_equal(sl_tune_share_bound(schedule, &stages, 2, 2, ends), SL_OK);
    /* Each pipeline on a core: F, two F that share for 3 s, F, B, two B for 6 s, B. */
    assert_true(fabs(ends[1] - (1 + 3 + 1 + 2 + 6)) < 1e-9 && fabs(ends[0] - (1 + 3 + 1 + 2 + 6 + 2)) < 1e-9);
    sl_schedule_destroy(schedule);
}

/* Three microbatches through so many ranks, a second each. */
static void find_forward_ends(int ranks, double cores, double waking, double *ends)
{
    sl_schedule *schedule = NULL;
    sl_stage_cost costs[] = { { .f = 1 }, { .f = 1 }, { .f = 1 } };
    double hops[3] = { 0 };
    const tune_stages stages = { .count = ranks, .costs = costs, .hops = hops, .waking = waking };
    const sl_generate_options options = { .name = "ForwardOnly", .ranks = ranks, .microbatches = 3 };
    assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
    assert_int_equal(sl_tune_share_cores(schedule, &stages, 1, cores, ends), SL_OK);
    sl_schedule_destroy(schedule);
}

static void waking_slows_ranks_by_the_share_of_cores_that_are_busy(void **state)
{
    (void)state;
    double none[3], one[3], ends[3];
    /* One, two, three, two and one rank at work. */
    find_forward_ends(3, 2, 1.25, ends);
    const double two_cores_ends[] = { 1 + 1.25 + 1.5 * 1.25, 1 + 1.25 + 1.5 * 1.25 + 1.25,
                                      1 + 1.25 + 1.5 * 1.25 + 1.25 + 1 };
    for (int r = 0; r < 3; r++)
        assert_true(fabs(ends[r] - two_cores_ends[r]) < 1e-9);
    find_forward_ends(3, 3, 1.25, ends); /* two of three cores: half of the loss */
    const double three_cores_ends[] = { 1 + 1.125 + 1.25, 1 + 1.125 + 1.25 + 1.125, 1 + 1.125 + 1.25 + 1.125 + 1 };
    for (int r = 0; r < 3; r++)
        assert_true(fabs(ends[r] - three_cores_ends[r]) < 1e-9);
    find_forward_ends(3, 2, 0, none);
    find_forward_ends(3, 2, 1, one);
    assert_memory_equal(none, one, sizeof none);
    find_forward_ends(1, 2, 1.25, ends); /* nobody to wake */
    assert_true(ends[0] == 3);
}

/* ---- Turns on a GPU -------------------------------------------------------------------------- */

static void expect_ends(const char *name, int microbatches, const sl_stage_cost costs[2], const tune_turns *turns,
                        int devices, const double expected[2])
{
    sl_schedule *schedule = NULL;
    double hops[2] = { 0 }, ends[2];
    sl_stage_cost own[2] = { costs[0], costs[1] };
    const tune_stages stages = { .count = 2, .costs = own, .hops = hops };
    assert_int_equal(sl_schedule_generate(
                         &(sl_generate_options){ .name = name, .ranks = 2, .microbatches = microbatches }, &schedule),
                     SL_OK);
    assert_int_equal(sl_tune_take_turns(schedule, &stages, turns, devices, ends), SL_OK);
    for (int r = 0; r < 2; r++) {
        if (fabs(ends[r] - expected[r]) > 1e-9)
            fail_msg("%s: rank %d ends at %g, not at %g", name, r, ends[r], expected[r]);
    }
    sl_schedule_destroy(schedule);
}

static void processes_take_turns_on_a_gpu(void **state)
{
    (void)state;
    const tune_turns turns = { .slice = 3, .change = 0.5, .hand_over = 0.25 };
    const sl_stage_cost equal[2] = { { .f = 1, .b = 2 }, { .f = 1, .b = 2 } }, slow[2] = { { .f = 4 }, { .f = 1 } };
    /* F of rank 0; F and B of rank 1; B of rank 0: each hands over to the next. */
    expect_ends("1F1B", 1, equal, &turns, 1, (const double[]){ 6.5, 4.25 });
    /* On a GPU each they wait for messages alone. */
    expect_ends("1F1B", 1, equal, &turns, 2, (const double[]){ 6, 4 });
    /* Rank 1 could begin at 4, but rank 0 has the GPU until its second slice is over at 6: 6.5 to 7.5. Rank 0 has still 2 to
     * do, from 7.75 to 9.75, and rank 1 ends at 11. */
    expect_ends("ForwardOnly", 2, slow, &turns, 1, (const double[]){ 9.75, 11 });
}

/* In each tick one of the ranks that can work does. */
static double end_in_turns_by_ticks(const sl_schedule *schedule, const tune_stages *stages, const tune_turns *turns,
                                    double tick)
{
    ticking self = { .schedule = schedule, .stages = stages };
    int ranks = sl_schedule_ranks(schedule), whose = -1, idle = 0;
    double end = 0, begins = 0, until = 0; /* of the turn */
    for (int s = 0; s < STAGES; s++) {
        self.left[s] = -1;
        for (int m = 0; m < MICROBATCHES; m++)
            self.made[0][s][m] = self.made[1][s][m] = INFINITY;
    }
    while (idle < 1000) {
        bool works[STAGES] = { false }, has_work;
        int next = -1;
        for (int r = 0; r < ranks; r++)
            works[r] = can_work(&self, r);
        has_work = whose >= 0 && works[whose];
        for (int k = ranks; k >= 1; k--) {
            int r = (whose + k + ranks) % ranks;
            next = r != whose && works[r] ? r : next;
        }
        if (self.now >= begins && (!has_work || self.now >= until)) {
            if (next >= 0) {
                begins = self.now + (whose < 0 ? 0 : has_work ? turns->change : turns->hand_over);
                whose = next;
            }
            until = fmax(begins, self.now) + turns->slice;
        }
        idle = whose >= 0 && works[whose] ? 0 : idle + 1;
        self.now += tick;
        if (whose < 0 || self.now <= begins || !works[whose])
            continue;
        self.left[whose] -= tick;
        if (self.left[whose] <= 0) {
            finish(&self, whose);
            end = self.now;
        }
    }
    return end;
}

static void turns_take_as_long_as_in_small_ticks(void **state)
{
    (void)state;
    static const char *const names[] = { "1F1B", "GPipe", "ZBVZeroBubble", "Interleaved1F1B", "DualPipeV" };
    const double tick = 2e-4;
    for (int round = 0; round < 5; round++) {
        sl_schedule *schedule = NULL;
        sl_stage_cost costs[STAGES];
        double hops[STAGES] = { 0 }, ends[STAGES], most = 0;
        int ranks = round < 2 ? 4 : 2, count = 4;
        const sl_generate_options options = { .name = names[round], .ranks = ranks, .microbatches = 8 };
        const tune_turns turns = { .slice = draw(1, 3), .change = draw(0.2, 0.4), .hand_over = draw(0.1, 0.2) };
        assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
        for (int s = 0; s < count; s++)
            costs[s] = (sl_stage_cost){ .f = draw(0.5, 2), .i = draw(0.5, 2), .w = draw(0.5, 2), .b = draw(1, 4) };
        const tune_stages stages = { .count = count, .costs = costs, .hops = hops };
        assert_int_equal(sl_tune_take_turns(schedule, &stages, &turns, 1, ends), SL_OK);
        for (int r = 0; r < ranks; r++)
            most = fmax(most, ends[r]);
        double ticked = end_in_turns_by_ticks(schedule, &stages, &turns, tick);
        if (fabs(ticked - most) > 0.02 * most)
            fail_msg("%s, %d ranks: %g, but %g in ticks", options.name, ranks, most, ticked);
        sl_schedule_destroy(schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_take_turns_on_a_gpu),
        cmocka_unit_test(turns_take_as_long_as_in_small_ticks),
        cmocka_unit_test(ranks_that_share_cores_take_as_long_as_in_small_ticks),
        cmocka_unit_test(bound_ranks_take_as_long_as_in_small_ticks),
        cmocka_unit_test(a_bound_rank_takes_no_other_core),
        cmocka_unit_test(waking_slows_ranks_by_the_share_of_cores_that_are_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
