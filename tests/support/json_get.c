/* json_get PATH < document: prints the value at PATH ("peak_slots.0"; "" is the whole; "#rows" counts; "?rows" lists
 * the keys, sorted). Exit code 1 if the input is no JSON or has no such value. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *find(json_t *value, char *path)
{
    for (char *step = strtok(path, "."); step && value; step = strtok(NULL, "."))
        value = json_is_array(value) ? json_array_get(value, strtoul(step, NULL, 10)) : json_object_get(value, step);
    return value;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void print_keys(json_t *object)
{
    const char *names[256], *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach(object, key, value)
    {
        if (count < sizeof names / sizeof *names)
            names[count++] = key;
    }
    qsort(names, count, sizeof *names, compare);
    for (size_t i = 0; i < count; i++)
        printf("%s%s", i ? " " : "", names[i]);
}

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *document = json_loadf(stdin, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!document) {
        fprintf(stderr, "line %d: %s\n", error.line, error.text);
        return 1;
    }
    char *path = argc > 1 ? argv[1] : NULL;
    char mode = path && (path[0] == '#' || path[0] == '?') ? *path++ : '\0';
    json_t *value = path ? find(document, path) : document;
    if (!value)
        return 1;
    if (mode == '#')
        printf("%zu", json_is_array(value) ? json_array_size(value) : json_object_size(value));
    else if (mode == '?')
        print_keys(value);
    else if (json_is_string(value))
        fputs(json_string_value(value), stdout);
    else
        json_dumpf(value, stdout, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(document);
    return 0;
}
