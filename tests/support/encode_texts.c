/* Encodes and decodes texts, for comparison with other tokenizers: encode_texts TOKENIZER special frame < texts.json.
 * texts.json is a list of strings; the output is a list of {"ids": [...], "text": ids decoded}, or {"error": message}. */
#include <sluice/data.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *encode(const sl_tokenizer *tokenizer, const json_t *text, const sl_encode_options *options)
{
    int32_t *ids = NULL;
    int64_t count = 0;
    char *back = NULL;
    size_t bytes = 0;
    json_t *out = json_object(), *list = json_array();
    if (sl_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), options, &ids, &count) !=
            SL_OK ||
        sl_tokenizer_decode(tokenizer, ids, count, &back, &bytes) != SL_OK) {
        json_object_set_new(out, "error", json_string(sl_error_message()));
    } else {
        for (int64_t i = 0; i < count; i++)
            json_array_append_new(list, json_integer(ids[i]));
        json_t *decoded = json_stringn(back, bytes);
        json_object_set(out, "ids", list);
        json_object_set_new(out, "text", decoded ? decoded : json_null());
    }
    json_decref(list);
    sl_free(ids);
    sl_free(back);
    return out;
}

int main(int argc, char **argv)
{
    sl_tokenizer *tokenizer = NULL;
    if (argc != 4 || sl_tokenizer_open(argv[1], &tokenizer) != SL_OK) {
        fprintf(stderr, "encode_texts: %s\n", argc == 4 ? sl_error_message() : "TOKENIZER special frame");
        return 1;
    }
    const sl_encode_options options = { .special = atoi(argv[2]) != 0, .frame = atoi(argv[3]) != 0, .threads = 2 };
    json_error_t error;
    json_t *texts = json_loadf(stdin, JSON_ALLOW_NUL, &error), *out = json_array(), *text;
    size_t index;
    if (!texts) {
        fprintf(stderr, "encode_texts: %s\n", error.text);
        return 1;
    }
    json_array_foreach(texts, index, text) json_array_append_new(out, encode(tokenizer, text, &options));
    json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(out);
    json_decref(texts);
    sl_tokenizer_close(tokenizer);
    return 0;
}
