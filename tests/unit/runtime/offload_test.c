/* What microbatches save goes to the host between F and its backward and comes back: the bits stay, memory shrinks. */
#include "unit/runtime/job.h"

#include "runtime/runtime.h"

enum { MICROBATCHES = 8, MANY = 1 << 20 };
static const size_t saved = 100000; /* bytes of a microbatch */

static const char *const schedules[] = {
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static job make_offloaded(const char *schedule, int ranks, size_t bytes)
{
    job made = job_make(schedule, ranks, 0, MICROBATCHES, 2 * MICROBATCHES);
    made.steps = 3;
    made.extra.offload_bytes = bytes;
    return made;
}

static int moves_of(const sl_runtime *runtime, int rank, sl_code code)
{
    const sl_pipeline_program program = sl_pipeline_get_program(sl_runtime_pipeline(runtime), rank, true);
    int count = 0;
    for (int64_t i = 0; i < program.instr_count; i++)
        count += program.instrs[i].code == code;
    return count;
}

/* As many come back as leave, in no more memory than was allowed; user counts those that left. */
static sl_status count_moves(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)stages, (void)count;
    int left = moves_of(runtime, rank, SL_CODE_OFFLOAD);
    const sl_pipeline_memory taken = sl_runtime_get_memory(runtime);
    const sl_pipeline_memory planned = sl_pipeline_get_memory(sl_runtime_pipeline(runtime), rank);
    if (left != moves_of(runtime, rank, SL_CODE_FETCH) || planned.offload > self->extra.offload_bytes ||
        taken.offload != planned.offload || taken.device != planned.device || (left > 0) != (planned.offload > 0))
        return sl_fail(SL_ERR_INTERNAL, "rank %d: %d regions leave, %zu bytes of the host", rank, left,
                       planned.offload);
    __atomic_fetch_add((int *)self->user, left, __ATOMIC_RELAXED);
    return SL_OK;
}

static int run_same_bits(job *made)
{
    int moves = 0;
    made->before = count_moves;
    made->user = &moves;
    job_assert_same_bits(made);
    return moves;
}

static void every_schedule_has_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEDULES; i++) {
        for (int ranks = 1; ranks <= 4; ranks += 1 + (ranks > 1)) {
            job all = make_offloaded(schedules[i], ranks, MANY), few = make_offloaded(schedules[i], ranks, 200);
            int most = run_same_bits(&all), some = run_same_bits(&few);
            assert_true(some <= most);
            if (ranks == 4 || i == 0) /* enough microbatches are under way */
                assert_true(most > 0);
        }
    }
}

static void partial_steps_and_evaluations_between_have_the_same_bits(void **state)
{
    (void)state;
    job made = make_offloaded("GPipe", 2, MANY);
    made.accumulate = true;
    made.steps = 4;
    made.eval_first = true;
    assert_true(run_same_bits(&made) > 0);
}

static sl_status note_slots(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)stages, (void)count;
    if (rank == 0)
        *(size_t *)self->user = sl_runtime_get_memory(runtime).slots;
    return SL_OK;
}

static size_t slots_of(size_t offload)
{
    size_t bytes = 0;
    job made = make_offloaded("GPipe", 1, offload);
    made.shape.more_saved = saved;
    made.before = note_slots;
    made.user = &bytes;
    if (job_run(&made) != SL_OK)
        fail_msg("%s", sl_error_message());
    sl_schedule_destroy(made.schedule);
    return bytes;
}

/* Of eight microbatches the first ones leave; one computes, one is on its way, one comes back. */
static void the_device_needs_less_memory(void **state)
{
    (void)state;
    size_t whole = slots_of(0), half = slots_of(5 * saved), least = slots_of(MANY);
    assert_true(whole > 8 * saved);
    assert_true(half < whole && least < half);
    assert_true(least < 5 * (saved + 2000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_has_the_same_bits),
        cmocka_unit_test(partial_steps_and_evaluations_between_have_the_same_bits),
        cmocka_unit_test(the_device_needs_less_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
