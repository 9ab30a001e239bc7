/* sluice launch: N local ranks of a program. */
#include "command.h"
#include "options.h"

#include <sluice/comm.h>

#include <stdio.h>

static const cli_usage usage = {
    .command = "launch",
    .synopsis = "-n N [OPTIONS] -- PROGRAM [ARGUMENTS]",
    .description =
        "Starts N ranks of PROGRAM on this machine. Programs that open a group (sl_group_open) find each other over "
        "shared memory; any other program runs N times.\n"
        "Signals are forwarded to all ranks. When one rank fails, the others hear of it, have a second to end by "
        "themselves, are then sent SIGTERM and at last SIGKILL. A second process, the keeper, ends every process that "
        "the ranks started, also those in a session of their own, and also when this command is killed.\n"
        "The exit code is that of the rank that failed first, 128 + signal if it was killed.",
    .examples = "sluice launch -n 4 -- ./my_training --steps 100\n"
                "sluice launch -n 2 --bind core --tag-output -- sluice train -c run.yaml --parallel.pp=2",
    .min_operands = 1,
    .max_operands = 1 << 20,
    .rest = true,
};

int cmd_launch(int argc, char **argv)
{
    sl_launch_options launch = { .ranks = 0 };
    sl_launch_result result;
    int bind = SL_BIND_AUTO;
    const cli_option options[] = {
        { .name = "ranks",
          .letter = 'n',
          .value = "N",
          .integer = &launch.ranks,
          .min = 1,
          .max = 1024,
          .required = true,
          .help = "Number of ranks." },
        { .name = "bind",
          .value = "auto|none|core",
          .words = "auto|none|core",
          .choice = &bind,
          .help =
              "auto gives each rank an equal share of the machine's cores, if there are enough and this command may "
              "use all of them, and does as core if the ranks are twice, three times, ... as many as the cores; "
              "SLUICE_BIND in the environment says what auto does. core keeps rank r on the r-th core that this "
              "command may use, counted round. none leaves the ranks to the kernel." },
        { .name = "tag-output",
          .flag = &launch.tag_output,
          .help = "Write the ranks' output line by line, with \"[r] \" before the lines of rank r." },
        { .name = "hang-timeout",
          .value = "S",
          .real = &launch.hang_timeout,
          .least = -1,
          .most = 1e6,
          .help = "Seconds without a sign of life after which a rank counts as hung; -1 for never (default 30). If "
                  "given, also the seconds that one action of a pipeline may take; else it may take any time." },
        { .name = "restarts",
          .value = "N",
          .integer = &launch.restarts,
          .min = 0,
          .max = 1000000,
          .help =
              "Start all ranks again, N times at most, after one was killed by a signal, hung, was stopped or ended "
              "with code 75. They find SLUICE_RESTART (1, 2, ...) in their environment." },
        { .name = "min-ranks",
          .value = "M",
          .integer = &launch.min_ranks,
          .min = 1,
          .max = 1024,
          .help = "With --restarts: after two starts in a row that completed no step, go on with one rank less, but "
                  "no fewer than M. Only `sluice train` says that it completed a step." },
        { .name = "grace",
          .value = "S",
          .real = &launch.grace,
          .least = 0,
          .most = 1e6,
          .help = "Seconds from a signal to SIGKILL for what still runs (default 5); after a failure 5 at most." },
        { .name = NULL },
    };
    int code;
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    log_to_stderr("launch");
    argv[argc] = NULL; /* the options were before it */
    launch.argv = argv + 1;
    launch.bind = (sl_launch_bind)bind; /* in the order of the words */
    if (sl_launch(&launch, &result) != SL_OK)
        return failure("launch");
    if (result.rank >= 0)
        fprintf(stderr, "sluice launch: %s", result.report);
    return result.exit_code;
}
