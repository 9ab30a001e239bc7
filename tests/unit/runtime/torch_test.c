/* PyTorch 2.15's lowered schedules are executed, and give the bits of the same stages run one after another. */
#include "support/sample.h"
#include "unit/runtime/job.h"

#include <dirent.h>

/* A job on a file's schedule; false if the file is none of the cases, or larger than the toy pipelines. */
static bool make_job(const char *file, job *out)
{
    const char *data = getenv("SLUICE_DATA");
    char generator[64], options[64], path[1024];
    int ranks, microbatches, stages_per_rank;
    if (sscanf(file, "%63[^_]_pp%d_mb%d_v%d.%63[^.].csv", generator, &ranks, &microbatches, &stages_per_rank,
               options) != 5 ||
        strcmp(options, "compute") == 0 || strcmp(options, "slots") == 0 || ranks * stages_per_rank > MAX_STAGES)
        return false;
    *out = (job){ .samples = 2 * microbatches + 1, .microbatches = microbatches, .steps = 2, .label = file };
    snprintf(path, sizeof path, "%s/schedules-2.15/%s", data ? data : "tests/data", file);
    if (sl_schedule_load_csv(path, &out->schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    out->shape = toy_shape_make(sl_schedule_stages(out->schedule));
    out->shape.open_shapes = true; /* uneven microbatches */
    return true;
}

/* A sample has every fourth file in the order of their names. */
static void its_files_give_the_bits_of_one_stage_after_another(void **state)
{
    (void)state;
    const char *data = getenv("SLUICE_DATA");
    char folder[512];
    int found = 0;
    struct dirent **entries = NULL;
    snprintf(folder, sizeof folder, "%s/schedules-2.15", data ? data : "tests/data");
    int count = scandir(folder, &entries, NULL, alphasort);
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        job made;
        if (make_job(entries[i]->d_name, &made)) {
            made.eval_first = found % 5 == 0;
            if (test_in_sample((size_t)found++, 0, 4))
                job_assert_same_bits(&made);
            else
                sl_schedule_destroy(made.schedule);
        }
        free(entries[i]);
    }
    free(entries);
    assert_int_equal(found, 167);
}

/* Two replicas, each with a part of every weight: UNSHARD, REDUCE_GRAD and its wait do their work. */
static void its_files_run_with_sharded_weights(void **state)
{
    (void)state;
    static const char *const files[] = { "1F1B_pp2_mb4_v1.default.csv", "Interleaved1F1B_pp2_mb4_v2.rgdefer.csv",
                                         "InterleavedZeroBubble_pp3_mb3_v4.look1.csv",
                                         "LoopedBFS_pp3_mb3_v4.active2+auto+rgdefer+sends4.csv",
                                         "DualPipeV_pp2_mb4_v2.auto.csv" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        job made;
        assert_true(make_job(files[i], &made));
        made.replicas = 2;
        made.extra.shard = SL_SHARD_FULL;
        job_assert_same_bits(&made);
    }
}

static sl_status count_wait(void *user, sl_runtime *runtime, sl_action action)
{
    __atomic_add_fetch((int *)user, 1, __ATOMIC_RELAXED);
    return sl_runtime_run_action(runtime, action);
}

static sl_status set_functions(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    (void)rank, (void)stages, (void)count;
    if (sl_runtime_set_action(runtime, SL_KIND_WAIT_SEND_F, count_wait, self->user) != SL_ERR_ARGUMENT)
        return sl_fail(SL_ERR_INTERNAL, "a function for WAIT_SEND_F was taken");
    return sl_runtime_set_action(runtime, SL_KIND_WAIT_REDUCE_GRAD, count_wait, self->user);
}

static void a_function_may_stand_for_the_wait_for_a_reduction(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        int waits = 0;
        job made = job_make("Interleaved1F1B", ranks, 2, 3, 6);
        sl_schedule *lowered = NULL;
        assert_int_equal(sl_schedule_lower(made.schedule, &(sl_lower_options){ .waits = SL_WAIT_LATE }, &lowered),
                         SL_OK);
        sl_schedule_destroy(made.schedule);
        made.schedule = lowered;
        made.before = set_functions;
        made.user = &waits;
        made.steps = 1;
        made.replicas = 2;
        job_assert_same_bits(&made);
        assert_int_equal(waits, 2 * 2 * ranks); /* replicas, stages a rank, ranks */
    }
}

static void a_wait_without_its_send_is_refused(void **state)
{
    (void)state;
    static const char text[] = "0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
    job made = { .samples = 2, .microbatches = 1, .steps = 1, .shape = toy_shape_make(2) };
    assert_int_equal(sl_schedule_parse_csv(text, strlen(text), "x.csv", &made.schedule), SL_OK);
    assert_int_equal(job_run(&made), SL_ERR_SCHEDULE);
    assert_non_null(strstr(sl_error_message(), "0WAIT_SEND_F0: its SEND_F has to come before it"));
    sl_schedule_destroy(made.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_files_give_the_bits_of_one_stage_after_another),
        cmocka_unit_test(its_files_run_with_sharded_weights),
        cmocka_unit_test(a_function_may_stand_for_the_wait_for_a_reduction),
        cmocka_unit_test(a_wait_without_its_send_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
