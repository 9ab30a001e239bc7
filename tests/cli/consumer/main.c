/* A program of somebody else: uses the installed library through <sluice/sluice.h> alone, from C or C++. */
#include <sluice/sluice.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    sl_generate_options options;
    sl_schedule *schedule = NULL;
    sl_violation violation;
    memset(&options, 0, sizeof options);
    options.name = "1F1B";
    options.ranks = 2;
    options.microbatches = 4;
    if (sl_schedule_generate(&options, &schedule) != SL_OK || sl_schedule_check(schedule, NULL, &violation) != SL_OK) {
        fprintf(stderr, "%s\n", sl_error_message());
        return 1;
    }
    if (sl_schedule_write_csv(schedule, stdout) != SL_OK)
        return 1;
    sl_schedule_destroy(schedule);
    schedule = NULL;
    options.name = "no such schedule";
    if (sl_schedule_generate(&options, &schedule) == SL_OK || !strstr(sl_error_message(), options.name))
        return 1;
    printf("sluice %s\n", sl_version());
    return 0;
}
