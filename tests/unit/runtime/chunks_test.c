/* One microbatch at a time: a schedule loop of the caller's own gives the bits of the stages in turn, and what comes out
 * of order is refused. */
#include "unit/runtime/job.h"

enum { MICROBATCHES = 4, SAMPLES = 8, ROWS = SAMPLES / MICROBATCHES };

/* Device memory that this thread has taken. */
static _Thread_local void *taken[128];
static _Thread_local int taken_count;

static void free_taken(sl_device *device)
{
    while (taken_count > 0)
        sl_device_free(device, taken[--taken_count]);
}

/* Memory of the device with what the host has, until free_taken. */
static sl_status to_device(sl_device *device, sl_stream *stream, const float *host, int64_t rows, sl_view *out)
{
    sl_status status = SL_OK;
    *out =
        (sl_view){ NULL, rows ? sl_meta_make(SL_F32, 2, (int64_t[]){ rows, WIDTH }) : sl_meta_make(SL_F32, 0, NULL) };
    SL_TRY(sl_device_alloc(device, sl_meta_bytes(&out->meta), &out->data));
    taken[taken_count++] = out->data;
    SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, out->data, host, sl_meta_bytes(&out->meta)));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

static sl_status to_host(sl_stream *stream, const sl_view *view, float *host)
{
    sl_status status = SL_OK;
    SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, host, view->data, sl_meta_bytes(&view->meta)));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

/* ---- A loop of one's own, with channels of one's own ---- */

typedef struct loop {
    int ranks;
    bool split;
    float grads[MAX_RANKS][WIDTH];
    float losses[MICROBATCHES];
} loop;

/* One rank of the loop. */
typedef struct seat {
    sl_device *device;
    sl_chunks *chunks;
    sl_stream *stream;
    sl_channel *ends[2 * MAX_RANKS]; /* forward s -> s + 1, then back */
    sl_view x[MICROBATCHES], t[MICROBATCHES], dy[MICROBATCHES];
} seat;

static sl_status pass_on(seat *at, int channel, int m, const sl_view *view)
{
    sl_status status = SL_OK;
    void *slot = NULL;
    const sl_message message = { .microbatch = m, .dtype = view->meta.dtype, .shape = view->meta.shape };
    SL_TRY(sl_channel_reserve(at->ends[channel], &message, &slot));
    SL_TRY(to_host(at->stream, view, slot));
    SL_TRY(sl_channel_commit(at->ends[channel], slot));
done:
    return status;
}

static sl_status take_in(seat *at, int channel, sl_view *out)
{
    sl_status status = SL_OK;
    void *slot = NULL;
    SL_TRY(sl_channel_receive(at->ends[channel], NULL, NULL, &slot));
    SL_TRY(to_device(at->device, at->stream, slot, ROWS, out));
    SL_TRY(sl_channel_release(at->ends[channel], slot));
done:
    return status;
}

static sl_status open_ends(sl_group *group, int ranks, seat *at)
{
    sl_channel_spec specs[2 * MAX_RANKS];
    for (int s = 0; s < ranks - 1; s++) {
        specs[2 * s] = (sl_channel_spec){ 2 * s, s, s + 1, MICROBATCHES, ROWS * WIDTH * sizeof(float) };
        specs[2 * s + 1] = (sl_channel_spec){ 2 * s + 1, s + 1, s, MICROBATCHES, ROWS * WIDTH * sizeof(float) };
    }
    return sl_group_open_channels(group, specs, 2 * (ranks - 1), at->ends);
}

static sl_status loop_forward(loop *all, int rank, seat *at, int m)
{
    sl_status status = SL_OK;
    bool last = rank == all->ranks - 1;
    const sl_view *outputs = NULL;
    if (rank > 0)
        SL_TRY(take_in(at, 2 * (rank - 1), &at->x[m]));
    const sl_view inputs[] = { at->x[m], at->t[m] };
    SL_TRY(sl_chunks_forward(at->chunks, m, inputs, &outputs));
    SL_TRY(last ? to_host(at->stream, &outputs[1], &all->losses[m]) : pass_on(at, 2 * rank, m, &outputs[0]));
done:
    return status;
}

