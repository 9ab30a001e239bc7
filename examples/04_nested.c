/* Nested arguments: stages that take and give trees of tensors, with numbers and texts among them.
 *
 *     sluice launch -n 3 -- 04_nested        (or on its own: one rank with all stages)
 *
 * The batch is { x, mask: [a, b], target, scale: 0.5, mode: "squares" }. The first stage makes { hidden, kv: { key } } of
 * it, the second changes both, the third also takes the first one's key. Values meet by the paths of their leaves. */
#include <sluice/sluice.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 3, WIDTH = 4, ROWS = 6, MICROBATCHES = 4, STEPS = 60, CELLS = ROWS * WIDTH };

/* What a stage works on: trees of one microbatch, bound to the memory of each call. */
typedef struct nest {
    sl_tree *inputs, *outputs, *input_grads, *output_grads;
} nest;

static sl_status bind(nest *self, const sl_stage_call *call)
{
    sl_status status = SL_OK;
    SL_TRY(sl_tree_bind(self->inputs, call->inputs, call->input_count));
    SL_TRY(sl_tree_bind(self->outputs, call->outputs, call->output_count));
    if (call->phase != SL_PHASE_F) {
        SL_TRY(sl_tree_bind(self->input_grads, call->input_grads, call->input_count));
        SL_TRY(sl_tree_bind(self->output_grads, call->output_grads, call->output_count));
    }
done:
    return status;
}

static float *at(const sl_tree *tree, const char *path)
{
    return sl_tree_find_leaf(tree, path)->as.tensor.data;
}

/* ---- Stage 0: { x, mask: [a, b], scale } to { hidden = x w, kv: { key = scale (a + b) x v } } ------------------ */

static sl_status encode(void *user, const sl_stage_call *call)
{
    nest *self = user;
    sl_status status = bind(self, call);
    if (status != SL_OK)
        return status;
    const float *x = at(self->inputs, "batch.x"), *a = at(self->inputs, "batch.mask.0"),
                *b = at(self->inputs, "batch.mask.1");
    const float *w = call->params[0].data, *v = call->params[1].data;
    float *hidden = at(self->outputs, "first.hidden"), *key = at(self->outputs, "first.kv.key");
    float scale = (float)sl_tree_find_leaf(self->inputs, "batch.scale")->as.real;
    for (int i = 0; i < CELLS; i++) {
        hidden[i] = x[i] * w[i % WIDTH];
        key[i] = scale * (a[i % WIDTH] + b[i]) * x[i] * v[i % WIDTH]; /* a is the same for all rows, b is not */
    }
    return SL_OK;
}

static sl_status encode_backward(void *user, const sl_stage_call *call)
{
    nest *self = user;
    sl_status status = bind(self, call);
    if (status != SL_OK)
        return status;
    const float *x = at(self->inputs, "batch.x"), *a = at(self->inputs, "batch.mask.0"),
                *b = at(self->inputs, "batch.mask.1");
    const float *hidden = at(self->output_grads, "first.hidden"), *key = at(self->output_grads, "first.kv.key");
    float *dw = call->grads[0].data, *dv = call->grads[1].data;
    float scale = (float)sl_tree_find_leaf(self->inputs, "batch.scale")->as.real;
    for (int i = 0; i < CELLS; i++) { /* the batch itself wants no gradient */
        dw[i % WIDTH] += hidden[i] * x[i];
        dv[i % WIDTH] += key[i] * scale * (a[i % WIDTH] + b[i]) * x[i];
    }
    return SL_OK;
}

/* ---- Stage 1: { hidden, kv: { key } } to { hidden = hidden w + key, kv: { key = key v } } ----------------------- */

static sl_status mix(void *user, const sl_stage_call *call)
{
    nest *self = user;
    sl_status status = bind(self, call);
    if (status != SL_OK)
        return status;
    const float *hidden = at(self->inputs, "first.hidden"), *key = at(self->inputs, "first.kv.key");
    const float *w = call->params[0].data, *v = call->params[1].data;
    float *next = at(self->outputs, "second.hidden"), *next_key = at(self->outputs, "second.kv.key");
    for (int i = 0; i < CELLS; i++) {
        next[i] = hidden[i] * w[i % WIDTH] + key[i];
        next_key[i] = key[i] * v[i % WIDTH];
    }
    return SL_OK;
}

