/* Any bytes as a schedule: they parse or are refused; what parses prints and reads back equal; what the checker accepts
 * can be lowered, and the result is valid again. */
#include <sluice/schedule.h>

#include <stdlib.h>

/* A finding: libFuzzer keeps the input. */
static void require(bool holds)
{
    if (!holds)
        abort();
}

static void reads_back_equal(const sl_schedule *schedule)
{
    char *text = NULL;
    size_t length = 0;
    sl_schedule *again = NULL;
    FILE *file = open_memstream(&text, &length);
    require(file && sl_schedule_write_csv(schedule, file) == SL_OK);
    fclose(file);
    require(sl_schedule_parse_csv(text, length, "again", &again) == SL_OK);
    require(sl_schedule_equal(schedule, again));
    sl_schedule_destroy(again);
    free(text);
}

static void lowers(const sl_schedule *schedule)
{
    sl_schedule *lowered = NULL;
    sl_check_options rendezvous = { .limit_links = true };
    sl_lower_options options = { .no_unshard = sl_schedule_has_kind(schedule, SL_KIND_UNSHARD),
                                 .no_reduce_grad = sl_schedule_has_kind(schedule, SL_KIND_REDUCE_GRAD) };
    require(sl_schedule_lower(schedule, &options, &lowered) == SL_OK);
    require(sl_schedule_check(lowered, &rendezvous, NULL) == SL_OK);
    reads_back_equal(lowered);
    sl_schedule_destroy(lowered);
}

static void runs(const sl_schedule *schedule)
{
    sl_timeline *timeline = NULL;
    require(sl_schedule_simulate(schedule, NULL, NULL, 0, &timeline) == SL_OK);
    require(sl_timeline_makespan(timeline) > 0);
    sl_timeline_destroy(timeline);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_schedule *schedule = NULL;
    if (sl_schedule_parse_csv((const char *)data, size, "fuzz", &schedule) != SL_OK)
        return 0;
    reads_back_equal(schedule);
    sl_violation violation;
    sl_status status = sl_schedule_check(schedule, NULL, &violation);
    require(status == SL_OK || status == SL_ERR_SCHEDULE);
    if (status == SL_OK) {
        runs(schedule);
        if (!sl_schedule_has_messages(schedule))
            lowers(schedule);
    }
    sl_schedule_destroy(schedule);
    return 0;
}
