/* A training job of toy stages, run as a pipeline and one stage after another; both give the same bits. */
#ifndef JOB_H
#define JOB_H

#include "unit/runtime/toy.h"

typedef struct job job;
struct job {
    toy_shape shape;
    sl_schedule *schedule;
    int samples, microbatches, steps;
    sl_loss_mean mean;
    sl_runtime_options extra; /* what differs from the default; group, stages and so on are filled in */
    bool split;               /* the batch is handed over pre-split */
    bool accumulate;          /* steps come in pairs that add up */
    bool eval_first;
    /* Optional: called on every rank with the runtime made, before the steps, and after them. */
    sl_status (*before)(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count);
    sl_status (*after)(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count);
    void *user;
    /* Results. */
    float losses[8][MAX_MICROBATCHES]; /* of each step, as rank 0 has them */
    double loss[8];
    float eval_losses[MAX_MICROBATCHES];
    float grads[MAX_STAGES][WIDTH];   /* of the last step */
    float weights[MAX_STAGES][WIDTH]; /* after all */
    float outputs[MAX_SAMPLES * WIDTH];
};

static inline void job_batch(int step, int samples, float *x, float *t)
{
    toy_fill(x, samples * WIDTH, 1 + step * 2);
    toy_fill(t, samples * WIDTH, 2 + step * 2);
}

static inline int64_t job_first(const job *self, int m)
{
    int64_t start, length;
    sl_chunk_range(self->samples, self->microbatches, m, &start, &length);
    return start;
}

static inline double job_weight(const job *self, int m)
{
    int64_t start, length;
    sl_chunk_range(self->samples, self->microbatches, m, &start, &length);
    if (self->mean == SL_MEAN_SAMPLES)
        return (double)length / self->samples;
    return self->mean == SL_MEAN_SUM ? 1 : 1.0 / self->microbatches;
}

static inline void job_update(float *w, const float *g)
{
    for (int c = 0; c < WIDTH; c++)
        w[c] -= 0.1f * g[c];
}

/* ---- As a pipeline ---- */

static inline sl_status job_step(job *self, toy_rank *rank, sl_runtime *runtime, int step)
{
    sl_status status = SL_OK;
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int64_t dims[] = { self->samples, WIDTH };
    sl_arg args[2 * MAX_MICROBATCHES] = { { "x", { x, sl_meta_make(SL_F32, 2, dims) } },
                                          { "t", { t, sl_meta_make(SL_F32, 2, dims) } } };
    bool last = sl_schedule_rank_of(self->schedule, self->shape.stages - 1) == rank->rank;
    sl_output output = { .name = "y", .view = { self->outputs, sl_meta_make(SL_F32, 2, dims) } };
    sl_step what = { .args = args, .arg_count = 2, .number = step, .outputs = &output, .output_count = last };
    sl_step_result result;
    job_batch(step, self->samples, x, t);
    if (self->split) {
        for (int m = 0; m < self->microbatches; m++) {
            int64_t first = job_first(self, m);
            dims[0] = job_first(self, m + 1) - first;
            args[2 * m] = (sl_arg){ "x", { x + first * WIDTH, sl_meta_make(SL_F32, 2, dims) } };
            args[2 * m + 1] = (sl_arg){ "t", { t + first * WIDTH, sl_meta_make(SL_F32, 2, dims) } };
        }
        what.split = true;
    }
    if (self->eval_first) {
        SL_TRY(sl_runtime_eval(runtime, &what, &result));
        if (rank->rank == 0)
            memcpy(self->eval_losses, result.losses, (size_t)self->microbatches * sizeof(float));
    }
    what.partial = self->accumulate && step % 2 == 0;
    what.keep_grads = self->accumulate && step % 2 == 1;
    SL_TRY(sl_runtime_step(runtime, &what, &result));
    if (rank->rank == 0 && result.losses) {
        memcpy(self->losses[step], result.losses, (size_t)self->microbatches * sizeof(float));
        self->loss[step] = result.loss;
    }
done:
    return status;
}

