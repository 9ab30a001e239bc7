/* What users of a runtime rely on beside the numbers: memory, hooks, outputs. */
#include "unit/runtime/job.h"

#include "base/alloc.h"
#include "runtime/runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* ---- Allocations of this process: the C library's own are counted where no sanitizer has taken them over ---- */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

static atomic_llong mallocs;

#ifndef SANITIZED
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

static job make_job(const char *name, int ranks, int stages_per_rank, int microbatches, int samples)
{
    job made = { .samples = samples, .microbatches = microbatches, .steps = 2 };
    sl_generate_options options = {
        .name = name, .ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank
    };
    if (sl_schedule_generate(&options, &made.schedule) != SL_OK)
        fail_msg("%s: %s", name, sl_error_message());
    made.shape = toy_shape_make(sl_schedule_stages(made.schedule));
    return made;
}

static void run(job *made)
{
    if (job_run(made) != SL_OK)
        fail_msg("%s", sl_error_message());
    sl_schedule_destroy(made->schedule);
}

/* ---- Memory ---- */

typedef struct counts {
    long long before[MAX_RANKS], after[MAX_RANKS];
} counts;

/* Runs steps that stand between two barriers; the job's own steps have warmed everything up by then. */
static sl_status count_allocations(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    counts *into = self->user;
    sl_status status = SL_OK;
    static _Thread_local float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int64_t dims[] = { self->samples, WIDTH };
    sl_arg args[2] = { { "x", { x, sl_meta_make(SL_F32, 2, dims) } }, { "t", { t, sl_meta_make(SL_F32, 2, dims) } } };
    (void)stages, (void)count;
    job_batch(0, 0, self->samples, x, t);
    SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
    SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
    into->before[rank] = allocations();
    for (int i = 0; i < 3; i++) {
        SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = 2 + i }, NULL));
        SL_TRY(sl_runtime_eval(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = 2 + i }, NULL));
    }
    SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
    into->after[rank] = allocations();
    SL_TRY(sl_group_barrier(sl_runtime_group(runtime)));
done:
    return status;
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    static const char *const names[] = { "GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        counts seen = { 0 };
        job made = make_job(names[i], 2, 0, 4, 8);
        made.shape.tied_with[made.shape.stages - 1] = 0;
        made.extra.trace_events = 100;
        made.after = count_allocations;
        made.user = &seen;
        run(&made);
        assert_true(seen.before[0] > 0);
        for (int r = 0; r < 2; r++)
            assert_int_equal(seen.after[r], seen.before[r]);
    }
}

typedef struct sizes {
    sl_runtime_memory memory[MAX_RANKS];
    size_t in_use[MAX_RANKS], peak[MAX_RANKS];
} sizes;

static sl_status look_at_memory(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sizes *into = self->user;
    (void)stages, (void)count;
    into->memory[rank] = sl_runtime_get_memory(runtime);
    sl_device_memory memory = sl_device_get_memory(sl_stream_device(sl_runtime_stream(runtime)));
    into->in_use[rank] = memory.in_use;
    into->peak[rank] = memory.peak;
    return SL_OK;
}

