#include "device/choices.h"

#include "base/alloc.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* A file: these two lines, one line "key=value" for each choice, and the hash of all that as the last line. */
static const char title[] = "sluice choices 1\n";
enum { HASH_LINE = sizeof "hash 0123456789abcdef\n" - 1 };

typedef struct kept_choice {
    char *key, *value;
    struct kept_choice *next;
} kept_choice;

struct sl_choices {
    char *scope, *folder, *path; /* folder and path: NULL if nothing is kept on disk */
    kept_choice *list;
};

/* ---- The list -------------------------------------------------------------------------------- */

static kept_choice *find(const sl_choices *choices, const char *key)
{
    kept_choice *choice = choices->list;
    while (choice && strcmp(choice->key, key) != 0)
        choice = choice->next;
    return choice;
}

static void free_choice(kept_choice *choice)
{
    sl_free(choice->key);
    sl_free(choice->value);
    sl_free(choice);
}

static sl_status set(sl_choices *choices, const char *key, const char *value)
{
    sl_status status = SL_OK;
    kept_choice *old = find(choices, key), *made = NULL;
    char *copy = NULL;
    SL_TRY(sl_strdup(value, &copy));
    if (old) {
        sl_free(old->value);
        old->value = copy;
        return SL_OK;
    }
    SL_TRY(SL_NEW(made));
    SL_TRY(sl_strdup(key, &made->key));
    made->value = copy;
    made->next = choices->list;
    choices->list = made;
    return SL_OK;
done:
    sl_free(made);
    sl_free(copy);
    return status;
}

const char *sl_choices_get(const sl_choices *choices, const char *key)
{
    const kept_choice *choice = find(choices, key);
    return choice ? choice->value : NULL;
}

/* ---- The file -------------------------------------------------------------------------------- */

static void hash_line(const char *text, size_t bytes, char line[HASH_LINE + 1])
{
    snprintf(line, HASH_LINE + 1, "hash %016" PRIx64 "\n", (uint64_t)XXH3_64bits(text, bytes));
}

/* Takes the choices of a file's text that are not known yet. */
static sl_status parse(sl_choices *choices, char *text, size_t bytes)
{
    sl_status status = SL_OK;
    char expected[HASH_LINE + 1];
    size_t head = strlen(title), scope = strlen(choices->scope);
    if (bytes < HASH_LINE)
        return sl_fail(SL_ERR_FORMAT, "read %s: it is too short", choices->path);
    bytes -= HASH_LINE;
    hash_line(text, bytes, expected);
    if (memcmp(text + bytes, expected, HASH_LINE) != 0)
        return sl_fail(SL_ERR_FORMAT, "read %s: it is damaged, its hash is another", choices->path);
    if (bytes < head + scope + 1 || memcmp(text, title, head) != 0 || memcmp(text + head, choices->scope, scope) != 0 ||
        text[head + scope] != '\n')
        return sl_fail(SL_ERR_FORMAT, "read %s: it is not for %s", choices->path, choices->scope);
    for (char *line = text + head + scope + 1; line < text + bytes;) {
        char *end = memchr(line, '\n', (size_t)(text + bytes - line));
        char *equals = end ? memchr(line, '=', (size_t)(end - line)) : NULL;
        if (!equals)
            return sl_fail(SL_ERR_FORMAT, "read %s: a line has no '='", choices->path);
        *equals = *end = '\0';
        if (!find(choices, line))
            SL_TRY(set(choices, line, equals + 1));
        line = end + 1;
    }
done:
    return status;
}

/* A file that is not there has no choices. */
static sl_status load(sl_choices *choices)
{
    sl_file_bytes file = { 0 };
    if (!choices->path || access(choices->path, F_OK) != 0)
        return SL_OK;
    sl_status status = sl_file_read(choices->path, &file);
    if (status == SL_OK)
        status = parse(choices, (char *)file.data, file.size);
    sl_file_bytes_free(&file);
    return status;
}

static sl_status save(const sl_choices *choices)
{
    sl_status status = SL_OK;
    char *text = NULL, hash[HASH_LINE + 1];
    size_t bytes = strlen(title) + strlen(choices->scope) + 1, used = 0;
    for (const kept_choice *c = choices->list; c; c = c->next)
        bytes += strlen(c->key) + strlen(c->value) + 2;
    SL_TRY(SL_NEW_ARRAY(text, bytes + HASH_LINE + 1));
    used += (size_t)snprintf(text, bytes + 1, "%s%s\n", title, choices->scope);
    for (const kept_choice *c = choices->list; c; c = c->next)
        used += (size_t)snprintf(text + used, bytes + 1 - used, "%s=%s\n", c->key, c->value);
    hash_line(text, used, hash);
    memcpy(text + used, hash, sizeof hash);
    SL_TRY(sl_folder_make(choices->folder));
    SL_TRY(sl_file_replace(choices->path, text, used + HASH_LINE));
done:
    sl_free(text);
    return status;
}

/* ---- Folder ---------------------------------------------------------------------------------- */

/* "PARENT/REST"; NULL, which is no error, if the variable is not set to an absolute path. */
static sl_status folder_below(const char *variable, const char *rest, char **out)
{
    const char *parent = getenv(variable);
    return parent && parent[0] == '/' ? sl_path_join(parent, rest, out) : SL_OK;
}

static sl_status find_folder(char **out)
{
    const char *own = getenv("SLUICE_CACHE");
    if (own)
        return *own ? sl_strdup(own, out) : SL_OK;
    sl_status status = folder_below("XDG_CACHE_HOME", "sluice", out);
    if (status == SL_OK && !*out)
        status = folder_below("HOME", ".cache/sluice", out);
    return status;
}

static sl_status find_path(sl_choices *choices)
{
    sl_status status = SL_OK;
    char name[64];
    SL_TRY(find_folder(&choices->folder));
    if (!choices->folder)
        return SL_OK;
    snprintf(name, sizeof name, "choices-%016" PRIx64 ".txt",
             (uint64_t)XXH3_64bits(choices->scope, strlen(choices->scope)));
    SL_TRY(sl_path_join(choices->folder, name, &choices->path));
done:
    return status;
}

sl_status sl_choices_open(const char *scope, sl_choices **out)
{
    sl_status status = SL_OK;
    sl_choices *choices = NULL;
    SL_TRY(SL_NEW(choices));
    SL_TRY(sl_strdup(scope, &choices->scope));
    SL_TRY(find_path(choices));
    if (load(choices) != SL_OK)
        sl_log(SL_LOG_WARN, "saved choices are ignored: %s", sl_error_message());
    *out = choices;
    choices = NULL;
done:
    sl_choices_close(choices);
    return status;
}

void sl_choices_close(sl_choices *choices)
{
    if (!choices)
        return;
    while (choices->list) {
        kept_choice *next = choices->list->next;
        free_choice(choices->list);
        choices->list = next;
    }
    sl_free(choices->scope);
    sl_free(choices->folder);
    sl_free(choices->path);
    sl_free(choices);
}

void sl_choices_put(sl_choices *choices, const char *key, const char *value)
{
    if (set(choices, key, value) != SL_OK)
        return; /* no memory: measured again next time */
    if (!choices->path)
        return;
    if (load(choices) != SL_OK)
        sl_log(SL_LOG_WARN, "saved choices are replaced: %s", sl_error_message());
    if (save(choices) != SL_OK)
        sl_log(SL_LOG_WARN, "choices are not kept for the next start: %s", sl_error_message());
}
