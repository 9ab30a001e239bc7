/* A pipeline of small hand-written stages, the same computed one after another as reference, and ranks as threads.
 *
 * Stage s computes h<s> = h<s-1> * w<s> (elementwise over rows of WIDTH), plus h<skip[s]> if it has a skip input.
 * The last one has the outputs y and loss = mean over samples of sum (y - t)^2 / 2, with root input t. */
#ifndef TOY_H
#define TOY_H

#include <sluice/runtime.h>

#include "support/device/test_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 3, MAX_STAGES = 16, MAX_RANKS = 8, MAX_SAMPLES = 64, MAX_MICROBATCHES = 16 };

typedef struct toy_shape {
    int stages;
    int skip[MAX_STAGES];      /* stage whose output is added; -1: none */
    int tied_with[MAX_STAGES]; /* stage whose parameter it shares; -1: its own */
    bool only_backward;        /* one callback in place of two */
    int bad_output; /* stage whose F hands back a view of the wrong shape (1), dtype (2) or stride (3) of microbatch 1 */
    int bad_stage;
    bool own_output;                 /* F hands back memory of its own */
    bool null_output;                /* F sets its output to NULL */
    bool no_loss;                    /* the last stage forgets to mark its loss */
    int fail_stage, fail_microbatch; /* F of it fails; -1: none */
    int fail_with;                   /* returned without a message; 0: a proper failure */
    size_t more_saved;               /* bytes */
    int nan_microbatch;              /* its loss is not a number; -1: none */
    bool open_shapes;                /* metadata is inferred */
    bool replays;                    /* a device may capture and launch what the callbacks give it */
    int wrong_stage;                 /* declares another width for its output; -1: none */
} toy_shape;

static inline toy_shape toy_shape_make(int stages)
{
    toy_shape shape = { .stages = stages, .fail_stage = -1, .nan_microbatch = -1, .wrong_stage = -1 };
    for (int s = 0; s < MAX_STAGES; s++)
        shape.skip[s] = shape.tied_with[s] = -1;
    return shape;
}

typedef struct toy_stage {
    const toy_shape *shape;
    int index;
    int calls[SL_PHASE_COUNT];
    float own[MAX_SAMPLES * WIDTH]; /* for own_output, */
    void *far;                      /* or on the device */
    const void *read_at[MAX_MICROBATCHES], *wrote_at[MAX_MICROBATCHES], *grad_read_at[MAX_MICROBATCHES],
        *grad_wrote_at[MAX_MICROBATCHES];
    sl_rng rng[MAX_MICROBATCHES]; /* as F got it */
    sl_stage *stage;
} toy_stage;

/* ---- The mathematics, used by the stages and by the reference ---- */

static inline void toy_forward(const float *x, const float *skip, const float *w, int64_t n, float *y)
{
    for (int64_t i = 0; i < n * WIDTH; i++)
        y[i] = x[i] * w[i % WIDTH] + (skip ? skip[i] : 0);
}

static inline float toy_loss(const float *y, const float *t, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n * WIDTH; i++)
        sum += (y[i] - t[i]) * (y[i] - t[i]) / 2;
    return sum / (float)n;
}

static inline void toy_loss_grad(const float *y, const float *t, int64_t n, float seed, float *dy)
{
    for (int64_t i = 0; i < n * WIDTH; i++)
        dy[i] = (y[i] - t[i]) / (float)n * seed;
}

static inline void toy_backward_input(const float *dy, const float *w, int64_t n, float *dx)
{
    for (int64_t i = 0; i < n * WIDTH; i++)
        dx[i] = dy[i] * w[i % WIDTH];
}

static inline void toy_backward_weight(const float *dy, const float *x, int64_t n, float *dw)
{
    for (int64_t i = 0; i < n * WIDTH; i++)
        dw[i % WIDTH] += dy[i] * x[i];
}

/* ---- Stages: inputs are x, skip?, t?; outputs h, or y and loss ---- */

