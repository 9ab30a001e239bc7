/* The configuration file: libcyaml checks it against a schema made from the key table. Its line numbers are those of
 * the event before the error, so a first pass with libyaml notes the line of every key. */
#include "train/config_keys.h"

#include "base/alloc.h"
#include "base/arena.h"

#include <cyaml/cyaml.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

enum { FILE_LIMIT = 1 << 20, NAME_LIMIT = 64, SECTION_LIMIT = 16 };

/* ---- First pass: where every key stands ------------------------------------------------------- */

typedef struct key_line {
    char section[NAME_LIMIT], key[NAME_LIMIT]; /* key is empty for the section itself */
    int line;
} key_line;

typedef struct line_map {
    const char *path;
    yaml_parser_t parser;
    yaml_event_t event;
    const char *text; /* of the file */
    key_line *lines;
    size_t count, capacity;
    bool empty; /* nothing but comments between the marks of a document */
} line_map;

static int event_line(const line_map *map)
{
    return (int)map->event.start_mark.line + 1;
}

/* Of bytes that are no text libyaml gives the offset, not the line. */
static size_t problem_line(const line_map *map)
{
    size_t line = 1;
    if (map->parser.error != YAML_READER_ERROR)
        return map->parser.problem_mark.line + 1;
    for (size_t i = 0; i < map->parser.problem_offset; i++)
        line += map->text[i] == '\n';
    return line;
}

/* Replaces map->event by the next one. */
static sl_status next_event(line_map *map)
{
    yaml_event_delete(&map->event);
    if (!yaml_parser_parse(&map->parser, &map->event))
        return sl_fail(SL_ERR_FORMAT, "%s:%zu: %s", map->path, problem_line(map),
                       map->parser.problem ? map->parser.problem : "this is not YAML");
    if (map->event.type == YAML_ALIAS_EVENT)
        return sl_fail(SL_ERR_FORMAT, "%s:%d: aliases are not supported here", map->path, event_line(map));
    return SL_OK;
}

/* The event opens a value; reads to the event that ends it. */
static sl_status skip_value(line_map *map)
{
    int depth = 0;
    for (;;) {
        yaml_event_type_t type = map->event.type;
        depth += type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT;
        depth -= type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT;
        if (depth == 0)
            return SL_OK;
        sl_status status = next_event(map);
        if (status != SL_OK)
            return status;
    }
}

static sl_status note_key(line_map *map, const char *section, const char **name)
{
    sl_status status = SL_OK;
    if (map->event.type != YAML_SCALAR_EVENT)
        return sl_fail(SL_ERR_FORMAT, "%s:%d: a key must be a plain word", map->path, event_line(map));
    SL_TRY(SL_GROW(map->lines, &map->capacity, map->count + 1));
    key_line *line = &map->lines[map->count++];
    const char *text = (const char *)map->event.data.scalar.value;
    snprintf(line->section, sizeof line->section, "%s", section ? section : text);
    snprintf(line->key, sizeof line->key, "%s", section ? text : "");
    line->line = event_line(map);
    if (name)
        *name = line->section;
done:
    return status;
}

/* The event is the start of a section's mapping. */
static sl_status note_section(line_map *map, const char *section)
{
    sl_status status = SL_OK;
    char name[NAME_LIMIT];
    snprintf(name, sizeof name, "%s", section); /* the array it stands in may move */
    for (;;) {
        SL_TRY(next_event(map));
        if (map->event.type == YAML_MAPPING_END_EVENT)
            break;
        SL_TRY(note_key(map, name, NULL));
        SL_TRY(next_event(map));
        SL_TRY(skip_value(map));
    }
done:
    return status;
}

static sl_status note_document(line_map *map)
{
    sl_status status = SL_OK;
    if (map->event.type == YAML_SCALAR_EVENT && map->event.data.scalar.length == 0) {
        map->empty = true;
        return next_event(map);
    }
    if (map->event.type != YAML_MAPPING_START_EVENT)
        return sl_fail(SL_ERR_FORMAT, "%s:%d: sections such as 'model:' are expected here", map->path, event_line(map));
    for (;;) {
        const char *section = NULL;
        SL_TRY(next_event(map));
        if (map->event.type == YAML_MAPPING_END_EVENT)
            break;
        SL_TRY(note_key(map, NULL, &section));
        SL_TRY(next_event(map));
        if (map->event.type == YAML_MAPPING_START_EVENT)
            SL_TRY(note_section(map, section));
        else
            SL_TRY(skip_value(map));
    }
    SL_TRY(next_event(map));
done:
    return status;
}

