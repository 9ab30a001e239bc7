/* Whether a plan fits into the memory there is, and what would make it fit. */
#include "train/config_keys.h"
#include "train/plan.h"

#include "base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Of the machine, or of the container that this runs in. */
double sl_plan_machine_memory(void)
{
    static const char *const limits[] = { "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes" };
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        FILE *file = fopen(limits[i], "re");
        double limit = 0;
        if (file && fscanf(file, "%lf", &limit) == 1 && limit > 0 && limit < bytes) /* "max": none */
            bytes = limit;
        if (file)
            fclose(file);
    }
    return bytes;
}

/* What there is for a rank and what the fullest needs; false if it fits. */
static bool find_shortage(const sl_train_plan *plan, double *needed, double *limit, int *rank)
{
    double sum = 0, most = 0;
    for (int r = 0; r < sl_train_plan_ranks(plan); r++) {
        sl_plan_memory memory = sl_train_plan_memory(plan, r);
        double total = (double)(memory.device > 0 ? memory.device : memory.total);
        sum += total;
        if (plan->config->checkpoint.memory > 0) /* the launcher keeps two snapshots */
            sum += 2 * (double)memory.checkpoint;
        if (total > most)
            *rank = r;
        most = total > most ? total : most;
    }
    *limit = plan->config->parallel.memory_gb * 1e9;
    if (*limit == 0)
        *limit = (double)plan->device_total;
    *needed = most;
    if (*limit > 0)
        return most > *limit;
    *needed = sum;
    *limit = sl_plan_machine_memory();
    *rank = -1;
    return sum > *limit;
}

/* The same run with one key changed; says whether it would fit. */
static bool would_fit(const sl_train_config *config, const char *device, double *needed)
{
    sl_train_plan *plan = NULL;
    double limit = 0;
    int rank = 0;
    bool fits = sl_train_plan_create(config, device, &plan) == SL_OK && !find_shortage(plan, needed, &limit, &rank);
    sl_train_plan_destroy(plan);
    return fits;
}

static void suggest(char *text, size_t size, const char *what, double needed)
{
    char bytes[32];
    size_t used = strlen(text);
    if (used < size)
        snprintf(text + used, size - used, "%s%s (%s)", used ? ", " : "", what,
                 sl_bytes_text(needed, bytes, sizeof bytes));
}

/* Changes that make it fit, each tried. */
static void find_help(const sl_train_plan *plan, char *text, size_t size)
{
    const char *const layers[] = { "h.*", "model.layers.*", "layers.*" };
    static const char *const modes[] = { [SL_SHARD_OPTIMIZER] = "optimizer", [SL_SHARD_FULL] = "full" };
    const struct sl_config_own given = *sl_config_own(plan->config); /* with all that a plan looks up in it */
    struct sl_config_own tried = given;
    sl_train_config *config = &tried.values;
    char what[96];
    double needed = 0;
    for (size_t i = 0; config->parallel.recompute.count == 0 && i < sizeof layers / sizeof *layers; i++) {
        config->parallel.recompute = (sl_texts){ .items = (const char **)&layers[i], .count = 1 };
        snprintf(what, sizeof what, "parallel.recompute=%s", layers[i]);
        if (would_fit(config, plan->device, &needed)) {
            suggest(text, size, what, needed);
            break;
        }
        config->parallel.recompute.count = 0;
    }
    tried = given;
    while (config->parallel.dp > 1 && ++config->parallel.shard <= SL_SHARD_FULL) {
        snprintf(what, sizeof what, "parallel.shard=%s", modes[config->parallel.shard]);
        if (!would_fit(config, plan->device, &needed))
            continue;
        suggest(text, size, what, needed);
        break;
    }
    tried = given;
    for (config->batch.microbatches *= 2; config->batch.microbatches * config->parallel.dp <= config->batch.size;
         config->batch.microbatches *= 2) {
        snprintf(what, sizeof what, "batch.microbatches=%" PRId64, config->batch.microbatches);
        if (!would_fit(config, plan->device, &needed))
            continue;
        suggest(text, size, what, needed);
        break;
    }
    tried = given;
    for (config->parallel.pp *= 2;
         config->parallel.memory_gb > 0 && config->parallel.pp <= 8 * plan->config->parallel.pp;
         config->parallel.pp *= 2) {
        snprintf(what, sizeof what, "parallel.pp=%" PRId64, config->parallel.pp);
        if (!would_fit(config, plan->device, &needed))
            continue;
        suggest(text, size, what, needed);
        break;
    }
}

sl_status sl_train_plan_check_memory(const sl_train_plan *plan)
{
    double needed = 0, limit = 0;
    int rank = 0;
    char who[32] = "all ranks together", help[512] = "", bytes[3][32];
    if (!find_shortage(plan, &needed, &limit, &rank))
        return SL_OK;
    if (rank >= 0)
        snprintf(who, sizeof who, "rank %d", rank);
    find_help(plan, help, sizeof help);
    return sl_train_config_fail(plan->config, "parallel.memory_gb", "%s need%s %s, %s %s: %s too much; %s%s", who,
                                rank >= 0 ? "s" : "", sl_bytes_text(needed, bytes[0], sizeof bytes[0]),
                                rank < 0                                ? "this machine has"
                                : plan->config->parallel.memory_gb == 0 ? "the device has"
                                                                        : "the limit is",
                                sl_bytes_text(limit, bytes[1], sizeof bytes[1]),
                                sl_bytes_text(needed - limit, bytes[2], sizeof bytes[2]),
                                *help ? "this would fit: " : "a smaller batch.seq or model would help", help);
}

bool sl_train_plan_fits(const sl_train_plan *plan)
{
    double needed = 0, limit = 0;
    int rank = 0;
    return !find_shortage(plan, &needed, &limit, &rank);
}
