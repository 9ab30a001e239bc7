/* Gradients of the batch: asked for by name, put together from the microbatches as the argument is cut. */
#include "unit/runtime/job.h"

/* ---- Stages of callbacks against the stages in turn ---- */

typedef struct wish {
    float dx[MAX_SAMPLES * WIDTH];
    bool none; /* nobody asks */
} wish;

/* One step with the first weights; x has rows that are wider than the argument, so that strides count. */
static sl_status ask_for_x(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    enum { WIDE = WIDTH + 2 };
    wish *wanted = self->user;
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH], dx[MAX_SAMPLES * WIDE];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ self->samples, WIDTH }), wide = meta;
    sl_arg args[] = { { "x", { x, meta } }, { "t", { t, meta } } }, grad = { "x", { dx, wide } };
    grad.view.meta.strides[0] = WIDE;
    bool first = sl_schedule_rank_of(self->schedule, 0) == rank;
    (void)stages, (void)count;
    job_batch(0, 0, self->samples, x, t);
    for (int i = 0; i < MAX_SAMPLES * WIDE; i++)
        dx[i] = 77;
    sl_step step = { .args = args, .arg_count = 2, .input_grads = &grad, .input_grad_count = first && !wanted->none };
    sl_status status = sl_runtime_step(runtime, &step, NULL);
    for (int i = 0; status == SL_OK && first && i < self->samples; i++) {
        memcpy(wanted->dx + (size_t)i * WIDTH, dx + (size_t)i * WIDE, WIDTH * sizeof *dx);
        if (!wanted->none && (dx[i * WIDE + WIDTH] != 77 || dx[i * WIDE + WIDTH + 1] != 77))
            return sl_fail(SL_ERR_INTERNAL, "row %d: written beside the gradient", i);
    }
    return status;
}

static void reference_dx(job *self, float *dx)
{
    job_memory *memory = calloc(1, sizeof *memory);
    float w[MAX_STAGES][WIDTH], g[MAX_STAGES][WIDTH] = { { 0 } };
    for (int s = 0; s < self->shape.stages; s++)
        toy_initial(s, w[s]);
    job_reference_step(self, memory, 0, 0, w, g);
    toy_backward_input(memory->dh[0], w[0], self->samples, dx);
    free(memory);
}

static void assert_dx(job made)
{
    wish wanted = { .none = false };
    float expected[MAX_SAMPLES * WIDTH];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ made.samples, WIDTH });
    const sl_arg_spec specs[] = { { .name = "x", .meta = meta, .grad = true }, { .name = "t", .meta = meta } };
    made.steps = 0;
    made.extra.args = specs;
    made.extra.arg_count = 2;
    made.after = ask_for_x;
    made.user = &wanted;
    reference_dx(&made, expected);
    job_finish(&made);
    assert_memory_equal(wanted.dx, expected, (size_t)made.samples * WIDTH * sizeof *expected);
}

static void every_schedule_gives_the_gradient_of_the_batch(void **state)
{
    (void)state;
    static const char *const names[] = {
        "GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int ranks = 1; ranks <= 3; ranks += 2)
            assert_dx(job_make(names[i], ranks, 0, 6, 12));
    }
}

static void uneven_microbatches_one_backward_and_skips(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        assert_dx(job_make("1F1B", ranks, 0, 4, 7));
        job whole = job_make("Interleaved1F1B", ranks, 2, 6, 13);
        whole.shape.only_backward = true;
        assert_dx(whole);
        job skips = job_make("InterleavedZeroBubble", ranks, 3, 6, 12);
        skips.shape.skip[skips.shape.stages - 1] = 0;
        assert_dx(skips);
    }
}

static sl_status want(sl_runtime *runtime, int samples, sl_arg grad, bool eval)
{
    float x[MAX_SAMPLES * WIDTH] = { 0 };
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ samples, WIDTH });
    sl_arg args[] = { { "x", { x, meta } }, { "t", { x, meta } } };
    sl_step step = { .args = args, .arg_count = 2, .input_grads = &grad, .input_grad_count = 1 };
    return eval ? sl_runtime_eval(runtime, &step, NULL) : sl_runtime_step(runtime, &step, NULL);
}

