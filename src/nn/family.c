/* The registry of families, and the values of a model's configuration by their keys. */
#include "nn/family.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Registry -------------------------------------------------------------------------------- */

enum { FAMILY_LIMIT = 64 };

/* Entries are only ever added, so that a reader needs no lock. */
static _Atomic(const sl_model_family *) families[FAMILY_LIMIT] = {
    &sl_model_gpt2,    &sl_model_llama,    &sl_model_qwen2, &sl_model_qwen3,  &sl_model_mistral,
    &sl_model_smollm3, &sl_model_phi3,     &sl_model_gemma, &sl_model_gemma2, &sl_model_gemma3,
    &sl_model_olmo2,   &sl_model_gpt_neox, &sl_model_mlp
};

const sl_model_family *sl_model_family_at(int i)
{
    return i >= 0 && i < FAMILY_LIMIT ? atomic_load(&families[i]) : NULL;
}

const sl_model_family *sl_model_find_family(const char *name)
{
    const sl_model_family *each = NULL;
    for (int i = 0; (each = sl_model_family_at(i)); i++) {
        if (strlen(each->name) == strlen(name) && sl_case_compare(each->name, name, strlen(name)) == 0)
            break;
    }
    return each;
}

char *sl_nn_family_names(char *text, size_t size)
{
    const sl_model_family *each;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; (each = sl_model_family_at(i)) && used < size; i++) {
        if (each->architecture)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", each->name);
    }
    return text;
}

static size_t size_of(sl_model_field_kind kind)
{
    static const size_t sizes[] = {
        [SL_FIELD_INT] = sizeof(int64_t),        [SL_FIELD_INT_OR_NULL] = sizeof(int64_t),
        [SL_FIELD_REAL] = sizeof(double),        [SL_FIELD_REAL_OR_NULL] = sizeof(double),
        [SL_FIELD_BOOL] = sizeof(bool),          [SL_FIELD_ACTIVATION] = sizeof(sl_activation),
        [SL_FIELD_TOKENS] = sizeof(sl_token_ids)
    };
    return (unsigned)kind < sizeof sizes / sizeof *sizes ? sizes[kind] : SIZE_MAX;
}

/* A family that the rest of the library can rely on. */
static sl_status check_family(const sl_model_family *family)
{
    if (!family->name || !family->name[0])
        return sl_fail(SL_ERR_ARGUMENT, "the family has no name");
    if (!family->build || !family->defaults || !family->fields)
        return sl_fail(SL_ERR_ARGUMENT, "the family %s lacks build, defaults or fields", family->name);
    if (family->config_bytes > SL_MODEL_CONFIG_BYTES)
        return sl_fail(SL_ERR_ARGUMENT, "the configuration of the family %s has %zu bytes; %d are possible",
                       family->name, family->config_bytes, SL_MODEL_CONFIG_BYTES);
    for (const sl_model_field *field = family->fields; field->key; field++) {
        size_t size = size_of(field->kind);
        if (size > family->config_bytes || field->offset > family->config_bytes - size)
            return sl_fail(SL_ERR_ARGUMENT, "the family %s: %s lies outside of its configuration", family->name,
                           field->key);
    }
    const sl_model_field *tie = sl_nn_field(family, "tie");
    if (tie && (tie->kind != SL_FIELD_BOOL || !family->embedding || !family->head))
        return sl_fail(SL_ERR_ARGUMENT, "the family %s: %s needs a bool, an embedding and a head", family->name,
                       tie->key);
    if (family->architecture && (!sl_nn_field(family, "vocab") || !sl_nn_field(family, "n_positions")))
        return sl_fail(SL_ERR_ARGUMENT, "the family %s has no field for vocab or n_positions", family->name);
    sl_model model = sl_model_default(family);
    sl_status status = sl_model_check(&model);
    return status == SL_OK ? SL_OK : sl_fail_context(status, "the defaults of the family %s", family->name);
}

