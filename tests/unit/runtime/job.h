/* A training job of toy stages, run as a pipeline and one stage after another; both give the same bits. */
#ifndef JOB_H
#define JOB_H

#include "unit/runtime/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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
    const char *label;  /* of messages; may be NULL */
    const char *device; /* NULL: test_device_spec() */
    int replicas;       /* pipelines side by side, each with batches of its own; 0: 1 */
    sl_status (*prepare)(job *self,
                         toy_stage *stage); /* optional: called with every stage before the runtime is made */
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

static inline void job_batch(int step, int replica, int samples, float *x, float *t)
{
    toy_fill(x, samples * WIDTH, 1 + step * 2 + replica * 50);
    toy_fill(t, samples * WIDTH, 2 + step * 2 + replica * 50);
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

static inline void job_update(float *w, const float *g, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        w[c] -= 0.1f * g[c];
}

/* ---- As a pipeline ---- */

/* One rank of one of the pipelines. */
typedef struct job_place {
    int rank, replica;
} job_place;

static inline sl_status job_step(job *self, job_place place, sl_runtime *runtime, int step)
{
    sl_status status = SL_OK;
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int64_t dims[] = { self->samples, WIDTH };
    sl_arg args[2 * MAX_MICROBATCHES] = { { "x", { x, sl_meta_make(SL_F32, 2, dims) } },
                                          { "t", { t, sl_meta_make(SL_F32, 2, dims) } } };
    bool last = sl_schedule_rank_of(self->schedule, self->shape.stages - 1) == place.rank;
    bool speaks = place.replica == 0;
    sl_output output = { .name = "y", .view = { self->outputs, sl_meta_make(SL_F32, 2, dims) } };
    sl_step what = { .args = args, .arg_count = 2, .number = step, .outputs = &output, .output_count = last && speaks };
    sl_step_result result;
    job_batch(step, place.replica, self->samples, x, t);
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
        if (place.rank == 0 && speaks)
            memcpy(self->eval_losses, result.losses, (size_t)self->microbatches * sizeof(float));
    }
    what.partial = self->accumulate && step % 2 == 0;
    what.keep_grads = self->accumulate && step % 2 == 1;
    SL_TRY(sl_runtime_step(runtime, &what, &result));
    if (place.rank == 0 && speaks && result.losses) {
        memcpy(self->losses[step], result.losses, (size_t)self->microbatches * sizeof(float));
        self->loss[step] = result.loss;
    }
done:
    return status;
}

/* Between the device, wherever it is, and the host. */
static inline sl_status job_copy(const sl_runtime *runtime, const sl_view *view, float *host, bool write)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(runtime);
    size_t bytes = sl_meta_bytes(&view->meta);
    if (write)
        SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, view->data, host, bytes));
    else
        SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, host, view->data, bytes));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

/* Replicas that have different elements: one, or those of the first group that shares. */
static inline int job_writers(const job *self)
{
    int group = self->extra.shard_group > 0 ? self->extra.shard_group : self->replicas > 1 ? self->replicas : 1;
    return self->extra.shard == SL_SHARD_NONE ? 1 : group;
}

/* Writes what the rank has of the updated elements to where the test looks. */
static inline void job_keep(const sl_param *param, const float *from, float *whole)
{
    int64_t skip = param->updated.first - param->held.first;
    memcpy(whole + param->updated.first, from + skip, (size_t)param->updated.count * sizeof *from);
}

static inline sl_status job_train(job *self, job_place place, sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    float all[WIDTH], w[2 * WIDTH] = { 0 }, g[2 * WIDTH]; /* the whole, and what this rank has of it */
    for (int i = 0; i < count; i++) {
        toy_initial(atoi(params[i].name + 1), all);
        memcpy(w, all + params[i].held.first, (size_t)params[i].held.count * sizeof *w);
        SL_TRY(job_copy(runtime, &params[i].data, w, true));
    }
    for (int step = 0; step < self->steps; step++) {
        SL_TRY(job_step(self, place, runtime, step));
        if (self->accumulate && step % 2 == 0)
            continue;
        for (int i = 0; i < count; i++) {
            SL_TRY(job_copy(runtime, &params[i].data, w, false));
            SL_TRY(job_copy(runtime, &params[i].grad, g, false));
            int64_t skip = params[i].updated.first - params[i].held.first;
            job_update(w + skip, g + skip, params[i].updated.count);
            SL_TRY(job_copy(runtime, &params[i].data, w, true));
            if (place.replica < job_writers(self)) {
                job_keep(&params[i], g, self->grads[params[i].stage]);
                job_keep(&params[i], w, self->weights[params[i].stage]);
            }
        }
        bool later = step % 2 == 0 && step + 1 < self->steps; /* each stage waits for its own in the next step */
        SL_TRY(later ? sl_runtime_gather_params_post(runtime) : sl_runtime_gather_params(runtime));
    }
done:
    return status;
}