static sl_status loop_backward(loop *all, int rank, seat *at, int m)
{
    sl_status status = SL_OK;
    bool last = rank == all->ranks - 1;
    const float seed = 1.0f / MICROBATCHES;
    const sl_view *input_grads = NULL;
    sl_view grads[2];
    if (last) {
        SL_TRY(to_device(at->device, at->stream, &seed, 0, &grads[1]));
        grads[0] = sl_view_none(); /* y: nobody uses it */
    } else {
        SL_TRY(take_in(at, 2 * rank + 1, &grads[0]));
    }
    SL_TRY(sl_chunks_backward(at->chunks, m, all->split ? SL_PHASE_I : SL_PHASE_B, grads, &input_grads));
    if (rank > 0)
        SL_TRY(pass_on(at, 2 * (rank - 1) + 1, m, &input_grads[0]));
done:
    return status;
}

static sl_status run_loop(toy_rank *self)
{
    loop *all = self->user;
    sl_status status = SL_OK;
    seat *at = calloc(1, sizeof *at);
    toy_stage *toy = calloc(1, sizeof *toy);
    toy_shape shape = toy_shape_make(all->ranks);
    float x[SAMPLES * WIDTH], t[SAMPLES * WIDTH], w[WIDTH];
    int count = 0;
    job_batch(0, 0, SAMPLES, x, t);
    toy_initial(self->rank, w);
    SL_TRY(sl_device_open(test_device_spec(), NULL, &at->device));
    SL_TRY(toy_create(toy, &shape, self->rank, ROWS));
    SL_TRY(sl_chunks_create(
        &(sl_chunks_options){ .stage = toy->stage, .device = at->device, .microbatches = MICROBATCHES }, &at->chunks));
    at->stream = sl_chunks_stream(at->chunks);
    SL_TRY(open_ends(self->group, all->ranks, at));
    const sl_param *params = sl_chunks_params(at->chunks, &count);
    SL_TRY(sl_stream_copy(at->stream, SL_COPY_HOST_TO_DEVICE, params[0].data.data, w, sizeof w));
    for (int m = 0; m < MICROBATCHES; m++) {
        SL_TRY(to_device(at->device, at->stream, x + (ptrdiff_t)m * ROWS * WIDTH, ROWS, &at->x[m]));
        SL_TRY(to_device(at->device, at->stream, t + (ptrdiff_t)m * ROWS * WIDTH, ROWS, &at->t[m]));
    }
    for (int step = 0; step < 2; step++) { /* the second starts anew */
        SL_TRY(sl_chunks_begin(at->chunks, &(sl_step){ .number = step }));
        for (int m = 0; m < MICROBATCHES; m++)
            SL_TRY(loop_forward(all, self->rank, at, m));
        for (int m = 0; m < MICROBATCHES; m++)
            SL_TRY(loop_backward(all, self->rank, at, m));
        for (int m = 0; all->split && m < MICROBATCHES; m++)
            SL_TRY(sl_chunks_backward(at->chunks, m, SL_PHASE_W, NULL, NULL));
    }
    SL_TRY(to_host(at->stream, &params[0].grad, all->grads[self->rank]));
done:
    sl_chunks_destroy(at->chunks);
    sl_stage_destroy(toy->stage);
    free_taken(at->device);
    sl_device_close(at->device);
    free(toy);
    free(at);
    return status;
}

