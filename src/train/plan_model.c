/* The plan's model and data: from a Hugging Face folder, or a family and sizes; tokens that fit it. */
#include "nn/family.h"
#include "train/config_keys.h"
#include "train/plan.h"
#include "train/tokenizer_files.h"

#include <inttypes.h>
#include <string.h>

/* Text becomes the tokens that the model began with: by its tokenizer, or a token a byte if it has none. */
static sl_status open_text(const sl_train_config *config, const char *key, const char *path, sl_tokens **out)
{
    sl_tokenizer *tokenizer = NULL;
    sl_status status = SL_OK;
    if (!config->model.init || !sl_tokenizer_files_exist(config->model.init)) {
        status = sl_tokens_open(path, SL_TOKENS_BYTES, out);
        return status == SL_OK ? SL_OK : sl_train_config_context(config, key, status);
    }
    status = sl_tokenizer_open(config->model.init, &tokenizer);
    if (status != SL_OK)
        return sl_train_config_context(config, "model.init", status);
    status = sl_tokens_encode(path, tokenizer, out);
    sl_tokenizer_close(tokenizer);
    return status == SL_OK ? SL_OK : sl_train_config_context(config, key, status);
}

/* A file in the form of the training data. */
static sl_status open_file(const sl_train_config *config, const char *key, const char *path, sl_tokens **out)
{
    if (config->data.text)
        return open_text(config, key, path, out);
    sl_status status = sl_tokens_open(path, SL_TOKENS_AUTO, out);
    return status == SL_OK ? SL_OK : sl_train_config_context(config, key, status);
}

/* Whether data.val is a share of the training data, "5%" or "0.05", and which. */
static bool is_share(const char *val, double *share)
{
    char text[32];
    size_t length = val ? strlen(val) : 0;
    if (length == 0 || length >= sizeof text)
        return false;
    memcpy(text, val, length + 1);
    bool percent = text[length - 1] == '%';
    if (percent)
        text[length - 1] = '\0';
    if (sl_parse_double("data.val", text, -1e9, 1e9, share) != SL_OK)
        return false;
    *share /= percent ? 100 : 1;
    return true;
}

sl_status sl_plan_open_data(sl_train_plan *plan)
{
    const sl_train_config *config = plan->config;
    const char *val = config->data.val;
    double share;
    sl_status status = open_file(config, config->data.text ? "data.text" : "data.tokens",
                                 config->data.text ? config->data.text : config->data.tokens, &plan->tokens);
    if (status == SL_OK && val && !is_share(val, &share))
        status = open_file(config, "data.val", val, &plan->val_tokens);
    if (status != SL_OK)
        return status;
    if (sl_tokens_count(plan->tokens) < config->batch.seq + 1)
        return sl_train_config_fail(config, "batch.seq", "a row needs %" PRId64 " tokens, %s has %" PRId64,
                                    config->batch.seq + 1, sl_tokens_path(plan->tokens), sl_tokens_count(plan->tokens));
    return SL_OK;
}

static sl_status find_vocab(const sl_train_plan *plan, int64_t *out)
{
    int64_t largest = 255, in_val = 0;
    sl_status status = SL_OK;
    if (plan->config->model.vocab == 0 && sl_tokens_format(plan->tokens) != SL_TOKENS_BYTES) {
        status = sl_tokens_max(plan->tokens, &largest);
        if (status == SL_OK && plan->val_tokens)
            status = sl_tokens_max(plan->val_tokens, &in_val);
        largest = in_val > largest ? in_val : largest;
    }
    int64_t rounded = (largest + 64) / 64 * 64; /* a multiple of 64 suits the kernels */
    *out = plan->config->model.vocab > 0 ? plan->config->model.vocab : rounded;
    return status;
}

