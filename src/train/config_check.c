/* What must hold between configuration values. What needs the model, the data or the schedule is checked by the plan.
 */
#include "train/config_keys.h"

#include "base/units.h"

#include <inttypes.h>
#include <string.h>

static sl_status check_model(const sl_train_config *config)
{
    /* Those that a folder decides; dropout may still be chosen. */
    static const char *const sizes[] = { "model.family",      "model.n_layer", "model.n_head",
                                         "model.n_kv_head",   "model.n_embd",  "model.n_inner",
                                         "model.n_positions", "model.tie",     "model.vocab" };
    enum { SIZES = sizeof sizes / sizeof *sizes };
    if (config->model.init) {
        for (int i = 0; i < SIZES + sl_config_own(config)->extra_count; i++) {
            const char *key = i < SIZES ? sizes[i] : sl_config_own(config)->extras[i - SIZES].name;
            if (sl_train_config_given(config, key))
                return sl_train_config_fail(config, key, "this comes from model.init (%s); give only one of them",
                                            config->model.init);
        }
        return SL_OK;
    }
    /* The vocabulary and the positions may depend on the data: any will do to check the others. */
    sl_model model;
    int64_t vocab = config->model.vocab ? config->model.vocab : 256;
    int64_t positions = config->model.n_positions ? config->model.n_positions : config->batch.seq;
    sl_status status = sl_config_model(config, vocab, positions, &model);
    if (status == SL_OK && positions < config->batch.seq)
        status = sl_train_config_fail(config, "batch.seq", "%" PRId64 " tokens do not fit model.n_positions %" PRId64,
                                      config->batch.seq, positions);
    return status;
}

static sl_status check_data(const sl_train_config *config)
{
    if (config->data.tokens.count == 0 && config->data.text.count == 0)
        return sl_train_config_fail(config, "data.tokens", "no data: give data.tokens or data.text");
    if (config->data.tokens.count > 0 && config->data.text.count > 0)
        return sl_train_config_fail(config, "data.text", "data.tokens is given as well; give only one of them");
    return SL_OK;
}

static sl_status check_documents(const sl_train_config *config)
{
    const char *key = config->data.boundary >= 0   ? "data.boundary"
                      : config->data.boundary_loss ? NULL
                                                   : "data.boundary_loss";
    if (key && !config->data.documents)
        return sl_train_config_fail(config, key, "documents are not kept apart: data.documents is false");
    return SL_OK;
}

static sl_status check_validation(const sl_train_config *config)
{
    static const char *const keys[] = { "eval.every", "eval.batches", "eval.patience", "checkpoint.best" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys && config->data.val.count == 0; i++) {
        if (sl_train_config_given(config, keys[i]))
            return sl_train_config_fail(config, keys[i], "there is nothing to validate on: give data.val");
    }
    return SL_OK;
}

static sl_status check_batch(const sl_train_config *config)
{
    int64_t size = config->batch.size, dp = config->parallel.dp;
    if (size % dp != 0)
        return sl_train_config_fail(config, "batch.size",
                                    "%" PRId64 " rows cannot be shared equally by %" PRId64 " replicas (parallel.dp)",
                                    size, dp);
    if (config->batch.microbatches > size / dp)
        return sl_train_config_fail(config, "batch.microbatches",
                                    "%" PRId64 " microbatches, but a replica has only %" PRId64
                                    " rows (batch.size / parallel.dp)",
                                    config->batch.microbatches, size / dp);
    return SL_OK;
}

