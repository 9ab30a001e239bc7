/* One case of `sluice bench pipeline`: ranks that train, and the mean costs of their stages. */
#include "pipeline_measure.h"
#include "bench.h"
#include "tools/sluice/ranks.h"

#include "base/alloc.h"
#include "runtime/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_LOCAL_STAGES = 64, WARM_STEPS = 4 }; /* on a GPU the first steps load, try and capture */

/* In memory that the forked ranks share. */
typedef struct shared_case {
    pipeline_options options;
    pipeline_case result;
    bool traced; /* to learn the costs */
    pipeline_costs costs;
    char devices[PIPELINE_MAX_RANKS][32]; /* names */
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
    sl_optimizer *optimizer;
    double optimizer_seconds; /* of all steps so far, if they are traced */
    int32_t *tokens;          /* (batch, seq) and as many targets */
} pipeline_rank;

static void rank_state_free(pipeline_rank *state)
{
    sl_optimizer_destroy(state->optimizer);
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

/* AdamW on all parameters of the rank; those that two of its stages share, once. */
static sl_status create_optimizer(pipeline_rank *state)
{
    static const sl_optim_options adamw = {
        .kind = SL_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .master_weights = true
    };
    sl_status status = SL_OK;
    int count = 0, kept = 0;
    const sl_param *params = sl_runtime_params(state->runtime, &count);
    sl_optim_param *updated = NULL;
    SL_TRY(SL_NEW_ARRAY(updated, count));
    for (int i = 0; i < count; i++) {
        bool is_new = true;
        for (int k = 0; k < kept; k++)
            is_new = is_new && updated[k].data.data != params[i].data.data;
        if (is_new)
            updated[kept++] = (sl_optim_param){ .name = params[i].name,
                                                .data = params[i].data,
                                                .grad = params[i].grad,
                                                .decay = params[i].shape.rank >= 2 };
    }
    SL_TRY(sl_optimizer_create(&adamw, state->device, updated, kept, &state->optimizer));
done:
    sl_free(updated);
    return status;
}

static sl_status create_runtime(const shared_case *shared, pipeline_rank *state)
{
    const pipeline_options *options = &shared->options;
    sl_runtime_options runtime = {
        .group = state->group,
        .device = state->device,
        .schedule = state->schedule,
        .stages = state->stages,
        .stage_count = state->stage_count,
        .trace_events = shared->traced ? options->steps * options->microbatches * state->stage_count * 16 : 0,
    };
    return sl_runtime_create(&runtime, &state->runtime);
}

static sl_status set_up(shared_case *shared, pipeline_rank *state)
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
    int rank = sl_group_rank(state->group);
    SL_TRY(sl_device_open(options->device, &threads, &state->device));
    snprintf(shared->devices[rank], sizeof shared->devices[rank], "%s", sl_device_name(state->device));
    SL_TRY(sl_schedule_generate(&generate, &state->schedule));
    int stages = sl_schedule_stages(state->schedule);
    SL_TRY(pipeline_cut_model(options, stages, &state->partition));
    for (int s = 0; s < stages && state->stage_count < MAX_LOCAL_STAGES; s++) {
        if (sl_schedule_rank_of(state->schedule, s) != rank)
            continue;
        SL_TRY(sl_stage_build((const sl_partition *const[]){ state->partition }, 1, s, state->device, &program,
                              &state->stages[state->stage_count]));
        state->stage_count++;
    }
    SL_TRY(create_runtime(shared, state));
    SL_TRY(bench_init_weights(state->runtime));
    SL_TRY(create_optimizer(state));
    SL_TRY(pipeline_fill_batch(options, &state->tokens));
done:
    return status;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* A traced step waits for the optimizer, to time it. */
static sl_status run_step(const shared_case *shared, pipeline_rank *state, const sl_arg args[2], int number)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(state->runtime);
    SL_TRY(sl_runtime_step(state->runtime, &(sl_step){ .args = args, .arg_count = 2, .number = number }, NULL));
    double start = sl_now();
    SL_TRY(sl_optimizer_step(state->optimizer, stream, number + 1, 1e-4, 1));
    if (shared->traced)
        SL_TRY(sl_stream_synchronize(stream));
    state->optimizer_seconds += sl_now() - start;
done:
    return status;
}

static sl_status run_steps(const shared_case *shared, pipeline_rank *state, int first, int count, double *seconds)
{
    sl_status status = SL_OK;
    const pipeline_options *options = &shared->options;
    int64_t dims[] = { options->batch, options->seq };
    sl_meta meta = sl_meta_make(SL_I32, 2, dims);
    sl_arg args[2] = { { "tokens", { state->tokens, meta } },
                       { "targets", { state->tokens + options->batch * options->seq, meta } } };
    SL_TRY(sl_group_barrier(state->group));
    double start = sl_now();
    for (int i = 0; i < count; i++)
        SL_TRY(run_step(shared, state, args, first + i));
    SL_TRY(sl_stream_synchronize(sl_runtime_stream(state->runtime)));
    SL_TRY(sl_group_barrier(state->group));
    *seconds = (sl_now() - start) / count;
done:
    return status;
}

