/* From trace.json to trace.svg and the measured bubble. */
#include "train/trace.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/units.h"

#include <inttypes.h>

/* Time of one step over all ranks. */
typedef struct step_time {
    double start, end, busy;
    bool any;
} step_time;

/* Idle share inside the steps; a step's microbatches follow those of the step before it. */
static sl_status measure_bubble(const sl_timeline *timeline, int64_t microbatches, double *out)
{
    sl_status status = SL_OK;
    const sl_schedule *schedule = sl_timeline_schedule(timeline);
    int64_t steps = (sl_schedule_microbatches(schedule) + microbatches - 1) / microbatches;
    int ranks = sl_schedule_ranks(schedule);
    step_time *times = NULL;
    double busy = 0, whole = 0;
    SL_TRY(SL_NEW_ARRAY(times, steps));
    for (int r = 0; r < ranks; r++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(schedule, r, &count);
        const sl_span *spans = sl_timeline_spans(timeline, r);
        for (int64_t i = 0; i < count; i++) {
            step_time *time = &times[actions[i].microbatch / microbatches];
            time->start = !time->any || spans[i].start < time->start ? spans[i].start : time->start;
            time->end = !time->any || spans[i].end > time->end ? spans[i].end : time->end;
            time->busy += spans[i].end - spans[i].start;
            time->any = true;
        }
    }
    for (int64_t k = 0; k < steps; k++) {
        busy += times[k].busy;
        whole += (times[k].end - times[k].start) * ranks;
    }
    *out = whole > 0 ? 1 - busy / whole : 0;
done:
    sl_free(times);
    return status;
}

sl_status sl_trace_draw(const sl_train_config *config, const char *path, double *bubble)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    sl_timeline *timeline = NULL;
    char *picture = NULL, title[256];
    SL_TRY(sl_timeline_load_trace(path, &schedule, &timeline));
    SL_TRY(measure_bubble(timeline, config->batch.microbatches, bubble));
    SL_TRY(sl_path_join(config->run.out, "trace.svg", &picture));
    snprintf(title, sizeof title, "%.100s, %" PRId64 " rank%s: measured, in ms; bubble inside the steps %.1f %%",
             config->parallel.schedule, config->parallel.pp, sl_plural(config->parallel.pp), 100 * *bubble);
    const sl_view_options options = { .title = title, .step_microbatches = (int)config->batch.microbatches };
    SL_TRY(sl_timeline_save(timeline, SL_VIEW_SVG, &options, picture));
done:
    sl_free(picture);
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
    return status;
}
