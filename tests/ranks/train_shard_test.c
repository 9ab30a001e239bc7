/* What replicas share out changes no bit: losses and norms of nothing, optimizer state and everything, for every
 * schedule on every mesh; runs go on from each other's checkpoints; memory is as planned and as little as it should be.
 * By default a sample, with --full everything. */
#include "ranks/support/training.h"
#include "support/device/test_device.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#ifdef __SANITIZE_THREAD__
enum { LEAST_RANKS = 6, RESUMED_PER = 40 }; /* it is slow, and the runs have the same threads */
#else
enum { LEAST_RANKS = 2, RESUMED_PER = 11 };
#endif

static bool full;
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

static void train(const char *name, const sl_train_options *options, mesh_run mesh, run_outcome *out)
{
    char text[8][64];
    const char *keys[KEYS_MAX] = { text[0], text[1], text[2], text[3],   text[4],
                                   text[5], text[6], text[7], mesh.more, mesh.last };
    snprintf(text[0], sizeof text[0], "parallel.pp=%d", mesh.pp);
    snprintf(text[1], sizeof text[1], "parallel.dp=%d", mesh.dp);
    snprintf(text[2], sizeof text[2], "parallel.shard=%s", modes[mesh.mode]);
    snprintf(text[3], sizeof text[3], "parallel.schedule=%s", mesh.schedule);
    snprintf(text[4], sizeof text[4], "parallel.shard_group=%d", mesh.group);
    snprintf(text[5], sizeof text[5], "batch.size=12");
    snprintf(text[6], sizeof text[6], "batch.microbatches=%d", 12 / mesh.dp < 4 ? 12 / mesh.dp : 4);
    snprintf(text[7], sizeof text[7], "run.steps=%d", mesh.steps > 0 ? mesh.steps : STEPS);
    training_run(name, options, keys, out);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(modes_change_no_bit, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(groups_and_slots_change_no_bit, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(bf16_has_the_same_bits_in_all_modes, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(runs_go_on_from_each_others_checkpoints, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(full_shards_take_half, training_enter, training_leave),
    };
    full = argc == 2 && strcmp(argv[1], "--full") == 0;
    test_device_spec();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