static sl_status say_what_is_wrong(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    float dx[MAX_SAMPLES * WIDTH];
    const sl_view view = { dx, sl_meta_make(SL_F32, 2, (int64_t[]){ self->samples, WIDTH }) };
    const sl_view small = { dx, sl_meta_make(SL_F32, 2, (int64_t[]){ 3, WIDTH }) };
    const struct {
        sl_arg grad;
        bool eval;
        const char *words;
    } cases[] = {
        { { "x", small }, false, "expected [8, 3], given [3, 3]" },
        { { "x", { NULL, view.meta } }, false, "its data is NULL" },
        { { "t", view }, false, "nobody has asked for its gradient" },
        { { "ex", view }, false, "no stage has an input 'ex'" },
        { { NULL, view }, false, "has no name" },
        { { "x", view }, true, "an evaluation goes forward alone" },
    };
    (void)rank, (void)stages, (void)count;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (want(runtime, self->samples, cases[i].grad, cases[i].eval) == SL_OK ||
            !strstr(sl_error_message(), cases[i].words))
            return sl_fail(SL_ERR_INTERNAL, "no '%s' in: %s", cases[i].words, sl_error_message());
    }
    return want(runtime, self->samples, (sl_arg){ "x", view }, false);
}

static void what_cannot_be_given_is_refused_and_the_next_step_is_right(void **state)
{
    (void)state;
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 8, WIDTH });
    const sl_arg_spec specs[] = { { .name = "x", .meta = meta, .grad = true }, { .name = "t", .meta = meta } };
    job made = job_make("1F1B", 1, 0, 4, 8);
    made.extra.args = specs;
    made.extra.arg_count = 2;
    made.before = say_what_is_wrong;
    job_finish(&made);
    const sl_arg_spec wrong[] = { { .name = "t", .meta = meta, .grad = true } };
    job refused = job_make("1F1B", 3, 0, 4, 8);
    refused.extra.args = wrong;
    refused.extra.arg_count = 1;
    assert_int_equal(job_run(&refused), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "'t': its gradient is wanted, but no stage gives one"));
    sl_schedule_destroy(refused.schedule);
}

/* ---- An argument that all stages and all microbatches read ----
 * Stage s has h<s> = h<s-1> * a, the last one sums up. With S stages: loss = sum over samples of x * a^S. All values are
 * small integers, so that no order of adding changes a bit. */

typedef struct power {
    bool last;
    sl_stage *stage;
} power;

typedef struct power_launch {
    int64_t rows;
    const void *h, *a, *dy, *seed;
    void *y, *loss, *dh, *da;
} power_launch;

static void power_forward_kernel(const void *args)
{
    const power_launch *run = args;
    float *y = toy_at(run->y), sum = 0;
    for (int64_t i = 0; i < run->rows * WIDTH; i++)
        sum += y[i] = toy_at(run->h)[i] * toy_at(run->a)[i % WIDTH];
    if (run->loss)
        *toy_at(run->loss) = sum;
}

static void power_backward_kernel(const void *args)
{
    const power_launch *run = args;
    float da[WIDTH] = { 0 };
    for (int64_t i = 0; i < run->rows * WIDTH; i++) {
        float dy = run->seed ? *toy_at(run->seed) : toy_at(run->dy)[i];
        da[i % WIDTH] += dy * toy_at(run->h)[i];
        if (run->dh)
            toy_at(run->dh)[i] = dy * toy_at(run->a)[i % WIDTH];
    }
    if (run->da)
        memcpy(toy_at(run->da), da, sizeof da);
}

static sl_status power_run(void *user, const sl_stage_call *call)
{
    const power *self = user;
    bool forward = call->phase == SL_PHASE_F;
    power_launch run = { .rows = call->inputs[0].meta.shape.dims[0],
                         .h = call->inputs[0].data,
                         .a = call->inputs[1].data,
                         .y = forward ? call->outputs[0].data : NULL,
                         .loss = forward && self->last ? call->outputs[1].data : NULL,
                         .dy = call->output_grads[0].data,
                         .seed = self->last ? call->output_grads[1].data : NULL,
                         .dh = call->input_grads[0].data,
                         .da = call->input_grads[1].data };
    return test_device_launch(call->stream, forward ? power_forward_kernel : power_backward_kernel, &run, sizeof run);
}

static sl_status power_create(power *self, int index, int stages, int64_t rows)
{
    char in[16], out[16];
    self->last = index == stages - 1;
    snprintf(in, sizeof in, index ? "h%d" : "x", index - 1);
    snprintf(out, sizeof out, "h%d", index);
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ rows, WIDTH });
    const sl_stage_value inputs[] = { { .name = in, .meta = meta },
                                      { .name = "a", .meta = sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH }) } };
    const sl_stage_value outputs[] = { { .name = out, .meta = meta, .no_grad = self->last },
                                       { .name = "loss", .meta = sl_meta_make(SL_F32, 0, NULL), .loss = true } };
    return sl_stage_create(&(sl_stage_options){ .index = index,
                                                .inputs = inputs,
                                                .input_count = 2,
                                                .outputs = outputs,
                                                .output_count = 1 + self->last,
                                                .forward = power_run,
                                                .backward = power_run,
                                                .user = self },
                           &self->stage);
}

