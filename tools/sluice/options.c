/* Reads the command line against a table of options. */
#include "options.h"

#include "command.h"
#include "similar.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const cli_option *find_long(const cli_option *options, const char *name, size_t length)
{
    for (const cli_option *each = options; each->name; each++) {
        if (strncmp(each->name, name, length) == 0 && each->name[length] == '\0')
            return each;
    }
    return NULL;
}

static const cli_option *find_letter(const cli_option *options, char letter)
{
    for (const cli_option *each = options; each->name; each++) {
        if (each->letter && each->letter == letter)
            return each;
    }
    return NULL;
}

/* Place of text in "a|b|c", or -1. */
static int find_word(const char *words, const char *text)
{
    size_t length = strlen(text);
    for (int place = 0; words; place++) {
        const char *bar = strchr(words, '|');
        size_t word = bar ? (size_t)(bar - words) : strlen(words);
        if (word == length && strncmp(words, text, length) == 0)
            return place;
        words = bar ? bar + 1 : NULL;
    }
    return -1;
}

static sl_status read_integer(const cli_option *option, const char *what, const char *text)
{
    bool limits = option->min != 0 || option->max != 0;
    int64_t value = 0;
    sl_status status = SL_OK;
    if (option->integer) {
        SL_TRY(sl_parse_int(what, text, limits ? option->min : INT_MIN, limits ? option->max : INT_MAX, &value));
        *option->integer = (int)value;
    } else {
        SL_TRY(sl_parse_int(what, text, limits ? option->min : INT64_MIN, limits ? option->max : INT64_MAX, &value));
        *option->wide = value;
    }
done:
    return status;
}

static sl_status read_value(const cli_option *option, const char *what, const char *text)
{
    if (option->text) {
        *option->text = text;
        return SL_OK;
    }
    if (option->integer || option->wide)
        return read_integer(option, what, text);
    if (option->real) {
        bool limits = option->least < option->most;
        return sl_parse_double(what, text, limits ? option->least : -__DBL_MAX__, limits ? option->most : __DBL_MAX__,
                               option->real);
    }
    if (option->choice) {
        int place = find_word(option->words, text);
        if (place < 0)
            return sl_fail(SL_ERR_ARGUMENT, "%s: '%.100s' is not one of %s", what, text, option->words);
        *option->choice = place;
        return SL_OK;
    }
    return option->read(what, text, option->target);
}

enum { MOST_OPTIONS = 256 }; /* of one command */

/* The state of one parse. */
typedef struct parse_state {
    const cli_usage *usage;
    const cli_option *options;
    int argc;
    char **argv;
    int at;                   /* the argument that is being read */
    int operands;             /* found so far, moved to argv[1] ... */
    bool given[MOST_OPTIONS]; /* options[i] was there */
} parse_state;

/* Takes one option; inline_value is what stands after '=' or the letter, or NULL. Returns an exit code. */
static int take(parse_state *parser, const cli_option *option, const char *what, const char *inline_value)
{
    parser->given[option - parser->options] = true;
    if (option->flag) {
        if (inline_value)
            return usage_error(parser->usage->command, "%s takes no value", what);
        *option->flag = true;
        return EXIT_OK;
    }
    const char *text = inline_value;
    if (!text) {
        if (parser->at + 1 >= parser->argc)
            return usage_error(parser->usage->command, "%s needs a value (%s)", what, option->value);
        text = parser->argv[++parser->at];
    }
    if (read_value(option, what, text) != SL_OK)
        return usage_error(parser->usage->command, "%s", sl_error_message());
    return EXIT_OK;
}

/* Says which option was probably meant. */
static int unknown_option(const parse_state *parser, const char *shown, const char *name)
{
    size_t length = strcspn(name, "=");
    similar_word best = similar_begin(name, length);
    for (const cli_option *each = parser->options; each->name; each++)
        similar_consider(&best, each->name);
    similar_consider(&best, "help");
    bool found = best.word != NULL;
    return usage_error(parser->usage->command, "there is no option '%.*s'%s%s%s",
                       (int)(name - shown) + (int)(length > 100 ? 100 : length), shown,
                       found ? "; did you mean '--" : "", found ? best.word : "", found ? "'?" : "");
}