static sl_status note_lines(line_map *map)
{
    sl_status status = SL_OK;
    int documents = 0;
    do {
        SL_TRY(next_event(map));
        if (map->event.type == YAML_DOCUMENT_START_EVENT) {
            if (++documents > 1)
                SL_TRY(sl_fail(SL_ERR_FORMAT, "%s:%d: a second document begins here; one is expected", map->path,
                               event_line(map)));
            SL_TRY(next_event(map));
            SL_TRY(note_document(map));
        }
    } while (map->event.type != YAML_STREAM_END_EVENT);
done:
    return status;
}

/* The last place counts, so that a key given twice is reported where it comes again. */
static int find_line(const line_map *map, const char *section, const char *key)
{
    char section_name[NAME_LIMIT], key_name[NAME_LIMIT];
    snprintf(section_name, sizeof section_name, "%s", section);
    snprintf(key_name, sizeof key_name, "%s", key);
    for (size_t i = map->count; i-- > 0;) {
        if (strcmp(map->lines[i].section, section_name) == 0 && strcmp(map->lines[i].key, key_name) == 0)
            return map->lines[i].line;
    }
    return 0;
}

/* ---- Second pass: the schema ------------------------------------------------------------------ */

/* What libcyaml fills: every value stays text, so that files and overrides go through the same checks. */
typedef struct key_slot {
    char *text;
    char **list;
    uint32_t list_count;
} key_slot;

typedef struct schema {
    cyaml_schema_value_t top, item;
    cyaml_schema_field_t sections[SECTION_LIMIT];
    cyaml_schema_field_t keys[CONFIG_KEY_LIMIT + SECTION_LIMIT];
} schema;

static void describe_key(schema *made, cyaml_schema_field_t *field, const config_key *key, int at_in_section)
{
    enum cyaml_flag flags = CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER_NULL_STR;
    size_t slot = (size_t)at_in_section * sizeof(key_slot);
    *field = (cyaml_schema_field_t){ .key = key->key };
    if (key->type == CONFIG_PAIR || key->type == CONFIG_TEXTS) {
        field->data_offset = (uint32_t)(slot + offsetof(key_slot, list));
        field->count_offset = (uint32_t)(slot + offsetof(key_slot, list_count));
        field->count_size = sizeof(uint32_t);
        field->value.type = CYAML_SEQUENCE;
        field->value.flags = flags;
        field->value.data_size = sizeof(char *);
        field->value.sequence.entry = &made->item;
        field->value.sequence.max = 256;
    } else {
        field->data_offset = (uint32_t)(slot + offsetof(key_slot, text));
        field->value.type = CYAML_STRING;
        field->value.flags = flags;
        field->value.data_size = sizeof(char);
        field->value.string.max = CYAML_UNLIMITED;
    }
}

static void make_schema(schema *made)
{
    *made = (schema){ .item = { .type = CYAML_STRING,
                                .flags = CYAML_FLAG_POINTER,
                                .data_size = sizeof(char),
                                .string = { .max = CYAML_UNLIMITED } } };
    int section = -1, used = 0, at_in_section = 0;
    for (const config_key *key = sl_config_keys; key->section; key++) {
        if (section < 0 || strcmp(made->sections[section].key, key->section) != 0) {
            used += section >= 0; /* leaves the zeroed entry that ends a list of keys */
            at_in_section = 0;
            cyaml_schema_field_t *field = &made->sections[++section];
            field->key = key->section;
            field->data_offset = (uint32_t)((size_t)section * sizeof(key_slot *));
            field->value.type = CYAML_MAPPING;
            field->value.flags = CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER_NULL_STR;
            field->value.data_size = sizeof(key_slot[CONFIG_KEY_LIMIT]);
            field->value.mapping.fields = &made->keys[used];
        }
        describe_key(made, &made->keys[used++], key, at_in_section++);
    }
    made->top = (cyaml_schema_value_t){ .type = CYAML_MAPPING,
                                        .flags = CYAML_FLAG_POINTER,
                                        .data_size = sizeof(key_slot *[SECTION_LIMIT]),
                                        .mapping = { .fields = made->sections } };
}

static void *cyaml_memory(void *context, void *block, size_t size)
{
    (void)context;
    if (size == 0) {
        sl_free(block);
        return NULL;
    }
    return sl_realloc(&block, size, 1) == SL_OK ? block : NULL;
}

/* The first error and the fields around it, inner first, from libcyaml's log. */
typedef struct cyaml_report {
    char message[256];
    char fields[2][NAME_LIMIT];
    int field_count;
} cyaml_report;

static void collect(cyaml_log_t level, void *context, const char *format, va_list args)
{
    (void)level;
    cyaml_report *report = context;
    char line[256];
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    const char *field = strstr(line, "in mapping field '");
    if (field && report->field_count < 2) {
        field += strlen("in mapping field '");
        snprintf(report->fields[report->field_count++], NAME_LIMIT, "%.*s", (int)strcspn(field, "'"), field);
    } else if (strncmp(line, "Load: ", 6) == 0 && report->message[0] == '\0' && !strstr(line, "Backtrace")) {
        snprintf(report->message, sizeof report->message, "%s", line + 6);
    }
}