static inline sl_status job_train(job *self, toy_rank *rank, sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++)
        toy_initial(atoi(params[i].name + 1), (float *)params[i].data.data);
    for (int step = 0; step < self->steps; step++) {
        SL_TRY(job_step(self, rank, runtime, step));
        if (self->accumulate && step % 2 == 0)
            continue;
        for (int i = 0; i < count; i++) {
            if (step == self->steps - 1)
                memcpy(self->grads[params[i].stage], params[i].grad.data, sizeof self->grads[0]);
            job_update((float *)params[i].data.data, (const float *)params[i].grad.data);
            memcpy(self->weights[params[i].stage], params[i].data.data, sizeof self->weights[0]);
        }
    }
done:
    return status;
}

static inline sl_status job_rank(toy_rank *rank)
{
    job *self = (job *)rank->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    toy_stage *toys = (toy_stage *)calloc(MAX_STAGES, sizeof *toys);
    sl_stage *stages[MAX_STAGES];
    int count = 0;
    sl_arg_spec specs[2] = { { .name = "x" }, { .name = "t" } };
    int64_t dims[] = { self->samples, WIDTH };
    SL_TRY(sl_device_open("cpu", NULL, &device));
    for (int s = 0; s < self->shape.stages; s++) {
        if (sl_schedule_rank_of(self->schedule, s) != rank->rank)
            continue;
        SL_TRY(
            toy_create(&toys[count], &self->shape, s, (self->samples + self->microbatches - 1) / self->microbatches));
        stages[count] = toys[count].stage;
        count++;
    }
    specs[0].meta = specs[1].meta = sl_meta_make(SL_F32, 2, dims);
    sl_runtime_options options = self->extra;
    options.group = rank->group;
    options.device = device;
    options.schedule = self->schedule;
    options.stages = stages;
    options.stage_count = count;
    options.mean = self->mean;
    if (!options.args) {
        options.args = specs;
        options.arg_count = 2;
    }
    SL_TRY(sl_runtime_create(&options, &runtime));
    if (self->before)
        SL_TRY(self->before(self, rank->rank, runtime, toys, count));
    status = job_train(self, rank, runtime);
    if (self->after) {
        char message[1024];
        snprintf(message, sizeof message, "%s", sl_error_message());
        sl_status later = self->after(self, rank->rank, runtime, toys, count);
        if (status != SL_OK)
            sl_fail(status, "%s", message); /* what matters is the step's */
        else
            status = later;
    }
done:
    sl_runtime_destroy(runtime);
    for (int i = 0; i < count; i++)
        sl_stage_destroy(toys[i].stage);
    sl_device_close(device);
    free(toys);
    return status;
}

/* The first failing rank's status; ranks holds all. */
static inline sl_status job_run_on(job *self, toy_rank *ranks)
{
    int count = sl_schedule_ranks(self->schedule);
    sl_status status = toy_run_ranks(count, job_rank, self, ranks);
    for (int r = 0; r < count && status == SL_OK; r++) {
        status = ranks[r].status;
        if (status != SL_OK)
            sl_fail(status, "%s", ranks[r].message);
    }
    return status;
}

static inline sl_status job_run(job *self)
{
    toy_rank ranks[MAX_RANKS];
    return job_run_on(self, ranks);
}

/* ---- One stage after another ---- */

typedef struct job_memory {
    float h[MAX_STAGES][MAX_SAMPLES * WIDTH];
    float dh[MAX_STAGES][MAX_SAMPLES * WIDTH];
} job_memory;

