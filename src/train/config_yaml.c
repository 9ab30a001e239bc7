/* The configuration file: one pass over libyaml's events, checked against the key table as they come. */
#include "train/config_keys.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

enum { FILE_LIMIT = 1 << 20 };

typedef struct yaml_reader {
    sl_train_config *config;
    const char *path, *text;
    yaml_parser_t parser;
    yaml_event_t event;          /* the one at hand */
    bool seen[CONFIG_KEY_LIMIT]; /* keys so far */
} yaml_reader;

/* "run.yaml:3:5: batch.size: MESSAGE": the event at hand is at fault. section and key may be NULL. */
static sl_status fail_here(const yaml_reader *r, const char *section, const char *key, const char *message)
{
    return sl_fail(SL_ERR_ARGUMENT, "%s:%zu:%zu: %.100s%s%.100s%s%s", r->path, r->event.start_mark.line + 1,
                   r->event.start_mark.column + 1, section ? section : "", key ? "." : "", key ? key : "",
                   section ? ": " : "", message);
}

static sl_status fail_in_parser(const yaml_reader *r)
{
    size_t line = r->parser.problem_mark.line + 1, column = r->parser.problem_mark.column + 1;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return sl_fail(SL_ERR_MEMORY, "read %s: out of memory", r->path);
    if (r->parser.error == YAML_READER_ERROR) { /* bytes that are no text: libyaml gives their offset alone */
        line = column = 1;
        for (size_t i = 0; i < r->parser.problem_offset; i++, column++) {
            if (r->text[i] == '\n') {
                line++;
                column = 0;
            }
        }
    }
    return sl_fail(SL_ERR_FORMAT, "%s:%zu:%zu: %s", r->path, line, column,
                   r->parser.problem ? r->parser.problem : "this is not YAML");
}

static sl_status next_event(yaml_reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event))
        return fail_in_parser(r);
    if (r->event.type == YAML_ALIAS_EVENT)
        return fail_here(r, NULL, NULL, "aliases are not supported here");
    return SL_OK;
}

static const char *scalar(const yaml_reader *r)
{
    return (const char *)r->event.data.scalar.value;
}

/* Nothing, "~" or "null" without quotes: the same as if the key were not there. */
static bool is_null(const yaml_reader *r)
{
    static const char *const words[] = { "", "~", "null", "Null", "NULL" };
    bool found = false;
    if (r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            found = found || strcmp(scalar(r), words[i]) == 0;
    }
    return found;
}

static config_origin place_here(const yaml_reader *r)
{
    return (config_origin){ .given = true,
                            .path = sl_config_own(r->config)->path,
                            .line = (int)r->event.start_mark.line + 1,
                            .column = (int)r->event.start_mark.column + 1 };
}

static sl_status fail_unknown(const yaml_reader *r, const char *section, const char *key)
{
    char names[512], message[600];
    snprintf(message, sizeof message, "there is no such %s; there are %s", key ? "key" : "section",
             sl_config_list_names(section, names, sizeof names));
    return fail_here(r, section, key, message);
}

static sl_status read_text(const yaml_reader *r, const config_key *key, const char **out)
{
    if (r->event.type != YAML_SCALAR_EVENT)
        return fail_here(r, key->section, key->key, "one value is expected here, not a list or a mapping");
    if (strlen(scalar(r)) != r->event.data.scalar.length)
        return fail_here(r, key->section, key->key, "the text holds a zero byte");
    return sl_arena_strdup(sl_config_own(r->config)->arena, scalar(r), (char **)(void *)out);
}

/* {path: P, weight: W}; the event at hand is its beginning. */
static sl_status read_weighted(yaml_reader *r, const config_key *key, sl_data_source *out)
{
    sl_status status = SL_OK;
    for (;;) {
        const char *text = NULL;
        SL_TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            break;
        bool path = r->event.type == YAML_SCALAR_EVENT && strcmp(scalar(r), "path") == 0;
        if (!path && (r->event.type != YAML_SCALAR_EVENT || strcmp(scalar(r), "weight") != 0))
            return fail_here(r, key->section, key->key, "'path' and 'weight' are expected here");
        SL_TRY(next_event(r));
        if (path) {
            SL_TRY(read_text(r, key, &out->path));
            continue;
        }
        SL_TRY(read_text(r, key, &text));
        if (sl_parse_double("weight", text, -1e300, 1e300, &out->weight) != SL_OK || !(out->weight > 0))
            return fail_here(r, key->section, key->key, "a weight is a number above 0");
    }
    if (!out->path)
        return fail_here(r, key->section, key->key, "this has no 'path'");
done:
    return status;
}