static int take_long(parse_state *parser, const char *argument)
{
    const char *name = argument + 2;
    size_t length = strcspn(name, "=");
    const cli_option *option = find_long(parser->options, name, length);
    if (!option)
        return unknown_option(parser, argument, name);
    char what[64];
    snprintf(what, sizeof what, "--%s", option->name);
    return take(parser, option, what, name[length] == '=' ? name + length + 1 : NULL);
}

/* "-o FILE", "-oFILE", and flags in one word: "-ab". */
static int take_letters(parse_state *parser, const char *argument)
{
    for (const char *letter = argument + 1; *letter; letter++) {
        const cli_option *option = find_letter(parser->options, *letter);
        if (!option && letter == argument + 1 && letter[1] != '\0') /* "-steps 3" */
            return unknown_option(parser, argument, letter);
        if (!option)
            return usage_error(parser->usage->command, "there is no option '-%c'", *letter);
        char what[] = { '-', *letter, '\0' };
        bool value_follows = !option->flag && letter[1] != '\0';
        int code = take(parser, option, what, value_follows ? letter + 1 : NULL);
        if (code != EXIT_OK || value_follows)
            return code;
    }
    return EXIT_OK;
}

static int take_all(parse_state *parser)
{
    bool only_operands = false;
    for (parser->at = 1; parser->at < parser->argc; parser->at++) {
        char *argument = parser->argv[parser->at];
        int code = EXIT_OK;
        if (!only_operands && strcmp(argument, "--") == 0)
            only_operands = true;
        else if (!only_operands && strncmp(argument, "--", 2) == 0)
            code = take_long(parser, argument);
        else if (!only_operands && argument[0] == '-' && argument[1] != '\0')
            code = take_letters(parser, argument);
        else {
            parser->argv[++parser->operands] = argument;
            only_operands |= parser->usage->rest;
        }
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

static int check_complete(const parse_state *parser)
{
    const cli_usage *usage = parser->usage;
    for (int i = 0; parser->options[i].name; i++) {
        const cli_option *option = &parser->options[i];
        if (option->required && !parser->given[i])
            return usage_error(usage->command, "--%s %s is missing", option->name, option->value);
    }
    if (parser->operands < usage->min_operands)
        return usage_error(usage->command, "an operand is missing: sluice %s %s", usage->command, usage->synopsis);
    if (!usage->rest && parser->operands > usage->max_operands)
        return usage_error(usage->command, "'%.100s' is one operand too many", parser->argv[usage->max_operands + 1]);
    return EXIT_OK;
}

/* The pages asked for before anything else is looked at. */
static bool print_page(const cli_usage *usage, const cli_option *options, int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--man") == 0) {
        help_print_man(usage, options);
        return true;
    }
    if (argc == 2 && strncmp(argv[1], "--words=", 8) == 0) {
        help_print_words(options, argv[1] + 8);
        return true;
    }
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            help_print(usage, options);
            return true;
        }
        if (usage->rest && argv[i][0] != '-')
            break;
    }
    return false;
}

bool options_parse(const cli_usage *usage, const cli_option *options, int *argc, char **argv, int *code)
{
    int count = 0;
    while (options[count].name)
        count++;
    assert(count <= MOST_OPTIONS);
    *code = EXIT_OK;
    if (print_page(usage, options, *argc, argv))
        return false;
    parse_state parser = { .usage = usage, .options = options, .argc = *argc, .argv = argv };
    *code = take_all(&parser);
    if (*code == EXIT_OK)
        *code = check_complete(&parser);
    *argc = 1 + parser.operands;
    return *code == EXIT_OK;
}
