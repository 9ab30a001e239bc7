/* What replicas share out changes no bit: losses and norms of nothing, optimizer state and everything, for every
 * schedule on every mesh; runs go on from each other's checkpoints; memory is as planned and as little as it should be.
 * By default a sample, with --full everything: on the tests' device neither bf16, whose bits there train_test compares,
 * nor frozen parameters. */
#include "pipeline/pipeline.h"
#include "ranks/support/training.h"
#include "support/device/test_device.h"
#include "support/sanitized.h"
#include "train/plan.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#if TEST_THREAD_SANITIZED
enum { LEAST_RANKS = 6, RESUMED_PER = 40 }; /* it is slow, and the runs have the same threads */
#else
enum { LEAST_RANKS = 2, RESUMED_PER = 11 };
#endif

static bool full;

static bool is_short_on_device(void)
{
    return !full && strcmp(test_device_spec(), "cpu") != 0;
}

static const sl_train_options plain = { .console = NULL };

static const char *const modes[] = { "none", "optimizer", "full" };
enum { MODES = 3, STEPS = 3, KEYS_MAX = 16 };

static const char *const schedules[] = {
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* A run on a mesh. */
typedef struct mesh_run {
    int pp, dp, mode;
    const char *schedule;
    int group, steps;
    const char *more, *last; /* more overrides, or NULL */
} mesh_run;

/* The overrides of a run, up to NULL. */
typedef struct mesh_keys {
    char text[8][64];
    const char *list[KEYS_MAX];
} mesh_keys;

static void write_keys(mesh_run mesh, mesh_keys *out)
{
    char(*text)[64] = out->text;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 8; i++)
        out->list[i] = text[i];
    out->list[8] = mesh.more;
    out->list[9] = mesh.last;
    snprintf(text[0], sizeof text[0], "parallel.pp=%d", mesh.pp);
    snprintf(text[1], sizeof text[1], "parallel.dp=%d", mesh.dp);
    snprintf(text[2], sizeof text[2], "parallel.shard=%s", modes[mesh.mode]);
    snprintf(text[3], sizeof text[3], "parallel.schedule=%s", mesh.schedule);
    snprintf(text[4], sizeof text[4], "parallel.shard_group=%d", mesh.group);
    snprintf(text[5], sizeof text[5], "batch.size=12");
    snprintf(text[6], sizeof text[6], "batch.microbatches=%d", 12 / mesh.dp < 4 ? 12 / mesh.dp : 4);
    snprintf(text[7], sizeof text[7], "run.steps=%d", mesh.steps > 0 ? mesh.steps : STEPS);
}

static void train(const char *name, const sl_train_options *options, mesh_run mesh, run_outcome *out)
{
    mesh_keys keys;
    write_keys(mesh, &keys);
    training_run(name, options, keys.list, out);
    if (out->status != SL_OK)
        fail_msg("%s %d x %d %s: %s", mesh.schedule, mesh.pp, mesh.dp, modes[mesh.mode], out->message);
}

static void assert_same(const run_outcome *a, const run_outcome *b, mesh_run mesh)
{
    if (a->steps != b->steps || memcmp(a->loss, b->loss, sizeof a->loss) != 0 ||
        memcmp(a->grad_norm, b->grad_norm, sizeof a->grad_norm) != 0)
        fail_msg("%s %d x %d %s group %d: other losses or norms: %.17g %.17g and %.17g %.17g", mesh.schedule, mesh.pp,
                 mesh.dp, modes[mesh.mode], mesh.group, a->loss[a->steps - 1], a->grad_norm[a->steps - 1],
                 b->loss[a->steps - 1], b->grad_norm[a->steps - 1]);
}

/* ---- Who holds what -------------------------------------------------------------------------- */

/* The checkpoint has of the tensor what the pipeline's description gives to the ranks of the first copy. */
static void assert_sharding(const sl_checkpoint *checkpoint, const char *tensor, const sl_sharding *expected, int first)
{
    const sl_sharding *found = NULL;
    int used = 0;
    for (int i = 0; i < sl_checkpoint_count(checkpoint); i++) {
        if (strcmp(sl_checkpoint_at(checkpoint, i)->name, tensor) == 0)
            found = sl_checkpoint_sharding(checkpoint, i);
    }
    assert_non_null(found);
    for (int i = 0; i < expected->count / expected->copies; i++) {
        const sl_shard *own = &expected->shards[i], *stored = &found->shards[used];
        if (own->size.dims[0] == 0)
            continue;
        if (used == found->count || stored->placement.rank != first + own->placement.rank)
            fail_msg("%s: rank %d has no part of it", tensor, first + own->placement.rank);
        if (own->size.dims[0] < expected->size.dims[0]) { /* else it is stored with its shape */
            assert_int_equal(stored->offsets[0], own->offsets[0]);
            assert_int_equal(stored->size.dims[0], own->size.dims[0]);
            assert_int_equal(stored->size.rank, 1);
        }
        used++;
    }
    assert_int_equal(used, found->count);
}

