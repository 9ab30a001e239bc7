/* sluice plan: generates a schedule and writes it as CSV. */
#include "command.h"
#include "options.h"
#include "schedule_source.h"

#include <stdio.h>
#include <string.h>

static const cli_usage plan_usage = {
    .command = "plan",
    .synopsis = "--schedule NAME --ranks P --microbatches M [OPTIONS]",
    .description =
        "Generates a pipeline schedule and writes it as CSV: a line a rank, a cell an action. The cell 3F0 is the "
        "forward of stage 3 on microbatch 0; I, W and B are the gradients of its inputs, of its weights, and both "
        "at once.\n"
        "With --lower the communication is added: SEND and RECV where a value crosses ranks, UNSHARD and RESHARD "
        "around the use of a stage's weights, and REDUCE_GRAD after its last gradient.",
    .examples = "sluice plan --schedule 1F1B --ranks 4 --microbatches 8\n"
                "sluice plan --schedule ZBVZeroBubble --ranks 4 --microbatches 8 --lower -o plan.csv",
};

static sl_status write_plan(const sl_generate_options *generate, bool lower, const char *path)
{
    sl_schedule *schedule = NULL, *lowered = NULL;
    sl_status status = SL_OK;
    SL_TRY(sl_schedule_generate(generate, &schedule));
    if (lower)
        SL_TRY(sl_schedule_lower(schedule, NULL, &lowered));
    const sl_schedule *result = lower ? lowered : schedule;
    if (path)
        SL_TRY(sl_schedule_save_csv(result, path));
    else
        SL_TRY(sl_schedule_write_csv(result, stdout));
done:
    sl_schedule_destroy(schedule);
    sl_schedule_destroy(lowered);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    sl_generate_options generate = { .name = NULL };
    bool lower = false;
    const char *path = NULL;
    const cli_option options[] = {
        GENERATE_OPTION_ROWS(generate, true),
        { .name = "lower", .flag = &lower, .help = "Add the communication." },
        { .name = "output",
          .letter = 'o',
          .value = "FILE",
          .text = &path,
          .help = "Write to FILE, not to standard output." },
        { .name = NULL },
    };
    int code;
    if (!options_parse(&plan_usage, options, &argc, argv, &code))
        return code;
    if (path && strcmp(path, "-") == 0)
        path = NULL;
    switch (write_plan(&generate, lower, path)) {
    case SL_OK:
        return EXIT_OK;
    case SL_ERR_ARGUMENT: /* the generator refuses what was asked for */
        return usage_error("plan", "%s", sl_error_message());
    default:
        return failure("plan");
    }
}