static sl_status mix_backward(void *user, const sl_stage_call *call)
{
    nest *self = user;
    sl_status status = bind(self, call);
    if (status != SL_OK)
        return status;
    const float *hidden = at(self->inputs, "first.hidden"), *key = at(self->inputs, "first.kv.key");
    const float *next = at(self->output_grads, "second.hidden"), *next_key = at(self->output_grads, "second.kv.key");
    const float *w = call->params[0].data, *v = call->params[1].data;
    float *dhidden = at(self->input_grads, "first.hidden"), *dkey = at(self->input_grads, "first.kv.key");
    float *dw = call->grads[0].data, *dv = call->grads[1].data;
    for (int i = 0; i < CELLS; i++) {
        dhidden[i] = next[i] * w[i % WIDTH];
        dkey[i] = next[i] + next_key[i] * v[i % WIDTH];
        dw[i % WIDTH] += next[i] * hidden[i];
        dv[i % WIDTH] += next_key[i] * key[i];
    }
    return SL_OK;
}

/* ---- Stage 2: hidden w + key + the first key v against the target ------------------------------------------------ */

static sl_status head(void *user, const sl_stage_call *call)
{
    nest *self = user;
    sl_status status = bind(self, call);
    if (status != SL_OK)
        return status;
    const char *mode = sl_tree_find_leaf(self->inputs, "batch.mode")->as.text;
    if (strcmp(mode, "squares") != 0)
        return sl_fail(SL_ERR_ARGUMENT, "the loss '%s' is not known", mode);
    const float *hidden = at(self->inputs, "second.hidden"), *key = at(self->inputs, "second.kv.key");
    const float *first = at(self->inputs, "first.kv.key"), *target = at(self->inputs, "batch.target");
    const float *w = call->params[0].data, *v = call->params[1].data;
    float *y = at(self->outputs, "result.y"), *loss = at(self->outputs, "loss");
    *loss = 0;
    for (int i = 0; i < CELLS; i++) {
        y[i] = hidden[i] * w[i % WIDTH] + key[i] + first[i] * v[i % WIDTH];
        *loss += (y[i] - target[i]) * (y[i] - target[i]) / 2 / ROWS;
    }
    return SL_OK;
}

static sl_status head_backward(void *user, const sl_stage_call *call)
{
    nest *self = user;
    sl_status status = bind(self, call);
    if (status != SL_OK)
        return status;
    const float *hidden = at(self->inputs, "second.hidden"), *first = at(self->inputs, "first.kv.key");
    const float *y = at(self->outputs, "result.y"), *target = at(self->inputs, "batch.target");
    const float *seed = at(self->output_grads, "loss"), *w = call->params[0].data, *v = call->params[1].data;
    float *dhidden = at(self->input_grads, "second.hidden"), *dkey = at(self->input_grads, "second.kv.key");
    float *dfirst = at(self->input_grads, "first.kv.key"), *dw = call->grads[0].data, *dv = call->grads[1].data;
    for (int i = 0; i < CELLS; i++) {
        float dy = (y[i] - target[i]) / ROWS * *seed;
        dhidden[i] = dy * w[i % WIDTH];
        dkey[i] = dy;
        dfirst[i] = dy * v[i % WIDTH];
        dw[i % WIDTH] += dy * hidden[i];
        dv[i % WIDTH] += dy * first[i];
    }
    return SL_OK;
}

/* ---- Trees ------------------------------------------------------------------------------------------------------ */

/* A dict that lies in `parent`, which owns it, and is filled afterwards. */
static sl_status put_dict(sl_tree *parent, const char *key, sl_tree **out)
{
    sl_status status = sl_tree_dict(out);
    return status == SL_OK ? sl_tree_put(parent, key, *out) : status;
}

/* { hidden, kv: { key } } of one microbatch, without memory; or the key alone. */
static sl_status put_state(sl_tree *tree, const char *name, bool key_alone)
{
    sl_status status = SL_OK;
    sl_tree *state = NULL, *kv = NULL;
    const sl_meta rows = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, WIDTH });
    SL_TRY(put_dict(tree, name, &state));
    SL_TRY(put_dict(state, "kv", &kv));
    SL_TRY(sl_tree_put_leaf(kv, "key", sl_leaf_tensor(NULL, &rows)));
    if (!key_alone)
        SL_TRY(sl_tree_put_leaf(state, "hidden", sl_leaf_tensor(NULL, &rows)));
done:
    return status;
}

