/* Stages of a partitioned graph: a weight runner in place of their own, state buffers, and what is refused. */
#include "support/device/test_device.h"

#include <sluice/nn.h>
#include <sluice/runtime.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { STAGES = 2, BATCH = 6, MICROBATCHES = 2, WIDTH = 4 };

/* A perceptron cut in two, on one rank. */
typedef struct fixture {
    sl_group *group;
    sl_device *device;
    sl_schedule *schedule;
    sl_partition *partition;
    sl_stage *stages[STAGES];
    sl_loss_mean mean;
    sl_runtime *runtime;
} fixture;

static void succeed(sl_status status)
{
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
}

static sl_partition *cut(int64_t batch, int stages, int64_t layers)
{
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    sl_model model = sl_model_default(&sl_model_mlp);
    model.mlp = (sl_mlp_config){
        .input = WIDTH, .hidden = WIDTH, .output = WIDTH, .layers = layers, .activation = SL_ACT_TANH
    };
    sl_model_shape shape = { .batch = batch, .seq = 1 };
    sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = stages };
    succeed(sl_model_build(&model, SL_MODE_TRAIN, &shape, &graph));
    succeed(sl_graph_partition(graph, &spec, &partition));
    sl_graph_destroy(graph);
    return partition;
}

static void open_fixture(fixture *made, const char *csv, const sl_program_options *options)
{
    *made = (fixture){ .group = NULL };
    succeed(sl_group_open_threads(1, NULL, &made->group));
    succeed(sl_device_open(test_device_spec(), NULL, &made->device));
    succeed(sl_schedule_parse_csv(csv, strlen(csv), "test", &made->schedule));
    made->partition = cut(BATCH / MICROBATCHES, STAGES, 4);
    for (int s = 0; s < STAGES; s++)
        succeed(sl_stage_build((const sl_partition *const[]){ made->partition }, 1, s, made->device, options,
                               &made->stages[s]));
}

static sl_status create(fixture *made, const sl_arg_spec *args, int count)
{
    sl_runtime_options options = { .group = made->group,
                                   .device = made->device,
                                   .schedule = made->schedule,
                                   .stages = made->stages,
                                   .stage_count = STAGES,
                                   .args = args,
                                   .arg_count = count,
                                   .mean = made->mean };
    return sl_runtime_create(&options, &made->runtime);
}

static void close_fixture(fixture *made)
{
    sl_runtime_destroy(made->runtime);
    for (int s = 0; s < STAGES; s++)
        sl_stage_destroy(made->stages[s]);
    sl_partition_destroy(made->partition);
    sl_schedule_destroy(made->schedule);
    sl_device_close(made->device);
    sl_group_close(made->group);
}

static void copy(fixture *made, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    sl_stream *stream = sl_runtime_stream(made->runtime);
    succeed(sl_stream_copy(stream, kind, to, from, bytes));
    succeed(sl_stream_synchronize(stream));
}

static void set_weights(fixture *made)
{
    int count = 0;
    const sl_param *params = sl_runtime_params(made->runtime, &count);
    for (int i = 0; i < count; i++) {
        float values[500];
        assert_true(sl_meta_bytes(&params[i].data.meta) <= sizeof values);
        sl_param_init(&(sl_param_info){ params[i].name, SL_F32, params[i].data.meta.shape, params[i].init }, 7, 0,
                      sl_meta_count(&params[i].data.meta), values);
        copy(made, SL_COPY_HOST_TO_DEVICE, params[i].data.data, values, sl_meta_bytes(&params[i].data.meta));
    }
}

/* One step of `samples` samples, the first of which is number `first`. */
static void run_step(fixture *made, int first, int samples, sl_step step)
{
    float x[2 * BATCH * WIDTH];
    int32_t targets[2 * BATCH];
    for (int i = 0; i < samples * WIDTH; i++)
        x[i] = (float)((first * WIDTH + i) * 7 % 11) / 11.0f - 0.4f;
    for (int i = 0; i < samples; i++)
        targets[i] = (first + i) % WIDTH;
    sl_arg args[] = { { "x", { x, sl_meta_make(SL_F32, 2, (int64_t[]){ samples, WIDTH }) } },
                      { "targets", { targets, sl_meta_make(SL_I32, 1, (int64_t[]){ samples }) } } };
    step.args = args;
    step.arg_count = 2;
    succeed(sl_runtime_step(made->runtime, &step, NULL));
}

static void copy_grads(fixture *made, float *grads, size_t room)
{
    int count = 0;
    const sl_param *params = sl_runtime_params(made->runtime, &count);
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = sl_meta_bytes(&params[i].grad.meta);
        assert_true(used + bytes <= room);
        copy(made, SL_COPY_DEVICE_TO_HOST, (char *)grads + used, params[i].grad.data, bytes);
        used += bytes;
    }
}

