/* config.json: Hugging Face's description of a model, read and written. */
#include "nn/config.h"

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
static sl_status read_field(const char *label, const config_field *field, const json_t *value, void *config)
{
    void *target = (char *)config + field->offset;
    switch (field->kind) {
    case CONFIG_INT_OR_NULL:
        if (json_is_null(value)) {
            *(int64_t *)target = (int64_t)field->min;
            return SL_OK;
        } /* fall through */
    case CONFIG_INT:
        if (!json_is_integer(value))
            return wrong_kind(label, field->key, "a whole number");
        *(int64_t *)target = json_integer_value(value);
        return SL_OK;
    case CONFIG_TOKENS:
        return read_tokens(label, field->key, value, target);
    case CONFIG_REAL:
        if (!json_is_number(value))
            return wrong_kind(label, field->key, "a number");
        *(double *)target = json_number_value(value);
        return SL_OK;
    case CONFIG_BOOL:
        if (!json_is_boolean(value))
            return wrong_kind(label, field->key, "true or false");
        *(bool *)target = json_is_true(value);
        return SL_OK;
    case CONFIG_ACTIVATION:
        if (!json_is_string(value))
            return wrong_kind(label, field->key, "a text");
        if (sl_nn_parse_activation(json_string_value(value), target) != SL_OK)
            return sl_fail_context(SL_ERR_UNSUPPORTED, "%s: %s", label, field->key);
        return SL_OK;
    }
    return SL_OK;
}

static sl_status check_fixed(const char *label, const config_family *family, const json_t *root)
{
    for (int i = 0; i < family->fixed_count; i++) {
        const json_t *value = json_object_get(root, family->fixed[i].key);
        if (value && !json_is_boolean(value))
            return wrong_kind(label, family->fixed[i].key, "true or false");
        if (value && json_is_true(value) != family->fixed[i].value)
            return sl_fail(SL_ERR_UNSUPPORTED, "%s: %s must be %s here", label, family->fixed[i].key,
                           family->fixed[i].value ? "true" : "false");
    }
    return SL_OK;
}

/* A number of the object, where it is there. */
static sl_status read_real(const char *label, const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return SL_OK;
    if (!json_is_number(value))
        return wrong_kind(label, key, "a number");
    *out = json_number_value(value);
    return SL_OK;
}

/* Rotary embedding: rope_theta and rope_scaling of old files, rope_parameters of new ones. */
static sl_status read_rope(const char *label, const json_t *root, sl_rope_config *rope)
{
    sl_status status = SL_OK;
    const json_t *object = json_object_get(root, "rope_parameters");
    if (!object || json_is_null(object))
        object = json_object_get(root, "rope_scaling");
    SL_TRY(read_real(label, root, "rope_theta", &rope->theta));
    if (!object || json_is_null(object))
        return SL_OK;
    if (!json_is_object(object))
        return wrong_kind(label, "rope_parameters", "an object");
    const json_t *type = json_object_get(object, "rope_type");
    const char *name = json_string_value(type ? type : json_object_get(object, "type"));
    if (!name)
        return sl_fail(SL_ERR_FORMAT, "%s: rope_parameters have no rope_type", label);
    if (strcmp(name, "default") == 0)
        rope->kind = SL_ROPE_DEFAULT;
    else if (strcmp(name, "linear") == 0)
        rope->kind = SL_ROPE_LINEAR;
    else if (strcmp(name, "llama3") == 0)
        rope->kind = SL_ROPE_LLAMA3;
    else
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: unknown rope_type '%.40s'; default, linear and llama3 are known", label,
                       name);
    double original = 0;
    SL_TRY(read_real(label, object, "rope_theta", &rope->theta));
    SL_TRY(read_real(label, object, "factor", &rope->factor));
    SL_TRY(read_real(label, object, "low_freq_factor", &rope->low_freq_factor));
    SL_TRY(read_real(label, object, "high_freq_factor", &rope->high_freq_factor));
    SL_TRY(read_real(label, object, "original_max_position_embeddings", &original));
    if (!(original >= 0 && original <= INT32_MAX))
        return sl_fail(SL_ERR_FORMAT, "%s: original_max_position_embeddings %g is impossible", label, original);
    rope->original_max_position_embeddings = (int64_t)original;
done:
    return status;
}

static sl_status find_family(const char *label, const json_t *root, sl_model_family *out)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type)
        return sl_fail(SL_ERR_FORMAT, "%s has no model_type", label);
    for (int i = 0; sl_nn_family((sl_model_family)i); i++) {
        const config_family *family = sl_nn_family((sl_model_family)i);
        if (family->model_type && strcmp(type, family->model_type) == 0) {
            *out = (sl_model_family)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_UNSUPPORTED, "%s: unknown model_type '%.40s'; gpt2 and llama are known", label, type);
}

