/* Tuning: cuts, shared processors, clusters, and choices that train takes as they are. */
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

/* ---- Cuts ------------------------------------------------------------------------------------ */

/* The least maximum over all ways to cut what begins at `first` into so many stages. */
static double least_by_trying(const double *weights, int units, int first, int stages)
{
    double sum = 0, best = INFINITY;
    if (stages == 1) {
        for (int u = first; u < units; u++)
            sum += weights[u];
        return sum;
    }
    for (int end = first + 1; units - end >= stages - 1; end++) {
        sum += weights[end - 1];
        best = fmin(best, fmax(sum, least_by_trying(weights, units, end, stages - 1)));
    }
    return best;
}

static void the_costliest_stage_is_as_cheap_as_any_cut_allows(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 200; round++) {
        int units = 3 + rand() % 8, stages = 1 + rand() % units, cuts[16] = { 0 };
        double weights[16], most = 0;
        for (int u = 0; u < units; u++)
            weights[u] = rand() % 5 == 0 ? 0 : rand() % 100;
        assert_int_equal(sl_tune_cut(&(tune_cut_costs){ .seconds = weights }, units, stages, cuts), SL_OK);
        for (int s = 0; s < stages; s++) {
            int first = s == 0 ? 0 : cuts[s - 1], end = s + 1 < stages ? cuts[s] : units;
            double sum = 0;
            assert_true(first < end); /* no stage is empty */
            for (int u = first; u < end; u++)
                sum += weights[u];
            most = fmax(most, sum);
        }
        double least = least_by_trying(weights, units, 0, stages);
        if (fabs(most - least) > 1e-6 * least)
            fail_msg("round %d: %g, but %g is possible", round, most, least);
    }
    int cuts[4];
    double weights[2] = { 1, 1 };
    assert_int_equal(sl_tune_cut(&(tune_cut_costs){ .seconds = weights }, 2, 3, cuts), SL_ERR_ARGUMENT);
}

/* Four equal units on three stages: the first stage holds most for its microbatches, so it is not the one with two. */
static void the_fullest_stage_is_smaller_if_that_costs_no_time(void **state)
{
    (void)state;
    const double ones[] = { 1, 1, 1, 1 }, in_flight[] = { 3, 2, 1 };
    tune_cut_costs costs = { .seconds = ones, .fixed = ones, .held = ones, .in_flight = in_flight };
    int cuts[2];
    assert_int_equal(sl_tune_cut(&costs, 4, 3, cuts), SL_OK);
    assert_int_equal(cuts[0], 1);
    assert_int_equal(cuts[1], 2);
}

/* ---- Shared processors ----------------------------------------------------------------------- */

static void time_of(const char *name, int ranks, int microbatches, int copies, double cores, double *out)
{
    sl_schedule *schedule = NULL;
    sl_stage_cost costs[8];
    double hops[8], ends[8];
    tune_stages stages = { .count = ranks, .costs = costs, .hops = hops };
    for (int s = 0; s < ranks; s++) {
        costs[s] = (sl_stage_cost){ .f = 1 + s, .i = 2, .w = 1, .b = 3 };
        hops[s] = 0.25;
    }
    const sl_generate_options options = { .name = name, .ranks = ranks, .microbatches = microbatches };
    assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
    assert_int_equal(sl_tune_share_cores(schedule, &stages, copies, cores, ends), SL_OK);
    *out = 0;
    for (int r = 0; r < ranks; r++)
        *out = fmax(*out, ends[r]);
    sl_costs all;
    sl_timeline *timeline = NULL;
    sl_costs_init(&all);
    all.stages = costs;
    all.edge_sizes = hops;
    all.bandwidth = 1;
    if (cores >= ranks * copies) { /* then it is the simulator's time */
        assert_int_equal(sl_schedule_simulate(schedule, &all, NULL, 0, &timeline), SL_OK);
        assert_true(fabs(sl_timeline_makespan(timeline) - *out) < 1e-9);
        sl_timeline_destroy(timeline);
    }
    sl_schedule_destroy(schedule);
}