static inline bool toy_is_last(const toy_stage *toy)
{
    return toy->index == toy->shape->stages - 1;
}

static inline void toy_spoil(int how, sl_meta *meta)
{
    if (how == 1)
        meta->shape.dims[0]++;
    else if (how == 2)
        meta->dtype = SL_I32;
    else
        meta->strides[0]++;
}

/* One phase, as a stream gets it: pointers that may be a device's. */
typedef struct toy_launch {
    int64_t n;
    bool nan;
    const void *x, *skip, *w, *t, *dy, *seed;
    void *y, *saved, *loss, *dx, *dskip, *dw;
} toy_launch;

static inline float *toy_at(const void *data)
{
    return (float *)test_device_near(data);
}

static inline toy_launch toy_prepare(const toy_stage *toy, const sl_stage_call *call)
{
    bool skips = toy->shape->skip[toy->index] >= 0, last = toy_is_last(toy), back = call->phase != SL_PHASE_F;
    return (toy_launch){
        .n = call->inputs[0].meta.shape.dims[0],
        .nan = call->microbatch == toy->shape->nan_microbatch,
        .x = call->inputs[0].data,
        .skip = skips ? call->inputs[1].data : NULL,
        .w = call->params[0].data,
        .t = last ? call->inputs[1 + skips].data : NULL,
        .dy = back && !last ? call->output_grads[0].data : NULL,
        .seed = back && last ? call->output_grads[1].data : NULL,
        .y = back ? NULL : call->outputs[0].data,
        .loss = back || !last ? NULL : call->outputs[1].data,
        .saved = call->saved,
        .dx = back ? call->input_grads[0].data : NULL,
        .dskip = back && skips ? call->input_grads[1].data : NULL,
        .dw = back ? call->grads[0].data : NULL,
    };
}

static inline void toy_kernel_forward(const void *args)
{
    const toy_launch *run = (const toy_launch *)args;
    float *y = toy_at(run->y);
    toy_forward(toy_at(run->x), run->skip ? toy_at(run->skip) : NULL, toy_at(run->w), run->n, y);
    memcpy(toy_at(run->saved), y, (size_t)run->n * WIDTH * sizeof *y);
    if (!run->loss)
        return;
    float loss = toy_loss(y, toy_at(run->t), run->n);
    *toy_at(run->loss) = run->nan ? 0.0f / 0.0f * loss : loss;
}

/* The gradient of the stage's h; in the last stage it comes from the loss. */
static inline const float *toy_dy(const toy_launch *run, float *room)
{
    if (!run->t)
        return toy_at(run->dy);
    toy_loss_grad(toy_at(run->saved), toy_at(run->t), run->n, *toy_at(run->seed), room);
    return room;
}

static inline void toy_kernel_input(const void *args)
{
    const toy_launch *run = (const toy_launch *)args;
    float room[MAX_SAMPLES * WIDTH];
    const float *dy = toy_dy(run, room);
    if (run->dx)
        toy_backward_input(dy, toy_at(run->w), run->n, toy_at(run->dx));
    if (run->dskip)
        memcpy(toy_at(run->dskip), dy, (size_t)run->n * WIDTH * sizeof *dy);
}

static inline void toy_kernel_weight(const void *args)
{
    const toy_launch *run = (const toy_launch *)args;
    float room[MAX_SAMPLES * WIDTH];
    toy_backward_weight(toy_dy(run, room), toy_at(run->x), run->n, toy_at(run->dw));
}

