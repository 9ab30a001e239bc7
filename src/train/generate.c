/* Text generation with a key/value cache. The model is cut into one stage a rank; each sample is at another stage, so
 * that several samples keep all ranks busy. */
#include "train/infer.h"
#include "train/sample.h"

#include "base/alloc.h"
#include "base/units.h"

#include <inttypes.h>
#include <string.h>

/* Tokens after which all ranks hear whether every sample has ended. More often would make them wait for each other. */
enum { END_INTERVAL = 16 };

typedef struct generator {
    const sl_generate_text_options *options;
    sl_group *group;
    int rank, ranks, samples;
    int64_t vocab, prompt_count;
    sl_device *device;
    sl_infer *one, *whole; /* for one token, for the whole prompt */
    void ***states;        /* of each sample: the caches of this stage */
    sl_channel *chosen;    /* brings tokens from the last rank to rank 0; NULL on other ranks */
    int32_t *positions;    /* 0, 1, .. for the prompt */
    int32_t *last;         /* last token of each sample; rank 0 */
    sl_token_ids ends;     /* tokens that end a text */
    bool *ended;           /* of each sample; rank 0 */
    int ended_count;
    float *logits; /* [vocab]; last rank */
    sl_candidate *candidates;
    int32_t *tokens; /* the result; rank 0 */
} generator;

/* ---- Preparation ----------------------------------------------------------------------------- */

static sl_status check(const generator *run, const sl_model *model)
{
    int64_t most = sl_model_positions(model), wanted = run->prompt_count + run->options->new_tokens;
    if (run->prompt_count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "the prompt is empty");
    if (wanted > most)
        return sl_fail(SL_ERR_ARGUMENT,
                       "%" PRId64 " token%s of prompt and %" PRId64 " new ones are more than the model's %" PRId64
                       " positions",
                       run->prompt_count, sl_plural(run->prompt_count), run->options->new_tokens, most);
    for (int64_t i = 0; i < run->prompt_count; i++) {
        if (run->options->prompt[i] < 0 || run->options->prompt[i] >= run->vocab)
            return sl_fail(SL_ERR_ARGUMENT,
                           "token %" PRId64 " of the prompt is %" PRId32 ", the vocabulary has %" PRId64, i,
                           run->options->prompt[i], run->vocab);
    }
    return SL_OK;
}

static sl_status make_infers(generator *run, const sl_model_source *source)
{
    sl_status status = SL_OK;
    const sl_device_options threads = { .threads = run->options->threads };
    SL_TRY(sl_device_open(run->options->device ? run->options->device : "cpu", &threads, &run->device));
    sl_infer_options options = { .group = run->group,
                                 .device = run->device,
                                 .mode = SL_MODE_DECODE,
                                 .shape = { .batch = 1,
                                            .seq = 1,
                                            .cache = run->prompt_count + run->options->new_tokens,
                                            .dtype = run->options->dtype } };
    SL_TRY(sl_infer_create(source, &options, &run->one));
    options.shape.seq = run->prompt_count;
    options.shares = run->one;
    SL_TRY(sl_infer_create(source, &options, &run->whole));
done:
    return status;
}

/* Empty caches for one sample. */
static sl_status make_states(generator *run, void ***out)
{
    sl_status status = SL_OK;
    sl_stream *stream = sl_runtime_stream(run->one->runtime);
    int count = 0;
    const sl_port *states = sl_stage_states(run->one->stage, &count);
    SL_TRY(SL_NEW_ARRAY(*out, count));
    for (int i = 0; i < count; i++) {
        SL_TRY(sl_device_alloc(run->device, states[i].bytes, &(*out)[i]));
        SL_TRY(sl_stream_memset(stream, (*out)[i], 0, states[i].bytes));
    }
    SL_TRY(sl_stream_synchronize(stream)); /* the other runtime has a stream of its own */
done:
    return status;
}

static sl_status make_buffers(generator *run)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(run->states, run->samples));
    for (int i = 0; i < run->samples; i++)
        SL_TRY(make_states(run, &run->states[i]));
    SL_TRY(SL_NEW_ARRAY(run->positions, run->prompt_count));
    for (int64_t i = 0; i < run->prompt_count; i++)
        run->positions[i] = (int32_t)i;
    SL_TRY(SL_NEW_ARRAY(run->last, run->samples));
    SL_TRY(SL_NEW_ARRAY(run->ended, run->samples));
    SL_TRY(SL_NEW_ARRAY(run->logits, run->vocab));
    SL_TRY(SL_NEW_ARRAY(run->candidates, run->vocab));
done:
    return status;
}

static sl_status open_channel(generator *run)
{
    const sl_channel_spec spec = {
        .src = run->ranks - 1, .dst = 0, .capacity = run->samples, .max_bytes = sizeof(int32_t)
    };
    return run->ranks == 1 ? SL_OK : sl_group_open_channels(run->group, &spec, 1, &run->chosen);
}

/* ---- One sample at this rank's stage --------------------------------------------------------- */

static sl_message message_for(int64_t index, int sample)
{
    return (sl_message){ .step = index, .microbatch = sample, .dtype = SL_I32, .shape = { .rank = 0 } };
}

static bool ends_text(const generator *run, int32_t token)
{
    for (int64_t i = 0; i < run->ends.count; i++) {
        if (run->ends.ids[i] == token)
            return true;
    }
    return false;
}

