/* A model of one's own: a graph, cut at marks into stages, pipelined and trained with AdamW.
 *
 *     sluice launch -n 3 -- 02_graph        (or on its own: one rank with all three stages)
 *
 * A small residual network learns to tell in which of four rings a point of the plane lies. */
#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STAGES = 3, WIDTH = 64, CLASSES = 4, ROWS = 32, MICROBATCHES = 4, STEPS = 150 };

/* ---- The model ------------------------------------------------------------------------------- */

static sl_value dense(sl_graph *g, const char *name, sl_value x, int64_t in, int64_t out)
{
    sl_graph_push(g, name);
    sl_value w =
        sl_graph_param(g, "weight", 2, (int64_t[]){ out, in }, (sl_init){ SL_INIT_NORMAL, 1 / sqrt((double)in) });
    sl_value b = sl_graph_param(g, "bias", 1, &out, (sl_init){ SL_INIT_ZEROS, 0 });
    sl_value y = sl_linear(g, x, w, b);
    sl_graph_pop(g);
    return y;
}

/* Stages are cut at the marks; `first` is used by the second and the third: an edge over a stage. */
static sl_status build(sl_graph **out)
{
    sl_graph *g = NULL;
    sl_status status = sl_graph_create(&g);
    if (status != SL_OK)
        return status;
    sl_value x = sl_graph_input(g, "x", SL_F32, 2, (int64_t[]){ ROWS, 2 });
    sl_value targets = sl_graph_input(g, "targets", SL_I32, 1, (int64_t[]){ ROWS });
    sl_value first = sl_relu(g, dense(g, "in", x, 2, WIDTH));
    sl_split_mark(g);
    sl_value second = sl_add(g, first, sl_relu(g, dense(g, "middle", first, WIDTH, WIDTH)));
    sl_split_mark(g);
    sl_value third = sl_add(g, first, sl_relu(g, dense(g, "last", second, WIDTH, WIDTH)));
    sl_graph_loss(g, sl_cross_entropy(g, dense(g, "out", third, WIDTH, CLASSES), targets, -1));
    status = sl_graph_finish(g);
    if (status == SL_OK)
        *out = g;
    else
        sl_graph_destroy(g);
    return status;
}

/* ---- Training -------------------------------------------------------------------------------- */

static uint32_t random_state = 12345;

static float uniform(void)
{
    random_state = random_state * UINT32_C(1664525) + UINT32_C(1013904223);
    return (float)(random_state >> 8) / (float)(1 << 24);
}

/* Every rank makes the same batch; it uses what its stages need. */
static void fill_batch(float *x, int32_t *targets)
{
    for (int i = 0; i < ROWS * MICROBATCHES; i++) {
        x[2 * i] = 2 * uniform() - 1;
        x[2 * i + 1] = 2 * uniform() - 1;
        float radius = sqrtf(x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1]);
        targets[i] = radius < 0.4f ? 0 : radius < 0.7f ? 1 : radius < 1.0f ? 2 : 3;
    }
}

static sl_status make_optimizer(sl_runtime *runtime, sl_device *device, sl_optimizer **out)
{
    sl_optim_param params[16];
    int count = 0;
    const sl_param *own = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        const sl_param_info info = { own[i].name, SL_F32, own[i].data.meta.shape, own[i].init };
        sl_param_init(&info, 1, 0, sl_meta_count(&own[i].data.meta), own[i].data.data);
        params[i] = (sl_optim_param){
            .name = own[i].name, .data = own[i].data, .grad = own[i].grad, .decay = own[i].data.meta.shape.rank >= 2
        };
    }
    const sl_optim_options options = { .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 };
    return sl_optimizer_create(&options, device, params, count, out);
}

static sl_status train(sl_group *group, sl_runtime *runtime, sl_optimizer *optimizer)
{
    static float x[ROWS * MICROBATCHES * 2];
    static int32_t targets[ROWS * MICROBATCHES];
    sl_status status = SL_OK;
    const sl_arg args[] = {
        { .name = "x", .view = { x, sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS * MICROBATCHES, 2 }) } },
        { .name = "targets", .view = { targets, sl_meta_make(SL_I32, 1, (int64_t[]){ ROWS * MICROBATCHES }) } },
    };
    for (int step = 0; step < STEPS; step++) {
        sl_step_result result;
        fill_batch(x, targets);
        SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = 2, .number = step }, &result));
        SL_TRY(sl_optimizer_step(optimizer, sl_runtime_stream(runtime), step + 1, 0.005, 1));
        if (sl_group_rank(group) == 0 && (step % 50 == 0 || step == STEPS - 1))
            printf("step %d  loss %.4f\n", step, result.loss);
    }
done:
    return status;
}

/* A rank for each stage, or one rank with all. */
static sl_status make_schedule(int ranks, sl_schedule **out)
{
    const sl_generate_options options = { .name = ranks == STAGES ? "1F1B" : "Interleaved1F1B",
                                          .ranks = ranks,
                                          .microbatches = MICROBATCHES,
                                          .stages_per_rank = STAGES / ranks };
    return sl_schedule_generate(&options, out);
}

static sl_status run(sl_group *group)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    sl_schedule *schedule = NULL;
    sl_stage *stages[STAGES] = { NULL };
    sl_runtime *runtime = NULL;
    sl_optimizer *optimizer = NULL;
    int count = 0;
    SL_TRY(sl_device_open("cpu", NULL, &device));
    SL_TRY(build(&graph));
    SL_TRY(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_MARKS }, &partition));
    SL_TRY(make_schedule(sl_group_size(group), &schedule));
    for (int s = 0; s < STAGES; s++) {
        if (sl_schedule_rank_of(schedule, s) == sl_group_rank(group))
            SL_TRY(sl_stage_build((const sl_partition *const *)&partition, 1, s, device, NULL, &stages[count++]));
    }
    const sl_runtime_options options = {
        .group = group, .device = device, .schedule = schedule, .stages = stages, .stage_count = count
    };
    SL_TRY(sl_runtime_create(&options, &runtime));
    SL_TRY(make_optimizer(runtime, device, &optimizer));
    SL_TRY(train(group, runtime, optimizer));
done:
    if (status != SL_OK)
        sl_group_fail(group, status);
    sl_optimizer_destroy(optimizer);
    sl_runtime_destroy(runtime);
    for (int s = 0; s < count; s++)
        sl_stage_destroy(stages[s]);
    sl_schedule_destroy(schedule);
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
    sl_device_close(device);
    return status;
}

int main(void)
{
    sl_group *group = NULL;
    sl_status status = sl_group_open(NULL, &group);
    if (status == SL_OK && STAGES % sl_group_size(group) != 0)
        status = sl_fail(SL_ERR_ARGUMENT, "the three stages need 1 or 3 ranks");
    if (status == SL_OK)
        status = run(group);
    if (status != SL_OK)
        fprintf(stderr, "02_graph: %s\n", sl_error_message());
    sl_group_close(group);
    return status == SL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
