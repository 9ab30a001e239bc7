/* The plan of a run: its figures fit together before anything runs. */
#include <sluice/train.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/device/test_device.h"
#include "support/scratch.h"

enum { LAYERS = 4, WIDTH = 32, SEQ = 16, ROWS = 8 };

static void make_for(const char *device, const char *const *more, int count, sl_train_config **config,
                     sl_train_plan **plan)
{
    char text[300], out[300];
    const char *overrides[16] = { text,
                                  out,
                                  "model.n_layer=4",
                                  "model.n_head=2",
                                  "model.n_embd=32",
                                  "batch.seq=16",
                                  "batch.size=8",
                                  "batch.microbatches=4" };
    static const char tale[] = "There was a well, and nobody knew how deep it was. A stone said: I do.\n";
    scratch_write(scratch_path("tale.txt"), tale, sizeof tale - 1);
    snprintf(text, sizeof text, "data.text=%s", scratch_path("tale.txt"));
    snprintf(out, sizeof out, "run.out=%s", scratch_path("out"));
    for (int i = 0; i < count; i++)
        overrides[8 + i] = more[i];
    assert_int_equal(sl_train_config_load(NULL, overrides, 8 + count, config), SL_OK);
    if (sl_train_plan_create(*config, device, plan) != SL_OK)
        fail_msg("%s", sl_error_message());
}

static void make(const char *const *more, int count, sl_train_config **config, sl_train_plan **plan)
{
    make_for(NULL, more, count, config, plan);
}

static void stages_are_the_whole_model_on_the_ranks_of_the_schedule(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    const char *more[] = { "parallel.pp=2", "parallel.dp=2", "parallel.schedule=Interleaved1F1B",
                           "parallel.stages_per_rank=2" };
    make(more, 4, &config, &plan);
    assert_int_equal(sl_train_plan_ranks(plan), 4);
    assert_int_equal(sl_train_plan_stages(plan), 4);
    int64_t params = 0;
    double flops = 0;
    for (int s = 0; s < 4; s++) {
        sl_plan_stage stage = sl_train_plan_stage(plan, s);
        assert_int_equal(stage.rank, s % 2);
        assert_true(strlen(stage.first) > 0 && strlen(stage.last) > 0);
        assert_true(stage.seconds > 0);
        assert_in_range(stage.slots, 1, 4);
        params += stage.params;
        flops += stage.cost.flops;
    }
    /* GPT-2 with a tied head: embeddings, per layer 12 C^2 + 13 C, the last norm. */
    assert_int_equal(params, (256 + SEQ) * WIDTH + LAYERS * (12 * WIDTH * WIDTH + 13 * WIDTH) + 2 * WIDTH);
    /* A stage's cost is that of a microbatch of one row; there are ROWS of them a step. */
    assert_true(sl_train_plan_flops(plan) > 0.999 * flops * ROWS && sl_train_plan_flops(plan) < 1.001 * flops * ROWS);
    assert_true(sl_train_plan_step_seconds(plan) > 0);
    assert_true(sl_train_plan_bubble(plan) > 0 && sl_train_plan_bubble(plan) < 1);
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
}

static void memory_is_the_sum_of_its_parts(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    const char *more[] = { "parallel.pp=2" };
    make(more, 1, &config, &plan);
    for (int r = 0; r < 2; r++) {
        sl_plan_memory memory = sl_train_plan_memory(plan, r);
        assert_true(memory.weights > 0 && memory.gradients > 0 && memory.activations > 0 && memory.messages > 0);
        assert_true(memory.optimizer > memory.weights && memory.optimizer < 3 * memory.weights); /* AdamW */
        assert_int_equal(memory.total, memory.weights + memory.gradients + memory.optimizer + memory.activations +
                                           memory.messages + memory.checkpoint);
    }
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
}

/* Bytes of values of the first rank of two on the tests' device. */
static size_t count_slots(const sl_train_config *config, bool threads)
{
    sl_train_plan *plan = NULL;
    sl_status status =
        threads ? sl_train_plan_create_threads(config, "test", &plan) : sl_train_plan_create(config, "test", &plan);
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
    size_t slots = sl_pipeline_get_memory(sl_train_plan_pipeline(plan), 0).slots;
    sl_train_plan_destroy(plan);
    return slots;
}

