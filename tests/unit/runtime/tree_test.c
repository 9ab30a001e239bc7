/* Trees as arguments: what becomes of their leaves, how they are cut, and stages that take and give them. */
#include "support/status.h"
#include "unit/runtime/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { SAMPLES = 7, PARTS = 3 };

/* { mask: [ [7, 3], [3] ], step: 5, tag: "t", thing: pointer, x: [7, 3] }; memory NULL: of one microbatch of 2 rows */
static sl_status make_batch(float *x, float *mask, float *shared, void *thing, sl_tree **out)
{
    sl_status status = SL_OK;
    sl_tree *tree = NULL, *list = NULL;
    sl_meta rows = sl_meta_make(SL_F32, 2, (int64_t[]){ x ? SAMPLES : 2, WIDTH });
    sl_meta row = sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH });
    SL_TRY(sl_tree_dict(&tree));
    SL_TRY(sl_tree_list(&list));
    SL_TRY(sl_tree_put(tree, "mask", list));
    SL_TRY(sl_tree_append_leaf(list, sl_leaf_tensor(mask, &rows)));
    SL_TRY(sl_tree_append_leaf(list, sl_leaf_tensor(shared, &row)));
    SL_TRY(sl_tree_put_leaf(tree, "step", sl_leaf_int(5)));
    SL_TRY(sl_tree_put_leaf(tree, "tag", sl_leaf_text("t")));
    SL_TRY(sl_tree_put_leaf(tree, "thing", sl_leaf_pointer(thing)));
    SL_TRY(sl_tree_put_leaf(tree, "x", sl_leaf_tensor(x, &rows)));
    *out = tree;
    tree = NULL;
done:
    sl_tree_destroy(tree);
    return status;
}

static const sl_tree_chunk shared_row[] = { { "in.mask.1", { .kind = SL_CHUNK_REPLICATE } } };

static void leaves_become_arguments_with_specs(void **state)
{
    (void)state;
    static const char *const names[] = { "in.mask.0", "in.mask.1", "in.step", "in.tag", "in.thing", "in.x" };
    static const sl_chunk_kind kinds[] = { SL_CHUNK_SPLIT,     SL_CHUNK_REPLICATE, SL_CHUNK_REPLICATE,
                                           SL_CHUNK_REPLICATE, SL_CHUNK_REPLICATE, SL_CHUNK_SPLIT };
    float x[SAMPLES * WIDTH], mask[SAMPLES * WIDTH], shared[WIDTH];
    sl_tree *tree = NULL;
    sl_arg *args = NULL;
    sl_arg_spec *specs = NULL;
    sl_stage_value *values = NULL;
    sl_output *outputs = NULL;
    int count = 0;
    ok(make_batch(x, mask, shared, x, &tree));
    ok(sl_tree_args(tree, "in", &args, &count));
    assert_int_equal(count, 6);
    assert_ptr_equal(args[5].view.data, x);
    assert_int_equal(*(int64_t *)args[2].view.data, 5);
    ok(sl_tree_arg_specs(tree, "in", shared_row, 1, &specs, &count));
    ok(sl_tree_values(tree, "in", &values, &count));
    for (int i = 0; i < count; i++) {
        assert_string_equal(args[i].name, names[i]);
        assert_string_equal(specs[i].name, names[i]);
        assert_string_equal(values[i].name, names[i]);
        assert_int_equal(specs[i].chunk.kind, kinds[i]);
        assert_int_equal(values[i].no_grad, i >= 2 && i <= 4);
    }
    sl_free(specs);
    /* A path stands for all below it; the longest counts. */
    const sl_tree_chunk chunks[] = { { "in", { .kind = SL_CHUNK_REPLICATE } },
                                     { "in.mask", { .dim = 1 } },
                                     { "in.mask.1", { .dim = -1 } } };
    ok(sl_tree_arg_specs(tree, "in", chunks, 3, &specs, &count));
    assert_int_equal(specs[0].chunk.dim, 1);
    assert_int_equal(specs[1].chunk.dim, -1);
    assert_int_equal(specs[5].chunk.kind, SL_CHUNK_REPLICATE);
    sl_free(specs);
    says(sl_tree_arg_specs(tree, "in", (sl_tree_chunk[]){ { "in.mas", { .dim = 1 } } }, 1, &specs, &count),
         "a chunk spec for 'in.mas', but the tree has no leaf there");
    says(sl_tree_outputs(tree, NULL, NULL, 0, &outputs, &count), "'step' is no tensor");
    sl_free(args);
    sl_free(values);
    sl_tree_destroy(tree);
}

static void scalars_go_to_every_microbatch(void **state)
{
    (void)state;
    int64_t number = 9;
    sl_view parts[PARTS], whole = { &number, sl_meta_make(SL_I64, 0, NULL) };
    ok(sl_microbatch_split(&whole, NULL, PARTS, parts));
    for (int m = 0; m < PARTS; m++)
        assert_ptr_equal(parts[m].data, &number);
    says(sl_microbatch_split(&whole, &(sl_chunk_spec){ .dim = 1 }, PARTS, parts), "cannot split i64 [] along dim 1");
}

