/* What plan, check and show share: where a schedule comes from, its costs, how a violation is reported. */
#ifndef SLUICE_SCHEDULE_SOURCE_H
#define SLUICE_SCHEDULE_SOURCE_H

#include "options.h"

#include <sluice/plan.h>
#include <sluice/schedule.h>

/* Rows of an option table that fill an sl_generate_options. */
#define GENERATE_OPTION_ROWS(target, is_required)                                                                      \
    { .name = "schedule",                                                                                              \
      .value = "NAME",                                                                                                 \
      .words = generator_words(),                                                                                      \
      .text = &(target).name,                                                                                          \
      .required = (is_required),                                                                                       \
      .help = generator_help() },                                                                                      \
        GENERATE_SIZE_ROWS(target, is_required)

/* Those but the name. */
#define GENERATE_SIZE_ROWS(target, is_required)                                                                        \
    { .name = "ranks",                                                                                                 \
      .value = "P",                                                                                                    \
      .integer = &(target).ranks,                                                                                      \
      .min = 1,                                                                                                        \
      .max = SL_MAX_RANKS,                                                                                             \
      .required = (is_required),                                                                                       \
      .help = "Number of ranks that the stages lie on." },                                                             \
        { .name = "microbatches",                                                                                      \
          .value = "M",                                                                                                \
          .integer = &(target).microbatches,                                                                           \
          .min = 1,                                                                                                    \
          .max = SL_MAX_MICROBATCHES,                                                                                  \
          .required = (is_required),                                                                                   \
          .help = "Number of microbatches of a step." },                                                               \
        { .name = "stages-per-rank",                                                                                   \
          .value = "V",                                                                                                \
          .integer = &(target).stages_per_rank,                                                                        \
          .min = 1,                                                                                                    \
          .max = SL_MAX_STAGES,                                                                                        \
          .help = "Stages on each rank; by default as many as the schedule is made for (1 or 2)." },                   \
    {                                                                                                                  \
        .name = "forward-only", .flag = &(target).forward_only, .help = "Forward actions alone, as for evaluation."    \
    }

/* What --costs and --costs-file say. */
typedef struct cost_args {
    sl_costs costs;
    const char *file; /* of every stage's; NULL: all have those of costs */
} cost_args;

#define COSTS_OPTION_ROWS(given)                                                                                       \
    { .name = "costs-file",                                                                                            \
      .value = "FILE",                                                                                                 \
      .text = &(given).file,                                                                                           \
      .help = "Costs of every stage as JSON: {\"stages\":[{\"F\":10,\"I\":12,\"W\":8}, ...], \"comm\":1}. Further "    \
              "keys of a "                                                                                             \
              "stage: B, unshard, reshard, reduce, gather, activation, release; B is I and W if it is not given. "     \
              "--costs says the rest." },                                                                              \
    {                                                                                                                  \
        .name = "costs", .value = "LIST", .read = read_costs, .target = &(given).costs,                                \
        .help =                                                                                                        \
            "What the actions cost, for example F=1,I=1,W=1,B=2,comm=0 (these are the defaults; comm is the "          \
            "latency of a message). Further keys: size and bandwidth of messages; unshard, reshard, reduce, gather; "  \
            "overlap, the share of the shorter part that OVERLAP_F_B hides; activation, the memory of a "              \
            "microbatch in a stage, and release, the share of it that is free after I."                                \
    }

const char *generator_words(void); /* "GPipe|1F1B|..." */
const char *generator_help(void);
sl_status read_costs(const char *what, const char *text, void *costs); /* for cli_option.read */
/* With those of the file, which must be for the stages of the schedule. The caller frees with sl_plan_free_costs. */
sl_status load_costs(const cost_args *args, const sl_schedule *schedule, sl_costs *out);

/* "-" reads standard input. If a cell is wrong, *violation says which, else its rank is -1. */
sl_status load_schedule(const char *path, sl_violation *violation, sl_schedule **out);

/* The violation in one line on stderr, the cells around it on stdout; returns EXIT_FAILED. */
int report_violation(const char *command_name, const char *name, const sl_schedule *schedule,
                     const sl_violation *violation);

/* How stdout shows text: the width of the terminal, and colors if they are welcome. */
sl_view_options terminal_view_options(void);

#endif
