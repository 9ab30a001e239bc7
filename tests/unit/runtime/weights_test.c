/* Weights kept in shards and gathered by UNSHARD, gradients summed by REDUCE_GRAD beside the computation. */
#include "support/sample.h"
#include "unit/runtime/job.h"

#include "runtime/runtime.h"

#include <math.h>

static const char *const schedules[] = {
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static job make_sharded(const char *schedule, int ranks, int replicas, sl_shard_mode mode)
{
    job made = job_make(schedule, ranks, 0, 4, 8);
    made.steps = 3;
    made.replicas = replicas;
    made.extra.shard = mode;
    return made;
}

/* A sample has one of the two numbers of ranks for each schedule and number of replicas. */
static void shards_give_the_bits_of_whole_weights(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEDULES; i++) {
        for (int ranks = 1; ranks <= 2; ranks++) {
            for (int replicas = 1; replicas <= 3; replicas++) { /* 3 elements: in one, two uneven and three parts */
                if (!test_in_sample((size_t)(i + replicas), ranks - 1, 2))
                    continue;
                for (int unsharded = 2; unsharded <= 3; unsharded++) {
                    job made = make_sharded(schedules[i], ranks, replicas, SL_SHARD_FULL);
                    made.extra.unsharded_stages = unsharded;
                    made.eval_first = unsharded == 2;
                    made.extra.helper = unsharded == 2 ? SL_HELPER_OFF : SL_HELPER_ON;
                    job_assert_same_bits(&made);
                }
                job made = make_sharded(schedules[i], ranks, replicas, SL_SHARD_OPTIMIZER);
                made.extra.helper = SL_HELPER_ON;
                job_assert_same_bits(&made);
            }
        }
    }
}

static void tied_weights_are_summed_part_by_part(void **state)
{
    (void)state;
    for (int replicas = 1; replicas <= 3; replicas++) {
        for (sl_shard_mode mode = SL_SHARD_NONE; mode <= SL_SHARD_FULL; mode++) {
            job made = make_sharded("Interleaved1F1B", 2, replicas, mode);
            made.shape.tied_with[made.shape.stages - 1] = 0;
            job_assert_same_bits(&made);
        }
    }
}

/* Groups of neighbors that share, each of them with all parts: as many, and as few, as four replicas can make. A sample
 * has tied weights in every second run. */
static void groups_that_share_give_the_same_bits(void **state)
{
    (void)state;
    for (int group = 1; group <= 4; group *= 2) {
        for (sl_shard_mode mode = SL_SHARD_OPTIMIZER; mode <= SL_SHARD_FULL; mode++) {
            for (int tied = 0; tied < 2; tied++) {
                if (!test_in_sample((size_t)(group / 2) + mode, tied, 2))
                    continue;
                job made = make_sharded("InterleavedZeroBubble", 2, 4, mode);
                made.extra.shard_group = group;
                if (tied)
                    made.shape.tied_with[made.shape.stages - 1] = 0;
                job_assert_same_bits(&made);
            }
        }
    }
}

static void groups_that_do_not_divide_the_replicas_are_refused(void **state)
{
    (void)state;
    job made = make_sharded("1F1B", 1, 3, SL_SHARD_FULL);
    made.extra.shard_group = 2;
    assert_int_not_equal(job_run(&made), SL_OK);
    assert_non_null(strstr(sl_error_message(), "3 replicas cannot be shared out to groups of 2"));
    sl_schedule_destroy(made.schedule);
}

static void partial_steps_add_up_in_the_shards(void **state)
{
    (void)state;
    for (int replicas = 1; replicas <= 2; replicas++) {
        job made = make_sharded("1F1B", 2, replicas, SL_SHARD_FULL);
        made.accumulate = true;
        made.steps = 4;
        /* Each partial step is summed by itself, then added: another order than that of whole weights. */
        job whole = made;
        whole.extra.shard = SL_SHARD_NONE;
        sl_schedule *schedule = made.schedule;
        assert_int_equal(job_run(&made), SL_OK);
        assert_int_equal(job_run(&whole), SL_OK);
        for (int s = 0; s < made.shape.stages; s++) {
            for (int c = 0; c < WIDTH; c++)
                assert_true(fabsf(made.weights[s][c] - whole.weights[s][c]) < 1e-6f);
        }
        sl_schedule_destroy(schedule);
    }
}

/* ---- Slots ---- */

typedef struct slots_seen {
    int blocks, unshards; /* different cells, and instructions */
    sl_pipeline_memory memory, predicted;
    size_t in_use;
} slots_seen;

