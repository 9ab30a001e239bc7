/* One case of `sluice bench pipeline`: ranks that train, the mean costs of their stages, the simulation from those. */
#include "pipeline_measure.h"
#include "tools/sluice/ranks.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MAX_LOCAL_STAGES = 16, WARM_STEPS = 4 }; /* on a GPU the first steps load, try and capture */

/* In memory that the forked ranks share. */
typedef struct shared_case {
    pipeline_options options;
    pipeline_case result;
    char error[512];
} shared_case;

/* What a rank holds. */
typedef struct pipeline_rank {
    sl_group *group;
    sl_device *device;
    sl_schedule *schedule;
    sl_partition *partition;
    sl_stage *stages[MAX_LOCAL_STAGES];
    int stage_count;
    sl_runtime *runtime;
    int32_t *tokens; /* (batch, seq) and as many targets */
} pipeline_rank;

static void rank_state_free(pipeline_rank *state)
{
    sl_runtime_destroy(state->runtime);
    for (int i = 0; i < state->stage_count; i++)
        sl_stage_destroy(state->stages[i]);
    sl_partition_destroy(state->partition);
    sl_schedule_destroy(state->schedule);
    sl_device_close(state->device);
    sl_free(state->tokens);
}

/* ---- Setting up ------------------------------------------------------------------------------ */

sl_status pipeline_cut_model(const pipeline_options *options, int stages, sl_partition **out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    sl_model model = sl_model_default(&sl_model_gpt2);
    model.gpt2.vocab_size = options->vocab;
    model.gpt2.n_positions = options->seq;
    model.gpt2.n_embd = options->embd;
    model.gpt2.n_layer = options->layers;
    model.gpt2.n_head = options->heads;
    model.gpt2.tie_word_embeddings = !options->untied;
    model.gpt2.embd_pdrop = model.gpt2.resid_pdrop = model.gpt2.attn_pdrop = 0;
    sl_model_shape shape = { .batch = options->batch / options->microbatches,
                             .seq = options->seq,
                             .dtype = options->dtype };
    sl_split_spec spec = { .kind = stages == 1 ? SL_SPLIT_WHOLE : SL_SPLIT_EQUAL, .stages = stages };
    SL_TRY(sl_model_check(&model));
    SL_TRY(sl_model_build(&model, SL_MODE_TRAIN, &shape, &graph));
    SL_TRY(sl_graph_partition(graph, &spec, out));
done:
    sl_graph_destroy(graph);
    return status;
}

static sl_status init_weights(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    float *values = NULL;
    sl_stream *stream = sl_runtime_stream(runtime);
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        const sl_view *data = &params[i].data;
        sl_param_info info = { params[i].name, SL_F32, data->meta.shape, params[i].init };
        int64_t elements = sl_meta_count(&data->meta);
        SL_TRY(sl_alloc((size_t)elements, sizeof *values, (void **)&values));
        sl_param_init(&info, 1, 0, elements, values);
        SL_TRY(sl_f32_convert(values, elements, data->meta.dtype, values));
        SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, data->data, values, sl_meta_bytes(&data->meta)));
        SL_TRY(sl_stream_synchronize(stream));
        sl_free(values);
        values = NULL;
    }
done:
    sl_free(values);
    return status;
}

sl_status pipeline_fill_batch(const pipeline_options *options, int32_t **out)
{
    sl_status status = SL_OK;
    int64_t count = options->batch * options->seq;
    SL_TRY(sl_alloc((size_t)(2 * count), sizeof **out, (void **)out));
    for (int64_t i = 0; i < 2 * count; i++)
        (*out)[i] = (int32_t)((uint64_t)i * 2654435761u % (uint64_t)options->vocab);
done:
    return status;
}

static sl_status make_runtime(const pipeline_options *options, pipeline_rank *state, bool traced)
{
    sl_runtime_options runtime = {
        .group = state->group,
        .device = state->device,
        .schedule = state->schedule,
        .stages = state->stages,
        .stage_count = state->stage_count,
        .trace_events = traced ? options->steps * options->microbatches * state->stage_count * 16 : 0,
    };
    return sl_runtime_create(&runtime, &state->runtime);
}

static sl_status set_up(const shared_case *shared, pipeline_rank *state)
{
    sl_status status = SL_OK;
    const pipeline_options *options = &shared->options;
    const sl_dtype grad_dtype = SL_F32;
    const sl_program_options program = { .grad_dtype = &grad_dtype };
    sl_generate_options generate = { .name = shared->result.schedule,
                                     .ranks = shared->result.ranks,
                                     .microbatches = options->microbatches,
                                     .stages_per_rank = shared->result.stages_per_rank };
    sl_device_options threads = { .threads = shared->result.threads };
    SL_TRY(sl_device_open(options->device, &threads, &state->device));
    SL_TRY(sl_schedule_generate(&generate, &state->schedule));
    int stages = sl_schedule_stages(state->schedule);
    SL_TRY(pipeline_cut_model(options, stages, &state->partition));
    for (int s = 0; s < stages && state->stage_count < MAX_LOCAL_STAGES; s++) {
        if (sl_schedule_rank_of(state->schedule, s) != sl_group_rank(state->group))
            continue;
        SL_TRY(sl_stage_build((const sl_partition *const[]){ state->partition }, 1, s, state->device, &program,
                              &state->stages[state->stage_count]));
        state->stage_count++;
    }
    SL_TRY(make_runtime(options, state, true));
    SL_TRY(init_weights(state->runtime));
    SL_TRY(pipeline_fill_batch(options, &state->tokens));
done:
    return status;
}

/* ---- Running --------------------------------------------------------------------------------- */