static void a_loop_of_ones_own_gives_the_bits_of_the_stages_in_turn(void **state)
{
    (void)state;
    test_device_install();
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        for (int split = 0; split < 2; split++) {
            toy_rank seats[MAX_RANKS];
            loop all = { .ranks = ranks, .split = split };
            job reference = job_make("GPipe", ranks, 0, MICROBATCHES, SAMPLES);
            reference.steps = 1;
            job_reference(&reference);
            assert_int_equal(toy_run_ranks(ranks, run_loop, &all, seats), SL_OK);
            for (int r = 0; r < ranks; r++) {
                if (seats[r].status != SL_OK)
                    fail_msg("rank %d of %d: %s", r, ranks, seats[r].message);
            }
            assert_memory_equal(all.losses, reference.losses[0], sizeof all.losses);
            assert_memory_equal(all.grads, reference.grads, (size_t)ranks * sizeof *all.grads);
            sl_schedule_destroy(reference.schedule);
        }
    }
}

/* ---- What is refused ---- */

static void assert_refused(sl_status status, const char *words)
{
    assert_int_not_equal(status, SL_OK);
    if (!strstr(sl_error_message(), words))
        fail_msg("no '%s' in: %s", words, sl_error_message());
}

static void succeed(sl_status status)
{
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
}

static void what_comes_out_of_order_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    sl_device *device = NULL;
    sl_chunks *chunks = NULL, *second = NULL;
    toy_shape shape = toy_shape_make(1);
    toy_stage *toy = calloc(1, sizeof *toy);
    float x[ROWS * WIDTH] = { 1, 2, 3 }, seed = 1, w[WIDTH] = { 1, 2, 3 };
    sl_view inputs[2], grads[2], wrong[2];
    int count = 0;
    test_device_install();
    succeed(sl_device_open(test_device_spec(), NULL, &device));
    succeed(toy_create(toy, &shape, 0, ROWS));
    const sl_chunks_options options = { .stage = toy->stage, .device = device, .microbatches = 2 };
    succeed(sl_chunks_create(&options, &chunks));
    sl_stream *stream = sl_chunks_stream(chunks);
    succeed(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, sl_chunks_params(chunks, &count)->data.data, w, sizeof w));
    succeed(to_device(device, stream, x, ROWS, &inputs[0]));
    inputs[1] = grads[0] = wrong[1] = inputs[0];
    succeed(to_device(device, stream, &seed, 0, &grads[1]));
    wrong[0] = (sl_view){ inputs[0].data, sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS + 1, WIDTH }) };

    assert_refused(sl_chunks_create(&options, &second), "belongs to a runtime already");
    assert_refused(sl_chunks_forward(chunks, 0, inputs, NULL), "no step has begun");
    succeed(sl_chunks_begin(chunks, &(sl_step){ .number = 0 }));
    assert_refused(sl_chunks_forward(chunks, 2, inputs, NULL), "there is no microbatch 2 among 2");
    assert_refused(sl_chunks_forward(chunks, 0, wrong, NULL), "input 'x': shape mismatch");
    assert_refused(sl_chunks_backward(chunks, 0, SL_PHASE_B, grads, NULL), "backward before its forward");
    succeed(sl_chunks_forward(chunks, 0, inputs, NULL));
    assert_refused(sl_chunks_forward(chunks, 0, inputs, NULL), "its forward has run already");
    assert_refused(sl_chunks_backward(chunks, 0, SL_PHASE_W, grads, NULL),
                   "the weight gradient before the input gradient");
    assert_refused(sl_chunks_backward(chunks, 0, SL_PHASE_F, grads, NULL), "a backward is I, W or B");
    succeed(sl_chunks_backward(chunks, 0, SL_PHASE_I, grads, NULL));
    assert_refused(sl_chunks_backward(chunks, 0, SL_PHASE_I, grads, NULL), "the weight gradient is what is left");
    assert_refused(sl_chunks_backward(chunks, 0, SL_PHASE_B, grads, NULL), "the weight gradient is what is left");
    succeed(sl_chunks_backward(chunks, 0, SL_PHASE_W, NULL, NULL));
    assert_refused(sl_chunks_backward(chunks, 0, SL_PHASE_W, NULL, NULL), "its backward has run already");
    succeed(sl_chunks_forward(chunks, 1, inputs, NULL));
    succeed(sl_chunks_backward(chunks, 1, SL_PHASE_B, grads, NULL));
    assert_int_equal(toy->calls[SL_PHASE_F], 2);
    assert_int_equal(toy->calls[SL_PHASE_I], 2);
    assert_int_equal(toy->calls[SL_PHASE_W], 2);
    sl_chunks_destroy(chunks);
    sl_chunks_destroy(NULL);
    sl_stage_destroy(toy->stage);
    free_taken(device);
    sl_device_close(device);
    free(toy);
}

