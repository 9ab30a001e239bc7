/* Loss and perplexity of a trained model over a token file. */
#include "train/infer.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct evaluation {
    sl_group *group; /* of this process alone */
    sl_device *device;
    sl_infer *infer;
    sl_batches *batches;
    int32_t *tokens, *targets;
    int32_t *positions; /* with documents */
    float *logits;
} evaluation;

static sl_status prepare(evaluation *run, const sl_model_source *source, const sl_eval_options *options)
{
    sl_status status = SL_OK;
    const sl_model *model = sl_model_source_model(source);
    const sl_batch_options batches = { .batch = options->batch, .seq = options->seq, .vocab = sl_model_vocab(model) };
    const sl_device_options threads = { .threads = options->threads };
    SL_TRY(sl_batches_create(options->tokens, &batches, &run->batches));
    SL_TRY(sl_device_open(options->device ? options->device : "cpu", &threads, &run->device));
    SL_TRY(sl_group_open_threads(1, NULL, &run->group));
    const sl_infer_options infer = { .group = run->group,
                                     .device = run->device,
                                     .mode = SL_MODE_EVAL,
                                     .shape = { .batch = options->batch,
                                                .seq = options->seq,
                                                .dtype = options->dtype,
                                                .documents = options->documents } };
    SL_TRY(sl_infer_create(source, &infer, &run->infer));
    SL_TRY(SL_NEW_ARRAY(run->tokens, options->batch * options->seq));
    SL_TRY(SL_NEW_ARRAY(run->targets, options->batch * options->seq));
    SL_TRY(SL_NEW_ARRAY(run->positions, options->batch * options->seq));
    if (options->logits)
        SL_TRY(SL_NEW_ARRAY(run->logits, options->batch * options->seq * batches.vocab));
done:
    return status;
}

static sl_status save_logits(const evaluation *run, const sl_eval_options *options, int64_t vocab, float loss)
{
    sl_status status = SL_OK;
    int64_t count = options->batch * options->seq * vocab;
    const sl_tensor_entry entries[] = {
        { .name = "logits",
          .dtype = SL_F32,
          .shape = { 3, { options->batch, options->seq, vocab } },
          .count = count,
          .data = run->logits,
          .bytes = (size_t)count * sizeof(float) },
        { .name = "loss", .dtype = SL_F32, .shape = { 1, { 1 } }, .count = 1, .data = &loss, .bytes = sizeof loss },
    };
    SL_TRY(sl_safetensors_save(options->logits, entries, 2, NULL));
done:
    return status;
}

static sl_status one_batch(evaluation *run, int64_t step, const sl_eval_options *options, float *loss)
{
    sl_status status = SL_OK;
    const sl_infer_input inputs[] = { { "tokens", run->tokens },
                                      { "targets", run->targets },
                                      { "positions", run->positions } }; /* used if the model has it */
    sl_step_result result;
    SL_TRY(sl_batches_read(run->batches, step, 0, options->batch, run->tokens, run->targets));
    sl_document_positions(run->tokens, options->batch, options->seq, options->boundary, run->positions);
    SL_TRY(sl_infer_run(run->infer, step, inputs, 3, step == 0 ? run->logits : NULL, &result));
    *loss = result.losses[0];
    if (!isfinite(*loss))
        SL_TRY(sl_fail(SL_ERR_NUMERIC, "the loss of batch %lld is %g", (long long)step + 1, (double)*loss));
done:
    return status;
}

sl_status sl_model_evaluate(const sl_model_source *source, const sl_eval_options *options, sl_eval_result *out)
{
    sl_status status = SL_OK;
    evaluation run = { .device = NULL };
    double sum = 0, start = sl_now();
    if (!options || !options->tokens)
        return sl_fail(SL_ERR_ARGUMENT, "an evaluation needs tokens: NULL was given");
    if (options->documents &&
        (options->boundary < 0 || options->boundary >= sl_model_vocab(sl_model_source_model(source))))
        return sl_fail(SL_ERR_ARGUMENT, "the boundary %" PRId32 " is not in the vocabulary of %" PRId64 " tokens",
                       options->boundary, sl_model_vocab(sl_model_source_model(source)));
    SL_TRY(prepare(&run, source, options));
    int64_t whole = sl_batches_windows(run.batches) / options->batch;
    int64_t steps = options->steps > 0 ? options->steps : whole;
    if (steps == 0)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%s: not one batch of %lld rows of %lld tokens",
                       sl_tokens_path(options->tokens), (long long)options->batch, (long long)options->seq));
    SL_TRY(sl_batches_check(run.batches, 0, steps));
    for (int64_t step = 0; step < steps; step++) {
        float loss = 0;
        SL_TRY(one_batch(&run, step, options, &loss));
        sum += (double)loss;
        if (step == 0 && options->logits)
            SL_TRY(save_logits(&run, options, sl_model_vocab(sl_model_source_model(source)), loss));
    }
    *out = (sl_eval_result){ .loss = sum / (double)steps,
                             .perplexity = exp(sum / (double)steps),
                             .steps = steps,
                             .tokens = steps * options->batch * options->seq,
                             .seconds = sl_now() - start };
done:
    sl_free(run.logits);
    sl_free(run.tokens);
    sl_free(run.targets);
    sl_free(run.positions);
    sl_batches_destroy(run.batches);
    sl_infer_destroy(run.infer);
    sl_device_close(run.device);
    sl_group_close(run.group);
    return status;
}
