/* The training loop as a library, its ranks as threads of this process: the same bits however the model is cut, replicas
 * that agree, memory as planned, a stop that leaves a checkpoint, failures that reach all ranks. */
#include "ranks/support/training.h"
#include "support/device/test_device.h"
#include "support/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const sl_train_options plain = { .console = NULL };

/* ---- Tests ----------------------------------------------------------------------------------- */

enum { CUTS = 5 };

/* The first `count` of the cuts. */
static void check_cuts(const char *precision, size_t count)
{
    static const char *const cases[CUTS][3] = {
        { "parallel.pp=2" },
        { "parallel.pp=4", "parallel.schedule=GPipe" },
        { "parallel.pp=2", "parallel.schedule=InterleavedZeroBubble", "parallel.stages_per_rank=2" },
        { "parallel.pp=3", "parallel.split=transformer.h.1.mlp,transformer.h.3" },
        { "parallel.pp=2", "parallel.recompute=transformer.h.*" },
    };
    char name[64];
    run_outcome whole;
    snprintf(name, sizeof name, "whole-%s", precision);
    training_run(name, &plain, (const char *const[]){ precision, NULL }, &whole);
    assert_int_equal(whole.steps, 6);
    assert_true(whole.loss[5] < whole.loss[0]);
    for (size_t i = 0; i < count; i++) {
        run_outcome cut;
        snprintf(name, sizeof name, "cut%zu-%s", i, precision);
        training_run(name, &plain, (const char *const[]){ precision, cases[i][0], cases[i][1], cases[i][2], NULL },
                     &cut);
        assert_string_equal(cut.message, "");
        assert_memory_equal(cut.loss, whole.loss, sizeof whole.loss);
        assert_memory_equal(cut.grad_norm, whole.grad_norm, sizeof whole.grad_norm);
    }
}

static void cuts_and_schedules_change_no_bit(void **state)
{
    (void)state;
    check_cuts("precision.dtype=f32", CUTS);
    check_cuts("precision.dtype=bf16", test_takes_sample() ? 1 : CUTS);
}

/* Also of bf16 weights without masters and of bf16 gradients, which ties and replicas add up. */
static void every_precision_trains(void **state)
{
    (void)state;
    static const char *const precisions[][2] = {
        { "precision.master=f32", "precision.grad=f32" },
        { "precision.master=f32", "precision.grad=bf16" },
        { "precision.master=none", "precision.grad=f32" },
        { "precision.master=none", "precision.grad=bf16" },
    };
    for (int i = 0; i < 4; i++) {
        char name[32];
        run_outcome out;
        snprintf(name, sizeof name, "precision%d", i);
        training_run(name, &plain,
                     (const char *const[]){ "precision.dtype=bf16", precisions[i][0], precisions[i][1], "parallel.pp=2",
                                            "parallel.dp=2", "batch.microbatches=2", NULL },
                     &out);
        assert_string_equal(out.message, "");
        assert_true(out.loss[5] < out.loss[0]);
        training_check_plan(name, 4);
    }
}

/* Pipeline, replicas, checkpoint and resume: where the memory is and when a stream runs makes no difference. */
static void check_device(const char *precision)
{
    static const char *const devices[] = { "cpu", "test" };
    const char *half[] = { "parallel.pp=2", "parallel.dp=2", "batch.microbatches=2", "run.steps=4", precision, NULL };
    const char *rest[] = { "parallel.pp=2", "parallel.dp=2", "batch.microbatches=2", "run.steps=8", precision, NULL };
    run_outcome outcomes[2];
    for (int i = 0; i < 2; i++) {
        sl_train_options first = { .resume = false }, second = { .resume = true };
        char name[64];
        snprintf(name, sizeof name, "on-%s-%s", devices[i], precision);
        training_run_on(devices[i], name, &first, half, &outcomes[i]);
        assert_string_equal(outcomes[i].message, "");
        training_run_on(devices[i], name, &second, rest, &outcomes[i]);
        assert_string_equal(outcomes[i].message, "");
        assert_int_equal(outcomes[i].result.first_step, 4);
        assert_int_equal(outcomes[i].steps, 8);
    }
    assert_memory_equal(outcomes[0].loss, outcomes[1].loss, sizeof outcomes[0].loss);
    assert_memory_equal(outcomes[0].grad_norm, outcomes[1].grad_norm, sizeof outcomes[0].grad_norm);
}

static void a_device_that_works_by_itself_changes_no_bit(void **state)
{
    (void)state;
    test_device_install();
    check_device("precision.dtype=f32");
    check_device("precision.dtype=bf16");
}