/* ---- Stages that take and give trees: each adds its number to h and hands the batch's tag on ------------------- */

typedef struct tree_run {
    int stages, seen; /* calls that found every leaf */
    float result[SAMPLES * WIDTH];
    sl_schedule *schedule;
} tree_run;

typedef struct tree_stage {
    tree_run *run;
    int index;
    sl_tree *inputs, *outputs;
} tree_stage;

/* { h: { now: [n, 3], then: [ [n, 3] ] } } */
static sl_status make_state(sl_tree **out, float *now, float *then, int64_t rows)
{
    sl_status status = SL_OK;
    sl_tree *tree = NULL, *list = NULL;
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ rows, WIDTH });
    SL_TRY(sl_tree_dict(&tree));
    SL_TRY(sl_tree_put_leaf(tree, "now", sl_leaf_tensor(now, &meta)));
    SL_TRY(sl_tree_list(&list));
    SL_TRY(sl_tree_put(tree, "then", list));
    SL_TRY(sl_tree_append_leaf(list, sl_leaf_tensor(then, &meta)));
    *out = tree;
    tree = NULL;
done:
    sl_tree_destroy(tree);
    return status;
}

static sl_status tree_forward(void *user, const sl_stage_call *call)
{
    tree_stage *self = user;
    sl_status status = SL_OK;
    SL_TRY(sl_tree_bind(self->inputs, call->inputs, call->input_count));
    SL_TRY(sl_tree_bind(self->outputs, call->outputs, call->output_count));
    const sl_tree *state = self->index ? sl_tree_find(self->inputs, "state") : NULL;
    const sl_view x = sl_tree_find_leaf(self->inputs, "in.x")->as.tensor;
    const float *mask = sl_tree_find_leaf(self->inputs, "in.mask.0")->as.tensor.data;
    const float *shared = sl_tree_find_leaf(self->inputs, "in.mask.1")->as.tensor.data;
    const float *before = state ? sl_tree_find_leaf(state, "now")->as.tensor.data : x.data;
    float *now = sl_tree_find_leaf(self->outputs, "now")->as.tensor.data;
    float *then = sl_tree_find_leaf(self->outputs, "then.0")->as.tensor.data;
    bool right = sl_tree_find_leaf(self->inputs, "in.step")->as.integer == 5 &&
                 strcmp(sl_tree_find_leaf(self->inputs, "in.tag")->as.text, "t") == 0 &&
                 sl_tree_find_leaf(self->inputs, "in.thing")->as.pointer == self->run;
    __atomic_add_fetch(&self->run->seen, right, __ATOMIC_RELAXED);
    for (int64_t i = 0; i < sl_meta_count(&x.meta); i++) {
        then[i] = before[i];
        now[i] = before[i] + mask[i] * shared[i % WIDTH] + (float)self->index;
    }
done:
    return status;
}

static sl_status tree_infer(void *user, const sl_meta *inputs, int input_count, sl_meta *outputs, int output_count)
{
    (void)user;
    for (int j = 0; j < output_count; j++)
        outputs[j] = inputs[input_count - 1]; /* of the last leaf: in.x, or state.then.0 */
    return SL_OK;
}

static sl_status make_tree_stage(tree_stage *self, sl_stage **out)
{
    sl_status status = SL_OK;
    sl_stage_value *inputs = NULL, *outputs = NULL;
    sl_tree *batch = NULL, *state = NULL;
    int input_count = 0, output_count = 0;
    char before[16], after[16];
    snprintf(before, sizeof before, "h%d", self->index - 1);
    snprintf(after, sizeof after, "h%d", self->index);
    SL_TRY(sl_tree_dict(&self->inputs));
    SL_TRY(make_batch(NULL, NULL, NULL, NULL, &batch));
    SL_TRY(sl_tree_put(self->inputs, "in", batch));
    if (self->index > 0) { /* named after the stage that makes it */
        SL_TRY(make_state(&state, NULL, NULL, 2));
        SL_TRY(sl_tree_put(self->inputs, "state", state));
    }
    SL_TRY(make_state(&self->outputs, NULL, NULL, 2));
    SL_TRY(sl_tree_values(self->inputs, NULL, &inputs, &input_count));
    SL_TRY(sl_tree_values(self->outputs, after, &outputs, &output_count));
    char names[2][32];
    for (int i = 0; i < input_count; i++) {
        inputs[i].meta.shape.rank = i >= 2 && i <= 4 ? 0 : -1;
        if (i < 6)
            continue;
        snprintf(names[i - 6], sizeof names[0], "%s%s", before, inputs[i].name + strlen("state"));
        inputs[i].name = names[i - 6];
    }
    for (int j = 0; j < output_count; j++)
        outputs[j].meta.shape.rank = -1;
    const sl_stage_options options = { .index = self->index,
                                       .inputs = inputs,
                                       .input_count = input_count,
                                       .outputs = outputs,
                                       .output_count = output_count,
                                       .forward = tree_forward,
                                       .infer = tree_infer,
                                       .user = self };
    SL_TRY(sl_stage_create(&options, out));
done:
    sl_free(inputs);
    sl_free(outputs);
    return status;
}

