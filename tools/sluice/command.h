/* The commands of the program and what they share. */
#ifndef SLUICE_COMMAND_H
#define SLUICE_COMMAND_H

#include <sluice/base.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* A command gets its own name as argv[0] and returns the exit code. */
typedef struct SL_NAMED_FIELDS command {
    const char *name;
    const char *summary; /* one line for `sluice --help` */
    int (*run)(int argc, char **argv);
} command;

/* One line a command: X(name, "summary") stands for int cmd_name(int argc, char **argv) in cmd_name.c; options.h says
 * how it reads its options. cmd_bench is in bench/bench.c. */
#define COMMAND_LIST(X)                                                                                                \
    X(plan, "Generates a schedule and writes it as CSV")                                                               \
    X(check, "Proves a schedule and prints its figures")                                                               \
    X(show, "Draws a schedule as text, picture, page or trace")                                                        \
    X(train, "Trains a language model, cut into pipeline stages")                                                      \
    X(eval, "Gives the loss and perplexity of a model over a token file")                                              \
    X(generate, "Samples text from a model")                                                                           \
    X(export, "Writes a checkpoint as a Hugging Face folder")                                                          \
    X(convert, "Writes a checkpoint as a run of another mesh would")                                                   \
    X(info, "Describes a checkpoint, a model, a token file or a schedule")                                             \
    X(bench, "Measures a part of Sluice on this machine")                                                              \
    X(launch, "Starts N local ranks of a program")                                                                     \
    X(tokenize, "Turns text into a file of tokens, and back")

#define COMMAND_DECLARE(name, summary) int cmd_##name(int argc, char **argv);
COMMAND_LIST(COMMAND_DECLARE)
#undef COMMAND_DECLARE

/* The line of COMMAND_LIST; never NULL. */
const char *command_summary(const char *name);

/* "sluice plan: MESSAGE" and a pointer to --help on stderr; returns EXIT_USAGE. */
int usage_error(const char *command_name, const char *format, ...) SL_PRINTF(2, 3);
/* "sluice plan: " and the library's message on stderr; returns EXIT_FAILED. */
int failure(const char *command_name);
/* The same for a status: EXIT_USAGE, as for a usage error, if an argument is wrong in itself (SL_ERR_ARGUMENT), and
 * EXIT_FAILED if what it names could not be read, written or used. */
int refusal(const char *command_name, sl_status status);
/* From now on the library's log lines go to stderr as "sluice plan: warning: LINE". */
void log_to_stderr(const char *command_name);
/* Other lines than errors that this thread logs are dropped. */
void log_errors_only(void);

#endif