/* One path, or a list. */
static sl_status read_paths(yaml_reader *r, const config_key *key, const char *what)
{
    sl_status status = SL_OK;
    sl_data_source items[CONFIG_LIST_LIMIT] = { { .path = NULL } };
    int count = 0;
    if (r->event.type == YAML_SCALAR_EVENT) {
        SL_TRY(read_text(r, key, &items[count++].path));
    } else if (r->event.type != YAML_SEQUENCE_START_EVENT) {
        return fail_here(r, key->section, key->key, "a path or a list of them is expected here");
    } else {
        SL_TRY(next_event(r));
        while (r->event.type != YAML_SEQUENCE_END_EVENT) {
            if (count == CONFIG_LIST_LIMIT)
                return fail_here(r, key->section, key->key, "the list is too long; a pattern may stand for many files");
            SL_TRY(r->event.type == YAML_MAPPING_START_EVENT ? read_weighted(r, key, &items[count])
                                                             : read_text(r, key, &items[count].path));
            count++;
            SL_TRY(next_event(r));
        }
    }
    SL_TRY(sl_config_set_paths(r->config, key, what, items, count));
done:
    return status;
}

/* The value at hand: a scalar, or a list of them for keys that take one. */
static sl_status read_value(yaml_reader *r, const config_key *key, config_origin *origin)
{
    sl_status status = SL_OK;
    const char *items[CONFIG_LIST_LIMIT];
    char what[1024];
    int count = 0;
    if (is_null(r))
        return SL_OK;
    *origin = place_here(r);
    snprintf(what, sizeof what, "%s:%d:%d: %s.%s", r->path, origin->line, origin->column, key->section, key->key);
    if (key->type == CONFIG_PATHS)
        return read_paths(r, key, what);
    if (key->type != CONFIG_PAIR && key->type != CONFIG_TEXTS) {
        SL_TRY(read_text(r, key, &items[count++]));
    } else if (r->event.type != YAML_SEQUENCE_START_EVENT) {
        return fail_here(r, key->section, key->key, "a list is expected here, such as [a, b]");
    } else {
        SL_TRY(next_event(r));
        while (r->event.type != YAML_SEQUENCE_END_EVENT) {
            if (count == CONFIG_LIST_LIMIT)
                return fail_here(r, key->section, key->key, "the list is too long");
            SL_TRY(read_text(r, key, &items[count++]));
            SL_TRY(next_event(r));
        }
    }
    SL_TRY(sl_config_set(r->config, key, what, items, count));
done:
    return status;
}

/* A key that may be one of the family's own: whether it is shows when the whole configuration is known. */
static sl_status read_extra(yaml_reader *r)
{
    sl_status status = SL_OK;
    static const config_key any = { .section = "model", .key = "", .type = CONFIG_TEXT };
    config_extra *extra = NULL;
    char name[256];
    config_origin origin = place_here(r);
    snprintf(name, sizeof name, "model.%.200s", scalar(r));
    SL_TRY(sl_config_extra(r->config, name, &extra));
    if (extra->origin.given)
        return fail_here(r, "model", scalar(r), "this is given a second time");
    SL_TRY(next_event(r));
    extra->origin = origin;
    if (!is_null(r))
        SL_TRY(read_text(r, &any, &extra->text));
done:
    return status;
}

/* The keys of a section; the event at hand is what follows its name. */
static sl_status read_section(yaml_reader *r, const char *section)
{
    sl_status status = SL_OK;
    if (is_null(r))
        return SL_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_here(r, section, NULL, "keys with values are expected here");
    for (;;) {
        SL_TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return SL_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_here(r, section, NULL, "a key must be a plain word");
        int i = sl_config_find(section, strlen(section), scalar(r), r->event.data.scalar.length);
        if (i < 0 && strcmp(section, "model") == 0) {
            SL_TRY(read_extra(r));
            continue;
        }
        if (i < 0)
            return fail_unknown(r, section, scalar(r));
        if (r->seen[i])
            return fail_here(r, section, scalar(r), "this is given a second time");
        r->seen[i] = true;
        SL_TRY(next_event(r));
        SL_TRY(read_value(r, &sl_config_keys[i], &sl_config_own(r->config)->origins[i]));
    }
done:
    return status;
}