static void ranks_that_share_cores_take_at_least_the_work_over_the_cores(void **state)
{
    (void)state;
    static const char *const names[] = { "1F1B", "GPipe" };
    for (int n = 0; n < 2; n++) {
        double alone, shared, one;
        double work = 0;
        for (int s = 0; s < 4; s++)
            work += 8 * (1 + s + 3);
        time_of(names[n], 4, 8, 1, 4, &alone);
        time_of(names[n], 4, 8, 1, 2, &shared);
        time_of(names[n], 4, 8, 1, 1, &one);
        assert_true(shared >= alone && shared >= work / 2);
        assert_true(fabs(one - work) < 1 && one >= work); /* one core: all work, and a hop that nothing hides */
        time_of(names[n], 4, 8, 3, 1, &shared);
        assert_true(fabs(shared - 3 * work) < 1);
    }
}

/* Ranks that share one GPU: at each moment one of them can go on, so the GPU is never idle and all work adds up. */
static void ranks_on_one_device_take_the_sum_of_their_work(void **state)
{
    (void)state;
    enum { RANKS = 4, MICROBATCHES = 8, STAGES = 2 * RANKS };
    for (int n = 0; sl_generator_name(n); n++) {
        sl_schedule *schedule = NULL;
        sl_stage_cost costs[STAGES];
        double hops[STAGES] = { 0 }, ends[RANKS], last = 0, work = 0;
        const sl_generate_options options = { .name = sl_generator_name(n),
                                              .ranks = RANKS,
                                              .microbatches = MICROBATCHES };
        assert_int_equal(sl_schedule_generate(&options, &schedule), SL_OK);
        const tune_stages stages = { .count = sl_schedule_stages(schedule), .costs = costs, .hops = hops };
        for (int s = 0; s < stages.count; s++) {
            costs[s] = (sl_stage_cost){ .f = 1 + s, .i = 2, .w = 1.5, .b = 3.5 };
            work += MICROBATCHES * (costs[s].f + (sl_schedule_has_backward(schedule) ? costs[s].b : 0));
        }
        assert_int_equal(sl_tune_share_cores(schedule, &stages, 1, 1, ends), SL_OK);
        for (int r = 0; r < RANKS; r++)
            last = fmax(last, ends[r]);
        if (fabs(last - work) > 1e-9 * work)
            fail_msg("%s: %g instead of %g", sl_generator_name(n), last, work);
        sl_schedule_destroy(schedule);
    }
}

/* ---- Clusters -------------------------------------------------------------------------------- */

static const char cluster_text[] = "machines: 2\ndevices: 8\nmemory: 80GB\nflops: 4e14\nbandwidth: 3e12\n"
                                   "inside: {latency: 3e-6, bandwidth: 4.5e11}\n";

static sl_status load_cluster(const char *text, sl_cluster *out)
{
    scratch_write(scratch_path("cluster.yaml"), text, strlen(text));
    return sl_cluster_load(scratch_path("cluster.yaml"), out);
}