/* The run has saved every parameter, and its state, as its pipeline shares it out. */
static void assert_saved_as_described(const char *name, mesh_run mesh)
{
    mesh_keys keys;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    sl_checkpoint *checkpoint = NULL;
    char path[512];
    int tensors = 0;
    write_keys(mesh, &keys);
    snprintf(path, sizeof path, "%s/%s/checkpoints", training_folder(), name);
    assert_int_equal(training_plan(test_device_spec(), name, keys.list, &config, &plan), SL_OK);
    assert_int_equal(sl_checkpoint_open_newest(path, &checkpoint), SL_OK);
    assert_non_null(checkpoint);
    const sl_wiring *wiring = plan->pipeline->wiring;
    for (int s = 0; s < wiring->stage_count; s++) {
        for (int i = 0; i < wiring->stages[s].weight_count; i++) {
            const sl_wire_weight *weight = &wiring->stages[s].weights[i];
            if (plan->tied && strcmp(weight->name, plan->head) == 0)
                continue; /* it is in files as embedding */
            snprintf(path, sizeof path, "optimizer.exp_avg.%s", weight->name);
            int first = wiring->stages[s].rank * plan->shard_group;
            assert_sharding(checkpoint, weight->name, weight->shardings.updated, first);
            assert_sharding(checkpoint, path, weight->shardings.updated, first);
            tensors++;
        }
    }
    assert_true(tensors > 20);
    sl_checkpoint_close(checkpoint);
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static void modes_change_no_bit(void **state)
{
    (void)state;
    char name[48];
    run_outcome alone;
    train("alone", &plain, (mesh_run){ .pp = 1, .dp = 1, .schedule = "1F1B" }, &alone);
    for (int pp = 1; pp <= 2; pp++) {
        for (int dp = 1; dp <= 3; dp++) {
            for (int i = 0; i < SCHEDULES; i++) {
                run_outcome outcomes[MODES];
                if (!full && (pp * dp < LEAST_RANKS || (i + pp + dp) % SCHEDULES > 0))
                    continue;
                for (int mode = 0; mode < MODES; mode++) {
                    mesh_run mesh = { .pp = pp, .dp = dp, .mode = mode, .schedule = schedules[i] };
                    snprintf(name, sizeof name, "bits-%d-%d-%d-%d", pp, dp, i, mode);
                    train(name, &plain, mesh, &outcomes[mode]);
                    training_check_plan(name, pp * dp);
                    assert_saved_as_described(name, mesh);
                    assert_same(&outcomes[0], &outcomes[mode], mesh);
                }
                for (int k = 0; k < STEPS; k++) {
                    assert_true(fabs(outcomes[0].loss[k] - alone.loss[k]) < 1e-6 * alone.loss[k]);
                    assert_true(fabs(outcomes[0].grad_norm[k] - alone.grad_norm[k]) < 1e-5 * alone.grad_norm[k]);
                }
            }
        }
    }
}

static void groups_and_slots_change_no_bit(void **state)
{
    (void)state;
    const mesh_run none = { .pp = 1, .dp = 4, .schedule = "LoopedBFS", .more = "parallel.stages_per_rank=3" };
    run_outcome expected;
    train("whole", &plain, none, &expected);
    for (int mode = 1; mode < MODES; mode++) {
        for (int group = 1; group <= 4; group *= 2) {
            run_outcome out;
            mesh_run mesh = none;
            char name[48];
            if (!full && (group == 4 || (group == 1 && LEAST_RANKS > 2)))
                continue; /* the same as all */
            mesh.mode = mode;
            mesh.group = group;
            snprintf(name, sizeof name, "group-%d-%d", mode, group);
            train(name, &plain, mesh, &out);
            training_check_plan(name, 4);
            assert_saved_as_described(name, mesh);
            assert_same(&expected, &out, mesh);
        }
    }
    for (int unsharded = 1; full && unsharded <= 3; unsharded++) {
        char name[48], key[48];
        run_outcome before, after;
        mesh_run mesh = { .pp = 2, .dp = 2, .schedule = "Interleaved1F1B", .more = "parallel.recompute=h.*" };
        snprintf(name, sizeof name, "before-%d", unsharded);
        train(name, &plain, mesh, &before);
        snprintf(name, sizeof name, "slots-%d", unsharded);
        snprintf(key, sizeof key, "parallel.unsharded=%d", unsharded);
        mesh.mode = 2;
        mesh.more = key;
        train(name, &plain, mesh, &after);
        training_check_plan(name, 4);
        assert_same(&before, &after, mesh);
    }
}

/* bf16 weights with f32 masters, which are shared out with the other state, and bf16 gradients. */
static void bf16_has_the_same_bits_in_all_modes(void **state)
{
    (void)state;
    if (is_short_on_device())
        skip();
    run_outcome outcomes[MODES];
    for (int mode = 0; mode < MODES; mode++) {
        mesh_run mesh = { .pp = 2, .dp = 3, .mode = mode, .schedule = "Interleaved1F1B" };
        mesh.more = "precision.dtype=bf16";
        mesh.last = "precision.grad=bf16";
        train(modes[mode], &plain, mesh, &outcomes[mode]);
        training_check_plan(modes[mode], 6);
        assert_same(&outcomes[0], &outcomes[mode], mesh);
    }
}

/* Frozen weights are shared out as well; they have no gradient, no state and no part in any sum. */
static void frozen_parameters_have_the_same_bits_in_all_modes(void **state)
{
    (void)state;
    if (is_short_on_device())
        skip();
    run_outcome outcomes[MODES], resumed;
    for (int mode = 0; mode < MODES; mode++) {
        mesh_run mesh = { .pp = 2, .dp = 3, .mode = mode, .schedule = "InterleavedZeroBubble" };
        mesh.more = "model.freeze=h.1.*,wte*,h.3.ln_1.bias";
        train(modes[mode], &plain, mesh, &outcomes[mode]);
        training_check_plan(modes[mode], 6);
        assert_same(&outcomes[0], &outcomes[mode], mesh);
    }
    mesh_run longer = {
        .pp = 1, .dp = 3, .schedule = "1F1B", .steps = 5, .more = "model.freeze=h.1.*,wte*,h.3.ln_1.bias"
    };
    train("longer", &plain, longer, &outcomes[0]);
    for (int mode = 1; mode < MODES; mode++) { /* the one goes on from what the other has kept */
        longer.mode = MODES - mode;
        train(modes[mode], &(sl_train_options){ .resume = true }, longer, &resumed);
        assert_same(&outcomes[0], &resumed, longer);
    }
}

/* ---- Resuming -------------------------------------------------------------------------------- */

/* Half on one mesh, half on another. */
static void resume(const run_outcome *straight, mesh_run first, mesh_run second, int number)
{
    char name[48];
    run_outcome out;
    first.steps = 2;
    second.steps = 4;
    snprintf(name, sizeof name, "resumed-%d", number);
    train(name, &plain, first, &out);
    train(name, &(sl_train_options){ .resume = true }, second, &out);
    assert_int_equal(out.result.first_step, 2);
    assert_same(straight, &out, second);
}

static void runs_go_on_from_each_others_checkpoints(void **state)
{
    (void)state;
    int number = 0;
    for (int dp = 1; dp <= 3; dp++) {
        run_outcome straight;
        mesh_run mesh = { .pp = 1, .dp = dp, .schedule = "1F1B", .steps = 4 };
        char name[48];
        snprintf(name, sizeof name, "straight-%d", dp);
        train(name, &plain, mesh, &straight);
        for (int from = 0; from < 2 * MODES; from++) {
            for (int to = 0; to < 2 * MODES; to++) {
                mesh_run first = { .pp = 1 + from / MODES, .dp = dp, .mode = from % MODES, .schedule = "1F1B" };
                mesh_run second = { .pp = 1 + to / MODES, .dp = dp, .mode = to % MODES, .schedule = "ZBVZeroBubble" };
                if (full || (dp > 1 && (from * 2 * MODES + to + dp) % RESUMED_PER == 0))
                    resume(&straight, first, second, number++);
            }
        }
    }
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Bytes that rank 0 of the run has taken for the keys. */
static double measured(const char *name, const char *const *keys)
{
    char path[256];
    double sum = 0;
    snprintf(path, sizeof path, "%s/%s/plan.json", training_folder(), name);
    json_t *plan = json_load_file(path, 0, NULL);
    assert_non_null(plan);
    for (; *keys; keys++)
        sum += (double)json_integer_value(json_object_get(json_array_get(json_object_get(plan, "measured"), 0), *keys));
    json_decref(plan);
    return sum;
}

/* Stage after stage, one of them gathered at a time: also what is gathered for a while counts. */
static void full_shards_take_half(void **state)
{
    (void)state;
    static const char *const kept[] = { "weights", "gradients", "optimizer", NULL };
    static const char *const slots[] = { "activations", NULL };
    mesh_run mesh = { .pp = 1, .dp = 2, .schedule = "LoopedBFS", .more = "parallel.stages_per_rank=6" };
    run_outcome out;
    train("none", &plain, mesh, &out);
    mesh.mode = 2;
    mesh.last = "parallel.unsharded=1";
    train("full", &plain, mesh, &out);
    double whole = measured("none", kept), half = measured("full", kept);
    double gathered = measured("full", slots) - measured("none", slots);
    print_message("full keeps %.3f of what none does; at most %.3f more is gathered\n", half / whole, gathered / whole);
    assert_true(half <= 0.55 * whole);
    assert_true(half + gathered <= 0.75 * whole); /* the weights of one stage of six, the gradients of two */
}

/* ---- Memory of a load ------------------------------------------------------------------------- */

/* Bytes of a line of /proc/self/status. */
static double process_memory(const char *key)
{
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), ": %lf", &kilobytes);
    }
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

