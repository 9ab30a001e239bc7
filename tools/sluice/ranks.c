/* Starting ranks of the program itself. */
#include "ranks.h"

#include "command.h"

#include "base/alloc.h"
#include "comm/environment.h"
#include "comm/group.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool ranks_started(void)
{
    const char *transport = NULL;
    return sl_environment_transport(&transport) == SL_OK && strcmp(transport, "self") != 0;
}

bool ranks_started_elsewhere(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK && environment.started_by != SL_STARTED_ALONE &&
           environment.started_by != SL_STARTED_BY_SLUICE;
}

int ranks_own(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK ? environment.rank : 0;
}

int ranks_size(void)
{
    sl_environment environment;
    return sl_environment_read(&environment) == SL_OK ? environment.size : 1;
}

int ranks_failure(const char *command_name, sl_group *group, sl_status status)
{
    if (sl_group_claim_report(group, status))
        return refusal(command_name, status);
    return status == SL_ERR_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
}

/* The path of this program, so that the ranks have its name in a list of processes. */
static void find_program(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = '\0';
    if (access(path, X_OK) != 0) /* replaced or moved since it was started */
        snprintf(path, size, "/proc/self/exe");
}

int ranks_start(const char *command_name, int count, int argc, char **argv)
{
    /* Seconds that ranks get to write a last checkpoint after an interrupt. */
    enum { GRACE = 120 };
    static char program[4096];
    char **line = NULL;
    sl_launch_result result;
    if (SL_NEW_ARRAY(line, argc + 2) != SL_OK)
        return failure(command_name);
    find_program(program, sizeof program);
    line[0] = program;
    for (int i = 0; i < argc; i++)
        line[i + 1] = argv[i];
    const sl_launch_options options = { .ranks = count, .argv = line, .grace = GRACE };
    sl_status status = sl_launch(&options, &result);
    sl_free(line);
    if (status != SL_OK)
        return failure(command_name);
    bool interrupted =
        result.exit_code == 128 + SIGINT || result.exit_code == 128 + SIGTERM || result.exit_code == 128 + SIGHUP;
    if (result.exit_code != 0 && !interrupted)
        fprintf(stderr, "sluice %s: %s", command_name, result.report); /* ends its last line */
    return result.exit_code;
}
