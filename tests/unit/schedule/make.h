/* Schedules for tests: made from text or by a generator, compared with text. A failure ends the test. */
#ifndef SCHEDULE_MAKE_H
#define SCHEDULE_MAKE_H

#include <sluice/schedule.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static inline sl_schedule *parse(const char *csv)
{
    sl_schedule *schedule = NULL;
    if (sl_schedule_parse_csv(csv, strlen(csv), "x.csv", &schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    return schedule;
}

static inline sl_schedule *generate(const char *name, int ranks, int microbatches, int stages_per_rank)
{
    sl_schedule *schedule = NULL;
    sl_generate_options options = {
        .name = name, .ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank
    };
    if (sl_schedule_generate(&options, &schedule) != SL_OK)
        fail_msg("%s %d %d %d: %s", name, ranks, microbatches, stages_per_rank, sl_error_message());
    return schedule;
}

/* Takes the schedule over. */
static inline void assert_csv(sl_schedule *schedule, const char *expected)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    assert_int_equal(sl_schedule_write_csv(schedule, file), SL_OK);
    fclose(file);
    assert_string_equal(text, expected);
    free(text);
    sl_schedule_destroy(schedule);
}

#endif