static void device_memory_is_what_was_predicted(void **state)
{
    (void)state;
    sizes saw = { 0 };
    job made = make_job("1F1B", 4, 0, 8, 16);
    made.after = look_at_memory;
    made.user = &saw;
    run(&made);
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

/* Blocks of the saved regions that the runtime keeps, beside what the schedule layer counts. */
static sl_status look_at_slots(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    int *into = self->user;
    size_t saved = (stages[0].stage->saved_w_bytes + 63) / 64 * 64;
    (void)count;
    for (int i = 0; i < runtime->layout.slots.class_count; i++) {
        if (runtime->layout.slots.classes[i].bytes == saved)
            into[rank] = runtime->layout.slots.classes[i].count;
    }
    return SL_OK;
}

static void slots_are_those_that_the_schedule_needs(void **state)
{
    (void)state;
    for (int i = 0; sl_generator_name(i); i++) {
        int found[MAX_RANKS] = { 0 }, needed[MAX_RANKS];
        job made = make_job(sl_generator_name(i), 4, 0, 8, 8);
        if (!sl_schedule_has_backward(made.schedule)) {
            sl_schedule_destroy(made.schedule);
            continue;
        }
        made.shape.more_saved = 4096; /* so that nothing else has this size */
        made.after = look_at_slots;
        made.user = found;
        assert_int_equal(sl_schedule_count_slots(made.schedule, needed, NULL), SL_OK);
        run(&made);
        for (int r = 0; r < 4; r++)
            assert_int_equal(found[r], needed[r]);
    }
}

/* Where every stage read and wrote, of all ranks. */
static sl_status keep_addresses(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    toy_stage *all = self->user;
    (void)rank, (void)runtime;
    for (int i = 0; i < count; i++)
        all[stages[i].index] = stages[i];
    return SL_OK;
}

static void values_and_gradients_are_handed_over_without_a_copy(void **state)
{
    (void)state;
    /* Two stages a rank in V placement: stages 1 and 2 are neighbours on one rank, the others talk over channels, whose
     * memory is shared by ranks that are threads. */
    toy_stage *all = calloc(MAX_STAGES, sizeof *all);
    job made = make_job("ZBVZeroBubble", 2, 2, 4, 8);
    made.steps = 1;
    made.after = keep_addresses;
    made.user = all;
    run(&made);
    for (int s = 0; s + 1 < 4; s++) {
        for (int m = 0; m < 4; m++) {
            assert_non_null(all[s].wrote_at[m]);
            assert_ptr_equal(all[s].wrote_at[m], all[s + 1].read_at[m]);
            assert_non_null(all[s].grad_read_at[m]);
            assert_ptr_equal(all[s].grad_read_at[m], all[s + 1].grad_wrote_at[m]);
        }
    }
    free(all);
}

static void every_microbatch_knows_its_place_in_the_batch(void **state)
{
    (void)state;
    static const int firsts[] = { 0, 3, 6, 8 }; /* 3, 3, 2 and 2 samples */
    toy_stage *all = calloc(MAX_STAGES, sizeof *all);
    job made = make_job("1F1B", 2, 1, 4, 10);
    made.shape.open_shapes = true;
    made.after = keep_addresses;
    made.user = all;
    run(&made);
    for (int s = 0; s < 2; s++) {
        for (int m = 0; m < 4; m++) {
            assert_int_equal(all[s].rng[m].sample_offset, firsts[m]);
            assert_int_equal(all[s].rng[m].step, 1); /* the last of two */
            assert_true(all[s].rng[m].training);
        }
    }
    free(all);
}

/* ---- Small questions ---- */

static sl_status look_at_runtime(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sl_status status = SL_OK;
    int *seen = self->user, params = 0;
    const sl_param *list = sl_runtime_params(runtime, &params), *found = NULL;
    (void)stages;
    seen[rank] += sl_runtime_microbatches(runtime) == self->microbatches;
    seen[rank] += sl_schedule_has_messages(sl_runtime_schedule(runtime)); /* the one that was given has none */
    seen[rank] += params == count;                                        /* a toy stage has one */
    for (int i = 0; i < params; i++) {
        SL_TRY(sl_runtime_find_param(runtime, list[i].name, &found));
        seen[rank] += found == &list[i];
    }
    seen[rank] += sl_runtime_find_param(runtime, "nobody", &found) == SL_ERR_ARGUMENT;
    const float *grad = list[0].grad.data;
    bool any = false;
    for (int c = 0; c < WIDTH; c++)
        any |= grad[c] != 0;
    seen[rank] += any;
    SL_TRY(sl_runtime_zero_grads(runtime));
    any = false;
    for (int c = 0; c < WIDTH; c++)
        any |= grad[c] != 0;
    seen[rank] += !any;
done:
    return status;
}

static void a_runtime_tells_what_it_was_made_of(void **state)
{
    (void)state;
    int seen[MAX_RANKS] = { 0 };
    job made = make_job("Interleaved1F1B", 2, 2, 4, 8);
    made.after = look_at_runtime;
    made.user = seen;
    run(&made);
    assert_int_equal(seen[0], 8);
    assert_int_equal(seen[1], 8);
}

/* ---- Arguments ---- */

/* whole is [WIDTH, samples]; a part is the transpose of its columns. */
static sl_status split_columns(void *user, const sl_view *whole, int count, int index, sl_view *part)
{
    sl_status status = SL_OK;
    int64_t start, length, offset = 0;
    sl_meta columns;
    (void)user;
    sl_chunk_range(whole->meta.shape.dims[1], count, index, &start, &length);
    SL_TRY(sl_meta_slice(&whole->meta, 1, start, start + length, 1, &columns, &offset));
    SL_TRY(sl_meta_transpose(&columns, 0, 1, &part->meta));
    part->data = (float *)whole->data + offset;
done:
    return status;
}

static sl_status merge_sum(void *user, const sl_view *part, int count, int index, const sl_view *whole)
{
    (void)user, (void)count, (void)index;
    for (int64_t i = 0; i < sl_meta_count(&part->meta); i++)
        ((float *)whole->data)[i] += ((const float *)part->data)[i];
    return SL_OK;
}

static sl_status step_with_specs(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float x[WIDTH * 4], t[2 * WIDTH], sum[2 * WIDTH] = { 0 }, w[WIDTH] = { 1, 2, 3 };
    float expected_sum[2 * WIDTH] = { 0 };
    float *losses = self->user;
    sl_step_result result;
    sl_status status = SL_OK;
    int param_count = 0;
    (void)rank, (void)stages, (void)count;
    toy_fill(x, WIDTH * 4, 1);
    toy_fill(t, 2 * WIDTH, 2);
    memcpy(sl_runtime_params(runtime, &param_count)->data.data, w, sizeof w);
    sl_arg args[2] = { { "t", { t, sl_meta_make(SL_F32, 2, (int64_t[]){ 2, WIDTH }) } },
                       { NULL, { x, sl_meta_make(SL_F32, 2, (int64_t[]){ WIDTH, 4 }) } } };
    sl_output output = { .name = "y",
                         .view = { sum, sl_meta_make(SL_F32, 2, (int64_t[]){ 2, WIDTH }) },
                         .chunk = { .kind = SL_CHUNK_CUSTOM, .merge = merge_sum } };
    SL_TRY(sl_runtime_eval(runtime, &(sl_step){ .args = args, .arg_count = 2, .outputs = &output, .output_count = 1 },
                           &result));
    for (int m = 0; m < 2; m++) {
        float part[2 * WIDTH], y[2 * WIDTH];
        for (int i = 0; i < 2 * WIDTH; i++)
            part[i] = x[i % WIDTH * 4 + 2 * m + i / WIDTH];
        toy_forward(part, NULL, w, 2, y);
        losses[m] = result.losses[m] - toy_loss(y, t, 2);
        for (int i = 0; i < 2 * WIDTH; i++)
            expected_sum[i] += y[i];
    }
    losses[2] = memcmp(sum, expected_sum, sizeof sum) == 0 ? 0 : 1;
done:
    return status;
}

static void arguments_may_be_cut_and_outputs_merged_in_any_way(void **state)
{
    (void)state;
    float differences[3] = { 1, 1, 1 };
    sl_arg_spec specs[2] = { { .name = "x", .chunk = { .kind = SL_CHUNK_CUSTOM, .split = split_columns } },
                             { .name = "t", .chunk = { .kind = SL_CHUNK_REPLICATE } } };
    specs[0].meta.shape.rank = specs[1].meta.shape.rank = -1;
    job made = make_job("GPipe", 1, 1, 2, 4);
    made.extra.args = specs;
    made.extra.arg_count = 2;
    made.before = step_with_specs;
    made.steps = 0;
    made.user = differences;
    run(&made);
    for (int i = 0; i < 3; i++)
        assert_true(differences[i] == 0);
}

/* ---- Hooks ---- */

typedef struct hooks {
    atomic_int kinds[SL_KIND_COUNT], runs, wrong;
} hooks;

static sl_status run_weights(void *user, const sl_stage_call *call)
{
    toy_stage *toy = user;
    if (call->phase != SL_PHASE_W)
        return sl_fail(SL_ERR_STAGE, "phase %d", (int)call->phase);
    toy->calls[SL_PHASE_B] += 1000;
    return toy_run_weight(toy, call);
}

static sl_status count_runs(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    hooks *seen = self->user;
    (void)rank, (void)runtime;
    for (int i = 0; i < count; i++)
        atomic_fetch_add(stages[i].calls[SL_PHASE_B] == 1000 * 2 * self->microbatches ? &seen->runs : &seen->wrong, 1);
    return SL_OK;
}

static sl_status set_runner(job *self, toy_stage *stage)
{
    (void)self;
    return sl_stage_set_weight_runner(stage->stage, run_weights, stage);
}

static sl_status set_runner_late(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)rank, (void)runtime, (void)count;
    return set_runner(self, &stages[0]);
}

