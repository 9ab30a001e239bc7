/* Time of a step: ranks that share processors beside a simulation in small ticks, and the parts that come after the
 * pipeline, with what ranks of this machine cost each other. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "support/scratch.h"

/* ---- Shared processors ----------------------------------------------------------------------- */

enum { STAGES = 8, MICROBATCHES = 8 };

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

static double end_by_ticks(const sl_schedule *schedule, const tune_stages *stages, int copies, double cores,
                           double tick)
{
    ticking self = { .schedule = schedule, .stages = stages };
    int ranks = sl_schedule_ranks(schedule), working = 1, idle = 0;
    double end = 0;
    for (int s = 0; s < STAGES; s++) {
        self.left[s] = -1;
        for (int m = 0; m < MICROBATCHES; m++)
            self.made[0][s][m] = self.made[1][s][m] = INFINITY;
    }
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
        for (int s = 0; s < count; s++) {
            costs[s] = (sl_stage_cost){ .f = draw(0.5, 2), .i = draw(0.5, 2), .w = draw(0.5, 2), .b = draw(1, 4) };
            hops[s] = draw(0, 0.5);
        }
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

/* ---- Parts of a step ------------------------------------------------------------------------- */

static const sl_cluster two_cores = {
    .machines = 1, .devices = 2, .memory = 1e9, .flops_per_s = 1e9, .bytes_per_s = 1e9, .shared_cores = 2
};

/* A model of `stages` equal stages on two ranks, with what the machine costs. */
static tune_candidate time_of(const sl_cluster *cluster, tune_candidate candidate, const char *name)
{
    sl_schedule *schedule = NULL;
    sl_stage_cost costs[4];
    double zeros[4] = { 0 }, bytes[4], elements[4];
    int count = candidate.pp * candidate.chunks;
    for (int s = 0; s < count; s++) {
        costs[s] = (sl_stage_cost){ .f = 1, .i = 1, .w = 1, .b = 2, .activation = 1 };
        bytes[s] = 1000;
        elements[s] = 250;
    }
    const tune_stages stages = { .count = count,
                                 .costs = costs,
                                 .hops = zeros,
                                 .kept = zeros,
                                 .scratch = zeros,
                                 .params = bytes,
                                 .grads = bytes,
                                 .elements = elements };
    const tune_setting setting = {
        .cluster = cluster,
        .update_seconds = 0.001,
        .machine = { .round = 0.01,
                     .exchanges = { { .dp = 2, .all_reduce = 0.003, .reduce_scatter = 0.001, .all_gather = 0.0005 } },
                     .exchange_count = 1 }
    };
    const sl_generate_options options = { .name = name,
                                          .ranks = candidate.pp,
                                          .microbatches = (int)candidate.microbatches,
                                          .stages_per_rank = candidate.chunks };
    assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
    assert_int_equal(sl_tune_time(&setting, &stages, schedule, &candidate), SL_OK);
    sl_schedule_destroy(schedule);
    return candidate;
}

static void expect_near(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-9)
        fail_msg("%g, not %g", value, wanted);
}

static void replicas_pay_for_what_was_measured_of_their_exchange(void **state)
{
    (void)state;
    tune_candidate one = { .pp = 1, .dp = 2, .chunks = 1, .microbatches = 4, .rows = 1 };
    tune_candidate sums = time_of(&two_cores, one, "1F1B");
    expect_near(sums.work + sums.idle, 12);
    expect_near(sums.exchange, 3 + 4 * 0.01); /* 1000 bytes; rounds: start, loss, norm, notes */
    expect_near(sums.update, 0.25);
    one.shard = SL_SHARD_OPTIMIZER;
    tune_candidate shares = time_of(&two_cores, one, "1F1B");
    expect_near(shares.exchange, 1.5 + 4 * 0.01);
    expect_near(shares.update, 0.125);
    tune_candidate pipeline = { .pp = 2, .dp = 1, .chunks = 1, .microbatches = 4, .rows = 1 };
    expect_near(time_of(&two_cores, pipeline, "1F1B").exchange, 4 * 0.01);
}

/* Two stages a rank: a rank with a core to spare exchanges the last stage while it works on the first. A rank that does it
 * itself has its waits alone for that, and the rest comes on top. */
static void a_rank_without_a_spare_core_exchanges_while_it_waits(void **state)
{
    (void)state;
    const tune_candidate layout = { .pp = 1, .dp = 2, .chunks = 2, .microbatches = 4, .rows = 1 };
    sl_cluster spare = two_cores;
    spare.shared_cores = 4;
    double own = time_of(&two_cores, layout, "Interleaved1F1B").exchange - 4 * 0.01;
    double beside = time_of(&spare, layout, "Interleaved1F1B").exchange - 4 * 0.01;
    expect_near(own, 6); /* it never waits */
    assert_true(beside >= 3 - 1e-9 && beside < own);
}

/* ---- This machine ---------------------------------------------------------------------------- */