sl_status sl_model_register(const sl_model_family *family)
{
    sl_status status = check_family(family);
    if (status != SL_OK)
        return status;
    for (int i = 0; i < FAMILY_LIMIT; i++) {
        const sl_model_family *there = NULL;
        if (atomic_compare_exchange_strong(&families[i], &there, family) || there == family)
            return SL_OK;
        if (strcmp(there->name, family->name) == 0)
            return sl_fail(SL_ERR_ARGUMENT, "there is another family %s already", family->name);
    }
    return sl_fail(SL_ERR_ARGUMENT, "there are %d families already; %s is one too many", FAMILY_LIMIT, family->name);
}

/* ---- Activations ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    sl_activation activation;
} activations[] = {
    { .name = "gelu_new", .activation = SL_ACT_GELU_TANH },
    { .name = "gelu_pytorch_tanh", .activation = SL_ACT_GELU_TANH },
    { .name = "gelu", .activation = SL_ACT_GELU_ERF },
    { .name = "silu", .activation = SL_ACT_SILU },
    { .name = "swish", .activation = SL_ACT_SILU },
    { .name = "relu", .activation = SL_ACT_RELU },
    { .name = "tanh", .activation = SL_ACT_TANH },
};
enum { ACTIVATION_NAMES = sizeof activations / sizeof *activations };

sl_status sl_nn_parse_activation(const char *text, sl_activation *out)
{
    for (int i = 0; i < ACTIVATION_NAMES; i++) {
        if (strcmp(text, activations[i].name) == 0) {
            *out = activations[i].activation;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_UNSUPPORTED, "unknown activation '%.40s'; gelu_new, gelu, silu, relu and tanh are known",
                   text);
}

const char *sl_nn_activation_name(sl_activation activation)
{
    for (int i = 0; i < ACTIVATION_NAMES; i++) {
        if (activations[i].activation == activation)
            return activations[i].name;
    }
    return "?";
}

/* ---- Values ---------------------------------------------------------------------------------- */

sl_model sl_model_default(const sl_model_family *family)
{
    sl_model model = { .family = family };
    memcpy(model.config, family->defaults, family->config_bytes);
    return model;
}

const sl_model_field *sl_nn_field(const sl_model_family *family, const char *run_key)
{
    for (const sl_model_field *field = family->fields; field->key; field++) {
        if (field->run_key && strcmp(field->run_key, run_key) == 0)
            return field;
    }
    return NULL;
}

int64_t sl_nn_int(const sl_model *model, const char *run_key, int64_t otherwise)
{
    const sl_model_field *field = sl_nn_field(model->family, run_key);
    return field ? *(const int64_t *)(const void *)(model->config + field->offset) : otherwise;
}

sl_token_ids sl_model_end_tokens(const sl_model *model)
{
    sl_token_ids ids = { .count = 0 };
    for (const sl_model_field *field = model->family->fields; field->key; field++) {
        if (field->kind == SL_FIELD_TOKENS && strcmp(field->key, "eos_token_id") == 0)
            memcpy(&ids, model->config + field->offset, sizeof ids);
    }
    return ids;
}

bool sl_nn_tied(const sl_model *model)
{
    const sl_model_field *field = sl_nn_field(model->family, "tie");
    return field && *(const bool *)(model->config + field->offset);
}

bool sl_nn_set(sl_model *model, const char *run_key, double value)
{
    bool found = false;
    for (const sl_model_field *field = model->family->fields; field->key; field++) {
        void *target = model->config + field->offset;
        if (!field->run_key || strcmp(field->run_key, run_key) != 0)
            continue;
        if (field->kind == SL_FIELD_REAL || field->kind == SL_FIELD_REAL_OR_NULL)
            *(double *)target = value;
        else if (field->kind == SL_FIELD_BOOL)
            *(bool *)target = value != 0;
        else
            *(int64_t *)target = (int64_t)value;
        found = true;
    }
    return found;
}

