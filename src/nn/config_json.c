/* config.json: Hugging Face's description of a model, read and written. */
#include "nn/family.h"

#include "base/alloc.h"
#include "base/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_NAME "config.json"
enum { CONFIG_BYTES_MAX = 1 << 20 };

/* ---- Reading --------------------------------------------------------------------------------- */

static sl_status wrong_kind(const char *label, const char *key, const char *wanted)
{
    return sl_fail(SL_ERR_FORMAT, "%s: %s is not %s", label, key, wanted);
}

static sl_status read_tokens(const char *label, const char *key, const json_t *value, sl_token_ids *out)
{
    sl_token_ids tokens = { .count = 0 };
    size_t count = json_is_array(value) ? json_array_size(value) : json_is_null(value) ? 0 : 1;
    if (count > SL_TOKEN_IDS_MAX)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: %s has %zu ids; %d are possible", label, key, count, SL_TOKEN_IDS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id))
            return wrong_kind(label, key, "a token id or a list of them");
        tokens.ids[tokens.count++] = json_integer_value(id);
    }
    *out = tokens;
    return SL_OK;
}

/* Puts the value where the field says. Limits are sl_model_check's business. */
static sl_status read_field(const char *label, const sl_model_field *field, const json_t *value, void *config)
{
    void *target = (char *)config + field->offset;
    switch (field->kind) {
    case SL_FIELD_INT_OR_NULL:
        if (json_is_null(value)) {
            *(int64_t *)target = (int64_t)field->min;
            return SL_OK;
        } /* fall through */
    case SL_FIELD_INT:
        if (!json_is_integer(value))
            return wrong_kind(label, field->key, "a whole number");
        *(int64_t *)target = json_integer_value(value);
        return SL_OK;
    case SL_FIELD_TOKENS:
        return read_tokens(label, field->key, value, target);
    case SL_FIELD_REAL_OR_NULL:
        if (json_is_null(value)) {
            *(double *)target = field->min;
            return SL_OK;
        } /* fall through */
    case SL_FIELD_REAL:
        if (!json_is_number(value))
            return wrong_kind(label, field->key, "a number");
        *(double *)target = json_number_value(value);
        return SL_OK;
    case SL_FIELD_BOOL:
        if (!json_is_boolean(value))
            return wrong_kind(label, field->key, "true or false");
        *(bool *)target = json_is_true(value);
        return SL_OK;
    case SL_FIELD_ACTIVATION:
        if (!json_is_string(value))
            return wrong_kind(label, field->key, "a text");
        if (sl_nn_parse_activation(json_string_value(value), target) != SL_OK)
            return sl_fail_context(SL_ERR_UNSUPPORTED, "%s: %s", label, field->key);
        return SL_OK;
    }
    return SL_OK;
}

static sl_status check_fixed(const char *label, const sl_model_fixed *fixed, const json_t *root)
{
    for (; fixed && fixed->key; fixed++) {
        const json_t *value = json_object_get(root, fixed->key);
        if (!value || json_is_null(value))
            continue;
        if (!json_is_boolean(value))
            return wrong_kind(label, fixed->key, "true or false");
        if (json_is_true(value) != fixed->value)
            return sl_fail(SL_ERR_UNSUPPORTED, "%s: %s must be %s here", label, fixed->key,
                           fixed->value ? "true" : "false");
    }
    return SL_OK;
}

static sl_status find_family(const char *label, const json_t *root, const sl_model_family **out)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    char names[256];
    if (!type)
        return sl_fail(SL_ERR_FORMAT, "%s has no model_type", label);
    *out = sl_model_find_family(type);
    if (!*out || !(*out)->architecture)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: unknown model_type '%.40s'; known are %s", label, type,
                       sl_nn_family_names(names, sizeof names));
    return SL_OK;
}

static sl_status read_root(const char *label, const json_t *root, sl_model *out)
{
    sl_status status = SL_OK;
    const sl_model_family *family = NULL;

    if (!json_is_object(root))
        return sl_fail(SL_ERR_FORMAT, "%s is not a JSON object", label);
    SL_TRY(find_family(label, root, &family));
    sl_model model = sl_model_default(family);
    for (const sl_model_field *field = family->fields; field->key; field++) {
        const json_t *value = json_object_get(root, field->key);
        if (value)
            SL_TRY(read_field(label, field, value, model.config));
    }
    SL_TRY(check_fixed(label, family->fixed, root));
    if (family->read_json)
        SL_TRY(family->read_json(label, root, model.config));
    if (sl_model_check(&model) != SL_OK)
        return sl_fail_context(SL_ERR_FORMAT, "%s", label);
    *out = model;
done:
    return status;
}

