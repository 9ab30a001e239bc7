/* The benchmarks of `sluice bench`: one line a kind, X(name, "summary"), stands for int bench_name(int argc, char
 * **argv) in bench_name.c. It gets its own name as argv[0], reads its options as a command does (its cli_usage says
 * .command = "bench name") and returns the exit code. */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#include <sluice/base.h>

#define BENCH_LIST(X)                                                                                                  \
    X(comm, "Times messages between two ranks beside memcpy")                                                          \
    X(schedule, "Times generating, lowering, checking and simulating a large schedule")                                \
    X(overhead, "Times pipelines whose stages do nothing, and what a trace costs")                                     \
    X(pipeline, "Trains a GPT under every schedule, beside one process and the simulator")                             \
    X(step, "Times a training step against its matrix products alone")                                                 \
    X(kernel, "Times each kernel on the shapes of a GPT")

#define BENCH_DECLARE(name, summary) int bench_##name(int argc, char **argv);
BENCH_LIST(BENCH_DECLARE)
#undef BENCH_DECLARE

/* The most memory that this process has held so far, in bytes. */
int64_t bench_peak_rss(void);

#endif
