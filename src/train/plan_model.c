/* The plan's model and data: from a Hugging Face folder, or a family and sizes; tokens that fit it. */
#include "train/plan.h"

#include <inttypes.h>
#include <string.h>

sl_status sl_plan_open_data(sl_train_plan *plan)
{
    const sl_train_config *config = plan->config;
    const char *key = config->data.text ? "data.text" : "data.tokens";
    sl_status status = config->data.text ? sl_tokens_open(config->data.text, SL_TOKENS_BYTES, &plan->tokens)
                                         : sl_tokens_open(config->data.tokens, SL_TOKENS_AUTO, &plan->tokens);
    if (status != SL_OK)
        return sl_train_config_fail(config, key, "%s", sl_error_message());
    if (sl_tokens_count(plan->tokens) < config->batch.seq + 1)
        return sl_train_config_fail(config, "batch.seq", "a row needs %" PRId64 " tokens, %s has %" PRId64,
                                    config->batch.seq + 1, sl_tokens_path(plan->tokens), sl_tokens_count(plan->tokens));
    return SL_OK;
}

static int64_t vocab_for(const sl_train_plan *plan)
{
    if (plan->config->model.vocab > 0)
        return plan->config->model.vocab;
    if (sl_tokens_format(plan->tokens) == SL_TOKENS_BYTES)
        return 256;
    return (sl_tokens_max(plan->tokens) + 64) / 64 * 64; /* a multiple of 64 suits the kernels */
}

static void set_gpt2_sizes(const sl_train_config *config, int64_t vocab, int64_t positions, sl_gpt2_config *out)
{
    out->vocab_size = vocab;
    out->n_positions = positions;
    out->n_embd = config->model.n_embd;
    out->n_layer = config->model.n_layer;
    out->n_head = config->model.n_head;
    out->n_inner = config->model.n_inner;
    out->tie_word_embeddings = config->model.tie;
    out->bos_token_id = -1; /* the data has none that we know of */
    out->eos_token_id.count = 0;
}

static void set_llama_sizes(const sl_train_config *config, int64_t vocab, int64_t positions, sl_llama_config *out)
{
    int64_t width = config->model.n_embd;
    out->vocab_size = vocab;
    out->max_position_embeddings = positions;
    out->hidden_size = width;
    out->intermediate_size = config->model.n_inner ? config->model.n_inner : (width * 8 / 3 + 15) / 16 * 16;
    out->num_hidden_layers = config->model.n_layer;
    out->num_attention_heads = config->model.n_head;
    out->num_key_value_heads = config->model.n_kv_head ? config->model.n_kv_head : config->model.n_head;
    out->head_dim = 0;
    out->tie_word_embeddings = config->model.tie;
    out->bos_token_id = -1;
    out->eos_token_id.count = 0;
}

/* Llama has dropout in its attention alone. */
static void set_dropout(double rate, sl_model *model)
{
    if (model->family == SL_MODEL_GPT2)
        model->gpt2.embd_pdrop = model->gpt2.resid_pdrop = model->gpt2.attn_pdrop = rate;
    else if (model->family == SL_MODEL_LLAMA)
        model->llama.attention_dropout = rate;
}

/* Sets the model as it is saved, and as it is built. */
static sl_status choose(sl_train_plan *plan)
{
    const sl_train_config *config = plan->config;
    int64_t positions = config->model.n_positions ? config->model.n_positions : config->batch.seq;
    if (config->model.init) {
        if (sl_model_load_config(config->model.init, &plan->model) != SL_OK)
            return sl_train_config_fail(config, "model.init", "%s", sl_error_message());
        if (config->model.dropout > 0)
            set_dropout(config->model.dropout, &plan->model);
    } else {
        plan->model = sl_model_default((sl_model_family)config->model.family);
        if (plan->model.family == SL_MODEL_GPT2)
            set_gpt2_sizes(config, vocab_for(plan), positions, &plan->model.gpt2);
        else
            set_llama_sizes(config, vocab_for(plan), positions, &plan->model.llama);
        set_dropout(config->model.dropout, &plan->model);
    }
    sl_status status = sl_model_check(&plan->model);
    if (status != SL_OK)
        return sl_train_config_fail(config, config->model.init ? "model.init" : "model.family", "%s",
                                    sl_error_message());
    if (plan->model.family == SL_MODEL_MLP)
        return sl_train_config_fail(config, "model.init", "this is not a language model");
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
    plan->graph_model = plan->model;
    if (plan->model.family == SL_MODEL_GPT2) {
        plan->tied = plan->model.gpt2.tie_word_embeddings;
        plan->embedding = "transformer.wte.weight";
        plan->graph_model.gpt2.tie_word_embeddings = false;
    } else {
        plan->tied = plan->model.llama.tie_word_embeddings;
        plan->embedding = "model.embed_tokens.weight";
        plan->graph_model.llama.tie_word_embeddings = false;
    }
    SL_TRY(sl_model_params(&plan->model, &plan->params));
done:
    return status;
}

sl_status sl_plan_check_data(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    const char *key = config->data.text ? "data.text" : "data.tokens";
    const sl_batch_options options = { .batch = config->batch.size,
                                       .seq = config->batch.seq,
                                       .shuffled = config->data.order == SL_ORDER_SHUFFLED,
                                       .seed = (uint64_t)config->run.seed,
                                       .vocab = sl_model_vocab(&plan->model) };
    status = sl_batches_create(plan->tokens, &options, &plan->batches);
    if (status == SL_OK)
        status = sl_batches_check(plan->batches, 0, config->run.steps);
    if (status != SL_OK)
        return sl_train_config_fail(config, key, "%s", sl_error_message());
    return SL_OK;
}

sl_optim_options sl_plan_optim_options(const sl_train_config *config)
{
    return (sl_optim_options){ .kind = (sl_optim_kind)config->optimizer.name,
                               .beta1 = config->optimizer.betas[0],
                               .beta2 = config->optimizer.betas[1],
                               .eps = config->optimizer.eps,
                               .momentum = config->optimizer.momentum,
                               .weight_decay = config->optimizer.weight_decay };
}