static sl_status look_at_slots(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    slots_seen *seen = self->user;
    const void *places[64];
    (void)stages;
    (void)count;
    if (rank != 0 || (runtime->replicas && sl_group_rank(runtime->replicas) != 0))
        return SL_OK;
    for (int64_t i = 0; i < runtime->train.instr_count; i++) {
        const sl_instr *instr = &runtime->train.instrs[i];
        if (instr->code != SL_CODE_UNSHARD)
            continue;
        bool known = false;
        for (int k = 0; k < seen->blocks; k++)
            known |= places[k] == *instr->cell;
        if (!known)
            places[seen->blocks++] = *instr->cell;
        seen->unshards++;
    }
    seen->memory = sl_runtime_get_memory(runtime);
    seen->predicted = sl_pipeline_get_memory(runtime->pipeline, runtime->rank);
    sl_carrier_name carrier;
    if (sl_carrier_is_expected(runtime->device, &carrier))
        seen->predicted.messages += sl_runtime_carrier_bytes(runtime->pipeline, runtime->rank, carrier);
    seen->in_use = sl_device_get_memory(runtime->device).in_use;
    return SL_OK;
}

static void as_many_blocks_as_stages_are_unsharded_at_once(void **state)
{
    (void)state;
    for (int unsharded = 1; unsharded <= 4; unsharded++) {
        slots_seen seen = { 0 };
        job made = job_make("Interleaved1F1B", 2, 4, 4, 8);
        made.steps = 1;
        made.replicas = 2;
        made.extra.shard = SL_SHARD_FULL;
        made.extra.unsharded_stages = unsharded;
        made.before = look_at_slots;
        made.user = &seen;
        if (job_run(&made) != SL_OK)
            fail_msg("%s", sl_error_message());
        assert_int_equal(seen.blocks, unsharded);
        assert_true(seen.unshards >= 4);
        assert_int_equal(seen.memory.params, 4 * 64); /* 4 stages with 2 of 3 elements each, aligned */
        assert_int_equal(seen.memory.grads, 4 * 64);
        assert_memory_equal(&seen.memory, &seen.predicted, sizeof seen.memory);
        assert_int_equal(seen.memory.device, seen.in_use);
        sl_schedule_destroy(made.schedule);
    }
}

static void nothing_is_left_to_read_after_reshard(void **state)
{
    (void)state;
    const char csv[] = "0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD,0REDUCE_GRAD\n";
    job made = { .samples = 2, .microbatches = 1, .steps = 2 };
    assert_int_equal(sl_schedule_parse_csv(csv, strlen(csv), "test", &made.schedule), SL_OK);
    made.shape = toy_shape_make(1);
    made.extra.shard = SL_SHARD_FULL;
    job_assert_same_bits(&made);
}

/* ---- Refusals ---- */

static void assert_refused(const char *csv, const char *reason)
{
    job made = { .samples = 2, .microbatches = 1, .steps = 1 };
    assert_int_equal(sl_schedule_parse_csv(csv, strlen(csv), "test", &made.schedule), SL_OK);
    made.shape = toy_shape_make(sl_schedule_stages(made.schedule));
    made.extra.shard = SL_SHARD_FULL;
    assert_int_not_equal(job_run(&made), SL_OK);
    if (!strstr(sl_error_message(), reason))
        fail_msg("'%s' does not say '%s'", sl_error_message(), reason);
    sl_schedule_destroy(made.schedule);
}

static void schedules_that_miss_weights_are_refused(void **state)
{
    (void)state;
    assert_refused("0UNSHARD,0F0,0RESHARD,0B0,0REDUCE_GRAD\n", "0B0: its stage has to be unsharded before it");
    assert_refused("0UNSHARD,1UNSHARD,0F0,1F0,1B0,0B0,0RESHARD,1RESHARD,0REDUCE_GRAD\n", "1REDUCE_GRAD: it is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_give_the_bits_of_whole_weights),
        cmocka_unit_test(tied_weights_are_summed_part_by_part),
        cmocka_unit_test(groups_that_share_give_the_same_bits),
        cmocka_unit_test(groups_that_do_not_divide_the_replicas_are_refused),
        cmocka_unit_test(partial_steps_add_up_in_the_shards),
        cmocka_unit_test(as_many_blocks_as_stages_are_unsharded_at_once),
        cmocka_unit_test(nothing_is_left_to_read_after_reshard),
        cmocka_unit_test(schedules_that_miss_weights_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
