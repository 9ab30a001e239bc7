/* A mesh for fewer ranks than the configuration asks for. */
#include <sluice/train.h>

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Whether a plan can be made for the mesh. lines has room for two more overrides. */
static bool can_plan(const char *path, const char **lines, int count, int64_t pp, int64_t dp)
{
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    char pp_line[48], dp_line[48];
    snprintf(pp_line, sizeof pp_line, "parallel.pp=%" PRId64, pp);
    snprintf(dp_line, sizeof dp_line, "parallel.dp=%" PRId64, dp);
    lines[count] = pp_line;
    lines[count + 1] = dp_line;
    if (sl_train_config_load(path, lines, count + 2, &config) != SL_OK)
        return false;
    bool possible = sl_train_plan_create(config, NULL, &plan) == SL_OK;
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    return possible;
}

sl_status sl_train_fit_mesh(const char *path, const char *const *overrides, int override_count, int most, int *pp,
                            int *dp)
{
    sl_status status = SL_OK;
    sl_train_config *config = NULL;
    const char **lines = NULL;
    SL_TRY(sl_train_config_load(path, overrides, override_count, &config));
    SL_TRY(SL_NEW_ARRAY(lines, override_count + 2));
    if (override_count > 0)
        memcpy(lines, overrides, (size_t)override_count * sizeof *lines);
    for (int64_t replicas = config->parallel.dp; replicas > 0; replicas--) {
        for (int64_t length = most / replicas; length > 0; length--) {
            if (!can_plan(path, lines, override_count, length, replicas))
                continue;
            *pp = (int)length;
            *dp = (int)replicas;
            goto done;
        }
    }
    status = sl_fail(SL_ERR_ARGUMENT, "the run has no plan for %d rank%s or fewer", most, most == 1 ? "" : "s");
done:
    sl_free(lines);
    sl_train_config_destroy(config);
    return status;
}