/* Microbatches in the order in which the stage adds to its gradient. */
static inline int job_order(const job *self, int stage, int *order)
{
    int found = 0;
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(self->schedule, sl_schedule_rank_of(self->schedule, stage), &count);
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

/* Gradient of h[s]: what its users hand back, added up in stage order. */
static inline void job_collect(const job *self, job_memory *memory, int s, int64_t first, int64_t n,
                               const float (*w)[WIDTH])
{
    bool any = false;
    for (int user = s + 1; user < self->shape.stages; user++) {
        float part[MAX_SAMPLES * WIDTH];
        const float *dy = memory->dh[user] + first * WIDTH;
        for (int way = 0; way < 2; way++) {
            if (way == 0 ? user != s + 1 : self->shape.skip[user] != s)
                continue;
            if (way == 0)
                toy_backward_input(dy, w[user], n, part);
            else
                memcpy(part, dy, (size_t)n * WIDTH * sizeof *part);
            for (int64_t i = 0; i < n * WIDTH; i++) {
                float *sum = &memory->dh[s][first * WIDTH + i];
                *sum = any ? *sum + part[i] : part[i];
            }
            any = true;
        }
    }
}

static inline void job_reference_step(job *self, job_memory *memory, int step, float (*w)[WIDTH], float (*g)[WIDTH])
{
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int last = self->shape.stages - 1;
    job_batch(step, self->samples, x, t);
    self->loss[step] = 0;
    for (int m = 0; m < self->microbatches; m++) {
        int64_t first = job_first(self, m), n = job_first(self, m + 1) - first, at = first * WIDTH;
        for (int s = 0; s <= last; s++)
            toy_forward(s ? memory->h[s - 1] + at : x + at,
                        self->shape.skip[s] >= 0 ? memory->h[self->shape.skip[s]] + at : NULL, w[s], n,
                        memory->h[s] + at);
        self->losses[step][m] = toy_loss(memory->h[last] + at, t + at, n);
        self->loss[step] += job_weight(self, m) * (double)self->losses[step][m];
        toy_loss_grad(memory->h[last] + at, t + at, n, (float)job_weight(self, m), memory->dh[last] + at);
        for (int s = last - 1; s >= 0; s--)
            job_collect(self, memory, s, first, n, (const float(*)[WIDTH])w);
    }
    for (int s = 0; s <= last; s++) {
        int order[MAX_MICROBATCHES], count = job_order(self, s, order);
        for (int k = 0; k < count; k++) {
            int64_t first = job_first(self, order[k]), n = job_first(self, order[k] + 1) - first;
            toy_backward_weight(memory->dh[s] + first * WIDTH, (s ? memory->h[s - 1] : x) + first * WIDTH, n, g[s]);
        }
    }
    memcpy(self->outputs, memory->h[last], (size_t)self->samples * WIDTH * sizeof(float));
}

/* Every stage that shares a parameter gets the sum over all that do, in stage order. */
static inline void job_tie(const job *self, float (*g)[WIDTH])
{
    for (int s = 0; s < self->shape.stages; s++) {
        float sum[WIDTH];
        int parts = 0;
        for (int other = 0; other < self->shape.stages; other++) {
            if (other != s && self->shape.tied_with[other] != s)
                continue;
            for (int c = 0; c < WIDTH; c++)
                sum[c] = parts ? sum[c] + g[other][c] : g[other][c];
            parts++;
        }
        for (int other = 0; parts > 1 && other < self->shape.stages; other++) {
            if (other == s || self->shape.tied_with[other] == s)
                memcpy(g[other], sum, sizeof sum);
        }
    }
}

static inline void job_reference(job *self)
{
    job_memory *memory = (job_memory *)calloc(1, sizeof *memory);
    float w[MAX_STAGES][WIDTH], g[MAX_STAGES][WIDTH];
    for (int s = 0; s < self->shape.stages; s++)
        toy_initial(self->shape.tied_with[s] >= 0 ? self->shape.tied_with[s] : s, w[s]);
    for (int step = 0; step < self->steps; step++) {
        if (!self->accumulate || step % 2 == 0)
            memset(g, 0, sizeof g);
        job_reference_step(self, memory, step, w, g);
        if (self->accumulate && step % 2 == 0)
            continue;
        job_tie(self, g);
        for (int s = 0; s < self->shape.stages; s++)
            job_update(w[s], g[s]);
    }
    memcpy(self->grads, g, sizeof g);
    memcpy(self->weights, w, sizeof w);
    free(memory);
}

#endif