static void a_weight_runner_runs_once_a_microbatch(void **state)
{
    (void)state;
    static const char *const names[] = { "1F1B", "InterleavedZeroBubble", "DualPipeV" }; /* B, I and W, both */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        hooks seen = { 0 };
        job made = make_job(names[i], 2, 0, 4, 8), plain = make_job(names[i], 2, 0, 4, 8);
        made.prepare = set_runner;
        made.after = count_runs;
        made.user = &seen;
        run(&made);
        run(&plain);
        assert_int_equal(seen.wrong, 0);
        assert_int_equal(seen.runs, made.shape.stages);
        assert_memory_equal(made.weights, plain.weights, sizeof made.weights);
    }
}

static void a_stage_does_not_change_under_its_runtime(void **state)
{
    (void)state;
    job made = make_job("1F1B", 1, 1, 2, 2);
    made.before = set_runner_late;
    assert_int_equal(job_run(&made), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "stage 0 belongs to a runtime already");
    sl_schedule_destroy(made.schedule);
}

static sl_status count_action(void *user, sl_runtime *runtime, sl_action action)
{
    hooks *seen = user;
    atomic_fetch_add(&seen->kinds[action.kind], 1);
    return sl_runtime_run_action(runtime, action);
}

static sl_status set_actions(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sl_status status = SL_OK;
    (void)rank, (void)stages, (void)count;
    for (int kind = 0; kind < SL_KIND_COUNT; kind++)
        SL_TRY(sl_runtime_set_action(runtime, (sl_kind)kind, count_action, self->user));
done:
    return status;
}

