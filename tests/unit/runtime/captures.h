/* A GPT with dropout, trained and evaluated with captures and without them; both give the same bits. */
#ifndef CAPTURES_H
#define CAPTURES_H

#include <sluice/nn.h>
#include <sluice/optim.h>
#include <sluice/runtime.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 8,
    SEQ = 8,
    MICROBATCHES = 4,
    STEPS = 9,
    MOST_RANKS = 4,
    MOST_STAGES = 8,
    MOST_PARAMS = 64,
    VOCABULARY = 48
};
#define CLIP 0.5

typedef struct gpt_run {
    const char *device;
    sl_schedule *schedule;
    sl_partition *partition;
    sl_dtype dtype;
    int trace_events;
    bool clips;        /* gradients to a norm; for one rank */
    bool updates_last; /* the update is part of the runtime's step, clipped on the device */
    bool beside;       /* gradients of weights can run beside others */
    /* What came of it. */
    float losses[STEPS][MICROBATCHES], eval_losses[STEPS][MICROBATCHES];
    uint64_t weights; /* hash of all parameters */
} gpt_run;

typedef struct gpt_rank {
    gpt_run *run;
    sl_group *group;
    sl_device *device;
    sl_stage *stages[MOST_STAGES];
    int stage_count;
    sl_runtime *runtime;
    sl_optimizer *optimizer;
    uint64_t weights;
    char error[512];
} gpt_rank;

static inline void expect_ok(sl_status status)
{
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
}

static inline sl_partition *cut_gpt(int stages, sl_dtype dtype)
{
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    sl_model model = sl_model_default(&sl_model_gpt2);
    model.gpt2.vocab_size = VOCABULARY;
    model.gpt2.n_positions = SEQ;
    model.gpt2.n_embd = 16;
    model.gpt2.n_layer = 4;
    model.gpt2.n_head = 2;
    model.gpt2.bos_token_id = -1;
    model.gpt2.eos_token_id.count = 0;
    model.gpt2.embd_pdrop = model.gpt2.resid_pdrop = model.gpt2.attn_pdrop = 0.2;
    sl_model_shape shape = { .batch = BATCH / MICROBATCHES, .seq = SEQ, .dtype = dtype };
    sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = stages };
    expect_ok(sl_model_build(&model, SL_MODE_TRAIN, &shape, &graph));
    expect_ok(sl_graph_partition(graph, &spec, &partition));
    sl_graph_destroy(graph);
    return partition;
}

/* ---- One rank -------------------------------------------------------------------------------- */

static inline sl_status copy_param(gpt_rank *rank, const sl_view *view, void *host, bool write)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(rank->runtime);
    size_t bytes = sl_meta_bytes(&view->meta);
    if (write)
        SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, view->data, host, bytes));
    else
        SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, host, view->data, bytes));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

static inline sl_status start_params(gpt_rank *rank)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(rank->runtime, &count);
    sl_optim_param *list = calloc((size_t)count, sizeof *list);
    for (int i = 0; i < count; i++) {
        float values[4096];
        int64_t elements = sl_meta_count(&params[i].data.meta);
        const sl_param_info info = {
            .name = params[i].name, .dtype = SL_F32, .shape = params[i].shape, .init = params[i].init
        };
        sl_param_init(&info, 3, 0, elements, values);
        SL_TRY(sl_f32_convert(values, elements, params[i].data.meta.dtype, values));
        SL_TRY(copy_param(rank, &params[i].data, values, true));
        list[i] = (sl_optim_param){ .name = params[i].name, .data = params[i].data, .grad = params[i].grad };
    }
    const sl_optim_options adamw = {
        .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .master_weights = true
    };
    SL_TRY(sl_optimizer_create(&adamw, rank->device, list, count, &rank->optimizer));
done:
    free(list);
    return status;
}