static void a_cluster_is_read_and_mistakes_name_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } mistakes[] = {
        { "", "", "between.bandwidth is missing, and there are 2 machines" },
        { "machines: 2\n", "machines: 1\nmachines: 1\n", "cluster.yaml:2:1: machines: this is given a second time" },
        { "machines: 2\n", "", "machines is missing" },
        { "devices: 8", "devices: 0", "cluster.yaml:2:10: devices: 0 is outside" },
        { "devices: 8", "devices: 8\ndevice: tpu", "cluster.yaml:3:9: device: this is gpu or cpu" },
        { "memory: 80GB", "memory: much", "cluster.yaml:3:9: memory: 'much'" },
        { "flops:", "flop:", "flop: there is no such key" },
        { "latency", "late", "late: there is no such key; a link has" },
        { "inside: {latency: 3e-6, bandwidth: 4.5e11}", "inside: 3", "keys with values are expected" },
        { "bandwidth: 3e12", "bandwidth: [1]", "one value is expected" },
    };
    char text[400];
    sl_cluster cluster = { .machines = 77 };
    snprintf(text, sizeof text, "%sbetween: {latency: 1e-5, bandwidth: 5e10}\n", cluster_text);
    assert_int_equal(load_cluster(text, &cluster), SL_OK);
    assert_int_equal(cluster.machines, 2);
    assert_int_equal(cluster.devices, 8);
    assert_false(cluster.processors);
    assert_true(cluster.memory == 80e9 && cluster.between.bandwidth == 5e10 && cluster.inside.latency == 3e-6);
    assert_true(cluster.kernel_seconds == SL_GPU_KERNEL_SECONDS);
    snprintf(text, sizeof text, "%sbetween: {latency: 1e-5, bandwidth: 5e10}\nkernel: 5e-6\n", cluster_text);
    assert_int_equal(load_cluster(text, &cluster), SL_OK);
    assert_true(cluster.kernel_seconds == 5e-6);
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const char *at = strstr(cluster_text, mistakes[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - cluster_text), cluster_text, mistakes[i].to,
                 at + strlen(mistakes[i].from));
        cluster.machines = 77;
        assert_int_not_equal(load_cluster(text, &cluster), SL_OK);
        if (!strstr(sl_error_message(), mistakes[i].message))
            fail_msg("'%s' is not in '%s'", mistakes[i].message, sl_error_message());
        assert_int_equal(cluster.machines, 77);
    }
}

/* ---- Choices --------------------------------------------------------------------------------- */

enum { BASE = 7 };
static char text_key[300], out_key[300];
static const char *base[BASE + SL_TUNE_LINES + 1] = { text_key,         out_key,           "model.n_layer=3",
                                                      "model.n_head=2", "model.n_embd=32", "batch.seq=16",
                                                      "batch.size=8" };

static void write_text(void)
{
    static const char tale[] = "There was a well, and nobody knew how deep it was. A stone said: I do.\n";
    scratch_write(scratch_path("tale.txt"), tale, sizeof tale - 1);
    snprintf(text_key, sizeof text_key, "data.text=%s", scratch_path("tale.txt"));
    snprintf(out_key, sizeof out_key, "run.out=%s", scratch_path("out"));
}

static const sl_cluster two_machines = { .machines = 2,
                                         .devices = 2,
                                         .memory = 1e9,
                                         .flops_per_s = 1e11,
                                         .bytes_per_s = 1e10,
                                         .inside = { 1e-6, 1e10 },
                                         .between = { 1e-5, 1e9 } };

/* What train makes of the plan's file: the memory of its fullest rank. Checkpoints are copied to the machines' memory,
 * which is not that of a GPU. */
static double memory_of_file(const char *path, const char *device, const sl_tune_choice *choice)
{
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    char line[400];
    snprintf(line, sizeof line, "run.plan=%s", path);
    base[BASE] = line;
    if (sl_train_config_load(NULL, base, BASE + 1, &config) != SL_OK ||
        sl_train_plan_create(config, device, &plan) != SL_OK)
        fail_msg("%s", sl_error_message());
    assert_int_equal(config->parallel.pp, choice->pp);
    assert_int_equal(config->parallel.dp, choice->dp);
    assert_int_equal(config->batch.microbatches, choice->microbatches);
    assert_int_equal(sl_train_plan_stages(plan), choice->pp * choice->stages_per_rank);
    double most = 0;
    for (int r = 0; r < choice->pp; r++) {
        sl_plan_memory memory = sl_train_plan_memory(plan, r * choice->dp);
        assert_true(memory.checkpoint > 0);
        most = fmax(most, (double)(memory.device > 0 ? memory.device : memory.total));
    }
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    return most;
}

