/* The plan's data: the files that the configuration names, and the batches that training and validation read. */
#include "train/config_keys.h"
#include "train/plan.h"
#include "train/tokenizer_files.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

/* ---- Opening --------------------------------------------------------------------------------- */

/* Text becomes the tokens that the model began with: by its tokenizer, or a token a byte if it has none. */
static sl_status open_text(const sl_train_config *config, const char *key, const char *const *paths, int count,
                           sl_tokens **out)
{
    sl_tokenizer *tokenizer = NULL;
    sl_status status = SL_OK;
    if (!config->model.init || !sl_tokenizer_files_exist(config->model.init)) {
        status = sl_tokens_open_all(paths, count, SL_TOKENS_BYTES, out);
        return status == SL_OK ? SL_OK : sl_train_config_context(config, key, status);
    }
    status = sl_tokenizer_open(config->model.init, &tokenizer);
    if (status != SL_OK)
        return sl_train_config_context(config, "model.init", status);
    status = sl_tokens_encode_all(paths, count, tokenizer, out);
    sl_tokenizer_close(tokenizer);
    return status == SL_OK ? SL_OK : sl_train_config_context(config, key, status);
}

/* Files in the form of the training data. */
static sl_status open_paths(const sl_train_config *config, const char *key, const char *const *paths, int count,
                            sl_tokens **out)
{
    if (config->data.text.count > 0)
        return open_text(config, key, paths, count, out);
    sl_status status = sl_tokens_open_all(paths, count, SL_TOKENS_AUTO, out);
    return status == SL_OK ? SL_OK : sl_train_config_context(config, key, status);
}

/* Sources that are mixed come from one tokenizer, so their tokens have one type. */
static sl_status check_types(const sl_train_config *config, const char *key, const sl_plan_data *data)
{
    for (int i = 1; i < data->count; i++) {
        const sl_tokens *first = data->tokens[0], *other = data->tokens[i];
        if (strcmp(sl_tokens_type(first), sl_tokens_type(other)) != 0)
            return sl_train_config_fail(config, key, "%s has tokens of the type %s, %s has %s; give files of one type",
                                        sl_tokens_path(other), sl_tokens_type(other), sl_tokens_path(first),
                                        sl_tokens_type(first));
    }
    return SL_OK;
}

/* With weights each path is a source of its own; without, all are one. */
static sl_status open_sources(sl_train_plan *plan, const char *key, const sl_data_sources *sources, sl_plan_data *out)
{
    sl_status status = SL_OK;
    const char **paths = NULL;
    bool mixed = sources->items[0].weight > 0;
    int count = (int)sources->count;
    SL_TRY(SL_ARENA_ARRAY(plan->arena, paths, count));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, out->tokens, count));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, out->weights, count));
    for (int i = 0; i < count; i++)
        paths[i] = sources->items[i].path;
    for (int i = 0; i < (mixed ? count : 1); i++) {
        SL_TRY(open_paths(plan->config, key, paths + i, mixed ? 1 : count, &out->tokens[i]));
        out->weights[i] = mixed ? sources->items[i].weight : 1;
        out->count++;
    }
    SL_TRY(check_types(plan->config, key, out));
done:
    return status;
}

void sl_plan_data_close(sl_plan_data *data)
{
    for (int i = 0; i < data->count; i++)
        sl_tokens_close(data->tokens[i]);
    data->count = 0;
}

/* Whether data.val is a share of the training data, "5%" or "0.05", and which. */
static bool is_share(const sl_data_sources *val, double *share)
{
    char text[32];
    size_t length = val->count == 1 && val->items[0].weight == 0 ? strlen(val->items[0].path) : 0;
    if (length == 0 || length >= sizeof text)
        return false;
    memcpy(text, val->items[0].path, length + 1);
    bool percent = text[length - 1] == '%';
    if (percent)
        text[length - 1] = '\0';
    if (sl_parse_double("data.val", text, -1e9, 1e9, share) != SL_OK)
        return false;
    *share /= percent ? 100 : 1;
    return true;
}

