/* JSON: a streaming writer that never holds the document; reading goes through Jansson. */
#ifndef SL_BASE_JSON_H
#define SL_BASE_JSON_H

#include <sluice/base.h>

#include <stdio.h>

/* Writes to a FILE that it borrows. Commas and quotes are its business; errors show in ferror(file). */
typedef struct sl_json {
    FILE *file;
    bool comma;   /* the next value needs one before it */
    bool newline; /* a line break stands before the next value */
} sl_json;

void sl_json_begin(sl_json *json, char bracket);      /* '{' or '[' as a value */
void sl_json_end(sl_json *json, char bracket);        /* '}' or ']' */
void sl_json_key(sl_json *json, const char *key);     /* the value follows */
void sl_json_string(sl_json *json, const char *text); /* escaped, bad UTF-8 replaced; NULL writes null */
void sl_json_int(sl_json *json, int64_t value);
void sl_json_double(sl_json *json, double value); /* shortest text that reads back equal; null if not finite */
void sl_json_newline(sl_json *json);              /* a line break between values, for people */

/* Key and value in one go. */
void sl_json_put_string(sl_json *json, const char *key, const char *text);
void sl_json_put_int(sl_json *json, const char *key, int64_t value);
void sl_json_put_double(sl_json *json, const char *key, double value);
void sl_json_put_bool(sl_json *json, const char *key, bool value);

#endif