static void every_choice_is_a_file_that_train_takes_and_has_the_memory_it_names(void **state)
{
    (void)state;
    sl_tune *tune = NULL;
    write_text();
    const sl_tune_options options = {
        .overrides = base, .override_count = BASE, .cluster = &two_machines, .top = 12, .budget_seconds = 0.01
    };
    assert_int_equal(sl_tune_create(&options, &tune), SL_OK);
    assert_int_equal(sl_tune_count(tune), 12);
    double before = 0;
    bool searched = false;
    for (int i = 0; i < sl_tune_count(tune); i++) {
        sl_tune_choice choice = sl_tune_get(tune, i);
        assert_int_equal(choice.pp * choice.dp, 4);
        assert_int_equal(choice.microbatches * choice.rows * choice.dp, 8);
        assert_true(choice.seconds >= before && choice.memory <= two_machines.memory);
        assert_true(fabs(choice.work + choice.idle + choice.exchange + choice.update - choice.seconds) < 1e-9);
        assert_true(choice.seconds >= choice.bound * (1 - 1e-9));
        before = choice.seconds;
        searched = searched || strcmp(choice.schedule, "found") == 0;
        assert_int_equal(sl_tune_save(tune, i, scratch_path("plan.yaml")), SL_OK);
        assert_true(memory_of_file(scratch_path("plan.yaml"), "h200", &choice) == choice.memory);
    }
    assert_true(searched); /* a schedule in a file beside the plan was among them */
    sl_tune_destroy(tune);
}

/* If every op takes a millisecond however little it does, more microbatches only cost more of them. */
static void time_of_each_kernel_speaks_for_few_microbatches(void **state)
{
    (void)state;
    sl_tune *tune = NULL;
    double seconds[2];
    int64_t microbatches[2];
    write_text();
    for (int slow = 0; slow < 2; slow++) {
        sl_cluster cluster = two_machines;
        cluster.kernel_seconds = slow * 1e-3;
        const sl_tune_options options = {
            .overrides = base, .override_count = BASE, .cluster = &cluster, .top = 1, .budget_seconds = 0.01
        };
        assert_int_equal(sl_tune_create(&options, &tune), SL_OK);
        seconds[slow] = sl_tune_get(tune, 0).seconds;
        microbatches[slow] = sl_tune_get(tune, 0).microbatches;
        sl_tune_destroy(tune);
    }
    assert_true(seconds[1] > seconds[0] + 50e-3); /* three layers have more ops than that */
    assert_int_equal(microbatches[1], 1);
}

/* What a checkpoint is written from lies in the memory of the machine: a GPU does not give any for it, a processor does. */
static void a_cluster_of_processors_counts_the_copy_for_checkpoints(void **state)
{
    (void)state;
    sl_tune *tune = NULL;
    write_text();
    for (int processors = 0; processors < 2; processors++) {
        sl_cluster cluster = two_machines;
        char text[400];
        snprintf(text, sizeof text, "%sbetween: {latency: 1e-5, bandwidth: 5e10}\ndevice: %s\n", cluster_text,
                 processors ? "cpu" : "gpu");
        sl_cluster read = { .machines = 0 };
        assert_int_equal(load_cluster(text, &read), SL_OK);
        cluster.processors = read.processors;
        assert_true(read.kernel_seconds == (processors ? 0 : SL_GPU_KERNEL_SECONDS));
        const sl_tune_options options = {
            .overrides = base, .override_count = BASE, .cluster = &cluster, .top = 1, .budget_seconds = 0.01
        };
        assert_int_equal(sl_tune_create(&options, &tune), SL_OK);
        sl_tune_choice choice = sl_tune_get(tune, 0);
        assert_int_equal(sl_tune_save(tune, 0, scratch_path("plan.yaml")), SL_OK);
        assert_true(memory_of_file(scratch_path("plan.yaml"), processors ? "any-cpu" : "h200", &choice) ==
                    choice.memory);
        sl_tune_destroy(tune);
    }
}