static const char *key_of(const sl_train_config *config)
{
    return config->data.text.count > 0 ? "data.text" : "data.tokens";
}

sl_status sl_plan_open_data(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    double share;
    SL_TRY(open_sources(plan, key_of(config), config->data.text.count > 0 ? &config->data.text : &config->data.tokens,
                        &plan->data));
    if (config->data.val.count > 0 && !is_share(&config->data.val, &share))
        SL_TRY(open_sources(plan, "data.val", &config->data.val, &plan->val));
    for (int i = 0; i < plan->data.count; i++) {
        const sl_tokens *tokens = plan->data.tokens[i];
        if (sl_tokens_count(tokens) < config->batch.seq + 1)
            SL_TRY(sl_train_config_fail(config, "batch.seq", "a row needs %" PRId64 " tokens, %s has %" PRId64,
                                        config->batch.seq + 1, sl_tokens_path(tokens), sl_tokens_count(tokens)));
    }
done:
    return status;
}

/* ---- What the files say ---------------------------------------------------------------------- */

static sl_status find_largest(const sl_plan_data *data, int64_t *largest)
{
    sl_status status = SL_OK;
    for (int i = 0; i < data->count && status == SL_OK; i++) {
        int64_t one = 0;
        status = sl_tokens_max(data->tokens[i], &one);
        *largest = one > *largest ? one : *largest;
    }
    return status;
}

sl_status sl_plan_largest_token(const sl_train_plan *plan, int64_t *out)
{
    int64_t largest = 0;
    sl_status status = find_largest(&plan->data, &largest);
    if (status == SL_OK)
        status = find_largest(&plan->val, &largest);
    if (status == SL_OK)
        *out = largest;
    return status;
}

int64_t sl_plan_token_count(const sl_plan_data *data)
{
    int64_t count = 0;
    for (int i = 0; i < data->count; i++)
        count += sl_tokens_count(data->tokens[i]);
    return count;
}

sl_status sl_plan_hash_data(const sl_plan_data *data, uint64_t *out)
{
    uint64_t hash = 0;
    for (int i = 0; i < data->count; i++) {
        uint64_t one = 0;
        sl_status status = sl_tokens_hash(data->tokens[i], &one);
        if (status != SL_OK)
            return status;
        hash = i == 0 ? one : XXH3_64bits((uint64_t[]){ hash, one }, sizeof hash + sizeof one);
    }
    *out = hash;
    return SL_OK;
}

/* ---- Documents ------------------------------------------------------------------------------- */

/* The token that `sluice tokenize --end` writes, if the model has a tokenizer, else the model's own. */
static sl_status find_boundary(const sl_train_plan *plan, int64_t *out)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    sl_tokenizer *tokenizer = NULL;
    sl_token_ids ends = sl_model_end_tokens(&plan->model);
    int64_t found = -1;
    if (config->model.init && sl_tokenizer_files_exist(config->model.init)) {
        status = sl_tokenizer_open(config->model.init, &tokenizer);
        if (status != SL_OK)
            return sl_train_config_context(config, "model.init", status);
        found = sl_tokenizer_end_token(tokenizer);
        sl_tokenizer_close(tokenizer);
    }
    if (found < 0 && ends.count > 0)
        found = ends.ids[0];
    if (found < 0)
        return sl_train_config_fail(config, "data.documents",
                                    "which token ends a document is not known: neither a tokenizer nor the model says "
                                    "it; give data.boundary");
    *out = found;
    return SL_OK;
}

/* A boundary that the data do not have is likely a wrong one. */
static sl_status warn_of_no_boundary(const sl_train_plan *plan)
{
    enum { LOOKED_AT = 1 << 20, PART = 4096 };
    sl_status status = SL_OK;
    int32_t part[PART];
    const sl_tokens *tokens = plan->data.tokens[0];
    int64_t count = sl_tokens_count(tokens) < LOOKED_AT ? sl_tokens_count(tokens) : LOOKED_AT;
    for (int64_t first = 0; first < count; first += PART) {
        int64_t n = count - first < PART ? count - first : PART;
        SL_TRY(sl_tokens_read(tokens, first, n, part));
        for (int64_t i = 0; i < n; i++) {
            if (part[i] == plan->boundary)
                return SL_OK;
        }
    }
    sl_log(SL_LOG_WARN,
           "%s: none of its first %" PRId64 " tokens is %" PRId32
           ", which ends a document: every row is one (data.boundary; sluice tokenize --end)",
           sl_tokens_path(tokens), count, plan->boundary);
done:
    return status;
}