static sl_status run_steps(const pipeline_options *options, pipeline_rank *state, int steps, double *seconds)
{
    sl_status status = SL_OK;
    int64_t dims[] = { options->batch, options->seq };
    sl_meta meta = sl_meta_make(SL_I32, 2, dims);
    sl_arg args[2] = { { "tokens", { state->tokens, meta } },
                       { "targets", { state->tokens + options->batch * options->seq, meta } } };
    SL_TRY(sl_group_barrier(state->group));
    double start = sl_now();
    for (int i = 0; i < steps; i++)
        SL_TRY(sl_runtime_step(state->runtime, &(sl_step){ .args = args, .arg_count = 2, .number = i }, NULL));
    SL_TRY(sl_group_barrier(state->group));
    *seconds = (sl_now() - start) / steps;
done:
    return status;
}

/* On a device that works by itself a trace parts what it would do at once: the time that counts is taken without. */
static sl_status time_untraced(const pipeline_options *options, pipeline_rank *state, double *seconds)
{
    sl_status status = SL_OK;
    double warm = 0;
    sl_runtime_destroy(state->runtime);
    state->runtime = NULL;
    SL_TRY(make_runtime(options, state, false));
    SL_TRY(run_steps(options, state, WARM_STEPS, &warm));
    SL_TRY(run_steps(options, state, options->steps, seconds));
done:
    return status;
}

/* Time of a step if every phase took its mean time and messages took none. */
static sl_status predict(const pipeline_rank *state, const sl_stage_cost *stages, double *seconds, double *bubble)
{
    sl_status status = SL_OK;
    sl_timeline *timeline = NULL;
    sl_costs costs;
    sl_costs_init(&costs);
    costs.stages = stages;
    SL_TRY(sl_schedule_simulate(state->schedule, &costs, NULL, 0, &timeline));
    *seconds = sl_timeline_makespan(timeline);
    *bubble = sl_timeline_bubble(timeline, -1);
done:
    sl_timeline_destroy(timeline);
    return status;
}

/* Seconds of all ranks together in which phases ran, in one step. */
static double busy_seconds(const pipeline_rank *state, const sl_stage_cost *stages)
{
    double busy = 0;
    for (int r = 0; r < sl_schedule_ranks(state->schedule); r++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(state->schedule, r, &count);
        for (int64_t i = 0; i < count; i++) {
            sl_action parts[2];
            int n = sl_action_parts(actions[i], parts);
            for (int k = 0; k < n; k++) {
                const sl_stage_cost *cost = &stages[parts[k].stage];
                busy += parts[k].kind == SL_KIND_F   ? cost->f
                        : parts[k].kind == SL_KIND_I ? cost->i
                        : parts[k].kind == SL_KIND_W ? cost->w
                                                     : cost->b;
            }
        }
    }
    return busy;
}

static sl_status run_rank(shared_case *shared, sl_group *group)
{
    sl_status status = SL_OK;
    pipeline_rank state = { .group = group };
    sl_stage_cost *costs = NULL;
    double warm = 0, seconds = 0, predicted = 0, bubble = 0;
    SL_TRY(set_up(shared, &state));
    SL_TRY(SL_NEW_ARRAY(costs, sl_schedule_stages(state.schedule)));
    SL_TRY(run_steps(&shared->options, &state, WARM_STEPS, &warm));
    sl_runtime_clear_trace(state.runtime);
    SL_TRY(run_steps(&shared->options, &state, shared->options.steps, &seconds));
    SL_TRY(sl_runtime_measure_costs(state.runtime, costs));
    SL_TRY(predict(&state, costs, &predicted, &bubble));
    if (!sl_device_is_host(state.device))
        SL_TRY(time_untraced(&shared->options, &state, &seconds));
    if (sl_group_rank(state.group) == 0) {
        double tokens = (double)(shared->options.batch * shared->options.seq);
        pipeline_case *result = &shared->result;
        result->stages = sl_schedule_stages(state.schedule);
        result->tokens_per_s = tokens / seconds;
        result->predicted_tokens_per_s = tokens / predicted;
        result->bubble = 1 - busy_seconds(&state, costs) / seconds / result->ranks;
        result->predicted_bubble = bubble;
    }
done:
    if (status != SL_OK)
        snprintf(shared->error, sizeof shared->error, "%s", sl_error_message());
    sl_free(costs);
    rank_state_free(&state);
    return status;
}

static int thread_main(void *user, sl_group *group)
{
    sl_status status = run_rank(user, group);
    return status == SL_OK ? 0 : ranks_failure("bench pipeline", group, sl_group_fail(group, status));
}

/* One rank, or all of them. */
static int rank_main(void *user, int rank)
{
    shared_case *shared = user;
    sl_group *group = NULL;
    (void)rank;
    if (shared->options.ranks_as == RANKS_AS_THREADS)
        return ranks_run_threads("bench pipeline", shared->result.ranks, 0, thread_main, shared);
    if (sl_group_open(NULL, &group) != SL_OK)
        return 1;
    sl_status status = run_rank(shared, group);
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

sl_status pipeline_measure(const pipeline_options *options, pipeline_case *each)
{
    sl_status status = SL_OK;
    sl_launch_result result;
    shared_case *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "no memory for the results");
    *shared = (shared_case){ .options = *options, .result = *each };
    sl_launch_options launch = { .ranks = options->ranks_as == RANKS_AS_THREADS ? 1 : each->ranks,
                                 .run = rank_main,
                                 .user = shared };
    SL_TRY(sl_launch(&launch, &result));
    if (result.exit_code != 0)
        SL_TRY(sl_fail(SL_ERR_PEER, "%s on %d ranks: %s", each->schedule, each->ranks,
                       *shared->error ? shared->error : result.report));
    *each = shared->result;
done:
    munmap(shared, sizeof *shared);
    return status;
}