static void little_memory_is_kept_and_too_little_says_what_would_do(void **state)
{
    (void)state;
    sl_tune *tune = NULL;
    write_text();
    sl_cluster cluster = two_machines;
    cluster.processors = true; /* no driver takes more than the model */
    sl_tune_options options = {
        .overrides = base, .override_count = BASE, .cluster = &cluster, .top = 3, .budget_seconds = 0.01
    };
    double least = INFINITY;
    for (cluster.memory = 1e6; cluster.memory > 1e3; cluster.memory *= 0.8) {
        sl_status status = sl_tune_create(&options, &tune);
        if (status != SL_OK) {
            assert_int_equal(status, SL_ERR_UNSUPPORTED);
            assert_non_null(strstr(sl_error_message(), "nothing fits: the least that"));
            break;
        }
        for (int i = 0; i < sl_tune_count(tune); i++) {
            assert_true(sl_tune_get(tune, i).memory <= cluster.memory);
            least = fmin(least, sl_tune_get(tune, i).memory);
        }
        sl_tune_destroy(tune);
        tune = NULL;
    }
    assert_true(least < 1e6 && cluster.memory > 1e3);
}

/* From what nothing fits into to what everything fits into. */
static void more_memory_never_makes_a_slower_plan(void **state)
{
    (void)state;
    double before = INFINITY, least = 0;
    write_text();
    sl_cluster cluster = two_machines;
    const sl_tune_options options = {
        .overrides = base, .override_count = BASE, .cluster = &cluster, .top = 1, .budget_seconds = 0.01
    };
    for (double activations = 20e3; activations < 1e6; activations *= 1.3) {
        sl_tune *tune = NULL;
        cluster.memory = (double)((size_t)553 << 20) + activations; /* beside what the driver takes */
        if (sl_tune_create(&options, &tune) != SL_OK) {
            assert_true(before == INFINITY); /* what fits goes on to fit */
            continue;
        }
        double seconds = sl_tune_get(tune, 0).seconds;
        if (seconds > before)
            fail_msg("%.0f bytes more than the driver's: %.9g s, with less %.9g s", activations, seconds, before);
        least = least == 0 ? seconds : least;
        before = seconds;
        sl_tune_destroy(tune);
    }
    assert_true(before < 0.9 * least); /* memory is what it was about */
}

static void measured_costs_are_those_of_the_units_here(void **state)
{
    (void)state;
    sl_tune *tune = NULL;
    write_text();
    const sl_tune_options options = {
        .overrides = base, .override_count = BASE, .ranks = 2, .measure = true, .top = 2, .budget_seconds = 0.01
    };
    assert_int_equal(sl_tune_create(&options, &tune), SL_OK);
    assert_int_equal(sl_tune_count(tune), 2);
    assert_true(sl_tune_get(tune, 0).seconds > 0 && sl_tune_tried(tune) >= 2);
    for (int i = 0; i < tune->cost_count; i++) {
        for (int kind = 0; kind < tune->model.kind_count; kind++)
            assert_true(tune->costs[i].kinds[kind].f > 0 && tune->costs[i].kinds[kind].b > 0);
    }
    sl_tune_destroy(tune);
}

/* Whatever fails while layers are measured, in whichever thread, is an error, and the costs stay as they were. */
static void failures_while_measuring_leave_the_costs_as_they_were(void **state)
{
    (void)state;
    sl_tune *tune = NULL;
    tune_costs costs = { .rows = 1, .packs = true };
    int failures = 0;
    write_text();
    const sl_tune_options options = {
        .overrides = base, .override_count = BASE, .cluster = &two_machines, .top = 1, .budget_seconds = 0.01
    };
    assert_int_equal(sl_tune_create(&options, &tune), SL_OK);
    assert_int_equal(sl_tune_count_costs(&tune->model, &tune->cluster, &costs), SL_OK);
    const tune_cost before = costs.kinds[0];
    const char *device = tune->model.here;
    tune->model.here = "nowhere";
    assert_int_not_equal(sl_tune_measure_costs(&tune->model, 2, 2, &costs), SL_OK);
    assert_non_null(strstr(sl_error_message(), "nowhere"));
    tune->model.here = device;
    for (int64_t n = 0;; n += 1 + n / 8) {
        sl_alloc_fail_after(n);
        sl_status status = sl_tune_measure_costs(&tune->model, 2, 2, &costs);
        sl_alloc_fail_after(-1);
        if (status == SL_OK)
            break;
        assert_int_equal(status, SL_ERR_MEMORY);
        assert_true(costs.moments.count == 0 && costs.kinds[0].f == before.f && costs.kinds[0].b == before.b);
        failures++;
    }
    assert_true(failures > 20);
    assert_true(costs.moments.count == 1 && costs.crowded == 0 && costs.kinds[0].f > 0);
    assert_int_equal(sl_tune_measure_costs(&tune->model, 2, 1, &costs), SL_OK); /* two ranks on one core */
    assert_true(costs.moments.count == 2 && costs.crowd_moments.count == 1 && costs.crowded >= 1);
    sl_tune_moments_clear(&costs.moments);
    sl_tune_moments_clear(&costs.crowd_moments);
    sl_tune_destroy(tune);
}

