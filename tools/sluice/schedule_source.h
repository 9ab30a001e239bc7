/* What plan, check and show share: where a schedule comes from, its costs, how a violation is reported. */
#ifndef SLUICE_SCHEDULE_SOURCE_H
#define SLUICE_SCHEDULE_SOURCE_H

#include "options.h"

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

#define COSTS_OPTION_ROW(costs_)                                                                                       \
    {                                                                                                                  \
        .name = "costs", .value = "LIST", .read = read_costs, .target = &(costs_),                                     \
        .help =                                                                                                        \
            "What the actions cost, for example F=1,I=1,W=1,B=2,comm=0 (these are the defaults; comm is the "          \
            "latency of a message). Further keys: size and bandwidth of messages; unshard, reshard, reduce, gather; "  \
            "overlap, the share of the shorter part that OVERLAP_F_B hides; activation, the memory of a "              \
            "microbatch in a stage, and release, the share of it that is free after I."                                \
    }

const char *generator_words(void); /* "GPipe|1F1B|..." */
const char *generator_help(void);
sl_status read_costs(const char *what, const char *text, void *costs); /* for cli_option.read */

/* "-" reads standard input. Where a cell is wrong *violation says which, else its rank is -1. */
sl_status load_schedule(const char *path, sl_violation *violation, sl_schedule **out);

/* The violation in one line on stderr, the cells around it on stdout; returns EXIT_FAILED. */
int report_violation(const char *command_name, const char *name, const sl_schedule *schedule,
                     const sl_violation *violation);

/* How stdout shows text: the width of the terminal, and colours where they are welcome. */
sl_view_options terminal_view_options(void);

#endif
