/* Which parameters are not trained: those that fit a pattern of model.freeze. */
#include "train/plan.h"

#include "nn/family.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "h.0.*" fits "transformer.h.0.ln_1.weight": the family's root may be left out. */
static bool fits_name(const sl_model *model, const char *pattern, size_t length, const char *name)
{
    char text[512];
    const char *root = model->family->root ? model->family->root : "";
    if (length >= sizeof text)
        return false;
    memcpy(text, pattern, length);
    text[length] = '\0';
    if (fnmatch(text, name, 0) == 0)
        return true;
    return *root && strncmp(name, root, strlen(root)) == 0 && fnmatch(text, name + strlen(root), 0) == 0;
}

/* A tied head is the embedding: a pattern that fits one of them means both. */
bool sl_plan_fits_param(const sl_train_plan *plan, const char *pattern, size_t length, const char *name)
{
    if (fits_name(&plan->model, pattern, length, name))
        return true;
    return plan->tied && strcmp(name, plan->embedding) == 0 && fits_name(&plan->model, pattern, length, plan->head);
}

static sl_status apply_pattern(sl_train_plan *plan, const char *pattern)
{
    int found = 0;
    for (int i = 0; i < sl_param_list_count(plan->params); i++) {
        if (sl_plan_fits_param(plan, pattern, strlen(pattern), sl_param_list_at(plan->params, i)->name)) {
            plan->frozen[i] = true;
            found++;
        }
    }
    if (found > 0)
        return SL_OK;
    return sl_train_config_fail(plan->config, "model.freeze",
                                "no parameter of the model fits '%.200s'; the first is %s, the last %s", pattern,
                                sl_param_list_at(plan->params, 0)->name,
                                sl_param_list_at(plan->params, sl_param_list_count(plan->params) - 1)->name);
}

sl_status sl_plan_choose_frozen(sl_train_plan *plan)
{
    sl_status status = SL_OK;
    const sl_texts *patterns = &plan->config->model.freeze;
    int count = sl_param_list_count(plan->params), trained = 0;
    SL_TRY(SL_ARENA_ARRAY(plan->arena, plan->frozen, count));
    SL_TRY(SL_ARENA_ARRAY(plan->arena, plan->frozen_names.items, count + 1));
    for (int64_t i = 0; i < patterns->count; i++)
        SL_TRY(apply_pattern(plan, patterns->items[i]));
    for (int i = 0; i < count; i++) {
        const char *name = sl_param_list_at(plan->params, i)->name;
        trained += !plan->frozen[i];
        if (!plan->frozen[i])
            continue;
        plan->frozen_names.items[plan->frozen_names.count++] = name;
        if (plan->tied && strcmp(name, plan->embedding) == 0)
            plan->frozen_names.items[plan->frozen_names.count++] = plan->head;
    }
    if (trained == 0)
        SL_TRY(sl_train_config_fail(plan->config, "model.freeze", "no parameter is left to be trained"));
done:
    return status;
}