enum { BASE = 7 };
static char text_key[300], out_key[300];
static const char *base[BASE] = { text_key,          out_key,        "model.n_layer=1", "model.n_head=2",
                                  "model.n_embd=64", "batch.seq=32", "batch.size=4" };

static sl_tune *make_tune(bool measure, bool spread, int top)
{
    static const char tale[] = "There was a well, and nobody knew how deep it was. A stone said: I do.\n";
    sl_tune *tune = NULL;
    scratch_write(scratch_path("tale.txt"), tale, sizeof tale - 1);
    snprintf(text_key, sizeof text_key, "data.text=%s", scratch_path("tale.txt"));
    snprintf(out_key, sizeof out_key, "run.out=%s", scratch_path("out"));
    base[BASE - 1] = measure ? "batch.size=2" : "batch.size=8";
    const sl_cluster four = {
        .machines = 1, .devices = 4, .memory = 1e9, .flops_per_s = 1e11, .bytes_per_s = 1e10, .inside = { 1e-6, 1e10 }
    };
    const sl_tune_options options = { .overrides = base,
                                      .override_count = BASE,
                                      .cluster = measure ? NULL : &four,
                                      .ranks = measure ? 2 : 4,
                                      .measure = measure,
                                      .top = top,
                                      .spread = spread,
                                      .budget_seconds = 0.01 };
    if (sl_tune_create(&options, &tune) != SL_OK)
        fail_msg("%s", sl_error_message());
    return tune;
}

enum { TOP_MEASURED = 3 };
static sl_tune *measured; /* made once: measuring takes time */

static int measure_once(void **state)
{
    (void)state;
    measured = make_tune(true, false, TOP_MEASURED);
    return 0;
}

static int forget_measured(void **state)
{
    (void)state;
    sl_tune_destroy(measured);
    return 0;
}

static void everything_that_ranks_cost_each_other_is_measured(void **state)
{
    (void)state;
    const sl_tune *tune = measured;
    const tune_machine *machine = &tune->setting.machine;
    assert_int_equal(machine->exchange_count, 1);
    assert_int_equal(machine->exchanges[0].dp, 2);
    assert_true(machine->round > 0 && machine->round < 1 && machine->update > 0 && machine->update < 1e-3);
    assert_true(machine->messages.latency > 0 && machine->messages.bandwidth > 0);
    assert_true(machine->exchanges[0].all_reduce > 0 && machine->exchanges[0].reduce_scatter > 0 &&
                machine->exchanges[0].all_gather > 0);
    assert_true(tune->setting.update_seconds == machine->update);
    assert_true(tune->cluster.inside.latency == machine->messages.latency);
    assert_true(tune->rank_moments.count > 1);
    assert_true(machine->round == sl_tune_moments_quantile(&tune->rank_moments, 0, 0.25));
    assert_true(tune->ranks > tune->cluster.shared_cores || machine->waking == 0);
    double packing[2] = { 0 }; /* steps of one microbatch, and of several: these pack weights once */
    for (int i = 0; i < tune->cost_count; i++) {
        for (int kind = 0; kind < tune->model.kind_count; kind++)
            packing[tune->costs[i].packs] += tune->costs[i].kinds[kind].pack_f + tune->costs[i].kinds[kind].pack_i;
    }
    assert_true(packing[0] == 0 && packing[1] > 0);
}

