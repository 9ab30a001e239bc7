/* How this process was started: by `sluice launch`, mpirun, srun, torchrun, or on its own. */
#ifndef SL_COMM_ENVIRONMENT_H
#define SL_COMM_ENVIRONMENT_H

#include <sluice/base.h>

/* Names the transport that fits; *out is a constant. */
sl_status sl_environment_transport(const char **out);

#endif