static sl_status parse_tokens(const sl_model_field *field, const char *text, sl_token_ids *out)
{
    sl_token_ids tokens = { .count = 0 };
    char item[32];
    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',') {
        if (tokens.count == SL_TOKEN_IDS_MAX)
            return sl_fail(SL_ERR_ARGUMENT, "%s: more than %d ids", field->key, SL_TOKEN_IDS_MAX);
        snprintf(item, sizeof item, "%.*s", (int)strcspn(at, ","), at);
        if (sl_parse_int(field->key, item, (int64_t)field->min, (int64_t)field->max, &tokens.ids[tokens.count++]) !=
            SL_OK)
            return SL_ERR_ARGUMENT;
    }
    *out = tokens;
    return SL_OK;
}

sl_status sl_model_set(sl_model *model, const char *key, const char *text)
{
    const sl_model_field *field = model->family->fields;
    while (field->key && strcmp(field->key, key) != 0)
        field++;
    if (!field->key)
        return sl_fail(SL_ERR_ARGUMENT, "the family %s has no key '%.100s'", model->family->name, key);
    void *target = model->config + field->offset;
    switch (field->kind) {
    case SL_FIELD_INT:
    case SL_FIELD_INT_OR_NULL:
        return sl_parse_int(key, text, (int64_t)field->min, (int64_t)field->max, target);
    case SL_FIELD_REAL:
    case SL_FIELD_REAL_OR_NULL:
        return sl_parse_double(key, text, field->min, field->max, target);
    case SL_FIELD_BOOL:
        return sl_parse_bool(key, text, target);
    case SL_FIELD_ACTIVATION:
        return sl_nn_parse_activation(text, target);
    case SL_FIELD_TOKENS:
        return parse_tokens(field, text, target);
    }
    return SL_OK;
}

/* ---- Limits ---------------------------------------------------------------------------------- */

static sl_status check_int(const sl_model_field *field, int64_t value)
{
    if ((double)value >= field->min && (double)value <= field->max)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "%s is %" PRId64 "; %.0f to %.0f are possible", field->key, value, field->min,
                   field->max);
}

static sl_status check_field(const sl_model_field *field, const void *value)
{
    const sl_token_ids *tokens = value;
    switch (field->kind) {
    case SL_FIELD_BOOL:
        return SL_OK;
    case SL_FIELD_ACTIVATION:
        if ((unsigned)*(const sl_activation *)value > SL_ACT_TANH)
            return sl_fail(SL_ERR_ARGUMENT, "%s is not an activation", field->key);
        return SL_OK;
    case SL_FIELD_REAL:
    case SL_FIELD_REAL_OR_NULL:
        if (!(*(const double *)value >= field->min && *(const double *)value <= field->max))
            return sl_fail(SL_ERR_ARGUMENT, "%s is %g; %g to %g are possible", field->key, *(const double *)value,
                           field->min, field->max);
        return SL_OK;
    case SL_FIELD_TOKENS:
        if (tokens->count < 0 || tokens->count > SL_TOKEN_IDS_MAX)
            return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " ids; 0 to %d are possible", field->key, tokens->count,
                           SL_TOKEN_IDS_MAX);
        for (int64_t i = 0; i < tokens->count; i++) {
            if (check_int(field, tokens->ids[i]) != SL_OK)
                return SL_ERR_ARGUMENT;
        }
        return SL_OK;
    default:
        return check_int(field, *(const int64_t *)value);
    }
}

sl_status sl_nn_check(const sl_model *model, const char **key)
{
    *key = NULL;
    if (!model->family)
        return sl_fail(SL_ERR_ARGUMENT, "the model has no family");
    for (const sl_model_field *field = model->family->fields; field->key; field++) {
        if (check_field(field, model->config + field->offset) != SL_OK) {
            *key = field->key;
            return SL_ERR_ARGUMENT;
        }
    }
    return model->family->check ? model->family->check(model->config, key) : SL_OK;
}

sl_status sl_model_check(const sl_model *model)
{
    const char *key;
    return sl_nn_check(model, &key);
}

int64_t sl_model_vocab(const sl_model *model)
{
    return sl_nn_int(model, "vocab", 0);
}

int64_t sl_model_positions(const sl_model *model)
{
    if (model->family->positions)
        return model->family->positions(model->config);
    return sl_nn_int(model, "n_positions", 1);
}

int64_t sl_model_layers(const sl_model *model)
{
    return sl_nn_int(model, "n_layer", 0);
}