static inline sl_status hash_params(gpt_rank *rank)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(rank->runtime, &count);
    for (int i = 0; i < count; i++) {
        unsigned char values[4096 * sizeof(float)];
        uint64_t hash = 14695981039346656037u;
        SL_TRY(copy_param(rank, &params[i].data, values, false));
        for (const char *c = params[i].name; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
        for (size_t b = 0; b < sl_meta_bytes(&params[i].data.meta); b++)
            hash = (hash ^ values[b]) * 1099511628211u;
        rank->weights += hash;
    }
done:
    return status;
}

static inline sl_status update_on_device(void *user, sl_stream *stream)
{
    const gpt_rank *rank = user;
    return sl_optimizer_update(rank->optimizer, stream, CLIP);
}

static inline sl_status update_by_host(gpt_rank *rank, int64_t number)
{
    sl_status status = SL_OK;
    double sums[MOST_PARAMS], scale = 1;
    int count = 0;
    sl_stream *stream = sl_runtime_stream(rank->runtime);
    (void)sl_runtime_params(rank->runtime, &count);
    if (rank->run->clips) {
        SL_TRY(sl_optimizer_square_sums(rank->optimizer, stream, sums));
        scale = sl_clip_scale(sl_grad_norm(sums, count), CLIP);
    }
    SL_TRY(sl_optimizer_step(rank->optimizer, stream, number, 0.01, scale));
done:
    return status;
}

/* Three steps by themselves, then pairs that add up; an evaluation after each. */
static inline sl_status train_gpt(gpt_rank *rank)
{
    sl_status status = SL_OK;
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    const sl_meta meta = sl_meta_make(SL_I32, 2, (int64_t[]){ BATCH, SEQ });
    const sl_arg args[] = { { .name = "tokens", .view = { tokens, meta } },
                            { .name = "targets", .view = { targets, meta } } };
    for (int number = 0; number < STEPS; number++) {
        bool partial = number >= 3 && number % 2 == 1, keep = number >= 3 && number % 2 == 0;
        sl_step_result result;
        for (int i = 0; i < BATCH * SEQ; i++) {
            tokens[i] = (i * 7 + number * 5) % VOCABULARY;
            targets[i] = (i * 7 + number * 5 + 3) % VOCABULARY;
        }
        sl_step step = { .args = args,
                         .arg_count = 2,
                         .number = number,
                         .seed = (uint64_t)(17 + number / 4),
                         .sample_offset = (int64_t)number * BATCH,
                         .partial = partial,
                         .keep_grads = keep,
                         .update = rank->run->updates_last && !partial };
        if (step.update)
            SL_TRY(sl_optimizer_begin_update(rank->optimizer, sl_runtime_stream(rank->runtime), number + 1, 0.01));
        SL_TRY(sl_runtime_step(rank->runtime, &step, &result));
        if (sl_group_rank(rank->group) == 0)
            memcpy(rank->run->losses[number], result.losses, sizeof rank->run->losses[number]);
        if (!partial && !step.update)
            SL_TRY(update_by_host(rank, number + 1));
        step.partial = step.keep_grads = step.update = false;
        SL_TRY(sl_runtime_eval(rank->runtime, &step, &result));
        if (sl_group_rank(rank->group) == 0)
            memcpy(rank->run->eval_losses[number], result.losses, sizeof rank->run->eval_losses[number]);
    }
done:
    return status;
}

static inline sl_status open_rank(gpt_rank *rank)
{
    sl_status status = SL_OK;
    const gpt_run *run = rank->run;
    const sl_dtype grad_dtype = SL_F32;
    const sl_program_options program = { .grad_dtype = &grad_dtype, .pack_weights = true, .beside_flops = run->beside };
    SL_TRY(sl_device_open(run->device, NULL, &rank->device));
    for (int s = 0; s < sl_schedule_stages(run->schedule); s++) {
        if (sl_schedule_rank_of(run->schedule, s) == sl_group_rank(rank->group))
            SL_TRY(sl_stage_build((const sl_partition *const[]){ run->partition }, 1, s, rank->device, &program,
                                  &rank->stages[rank->stage_count++]));
    }
    const sl_runtime_options options = { .group = rank->group,
                                         .device = rank->device,
                                         .schedule = run->schedule,
                                         .stages = rank->stages,
                                         .stage_count = rank->stage_count,
                                         .trace_events = run->trace_events };
    SL_TRY(sl_runtime_create(&options, &rank->runtime));
    sl_runtime_set_update(rank->runtime, update_on_device, rank);
done:
    return status;
}

