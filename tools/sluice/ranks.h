/* Commands that run as several ranks: the same command line, started once a rank. */
#ifndef SLUICE_RANKS_H
#define SLUICE_RANKS_H

#include <sluice/comm.h>

/* Whether this process was started as a rank (by `sluice launch`, mpirun, srun, torchrun). */
bool ranks_started(void);

/* Whether they were started by something that only pretends to give them the terminal (mpirun, srun). */
bool ranks_started_elsewhere(void);

/* Number of this process among the ranks; 0 if it was started on its own. */
int ranks_own(void);
/* How many ranks were started together; 1 if it was started on its own. */
int ranks_size(void);

/* The exit code of a rank whose run has failed. One rank prints why; for ranks of `sluice launch` the launcher does, for
 * those of ranks_run_threads the thread that started them. */
int ranks_failure(const char *command_name, sl_group *group, sl_status status);

/* Whether these ranks follow others that were lost, as --restarts says. */
bool ranks_started_again(void);

enum { RANKS_WORDS = 3 };

/* Starting again; see the fields of sl_launch_options. choose_ranks fills in what the command line gets at its end. */
typedef struct ranks_again {
    int restarts, min_ranks;
    int (*choose_ranks)(const void *user, int most, char words[RANKS_WORDS][48]);
    const void *user;
} ranks_again;

/* The row of a command that can do both. */
enum { RANKS_AS_PROCESSES, RANKS_AS_THREADS };
#define RANKS_AS_OPTION_ROW(target)                                                                                    \
    {                                                                                                                  \
        .name = "ranks-as", .value = "WHAT", .words = "processes|threads", .choice = &(target),                        \
        .help = "What the ranks are: processes (the default) or threads of this one process, which share a GPU "       \
                "without taking turns. A fault of one thread ends all."                                                \
    }

/* Plays all ranks in this process, a thread each: `run` gets the group of its rank and returns its exit code. Returns that
 * of the rank that failed first, after one report, or that of rank 0. hang_timeout as in sl_group_options. A launcher
 * that started this process hears of a failure. */
int ranks_run_threads(const char *command_name, int count, double hang_timeout, int (*run)(void *user, sl_group *group),
                      void *user);

/* Runs this in a process of its own and returns its exit code. A GPU that it opens is given back with it: the process that
 * waits for the ranks is not to hold one, whose memory they need and which would make its end slow. */
int ranks_run_apart(const char *command_name, int (*run)(const void *user), const void *user);

/* Starts the ranks of `sluice ARGV...` on this machine and waits for them; returns the exit code. threads and hang_timeout
 * as in sl_launch_options; again may be NULL. */
int ranks_start(const char *command_name, int count, int threads, double hang_timeout, int argc, char **argv,
                const ranks_again *again);

#endif