static sl_status report_schema_error(const line_map *map, const cyaml_report *report, cyaml_err_t error)
{
    static const char unknown[] = "Unexpected key: ";
    const char *section = report->field_count > 0 ? report->fields[report->field_count - 1] : "";
    const char *key = report->field_count > 1 ? report->fields[0] : "";
    const char *message = report->message[0] ? report->message : cyaml_strerror(error);
    char names[512], missing[600];
    if (error == CYAML_ERR_OOM)
        return sl_fail(SL_ERR_MEMORY, "read %s: out of memory", map->path);
    if (strncmp(message, unknown, sizeof unknown - 1) == 0) {
        if (section[0] == '\0')
            section = message + sizeof unknown - 1;
        else
            key = message + sizeof unknown - 1;
        snprintf(missing, sizeof missing, "there is no such %s; there are %s", key[0] ? "key" : "section",
                 sl_config_list_names(section, names, sizeof names));
        message = missing;
    } else if (strstr(message, "already seen")) {
        message = "this is given a second time";
    } else if (strstr(message, "Expecting STRING")) {
        message = "one value is expected here, not a list or a mapping";
    } else if (strstr(message, "Expecting SEQUENCE")) {
        message = "a list is expected here, such as [a, b]";
    } else if (strstr(message, "Expecting MAPPING")) {
        message = "keys with values are expected here";
    }
    return sl_fail(SL_ERR_FORMAT, "%s:%d: %s%s%s: %s", map->path, find_line(map, section, key), section,
                   key[0] ? "." : "", key, message);
}

static sl_status take_values(sl_train_config *config, const line_map *map, key_slot *const *sections)
{
    sl_status status = SL_OK;
    int section = -1, at_in_section = 0;
    for (int i = 0; sl_config_keys[i].section; i++) {
        const config_key *key = &sl_config_keys[i];
        if (section < 0 || strcmp(sl_config_keys[i - 1].section, key->section) != 0) {
            section++;
            at_in_section = 0;
        }
        const key_slot *slot = sections[section] ? &sections[section][at_in_section] : NULL;
        at_in_section++;
        if (!slot || (!slot->text && !slot->list))
            continue;
        config_origin *origin = &config->own->origins[i];
        *origin = (config_origin){ .given = true, .line = find_line(map, key->section, key->key) };
        char what[1024];
        snprintf(what, sizeof what, "%s:%d: %s.%s", map->path, origin->line, key->section, key->key);
        const char *one = slot->text;
        SL_TRY(sl_config_set(config, key, what, slot->list ? (const char *const *)slot->list : &one,
                             slot->list ? (int)slot->list_count : 1));
    }
done:
    return status;
}

static sl_status load_text(sl_train_config *config, line_map *map, const char *text, size_t length)
{
    sl_status status = SL_OK;
    schema made;
    make_schema(&made);
    cyaml_report report = { .field_count = 0 };
    const cyaml_config_t settings = { .log_fn = collect,
                                      .log_ctx = &report,
                                      .mem_fn = cyaml_memory,
                                      .log_level = CYAML_LOG_ERROR,
                                      .flags = CYAML_CFG_NO_ALIAS };
    key_slot **sections = NULL;
    cyaml_err_t error =
        cyaml_load_data((const uint8_t *)text, length, &settings, &made.top, (cyaml_data_t **)&sections, NULL);
    if (error != CYAML_OK)
        SL_TRY(report_schema_error(map, &report, error));
    if (sections)
        SL_TRY(take_values(config, map, sections));
done:
    if (sections)
        cyaml_free(&settings, &made.top, sections, 0);
    return status;
}

/* The caller frees *text. */
static sl_status read_whole(const char *path, char **text, size_t *length)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    char *block = NULL;
    sl_status status = SL_NEW_ARRAY(block, FILE_LIMIT + 1);
    if (status != SL_OK)
        goto done;
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
    fclose(file);
    return status;
}

sl_status sl_config_parse_yaml(sl_train_config *config, const char *path, const char *text, size_t length)
{
    sl_status status = SL_OK;
    line_map map = { .path = path, .text = text };
    if (!yaml_parser_initialize(&map.parser))
        return sl_fail(SL_ERR_MEMORY, "read %s: out of memory", path);
    SL_TRY(sl_arena_strdup(config->own->arena, path, (char **)(void *)&config->own->path));
    yaml_parser_set_input_string(&map.parser, (const unsigned char *)text, length);
    SL_TRY(note_lines(&map));
    if (!map.empty)
        SL_TRY(load_text(config, &map, text, length));
done:
    yaml_event_delete(&map.event);
    yaml_parser_delete(&map.parser);
    sl_free(map.lines);
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
