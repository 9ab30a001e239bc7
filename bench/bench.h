/* The benchmarks of `sluice bench`. Each kind is one row here and one file: NAME.c holds int bench_NAME(int argc,
 * char **argv), which reads its options, prints text or JSON and returns the exit code, as a command of the program
 * does. Its cli_usage says .command = "bench NAME". A measurement that is long enough has a file of its own,
 * NAME_measure.c. Nothing in the library depends on this folder. */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#include <sluice/runtime.h>

#define BENCH_LIST(X)                                                                                                  \
    X(comm, "Times messages between two ranks beside memcpy")                                                          \
    X(schedule, "Times generating, lowering, checking and simulating a large schedule")                                \
    X(compile, "Times compiling a large pipeline, all ranks, before anything runs")                                    \
    X(plan, "Times the planner, and says how near its plans come to the bound")                                        \
    X(tune, "Trains in configurations that the tuner proposes, beside its predictions")                                \
    X(overhead, "Times pipelines whose stages do nothing, and what a trace costs")                                     \
    X(pipeline, "Trains a GPT under every schedule, beside one process and the simulator")                             \
    X(sharding, "Times what replicas share out, and how much of it is hidden behind compute")                          \
    X(lengths, "Times steps of several sequence lengths in turn, from a cache of runtimes")                            \
    X(step, "Times a training step against its matrix products alone")                                                 \
    X(kernel, "Times each kernel on the shapes of a GPT")

#define BENCH_DECLARE(name, summary) int bench_##name(int argc, char **argv);
BENCH_LIST(BENCH_DECLARE)
#undef BENCH_DECLARE

/* The most memory that this process has held so far, in bytes. */
int64_t bench_peak_rss(void);

/* Gives what this rank holds of all parameters their initial values. */
sl_status bench_init_weights(sl_runtime *runtime);

#endif
