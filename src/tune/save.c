/* A choice as keys of a configuration: for overrides, and as a file for run.plan. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "parallel.split=[h.1, h.2]" */
static sl_status split_line(sl_tune *tune, const tune_entry *entry, char **out)
{
    sl_status status = SL_OK;
    char *text = NULL;
    size_t size = 32, used;
    int cuts = entry->candidate.pp * entry->candidate.chunks - 1;
    for (int i = 0; i < cuts; i++)
        size += strlen(entry->split[i]) + 2;
    SL_TRY(SL_ARENA_ARRAY(tune->arena, text, size));
    used = (size_t)snprintf(text, size, "parallel.split=[");
    for (int i = 0; i < cuts; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", entry->split[i]);
    snprintf(text + used, size - used, "]");
    *out = text;
done:
    return status;
}

sl_status sl_tune_entry_overrides(sl_tune *tune, const tune_entry *entry, const char *schedule,
                                  const char *lines[SL_TUNE_LINES], int *count)
{
    sl_status status = SL_OK;
    const tune_candidate *own = &entry->candidate;
    char *made[SL_TUNE_LINES] = { NULL };
    int n = 0;
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.pp=%d", own->pp));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.dp=%d", own->dp));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "batch.microbatches=%" PRId64, own->microbatches));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.stages_per_rank=%d", own->chunks));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.schedule=%s", schedule));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.recompute=[%s]",
                           own->recompute > 0 ? tune->model.recompute[own->recompute] : ""));
    SL_TRY(split_line(tune, entry, &made[n++]));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.shard=%s", sl_tune_shard_name(own->shard)));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.shard_group=0"));
    SL_TRY(sl_arena_printf(tune->arena, &made[n++], "parallel.unsharded=%d", own->unsharded));
    memcpy(lines, made, sizeof made);
    *count = n;
done:
    return status;
}

sl_status sl_tune_overrides(sl_tune *tune, int index, const char *schedule, const char *lines[SL_TUNE_LINES],
                            int *count)
{
    const tune_entry *entry = &tune->entries[index];
    bool found = strcmp(entry->candidate.schedule, "found") == 0;
    return sl_tune_entry_overrides(tune, entry, found ? schedule : entry->candidate.schedule, lines, count);
}

static void write_plan(const sl_tune *tune, const tune_entry *entry, const char *schedule, FILE *file)
{
    const tune_candidate *own = &entry->candidate;
    char time[32], bytes[32];
    int64_t ranks = (int64_t)own->pp * own->dp;
    fprintf(file, "# sluice plan: %" PRId64 " rank%s, predicted %s a step, %s on the fullest rank\n", ranks,
            sl_plural(ranks), sl_seconds_text(own->seconds, time, sizeof time),
            sl_bytes_text(own->memory, bytes, sizeof bytes));
    fprintf(file, "batch:\n  microbatches: %" PRId64 "\nparallel:\n  pp: %d\n  dp: %d\n", own->microbatches, own->pp,
            own->dp);
    fprintf(file, "  shard: %s\n  shard_group: 0\n  unsharded: %d\n", sl_tune_shard_name(own->shard), own->unsharded);
    fprintf(file, "  schedule: %s\n  stages_per_rank: %d\n  split: [", schedule, own->chunks);
    for (int i = 0; i < own->pp * own->chunks - 1; i++)
        fprintf(file, "%s%s", i > 0 ? ", " : "", entry->split[i]);
    fprintf(file, "]\n  recompute: [");
    if (own->recompute > 0)
        fprintf(file, "\"%s\"", tune->model.recompute[own->recompute]);
    fprintf(file, "]\n");
}

sl_status sl_tune_save(const sl_tune *tune, int index, const char *path)
{
    sl_status status = SL_OK;
    const tune_entry *entry = &tune->entries[index];
    const char *schedule = entry->candidate.schedule, *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    sl_file *file = NULL;
    char *beside = NULL;
    if (strcmp(schedule, "found") == 0) {
        int stem = (int)(dot && (!slash || dot > slash + 1) && dot > path ? dot - path : (ptrdiff_t)strlen(path));
        size_t size = (size_t)stem + sizeof ".csv";
        SL_TRY(SL_NEW_ARRAY(beside, size));
        snprintf(beside, size, "%.*s.csv", stem, path);
        if (strcmp(beside, path) == 0)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%s: that is the name of the schedule beside the plan; use another ending",
                           path));
        SL_TRY(sl_schedule_save_csv(entry->schedule, beside));
        schedule = strrchr(beside, '/') ? strrchr(beside, '/') + 1 : beside;
    }
    SL_TRY(sl_file_create(path, &file));
    write_plan(tune, entry, schedule, sl_file_stream(file));
    SL_TRY(sl_file_commit(file));
done:
    sl_file_destroy(file);
    sl_free(beside);
    return status;
}