typedef struct powers {
    sl_schedule *schedule;
    float da[MAX_RANKS][WIDTH];
} powers;

static sl_status run_powers(toy_rank *self)
{
    enum { SAMPLES = 8 };
    powers *all = self->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    power own[MAX_STAGES];
    sl_stage *stages[MAX_STAGES];
    int total = sl_schedule_stages(all->schedule), count = 0, microbatches = sl_schedule_microbatches(all->schedule);
    float x[SAMPLES * WIDTH], a[WIDTH] = { 1, 2, -1 }, dx[SAMPLES * WIDTH];
    for (int i = 0; i < SAMPLES * WIDTH; i++)
        x[i] = (float)(i % 5 - 2);
    const sl_view batch = { x, sl_meta_make(SL_F32, 2, (int64_t[]){ SAMPLES, WIDTH }) };
    const sl_view scale = { a, sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH }) };
    const sl_arg args[] = { { "x", batch }, { "a", scale } };
    const sl_arg grads[] = { { "a", { all->da[self->rank], scale.meta } }, { "x", { dx, batch.meta } } };
    const sl_arg_spec specs[] = {
        { .name = "x", .meta = batch.meta, .grad = true },
        { .name = "a", .meta = scale.meta, .chunk = { .kind = SL_CHUNK_REPLICATE }, .grad = true }
    };
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    for (int s = 0; s < total; s++) {
        if (sl_schedule_rank_of(all->schedule, s) != self->rank)
            continue;
        SL_TRY(power_create(&own[count], s, total, SAMPLES / microbatches));
        stages[count] = own[count].stage;
        count++;
    }
    SL_TRY(sl_runtime_create(&(sl_runtime_options){ .group = self->group,
                                                    .device = device,
                                                    .schedule = all->schedule,
                                                    .stages = stages,
                                                    .stage_count = count,
                                                    .args = specs,
                                                    .arg_count = 2,
                                                    .mean = SL_MEAN_SUM },
                             &runtime));
    bool first = sl_schedule_rank_of(all->schedule, 0) == self->rank;
    for (int step = 0; step < 2; step++) /* the second overwrites the first */
        SL_TRY(sl_runtime_step(
            runtime,
            &(sl_step){
                .args = args, .arg_count = 2, .number = step, .input_grads = grads, .input_grad_count = 1 + first },
            NULL));
    for (int i = 0; first && i < SAMPLES * WIDTH; i++) {
        float power_of_a = 1;
        for (int s = 0; s < total; s++)
            power_of_a *= a[i % WIDTH];
        if (dx[i] != power_of_a)
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "dx[%d] is %g, not %g", i, (double)dx[i], (double)power_of_a));
    }
done:
    sl_runtime_destroy(runtime);
    for (int i = 0; i < count; i++)
        sl_stage_destroy(stages[i]);
    sl_device_close(device);
    return status;
}

static void stages_that_read_the_same_argument_add_up(void **state)
{
    (void)state;
    static const char *const names[] = { "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS" };
    test_device_install();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            toy_rank seats[MAX_RANKS];
            powers all = { .schedule = NULL };
            assert_int_equal(
                sl_schedule_generate(&(sl_generate_options){ .name = names[i], .ranks = ranks, .microbatches = 4 },
                                     &all.schedule),
                SL_OK);
            assert_int_equal(toy_run_ranks(ranks, run_powers, &all, seats), SL_OK);
            int stages = sl_schedule_stages(all.schedule);
            for (int r = 0; r < ranks; r++) {
                static const float a[WIDTH] = { 1, 2, -1 };
                if (seats[r].status != SL_OK)
                    fail_msg("%s, rank %d: %s", names[i], r, seats[r].message);
                for (int c = 0; c < WIDTH; c++) {
                    float sum = 0; /* x * a^(S-1) for each stage of the rank */
                    for (int row = 0; row < 8; row++)
                        sum += (float)((row * WIDTH + c) % 5 - 2);
                    for (int s = 1; s < stages; s++)
                        sum *= a[c];
                    assert_float_equal(all.da[r][c], sum * (float)(stages / ranks), 0);
                }
            }
            sl_schedule_destroy(all.schedule);
        }
    }
}

/* ---- Stages of a graph: loss = mean(((x * w0) * w1 + x) * w2), so that x goes past a stage ---- */

enum { ROWS = 8, LAYERS = 3 };

