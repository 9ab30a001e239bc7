/* Random networks of stages, what a stage of them computes, and a plain executor: one stage after another, one microbatch
 * after another. */
#ifndef NETWORK_H
#define NETWORK_H

#include "unit/runtime/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

enum { MOST_INPUTS = 6, MOST_OUTPUTS = 3, MOST_PARAMS = 3, MOST_VALUES = 64, STEPS = 2, CELLS = MAX_SAMPLES * WIDTH };
enum { ROOT_X, ROOT_TARGET, ROOT_IDS, ROOT_ROW, ROOT_NUMBER, ROOT_COUNT };

/* ---- Random numbers ------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static inline int random_below(int limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)limit);
}

/* ---- What a pipeline is --------------------------------------------------------------------------------------- */

typedef enum value_kind { FLOATS, INTEGERS, TARGET, ROW, NUMBER } value_kind;

typedef struct value {
    value_kind kind;
    int maker; /* stage; -1: it comes with the batch */
    char name[16];
} value;

typedef struct part {
    int inputs[MOST_INPUTS], input_count; /* values */
    int outputs[MOST_OUTPUTS], output_count;
    value_kind in_kinds[MOST_INPUTS], out_kinds[MOST_OUTPUTS];
    int param_count;
    bool frozen[MOST_PARAMS];
    bool one_backward; /* B is a callback of its own */
    bool last;
} part;

typedef struct results {
    float weights[MAX_STAGES][MOST_PARAMS][WIDTH], grads[MAX_STAGES][MOST_PARAMS][WIDTH];
    float losses[STEPS][MAX_MICROBATCHES];
    double loss[STEPS];
    int32_t outputs[MOST_OUTPUTS][CELLS]; /* of the last stage in the last step; floats by their bits */
} results;

typedef struct network {
    value values[MOST_VALUES];
    part parts[MAX_STAGES];
    int value_count, stages, samples, microbatches, replicas;
    sl_loss_mean mean;
    sl_schedule *schedule;
    sl_shard_mode shard;
    char text[128];
    results got;
} network;

static inline int add_value(network *self, value_kind kind, int maker, const char *name)
{
    value *made = &self->values[self->value_count];
    *made = (value){ .kind = kind, .maker = maker };
    if (name)
        snprintf(made->name, sizeof made->name, "%s", name);
    else
        snprintf(made->name, sizeof made->name, "v%d", self->value_count);
    return self->value_count++;
}

static inline void add_input(network *self, part *to, int which)
{
    for (int k = 0; k < to->input_count; k++) {
        if (to->inputs[k] == which)
            return;
    }
    to->in_kinds[to->input_count] = self->values[which].kind;
    to->inputs[to->input_count++] = which;
}

static inline void add_part(network *self, int s)
{
    part *to = &self->parts[s];
    int known = self->value_count;
    *to = (part){ .param_count = random_below(MOST_PARAMS + 1),
                  .one_backward = random_below(2) == 0,
                  .last = s == self->stages - 1 };
    add_input(self, to, s == 0 ? ROOT_X : self->parts[s - 1].outputs[0]);
    for (int extra = random_below(MOST_INPUTS - 1); extra > 0; extra--) {
        int which = random_below(known);
        if (which != ROOT_TARGET)
            add_input(self, to, which);
    }
    if (to->last)
        add_input(self, to, ROOT_TARGET);
    for (int p = 0; p < to->param_count; p++)
        to->frozen[p] = random_below(4) == 0;
    to->output_count = 1 + random_below(MOST_OUTPUTS);
    for (int j = 0; j < to->output_count; j++) {
        to->out_kinds[j] = j > 0 && random_below(3) == 0 ? INTEGERS : FLOATS;
        to->outputs[j] = add_value(self, to->out_kinds[j], s, NULL);
    }
}

