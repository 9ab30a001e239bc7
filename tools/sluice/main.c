/* sluice: finds the command and runs it. */
#include "command.h"

#include <stdio.h>
#include <string.h>

static const command commands[] = {
#define COMMAND_ROW(name, summary) { #name, summary, cmd_##name },
    COMMAND_LIST(COMMAND_ROW)
#undef COMMAND_ROW
        { NULL, NULL, NULL },
};

int usage_error(const char *command_name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "sluice %s: ", command_name);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nTry 'sluice %s --help'.\n", command_name);
    va_end(args);
    return EXIT_USAGE;
}

int failure(const char *command_name)
{
    fprintf(stderr, "sluice %s: %s\n", command_name, sl_error_message());
    return EXIT_FAILED;
}

static void print_help(FILE *file)
{
    fprintf(file, "usage: sluice COMMAND [OPTIONS]\n\nPipeline-parallel training in C.\n\nCommands:\n");
    for (const command *each = commands; each->name; each++)
        fprintf(file, "  %-10s %s\n", each->name, each->summary);
    fprintf(file, "\n'sluice COMMAND --help' describes one command; 'sluice --version' prints the version.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sluice %s\n", sl_version());
        return EXIT_OK;
    }
    for (const command *each = commands; each->name; each++) {
        if (strcmp(argv[1], each->name) == 0)
            return each->run(argc - 1, argv + 1);
    }
    fprintf(stderr, "sluice: there is no command '%s'; 'sluice --help' lists them\n", argv[1]);
    return EXIT_USAGE;
}