static inline void *run_rank(void *arg)
{
    sl_status status = SL_OK;
    gpt_rank *rank = arg;
    SL_TRY(open_rank(rank));
    SL_TRY(start_params(rank));
    SL_TRY(train_gpt(rank));
    SL_TRY(hash_params(rank));
done:
    if (status != SL_OK)
        snprintf(rank->error, sizeof rank->error, "%s", sl_error_message());
    sl_optimizer_destroy(rank->optimizer);
    sl_runtime_destroy(rank->runtime);
    for (int s = 0; s < rank->stage_count; s++)
        sl_stage_destroy(rank->stages[s]);
    sl_device_close(rank->device);
    sl_group_close(rank->group);
    return NULL;
}

/* ---- All ranks, as threads ------------------------------------------------------------------- */

static inline void run_gpt(gpt_run *run, const char *graphs)
{
    gpt_rank ranks[MOST_RANKS] = { { .run = NULL } };
    sl_group *groups[MOST_RANKS] = { NULL };
    pthread_t threads[MOST_RANKS];
    int count = sl_schedule_ranks(run->schedule);
    assert_true(count <= MOST_RANKS && sl_schedule_stages(run->schedule) <= MOST_STAGES);
    assert_int_equal(setenv("SLUICE_GRAPHS", graphs, 1), 0);
    expect_ok(sl_group_open_threads(count, NULL, groups));
    for (int r = 0; r < count; r++) {
        ranks[r] = (gpt_rank){ .run = run, .group = groups[r] };
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    run->weights = 0;
    for (int r = 0; r < count; r++) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
        run->weights += ranks[r].weights;
    }
    assert_int_equal(unsetenv("SLUICE_GRAPHS"), 0);
    for (int r = 0; r < count; r++) {
        if (ranks[r].error[0])
            fail_msg("rank %d: %s", r, ranks[r].error);
    }
}

typedef struct gpt_case {
    const char *schedule;
    int ranks, stages_per_rank;
    sl_dtype dtype;
    int trace_events;
    bool updates_last; /* with captures alone: without them the host clips and updates */
    bool beside;       /* the same: without them all is in order */
} gpt_case;

/* Both ways; the run with captures is left in *captured. */
static inline void expect_equal_bits(const char *device, const gpt_case *wanted, gpt_run *captured)
{
    gpt_run plain = {
        .device = device, .dtype = wanted->dtype, .trace_events = wanted->trace_events, .clips = wanted->updates_last
    };
    expect_ok(sl_schedule_generate(&(sl_generate_options){ .name = wanted->schedule,
                                                           .ranks = wanted->ranks,
                                                           .stages_per_rank = wanted->stages_per_rank,
                                                           .microbatches = MICROBATCHES },
                                   &plain.schedule));
    plain.partition = cut_gpt(sl_schedule_stages(plain.schedule), wanted->dtype);
    *captured = plain;
    captured->updates_last = wanted->updates_last;
    captured->beside = wanted->beside;
    run_gpt(&plain, "off");
    run_gpt(captured, "on");
    assert_memory_equal(plain.losses, captured->losses, sizeof plain.losses);
    assert_memory_equal(plain.eval_losses, captured->eval_losses, sizeof plain.eval_losses);
    assert_true(plain.weights == captured->weights);
    assert_true(plain.losses[0][0] > 1 && plain.losses[0][0] != plain.eval_losses[0][0]);
    sl_partition_destroy(plain.partition);
    sl_schedule_destroy(plain.schedule);
}

#endif