/* What of the batch the first and the last stage take, and its memory, for so many rows. */
static sl_status put_batch(sl_tree *tree, bool first, bool last, int64_t rows, float *const data[4])
{
    sl_status status = SL_OK;
    sl_tree *batch = NULL, *mask = NULL;
    const sl_meta cells = sl_meta_make(SL_F32, 2, (int64_t[]){ rows, WIDTH });
    const sl_meta row = sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH });
    SL_TRY(put_dict(tree, "batch", &batch));
    if (first) {
        SL_TRY(sl_tree_list(&mask));
        SL_TRY(sl_tree_put(batch, "mask", mask));
        SL_TRY(sl_tree_append_leaf(mask, sl_leaf_tensor(data[1], &row)));
        SL_TRY(sl_tree_append_leaf(mask, sl_leaf_tensor(data[2], &cells)));
        SL_TRY(sl_tree_put_leaf(batch, "x", sl_leaf_tensor(data[0], &cells)));
        SL_TRY(sl_tree_put_leaf(batch, "scale", sl_leaf_real(0.5)));
    }
    if (last) {
        SL_TRY(sl_tree_put_leaf(batch, "target", sl_leaf_tensor(data[3], &cells)));
        SL_TRY(sl_tree_put_leaf(batch, "mode", sl_leaf_text("squares")));
    }
done:
    return status;
}

static sl_status put_result(sl_tree *tree)
{
    sl_status status = SL_OK;
    sl_tree *result = NULL;
    const sl_meta rows = sl_meta_make(SL_F32, 2, (int64_t[]){ ROWS, WIDTH }), scalar = sl_meta_make(SL_F32, 0, NULL);
    SL_TRY(sl_tree_put_leaf(tree, "loss", sl_leaf_tensor(NULL, &scalar)));
    SL_TRY(put_dict(tree, "result", &result));
    SL_TRY(sl_tree_put_leaf(result, "y", sl_leaf_tensor(NULL, &rows)));
done:
    return status;
}

static sl_status make_inputs(int stage, sl_tree **out)
{
    static float *const none[4] = { NULL };
    sl_status status = SL_OK;
    sl_tree *tree = NULL;
    SL_TRY(sl_tree_dict(&tree));
    if (stage != 1)
        SL_TRY(put_batch(tree, stage == 0, stage == 2, ROWS, none));
    if (stage > 0)
        SL_TRY(put_state(tree, "first", stage == 2));
    if (stage == 2)
        SL_TRY(put_state(tree, "second", false));
    *out = tree;
    tree = NULL;
done:
    sl_tree_destroy(tree);
    return status;
}

static sl_status make_outputs(int stage, sl_tree **out)
{
    sl_status status = SL_OK;
    sl_tree *tree = NULL;
    SL_TRY(sl_tree_dict(&tree));
    if (stage < 2)
        SL_TRY(put_state(tree, stage == 0 ? "first" : "second", false));
    else
        SL_TRY(put_result(tree));
    *out = tree;
    tree = NULL;
done:
    sl_tree_destroy(tree);
    return status;
}

/* ---- The pipeline ------------------------------------------------------------------------------------------------ */

static sl_status make_stage(int index, nest *self, sl_stage **out)
{
    static const sl_stage_fn forwards[] = { encode, mix, head };
    static const sl_stage_fn backwards[] = { encode_backward, mix_backward, head_backward };
    sl_status status = SL_OK;
    sl_stage_value *inputs = NULL, *outputs = NULL;
    int input_count = 0, output_count = 0;
    char names[2][8];
    const sl_meta row = sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH });
    SL_TRY(make_inputs(index, &self->inputs));
    SL_TRY(make_inputs(index, &self->input_grads));
    SL_TRY(make_outputs(index, &self->outputs));
    SL_TRY(make_outputs(index, &self->output_grads));
    SL_TRY(sl_tree_values(self->inputs, NULL, &inputs, &input_count));
    SL_TRY(sl_tree_values(self->outputs, NULL, &outputs, &output_count));
    for (int i = 0; i < input_count; i++)
        inputs[i].no_grad |= strncmp(inputs[i].name, "batch.", 6) == 0;
    for (int i = 0; i < output_count; i++) {
        outputs[i].loss = strcmp(outputs[i].name, "loss") == 0;
        outputs[i].no_grad = strcmp(outputs[i].name, "result.y") == 0;
    }
    snprintf(names[0], sizeof names[0], "w%d", index);
    snprintf(names[1], sizeof names[1], "v%d", index);
    const sl_stage_param params[] = { { .name = names[0], .meta = row }, { .name = names[1], .meta = row } };
    const sl_stage_options options = { .index = index,
                                       .inputs = inputs,
                                       .input_count = input_count,
                                       .outputs = outputs,
                                       .output_count = output_count,
                                       .params = params,
                                       .param_count = 2,
                                       .forward = forwards[index],
                                       .backward = backwards[index],
                                       .user = self };
    SL_TRY(sl_stage_create(&options, out));
done:
    sl_free(inputs);
    sl_free(outputs);
    return status;
}

