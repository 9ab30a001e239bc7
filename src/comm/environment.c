/* Reads how this process was started from the variables that launchers set. */
#include "comm/environment.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *value_of(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

static bool is_set(const char *name)
{
    return *value_of(name) != 0;
}

static sl_status read_number(const char *name, int64_t min, int64_t max, int *out)
{
    int64_t value = 0;
    sl_status status = sl_parse_int(name, value_of(name), min, max, &value);
    if (status == SL_OK)
        *out = (int)value;
    return status;
}

/* As read_number; *out stays if the variable is not set. */
static sl_status read_optional(const char *name, int min, int *out)
{
    return is_set(name) ? read_number(name, min, INT_MAX, out) : SL_OK;
}

static sl_status read_place(const char *rank_name, const char *size_name, sl_environment *out)
{
    sl_status status = SL_OK;
    SL_TRY(read_number(size_name, 1, INT_MAX, &out->size));
    SL_TRY(read_number(rank_name, 0, INT_MAX, &out->rank));
    if (out->rank >= out->size)
        status = sl_fail(SL_ERR_ARGUMENT, "%s is %d, but %s is %d", rank_name, out->rank, size_name, out->size);
done:
    return status;
}

static sl_status read_sluice(sl_environment *out)
{
    int used = 0;
    if (sscanf(value_of("SLUICE_RUN_FDS"), "%d,%d%n", &out->memory_fd, &out->launcher_fd, &used) != 2 ||
        value_of("SLUICE_RUN_FDS")[used] || out->memory_fd < 0 || out->launcher_fd < 0)
        return sl_fail(SL_ERR_ARGUMENT, "SLUICE_RUN_FDS is '%s' and not two descriptors", value_of("SLUICE_RUN_FDS"));
    sl_status status = SL_OK;
    SL_TRY(read_place("SLUICE_RANK", "SLUICE_SIZE", out));
    SL_TRY(read_optional("SLUICE_VAULT_FD", 0, &out->vault_fd));
    SL_TRY(read_optional("SLUICE_RESTART", 0, &out->restart));
    out->local_size = out->size;
done:
    return status;
}

static sl_status read_openmpi(sl_environment *out)
{
    sl_status status = read_place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", out);
    out->local_size = out->size;
    return status == SL_OK ? read_optional("OMPI_COMM_WORLD_LOCAL_SIZE", 1, &out->local_size) : status;
}

static sl_status read_mpich(sl_environment *out)
{
    sl_status status = read_place("PMI_RANK", "PMI_SIZE", out);
    out->local_size = out->size;
    return status == SL_OK ? read_optional("MPI_LOCALNRANKS", 1, &out->local_size) : status;
}

/* srun starts steps; a batch script that runs the program itself is one process and not a task of a step. */
static sl_status read_slurm(sl_environment *out)
{
    int nodes = 1;
    sl_status status = SL_OK;
    SL_TRY(read_place("SLURM_PROCID", is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", out));
    SL_TRY(read_optional(is_set("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES", 1, &nodes));
    SL_TRY(read_optional("SLURM_RESTART_COUNT", 0, &out->restart));
    out->local_size = nodes == 1 ? out->size : (out->size + nodes - 1) / nodes;
    snprintf(out->key, sizeof out->key, "slurm %.64s %.64s", value_of("SLURM_JOB_ID"), value_of("SLURM_STEP_ID"));
done:
    return status;
}

static sl_status read_torchrun(sl_environment *out)
{
    sl_status status = SL_OK;
    SL_TRY(read_place("RANK", "WORLD_SIZE", out));
    out->local_size = out->size;
    SL_TRY(read_optional("LOCAL_WORLD_SIZE", 1, &out->local_size));
    SL_TRY(read_optional("TORCHELASTIC_RESTART_COUNT", 0, &out->restart));
    snprintf(out->key, sizeof out->key, "torchrun %.64s %.16s %.64s %.16s", value_of("MASTER_ADDR"),
             value_of("MASTER_PORT"), value_of("TORCHELASTIC_RUN_ID"), value_of("TORCHELASTIC_RESTART_COUNT"));
done:
    return status;
}

/* srun may speak MPICH's protocol to every program, whether it uses MPI or not. */
static bool is_sruns_pmi(void)
{
    return is_set("SLURM_STEP_ID") && strcmp(value_of("PMI_RANK"), value_of("SLURM_PROCID")) == 0 &&
           strcmp(value_of("PMI_SIZE"), value_of("SLURM_STEP_NUM_TASKS")) == 0;
}

sl_status sl_environment_read(sl_environment *out)
{
    static const struct {
        sl_started_by started_by;
        const char *variable, *also; /* their presence decides */
        sl_status (*read)(sl_environment *out);
    } starters[] = {
        { SL_STARTED_BY_SLUICE, "SLUICE_RUN_FDS", "SLUICE_RANK", read_sluice },
        { SL_STARTED_BY_OPENMPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", read_openmpi },
        { SL_STARTED_BY_MPICH, "PMI_SIZE", "PMI_RANK", read_mpich },
        { SL_STARTED_BY_TORCHRUN, "WORLD_SIZE", "RANK", read_torchrun },
        { SL_STARTED_BY_SLURM, "SLURM_STEP_ID", "SLURM_PROCID", read_slurm },
    };
    sl_environment found = { .started_by = SL_STARTED_ALONE, .size = 1, .local_size = 1, .vault_fd = -1 };
    for (size_t i = 0; i < sizeof starters / sizeof *starters; i++) {
        if (!is_set(starters[i].variable) || !is_set(starters[i].also) ||
            (starters[i].started_by == SL_STARTED_BY_MPICH && is_sruns_pmi()))
            continue;
        found.started_by = starters[i].started_by;
        sl_status status = starters[i].read(&found);
        if (status != SL_OK)
            return sl_fail_context(status, "the variables that this process was started with");
        break;
    }
    *out = found;
    return SL_OK;
}

sl_status sl_environment_check_local(const sl_environment *environment)
{
    switch (environment->started_by) {
    case SL_STARTED_BY_SLUICE:
        return SL_OK;
    case SL_STARTED_BY_SLURM:
    case SL_STARTED_BY_TORCHRUN:
        if (environment->local_size == environment->size)
            return SL_OK;
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "%d of %d ranks are on this machine: transport local is for one machine, mpi for several "
                       "(start the program with mpirun or with srun --mpi)",
                       environment->local_size, environment->size);
    default:
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "transport local: this process was started neither by sluice launch nor by torchrun or srun");
    }
}

sl_status sl_environment_transport(const char **out)
{
    sl_environment environment;
    sl_status status = sl_environment_read(&environment);
    if (status != SL_OK)
        return status;
    bool one_machine = environment.local_size == environment.size;
    switch (environment.started_by) {
    case SL_STARTED_BY_SLUICE:
        *out = "local";
        break;
    case SL_STARTED_BY_TORCHRUN: /* local says what to do if there are several machines */
        *out = environment.size == 1 ? "self" : "local";
        break;
    case SL_STARTED_BY_SLURM:
        *out = environment.size == 1 ? "self" : one_machine ? "local" : "mpi";
        break;
    case SL_STARTED_BY_OPENMPI:
    case SL_STARTED_BY_MPICH:
        *out = environment.size == 1 ? "self" : "mpi";
        break;
    case SL_STARTED_ALONE:
        *out = "self";
        break;
    }
    return SL_OK;
}