static inline sl_status job_rank(toy_rank *rank)
{
    job *self = (job *)rank->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_group *pipeline = NULL, *replicas = NULL;
    sl_runtime *runtime = NULL;
    toy_stage *toys = (toy_stage *)calloc(MAX_STAGES, sizeof *toys);
    sl_stage *stages[MAX_STAGES];
    int count = 0;
    sl_arg_spec specs[2] = { { .name = "x" }, { .name = "t" } };
    int64_t dims[] = { self->samples, WIDTH };
    int width = self->replicas ? self->replicas : 1;
    job_place place = { rank->rank / width, rank->rank % width };
    SL_TRY(sl_device_open(self->device ? self->device : test_device_spec(), NULL, &device));
    if (width > 1)
        SL_TRY(sl_group_mesh(rank->group, sl_schedule_ranks(self->schedule), width, &pipeline, &replicas));
    for (int s = 0; s < self->shape.stages; s++) {
        if (sl_schedule_rank_of(self->schedule, s) != place.rank)
            continue;
        SL_TRY(
            toy_create(&toys[count], &self->shape, s, (self->samples + self->microbatches - 1) / self->microbatches));
        stages[count] = toys[count].stage;
        count++;
        if (self->prepare)
            SL_TRY(self->prepare(self, &toys[count - 1]));
    }
    specs[0].meta = specs[1].meta = sl_meta_make(SL_F32, 2, dims);
    sl_runtime_options options = self->extra;
    options.group = pipeline ? pipeline : rank->group;
    options.replicas = replicas;
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
        SL_TRY(self->before(self, place.rank, runtime, toys, count));
    status = job_train(self, place, runtime);
    if (self->after) {
        char message[1024];
        snprintf(message, sizeof message, "%s", sl_error_message());
        sl_status later = self->after(self, place.rank, runtime, toys, count);
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
    sl_group_close(pipeline);
    sl_group_close(replicas);
    free(toys);
    return status;
}

/* The first failing rank's status; ranks holds all. */
static inline sl_status job_run_on(job *self, toy_rank *ranks)
{
    test_device_install();
    int count = sl_schedule_ranks(self->schedule) * (self->replicas ? self->replicas : 1);
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

/* Two steps of a generator's schedule. */
static inline job job_make(const char *name, int ranks, int stages_per_rank, int microbatches, int samples)
{
    job made = { .samples = samples, .microbatches = microbatches, .steps = 2 };
    sl_generate_options options = {
        .name = name, .ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank
    };
    if (sl_schedule_generate(&options, &made.schedule) != SL_OK)
        fail_msg("%s: %s", name, sl_error_message());
    made.shape = toy_shape_make(sl_schedule_stages(made.schedule));
    return made;
}

/* Runs a job that must succeed, and ends its schedule. */
static inline void job_finish(job *self)
{
    if (job_run(self) != SL_OK)
        fail_msg("%s", sl_error_message());
    sl_schedule_destroy(self->schedule);
}

/* ---- One stage after another ---- */

typedef struct job_memory {
    float h[MAX_STAGES][MAX_SAMPLES * WIDTH];
    float dh[MAX_STAGES][MAX_SAMPLES * WIDTH];
} job_memory;

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

static inline void job_reference_step(job *self, job_memory *memory, int step, int replica, float (*w)[WIDTH],
                                      float (*g)[WIDTH])
{
    double share = 1.0 / (self->replicas ? self->replicas : 1);
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int last = self->shape.stages - 1;
    double mean = 0;
    job_batch(step, replica, self->samples, x, t);
    for (int m = 0; m < self->microbatches; m++) {
        int64_t first = job_first(self, m), n = job_first(self, m + 1) - first, at = first * WIDTH;
        for (int s = 0; s <= last; s++)
            toy_forward(s ? memory->h[s - 1] + at : x + at,
                        self->shape.skip[s] >= 0 ? memory->h[self->shape.skip[s]] + at : NULL, w[s], n,
                        memory->h[s] + at);
        float loss = toy_loss(memory->h[last] + at, t + at, n);
        if (replica == 0)
            self->losses[step][m] = loss;
        mean += job_weight(self, m) * (double)loss;
        toy_loss_grad(memory->h[last] + at, t + at, n, (float)(job_weight(self, m) * share), memory->dh[last] + at);
        for (int s = last - 1; s >= 0; s--)
            job_collect(self, memory, s, first, n, (const float(*)[WIDTH])w);
    }
    for (int s = 0; s <= last; s++) {
        int order[MAX_MICROBATCHES], count = toy_grad_order(self->schedule, s, order);
        for (int k = 0; k < count; k++) {
            int64_t first = job_first(self, order[k]), n = job_first(self, order[k] + 1) - first;
            toy_backward_weight(memory->dh[s] + first * WIDTH, (s ? memory->h[s - 1] : x) + first * WIDTH, n, g[s]);
        }
    }
    self->loss[step] += mean;
    if (replica == 0)
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

/* The replicas' gradients are added up in their order. */
static inline void job_reduce(const job *self, float (*own)[MAX_STAGES][WIDTH], int replicas, float (*g)[WIDTH])
{
    for (int s = 0; s < self->shape.stages; s++) {
        for (int c = 0; c < WIDTH; c++) {
            g[s][c] = own[0][s][c];
            for (int replica = 1; replica < replicas; replica++)
                g[s][c] += own[replica][s][c];
        }
    }
}

static inline void job_reference(job *self)
{
    job_memory *memory = (job_memory *)calloc(1, sizeof *memory);
    float w[MAX_STAGES][WIDTH], own[MAX_RANKS][MAX_STAGES][WIDTH];
    int replicas = self->replicas ? self->replicas : 1;
    for (int s = 0; s < self->shape.stages; s++)
        toy_initial(self->shape.tied_with[s] >= 0 ? self->shape.tied_with[s] : s, w[s]);
    for (int step = 0; step < self->steps; step++) {
        if (!self->accumulate || step % 2 == 0)
            memset(own, 0, sizeof own);
        self->loss[step] = 0;
        for (int replica = 0; replica < replicas; replica++)
            job_reference_step(self, memory, step, replica, w, own[replica]);
        self->loss[step] /= replicas;
        if (self->accumulate && step % 2 == 0)
            continue;
        job_reduce(self, own, replicas, self->grads);
        job_tie(self, self->grads);
        for (int s = 0; s < self->shape.stages; s++)
            job_update(w[s], self->grads[s], WIDTH);
    }
    memcpy(self->weights, w, sizeof w);
    free(memory);
}

/* ---- Both ---- */

/* Runs it both ways, compares every bit and destroys its schedule. */
static inline void job_assert_same_bits(job *self)
{
    job *reference = malloc(sizeof *reference);
    *reference = *self;
    job_reference(reference);
    if (job_run(self) != SL_OK)
        fail_msg("%s: %s", self->label ? self->label : "job", sl_error_message());
    assert_memory_equal(self->losses, reference->losses, sizeof self->losses);
    assert_memory_equal(self->loss, reference->loss, sizeof self->loss);
    assert_memory_equal(self->outputs, reference->outputs, sizeof self->outputs);
    for (int s = 0; s < self->shape.stages; s++) {
        if (self->shape.tied_with[s] >= 0)
            continue; /* listed under the stage it shares with */
        assert_memory_equal(self->grads[s], reference->grads[s], sizeof self->grads[s]);
        assert_memory_equal(self->weights[s], reference->weights[s], sizeof self->weights[s]);
    }
    sl_schedule_destroy(self->schedule);
    free(reference);
}

#endif