static void train(fixture *made, float *grads, size_t room)
{
    set_weights(made);
    for (int step = 0; step < 2; step++)
        run_step(made, 0, BATCH, (sl_step){ .number = step });
    copy_grads(made, grads, room);
}

static void steps_that_add_up_give_the_bits_of_one_large_step(void **state)
{
    (void)state;
    float apart[500] = { 0 }, together[500] = { 0 };
    fixture made;
    open_fixture(&made, "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n", NULL);
    made.mean = SL_MEAN_SUM;
    succeed(create(&made, NULL, 0));
    set_weights(&made);
    run_step(&made, 1, BATCH, (sl_step){ .number = 0 }); /* must not matter */
    run_step(&made, 0, BATCH, (sl_step){ .number = 1, .partial = true });
    run_step(&made, BATCH, BATCH, (sl_step){ .number = 2, .keep_grads = true });
    copy_grads(&made, apart, sizeof apart);
    close_fixture(&made);

    open_fixture(&made, "0F0,1F0,0F1,1F1,0F2,1F2,0F3,1F3,1B0,0B0,1B1,0B1,1I2,1W2,0B2,1B3,0B3\n", NULL);
    made.mean = SL_MEAN_SUM;
    succeed(create(&made, NULL, 0));
    set_weights(&made);
    run_step(&made, 0, 2 * BATCH, (sl_step){ .number = 0 });
    copy_grads(&made, together, sizeof together);
    close_fixture(&made);
    assert_memory_equal(apart, together, sizeof apart);
    assert_true(apart[0] != 0);
}

/* ---- Weight runners ---- */

typedef struct runner {
    int calls;
    float inputs[MICROBATCHES][BATCH / MICROBATCHES * WIDTH], grads[MICROBATCHES][BATCH / MICROBATCHES * WIDTH];
} runner;

/* A gradient that gets 1 more in every element. */
typedef struct raised {
    void *data;
    int64_t count;
} raised;

static void raise_kernel(const void *args)
{
    const raised *what = args;
    float *values = test_device_near(what->data);
    for (int64_t i = 0; i < what->count; i++)
        values[i] += 1;
}

/* Writes 1 a microbatch into every gradient, and keeps what the stage's border looks like at that time. */
static sl_status count_microbatches(void *user, const sl_stage_call *call)
{
    sl_status status = SL_OK;
    runner *seen = user;
    seen->calls++;
    SL_TRY(sl_stream_copy(call->stream, SL_COPY_DEVICE_TO_HOST, seen->inputs[call->microbatch], call->inputs[0].data,
                          sizeof *seen->inputs));
    if (call->stage == 0)
        SL_TRY(sl_stream_copy(call->stream, SL_COPY_DEVICE_TO_HOST, seen->grads[call->microbatch],
                              call->output_grads[0].data, sizeof *seen->grads));
    for (int p = 0; p < call->param_count; p++) {
        raised what = { call->grads[p].data, sl_meta_count(&call->grads[p].meta) };
        SL_TRY(test_device_launch(call->stream, raise_kernel, &what, sizeof what));
    }
done:
    return status;
}

static void a_weight_runner_takes_the_place_of_a_graphs_own(void **state)
{
    (void)state;
    static const char *const schedules[] = { "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n",
                                             "0F0,1F0,0F1,1F1,1I0,0I0,1I1,0I1,1W1,0W1,0W0,1W0\n" };
    float plain[500], replaced[500];
    runner seen[2] = { { 0 }, { 0 } };
    for (int i = 0; i < 2; i++) {
        fixture made;
        int count = 0, changed = 0;
        open_fixture(&made, schedules[i], NULL);
        succeed(create(&made, NULL, 0));
        train(&made, plain, sizeof plain);
        close_fixture(&made);

        open_fixture(&made, schedules[i], NULL);
        succeed(sl_stage_set_weight_runner(made.stages[0], count_microbatches, &seen[i]));
        succeed(create(&made, NULL, 0));
        train(&made, replaced, sizeof replaced);
        const sl_param *params = sl_runtime_params(made.runtime, &count);
        for (int p = 0, at = 0; p < count; p++) {
            for (int64_t k = 0; k < sl_meta_count(&params[p].grad.meta); k++, at++) {
                assert_true(params[p].stage == 0 ? replaced[at] == MICROBATCHES : replaced[at] == plain[at]);
                changed += replaced[at] != plain[at];
            }
        }
        assert_true(changed > 0);
        assert_int_equal(seen[i].calls, 2 * MICROBATCHES); /* steps */
        close_fixture(&made);
    }
    /* In both it saw the same, though I and W are far apart in the second. */
    assert_memory_equal(seen[0].inputs, seen[1].inputs, sizeof seen[0].inputs);
    assert_memory_equal(seen[0].grads, seen[1].grads, sizeof seen[0].grads);
}

