/* A row of the option table for every key of a run's configuration: --SECTION.KEY=VALUE. */
#ifndef SLUICE_CONFIG_OPTIONS_H
#define SLUICE_CONFIG_OPTIONS_H

#include "options.h"

enum { CONFIG_OPTION_LIMIT = 256 };

/* Static in its command: the rows point into it. */
typedef struct config_options {
    char *overrides[CONFIG_OPTION_LIMIT]; /* "section.key=value" in the order of the command line */
    int count;
    char names[CONFIG_OPTION_LIMIT][48], helps[CONFIG_OPTION_LIMIT][256];
} config_options;

/* Fills options[used..] up to its last row, which ends the table; it has room for CONFIG_OPTION_LIMIT + 1 rows. */
void config_options_add(config_options *self, cli_option *options, int used);
/* Takes one more override; `what` is "--section.key". For cli_option.read, too. */
sl_status config_options_take(const char *what, const char *text, void *self);
void config_options_clear(config_options *self);

#endif