/* The sections of the document; the event at hand is its first. */
static sl_status read_document(yaml_reader *r)
{
    sl_status status = SL_OK;
    bool seen[CONFIG_KEY_LIMIT] = { false }; /* sections, by the index of their first key */
    if (is_null(r))
        return SL_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_here(r, NULL, NULL, "sections such as 'model:' are expected here");
    for (;;) {
        SL_TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return SL_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_here(r, NULL, NULL, "a key must be a plain word");
        int i = 0;
        while (sl_config_keys[i].section && strcmp(sl_config_keys[i].section, scalar(r)) != 0)
            i++;
        if (!sl_config_keys[i].section)
            return fail_unknown(r, scalar(r), NULL);
        if (seen[i])
            return fail_here(r, scalar(r), NULL, "this is given a second time");
        seen[i] = true;
        SL_TRY(next_event(r));
        SL_TRY(read_section(r, sl_config_keys[i].section));
    }
done:
    return status;
}

/* Start of the stream, at most one document between its marks, end of the stream. */
static sl_status read_stream(yaml_reader *r)
{
    sl_status status = SL_OK;
    SL_TRY(next_event(r));
    SL_TRY(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return SL_OK;
    SL_TRY(next_event(r));
    SL_TRY(read_document(r));
    SL_TRY(next_event(r));
    SL_TRY(next_event(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        return fail_here(r, NULL, NULL, "a second document begins here; one is expected");
done:
    return status;
}

/* The caller frees *text. */
static sl_status read_whole(const char *path, char **text, size_t *length)
{
    sl_status status = SL_OK;
    FILE *file = NULL;
    char *block = NULL;
    SL_TRY(sl_file_open_stream(path, &file));
    SL_TRY(SL_NEW_ARRAY(block, FILE_LIMIT + 1));
    size_t used = fread(block, 1, FILE_LIMIT + 1, file);
    if (ferror(file))
        SL_TRY(sl_fail(SL_ERR_IO, "read %s: %s", path, strerror(errno)));
    if (used > FILE_LIMIT)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: longer than %d bytes; is this a configuration?", path, FILE_LIMIT));
    *text = block;
    *length = used;
    block = NULL;
done:
    sl_free(block);
    if (file)
        fclose(file);
    return status;
}

sl_status sl_config_parse_yaml(sl_train_config *config, const char *path, const char *text, size_t length)
{
    sl_status status = SL_OK;
    yaml_reader r = { .config = config, .path = path, .text = text };
    if (!yaml_parser_initialize(&r.parser))
        return sl_fail(SL_ERR_MEMORY, "read %s: out of memory", path);
    SL_TRY(sl_arena_strdup(sl_config_own(config)->arena, path, (char **)(void *)&sl_config_own(config)->path));
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
    SL_TRY(read_stream(&r));
done:
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return status;
}

sl_status sl_config_parse_paths(sl_train_config *config, const config_key *key, const char *what, const char *text)
{
    sl_status status = SL_OK;
    yaml_reader r = { .config = config, .path = what, .text = text };
    if (!yaml_parser_initialize(&r.parser))
        return sl_fail(SL_ERR_MEMORY, "read %s: out of memory", what);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, strlen(text));
    for (int i = 0; i < 3; i++) /* the stream and the document begin, then the value */
        SL_TRY(next_event(&r));
    SL_TRY(read_paths(&r, key, what));
    SL_TRY(next_event(&r));
    if (r.event.type != YAML_DOCUMENT_END_EVENT)
        SL_TRY(fail_here(&r, key->section, key->key, "something follows the list"));
done:
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return status;
}

sl_status sl_config_read_yaml(sl_train_config *config, const char *path)
{
    sl_status status = SL_OK;
    char *text = NULL;
    size_t length = 0;
    SL_TRY(read_whole(path, &text, &length));
    SL_TRY(sl_config_parse_yaml(config, path, text, length));
done:
    sl_free(text);
    return status;
}
