/* The streaming JSON writer. */
#include "base/json.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void separate(sl_json *json)
{
    if (json->comma)
        fputc(',', json->file);
    if (json->newline)
        fputc('\n', json->file);
    json->comma = true;
    json->newline = false;
}

/* Writes one character that needs a look; returns how many bytes it takes in the text. */
static size_t quote_special(FILE *file, const char *text)
{
    unsigned char c = (unsigned char)*text;
    size_t length = sl_utf8_length(text, strnlen(text, 4));
    if (c == '"' || c == '\\')
        fprintf(file, "\\%c", c);
    else if (c == '\n')
        fputs("\\n", file);
    else if (c < 0x20 || c == '<') /* '<': the text may stand in a <script> of a page */
        fprintf(file, "\\u%04x", c);
    else if (length == 0)
        fputs("\\ufffd", file);
    else
        fwrite(text, 1, length, file);
    return length ? length : 1;
}

static bool is_plain(char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\' && c != '<';
}

static void quote(FILE *file, const char *text)
{
    fputc('"', file);
    while (*text) {
        size_t plain = 0;
        while (is_plain(text[plain]))
            plain++;
        fwrite(text, 1, plain, file);
        text += plain;
        if (*text)
            text += quote_special(file, text);
    }
    fputc('"', file);
}

void sl_json_begin(sl_json *json, char bracket)
{
    separate(json);
    fputc(bracket, json->file);
    json->comma = false;
}

void sl_json_end(sl_json *json, char bracket)
{
    if (json->newline)
        fputc('\n', json->file);
    fputc(bracket, json->file);
    json->comma = true;
    json->newline = false;
}

void sl_json_key(sl_json *json, const char *key)
{
    separate(json);
    quote(json->file, key);
    fputc(':', json->file);
    json->comma = false;
}

void sl_json_string(sl_json *json, const char *text)
{
    separate(json);
    if (text)
        quote(json->file, text);
    else
        fputs("null", json->file);
}

void sl_json_int(sl_json *json, int64_t value)
{
    separate(json);
    fprintf(json->file, "%" PRId64, value);
}

void sl_json_double(sl_json *json, double value)
{
    separate(json);
    if (!isfinite(value)) {
        fputs("null", json->file);
        return;
    }
    char text[32];
    fputs(sl_double_text(value, text, sizeof text), json->file);
}

static void put_bool(sl_json *json, bool value)
{
    separate(json);
    fputs(value ? "true" : "false", json->file);
}

void sl_json_newline(sl_json *json)
{
    json->newline = true;
}

void sl_json_put_string(sl_json *json, const char *key, const char *text)
{
    sl_json_key(json, key);
    sl_json_string(json, text);
}

void sl_json_put_int(sl_json *json, const char *key, int64_t value)
{
    sl_json_key(json, key);
    sl_json_int(json, value);
}

void sl_json_put_double(sl_json *json, const char *key, double value)
{
    sl_json_key(json, key);
    sl_json_double(json, value);
}

void sl_json_put_bool(sl_json *json, const char *key, bool value)
{
    sl_json_key(json, key);
    put_bool(json, value);
}