static void replicas_share_the_batch(void **state)
{
    (void)state;
    static const char *const alone[] = { "model.family=llama", "model.tie=false", NULL };
    static const char *const shared[] = { "model.family=llama", "model.tie=false",      "parallel.dp=2",
                                          "parallel.pp=2",      "batch.microbatches=2", NULL };
    run_outcome one, two;
    training_run("alone", &plain, alone, &one);
    training_run("shared", &plain, shared, &two);
    assert_int_equal(two.steps, 6);
    for (int i = 0; i < 6; i++) {
        assert_true(fabs(one.loss[i] - two.loss[i]) < 1e-5);
        assert_true(fabs(one.grad_norm[i] - two.grad_norm[i]) < 1e-4 * one.grad_norm[i]);
    }
}

static void uneven_microbatches_weigh_every_row_the_same(void **state)
{
    (void)state;
    static const char *const even[] = { "batch.size=7", "batch.microbatches=1", NULL };
    static const char *const uneven[] = { "batch.size=7", "batch.microbatches=4", "parallel.pp=2", NULL };
    run_outcome one, four;
    training_run("even", &plain, even, &one);
    training_run("uneven", &plain, uneven, &four);
    for (int i = 0; i < 6; i++)
        assert_true(fabs(one.loss[i] - four.loss[i]) < 1e-5);
}

static void dropout_follows_the_rows_not_the_microbatches(void **state)
{
    (void)state;
    static const char *const whole[] = { "model.dropout=0.5", "batch.microbatches=1", NULL };
    static const char *const cut[] = { "model.dropout=0.5", "batch.microbatches=4", "parallel.pp=2", NULL };
    run_outcome one, four;
    training_run("whole", &plain, whole, &one);
    training_run("cut", &plain, cut, &four);
    for (int i = 0; i < 6; i++)
        assert_true(fabs(one.loss[i] - four.loss[i]) < 1e-5);
}

/* Every stage is given where the documents begin. */
static void documents_have_the_same_bits_on_every_cut_and_device(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        { "parallel.pp=4", "parallel.recompute=transformer.h.*" },
        { "parallel.pp=2", "parallel.schedule=InterleavedZeroBubble", "parallel.stages_per_rank=2" },
    };
    const char *const kept[] = { "data.documents=true", "data.boundary=10", "model.dropout=0.1", NULL };
    run_outcome plain_rows, whole, other;
    test_device_install();
    training_run("plain_rows", &plain, (const char *const[]){ "model.dropout=0.1", NULL }, &plain_rows);
    training_run("documents", &plain, kept, &whole);
    assert_string_equal(whole.message, "");
    assert_true(fabs(whole.loss[0] - plain_rows.loss[0]) > 1e-4);
    for (int i = 0; i < 3; i++) {
        char name[32];
        const char *const *more = cases[i % 2];
        snprintf(name, sizeof name, "documents%d", i);
        training_run_on(i < 2 ? "cpu" : "test", name, &plain,
                        (const char *const[]){ kept[0], kept[1], kept[2], more[0], more[1], more[2], NULL }, &other);
        assert_string_equal(other.message, "");
        assert_memory_equal(other.loss, whole.loss, sizeof whole.loss);
        assert_memory_equal(other.grad_norm, whole.grad_norm, sizeof whole.grad_norm);
        training_check_plan(name, i % 2 ? 2 : 4);
    }
}

