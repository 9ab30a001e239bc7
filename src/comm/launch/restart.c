/* Starting again: a run that lost a rank goes on with new ones, until it ends by itself or the restarts are used up. */
#include "comm/launch/launch.h"

#include <stdio.h>
#include <string.h>

enum { STARTS_BEFORE_FEWER = 2 }; /* in a row, without a completed step */

/* The first line of the report: the cause. */
static void take_reason(const sl_launch_result *result, char *text, size_t size)
{
    snprintf(text, size, "%.*s", (int)strcspn(result->report, "\n"), result->report);
}

/* Fewer ranks than now, if that is allowed and possible. */
static void choose_fewer(sl_launch_options *options)
{
    int most = options->ranks - 1;
    char *const *argv = options->argv;
    if (options->min_ranks < 1 || most < options->min_ranks)
        return;
    int ranks = options->choose_ranks ? options->choose_ranks(options->user, most, &argv) : most;
    if (ranks < options->min_ranks || ranks > most)
        return;
    options->ranks = ranks;
    options->argv = argv;
}

/* Whether the run goes on; then with options->ranks. */
static bool goes_on(const sl_launch_result *result, bool progressed, int *fruitless, sl_launch_options *options)
{
    if (result->end != SL_LAUNCH_LOST || result->restarts == options->restarts)
        return false;
    *fruitless = progressed ? 0 : *fruitless + 1;
    if (*fruitless >= STARTS_BEFORE_FEWER) {
        choose_fewer(options);
        *fruitless = 0;
    }
    return true;
}

sl_status sl_launch_attempts(const sl_launcher *launcher, sl_launch_result *out)
{
    sl_status status = SL_OK;
    sl_vault *vault = NULL;
    sl_launch_options options = *launcher->options;
    char reason[sizeof out->report] = "";
    int fruitless = 0;
    if (options.restarts > 0)
        SL_TRY(sl_vault_create(&vault));
    for (int restart = 0;; restart++) {
        sl_launcher attempt = *launcher;
        attempt.options = &options;
        attempt.vault = vault;
        attempt.restart = restart;
        attempt.reason = reason;
        attempt.starts_again = restart < options.restarts;
        SL_TRY(sl_launch_run(&attempt, out));
        if (!vault || !goes_on(out, sl_vault_settle(vault), &fruitless, &options))
            break;
        sl_launch_end_descendants();
        take_reason(out, reason, sizeof reason);
        sl_log(SL_LOG_WARN, "%s; starting again with %d rank%s (restart %d of %d)", reason, options.ranks,
               options.ranks == 1 ? "" : "s", restart + 1, options.restarts);
    }
done:
    sl_vault_destroy(vault);
    return status;
}
