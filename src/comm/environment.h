/* How this process was started: by `sluice launch`, mpirun, srun, torchrun, or on its own. */
#ifndef SL_COMM_ENVIRONMENT_H
#define SL_COMM_ENVIRONMENT_H

#include <sluice/base.h>

typedef enum sl_started_by {
    SL_STARTED_ALONE,
    SL_STARTED_BY_SLUICE,  /* SLUICE_RANK, SLUICE_SIZE, SLUICE_RUN_FDS, SLUICE_VAULT_FD, SLUICE_RESTART */
    SL_STARTED_BY_OPENMPI, /* OMPI_COMM_WORLD_* */
    SL_STARTED_BY_MPICH,   /* PMI_RANK, PMI_SIZE */
    SL_STARTED_BY_SLURM,   /* SLURM_PROCID, SLURM_STEP_NUM_TASKS */
    SL_STARTED_BY_TORCHRUN /* RANK, WORLD_SIZE */
} sl_started_by;

typedef struct sl_environment {
    sl_started_by started_by;
    int rank, size;
    int local_size;             /* ranks of the run on this machine */
    int memory_fd, launcher_fd; /* `sluice launch` only */
    int vault_fd;               /* of a launcher that starts again what it lost; -1: there is none */
    int restart;                /* how often the run was started again before; 0: the first time, or not known */
    char key[256];              /* srun and torchrun: the same for all ranks of the run and for no other run */
} sl_environment;

/* Refuses variables that contradict each other or are no numbers. */
sl_status sl_environment_read(sl_environment *out);
/* Refuses what cannot talk over shared memory. */
sl_status sl_environment_check_local(const sl_environment *environment);
/* Names the transport that fits; *out is a constant. */
sl_status sl_environment_transport(const char **out);

#endif
