/* The trace of a run: every action and wait of every rank, on one clock. */
#include "unit/runtime/job.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

typedef struct traced {
    char path[64]; /* of the file while the job runs */
    sl_stage_cost costs[MAX_STAGES];
} traced;

static sl_status save_trace(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    traced *into = self->user;
    sl_status status = SL_OK;
    sl_stage_cost costs[MAX_STAGES];
    (void)stages, (void)count;
    SL_TRY(sl_runtime_measure_costs(runtime, costs));
    if (rank == 0)
        memcpy(into->costs, costs, sizeof costs);
    SL_TRY(sl_runtime_save_trace(runtime, into->path));
done:
    return status;
}

/* Runs the job with a trace of so many events a rank; gives the trace as it was saved. */
static json_t *run_traced(job *made, int events, traced *seen)
{
    json_error_t error;
    snprintf(seen->path, sizeof seen->path, "/tmp/sluice_trace_XXXXXX");
    int file = mkstemp(seen->path);
    assert_true(file >= 0);
    close(file);
    made->extra.trace_events = events;
    made->after = save_trace;
    made->user = seen;
    job_finish(made);
    json_t *root = json_load_file(seen->path, 0, &error);
    unlink(seen->path);
    assert_non_null(root);
    return root;
}

/* Every action and wait of every step is in the trace once, in order. */
static void expect_every_action(bool replays, int steps)
{
    traced seen;
    int phases[4] = { 0 }, waits = 0, starts = 0, ends = 0;
    size_t i;
    json_t *event;
    job made = job_make("InterleavedZeroBubble", 2, 2, 4, 8);
    made.steps = steps;
    made.shape.replays = replays;
    json_t *root = run_traced(&made, 10000, &seen);
    long long ended[2][2] = { { 0 } }; /* nanoseconds, of each rank's two tracks */
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const char *kind = json_string_value(json_object_get(event, "ph"));
        const char *category = json_string_value(json_object_get(event, "cat"));
        starts += *kind == 's';
        ends += *kind == 'f';
        if (*kind != 'X')
            continue;
        long long *track = &ended[json_integer_value(json_object_get(event, "pid"))]
                                 [json_integer_value(json_object_get(event, "tid"))];
        long long start = llround(json_number_value(json_object_get(event, "ts")) * 1e3);
        long long took = llround(json_number_value(json_object_get(event, "dur")) * 1e3);
        assert_true(start >= *track && took >= 0); /* no two on one track overlap */
        *track = start + took;
        for (int k = 0; k < 4; k++)
            phases[k] += strcmp(category, sl_kind_name((sl_kind)(SL_KIND_F + k))) == 0;
        waits += strncmp(category, "RECV", 4) == 0;
    }
    assert_int_equal(phases[0], steps * 4 * 4);
    assert_int_equal(phases[1] + phases[3], steps * 4 * 4); /* I or B */
    assert_int_equal(waits, steps * 4 * 3 * 2);
    assert_int_equal(starts, waits);
    assert_int_equal(ends, waits);
    for (int s = 0; s < 4; s++)
        assert_true(seen.costs[s].f > 0 && seen.costs[s].f < 10);
    json_decref(root);
}

static void the_trace_has_every_action_of_every_rank(void **state)
{
    (void)state;
    expect_every_action(false, 2);
}

/* The same for steps that a device launches as one piece: each launch has times of its own. */
static void launched_steps_are_traced_like_others(void **state)
{
    (void)state;
    int64_t before = test_device_launches();
    expect_every_action(true, 5);
    if (strcmp(test_device_spec(), "cpu") != 0)
        assert_int_equal(test_device_launches() - before, 5 - 1); /* the other rank hands out outputs, call by call */
}

enum { MAX_FLOWS = 1000 };

static void no_message_arrives_before_it_leaves(void **state)
{
    (void)state;
    traced seen;
    double left[MAX_FLOWS] = { 0 };
    double slack = strcmp(test_device_spec(), "cpu") == 0 ? 1 : 300; /* a device's clock is known less well */
    int arrived = 0;
    size_t i;
    json_t *event;
    job made = job_make("Interleaved1F1B", 4, 2, 4, 8);
    json_t *root = run_traced(&made, 10000, &seen);
    for (int pass = 0; pass < 2; pass++) {
        json_array_foreach(json_object_get(root, "traceEvents"), i, event)
        {
            const char *kind = json_string_value(json_object_get(event, "ph"));
            json_int_t id = json_integer_value(json_object_get(event, "id"));
            double time = json_number_value(json_object_get(event, "ts"));
            assert_true(id < MAX_FLOWS);
            if (pass == 0 && *kind == 's')
                left[id] = time;
            if (pass == 0 || *kind != 'f')
                continue;
            if (time < left[id] - slack) /* microseconds; the ranks' clocks agree better than that */
                fail_msg("message %d left at %g and arrived at %g", (int)id, left[id], time);
            arrived++;
        }
    }
    assert_int_equal(arrived, 2 * 4 * 7 * 2); /* steps, microbatches, edges, ways */
    json_decref(root);
}

static void a_full_trace_keeps_the_newest(void **state)
{
    (void)state;
    traced seen;
    int oldest = 1000;
    size_t i;
    json_t *event;
    job made = job_make("GPipe", 1, 1, 2, 2);
    made.steps = 8;
    json_t *root = run_traced(&made, 10, &seen); /* two steps of 2 F, 2 B and the end */
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        json_t *step = json_object_get(json_object_get(event, "args"), "step");
        if (step && json_integer_value(step) < oldest)
            oldest = (int)json_integer_value(step);
    }
    assert_int_equal(oldest, 6);
    json_decref(root);
}

static void a_trace_that_was_not_asked_for_is_an_error(void **state)
{
    (void)state;
    traced seen = { .path = "/tmp/never" };
    job made = job_make("1F1B", 2, 0, 4, 8);
    made.after = save_trace;
    made.user = &seen;
    assert_int_equal(job_run(&made), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "without a trace (trace_events)"));
    sl_schedule_destroy(made.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_trace_has_every_action_of_every_rank),
        cmocka_unit_test(launched_steps_are_traced_like_others),
        cmocka_unit_test(no_message_arrives_before_it_leaves),
        cmocka_unit_test(a_full_trace_keeps_the_newest),
        cmocka_unit_test(a_trace_that_was_not_asked_for_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