static void every_kind_of_action_can_be_replaced(void **state)
{
    (void)state;
    hooks seen = { 0 };
    job made = make_job("InterleavedZeroBubble", 2, 2, 4, 8), plain = make_job("InterleavedZeroBubble", 2, 2, 4, 8);
    made.before = set_actions;
    made.user = &seen;
    run(&made);
    run(&plain);
    assert_memory_equal(made.weights, plain.weights, sizeof made.weights);
    assert_int_equal(seen.kinds[SL_KIND_F], 2 * 4 * 4); /* steps, stages, microbatches */
    assert_int_equal(seen.kinds[SL_KIND_I] + seen.kinds[SL_KIND_B], 2 * 4 * 4);
    assert_int_equal(seen.kinds[SL_KIND_SEND_F], 2 * 3 * 4);
    assert_int_equal(seen.kinds[SL_KIND_RECV_B], 2 * 3 * 4);

    hooks both = { 0 };
    job overlapped = make_job("DualPipeV", 2, 0, 8, 8), untouched = make_job("DualPipeV", 2, 0, 8, 8);
    overlapped.before = set_actions;
    overlapped.user = &both;
    run(&overlapped);
    run(&untouched);
    assert_memory_equal(overlapped.weights, untouched.weights, sizeof overlapped.weights);
    assert_true(both.kinds[SL_KIND_OVERLAP_F_B] > 0);
    assert_int_equal(both.kinds[SL_KIND_F] + both.kinds[SL_KIND_OVERLAP_F_B], 2 * 4 * 8);
}

/* ---- Outputs ---- */

static sl_status ask_first_rank(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float room[MAX_SAMPLES * WIDTH];
    sl_output output = { .name = "y", .view = { room, sl_meta_make(SL_F32, 2, (int64_t[]){ self->samples, WIDTH }) } };
    float x[MAX_SAMPLES * WIDTH];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ self->samples, WIDTH });
    sl_arg args[2] = { { NULL, { x, meta } }, { NULL, { x, meta } } };
    (void)stages, (void)count;
    job_batch(0, 0, self->samples, x, room);
    return sl_runtime_eval(
        runtime,
        &(sl_step){ .args = args, .arg_count = 2, .outputs = rank == 0 ? &output : NULL, .output_count = rank == 0 },
        NULL);
}

static void outputs_are_kept_by_the_rank_with_their_stage_alone(void **state)
{
    (void)state;
    job made = make_job("1F1B", 2, 0, 4, 8);
    made.before = ask_first_rank;
    assert_int_equal(job_run(&made), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "no stage of rank 0 has an output 'y'"));
    sl_schedule_destroy(made.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(device_memory_is_what_was_predicted),
        cmocka_unit_test(slots_are_those_that_the_schedule_needs),
        cmocka_unit_test(values_and_gradients_are_handed_over_without_a_copy),
        cmocka_unit_test(every_microbatch_knows_its_place_in_the_batch),
        cmocka_unit_test(a_runtime_tells_what_it_was_made_of),
        cmocka_unit_test(arguments_may_be_cut_and_outputs_merged_in_any_way),
        cmocka_unit_test(a_weight_runner_runs_once_a_microbatch),
        cmocka_unit_test(a_stage_does_not_change_under_its_runtime),
        cmocka_unit_test(every_kind_of_action_can_be_replaced),
        cmocka_unit_test(outputs_are_kept_by_the_rank_with_their_stage_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
