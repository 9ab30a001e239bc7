/* The section `model` of a configuration as a model: general sizes, then the keys that only its family has. */
#include "train/config_keys.h"

#include "nn/family.h"

#include <stdio.h>
#include <string.h>

/* Fails with the place of the key that gave the value; config.json's key stands for a general one. */
static sl_status fail_at_field(const sl_train_config *config, const sl_model_family *family, const char *key)
{
    char name[128] = "model.family", message[512];
    snprintf(message, sizeof message, "%s", sl_error_message());
    for (const sl_model_field *field = family->fields; key && field->key; field++) {
        if (strcmp(field->key, key) == 0)
            snprintf(name, sizeof name, "model.%s", field->run_key ? field->run_key : key);
    }
    return sl_train_config_fail(config, name, "%s", message);
}

static sl_status fail_unknown(const sl_train_config *config, const sl_model_family *family, const char *name)
{
    char names[512];
    sl_config_list_names("model", names, sizeof names);
    size_t used = strlen(names);
    for (const sl_model_field *field = family->fields; field->key && used < sizeof names; field++) {
        if (!field->run_key)
            used += (size_t)snprintf(names + used, sizeof names - used, ", %s", field->key);
    }
    return sl_train_config_fail(config, name, "there is no such key; for %s there are %s", family->name, names);
}

static sl_status set_extras(const sl_train_config *config, sl_model *model)
{
    for (int i = 0; i < sl_config_own(config)->extra_count; i++) {
        const config_extra *extra = &sl_config_own(config)->extras[i];
        const char *key = extra->name + strlen("model.");
        const sl_model_field *field = model->family->fields;
        while (field->key && strcmp(field->key, key) != 0)
            field++;
        if (!field->key)
            return fail_unknown(config, model->family, extra->name);
        if (field->run_key)
            return sl_train_config_fail(config, extra->name, "here this is model.%s", field->run_key);
        if (extra->text && sl_model_set(model, key, extra->text) != SL_OK)
            return fail_at_field(config, model->family, key);
    }
    return SL_OK;
}

sl_status sl_config_model(const sl_train_config *config, int64_t vocab, int64_t positions, sl_model *out)
{
    const struct {
        const char *name; /* "model.", then the general name */
        double value;
    } sizes[] = {
        { .name = "model.vocab", .value = (double)vocab },
        { .name = "model.n_positions", .value = (double)positions },
        { .name = "model.n_layer", .value = (double)config->model.n_layer },
        { .name = "model.n_head", .value = (double)config->model.n_head },
        { .name = "model.n_kv_head", .value = (double)config->model.n_kv_head },
        { .name = "model.n_embd", .value = (double)config->model.n_embd },
        { .name = "model.n_inner", .value = (double)config->model.n_inner },
        { .name = "model.dropout", .value = config->model.dropout },
        { .name = "model.tie", .value = config->model.tie },
    };
    char names[256];
    const char *key = NULL;
    const sl_model_family *family = sl_model_find_family(config->model.family);
    if (!family || !family->architecture)
        return sl_train_config_fail(config, "model.family", "'%.100s' is not one of %s", config->model.family,
                                    sl_nn_family_names(names, sizeof names));
    sl_model model = sl_model_default(family);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *name = sizes[i].name;
        bool has = sl_nn_set(&model, name + strlen("model."), sizes[i].value);
        if (!has && sizes[i].value != 0 && sl_train_config_given(config, name))
            return sl_train_config_fail(config, name, "the family %s has none", family->name);
    }
    if (family->complete)
        family->complete(model.config);
    sl_status status = set_extras(config, &model);
    if (status != SL_OK)
        return status;
    if (sl_nn_check(&model, &key) != SL_OK)
        return fail_at_field(config, family, key);
    *out = model;
    return SL_OK;
}