static sl_status cut_chain(int64_t rows, sl_partition **out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    const int64_t dims[] = { rows, WIDTH }, one[] = { WIDTH };
    SL_TRY(sl_graph_create(&graph));
    sl_value x = sl_graph_input_differentiable(graph, "x", SL_F32, 2, dims), h = x;
    for (int k = 0; k < LAYERS; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        if (k == 2)
            h = sl_add(graph, h, x);
        h = sl_mul(graph, h, sl_graph_param(graph, name, 1, one, (sl_init){ .kind = SL_INIT_ONES }));
        if (k < LAYERS - 1)
            sl_split_mark(graph);
    }
    sl_graph_loss(graph, sl_mean(graph, h, NULL, 0, false));
    SL_TRY(sl_graph_finish(graph));
    SL_TRY(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_MARKS }, out));
done:
    sl_graph_destroy(graph);
    return status;
}

typedef struct chain {
    sl_schedule *schedule;
    float dx[ROWS * WIDTH];
} chain;

static sl_status set_weights(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        float value = (float)(2 + params[i].name[1] - '0'), w[] = { value, value, value };
        SL_TRY(job_copy(runtime, &params[i].data, w, true));
    }
done:
    return status;
}

static sl_status run_chain(toy_rank *self)
{
    chain *all = self->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    sl_partition *partition = NULL;
    sl_stage *stages[LAYERS];
    int count = 0;
    float x[ROWS * WIDTH];
    toy_fill(x, ROWS * WIDTH, 3);
    const sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, WIDTH });
    const sl_arg arg = { "x", { x, meta } }, grad = { "x", { all->dx, meta } };
    bool first = sl_schedule_rank_of(all->schedule, 0) == self->rank;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(cut_chain(ROWS / sl_schedule_microbatches(all->schedule), &partition));
    for (int s = 0; s < LAYERS; s++) {
        if (sl_schedule_rank_of(all->schedule, s) == self->rank) {
            SL_TRY(sl_stage_build((const sl_partition *const[]){ partition }, 1, s, device, NULL, &stages[count]));
            count++;
        }
    }
    SL_TRY(sl_runtime_create(
        &(sl_runtime_options){
            .group = self->group, .device = device, .schedule = all->schedule, .stages = stages, .stage_count = count },
        &runtime));
    SL_TRY(set_weights(runtime));
    SL_TRY(sl_runtime_step(
        runtime,
        &(sl_step){
            .args = &arg, .arg_count = first, .input_grads = &grad, .input_grad_count = first, .grad_scale = 96 },
        NULL));
done:
    sl_runtime_destroy(runtime);
    for (int i = 0; i < count; i++)
        sl_stage_destroy(stages[i]);
    sl_partition_destroy(partition);
    sl_device_close(device);
    return status;
}

static void differentiable_inputs_of_a_graph_have_their_gradient(void **state)
{
    (void)state;
    static const struct {
        const char *csv;
        int ranks;
    } cases[] = {
        { "0F0,1F0,2F0,2B0,1B0,0B0,0F1,1F1,2F1,2B1,1B1,0B1\n", 1 },
        { "0F0,1F0,2F0,0F1,1F1,2F1,2I0,1I0,0I0,2I1,1I1,0I1,2W0,1W0,0W0,2W1,1W1,0W1\n", 1 },
        { "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n", 3 },
        { "0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1F1,1I0,1I1,1W0,1W1\n2F0,2I0,2F1,2I1,2W0,2W1\n", 3 },
    };
    test_device_install();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        toy_rank seats[MAX_RANKS];
        chain all = { .schedule = NULL };
        assert_int_equal(sl_schedule_parse_csv(cases[i].csv, strlen(cases[i].csv), "test", &all.schedule), SL_OK);
        assert_int_equal(toy_run_ranks(cases[i].ranks, run_chain, &all, seats), SL_OK);
        for (int r = 0; r < cases[i].ranks; r++) {
            if (seats[r].status != SL_OK)
                fail_msg("case %zu, rank %d: %s", i, r, seats[r].message);
        }
        for (int k = 0; k < ROWS * WIDTH; k++) /* (2 * 3 * 4 + 4) / (8 * 3) of 96 */
            assert_float_equal(all.dx[k], 112, 1e-4);
        sl_schedule_destroy(all.schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_gives_the_gradient_of_the_batch),
        cmocka_unit_test(uneven_microbatches_one_backward_and_skips),
        cmocka_unit_test(what_cannot_be_given_is_refused_and_the_next_step_is_right),
        cmocka_unit_test(stages_that_read_the_same_argument_add_up),
        cmocka_unit_test(differentiable_inputs_of_a_graph_have_their_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
