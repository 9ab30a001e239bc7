/* Options of a command. One table gives the parsing, --help, the man page and the bash completion, so a new command
 * needs a `cli_usage`, a `cli_option` table, a call of options_parse() and its line in COMMAND_LIST, and nothing else.
 *
 *     int ranks = 0;
 *     const cli_option options[] = {
 *         { .name = "ranks", .value = "P", .integer = &ranks, .min = 1, .max = 4096, .required = true,
 *           .help = "Number of ranks." },
 *         { .name = NULL },
 *     };
 *     int code;
 *     if (!options_parse(&my_usage, options, &argc, argv, &code))
 *         return code;
 */
#ifndef SLUICE_OPTIONS_H
#define SLUICE_OPTIONS_H

#include <sluice/base.h>

/* Exactly one of the targets is set; it says what the option takes. The last of repeated options counts. */
typedef struct SL_NAMED_FIELDS cli_option {
    const char *name;  /* long form without the dashes; NULL ends the table */
    char letter;       /* short form; 0 for none */
    bool required;     /* its absence is a usage error */
    const char *value; /* stands for the value in the help; NULL for a flag */
    const char *words; /* possible values, "text|json": completion offers them; for .choice there are no others */
    const char *help;  /* sentences without line breaks */

    bool *flag;        /* takes no value */
    const char **text; /* borrowed from argv */
    int *integer;      /* between min and max; no limits if both are 0 */
    int64_t *wide;     /* the same for counts past an int */
    double *real;      /* between least and most; no limits if both are 0 */
    int *choice;       /* place of the value in words */
    /* Anything else: leaves its message with sl_fail. `what` is "--costs". */
    sl_status (*read)(const char *what, const char *text, void *target);
    void *target; /* for read */

    int64_t min, max;
    double least, most;
} cli_option;

/* The row of a command that prints its result in either form. */
enum { FORMAT_TEXT, FORMAT_JSON };
#define FORMAT_OPTION_ROW(target)                                                                                      \
    {                                                                                                                  \
        .name = "format", .value = "FORMAT", .words = "text|json", .choice = &(target),                                \
        .help = "How the result is printed: text (the default) or json."                                               \
    }

/* The row of a command that runs on a device. */
#define DEVICE_OPTION_ROW(target)                                                                                      \
    {                                                                                                                  \
        .name = "device", .value = "DEVICE", .text = &(target),                                                        \
        .help = "cpu (the default), cuda or cuda:INDEX for a GPU, or auto: a GPU if there is one."                     \
    }

/* The row of a command that runs a model; the choice is the sl_dtype. */
#define DTYPE_OPTION_ROW(target)                                                                                       \
    {                                                                                                                  \
        .name = "dtype", .value = "TYPE", .words = "f32|bf16", .choice = &(target),                                    \
        .help = "Type of weights and activations: f32 (the default) or bf16, which takes half the memory."             \
    }

typedef struct SL_NAMED_FIELDS cli_usage {
    const char *command;     /* "plan" */
    const char *synopsis;    /* what follows "sluice plan " in the usage line */
    const char *description; /* paragraphs are separated by a line break */
    const char *examples;    /* one command a line */
    int min_operands, max_operands;
    bool rest; /* the first operand ends the options: what follows it belongs to another program */
} cli_usage;

/* Reads the options and moves the operands to argv[1] ... argv[*argc - 1]. Returns false if the command ends here
 * (after --help, or with a usage error already printed) with *code as exit code. */
bool options_parse(const cli_usage *usage, const cli_option *options, int *argc, char **argv, int *code);

/* The pages made from the tables (help.c). */
void help_print(const cli_usage *usage, const cli_option *options);
void help_print_man(const cli_usage *usage, const cli_option *options);
/* Completion: prints the options if name is empty, else the values of the option name ("--format"); a value that
 * is a file prints "<file>". */
void help_print_words(const cli_option *options, const char *name);

#endif