/* Whatever fails, in whichever thread, all of them end, the error is the first one, and nothing is changed. */
static void failures_while_the_machine_is_measured_end_all_threads(void **state)
{
    (void)state;
    sl_tune *tune = make_tune(false, false, 1);
    int failures = 0;
    for (int64_t n = 0;; n += 1 + n) {
        tune_machine machine = { .round = 7 };
        tune_moments moments = { 0 };
        sl_alloc_fail_after(n);
        sl_status status = sl_tune_measure_machine(&tune->model, 3, 2, &moments, &machine);
        sl_alloc_fail_after(-1);
        if (status == SL_OK) {
            assert_true(machine.waking >= 1 && moments.count == 1); /* three ranks share two cores */
            sl_tune_moments_clear(&moments);
            break;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
        assert_int_equal(moments.count, 0);
        assert_true(machine.round == 7 && machine.update == 0 && machine.waking == 0);
        failures++;
    }
    assert_true(failures > 5);
    sl_tune_destroy(tune);
}

static void quantiles_of_moments_lie_between_the_two_nearest(void **state)
{
    (void)state;
    tune_moments moments = { 0 };
    static const double values[][2] = { { 5, 1 }, { 1, 1 }, { 1e9, 2 }, { 7, 2 }, { 3, 2 } };
    static const double medians[][2] = { { 5, 1 }, { 3, 1 }, { 5, 1 }, { 6, 1.5 }, { 5, 2 } };
    assert_true(sl_tune_moments_quantile(&moments, 0, 0.5) == 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(sl_tune_moments_add(&moments, values[i], 2), SL_OK);
        for (int column = 0; column < 2; column++)
            assert_true(sl_tune_moments_quantile(&moments, column, 0.5) == medians[i][column]);
    }
    assert_true(sl_tune_moments_quantile(&moments, 0, 0.25) == 3);
    assert_true(sl_tune_moments_quantile(&moments, 0, 0.125) == 2);
    assert_true(sl_tune_moments_quantile(&moments, 0, 1) == 1e9);
    sl_tune_moments_clear(&moments);
}

/* All moments so far become `factor` times as long. */
static void scale_moments(sl_tune *tune, double factor)
{
    for (int i = 0; i < tune->cost_count; i++) {
        tune_moments *moments = &tune->costs[i].moments;
        for (int k = 0; k < moments->count * moments->width; k++)
            moments->values[k] *= factor;
    }
}

/* A moment that is disturbed does not count among others. What was chosen stays as it is. */
static void entries_are_timed_again_by_the_medians_of_the_moments(void **state)
{
    (void)state;
    enum { TOP = TOP_MEASURED };
    sl_tune *tune = measured;
    tune_entry before[TOP];
    memcpy(before, tune->entries, sizeof before);
    scale_moments(tune, 1e6);
    for (int i = 0; i < TOP; i++)
        assert_int_equal(sl_tune_measure_entry(tune, i), SL_OK);
    assert_int_equal(sl_tune_time_entries(tune), SL_OK);
    for (int i = 0; i < TOP; i++) /* most moments were that slow */
        assert_true(tune->entries[i].candidate.work > 1000 * before[i].candidate.work);
    for (int i = 0; i < TOP; i++)
        sl_tune_forget_entry(tune, i);
    for (int moment = 0; moment < 3; moment++) {
        for (int i = 0; i < TOP; i++)
            assert_int_equal(sl_tune_measure_entry(tune, i), SL_OK);
        if (moment == 0)
            scale_moments(tune, 1e6);
    }
    assert_int_equal(sl_tune_time_entries(tune), SL_OK);
    for (int i = 0; i < TOP; i++) {
        const tune_entry *entry = &tune->entries[i];
        assert_true(entry->candidate.work < 1000 * before[i].candidate.work);
        assert_true(entry->candidate.memory == before[i].candidate.memory);
        assert_true(entry->cuts == before[i].cuts && entry->schedule == before[i].schedule);
    }
}

static void counted_costs_do_not_change_if_they_are_measured_again(void **state)
{
    (void)state;
    sl_tune *tune = make_tune(false, false, 2);
    const tune_entry before = tune->entries[1];
    assert_int_equal(sl_tune_measure_layers(tune), SL_OK);
    assert_int_equal(sl_tune_measure_entry(tune, 1), SL_OK);
    assert_int_equal(sl_tune_measure_ranks(tune), SL_OK);
    assert_int_equal(sl_tune_time_entries(tune), SL_OK);
    assert_true(tune->entries[1].candidate.seconds == before.candidate.seconds);
    assert_true(tune->entries[1].bound == before.bound && tune->setting.machine.round == 0);
    sl_tune_destroy(tune);
}

static void a_spread_goes_from_the_fastest_to_the_slowest_in_even_steps(void **state)
{
    (void)state;
    enum { TOP = 8 };
    sl_tune *best = make_tune(false, false, 1), *tune = make_tune(false, true, TOP);
    double first = sl_tune_get(best, 0).seconds, last = sl_tune_get(tune, TOP - 1).seconds;
    assert_int_equal(sl_tune_count(tune), TOP);
    assert_true(sl_tune_get(tune, 0).seconds == first && last > 1.5 * first);
    double step = (last - first) / (TOP - 1), widest = 0;
    for (int i = 1; i < TOP; i++)
        widest = fmax(widest, sl_tune_get(tune, i).seconds - sl_tune_get(tune, i - 1).seconds);
    assert_true(widest < 3 * step);
    sl_tune_destroy(tune);
    sl_tune_destroy(best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_take_turns_on_a_gpu),
        cmocka_unit_test(turns_take_as_long_as_in_small_ticks),
        cmocka_unit_test(ranks_that_share_cores_take_as_long_as_in_small_ticks),
        cmocka_unit_test(waking_slows_ranks_by_the_share_of_cores_that_are_busy),
        cmocka_unit_test(replicas_pay_for_what_was_measured_of_their_exchange),
        cmocka_unit_test(a_rank_without_a_spare_core_exchanges_while_it_waits),
        cmocka_unit_test(everything_that_ranks_cost_each_other_is_measured),
        cmocka_unit_test(quantiles_of_moments_lie_between_the_two_nearest),
        cmocka_unit_test(entries_are_timed_again_by_the_medians_of_the_moments),
        cmocka_unit_test(counted_costs_do_not_change_if_they_are_measured_again),
        cmocka_unit_test(failures_while_the_machine_is_measured_end_all_threads),
        cmocka_unit_test(a_spread_goes_from_the_fastest_to_the_slowest_in_even_steps),
    };
    return cmocka_run_group_tests(tests, measure_once, forget_measured);
}
