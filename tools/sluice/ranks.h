/* Commands that run as several ranks: the same command line, started once a rank. */
#ifndef SLUICE_RANKS_H
#define SLUICE_RANKS_H

#include <sluice/comm.h>

/* Whether this process was started as a rank (by `sluice launch`, mpirun, srun, torchrun). */
bool ranks_started(void);

/* Starts the ranks of `sluice ARGV...` on this machine and waits for them; returns the exit code. */
int ranks_start(const char *command_name, int count, int argc, char **argv);

#endif