/* What every rank gives, and where the last one's result goes. */
static sl_status eval_trees(tree_run *run, sl_runtime *runtime, bool last, const sl_tree *batch)
{
    sl_status status = SL_OK;
    float then[SAMPLES * WIDTH];
    sl_tree *result = NULL;
    sl_arg *args = NULL;
    sl_output *outputs = NULL;
    int arg_count = 0, output_count = 0;
    char name[16];
    snprintf(name, sizeof name, "h%d", run->stages - 1);
    SL_TRY(make_state(&result, run->result, then, SAMPLES));
    SL_TRY(sl_tree_args(batch, "in", &args, &arg_count));
    SL_TRY(sl_tree_outputs(result, name, NULL, 0, &outputs, &output_count));
    const sl_step step = {
        .args = args, .arg_count = arg_count, .outputs = outputs, .output_count = last ? output_count : 0
    };
    SL_TRY(sl_runtime_eval(runtime, &step, NULL));
done:
    sl_tree_destroy(result);
    sl_free(args);
    sl_free(outputs);
    return status;
}

static sl_status tree_rank(toy_rank *rank)
{
    tree_run *run = rank->user;
    sl_status status = SL_OK;
    float x[SAMPLES * WIDTH], mask[SAMPLES * WIDTH], shared[WIDTH];
    tree_stage states[MAX_STAGES] = { 0 };
    sl_stage *stages[MAX_STAGES] = { NULL };
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    sl_tree *batch = NULL;
    sl_arg_spec *specs = NULL;
    int count = 0, spec_count = 0;
    toy_fill(x, SAMPLES * WIDTH, 1);
    toy_fill(mask, SAMPLES * WIDTH, 2);
    toy_fill(shared, WIDTH, 3);
    SL_TRY(sl_device_open("cpu", NULL, &device));
    for (int s = 0; s < run->stages; s++) {
        if (sl_schedule_rank_of(run->schedule, s) != rank->rank)
            continue;
        states[count] = (tree_stage){ .run = run, .index = s };
        SL_TRY(make_tree_stage(&states[count], &stages[count]));
        count++;
    }
    SL_TRY(make_batch(x, mask, shared, run, &batch));
    SL_TRY(sl_tree_arg_specs(batch, "in", shared_row, 1, &specs, &spec_count));
    const sl_runtime_options options = { .group = rank->group,
                                         .device = device,
                                         .schedule = run->schedule,
                                         .stages = stages,
                                         .stage_count = count,
                                         .args = specs,
                                         .arg_count = spec_count };
    SL_TRY(sl_runtime_create(&options, &runtime));
    SL_TRY(eval_trees(run, runtime, sl_schedule_rank_of(run->schedule, run->stages - 1) == rank->rank, batch));
done:
    sl_runtime_destroy(runtime);
    for (int i = 0; i < MAX_STAGES; i++) {
        sl_stage_destroy(stages[i]);
        sl_tree_destroy(states[i].inputs);
        sl_tree_destroy(states[i].outputs);
    }
    sl_tree_destroy(batch);
    sl_free(specs);
    sl_device_close(device);
    return status;
}

static void stages_take_and_give_trees(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        tree_run run = { .stages = 2 * ranks };
        toy_rank all[MAX_RANKS];
        float x[SAMPLES * WIDTH], mask[SAMPLES * WIDTH], shared[WIDTH];
        ok(sl_schedule_generate(
            &(sl_generate_options){
                .name = "ForwardOnly", .ranks = ranks, .microbatches = PARTS, .stages_per_rank = 2 },
            &run.schedule));
        ok(toy_run_ranks(ranks, tree_rank, &run, all));
        for (int r = 0; r < ranks; r++) {
            if (all[r].status != SL_OK)
                fail_msg("rank %d: %s", r, all[r].message);
        }
        assert_int_equal(run.seen, run.stages * PARTS); /* numbers, texts and pointers in every microbatch */
        toy_fill(x, SAMPLES * WIDTH, 1);
        toy_fill(mask, SAMPLES * WIDTH, 2);
        toy_fill(shared, WIDTH, 3);
        for (int i = 0; i < SAMPLES * WIDTH; i++) {
            for (int s = 0; s < run.stages; s++)
                x[i] = x[i] + mask[i] * shared[i % WIDTH] + (float)s;
            assert_true(run.result[i] == x[i]);
        }
        sl_schedule_destroy(run.schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_become_arguments_with_specs),
        cmocka_unit_test(scalars_go_to_every_microbatch),
        cmocka_unit_test(stages_take_and_give_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
