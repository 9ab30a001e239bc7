/* The streaming JSON writer. */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static void separate(sl_json *json)
{
    if (json->comma)
        fputc(',', json->file);
    if (json->newline)
        fputc('\n', json->file);
    json->comma = true;
    json->newline = false;
}

/* Bytes of the UTF-8 character at text, or 0 where the bytes there are none (as file names may have them). */
static int utf8_length(const unsigned char *text)
{
    static const struct {
        unsigned char mask, lead, low, high; /* low and high bound the second byte: no overlong form, no surrogate */
        int length;
    } forms[] = {
        { 0x80, 0x00, 0, 0, 1 },       { 0xe0, 0xc0, 0x80, 0xbf, 2 }, { 0xff, 0xe0, 0xa0, 0xbf, 3 },
        { 0xff, 0xed, 0x80, 0x9f, 3 }, { 0xf0, 0xe0, 0x80, 0xbf, 3 }, { 0xff, 0xf0, 0x90, 0xbf, 4 },
        { 0xff, 0xf4, 0x80, 0x8f, 4 }, { 0xfc, 0xf0, 0x80, 0xbf, 4 },
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if ((text[0] & forms[i].mask) != forms[i].lead)
            continue;
        if (forms[i].length == 1)
            return 1;
        if (text[0] < 0xc2 || text[1] < forms[i].low || text[1] > forms[i].high)
            return 0;
        for (int j = 2; j < forms[i].length; j++) {
            if ((text[j] & 0xc0) != 0x80)
                return 0;
        }
        return forms[i].length;
    }
    return 0;
}

static void quote(FILE *file, const char *text)
{
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        int length = utf8_length(c);
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c == '\n')
            fputs("\\n", file);
        else if (*c < 0x20 || *c == '<') /* '<': the text may stand in a <script> of a page */
            fprintf(file, "\\u%04x", *c);
        else if (length == 0)
            fputs("\\ufffd", file);
        else
            fwrite(c, 1, (size_t)length, file);
        c += length ? length : 1;
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
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, json->file);
}

void sl_json_bool(sl_json *json, bool value)
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
    sl_json_bool(json, value);
}
