/* The memory of a runtime: a step takes none, and what it has was predicted. */
#include "unit/runtime/job.h"

#include "base/alloc.h"
#include "runtime/runtime.h"
#include "support/sanitized.h"

#include <stdatomic.h>

/* ---- Allocations of this process: the C library's own are counted if no sanitizer has taken them over ---- */

static atomic_llong mallocs;

#if !TEST_SANITIZED
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_calloc(count, size);
}

void *realloc(void *block, size_t bytes)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_realloc(block, bytes);
}
#endif

static long long allocations(void)
{
    return atomic_load(&mallocs) + sl_alloc_count();
}

typedef struct counts {
    long long before[MAX_RANKS], after[MAX_RANKS];
} counts;

/* All ranks of all pipelines are here. */
static sl_status meet(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
    if (runtime->replicas)
        SL_TRY(sl_group_barrier(runtime->replicas));
    SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
done:
    return status;
}

/* Runs steps that stand between two barriers; the job's own steps have warmed everything up by then. */
static sl_status count_allocations(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    counts *into = self->user;
    sl_status status = SL_OK;
    static _Thread_local float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int64_t dims[] = { self->samples, WIDTH };
    sl_arg args[2] = { { "x", { x, sl_meta_make(SL_F32, 2, dims) } }, { "t", { t, sl_meta_make(SL_F32, 2, dims) } } };
    bool speaks = !runtime->replicas || sl_group_rank(runtime->replicas) == 0;
    (void)stages, (void)count;
    job_batch(0, 0, self->samples, x, t);
    SL_TRY(meet(runtime));
    SL_TRY(meet(runtime));
    if (speaks)
        into->before[rank] = allocations();
    for (int i = 0; i < 3; i++) {
        SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = 2 + i }, NULL));
        SL_TRY(sl_runtime_eval(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = 2 + i }, NULL));
    }
    SL_TRY(meet(runtime));
    if (speaks)
        into->after[rank] = allocations();
    SL_TRY(meet(runtime));
done:
    return status;
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    static const char *const names[] = { "GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV" };
    for (size_t i = 0; i < 2 * (sizeof names / sizeof *names); i++) {
        counts seen = { 0 };
        job made = job_make(names[i / 2], 2, 0, 4, 8);
        made.device = "cpu"; /* the tests' own allocates */
        made.replicas = i % 2 ? 2 : 0;
        made.shape.tied_with[made.shape.stages - 1] = 0;
        made.extra.trace_events = 100;
        made.after = count_allocations;
        made.user = &seen;
        job_finish(&made);
        assert_true(seen.before[0] > 0);
        for (int r = 0; r < 2; r++)
            assert_int_equal(seen.after[r], seen.before[r]);
    }
}

/* The first steps may allocate. Then streams are slow: the host waits for them and looks at what they wait for. */
static sl_status count_beside_slow(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    counts *into = self->user;
    sl_status status = SL_OK;
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int64_t dims[] = { self->samples, WIDTH };
    sl_arg args[2] = { { "x", { x, sl_meta_make(SL_F32, 2, dims) } }, { "t", { t, sl_meta_make(SL_F32, 2, dims) } } };
    (void)stages, (void)count;
    job_batch(0, 0, self->samples, x, t);
    for (int i = 0; i < 5; i++) {
        SL_TRY(meet(runtime));
        if (i == 4)
            into->before[rank] = sl_alloc_count();
        SL_TRY(meet(runtime));
        if (i == 4)
            test_device_set_pause(10);
        SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = 2 + i }, NULL));
    }
    SL_TRY(meet(runtime));
    into->after[rank] = sl_alloc_count();
    SL_TRY(meet(runtime));
done:
    return status;
}

static void a_step_that_waits_long_allocates_nothing(void **state)
{
    static const char *const links[] = { "1", "nccl", "mpi" };
    (void)state;
    test_device_install();
    for (int i = 0; i < 3; i++) {
        counts seen = { 0 };
        assert_int_equal(setenv("SLUICE_DEVICE_LINKS", links[i], 1), 0);
        job made = job_make("1F1B", 2, 0, 4, 8);
        made.device = "test";
        made.after = count_beside_slow;
        made.user = &seen;
        job_finish(&made);
        test_device_set_pause(0);
        for (int r = 0; r < 2; r++)
            assert_int_equal(seen.after[r], seen.before[r]);
    }
    assert_int_equal(unsetenv("SLUICE_DEVICE_LINKS"), 0);
}

typedef struct sizes {
    sl_pipeline_memory memory[MAX_RANKS];
    size_t in_use[MAX_RANKS], peak[MAX_RANKS];
    size_t predicted[MAX_RANKS]; /* for messages through the carrier that is asked for */
} sizes;