static inline void make_network(network *self)
{
    static const char *const names[] = {
        "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
    };
    static const char *const roots[] = { "x", "t", "ids", "row", "number" };
    static const value_kind kinds[] = { FLOATS, TARGET, INTEGERS, ROW, NUMBER };
    int which = random_below(7);
    bool loops = which >= 2 && which <= 4;
    sl_generate_options options = { .name = names[which],
                                    .ranks = 1 + random_below(4),
                                    .microbatches = 1 + random_below(6),
                                    .stages_per_rank = loops ? 1 + random_below(3) : 0 };
    memset(self, 0, sizeof *self);
    self->microbatches = options.microbatches;
    self->samples = options.microbatches * (1 + random_below(2)) + random_below(options.microbatches);
    self->replicas = 1 + random_below(2);
    self->mean = (sl_loss_mean)random_below(3);
    if (sl_schedule_generate(&options, &self->schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    self->stages = sl_schedule_stages(self->schedule);
    snprintf(self->text, sizeof self->text, "%s, %d ranks, %d stages, %d microbatches, %d samples, %d replicas",
             names[which], options.ranks, self->stages, self->microbatches, self->samples, self->replicas);
    for (int i = 0; i < ROOT_COUNT; i++)
        add_value(self, kinds[i], -1, roots[i]);
    for (int s = 0; s < self->stages; s++)
        add_part(self, s);
}

/* ---- The mathematics of a stage, used by both executors -------------------------------------------------------- */

/* One stage, one microbatch: what it reads and writes. */
typedef struct work {
    const part *part;
    int64_t rows;
    const void *in[MOST_INPUTS];
    void *out[MOST_OUTPUTS];
    const void *out_grads[MOST_OUTPUTS]; /* NULL: none */
    void *in_grads[MOST_INPUTS];         /* NULL: nobody wants it */
    const float *params[MOST_PARAMS];
    float *grads[MOST_PARAMS];
    float *sum, *dsum; /* before the last function, and its gradient */
    float *loss;
    float seed;
} work;

static inline float weight_of(const work *w, int k, int64_t i)
{
    int count = w->part->param_count;
    return count ? w->params[k % count][i % WIDTH] : 0.75f;
}

static inline float term(const work *w, int k, int64_t i)
{
    switch (w->part->in_kinds[k]) {
    case FLOATS:
        return ((const float *)w->in[k])[i] * weight_of(w, k, i);
    case INTEGERS:
        return 0.25f * (float)((const int32_t *)w->in[k])[i];
    case ROW:
        return 0.5f * ((const float *)w->in[k])[i % WIDTH];
    case NUMBER:
        return 0.125f * (float)(*(const int64_t *)w->in[k] % 5);
    default:
        return 0;
    }
}

static inline float factor(int output)
{
    return 0.5f + 0.25f * (float)output;
}

static inline const float *target_of(const work *w)
{
    return w->in[w->part->input_count - 1];
}

static inline void run_forward(const work *w)
{
    float loss = 0;
    for (int64_t i = 0; i < w->rows * WIDTH; i++) {
        float sum = 0;
        for (int k = 0; k < w->part->input_count; k++)
            sum += term(w, k, i);
        w->sum[i] = sum;
        for (int j = 0; j < w->part->output_count; j++) {
            if (w->part->out_kinds[j] == FLOATS)
                ((float *)w->out[j])[i] = factor(j) * sum / (1 + fabsf(sum));
            else
                ((int32_t *)w->out[j])[i] = (int32_t)(sum * 8) & 7;
        }
        if (w->part->last) {
            float difference = ((float *)w->out[0])[i] - target_of(w)[i];
            loss += difference * difference / 2;
        }
    }
    if (w->part->last)
        *w->loss = loss / (float)w->rows;
}

static inline void run_input(const work *w)
{
    for (int64_t i = 0; i < w->rows * WIDTH; i++) {
        float slope = 1 / ((1 + fabsf(w->sum[i])) * (1 + fabsf(w->sum[i]))), dsum = 0;
        for (int j = 0; j < w->part->output_count; j++) {
            if (w->out_grads[j])
                dsum += ((const float *)w->out_grads[j])[i] * factor(j) * slope;
        }
        if (w->part->last)
            dsum += (((float *)w->out[0])[i] - target_of(w)[i]) / (float)w->rows * w->seed * factor(0) * slope;
        w->dsum[i] = dsum;
        for (int k = 0; k < w->part->input_count; k++) {
            if (w->part->in_kinds[k] == FLOATS && w->in_grads[k])
                ((float *)w->in_grads[k])[i] = dsum * weight_of(w, k, i);
        }
    }
}

static inline void run_weight(const work *w)
{
    int count = w->part->param_count;
    for (int k = 0; k < w->part->input_count && count > 0; k++) {
        if (w->part->in_kinds[k] != FLOATS || w->part->frozen[k % count])
            continue;
        for (int64_t i = 0; i < w->rows * WIDTH; i++)
            w->grads[k % count][i % WIDTH] += w->dsum[i] * ((const float *)w->in[k])[i];
    }
}

/* ---- Data ------------------------------------------------------------------------------------------------------- */

typedef struct batch {
    float x[CELLS], target[CELLS], row[WIDTH];
    int32_t ids[CELLS];
    int64_t number;
} batch;

static inline void fill_batch(batch *to, int step, int replica)
{
    int seed = 11 * step + 101 * replica;
    toy_fill(to->x, CELLS, seed + 1);
    toy_fill(to->target, CELLS, seed + 2);
    toy_fill(to->row, WIDTH, step + 3); /* the same for all */
    for (int i = 0; i < CELLS; i++)
        to->ids[i] = (int32_t)(toy_number(seed + 5 * i) * 10);
    to->number = 3 + step;
}

static inline void fill_weights(int stage, int param, float *w)
{
    toy_fill(w, WIDTH, 1000 + 10 * stage + param);
}

static inline void update_weights(float *w, const float *g, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        w[c] -= 0.5f * g[c];
}

static inline void rows_of(const network *self, int m, int64_t *first, int64_t *rows)
{
    sl_chunk_range(self->samples, self->microbatches, m, first, rows);
}

static inline double share_of(const network *self, int m)
{
    int64_t first, rows;
    rows_of(self, m, &first, &rows);
    if (self->mean == SL_MEAN_SAMPLES)
        return (double)rows / self->samples;
    return self->mean == SL_MEAN_SUM ? 1 : 1.0 / self->microbatches;
}

/* ---- The plain executor: one stage after another, one microbatch after another ----------------------------------- */

typedef struct plain {
    const network *self;
    batch given;
    int32_t made[MOST_VALUES][CELLS]; /* floats by their bits */
    float sums[MAX_STAGES][CELLS], dsums[MAX_STAGES][CELLS];
    float in_grads[MAX_STAGES][MOST_INPUTS][CELLS];
    float out_grads[MAX_STAGES][MOST_OUTPUTS][CELLS];
} plain;

static inline const void *plain_input(const plain *p, int which, int64_t at)
{
    switch (which) {
    case ROOT_X:
        return p->given.x + at;
    case ROOT_TARGET:
        return p->given.target + at;
    case ROOT_IDS:
        return p->given.ids + at;
    case ROOT_ROW:
        return p->given.row;
    case ROOT_NUMBER:
        return &p->given.number;
    default:
        return p->made[which] + at;
    }
}

static inline work plain_work(plain *p, int s, int m, float weights[MOST_PARAMS][WIDTH],
                              float grads[MOST_PARAMS][WIDTH])
{
    const part *at = &p->self->parts[s];
    int64_t first, rows;
    rows_of(p->self, m, &first, &rows);
    first *= WIDTH;
    work w = { .part = at, .rows = rows, .sum = p->sums[s] + first, .dsum = p->dsums[s] + first };
    for (int k = 0; k < at->input_count; k++) {
        w.in[k] = plain_input(p, at->inputs[k], first);
        w.in_grads[k] = p->in_grads[s][k] + first;
    }
    for (int j = 0; j < at->output_count; j++)
        w.out[j] = p->made[at->outputs[j]] + first;
    for (int i = 0; i < at->param_count; i++) {
        w.params[i] = weights[i];
        w.grads[i] = grads[i];
    }
    return w;
}

/* The gradient of output j: what its users hand back, added up in the order of stages. NULL: it has none. */
static inline const float *collect(plain *p, int s, int j, int64_t first, int64_t rows)
{
    float *sum = p->out_grads[s][j] + first * WIDTH;
    bool any = false;
    if (p->self->parts[s].out_kinds[j] != FLOATS)
        return NULL;
    for (int user = s + 1; user < p->self->stages; user++) {
        const part *by = &p->self->parts[user];
        for (int k = 0; k < by->input_count; k++) {
            if (by->inputs[k] != p->self->parts[s].outputs[j])
                continue;
            const float *given = p->in_grads[user][k] + first * WIDTH;
            for (int64_t i = 0; i < rows * WIDTH; i++)
                sum[i] = any ? sum[i] + given[i] : given[i];
            any = true;
        }
    }
    return any ? sum : NULL;
}

typedef float stage_params[MAX_STAGES][MOST_PARAMS][WIDTH];

static inline double plain_pass(plain *p, stage_params weights, stage_params grads, float *losses)
{
    const network *self = p->self;
    int last = self->stages - 1;
    double mean = 0;
    for (int m = 0; m < self->microbatches; m++) {
        for (int s = 0; s <= last; s++) {
            work w = plain_work(p, s, m, weights[s], grads[s]);
            w.loss = &losses[m];
            run_forward(&w);
        }
        mean += share_of(self, m) * (double)losses[m];
        for (int s = last; s >= 0; s--) {
            int64_t first, rows;
            work w = plain_work(p, s, m, weights[s], grads[s]);
            rows_of(self, m, &first, &rows);
            for (int j = 0; j < w.part->output_count; j++)
                w.out_grads[j] = collect(p, s, j, first, rows);
            w.seed = (float)(share_of(self, m) * (1.0 / self->replicas));
            run_input(&w);
        }
    }
    for (int s = 0; s <= last; s++) {
        int order[MAX_MICROBATCHES], count = toy_grad_order(self->schedule, s, order);
        for (int i = 0; i < count; i++) {
            work w = plain_work(p, s, order[i], weights[s], grads[s]);
            run_weight(&w);
        }
    }
    return mean;
}

static inline void run_plain(const network *self, results *out)
{
    static stage_params own[2];
    plain *p = calloc(1, sizeof *p);
    memset(out, 0, sizeof *out);
    p->self = self;
    for (int s = 0; s < self->stages; s++) {
        for (int i = 0; i < self->parts[s].param_count; i++)
            fill_weights(s, i, out->weights[s][i]);
    }
    for (int step = 0; step < STEPS; step++) {
        memset(own, 0, sizeof own);
        for (int replica = self->replicas - 1; replica >= 0; replica--) { /* the first one's losses and outputs stay */
            fill_batch(&p->given, step, replica);
            out->loss[step] += plain_pass(p, out->weights, own[replica], out->losses[step]);
        }
        out->loss[step] /= self->replicas;
        for (int s = 0; s < self->stages; s++) {
            for (int i = 0; i < self->parts[s].param_count; i++) {
                for (int c = 0; c < WIDTH; c++)
                    out->grads[s][i][c] = self->replicas > 1 ? own[0][s][i][c] + own[1][s][i][c] : own[0][s][i][c];
                if (!self->parts[s].frozen[i])
                    update_weights(out->weights[s][i], out->grads[s][i], WIDTH);
            }
        }
    }
    const part *last = &self->parts[self->stages - 1];
    for (int j = 0; j < last->output_count; j++)
        memcpy(out->outputs[j], p->made[last->outputs[j]], (size_t)(self->samples * WIDTH) * sizeof(int32_t));
    free(p);
}

#endif