/* ---- What is refused ---- */

static void assert_refused(const sl_partition *const *partitions, int count, int index, const char *message)
{
    sl_device *device = NULL;
    sl_stage *stage = NULL;
    succeed(sl_device_open(test_device_spec(), NULL, &device));
    assert_int_equal(sl_stage_build(partitions, count, index, device, NULL, &stage), SL_ERR_ARGUMENT);
    assert_null(stage);
    assert_string_equal(sl_error_message(), message);
    sl_device_close(device);
}

static void partitions_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    sl_partition *larger = cut(3, 2, 4), *other = cut(2, 3, 4), *deeper = cut(2, 2, 9);
    assert_refused((const sl_partition *const[]){ larger }, 0, 0,
                   "0 partitions: one, or two for microbatches of two sizes");
    assert_refused((const sl_partition *const[]){ larger }, 1, 2, "there is no stage 2 among the partition's 2");
    assert_refused((const sl_partition *const[]){ larger, deeper }, 2, 0,
                   "stage 0: 1 inputs, 1 outputs, 4 parameters in the larger microbatch, 1, 1, 10 in the smaller");
    assert_refused((const sl_partition *const[]){ larger, other }, 2, 1,
                   "stage 1: 2 inputs, 1 outputs, 4 parameters in the larger microbatch, 1, 1, 2 in the smaller");
    sl_partition_destroy(larger);
    sl_partition_destroy(other);
    sl_partition_destroy(deeper);
}

static void stages_that_cannot_do_what_is_asked_are_refused(void **state)
{
    (void)state;
    static const char csv[] = "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n";
    fixture made;
    sl_arg_spec uneven = { .name = "x", .meta = sl_meta_make(SL_F32, 2, (int64_t[]){ BATCH - 1, WIDTH }) };
    open_fixture(&made, csv, &(sl_program_options){ .forward_only = true });
    assert_int_equal(create(&made, NULL, 0), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "stage 1 has no backward, which the schedule runs");
    close_fixture(&made);

    open_fixture(&made, csv, NULL);
    assert_int_equal(create(&made, &uneven, 1), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "stage 0 was made for one size of microbatch, the batch needs two");
    close_fixture(&made);

    open_fixture(&made, csv, NULL);
    succeed(create(&made, NULL, 0));
    sl_runtime *first = made.runtime;
    assert_int_equal(create(&made, NULL, 0), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "rank 0: stage 0 belongs to another runtime");
    assert_ptr_equal(made.runtime, first);
    close_fixture(&made);
}

/* ---- State buffers --------------------------------------------------------------------------- */

enum { CACHE = 2 };

/* A stage, made twice, that keeps what it was given: attention of one token over a cache. Keys are zero, so that the
 * result is the mean of all values up to the position. */
static void open_cache(fixture *made, int microbatches)
{
    const int64_t dims[] = { 1, 1, 1, WIDTH }, cache[] = { 1, CACHE, 1, WIDTH };
    const sl_generate_options forward = { .name = "ForwardOnly", .ranks = 1, .microbatches = microbatches };
    sl_graph *graph = NULL;
    *made = (fixture){ .group = NULL };
    succeed(sl_group_open_threads(1, NULL, &made->group));
    succeed(sl_device_open(test_device_spec(), NULL, &made->device));
    succeed(sl_schedule_generate(&forward, &made->schedule));
    succeed(sl_graph_create(&graph));
    sl_value zero = sl_graph_constant(graph, "zero", SL_F32, 4, dims, (const float[WIDTH]){ 0 });
    sl_value v = sl_graph_input(graph, "v", SL_F32, 4, dims);
    sl_value position = sl_graph_input(graph, "position", SL_I32, 0, NULL);
    sl_value cache_k = sl_graph_state(graph, "cache_k", SL_F32, 4, cache);
    sl_value cache_v = sl_graph_state(graph, "cache_v", SL_F32, 4, cache);
    sl_graph_output(graph, "mean", sl_attention_cached(graph, zero, zero, v, cache_k, cache_v, position, NULL));
    succeed(sl_graph_finish(graph));
    succeed(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_WHOLE }, &made->partition));
    sl_graph_destroy(graph);
    for (int i = 0; i < STAGES; i++)
        succeed(sl_stage_build((const sl_partition *const[]){ made->partition }, 1, 0, made->device,
                               &(sl_program_options){ .forward_only = true }, &made->stages[i]));
}