static sl_status look_at_memory(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sizes *into = self->user;
    (void)stages, (void)count;
    if (runtime->replicas && sl_group_rank(runtime->replicas) > 0)
        return SL_OK; /* the first one says it for all */
    into->memory[rank] = sl_runtime_get_memory(runtime);
    sl_carrier_name carrier;
    into->predicted[rank] = sl_pipeline_get_memory(runtime->pipeline, rank).messages;
    if (sl_carrier_is_expected(runtime->device, &carrier))
        into->predicted[rank] += sl_runtime_carrier_bytes(runtime->pipeline, rank, carrier);
    sl_device_memory memory = sl_device_get_memory(sl_stream_device(sl_runtime_stream(runtime)));
    into->in_use[rank] = memory.in_use;
    into->peak[rank] = memory.peak;
    return SL_OK;
}

static void device_memory_is_what_was_predicted(void **state)
{
    (void)state;
    sizes saw = { 0 };
    job made = job_make("1F1B", 4, 0, 8, 16);
    made.device = "cpu";
    made.after = look_at_memory;
    made.user = &saw;
    job_finish(&made);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(saw.memory[r].device, saw.in_use[r]);
        assert_int_equal(saw.memory[r].device, saw.peak[r]);
        assert_int_equal(saw.memory[r].params, 64); /* 3 floats, aligned */
        assert_int_equal(saw.memory[r].grads, 64);
    }
    /* Rank r of 4 holds 4 - r microbatches: one saved region of 24 bytes each, and the last one's output, loss, seed.
     */
    assert_int_equal(saw.memory[0].slots, 4 * 64);
    assert_int_equal(saw.memory[1].slots, 3 * 64);
    assert_int_equal(saw.memory[2].slots, 2 * 64);
    assert_int_equal(saw.memory[3].slots, 1 * 64 + 64 + 2 * 8 * 8);
}

/* What a carrier takes is counted before the run as it is taken. */
static void memory_of_carriers_is_what_was_predicted(void **state)
{
    (void)state;
    test_device_install();
    for (int i = 0; i < 8; i++) {
        sizes saw = { 0 };
        bool nccl = i < 4;
        assert_int_equal(setenv("SLUICE_DEVICE_LINKS", nccl ? "nccl" : "mpi", 1), 0);
        job made = job_make(i % 2 ? "Interleaved1F1B" : "1F1B", 2, 0, 4, 8);
        made.device = "test";
        made.replicas = i / 2 % 2 ? 2 : 0;
        made.shape.tied_with[made.shape.stages - 1] = 0;
        made.after = look_at_memory;
        made.user = &saw;
        job_finish(&made);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(saw.memory[r].messages, saw.predicted[r]);
            assert_int_equal(saw.predicted[r] > 460000000, nccl);
        }
    }
    assert_int_equal(unsetenv("SLUICE_DEVICE_LINKS"), 0);
}

/* Blocks of the saved regions that the runtime keeps, beside what the schedule layer counts. */
static sl_status look_at_slots(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    int *into = self->user;
    const sl_rank_plan *plan = &runtime->pipeline->ranks[rank];
    size_t saved = (stages[0].stage->saved_w_bytes + 63) / 64 * 64;
    (void)count;
    for (int i = 0; i < plan->slots.class_count; i++) {
        if (plan->slots.classes[i].bytes == saved)
            into[rank] = plan->slots.classes[i].count;
    }
    return SL_OK;
}

static void slots_are_those_that_the_schedule_needs(void **state)
{
    (void)state;
    for (int i = 0; sl_generator_name(i); i++) {
        int found[MAX_RANKS] = { 0 }, needed[MAX_RANKS];
        job made = job_make(sl_generator_name(i), 4, 0, 8, 8);
        if (!sl_schedule_has_backward(made.schedule)) {
            sl_schedule_destroy(made.schedule);
            continue;
        }
        made.shape.more_saved = 4096; /* so that nothing else has this size */
        made.after = look_at_slots;
        made.user = found;
        assert_int_equal(sl_schedule_count_slots(made.schedule, needed, NULL), SL_OK);
        job_finish(&made);
        for (int r = 0; r < 4; r++)
            assert_int_equal(found[r], needed[r]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_step_that_waits_long_allocates_nothing),
        cmocka_unit_test(device_memory_is_what_was_predicted),
        cmocka_unit_test(memory_of_carriers_is_what_was_predicted),
        cmocka_unit_test(slots_are_those_that_the_schedule_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
