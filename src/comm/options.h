/* The settings of a group with the environment's and the defaults filled in. */
#ifndef SL_COMM_OPTIONS_H
#define SL_COMM_OPTIONS_H

#include <sluice/comm.h>

/* given may be NULL. In *out hang_timeout is not 0, checksum counts, and transport is as given or from
 * SLUICE_TRANSPORT, NULL if neither says. */
sl_status sl_options_resolve(const sl_group_options *given, sl_group_options *out);
/* The hang timeout that the caller or SLUICE_HANG_TIMEOUT has set; 0: the default is left to us. */
sl_status sl_options_given_timeout(const sl_group_options *given, double *out);

#endif