static sl_status read_root(const char *label, const json_t *root, sl_model *out)
{
    sl_status status = SL_OK;
    sl_model_family family_id = SL_MODEL_GPT2;

    if (!json_is_object(root))
        return sl_fail(SL_ERR_FORMAT, "%s is not a JSON object", label);
    SL_TRY(find_family(label, root, &family_id));
    sl_model model = sl_model_default(family_id);
    const config_family *family = sl_nn_family(family_id);
    for (int i = 0; i < family->field_count; i++) {
        const json_t *value = json_object_get(root, family->fields[i].key);
        if (value)
            SL_TRY(read_field(label, &family->fields[i], value, &model.gpt2));
    }
    SL_TRY(check_fixed(label, family, root));
    if (family_id == SL_MODEL_LLAMA) {
        const json_t *value = json_object_get(root, "hidden_act");
        const char *act = json_string_value(value);
        if (value && !act)
            return wrong_kind(label, "hidden_act", "a text");
        if (act && strcmp(act, "silu") != 0)
            return sl_fail(SL_ERR_UNSUPPORTED, "%s: hidden_act '%.40s'; llama has silu", label, act);
        SL_TRY(read_rope(label, root, &model.llama.rope));
    }
    status = sl_model_check(&model);
    if (status != SL_OK)
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
    sl_file_map map = { 0 };

    SL_TRY(sl_path_join(folder, CONFIG_NAME, &path));
    SL_TRY(sl_file_map_open(path, &map));
    SL_TRY(sl_model_parse_config(path, map.size ? (const char *)map.data : "", map.size, out));
done:
    sl_file_map_close(&map);
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

static json_t *field_json(const config_field *field, const void *config)
{
    const void *source = (const char *)config + field->offset;
    switch (field->kind) {
    case CONFIG_TOKENS:
        return tokens_json(source);
    case CONFIG_INT_OR_NULL:
        if (*(const int64_t *)source == (int64_t)field->min)
            return json_null();
        return json_integer(*(const int64_t *)source);
    case CONFIG_INT:
        return json_integer(*(const int64_t *)source);
    case CONFIG_REAL:
        return json_real(*(const double *)source);
    case CONFIG_BOOL:
        return json_boolean(*(const bool *)source);
    case CONFIG_ACTIVATION:
        return json_string(sl_nn_activation_name(*(const sl_activation *)source));
    }
    return NULL;
}

/* Both spellings, so that old and new readers find theirs. */
static void put_rope(json_t *root, const sl_rope_config *rope)
{
    static const char *const names[] = { "default", "linear", "llama3" };
    json_t *parameters = json_pack("{s:s}", "rope_type", names[rope->kind]);
    if (rope->kind != SL_ROPE_DEFAULT)
        json_object_set_new(parameters, "factor", json_real(rope->factor));
    if (rope->kind == SL_ROPE_LLAMA3) {
        json_object_set_new(parameters, "low_freq_factor", json_real(rope->low_freq_factor));
        json_object_set_new(parameters, "high_freq_factor", json_real(rope->high_freq_factor));
        json_object_set_new(parameters, "original_max_position_embeddings",
                            json_integer(rope->original_max_position_embeddings));
    }
    json_object_set_new(root, "rope_theta", json_real(rope->theta));
    json_object_set_new(root, "rope_scaling", rope->kind == SL_ROPE_DEFAULT ? json_null() : json_deep_copy(parameters));
    json_object_set_new(parameters, "rope_theta", json_real(rope->theta));
    json_object_set_new(root, "rope_parameters", parameters);
}

/* Numbers as short as they can be: 15 digits where those read back equal, else 17. */
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
    const config_family *family = sl_nn_family(model->family);
    json_t *root =
        json_pack("{s:s, s:[s], s:s, s:s, s:b}", "model_type", family->model_type, "architectures",
                  family->architecture, "dtype", torch_dtype(dtype), "torch_dtype", torch_dtype(dtype), "use_cache", 1);
    for (int i = 0; root && i < family->field_count; i++)
        json_object_set_new(root, family->fields[i].key, field_json(&family->fields[i], &model->gpt2));
    for (int i = 0; root && i < family->fixed_count; i++)
        json_object_set_new(root, family->fixed[i].key, json_boolean(family->fixed[i].value));
    if (root && model->family == SL_MODEL_LLAMA) {
        json_object_set_new(root, "hidden_act", json_string("silu"));
        put_rope(root, &model->llama.rope);
    }
    return root;
}

sl_status sl_model_config_text(const sl_model *model, sl_dtype dtype, char **out)
{
    sl_status status = SL_OK;
    char *text = NULL;
    json_t *root = NULL;

    SL_TRY(sl_model_check(model));
    if (!sl_nn_family(model->family)->model_type)
        return sl_fail(SL_ERR_UNSUPPORTED, "the family %s has no " CONFIG_NAME, sl_model_family_name(model->family));
    root = build_root(model, dtype);
    text = root ? dump(root) : NULL;
    if (!text) {
        status = sl_fail(SL_ERR_MEMORY, CONFIG_NAME ": no memory for the text");
        goto done;
    }
    *out = text;
done:
    json_decref(root);
    return status;
}

sl_status sl_model_save_config(const sl_model *model, sl_dtype dtype, const char *folder)
{
    sl_status status = SL_OK;
    char *path = NULL, *text = NULL;

    SL_TRY(sl_model_config_text(model, dtype, &text));
    SL_TRY(sl_path_join(folder, CONFIG_NAME, &path));
    SL_TRY(sl_file_replace(path, text, strlen(text)));
done:
    free(text);
    sl_free(path);
    return status;
}