/* Ranks of one device work on messages in place. Each of those that torchrun started may have its own. */
static void processes_of_one_device_need_as_little_as_threads(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    const char *more[] = { "parallel.pp=2" };
    test_device_install();
    make(more, 1, &config, &plan);
    size_t threads = count_slots(config, true);
    assert_int_equal(count_slots(config, false), threads);
    test_device_set_apart(true);
    size_t apart = count_slots(config, false);
    test_device_set_apart(false);
    assert_true(apart > threads);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    assert_int_equal(count_slots(config, false), apart);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
}

/* Whether products here pack weights: BLAS does not. */
static bool has_own_products(void)
{
    sl_device *device = NULL;
    char text[256];
    assert_int_equal(sl_device_open("cpu", NULL, &device), SL_OK);
    bool own = strstr(sl_kernel_describe(device, text, sizeof text), "own products");
    sl_device_close(device);
    return own;
}

/* With one microbatch a weight would be packed as often as without; with too little memory a run goes without. */
static void weights_are_packed_for_several_microbatches_if_that_fits(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    char limit[64];
    const char *more[] = { "parallel.pp=2", "model.n_embd=128", limit, "batch.microbatches=1" };
    size_t packed[2] = { 0 }, total = 0;
    snprintf(limit, sizeof limit, "parallel.memory_gb=0");
    make(more, 4, &config, &plan);
    for (int r = 0; r < 2; r++)
        assert_int_equal(sl_pipeline_get_memory(sl_train_plan_pipeline(plan), r).packed, 0);
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    make(more, 3, &config, &plan);
    for (int r = 0; r < 2; r++) {
        sl_plan_memory memory = sl_train_plan_memory(plan, r);
        packed[r] = sl_pipeline_get_memory(sl_train_plan_pipeline(plan), r).packed;
        assert_true(memory.activations > packed[r] && (packed[r] > 0) == has_own_products());
        total = memory.total > total ? memory.total : total;
    }
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    snprintf(limit, sizeof limit, "parallel.memory_gb=%.9f", (double)(total - 1) * 1e-9);
    make(more, 3, &config, &plan);
    assert_int_equal(sl_train_plan_fits(plan), has_own_products());
    for (int r = 0; r < 2; r++) {
        assert_int_equal(sl_pipeline_get_memory(sl_train_plan_pipeline(plan), r).packed, 0);
        assert_true(sl_train_plan_memory(plan, r).total + packed[r] <= total);
    }
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
}

static void check_half(const char *what, size_t half, size_t whole)
{
    double ratio = (double)half / (double)whole;
    if (!(ratio > 0.49 && ratio < 0.53))
        fail_msg("%s take %.4f of what f32 takes", what, ratio);
}

/* Statistics and what aligns buffers stay as they are: a few percent. Scratch is the kernels' own business; gradients
 * of tied weights travel in f32. */
static void bf16_halves_weights_activations_and_messages(void **state)
{
    (void)state;
    sl_train_config *config[2] = { NULL };
    sl_train_plan *plan[2] = { NULL };
    const char *more[] = { "parallel.pp=2", "model.n_embd=128", "precision.dtype=f32", "model.tie=false" };
    make(more, 4, &config[0], &plan[0]);
    more[2] = "precision.dtype=bf16";
    make(more, 4, &config[1], &plan[1]);
    for (int r = 0; r < 2; r++) {
        sl_plan_memory whole = sl_train_plan_memory(plan[0], r), half = sl_train_plan_memory(plan[1], r);
        check_half("weights", half.weights, whole.weights);
        check_half("activations", sl_pipeline_get_memory(sl_train_plan_pipeline(plan[1]), r).slots,
                   sl_pipeline_get_memory(sl_train_plan_pipeline(plan[0]), r).slots);
        check_half("messages", half.messages, whole.messages);
        assert_int_equal(half.gradients, whole.gradients);
        assert_int_equal(half.checkpoint, whole.checkpoint); /* the masters */
        assert_in_range(half.optimizer - whole.optimizer, whole.weights * 99 / 100, whole.weights);
    }
    for (int i = 0; i < 2; i++) {
        sl_train_plan_destroy(plan[i]);
        sl_train_config_destroy(config[i]);
    }
}

