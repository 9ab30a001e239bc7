/* The plan's model: from a Hugging Face folder, or a family and sizes. */
#include "nn/family.h"
#include "train/config_keys.h"
#include "train/plan.h"

#include <inttypes.h>
#include <string.h>

static sl_status find_vocab(const sl_train_plan *plan, int64_t *out)
{
    int64_t largest = 255;
    sl_status status = SL_OK;
    if (plan->config->model.vocab == 0 && plan->config->data.text.count == 0)
        status = sl_plan_largest_token(plan, &largest);
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
    sl_status status = sl_model_params(&plan->model, &plan->params);
    return status == SL_OK ? sl_plan_choose_frozen(plan) : status;
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
