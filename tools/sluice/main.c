/* sluice: finds the command and runs it. */
#include "command.h"
#include "similar.h"

#include <sluice/runtime.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const command commands[] = {
#define COMMAND_ROW(command_, line) { .name = #command_, .summary = (line), .run = cmd_##command_ },
    COMMAND_LIST(COMMAND_ROW)
#undef COMMAND_ROW
        { .name = NULL },
};

const char *command_summary(const char *name)
{
    for (const command *each = commands; each->name; each++) {
        if (strcmp(name, each->name) == 0)
            return each->summary;
    }
    return "";
}

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

int refusal(const char *command_name, sl_status status)
{
    return status == SL_ERR_ARGUMENT ? usage_error(command_name, "%s", sl_error_message()) : failure(command_name);
}

static _Thread_local bool only_errors; /* of this thread's lines are shown */

static void log_line(void *user, sl_log_level level, const char *line)
{
    static const char *const names[] = { "error: ", "warning: ", "", "" };
    if (level == SL_LOG_ERROR || !only_errors)
        fprintf(stderr, "sluice %s: %s%s\n", (const char *)user, names[level], line);
}

void log_errors_only(void)
{
    only_errors = true;
}

void log_to_stderr(const char *command_name)
{
    sl_log_set_callback(log_line, (void *)command_name);
}

static void print_help(FILE *file)
{
    fprintf(file, "usage: sluice COMMAND [OPTIONS]\n\nPipeline-parallel training in C.\n\nCommands:\n");
    for (const command *each = commands; each->name; each++)
        fprintf(file, "  %-10s %s\n", each->name, each->summary);
    fprintf(file, "\n'sluice COMMAND --help' describes one command; 'sluice --version' prints the version.\n");
}

static void print_man(void)
{
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"Sluice\"\n.nh\n.ad l\n", sl_version());
    printf(".SH NAME\nsluice \\- pipeline\\-parallel training in C\n.SH SYNOPSIS\n.B sluice\n.I COMMAND\n"
           "[\\fIOPTIONS\\fR]\n.br\n.B sluice\n\\-\\-help | \\-\\-version\n.SH COMMANDS\n");
    for (const command *each = commands; each->name; each++)
        printf(".TP\n.BR sluice\\-%s (1)\n%s.\n", each->name, each->summary);
    printf(".SH EXIT STATUS\n0 on success, 1 on failure, 2 if the command line is wrong.\n"
           ".SH ENVIRONMENT\n.TP\n.B SLUICE_LOG\nerror, warn, info or debug: log lines up to this level go to standard "
           "error.\n");
}

/* A closed standard descriptor would be given to the next file that is opened. These stand-ins fail like a closed
 * one: reading from 0 and writing to 1 or 2 is an error. */
static void occupy_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            exit(EXIT_FAILED);
    }
}

/* What was printed has to arrive: a full disk behind `sluice plan > file` is a failure. */
static int finish_output(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "sluice: write to standard output: %s\n", errno ? strerror(errno) : "an earlier write failed");
    return code == EXIT_OK ? EXIT_FAILED : code;
}

static int unknown_command(const char *name)
{
    bool is_option = name[0] == '-';
    similar_word best = similar_begin(name, strlen(name));
    for (const command *each = commands; each->name && !is_option; each++)
        similar_consider(&best, each->name);
    for (int i = 0; is_option && i < 2; i++)
        similar_consider(&best, i == 0 ? "--help" : "--version");
    fprintf(stderr, "sluice: there is no %s '%.100s'; ", is_option ? "option" : "command", name);
    if (best.word)
        fprintf(stderr, "did you mean '%s'? ", best.word);
    fprintf(stderr, "'sluice --help' lists them\n");
    return EXIT_USAGE;
}

static int run(int argc, char **argv)
{
    static char help_option[] = "--help";
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 && argc == 3) { /* sluice help plan */
        name = argv[2];
        argv[2] = help_option;
    }
    for (const command *each = commands; each->name; each++) {
        if (strcmp(name, each->name) != 0)
            continue;
        return sl_runtime_check_environment() == SL_OK ? each->run(argc - 1, argv + 1)
                                                       : usage_error(name, "%s", sl_error_message());
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("sluice %s\n", sl_version());
        return EXIT_OK;
    }
    if (strcmp(name, "--man") == 0) {
        print_man();
        return EXIT_OK;
    }
    if (strncmp(name, "--words", 7) == 0) { /* completion */
        for (const command *each = commands; each->name; each++)
            puts(each->name);
        puts("--help\n--version");
        return EXIT_OK;
    }
    return unknown_command(name);
}

int main(int argc, char **argv)
{
    occupy_standard_descriptors();
    return finish_output(run(argc, argv));
}
