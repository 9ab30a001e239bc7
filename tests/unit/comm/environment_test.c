/* How a process was started, from the variables that launchers set. */
#include "comm/environment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

/* Sets NAME=VALUE pairs and nothing else. */
static void only(const char *const *pairs)
{
    clearenv();
    for (; *pairs; pairs += 2)
        setenv(pairs[0], pairs[1], 1);
}

#define ONLY(...) only((const char *const[]){ __VA_ARGS__, NULL })

static void check(sl_started_by by, int rank, int size, int local_size, const char *transport)
{
    sl_environment environment;
    const char *name = NULL;
    assert_int_equal(sl_environment_read(&environment), SL_OK);
    assert_int_equal(environment.started_by, by);
    assert_int_equal(environment.rank, rank);
    assert_int_equal(environment.size, size);
    assert_int_equal(environment.local_size, local_size);
    assert_int_equal(sl_environment_transport(&name), SL_OK);
    assert_string_equal(name, transport);
}

static void a_process_on_its_own_is_one_rank(void **state)
{
    (void)state;
    ONLY("PATH", "/bin");
    check(SL_STARTED_ALONE, 0, 1, 1, "self");
    ONLY("WORLD_SIZE", "4"); /* without RANK it says nothing */
    check(SL_STARTED_ALONE, 0, 1, 1, "self");
    ONLY("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "SLURM_JOB_ID", "7"); /* a batch script, not a step */
    check(SL_STARTED_ALONE, 0, 1, 1, "self");
}

static void check_restart(int restart, int vault_fd)
{
    sl_environment environment;
    assert_int_equal(sl_environment_read(&environment), SL_OK);
    assert_int_equal(environment.restart, restart);
    assert_int_equal(environment.vault_fd, vault_fd);
}

static void starts_are_counted(void **state)
{
    (void)state;
    ONLY("SLUICE_RESTART", "3", "SLUICE_VAULT_FD", "9"); /* not of a rank */
    check_restart(0, -1);
    ONLY("SLUICE_RANK", "1", "SLUICE_SIZE", "3", "SLUICE_RUN_FDS", "5,6");
    check_restart(0, -1);
    ONLY("SLUICE_RANK", "1", "SLUICE_SIZE", "3", "SLUICE_RUN_FDS", "5,6", "SLUICE_RESTART", "3", "SLUICE_VAULT_FD",
         "9");
    check_restart(3, 9);
    ONLY("RANK", "3", "WORLD_SIZE", "4", "TORCHELASTIC_RESTART_COUNT", "2");
    check_restart(2, -1);
    ONLY("SLURM_PROCID", "2", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_ID", "0", "SLURM_RESTART_COUNT", "1");
    check_restart(1, -1);
    sl_environment environment;
    ONLY("RANK", "3", "WORLD_SIZE", "4", "TORCHELASTIC_RESTART_COUNT", "-1");
    assert_int_equal(sl_environment_read(&environment), SL_ERR_ARGUMENT);
}

static void launchers_are_recognized(void **state)
{
    (void)state;
    ONLY("SLUICE_RANK", "1", "SLUICE_SIZE", "3", "SLUICE_RUN_FDS", "5,6");
    check(SL_STARTED_BY_SLUICE, 1, 3, 3, "local");
    ONLY("OMPI_COMM_WORLD_RANK", "5", "OMPI_COMM_WORLD_SIZE", "8", "OMPI_COMM_WORLD_LOCAL_SIZE", "4");
    check(SL_STARTED_BY_OPENMPI, 5, 8, 4, "mpi");
    ONLY("PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "2");
    check(SL_STARTED_BY_MPICH, 1, 2, 2, "mpi");
    ONLY("PMI_RANK", "0", "PMI_SIZE", "1");
    check(SL_STARTED_BY_MPICH, 0, 1, 1, "self");
    ONLY("RANK", "3", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "4", "MASTER_ADDR", "localhost", "MASTER_PORT", "29500");
    check(SL_STARTED_BY_TORCHRUN, 3, 4, 4, "local");
    ONLY("SLURM_PROCID", "2", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_NUM_NODES", "1", "SLURM_STEP_ID", "0");
    check(SL_STARTED_BY_SLURM, 2, 4, 4, "local");
    ONLY("SLURM_PROCID", "2", "SLURM_NTASKS", "4", "SLURM_NNODES", "2", "SLURM_STEP_ID", "0");
    check(SL_STARTED_BY_SLURM, 2, 4, 2, "mpi");
}

static void the_innermost_launcher_counts(void **state)
{
    (void)state;
    ONLY("SLUICE_RANK", "0", "SLUICE_SIZE", "2", "SLUICE_RUN_FDS", "5,6", "OMPI_COMM_WORLD_RANK", "1",
         "OMPI_COMM_WORLD_SIZE", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_NTASKS", "4");
    check(SL_STARTED_BY_SLUICE, 0, 2, 2, "local");
    ONLY("PMI_RANK", "3", "PMI_SIZE", "8", "MPI_LOCALNRANKS", "8", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0",
         "SLURM_STEP_NUM_TASKS", "1"); /* mpirun in a step of its own */
    check(SL_STARTED_BY_MPICH, 3, 8, 8, "mpi");
    ONLY("RANK", "3", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "4", "PMI_RANK", "0", "PMI_SIZE", "1", "SLURM_STEP_ID",
         "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"); /* srun torchrun */
    check(SL_STARTED_BY_TORCHRUN, 3, 4, 4, "local");
}

static void srun_with_pmi_is_srun(void **state)
{
    (void)state;
    ONLY("PMI_RANK", "2", "PMI_SIZE", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "2", "SLURM_STEP_NUM_TASKS", "4",
         "SLURM_STEP_NUM_NODES", "1");
    check(SL_STARTED_BY_SLURM, 2, 4, 4, "local");
    setenv("SLURM_STEP_NUM_NODES", "2", 1);
    check(SL_STARTED_BY_SLURM, 2, 4, 2, "mpi");
}

static void nonsense_is_refused_by_name(void **state)
{
    (void)state;
    sl_environment environment;
    ONLY("RANK", "4", "WORLD_SIZE", "4");
    assert_int_not_equal(sl_environment_read(&environment), SL_OK);
    assert_non_null(strstr(sl_error_message(), "RANK is 4, but WORLD_SIZE is 4"));
    ONLY("OMPI_COMM_WORLD_RANK", "x", "OMPI_COMM_WORLD_SIZE", "4");
    assert_int_not_equal(sl_environment_read(&environment), SL_OK);
    assert_non_null(strstr(sl_error_message(), "OMPI_COMM_WORLD_RANK"));
    ONLY("SLUICE_RANK", "0", "SLUICE_SIZE", "1", "SLUICE_RUN_FDS", "5,6x");
    assert_int_not_equal(sl_environment_read(&environment), SL_OK);
    assert_non_null(strstr(sl_error_message(), "SLUICE_RUN_FDS"));
}

static void local_says_what_several_machines_need(void **state)
{
    (void)state;
    sl_environment environment;
    ONLY("RANK", "0", "WORLD_SIZE", "16", "LOCAL_WORLD_SIZE", "8");
    assert_int_equal(sl_environment_read(&environment), SL_OK);
    assert_int_equal(sl_environment_check_local(&environment), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(sl_error_message(), "mpirun"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_on_its_own_is_one_rank),
        cmocka_unit_test(launchers_are_recognized),
        cmocka_unit_test(starts_are_counted),
        cmocka_unit_test(the_innermost_launcher_counts),
        cmocka_unit_test(nonsense_is_refused_by_name),
        cmocka_unit_test(srun_with_pmi_is_srun),
        cmocka_unit_test(local_says_what_several_machines_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
