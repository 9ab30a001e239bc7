/* Looking into a runtime: every rank sees the whole pipeline as agreed, and can size its buffers by it. */
#include "unit/runtime/job.h"

static sl_status wrong(const char *what, long long expected, long long given)
{
    return sl_fail(SL_ERR_INTERNAL, "%s: expected %lld, given %lld", what, expected, given);
}

#define EXPECT(what, expected, given)                                                                                  \
    do {                                                                                                               \
        if ((long long)(expected) != (long long)(given))                                                               \
            return wrong(what, (long long)(expected), (long long)(given));                                             \
    } while (0)

static sl_status expect_rows(const char *what, const sl_meta *meta, int64_t rows)
{
    EXPECT(what, SL_F32, meta->dtype);
    EXPECT(what, 2, meta->shape.rank);
    EXPECT(what, rows, meta->shape.dims[0]);
    EXPECT(what, WIDTH, meta->shape.dims[1]);
    return SL_OK;
}

/* Every stage has h<s-1> or x, the last also t; all shapes were left open. */
static sl_status look_at_stages(const sl_pipeline *pipeline)
{
    sl_status status = SL_OK;
    int stages = sl_pipeline_stages(pipeline);
    for (int s = 0; s < stages; s++) {
        bool last = s == stages - 1;
        EXPECT("first", s == 0, sl_pipeline_is_first(pipeline, s));
        EXPECT("last", last, sl_pipeline_is_last(pipeline, s));
        EXPECT("inputs", 1 + last, sl_pipeline_input_count(pipeline, s));
        EXPECT("outputs", 1 + last, sl_pipeline_output_count(pipeline, s));
        sl_pipeline_value in = sl_pipeline_get_input(pipeline, s, 0), out = sl_pipeline_get_output(pipeline, s, 0);
        SL_TRY(expect_rows(in.name, &in.metas[0], 2));
        SL_TRY(expect_rows(in.name, &in.metas[1], 1));
        SL_TRY(expect_rows(out.name, &out.metas[0], 2));
        SL_TRY(expect_rows(out.name, &out.metas[1], 1));
        SL_TRY(expect_rows(out.name, &out.whole, 7));
        EXPECT("maker", s - 1, in.maker);
        EXPECT("root", s == 0 ? 0 : -1, in.root);
        EXPECT("users", !last, out.users);
        EXPECT("gradient", true, in.has_grad && out.has_grad);
    }
    sl_pipeline_value loss = sl_pipeline_get_output(pipeline, stages - 1, 1);
    EXPECT("loss", true, loss.loss && strcmp(loss.name, "loss") == 0 && loss.metas[0].shape.rank == 0);
    EXPECT("past the last output", true, !sl_pipeline_get_output(pipeline, stages - 1, 2).name);
    EXPECT("past the last stage", 0, sl_pipeline_input_count(pipeline, stages));
done:
    return status;
}

static sl_status look_at_batch(const sl_pipeline *pipeline)
{
    sl_status status = SL_OK;
    int edges = 0;
    EXPECT("root inputs", 2, sl_pipeline_root_count(pipeline));
    for (int r = 0; r < 2; r++) {
        sl_pipeline_root root = sl_pipeline_get_root(pipeline, r);
        EXPECT("position", r, root.position);
        EXPECT("name", 0, strcmp(root.name, r == 0 ? "x" : "t"));
        EXPECT("gradient", r == 0, root.has_grad);
        SL_TRY(expect_rows(root.name, &root.whole, 7));
        SL_TRY(expect_rows(root.name, &root.metas[1], 1));
    }
    const sl_pipeline_edge *edge = sl_pipeline_edges(pipeline, &edges);
    EXPECT("edges", sl_pipeline_stages(pipeline) - 1, edges);
    EXPECT("first edge", 0, edges ? edge->from : 0);
    EXPECT("microbatches", 4, sl_pipeline_microbatches(pipeline));
    EXPECT("samples of the first", 2, sl_pipeline_samples(pipeline, 0));
    EXPECT("samples of the last", 1, sl_pipeline_samples(pipeline, 3));
    EXPECT("size of the last", 1, sl_pipeline_size_of(pipeline, 3));
done:
    return status;
}

/* The slots of a rank make up what its memory says. */
static sl_status look_at_slots(const sl_pipeline *pipeline)
{
    for (int r = 0; r < sl_pipeline_ranks(pipeline); r++) {
        size_t bytes = 0;
        for (int i = 0; sl_pipeline_get_slots(pipeline, r, i).count > 0; i++)
            bytes += sl_pipeline_get_slots(pipeline, r, i).bytes * (size_t)sl_pipeline_get_slots(pipeline, r, i).count;
        size_t scalars = r == sl_pipeline_ranks(pipeline) - 1 ? (size_t)2 * 4 * 8 : 0; /* losses and their seeds */
        EXPECT("slots", sl_pipeline_get_memory(pipeline, r).slots, bytes + scalars);
    }
    return SL_OK;
}

/* Buffers from what the pipeline says. */
static sl_status step_with_sized_buffers(sl_runtime *runtime, float *outputs)
{
    sl_status status = SL_OK;
    const sl_pipeline *pipeline = sl_runtime_pipeline(runtime);
    int last = sl_pipeline_stages(pipeline) - 1;
    sl_arg args[2];
    void *memory[2] = { NULL, NULL };
    for (int r = 0; r < 2; r++) {
        sl_pipeline_root root = sl_pipeline_get_root(pipeline, r);
        memory[r] = calloc(1, sl_meta_bytes(&root.whole));
        args[r] = (sl_arg){ root.name, { memory[r], root.whole } };
    }
    sl_pipeline_value y = sl_pipeline_get_output(pipeline, last, 0);
    bool here = sl_schedule_rank_of(sl_runtime_schedule(runtime), last) == sl_group_rank(sl_runtime_group(runtime));
    const sl_output wanted = { .name = y.name, .view = { outputs, y.whole } };
    SL_TRY(sl_runtime_step(runtime,
                           &(sl_step){ .args = args, .arg_count = 2, .outputs = &wanted, .output_count = here }, NULL));
done:
    free(memory[0]);
    free(memory[1]);
    return status;
}

static sl_status look(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sl_status status = SL_OK;
    float outputs[MAX_SAMPLES * WIDTH];
    const sl_pipeline *pipeline = sl_runtime_pipeline(runtime);
    (void)self, (void)rank, (void)stages, (void)count;
    SL_TRY(look_at_stages(pipeline));
    SL_TRY(look_at_batch(pipeline));
    SL_TRY(look_at_slots(pipeline));
    SL_TRY(step_with_sized_buffers(runtime, outputs));
done:
    return status;
}

static void every_rank_sees_all_that_was_agreed(void **state)
{
    (void)state;
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 7, WIDTH });
    const sl_arg_spec specs[] = { { .name = "x", .meta = meta, .grad = true }, { .name = "t", .meta = meta } };
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        job made = job_make("1F1B", ranks, 0, 4, 7);
        made.shape.open_shapes = true;
        made.extra.args = specs;
        made.extra.arg_count = 2;
        made.before = look;
        job_finish(&made);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_sees_all_that_was_agreed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