static inline sl_status toy_run_forward(void *user, const sl_stage_call *call)
{
    toy_stage *toy = (toy_stage *)user;
    sl_status status = SL_OK;
    sl_device *device = sl_stream_device(call->stream);
    toy->calls[SL_PHASE_F]++;
    if (toy->index == toy->shape->fail_stage && call->microbatch == toy->shape->fail_microbatch)
        return toy->shape->fail_with ? (sl_status)toy->shape->fail_with : sl_fail(SL_ERR_STAGE, "the valve is stuck");
    if (toy->shape->own_output && !toy->far && !sl_device_is_host(device))
        SL_TRY(sl_device_alloc(device, sizeof toy->own, &toy->far)); /* the device frees it */
    if (toy->shape->own_output)
        call->outputs[0].data = toy->far ? toy->far : (void *)toy->own;
    if (toy->shape->bad_output && toy->index == toy->shape->bad_stage && call->microbatch == 1)
        toy_spoil(toy->shape->bad_output, &call->outputs[0].meta);
    toy_launch run = toy_prepare(toy, call);
    toy->read_at[call->microbatch] = run.x;
    toy->rng[call->microbatch] = call->rng;
    toy->wrote_at[call->microbatch] = run.y;
    SL_TRY(test_device_launch(call->stream, toy_kernel_forward, &run, sizeof run));
    if (toy->shape->null_output)
        call->outputs[0].data = NULL;
done:
    return status;
}

static inline sl_status toy_run_input(void *user, const sl_stage_call *call)
{
    toy_stage *toy = (toy_stage *)user;
    toy_launch run = toy_prepare(toy, call);
    toy->calls[SL_PHASE_I]++;
    toy->grad_read_at[call->microbatch] = run.dy;
    toy->grad_wrote_at[call->microbatch] = run.dx;
    return test_device_launch(call->stream, toy_kernel_input, &run, sizeof run);
}

static inline sl_status toy_run_weight(void *user, const sl_stage_call *call)
{
    toy_stage *toy = (toy_stage *)user;
    toy_launch run = toy_prepare(toy, call);
    toy->calls[SL_PHASE_W]++;
    return test_device_launch(call->stream, toy_kernel_weight, &run, sizeof run);
}

static inline sl_status toy_run_backward(void *user, const sl_stage_call *call)
{
    toy_stage *toy = (toy_stage *)user;
    sl_status status = SL_OK;
    toy->calls[SL_PHASE_B]++;
    SL_TRY(toy_run_input(user, call));
    SL_TRY(toy_run_weight(user, call));
done:
    return status;
}

static inline sl_status toy_infer(void *user, const sl_meta *inputs, int input_count, sl_meta *outputs,
                                  int output_count)
{
    const toy_stage *toy = (const toy_stage *)user;
    (void)input_count;
    (void)output_count;
    if (inputs[0].shape.dims[1] != WIDTH)
        return sl_fail(SL_ERR_SHAPE, "rows of %lld, not of %d", (long long)inputs[0].shape.dims[1], WIDTH);
    outputs[0] = inputs[0];
    if (toy_is_last(toy))
        outputs[1] = sl_meta_make(SL_F32, 0, NULL);
    return SL_OK;
}