sl_status sl_model_parse_config(const char *label, const char *text, size_t size, sl_model *out)
{
    json_error_t error;
    if (size > CONFIG_BYTES_MAX)
        return sl_fail(SL_ERR_FORMAT, "%s has %zu bytes; %d are allowed", label, size, CONFIG_BYTES_MAX);
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return sl_fail(SL_ERR_FORMAT, "%s, line %d: %s", label, error.line, error.text);
    sl_status status = read_root(label, root, out);
    json_decref(root);
    return status;
}

sl_status sl_model_load_config(const char *folder, sl_model *out)
{
    sl_status status = SL_OK;
    char *path = NULL;
    sl_file_bytes file = { 0 };

    SL_TRY(sl_path_join(folder, CONFIG_NAME, &path));
    SL_TRY(sl_file_read(path, &file));
    SL_TRY(sl_model_parse_config(path, file.size ? (const char *)file.data : "", file.size, out));
done:
    sl_file_bytes_free(&file);
    sl_free(path);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static json_t *tokens_json(const sl_token_ids *tokens)
{
    if (tokens->count <= 1)
        return tokens->count == 0 ? json_null() : json_integer(tokens->ids[0]);
    json_t *list = json_array();
    for (int64_t i = 0; i < tokens->count; i++)
        json_array_append_new(list, json_integer(tokens->ids[i]));
    return list;
}

static json_t *field_json(const sl_model_field *field, const void *config)
{
    const void *source = (const char *)config + field->offset;
    switch (field->kind) {
    case SL_FIELD_TOKENS:
        return tokens_json(source);
    case SL_FIELD_INT_OR_NULL:
        if (*(const int64_t *)source == (int64_t)field->min)
            return json_null();
        return json_integer(*(const int64_t *)source);
    case SL_FIELD_INT:
        return json_integer(*(const int64_t *)source);
    case SL_FIELD_REAL_OR_NULL:
        if (*(const double *)source == field->min)
            return json_null();
        return json_real(*(const double *)source);
    case SL_FIELD_REAL:
        return json_real(*(const double *)source);
    case SL_FIELD_BOOL:
        return json_boolean(*(const bool *)source);
    case SL_FIELD_ACTIVATION:
        return json_string(sl_nn_activation_name(*(const sl_activation *)source));
    }
    return NULL;
}

/* Numbers as short as they can be: 15 digits if those read back equal, else 17. */
static char *dump(const json_t *root)
{
    const size_t layout = JSON_INDENT(2) | JSON_SORT_KEYS;
    char *text = json_dumps(root, layout | JSON_REAL_PRECISION(15));
    json_t *back = text ? json_loads(text, 0, NULL) : NULL;
    bool equal = back && json_equal(root, back);
    json_decref(back);
    if (equal)
        return text;
    free(text);
    return json_dumps(root, layout | JSON_REAL_PRECISION(17));
}

static const char *torch_dtype(sl_dtype dtype)
{
    return dtype == SL_BF16 ? "bfloat16" : dtype == SL_F16 ? "float16" : "float32";
}

static json_t *build_root(const sl_model *model, sl_dtype dtype)
{
    const sl_model_family *family = model->family;
    json_t *root =
        json_pack("{s:s, s:[s], s:s, s:s, s:b}", "model_type", family->name, "architectures", family->architecture,
                  "dtype", torch_dtype(dtype), "torch_dtype", torch_dtype(dtype), "use_cache", 1);
    if (!root)
        return NULL;
    for (const sl_model_field *field = family->fields; field->key; field++)
        json_object_set_new(root, field->key, field_json(field, model->config));
    for (const sl_model_fixed *fixed = family->fixed; fixed && fixed->key; fixed++)
        json_object_set_new(root, fixed->key, json_boolean(fixed->value));
    if (family->write_json)
        family->write_json(model->config, root);
    return root;
}

sl_status sl_model_config_text(const sl_model *model, sl_dtype dtype, char **out)
{
    sl_status status = SL_OK;
    char *text = NULL;
    json_t *root = NULL;

    SL_TRY(sl_model_check(model));
    if (!model->family->architecture)
        return sl_fail(SL_ERR_UNSUPPORTED, "the family %s has no " CONFIG_NAME, model->family->name);
    root = build_root(model, dtype);
    text = root ? dump(root) : NULL;
    if (!text)
        SL_TRY(sl_fail(SL_ERR_MEMORY, CONFIG_NAME ": no memory for the text"));
    SL_TRY(sl_strdup(text, out));
done:
    free(text); /* jansson's */
    json_decref(root);
    return status;
}

sl_status sl_model_save_config(const sl_model *model, sl_dtype dtype, const char *folder)
{
    sl_status status = SL_OK;
    char *path = NULL, *text = NULL;

    SL_TRY(sl_model_config_text(model, dtype, &text));
    SL_TRY(sl_path_join(folder, CONFIG_NAME, &path));
    SL_TRY(sl_file_replace_text(path, text));
done:
    sl_free(text);
    sl_free(path);
    return status;
}