static sl_status train(sl_group *group, sl_runtime *runtime, const sl_tree *tree)
{
    sl_status status = SL_OK;
    sl_arg *args = NULL;
    int arg_count = 0, count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int p = 0; p < count; p++) {
        for (int k = 0; k < WIDTH; k++)
            ((float *)params[p].data.data)[k] = 0.5f + 0.1f * (float)k;
    }
    SL_TRY(sl_tree_args(tree, NULL, &args, &arg_count));
    for (int step = 0; step < STEPS; step++) {
        sl_step_result result;
        SL_TRY(sl_runtime_step(runtime, &(sl_step){ .args = args, .arg_count = arg_count, .number = step }, &result));
        for (int p = 0; p < count; p++) {
            for (int k = 0; k < WIDTH; k++)
                ((float *)params[p].data.data)[k] -= 0.2f * ((const float *)params[p].grad.data)[k];
        }
        if (sl_group_rank(group) == 0 && (step % 20 == 0 || step == STEPS - 1))
            printf("step %d  loss %.5f\n", step, result.loss);
    }
done:
    sl_free(args);
    return status;
}

static sl_status run(sl_group *group)
{
    static float x[MICROBATCHES * CELLS], a[WIDTH], b[MICROBATCHES * CELLS], target[MICROBATCHES * CELLS];
    static float *const data[4] = { x, a, b, target };
    /* mask.0 goes to every microbatch; all else follows from what it is. */
    static const sl_tree_chunk chunks[] = { { "batch.mask.0", { .kind = SL_CHUNK_REPLICATE } } };
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_schedule *schedule = NULL;
    sl_runtime *runtime = NULL;
    sl_tree *tree = NULL;
    sl_arg_spec *specs = NULL;
    sl_stage *stages[STAGES] = { NULL };
    nest nests[STAGES] = { 0 };
    int count = 0, spec_count = 0, ranks = sl_group_size(group);
    for (int i = 0; i < MICROBATCHES * CELLS; i++) {
        x[i] = (float)(i % 7) / 4 - 0.75f;
        b[i] = (float)(i % 2);
        target[i] = (1 + b[i]) * x[i];
    }
    for (int c = 0; c < WIDTH; c++)
        a[c] = 1;
    SL_TRY(sl_device_open("cpu", NULL, &device));
    SL_TRY(sl_schedule_generate(&(sl_generate_options){ .name = ranks == 1 ? "LoopedBFS" : "1F1B",
                                                        .ranks = ranks,
                                                        .microbatches = MICROBATCHES,
                                                        .stages_per_rank = STAGES / ranks },
                                &schedule));
    for (int s = 0; s < STAGES; s++) {
        if (sl_schedule_rank_of(schedule, s) != sl_group_rank(group))
            continue;
        SL_TRY(make_stage(s, &nests[count], &stages[count]));
        count++;
    }
    SL_TRY(sl_tree_dict(&tree));
    SL_TRY(put_batch(tree, true, true, (int64_t)ROWS * MICROBATCHES, data));
    SL_TRY(sl_tree_arg_specs(tree, NULL, chunks, 1, &specs, &spec_count));
    const sl_runtime_options options = { .group = group,
                                         .device = device,
                                         .schedule = schedule,
                                         .stages = stages,
                                         .stage_count = count,
                                         .args = specs,
                                         .arg_count = spec_count };
    SL_TRY(sl_runtime_create(&options, &runtime));
    SL_TRY(train(group, runtime, tree));
done:
    if (status != SL_OK)
        sl_group_fail(group, status);
    sl_runtime_destroy(runtime);
    for (int s = 0; s < STAGES; s++) {
        sl_stage_destroy(stages[s]);
        sl_tree_destroy(nests[s].inputs);
        sl_tree_destroy(nests[s].outputs);
        sl_tree_destroy(nests[s].input_grads);
        sl_tree_destroy(nests[s].output_grads);
    }
    sl_free(specs);
    sl_tree_destroy(tree);
    sl_schedule_destroy(schedule);
    sl_device_close(device);
    return status;
}

int main(void)
{
    sl_group *group = NULL;
    sl_status status = sl_group_open(NULL, &group);
    if (status == SL_OK && sl_group_size(group) != 1 && sl_group_size(group) != STAGES)
        status = sl_fail(SL_ERR_ARGUMENT, "1 or %d ranks", STAGES);
    if (status == SL_OK)
        status = run(group);
    if (status != SL_OK)
        fprintf(stderr, "04_nested: %s\n", sl_error_message());
    sl_group_close(group);
    return status == SL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
