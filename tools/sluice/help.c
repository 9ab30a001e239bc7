/* Help, man page and completion words, all from the option tables. */
#include "command.h"
#include "options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define HELP_COLUMN 28
#define HELP_WIDTH 100
#define SHORT_WORDS 40

static const cli_option help_option = { .name = "help", .letter = 'h', .help = "Print this help." };

/* Values stand where others have the name of the value, "--format text|json"; a longer list stands in the help. */
static const char *value_of(const cli_option *option)
{
    return option->words && strlen(option->words) <= SHORT_WORDS ? option->words : option->value;
}

/* "-o, --output FILE" */
static void format_option(const cli_option *option, char *text, size_t size)
{
    const char *value = value_of(option);
    int used = option->letter ? snprintf(text, size, "-%c, ", option->letter) : 0;
    snprintf(text + used, size - (size_t)used, "--%s%s%s", option->name, value ? " " : "", value ? value : "");
}

/* Breaks text at blanks; the first line starts at column `at`, the others at `indent`. */
static void print_wrapped(const char *text, int at, int indent)
{
    int column = at;
    bool line_begins = true;
    while (*text) {
        if (*text == '\n') {
            printf("\n%*s", indent, "");
            column = indent;
            line_begins = true;
            text++;
            continue;
        }
        int word = (int)strcspn(text, " \n");
        if (!line_begins && column + 1 + word > HELP_WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
            line_begins = true;
        }
        column += printf("%s%.*s", line_begins ? "" : " ", word, text);
        line_begins = false;
        text += word;
        text += *text == ' ';
    }
    putchar('\n');
}

static void print_option(const cli_option *option)
{
    char head[128];
    format_option(option, head, sizeof head);
    int used = printf("  %s", head);
    if (used >= HELP_COLUMN - 1) {
        putchar('\n');
        used = 0;
    }
    printf("%*s", HELP_COLUMN - used, "");
    print_wrapped(option->help, HELP_COLUMN, HELP_COLUMN);
}

void help_print(const cli_usage *usage, const cli_option *options)
{
    int used = printf("usage: sluice %s ", usage->command);
    print_wrapped(usage->synopsis, used, used);
    putchar('\n');
    print_wrapped(usage->description, 0, 0);
    printf("\nOptions:\n");
    for (const cli_option *each = options; each->name; each++)
        print_option(each);
    print_option(&help_option);
    printf("\nExample:\n  ");
    for (const char *c = usage->examples; *c; c++)
        fputs(*c == '\n' ? "\n  " : (char[]){ *c, '\0' }, stdout);
    putchar('\n');
}

/* Text for roff: no hyphens that turn into typographic ones, no line that looks like a request. */
static void print_roff(const char *text)
{
    bool line_begins = true;
    for (const char *c = text; *c; c++) {
        if (line_begins && (*c == '.' || *c == '\''))
            fputs("\\&", stdout);
        if (*c == '-' || *c == '\\')
            fputs(*c == '-' ? "\\-" : "\\e", stdout);
        else
            putchar(*c);
        line_begins = *c == '\n';
    }
}

static void print_roff_option(const cli_option *option)
{
    printf(".TP\n");
    if (option->letter)
        printf("\\fB\\-%c\\fR, ", option->letter);
    printf("\\fB\\-\\-");
    print_roff(option->name);
    printf("\\fR");
    if (value_of(option)) {
        printf(" \\fI");
        print_roff(value_of(option));
        printf("\\fR");
    }
    putchar('\n');
    print_roff(option->help);
    putchar('\n');
}

static void print_roff_paragraphs(const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        char paragraph[4096];
        snprintf(paragraph, sizeof paragraph, "%.*s", (int)length, text);
        printf(".PP\n");
        print_roff(paragraph);
        putchar('\n');
        text += length;
        text += *text == '\n';
    }
}

void help_print_man(const cli_usage *usage, const cli_option *options)
{
    printf(".TH SLUICE\\-");
    for (const char *c = usage->command; *c; c++)
        putchar(toupper((unsigned char)*c));
    printf(" 1 \"\" \"sluice %s\" \"Sluice\"\n.nh\n.ad l\n", sl_version());
    printf(".SH NAME\nsluice\\-%s \\- ", usage->command);
    print_roff(command_summary(usage->command));
    printf("\n.SH SYNOPSIS\n.B sluice %s\n", usage->command);
    print_roff(usage->synopsis);
    printf("\n.SH DESCRIPTION\n");
    print_roff_paragraphs(usage->description);
    printf(".SH OPTIONS\n");
    for (const cli_option *each = options; each->name; each++)
        print_roff_option(each);
    print_roff_option(&help_option);
    printf(".SH EXIT STATUS\n0 on success, 1 on failure, 2 if the command line is wrong.\n");
    printf(".SH EXAMPLES\n.nf\n");
    print_roff(usage->examples);
    printf("\n.fi\n.SH SEE ALSO\n.BR sluice (1)\n");
}

static void print_values(const cli_option *option)
{
    if (option->words) {
        for (const char *c = option->words; *c; c++)
            putchar(*c == '|' ? '\n' : *c);
        putchar('\n');
    } else if (option->value && strstr(option->value, "FILE")) {
        puts("<file>");
    }
}

void help_print_words(const cli_option *options, const char *name)
{
    for (const cli_option *each = options; each->name; each++) {
        char letter[] = { '-', each->letter, '\0' };
        if (name[0] == '\0')
            printf("--%s\n", each->name);
        else if (strcmp(name, letter) == 0 || (strncmp(name, "--", 2) == 0 && strcmp(name + 2, each->name) == 0))
            print_values(each);
    }
    if (name[0] == '\0')
        puts("--help");
}