static sl_status choose_boundary(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    int64_t boundary = config->data.boundary, vocab = sl_model_vocab(&plan->model);
    bool given = boundary >= 0, encoded = sl_tokens_format(plan->data.tokens[0]) == SL_TOKENS_TEXT;
    if (!given && encoded)
        return sl_train_config_fail(config, "data.documents",
                                    "text has no tokens that end a document: make a token file with sluice tokenize "
                                    "--end, or give data.boundary");
    if (!given)
        SL_TRY(find_boundary(plan, &boundary));
    if (boundary >= vocab)
        return sl_train_config_fail(config, given ? "data.boundary" : "data.documents",
                                    "token %" PRId64 " is not below the vocabulary %" PRId64, boundary, vocab);
    plan->boundary = (int32_t)boundary;
    SL_TRY(warn_of_no_boundary(plan));
done:
    return status;
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* Batches of a share of each source: the tokens that it has before the split, or those after. */
typedef enum data_part { PART_WHOLE, PART_BEFORE, PART_AFTER } data_part;

static sl_status make_batches(sl_train_plan *plan, const sl_plan_data *data, data_part part, double share,
                              const sl_batch_options *options, sl_batches **out)
{
    sl_status status = SL_OK;
    sl_batch_source *sources = NULL;
    SL_TRY(SL_ARENA_ARRAY(plan->arena, sources, data->count));
    for (int i = 0; i < data->count; i++) {
        int64_t all = sl_tokens_count(data->tokens[i]), kept = all - (int64_t)((double)all * share);
        sources[i] = (sl_batch_source){ .tokens = data->tokens[i],
                                        .weight = data->weights[i],
                                        .first = part == PART_AFTER ? kept : 0,
                                        .count = part == PART_BEFORE ? kept : 0 };
    }
    SL_TRY(sl_batches_create_mixed(sources, data->count, options, out));
done:
    return status;
}

/* Validation reads its data in order, the same batches each time. */
static sl_status check_val_data(sl_train_plan *plan, double share)
{
    const sl_train_config *config = plan->config;
    const sl_batch_options options = { .batch = config->batch.size,
                                       .seq = config->batch.seq,
                                       .vocab = sl_model_vocab(&plan->model) };
    sl_status status = plan->val.count > 0
                           ? make_batches(plan, &plan->val, PART_WHOLE, 0, &options, &plan->val_batches)
                           : make_batches(plan, &plan->data, PART_AFTER, share, &options, &plan->val_batches);
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
    const sl_train_config *config = plan->config;
    double share = 0;
    sl_status status = config->data.documents ? choose_boundary(plan) : SL_OK;
    if (status != SL_OK)
        return status;
    if (is_share(&config->data.val, &share) && !(share > 0 && share < 1))
        return sl_train_config_fail(config, "data.val", "a share is above 0%% and below 100%%");
    const sl_batch_options options = { .batch = config->batch.size,
                                       .seq = config->batch.seq,
                                       .shuffled = config->data.order == SL_ORDER_SHUFFLED,
                                       .seed = (uint64_t)config->run.seed,
                                       .vocab = sl_model_vocab(&plan->model) };
    status = make_batches(plan, &plan->data, PART_BEFORE, share, &options, &plan->batches);
    if (status == SL_OK)
        status = sl_batches_check(plan->batches, 0, config->run.steps);
    if (status != SL_OK)
        return sl_train_config_context(config, key_of(config), status);
    return config->data.val.count > 0 ? check_val_data(plan, share) : SL_OK;
}
