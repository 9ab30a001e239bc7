/* Time of a step: the parts that come after the pipeline, with what ranks of this machine cost each other. */
#include "tune/tune.h"

#include "base/alloc.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/scratch.h"

/* ---- Parts of a step ------------------------------------------------------------------------- */

static const sl_cluster two_cores = {
    .machines = 1, .devices = 2, .memory = 1e9, .flops_per_s = 1e9, .bytes_per_s = 1e9, .shared_cores = 2
};

/* A model of `stages` equal stages on two ranks, with what the machine costs. */
static tune_candidate time_of_bound(const sl_cluster *cluster, int bound_cores, tune_candidate candidate,
                                    const char *name)
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
                                 .elements = elements,
                                 .kernels = zeros };
    const tune_setting setting = {
        .cluster = cluster,
        .update_seconds = 0.001,
        .bound_cores = bound_cores,
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

static tune_candidate time_of(const sl_cluster *cluster, tune_candidate candidate, const char *name)
{
    return time_of_bound(cluster, 0, candidate, name);
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

/* Ranks 0 and 2 on one core, rank 1 on the other: it cannot help them. */
static void the_fullest_core_counts_if_ranks_are_bound(void **state)
{
    (void)state;
    const tune_candidate layout = { .pp = 3, .dp = 1, .chunks = 1, .microbatches = 1, .rows = 1 };
    tune_candidate free_ranks = time_of(&two_cores, layout, "1F1B");
    tune_candidate bound = time_of_bound(&two_cores, 2, layout, "1F1B");
    expect_near(free_ranks.update, 0.375);
    expect_near(bound.update, 0.5);
    expect_near(free_ranks.work, 4.5);
    expect_near(bound.work, 6);
    expect_near(bound.work + bound.idle, 9); /* one at a time */
}

/* ---- This machine ---------------------------------------------------------------------------- */

enum { BASE = 7 };
static char text_key[300], out_key[300];
static const char *base[BASE] = { text_key,          out_key,        "model.n_layer=1", "model.n_head=2",
                                  "model.n_embd=64", "batch.seq=32", "batch.size=4" };

/* measured_ranks: of this machine; 0: counted costs of another one. */
static sl_tune *make_tune_of(int measured_ranks, bool spread, int top)
{
    bool measure = measured_ranks > 0;
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
                                      .ranks = measure ? measured_ranks : 4,
                                      .measure = measure,
                                      .top = top,
                                      .spread = spread,
                                      .budget_seconds = 0.01 };
    if (sl_tune_create(&options, &tune) != SL_OK)
        fail_msg("%s", sl_error_message());
    return tune;
}

static sl_tune *make_tune(bool measure, bool spread, int top)
{
    return make_tune_of(measure ? 2 : 0, spread, top);
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

static void ranks_are_predicted_as_they_are_bound(void **state)
{
    (void)state;
    int cores = (int)sl_tune_cores(), ranks = 0;
    for (int wanted = 2; wanted <= 4 && ranks == 0; wanted++) /* as many as the model has parts for */
        ranks = wanted > cores && wanted % cores == 0 ? wanted : 0;
    if (ranks == 0)
        skip();
    for (int bound = 0; bound < 2; bound++) {
        setenv("SLUICE_BIND", bound ? "auto" : "none", 1);
        sl_tune *tune = make_tune_of(ranks, false, 1);
        assert_int_equal(tune->setting.bound_cores, bound ? cores : 0);
        assert_true(bound || cores == 1 ? tune->setting.machine.waking == 0 : tune->setting.machine.waking >= 1);
        sl_tune_destroy(tune);
    }
    unsetenv("SLUICE_BIND");
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
        cmocka_unit_test(replicas_pay_for_what_was_measured_of_their_exchange),
        cmocka_unit_test(a_rank_without_a_spare_core_exchanges_while_it_waits),
        cmocka_unit_test(the_fullest_core_counts_if_ranks_are_bound),
        cmocka_unit_test(ranks_are_predicted_as_they_are_bound),
        cmocka_unit_test(everything_that_ranks_cost_each_other_is_measured),
        cmocka_unit_test(quantiles_of_moments_lie_between_the_two_nearest),
        cmocka_unit_test(entries_are_timed_again_by_the_medians_of_the_moments),
        cmocka_unit_test(counted_costs_do_not_change_if_they_are_measured_again),
        cmocka_unit_test(failures_while_the_machine_is_measured_end_all_threads),
        cmocka_unit_test(a_spread_goes_from_the_fastest_to_the_slowest_in_even_steps),
    };
    return cmocka_run_group_tests(tests, measure_once, forget_measured);
}