static void memory_is_as_planned(void **state)
{
    (void)state;
    static const char *const cases[][4] = {
        { "model.n_embd=64", "checkpoint.every=1" },
        { "model.n_embd=64", "checkpoint.every=1", "parallel.pp=4" },
        { "model.n_embd=64", "checkpoint.every=1", "parallel.pp=2", "parallel.schedule=ZBVZeroBubble" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_outcome out;
        char name[16];
        snprintf(name, sizeof name, "memory%zu", i);
        training_run(name, &plain, (const char *const[]){ cases[i][0], cases[i][1], cases[i][2], cases[i][3], NULL },
                     &out);
        double ratio = out.planned_memory / out.peak_memory;
        print_message("planned %.0f, used %.0f: %.3f\n", out.planned_memory, out.peak_memory, ratio);
        assert_true(ratio > 0.95 && ratio < 1.05);
    }
}

static void a_stop_leaves_a_checkpoint_to_resume_from(void **state)
{
    (void)state;
    static const char *const two[] = { "parallel.pp=2", NULL };
    volatile sig_atomic_t stop = 1;
    run_outcome whole, stopped, resumed;
    training_run("straight", &plain, two, &whole);
    training_run("stopped", &(sl_train_options){ .stop = &stop }, two, &stopped);
    assert_true(stopped.result.stopped);
    assert_int_equal(stopped.result.last_step, 1);
    assert_int_equal(stopped.steps, 1);
    training_run("stopped", &(sl_train_options){ .resume = true }, NULL, &resumed);
    assert_int_equal(resumed.result.first_step, 1);
    assert_memory_equal(resumed.loss, whole.loss, sizeof whole.loss);
}

static void checkpoints_of_a_hurried_run_are_whole(void **state)
{
    (void)state;
    /* Parts of some megabytes, written beside steps of a few milliseconds: the next step ends long before a part does. */
    static const char *const hurried[] = { "parallel.pp=2",      "model.n_embd=128",
                                           "batch.size=1",       "batch.microbatches=1",
                                           "batch.seq=1",        "checkpoint.every=2",
                                           "checkpoint.keep=10", NULL };
    run_outcome out;
    training_run("hurried", &plain, hurried, &out);
    assert_int_equal(out.status, SL_OK);
    for (int step = 2; step <= 6; step += 2) {
        char path[256];
        sl_checkpoint *checkpoint = NULL;
        snprintf(path, sizeof path, "%s/hurried/checkpoints/step-%08d", training_folder(), step);
        if (sl_checkpoint_open(path, true, &checkpoint) != SL_OK)
            fail_msg("%s", sl_error_message());
        assert_int_equal(sl_checkpoint_step(checkpoint), step);
        assert_int_equal(sl_checkpoint_file_count(checkpoint), 2);
        sl_checkpoint_close(checkpoint);
    }
}

static void a_loss_that_is_no_number_ends_the_run_on_all_ranks(void **state)
{
    (void)state;
    static const char *const wild[] = { "parallel.pp=2",    "optimizer.name=sgd", "optimizer.lr=1e6",
                                        "optimizer.clip=0", "run.steps=60",       NULL };
    run_outcome out;
    training_run("wild", &plain, wild, &out);
    assert_int_not_equal(out.status, SL_OK);
    assert_true(out.message[0] != '\0');
    assert_non_null(strstr(out.message, "loss"));
}

enum { SAMPLE_EVERY = 26 }; /* a sanitizer is slow, and the runs have the same threads */

static void memory_is_planned_to_the_byte(void **state)
{
    (void)state;
    static const char *const families[] = { "gpt2", "llama" };
    static const char *const recompute[] = { "parallel.recompute=h.*", "parallel.recompute=layers.*" };
    int number = 0;
    for (int f = 0; f < 2; f++) {
        for (int g = 0; sl_generator_name(g); g++) {
            if (strncmp(sl_generator_name(g), "ForwardOnly", 11) == 0)
                continue;
            for (int pp = 1; pp <= 4; pp *= 2) {
                for (int variant = 0; variant < 5; variant++) { /* the last is in bf16 */
                    int more = variant < 4 ? variant : (g + pp + f) % 4;
                    char name[32], family[32], schedule[64], ranks[32];
                    snprintf(name, sizeof name, "memory-%d", number);
                    if (!test_in_sample((size_t)number++, 0, SAMPLE_EVERY))
                        continue;
                    snprintf(family, sizeof family, "model.family=%s", families[f]);
                    snprintf(schedule, sizeof schedule, "parallel.schedule=%s", sl_generator_name(g));
                    snprintf(ranks, sizeof ranks, "parallel.pp=%d", pp);
                    const char *keys[] = { family,
                                           schedule,
                                           ranks,
                                           "run.steps=1",
                                           "batch.microbatches=4",
                                           "model.n_layer=7", /* with embedding and head a stage for each rank and V */
                                           more & 1 ? "parallel.dp=2" : "parallel.dp=1",
                                           variant < 4 ? "precision.dtype=f32" : "precision.dtype=bf16",
                                           more & 2 ? recompute[f] : NULL,
                                           NULL };
                    run_outcome out;
                    training_run(name, &plain, keys, &out);
                    if (out.status != SL_OK)
                        fail_msg("%s %s %s: %s", family, schedule, ranks, out.message);
                    training_check_plan(name, pp * (more & 1 ? 2 : 1));
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cuts_and_schedules_change_no_bit, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(a_device_that_works_by_itself_changes_no_bit, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(every_precision_trains, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(replicas_share_the_batch, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(uneven_microbatches_weigh_every_row_the_same, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(dropout_follows_the_rows_not_the_microbatches, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(documents_have_the_same_bits_on_every_cut_and_device, training_enter,
                                        training_leave),
        cmocka_unit_test_setup_teardown(memory_is_as_planned, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(memory_is_planned_to_the_byte, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(a_stop_leaves_a_checkpoint_to_resume_from, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(checkpoints_of_a_hurried_run_are_whole, training_enter, training_leave),
        cmocka_unit_test_setup_teardown(a_loss_that_is_no_number_ends_the_run_on_all_ranks, training_enter,
                                        training_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