/* samples: of the larger microbatch. */
static inline sl_status toy_create(toy_stage *toy, const toy_shape *shape, int index, int64_t samples)
{
    char names[6][16];
    int skip = shape->skip[index], owner = shape->tied_with[index] >= 0 ? shape->tied_with[index] : index;
    bool last = index == shape->stages - 1;
    int64_t width = index == shape->wrong_stage ? WIDTH + 1 : WIDTH;
    sl_meta rows = sl_meta_make(SL_F32, 2, (int64_t[]){ samples, WIDTH });
    sl_meta wide = sl_meta_make(SL_F32, 2, (int64_t[]){ samples, width });
    if (shape->open_shapes)
        rows.shape.rank = wide.shape.rank = -1;
    snprintf(names[0], sizeof names[0], index ? "h%d" : "x", index - 1);
    snprintf(names[1], sizeof names[1], "h%d", skip);
    snprintf(names[2], sizeof names[2], last ? "y" : "h%d", index);
    snprintf(names[3], sizeof names[3], "w%d", owner);
    sl_stage_value inputs[3] = { { .name = names[0], .meta = rows } },
                   outputs[2] = { { .name = names[2], .meta = wide } };
    int ins = 1;
    if (skip >= 0)
        inputs[ins++] = (sl_stage_value){ .name = names[1], .meta = rows, .last_use = SL_LAST_USE_F };
    if (last)
        inputs[ins++] = (sl_stage_value){ .name = "t", .meta = rows, .no_grad = true };
    outputs[0].last_use = SL_LAST_USE_F;
    outputs[1] = (sl_stage_value){ .name = "loss", .meta = sl_meta_make(SL_F32, 0, NULL), .loss = !shape->no_loss };
    sl_stage_param param = { .name = names[3], .meta = sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH }) };
    *toy = (toy_stage){ .shape = shape, .index = index };
    sl_stage_options options = {
        .index = index,
        .inputs = inputs,
        .input_count = ins,
        .outputs = outputs,
        .output_count = 1 + last,
        .params = &param,
        .param_count = 1,
        .saved_bytes = (size_t)samples * WIDTH * sizeof(float) + shape->more_saved,
        .forward = toy_run_forward,
        .backward_input = shape->only_backward ? NULL : toy_run_input,
        .backward_weight = shape->only_backward ? NULL : toy_run_weight,
        .backward = shape->only_backward ? toy_run_backward : NULL,
        .infer = toy_infer,
        .user = toy,
        .replays = shape->replays,
    };
    return sl_stage_create(&options, &toy->stage);
}

/* ---- Order ---- */

/* Microbatches in the order in which the stage adds to its gradients; order has room for all of them. */
static inline int toy_grad_order(const sl_schedule *schedule, int stage, int *order)
{
    int found = 0;
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(schedule, sl_schedule_rank_of(schedule, stage), &count);
    for (int64_t i = 0; i < count; i++) {
        sl_action parts[2];
        int n = sl_action_parts(actions[i], parts);
        for (int k = 0; k < n; k++) {
            if (parts[k].stage == stage && (parts[k].kind == SL_KIND_W || parts[k].kind == SL_KIND_B))
                order[found++] = parts[k].microbatch;
        }
    }
    return found;
}

/* ---- Data ---- */

static inline float toy_number(int seed)
{
    return (float)(((uint32_t)seed * 2654435761u >> 8) % 1000) / 997.0f - 0.4f;
}

static inline void toy_fill(float *data, int count, int seed)
{
    for (int i = 0; i < count; i++)
        data[i] = toy_number(seed * 7919 + i);
}

static inline void toy_initial(int stage, float *w)
{
    toy_fill(w, WIDTH, 100 + stage);
    for (int c = 0; c < WIDTH; c++)
        w[c] += 1;
}

/* ---- Ranks as threads: each runs `body` and keeps its status and message ---- */

typedef struct toy_rank {
    sl_group *group;
    int rank;
    void *user;
    sl_status (*body)(struct toy_rank *self);
    sl_status status;
    char message[2048];
} toy_rank;

static inline void *toy_rank_main(void *user)
{
    toy_rank *self = (toy_rank *)user;
    self->status = self->body(self);
    if (self->status != SL_OK)
        snprintf(self->message, sizeof self->message, "%s", sl_error_message());
    sl_group_close(self->group);
    return NULL;
}

/* Runs body on every rank; fills ranks[]. */
static inline sl_status toy_run_ranks(int count, sl_status (*body)(toy_rank *self), void *user, toy_rank *ranks)
{
    sl_group *groups[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    sl_status status = sl_group_open_threads(count, NULL, groups);
    if (status != SL_OK)
        return status;
    for (int r = 0; r < count; r++) {
        ranks[r] = (toy_rank){ .group = groups[r], .rank = r, .user = user, .body = body };
        if (pthread_create(&threads[r], NULL, toy_rank_main, &ranks[r]) != 0)
            abort();
    }
    for (int r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
    return SL_OK;
}

#endif