static void deliver(generator *run, int64_t index, int sample, int32_t token)
{
    run->last[sample] = token;
    if (run->ended[sample])
        return;
    run->ended[sample] = ends_text(run, token);
    run->ended_count += run->ended[sample];
    if (run->tokens)
        run->tokens[sample * run->options->new_tokens + index] = token;
    if (run->options->token)
        run->options->token(run->options->user, sample, index, token);
}

/* Last rank: the new token, for rank 0. */
static sl_status choose(generator *run, int64_t index, int sample)
{
    sl_status status = SL_OK;
    const sl_sample_options options = { .temperature = run->options->temperature,
                                        .top_k = run->options->top_k,
                                        .top_p = run->options->top_p,
                                        .seed = run->options->seed };
    int32_t token = sl_sample(run->logits, run->vocab, &options, (uint64_t)sample, (uint64_t)index, run->candidates);
    if (run->ranks == 1) {
        deliver(run, index, sample, token);
        return SL_OK;
    }
    const sl_message message = message_for(index, sample);
    void *data = NULL;
    SL_TRY(sl_channel_reserve(run->chosen, &message, &data));
    *(int32_t *)data = token;
    SL_TRY(sl_channel_commit(run->chosen, data));
done:
    return status;
}

/* Rank 0: the token that the last rank chose. */
static sl_status take_token(generator *run, int64_t index, int sample)
{
    sl_status status = SL_OK;
    void *data = NULL;
    if (run->rank != 0 || run->ranks == 1 || index < 0)
        return SL_OK;
    const sl_message expected = message_for(index, sample);
    SL_TRY(sl_channel_receive(run->chosen, &expected, NULL, &data));
    deliver(run, index, sample, *(int32_t *)data);
    SL_TRY(sl_channel_release(run->chosen, data));
done:
    return status;
}

static sl_status advance(generator *run, int64_t index, int sample)
{
    sl_status status = SL_OK;
    bool last = run->rank == run->ranks - 1;
    sl_infer *infer = index == 0 ? run->whole : run->one;
    int32_t position = index == 0 ? 0 : (int32_t)(run->prompt_count + index - 1);
    const sl_infer_input inputs[] = { { "tokens", index == 0 ? run->options->prompt : &run->last[sample] },
                                      { "position", &position },
                                      { "positions", index == 0 ? run->positions : &position } };
    SL_TRY(take_token(run, index - 1, sample));
    sl_stage_bind_states(infer->stage, run->states[sample]);
    SL_TRY(sl_infer_run(infer, index * run->samples + sample, inputs, 3, last ? run->logits : NULL, NULL));
    if (last)
        SL_TRY(choose(run, index, sample));
done:
    return status;
}

/* Whether there is nothing left to do. Only rank 0 sees the tokens. */
static sl_status all_ended(generator *run, int64_t index, bool *out)
{
    int32_t ended = run->ended_count == run->samples;
    *out = run->ranks == 1 && ended;
    if (run->ranks == 1 || run->ends.count == 0 || index == 0 || index % END_INTERVAL != 0)
        return SL_OK;
    sl_status status = sl_group_broadcast(run->group, 0, &ended, sizeof ended);
    *out = status == SL_OK && ended;
    return status;
}

static void release(generator *run)
{
    int state_count = 0;
    if (run->states)
        (void)sl_stage_states(run->one->stage, &state_count);
    for (int sample = 0; run->states && sample < run->samples; sample++) {
        for (int i = 0; run->states[sample] && i < state_count; i++)
            sl_device_free(run->device, run->states[sample][i]);
        sl_free(run->states[sample]);
    }
    sl_free(run->states);
    sl_channel_close(run->chosen);
    sl_free(run->positions);
    sl_free(run->last);
    sl_free(run->ended);
    sl_free(run->logits);
    sl_free(run->candidates);
    sl_infer_destroy(run->whole);
    sl_infer_destroy(run->one);
    sl_device_close(run->device);
}

sl_status sl_model_generate(const sl_model_source *source, sl_group *group, const sl_generate_text_options *options,
                            int32_t *tokens)
{
    sl_status status = SL_OK;
    const sl_model *model = sl_model_source_model(source);
    if (!options || (options->prompt_count > 0 && !options->prompt))
        return sl_fail(SL_ERR_ARGUMENT, "generation needs a prompt: NULL was given");
    generator run = { .options = options,
                      .group = group,
                      .rank = sl_group_rank(group),
                      .ranks = sl_group_size(group),
                      .samples = options->samples > 0 ? options->samples : 1,
                      .vocab = sl_model_vocab(model),
                      .prompt_count = options->prompt_count,
                      .tokens = tokens };
    if (!options->ignore_end)
        run.ends = sl_model_end_tokens(model);
    SL_TRY(check(&run, model));
    SL_TRY(make_infers(&run, source));
    SL_TRY(make_buffers(&run));
    SL_TRY(open_channel(&run));
    if (tokens)
        memset(tokens, 0xff, (size_t)run.samples * (size_t)options->new_tokens * sizeof *tokens); /* -1 */
    int64_t index = 0;
    for (bool ended = false; index < options->new_tokens; index++) {
        SL_TRY(all_ended(&run, index, &ended));
        if (ended)
            break;
        for (int sample = 0; sample < run.samples; sample++)
            SL_TRY(advance(&run, index, sample));
    }
    for (int sample = 0; sample < run.samples; sample++)
        SL_TRY(take_token(&run, index - 1, sample));
    SL_TRY(sl_group_barrier(group)); /* nobody closes a channel that still has messages */
done:
    if (status != SL_OK)
        sl_group_fail(group, status);
    release(&run);
    return status;
}