static sl_status create_cache(fixture *made, int which, sl_runtime **out)
{
    const sl_arg_spec position = { .name = "position", .chunk = { .kind = SL_CHUNK_REPLICATE } };
    return sl_runtime_create(&(sl_runtime_options){ .group = made->group,
                                                    .device = made->device,
                                                    .schedule = made->schedule,
                                                    .stages = &made->stages[which],
                                                    .stage_count = 1,
                                                    .args = &position,
                                                    .arg_count = 1 },
                             out);
}

/* Gives one value at a position; the mean of it and those before. */
static sl_status give(sl_runtime *runtime, float value, int32_t position, float *mean)
{
    const int64_t dims[] = { 1, 1, 1, WIDTH };
    const sl_meta meta = sl_meta_make(SL_F32, 4, dims);
    float v[WIDTH] = { value, value, value, value }, means[WIDTH];
    const sl_arg args[] = { { .name = "v", .view = { v, meta } },
                            { .name = "position", .view = { &position, sl_meta_make(SL_I32, 0, NULL) } } };
    const sl_output output = { .name = "mean", .view = { means, meta } };
    sl_status status = sl_runtime_eval(
        runtime, &(sl_step){ .args = args, .arg_count = 2, .outputs = &output, .output_count = 1 }, NULL);
    if (status == SL_OK)
        *mean = means[0];
    return status;
}

static void runtimes_share_the_states_that_are_bound(void **state)
{
    (void)state;
    fixture made;
    sl_runtime *runtimes[2] = { NULL };
    void *blocks[2][2] = { { NULL } }; /* of each text */
    float mean = 0;
    int count = 0;
    open_cache(&made, 1);
    for (int i = 0; i < 2; i++)
        succeed(create_cache(&made, i, &runtimes[i]));
    const sl_port *ports = sl_stage_states(made.stages[0], &count);
    assert_int_equal(count, 2);
    assert_string_equal(ports[1].name, "cache_v");
    for (int i = 0; i < 4; i++)
        succeed(sl_device_alloc(made.device, ports[i % 2].bytes, &blocks[i / 2][i % 2]));
    for (int text = 0; text < 2; text++) {
        sl_stage_bind_states(made.stages[0], blocks[text]);
        succeed(give(runtimes[0], text == 0 ? 2 : 10, 0, &mean));
        assert_float_equal(mean, text == 0 ? 2 : 10, 0);
    }
    for (int text = 0; text < 2; text++) {
        sl_stage_bind_states(made.stages[1], blocks[text]);
        succeed(give(runtimes[1], text == 0 ? 4 : 20, 1, &mean));
        assert_float_equal(mean, text == 0 ? 3 : 15, 0);
    }
    for (int i = 0; i < 4; i++)
        sl_device_free(made.device, blocks[i / 2][i % 2]);
    for (int i = 0; i < 2; i++)
        sl_runtime_destroy(runtimes[i]);
    close_fixture(&made);
}

static void states_that_cannot_be_kept_are_refused(void **state)
{
    (void)state;
    fixture made;
    sl_stage *stage = NULL;
    float mean = 0;
    open_cache(&made, 2);
    assert_int_equal(create_cache(&made, 0, &made.runtime), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(),
                        "rank 0: stage 0 has state buffers: its schedule must have one microbatch, not 2");
    const sl_partition *const two[] = { made.partition, made.partition };
    assert_int_equal(sl_stage_build(two, 2, 0, made.device, &(sl_program_options){ .forward_only = true }, &stage),
                     SL_ERR_UNSUPPORTED);
    assert_string_equal(sl_error_message(),
                        "stage 0: state buffer 'cache_k': the stage must be built for one size of microbatch");
    close_fixture(&made);

    open_cache(&made, 1);
    succeed(create_cache(&made, 0, &made.runtime));
    assert_int_equal(give(made.runtime, 1, 0, &mean), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "state buffer 'cache_k' has no memory: sl_stage_bind_states gives it"));
    close_fixture(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_that_add_up_give_the_bits_of_one_large_step),
        cmocka_unit_test(a_weight_runner_takes_the_place_of_a_graphs_own),
        cmocka_unit_test(partitions_that_do_not_fit_are_refused),
        cmocka_unit_test(stages_that_cannot_do_what_is_asked_are_refused),
        cmocka_unit_test(runtimes_share_the_states_that_are_bound),
        cmocka_unit_test(states_that_cannot_be_kept_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
