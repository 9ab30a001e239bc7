/* sluice plan -c: the whole configuration of a run. */
#ifndef SLUICE_PLAN_WHOLE_H
#define SLUICE_PLAN_WHOLE_H

#include "config_options.h"

#include <sluice/tune.h>

typedef struct plan_whole_args {
    const char *config;  /* NULL: a schedule alone is planned */
    const char *cluster; /* file, or NULL */
    bool measure;
    int top, ranks;
    double budget;
    int format;
    const char *output; /* NULL: no file */
    const config_options *keys;
} plan_whole_args;

sl_status plan_whole(const plan_whole_args *args);

#endif