/* Scratch memory of a rank that runs DualPipeV; wish is SLUICE_OVERLAP. */
static size_t scratch_of(const char *pp, const char *dp, const char *wish)
{
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    const char *more[] = { pp, dp, "parallel.schedule=DualPipeV" };
    if (wish)
        setenv("SLUICE_OVERLAP", wish, 1);
    else
        unsetenv("SLUICE_OVERLAP");
    make_for("test", more, 3, &config, &plan);
    unsetenv("SLUICE_OVERLAP");
    size_t scratch = sl_pipeline_get_memory(sl_train_plan_pipeline(plan), 0).scratch;
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    return scratch;
}

/* F and B of an overlap need scratch of their own only if they run at the same time. Ranks of one pipeline that share a
 * device do not do that; replicas may share it. */
static void a_second_scratch_is_counted_only_if_halves_overlap(void **state)
{
    (void)state;
    test_device_install();
    for (int apart = 0; apart < 2; apart++) {
        test_device_set_apart(apart);
        size_t one = scratch_of("parallel.pp=2", "parallel.dp=1", "off");
        size_t two = scratch_of("parallel.pp=2", "parallel.dp=1", "on");
        assert_true(two > one);
        assert_int_equal(scratch_of("parallel.pp=2", "parallel.dp=1", NULL), apart ? two : one);
        setenv("OMPI_COMM_WORLD_RANK", "0", 1); /* each may see a device of its own */
        setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
        assert_int_equal(scratch_of("parallel.pp=2", "parallel.dp=1", NULL), two);
        unsetenv("OMPI_COMM_WORLD_RANK");
        unsetenv("OMPI_COMM_WORLD_SIZE");
        one = scratch_of("parallel.pp=1", "parallel.dp=2", "off");
        two = scratch_of("parallel.pp=1", "parallel.dp=2", "on");
        assert_true(two > one);
        assert_int_equal(scratch_of("parallel.pp=1", "parallel.dp=2", NULL), two);
    }
    test_device_set_apart(false);
}

/* A run that goes on with fewer ranks keeps its replicas, on which its bits depend, as long as it can. */
static void fewer_ranks_shorten_the_pipeline_before_replicas_go(void **state)
{
    (void)state;
    static const struct {
        const char *pp, *dp, *schedule;
        int most, pp_left, dp_left;
    } cases[] = {
        { "parallel.pp=4", "parallel.dp=1", "parallel.schedule=1F1B", 3, 3, 1 },
        { "parallel.pp=4", "parallel.dp=2", "parallel.schedule=1F1B", 7, 3, 2 },
        { "parallel.pp=2", "parallel.dp=2", "parallel.schedule=1F1B", 3, 1, 2 },
        { "parallel.pp=1", "parallel.dp=4", "parallel.schedule=1F1B", 3, 1, 2 }, /* 8 rows do not go into three */
        { "parallel.pp=1", "parallel.dp=2", "parallel.schedule=1F1B", 1, 1, 1 },
    };
    char text[300], out[300];
    scratch_write(scratch_path("tale.txt"), "There was a well, and nobody knew how deep it was.\n", 51);
    snprintf(text, sizeof text, "data.text=%s", scratch_path("tale.txt"));
    snprintf(out, sizeof out, "run.out=%s", scratch_path("out"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *overrides[] = { text,
                                    out,
                                    "model.n_layer=4",
                                    "model.n_head=2",
                                    "model.n_embd=32",
                                    "batch.seq=16",
                                    "batch.size=8",
                                    "batch.microbatches=2",
                                    cases[i].pp,
                                    cases[i].dp,
                                    cases[i].schedule };
        int pp = 0, dp = 0;
        assert_int_equal(sl_train_fit_mesh(NULL, overrides, 11, cases[i].most, &pp, &dp), SL_OK);
        assert_int_equal(pp, cases[i].pp_left);
        assert_int_equal(dp, cases[i].dp_left);
        assert_int_equal(sl_train_fit_mesh(NULL, overrides, 11, 0, &pp, &dp), SL_ERR_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_ranks_shorten_the_pipeline_before_replicas_go),
        cmocka_unit_test(stages_are_the_whole_model_on_the_ranks_of_the_schedule),
        cmocka_unit_test(memory_is_the_sum_of_its_parts),
        cmocka_unit_test(processes_of_one_device_need_as_little_as_threads),
        cmocka_unit_test(bf16_halves_weights_activations_and_messages),
        cmocka_unit_test(a_second_scratch_is_counted_only_if_halves_overlap),
        cmocka_unit_test(weights_are_packed_for_several_microbatches_if_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
