/* Any arguments against a table with every kind of option: read or refused with a message; what was read is within its
 * limits, and the operands are arguments that were given. One argument a line. */
#include "command.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_ARGUMENTS = 32 };

static bool complained;

/* What main.c has for the program. */
const char *command_summary(const char *name)
{
    return name;
}

int usage_error(const char *command_name, const char *format, ...)
{
    char message[4096];
    va_list args;
    va_start(args, format);
    complained = vsnprintf(message, sizeof message, format, args) > 0 && command_name;
    va_end(args);
    return EXIT_USAGE;
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

static sl_status read_letter(const char *what, const char *text, void *target)
{
    if (text[0] == '\0' || text[1] != '\0')
        return sl_fail(SL_ERR_ARGUMENT, "%s: one letter is expected", what);
    *(char *)target = text[0];
    return SL_OK;
}

/* Help and completion go where nobody reads them. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    require(freopen("/dev/null", "w", stdout) != NULL);
    return 0;
}

static void parse(int argc, char **argv, bool rest)
{
    const cli_usage usage = { .command = "fuzz",
                              .synopsis = "[OPTIONS] FILE",
                              .description = "Reads.\nTwice.",
                              .examples = "sluice fuzz",
                              .min_operands = 1,
                              .max_operands = 2,
                              .rest = rest };
    bool flag = false;
    const char *text = NULL;
    int number = 7, choice = 0, code = -1;
    int64_t wide = 7, free_wide = 0;
    double real = 0.5;
    char letter = 'x';
    const cli_option options[] = {
        { .name = "flag", .letter = 'f', .flag = &flag, .help = "A flag." },
        { .name = "text", .letter = 't', .value = "FILE", .text = &text, .required = true, .help = "A file." },
        { .name = "number", .letter = 'n', .value = "N", .integer = &number, .min = 1, .max = 9, .help = "A number." },
        { .name = "wide", .value = "N", .wide = &wide, .min = 1, .max = INT64_MAX, .help = "A large number." },
        { .name = "run.wide", .value = "N", .wide = &free_wide, .help = "Any number." },
        { .name = "real", .value = "X", .real = &real, .least = 0.25, .most = 2, .help = "A real number." },
        { .name = "choice", .value = "WORD", .words = "one|two|three", .choice = &choice, .help = "A word." },
        { .name = "letter", .value = "C", .read = read_letter, .target = &letter, .help = "A letter." },
        { .name = NULL },
    };
    char *before[MOST_ARGUMENTS + 1];
    int count = argc;
    memcpy(before, argv, (size_t)argc * sizeof *argv);
    complained = false;
    bool runs = options_parse(&usage, options, &argc, argv, &code);
    require(runs || code == EXIT_OK || (code == EXIT_USAGE && complained));
    if (!runs)
        return;
    require(code == EXIT_OK && text && argc >= 2 && (rest || argc <= 3));
    require(number >= 1 && number <= 9 && wide >= 1 && real >= 0.25 && real <= 2 && choice >= 0 && choice <= 2);
    for (int i = 1; i < argc; i++) {
        bool given = false;
        for (int k = 1; k < count; k++)
            given |= before[k] == argv[i];
        require(given);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char name[] = "fuzz";
    for (int rest = 0; rest < 2; rest++) {
        char *copy = malloc(size + 1), *argv[MOST_ARGUMENTS + 1] = { name };
        int argc = 1;
        require(copy != NULL);
        memcpy(copy, data, size);
        copy[size] = '\0';
        for (char *line = copy; line && argc < MOST_ARGUMENTS;) {
            argv[argc++] = line;
            line = strchr(line, '\n');
            if (line)
                *line++ = '\0';
        }
        parse(argc, argv, rest);
        free(copy);
    }
    return 0;
}