/* A plan's values win over the file's, and the command line over both; mistakes name the file that they are in. */
static void a_plan_stands_between_the_file_and_the_overrides(void **state)
{
    (void)state;
    static const char run[] = "parallel: {pp: 3, threads: 2}\nmodel: {n_layer: 3}\n";
    static const char plan[] = "batch:\n  microbatches: 2\nparallel:\n  pp: 2\n  dp: 2\n";
    char line[400];
    write_text();
    scratch_write(scratch_path("run.yaml"), run, sizeof run - 1);
    scratch_write(scratch_path("plan.yaml"), plan, sizeof plan - 1);
    snprintf(line, sizeof line, "run.plan=%s", scratch_path("plan.yaml"));
    const char *lines[] = { text_key, line, "parallel.dp=4" };
    sl_train_config *config = NULL;
    assert_int_equal(sl_train_config_load(scratch_path("run.yaml"), lines, 3, &config), SL_OK);
    assert_int_equal(config->parallel.pp, 2);
    assert_int_equal(config->parallel.dp, 4);
    assert_int_equal(config->parallel.threads, 2);
    assert_int_equal(config->batch.microbatches, 2);
    sl_train_config_fail(config, "parallel.pp", "no");
    assert_non_null(strstr(sl_error_message(), "plan.yaml:4:7: parallel.pp: no"));
    sl_train_config_fail(config, "parallel.threads", "no");
    assert_non_null(strstr(sl_error_message(), "run.yaml:1:28: parallel.threads: no"));
    sl_train_config_destroy(config);
    snprintf(line, sizeof line, "run.plan=%s", scratch_path("none.yaml"));
    assert_int_not_equal(sl_train_config_load(scratch_path("run.yaml"), lines, 3, &config), SL_OK);
    assert_non_null(strstr(sl_error_message(), "none.yaml"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_costliest_stage_is_as_cheap_as_any_cut_allows),
        cmocka_unit_test(the_fullest_stage_is_smaller_if_that_costs_no_time),
        cmocka_unit_test(ranks_that_share_cores_take_at_least_the_work_over_the_cores),
        cmocka_unit_test(ranks_on_one_device_take_the_sum_of_their_work),
        cmocka_unit_test(a_cluster_is_read_and_mistakes_name_their_place),
        cmocka_unit_test(every_choice_is_a_file_that_train_takes_and_has_the_memory_it_names),
        cmocka_unit_test(time_of_each_kernel_speaks_for_few_microbatches),
        cmocka_unit_test(a_cluster_of_processors_counts_the_copy_for_checkpoints),
        cmocka_unit_test(little_memory_is_kept_and_too_little_says_what_would_do),
        cmocka_unit_test(more_memory_never_makes_a_slower_plan),
        cmocka_unit_test(measured_costs_are_those_of_the_units_here),
        cmocka_unit_test(failures_while_measuring_leave_the_costs_as_they_were),
        cmocka_unit_test(a_plan_stands_between_the_file_and_the_overrides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