static sl_status check_optimizer(const sl_train_config *config)
{
    static const char *const adam_only[] = { "optimizer.betas", "optimizer.eps" };
    bool adamw = config->optimizer.name == SL_OPTIM_ADAMW;
    for (size_t i = 0; i < 2 && !adamw; i++) {
        if (sl_train_config_given(config, adam_only[i]))
            return sl_train_config_fail(config, adam_only[i], "only adamw has it; optimizer.name is sgd");
    }
    if (adamw && sl_train_config_given(config, "optimizer.momentum"))
        return sl_train_config_fail(config, "optimizer.momentum", "only sgd has it; optimizer.name is adamw");
    if (config->optimizer.min_lr > config->optimizer.lr)
        return sl_train_config_fail(config, "optimizer.min_lr", "%g is above optimizer.lr %g", config->optimizer.min_lr,
                                    config->optimizer.lr);
    if (config->optimizer.schedule == SL_DECAY_CONSTANT && config->optimizer.min_lr > 0)
        return sl_train_config_fail(config, "optimizer.min_lr", "a constant learning rate does not fall");
    if (config->optimizer.warmup > config->run.steps)
        return sl_train_config_fail(config, "optimizer.warmup", "%" PRId64 " steps, but the run has %" PRId64,
                                    config->optimizer.warmup, config->run.steps);
    return SL_OK;
}

static sl_status check_shards(const sl_train_config *config)
{
    int64_t group = config->parallel.shard_group, dp = config->parallel.dp;
    if (group > 0 && config->parallel.shard == SL_SHARD_NONE)
        return sl_train_config_fail(config, "parallel.shard_group", "parallel.shard is none: replicas share nothing");
    if (group > 0 && dp % group != 0)
        return sl_train_config_fail(config, "parallel.shard_group",
                                    "%" PRId64 " replicas (parallel.dp) are no groups of %" PRId64, dp, group);
    if (config->parallel.unsharded > 0 && config->parallel.shard != SL_SHARD_FULL)
        return sl_train_config_fail(config, "parallel.unsharded",
                                    "weights are only gathered if parallel.shard is full");
    return SL_OK;
}

sl_status sl_config_offload_bytes(const sl_train_config *config, double *bytes)
{
    const char *text = config->parallel.offload;
    *bytes = 0;
    if (strcmp(text, "auto") == 0 || strcmp(text, "none") == 0)
        return SL_OK;
    sl_status status = sl_parse_memory("not auto and not none", text, bytes);
    return status == SL_OK ? SL_OK : sl_train_config_context(config, "parallel.offload", status);
}

static sl_status check_parallel(const sl_train_config *config)
{
    int64_t pp = config->parallel.pp, stages = config->parallel.stages_per_rank;
    if (pp * config->parallel.dp > SL_MAX_RANKS)
        return sl_train_config_fail(config, "parallel.dp", "%" PRId64 " x %" PRId64 " ranks; %d is the limit", pp,
                                    config->parallel.dp, SL_MAX_RANKS);
    if (stages > 0 && config->parallel.split.count > 0 && config->parallel.split.count + 1 != pp * stages)
        return sl_train_config_fail(
            config, "parallel.split",
            "%" PRId64 " points make %" PRId64 " stages, but %" PRId64 " ranks with %" PRId64 " a rank need %" PRId64,
            config->parallel.split.count, config->parallel.split.count + 1, pp, stages, pp * stages);
    return SL_OK;
}

static sl_status check_precision(const sl_train_config *config)
{
    if (config->precision.dtype == SL_F16)
        return sl_train_config_fail(
            config, "precision.dtype",
            "f16 gradients underflow without loss scaling, which Sluice does not have; bf16 has "
            "the exponents of f32 and needs none");
    if (config->precision.dtype == SL_F32 && config->precision.grad != SL_F32)
        return sl_train_config_fail(config, "precision.grad", "only bf16 weights may have it; precision.dtype is f32");
    if (config->precision.dtype == SL_F32 && config->precision.master == SL_MASTER_NONE)
        return sl_train_config_fail(config, "precision.master",
                                    "f32 weights are their own master; precision.dtype is f32");
    return SL_OK;
}

sl_status sl_config_check(const sl_train_config *config)
{
    sl_status status = SL_OK;
    double offload = 0;
    SL_TRY(check_model(config));
    SL_TRY(check_data(config));
    SL_TRY(check_documents(config));
    SL_TRY(check_validation(config));
    SL_TRY(check_batch(config));
    SL_TRY(check_optimizer(config));
    SL_TRY(check_parallel(config));
    SL_TRY(check_shards(config));
    SL_TRY(sl_config_offload_bytes(config, &offload));
    SL_TRY(check_precision(config));
done:
    return status;
}