/* The peak counts from now on. */
static bool forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    return file && fputs("5", file) >= 0 && fclose(file) == 0;
}

/* In memory that the ranks share. */
typedef struct measured_load {
    const char *const *keys;
    struct {
        double kept, used; /* bytes */
        char message[256];
    } ranks[4];
} measured_load;

/* Goes on from the run's checkpoint with nothing left to do. *used: the most memory that this took. */
static sl_status load_run(sl_group *group, const char *name, const char *const *keys, double *kept, double *used)
{
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    sl_status status = training_plan("cpu", name, keys, &config, &plan);
    if (status == SL_OK) {
        sl_plan_memory memory = sl_train_plan_memory(plan, sl_group_rank(group));
        bool counted = forget_peak();
        double before = process_memory("VmRSS");
        status = sl_train_run(plan, group, &(sl_train_options){ .resume = true }, NULL);
        *used = counted ? process_memory("VmHWM") - before : -1;
        *kept = (double)(memory.weights + memory.gradients + memory.optimizer);
    }
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    return status;
}

/* A small run first, so that what the program itself needs is there. */
static int load_and_measure(void *user, int rank)
{
    measured_load *load = user;
    sl_group *group = NULL;
    double kept = 0, used = 0;
    sl_status status = sl_group_open(NULL, &group);
    if (status == SL_OK)
        status = load_run(group, "small", load->keys + 1, &kept, &used);
    if (status == SL_OK)
        status = load_run(group, "large", load->keys, &load->ranks[rank].kept, &load->ranks[rank].used);
    if (status != SL_OK)
        snprintf(load->ranks[rank].message, sizeof load->ranks[rank].message, "%s", sl_error_message());
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* From two files of a pipeline into the shards of replicas: a rank reads what it keeps, and never holds the rest. */
static void a_load_on_another_mesh_takes_what_the_rank_keeps(void **state)
{
    (void)state;
#if TEST_SANITIZED
    skip();
#endif
    if (strcmp(test_device_spec(), "cpu") != 0)
        skip(); /* the memory is measured on the process */
    static const char *const large[] = {
        "model.n_embd=256",  "model.n_layer=6",      "batch.seq=8",   "batch.size=2",        "run.steps=1",
        "log.peak_gflops=1", "batch.microbatches=1", "parallel.pp=2", "checkpoint.memory=0", NULL
    };
    static const char *const modes_of_load[] = { "parallel.shard=full", "parallel.shard=optimizer" };
    run_outcome out;
    training_run_on("cpu", "large", &plain, large, &out);
    assert_int_equal(out.status, SL_OK);
    training_run_on("cpu", "small", &plain, large + 1, &out);
    assert_int_equal(out.status, SL_OK);
    for (int i = 0; i < 2; i++) {
        const char *keys[] = { large[0], large[1],        large[2],        large[3],         large[4],
                               large[5], "parallel.pp=1", "parallel.dp=2", modes_of_load[i], "batch.microbatches=1",
                               NULL };
        measured_load *load = mmap(NULL, sizeof *load, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        sl_launch_result result;
        assert_true(load != MAP_FAILED);
        load->keys = keys;
        const sl_launch_options launch = { .ranks = 2, .run = load_and_measure, .user = load };
        assert_int_equal(sl_launch(&launch, &result), SL_OK);
        for (int r = 0; r < 2; r++) {
            double kept = load->ranks[r].kept, used = load->ranks[r].used;
            if (*load->ranks[r].message)
                fail_msg("%s", load->ranks[r].message);
            print_message("%s: rank %d keeps %.1f MB, a load takes %.3f of that\n", modes_of_load[i], r, 1e-6 * kept,
                          used / kept);
            assert_true(kept > 0 && used > 0 && used <= 1.1 * kept);
        }
        munmap(load, sizeof *load);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(modes_change_no_bit, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(groups_and_slots_change_no_bit, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(bf16_has_the_same_bits_in_all_modes, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(frozen_parameters_have_the_same_bits_in_all_modes, training_enter,
                                        training_leave),
        cmocka_unit_test_setup_teardown(runs_go_on_from_each_others_checkpoints, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(full_shards_take_half, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(a_load_on_another_mesh_takes_what_the_rank_keeps, training_enter,
                                        training_leave),
    };
    full = argc == 2 && strcmp(argv[1], "--full") == 0;
    test_device_spec();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