/* ---- A stage of a graph: loss = mean(x * w) ---- */

static void a_stage_of_a_graph_runs_one_microbatch_at_a_time(void **state)
{
    (void)state;
    sl_device *device = NULL;
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    sl_stage *stage = NULL;
    sl_chunks *chunks = NULL;
    const int64_t dims[] = { ROWS, WIDTH }, one[] = { WIDTH };
    float x[ROWS * WIDTH] = { 6, 12, 18, 24, 30, 36 }, w[WIDTH] = { 6, 12, 18 }, seed = 1, got[ROWS * WIDTH];
    const sl_view *out = NULL, *dx = NULL;
    sl_view input, grad;
    int count = 0;
    test_device_install();
    succeed(sl_device_open(test_device_spec(), NULL, &device));
    succeed(sl_graph_create(&graph));
    sl_value value = sl_graph_input_differentiable(graph, "x", SL_F32, 2, dims);
    value = sl_mul(graph, value, sl_graph_param(graph, "w", 1, one, (sl_init){ .kind = SL_INIT_ONES }));
    sl_graph_loss(graph, sl_mean(graph, value, NULL, 0, false));
    succeed(sl_graph_finish(graph));
    succeed(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_WHOLE }, &partition));
    succeed(sl_stage_build((const sl_partition *const[]){ partition }, 1, 0, device, NULL, &stage));
    succeed(sl_chunks_create(&(sl_chunks_options){ .stage = stage, .device = device, .microbatches = 2 }, &chunks));
    sl_stream *stream = sl_chunks_stream(chunks);
    const sl_param *params = sl_chunks_params(chunks, &count);
    assert_int_equal(count, 1);
    succeed(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, params[0].data.data, w, sizeof w));
    succeed(to_device(device, stream, x, ROWS, &input));
    succeed(to_device(device, stream, &seed, 0, &grad));
    for (int step = 0; step < 2; step++) {
        succeed(sl_chunks_begin(chunks, &(sl_step){ .number = step }));
        for (int m = 1; m >= 0; m--) { /* in an order of one's own */
            succeed(sl_chunks_forward(chunks, m, &input, &out));
            succeed(to_host(stream, &out[0], got));
            assert_float_equal(got[0], (6 * 30 + 12 * 42 + 18 * 54) / 6.0, 1e-3);
        }
        succeed(sl_chunks_backward(chunks, 0, SL_PHASE_I, &grad, &dx));
        succeed(to_host(stream, &dx[0], got));
        for (int i = 0; i < ROWS * WIDTH; i++)
            assert_float_equal(got[i], w[i % WIDTH] / 6, 1e-5);
        succeed(sl_chunks_backward(chunks, 1, SL_PHASE_B, &grad, NULL));
        succeed(sl_chunks_backward(chunks, 0, SL_PHASE_W, NULL, NULL));
        succeed(to_host(stream, &params[0].grad, got));
        for (int c = 0; c < WIDTH; c++) /* of both microbatches */
            assert_float_equal(got[c], 2 * (x[c] + x[WIDTH + c]) / 6, 1e-4);
    }
    sl_chunks_destroy(chunks);
    sl_stage_destroy(stage);
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
    free_taken(device);
    sl_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_of_ones_own_gives_the_bits_of_the_stages_in_turn),
        cmocka_unit_test(what_comes_out_of_order_is_refused_and_changes_nothing),
        cmocka_unit_test(a_stage_of_a_graph_runs_one_microbatch_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