static sl_status learn_costs(shared_case *shared, pipeline_rank *state)
{
    sl_status status = SL_OK;
    double optimizer = state->optimizer_seconds / shared->options.steps;
    sl_stage_cost *costs = NULL;
    int stages = sl_schedule_stages(state->schedule);
    SL_TRY(SL_NEW_ARRAY(costs, stages));
    SL_TRY(sl_runtime_measure_costs(state->runtime, costs));
    SL_TRY(sl_group_all_reduce(state->group, &optimizer, 1, SL_F64, SL_REDUCE_MAX));
    if (sl_group_rank(state->group) == 0) {
        shared->costs.optimizer = optimizer;
        for (int s = 0; s < stages && s < PIPELINE_MAX_STAGES; s++)
            shared->costs.stages[s] = costs[s];
    }
done:
    sl_free(costs);
    return status;
}

/* The sum of the tied gradients, by itself. */
static sl_status time_ties(pipeline_rank *state, double *seconds)
{
    enum { TIMES = 5 };
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(state->runtime);
    double start = 0;
    for (int i = 0; i <= TIMES; i++) {
        SL_TRY(sl_ties_sum(state->runtime, i + 1));
        SL_TRY(sl_stream_synchronize(stream));
        SL_TRY(sl_group_barrier(state->group));
        start = i == 0 ? sl_now() : start;
    }
    *seconds = (sl_now() - start) / TIMES;
done:
    return status;
}

/* all: who begins to count at the same time, the ranks or copies of them. */
static sl_status run_rank(shared_case *shared, sl_group *group, sl_group *all)
{
    sl_status status = SL_OK;
    pipeline_rank state = { .group = group };
    double seconds = 0, ties = 0;
    SL_TRY(set_up(shared, &state));
    SL_TRY(run_steps(shared, &state, 0, WARM_STEPS, &seconds));
    if (shared->traced)
        sl_runtime_clear_trace(state.runtime);
    state.optimizer_seconds = 0;
    SL_TRY(sl_group_barrier(all));
    SL_TRY(run_steps(shared, &state, WARM_STEPS, shared->options.steps, &seconds));
    if (shared->traced)
        SL_TRY(learn_costs(shared, &state));
    if (!sl_device_is_host(state.device) && sl_group_size(group) > 1)
        SL_TRY(time_ties(&state, &ties));
    if (sl_group_rank(all) == 0) {
        pipeline_case *result = &shared->result;
        result->stages = sl_schedule_stages(state.schedule);
        result->tokens_per_s = (double)(shared->options.batch * shared->options.seq) / seconds;
        result->is_host = sl_device_is_host(state.device);
        result->ties = ties;
        sl_kernel_describe(state.device, result->device, sizeof result->device);
        snprintf(result->messages, sizeof result->messages, "%s", sl_runtime_messages(state.runtime));
    }
done:
    if (status != SL_OK)
        snprintf(shared->error, sizeof shared->error, "%s", sl_error_message());
    rank_state_free(&state);
    return status;
}

static int thread_main(void *user, sl_group *group)
{
    sl_status status = run_rank(user, group, group);
    return status == SL_OK ? 0 : ranks_failure("bench pipeline", group, sl_group_fail(group, status));
}

/* Each copy is a run of its own; they only begin to count together. */
static sl_status run_copy(shared_case *shared, sl_group *copies)
{
    sl_status status = SL_OK;
    sl_group *own = NULL;
    SL_TRY(sl_group_split(copies, sl_group_rank(copies), 0, &own));
    SL_TRY(run_rank(shared, own, copies));
done:
    sl_group_close(own);
    return status;
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
    sl_status status = shared->options.copies > 1 ? run_copy(shared, group) : run_rank(shared, group, group);
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

static int count_devices(const shared_case *shared)
{
    int count = 0;
    for (int r = 0; r < shared->result.ranks; r++) {
        bool is_new = true;
        for (int other = 0; other < r; other++)
            is_new = is_new && strcmp(shared->devices[r], shared->devices[other]) != 0;
        count += is_new;
    }
    return count;
}

sl_status pipeline_measure(const pipeline_options *options, pipeline_case *each, pipeline_costs *costs)
{
    sl_status status = SL_OK;
    sl_launch_result result;
    shared_case *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "no memory for the results");
    shared->options = *options;
    shared->result = *each;
    shared->traced = costs != NULL;
    int processes = options->ranks_as == RANKS_AS_THREADS ? 1 : options->copies > 1 ? options->copies : each->ranks;
    sl_launch_options launch = { .ranks = processes, .run = rank_main, .user = shared };
    SL_TRY(sl_launch(&launch, &result));
    if (result.exit_code != 0)
        SL_TRY(sl_fail(SL_ERR_PEER, "%s on %d ranks: %s", each->schedule, each->ranks,
                       *shared->error ? shared->error : result.report));
    *each = shared->result;
    each->devices = each->is_host ? each->ranks : count_devices(shared);
    if (costs)
        *costs = shared->costs;
done:
    munmap(shared, sizeof *shared);
    return status;
}