/* The model as it is saved. */
static sl_status choose(sl_train_plan *plan)
{
    const sl_train_config *config = plan->config;
    int64_t positions = config->model.n_positions ? config->model.n_positions : config->batch.seq;
    int64_t vocab = 0;
    sl_status status = config->model.init ? SL_OK : find_vocab(plan, &vocab);
    if (status != SL_OK)
        return status;
    if (!config->model.init)
        return sl_config_model(config, vocab, positions, &plan->model);
    status = sl_model_load_config(config->model.init, &plan->model);
    if (status != SL_OK)
        return sl_train_config_context(config, "model.init", status);
    if (sl_train_config_given(config, "model.dropout") && !sl_nn_set(&plan->model, "dropout", config->model.dropout) &&
        config->model.dropout > 0)
        return sl_train_config_fail(config, "model.dropout", "the family %s has none", plan->model.family->name);
    return SL_OK;
}

sl_status sl_plan_choose_model(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    SL_TRY(choose(plan));
    if (config->batch.seq > sl_model_positions(&plan->model))
        SL_TRY(sl_train_config_fail(config, "batch.seq", "%" PRId64 " tokens, but the model has %" PRId64 " positions",
                                    config->batch.seq, sl_model_positions(&plan->model)));
    SL_TRY(sl_plan_set_model(plan));
done:
    return status;
}

sl_status sl_plan_set_model(sl_train_plan *plan)
{
    plan->graph_model = plan->model;
    plan->tied = sl_nn_tied(&plan->model);
    plan->embedding = plan->tied ? plan->model.family->embedding : "";
    plan->head = plan->tied ? plan->model.family->head : "";
    sl_nn_set(&plan->graph_model, "tie", false);
    return sl_model_params(&plan->model, &plan->params);
}

/* Validation reads its data in order, the same batches each time. */
static sl_status check_val_data(sl_train_plan *plan, int64_t first)
{
    const sl_train_config *config = plan->config;
    const sl_batch_options options = {
        .batch = config->batch.size, .seq = config->batch.seq, .vocab = sl_model_vocab(&plan->model), .first = first
    };
    sl_status status =
        sl_batches_create(plan->val_tokens ? plan->val_tokens : plan->tokens, &options, &plan->val_batches);
    if (status != SL_OK)
        return sl_train_config_context(config, "data.val", status);
    int64_t whole = sl_batches_windows(plan->val_batches) / config->batch.size;
    if (whole == 0)
        return sl_train_config_fail(config, "data.val",
                                    "a batch has %" PRId64 " rows of %" PRId64
                                    " tokens, and the validation data have %" PRId64 " rows",
                                    config->batch.size, config->batch.seq, sl_batches_windows(plan->val_batches));
    plan->val_steps = config->eval.batches > 0 && config->eval.batches < whole ? config->eval.batches : whole;
    status = sl_batches_check(plan->val_batches, 0, plan->val_steps);
    return status == SL_OK ? SL_OK : sl_train_config_context(config, "data.val", status);
}

sl_status sl_plan_check_data(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    const char *key = config->data.text ? "data.text" : "data.tokens";
    double share = 0;
    if (is_share(config->data.val, &share) && !(share > 0 && share < 1))
        return sl_train_config_fail(config, "data.val", "a share is above 0%% and below 100%%");
    int64_t all = sl_tokens_count(plan->tokens), kept = all - (int64_t)((double)all * share);
    const sl_batch_options options = { .count = kept,
                                       .batch = config->batch.size,
                                       .seq = config->batch.seq,
                                       .shuffled = config->data.order == SL_ORDER_SHUFFLED,
                                       .seed = (uint64_t)config->run.seed,
                                       .vocab = sl_model_vocab(&plan->model) };
    status = sl_batches_create(plan->tokens, &options, &plan->batches);
    if (status == SL_OK)
        status = sl_batches_check(plan->batches, 0, config->run.steps);
    if (status != SL_OK)
        return sl_train_config_context(config, key, status);
    return config->data.val ? check_val_data(plan, plan->val_tokens ? 0 : kept) : SL_OK;
}

sl_optim_options sl_plan_optim_options(const sl_train_config *config)
{
    return (sl_optim_options){ .kind = (sl_optim_kind)config->optimizer.name,
                               .beta1 = config->optimizer.betas[0],
                               .beta2 = config->optimizer.betas[1],
                               .eps = config->optimizer.eps,
                               .momentum = config->optimizer.momentum,
                               .weight_decay = config->optimizer.weight_decay,
                               .master_weights = config->precision.master == SL_MASTER_F32 };
}
