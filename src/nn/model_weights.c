/* A model's weights in a Hugging Face folder: every parameter found under its name, nothing left over. */
#include "nn/family.h"

#include "base/alloc.h"
#include "base/file.h"
#include "shard/safetensors.h"

#include <stdio.h>
#include <string.h>

#define CONFIG "config.json"

struct sl_model_weights {
    sl_param_list *params;
    sl_weights *files;
    const sl_tensor_entry **entries; /* one a parameter */
};

/* What Hugging Face puts before all names but the head's; files of the bare model lack it. */
static const char *root_of(const sl_model *model)
{
    return model->family->root ? model->family->root : "";
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_ignored(const sl_model *model, const char *name)
{
    for (const char *const *end = model->family->ignored; end && *end; end++) {
        if (ends_with(name, *end))
            return true;
    }
    return false;
}

/* Names for a message: at most a few, then how many more. */
typedef struct name_list {
    char text[512];
    size_t used;
    int count;
} name_list;

static void name_add(name_list *list, const char *name)
{
    enum { SHOWN = 6 };
    if (list->count++ < SHOWN && list->used < sizeof list->text)
        list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used, "%s'%.60s'",
                                       list->used ? ", " : "", name);
}

static sl_status name_fail(const char *folder, const char *what, const name_list *list)
{
    return sl_fail(SL_ERR_FORMAT, "%s: %d %s: %s%s", folder, list->count, what, list->text,
                   list->count > 6 ? " and more" : "");
}

/* Fills weights->entries; the name of the file's tensor is the parameter's, with or without the root. */
static sl_status match(const sl_model *model, const char *folder, sl_model_weights *weights)
{
    const char *root = root_of(model);
    name_list missing = { .text = "" };
    for (int i = 0; i < sl_param_list_count(weights->params); i++) {
        const char *name = sl_param_list_at(weights->params, i)->name;
        const sl_tensor_entry *entry = sl_weights_find(weights->files, name);
        if (!entry && strncmp(name, root, strlen(root)) == 0)
            entry = sl_weights_find(weights->files, name + strlen(root));
        if (!entry)
            name_add(&missing, name);
        weights->entries[i] = entry;
    }
    return missing.count ? name_fail(folder, "missing", &missing) : SL_OK;
}

/* Whether a parameter took this tensor, under its full name or the one without the root. */
static bool is_used(const sl_model *model, const sl_model_weights *weights, const sl_tensor_entry *entry)
{
    char full[512];
    int index = sl_param_list_find(weights->params, entry->name);
    if (index < 0 && (size_t)snprintf(full, sizeof full, "%s%s", root_of(model), entry->name) < sizeof full)
        index = sl_param_list_find(weights->params, full);
    return index >= 0 && weights->entries[index] == entry;
}

/* A tied head may stand in the file a second time; then it should be what it is tied to. */
static sl_status check_tied(const sl_model *model, const char *folder, const sl_model_weights *weights,
                            const sl_tensor_entry *head)
{
    const sl_tensor_entry *table = sl_model_weights_find(weights, model->family->embedding);
    bool same = true;
    sl_status status = table ? sl_tensor_entry_compare(head, table, &same) : SL_OK;
    if (status == SL_OK && !same)
        sl_log(SL_LOG_WARN, "%s: '%s' differs from '%s', which it is tied to; the latter is used", folder, head->name,
               table->name);
    return status;
}

static sl_status check_superfluous(const sl_model *model, const char *folder, const sl_model_weights *weights)
{
    sl_status status = SL_OK;
    name_list superfluous = { .text = "" };
    const char *head = sl_nn_tied(model) ? model->family->head : NULL;
    for (int i = 0; i < sl_weights_count(weights->files); i++) {
        const sl_tensor_entry *entry = sl_weights_at(weights->files, i);
        if (is_used(model, weights, entry) || is_ignored(model, entry->name))
            continue;
        if (head && strcmp(entry->name, head) == 0)
            SL_TRY(check_tied(model, folder, weights, entry));
        else
            name_add(&superfluous, entry->name);
    }
    if (superfluous.count)
        status = name_fail(folder, "superfluous", &superfluous);
done:
    return status;
}

static sl_status check_shapes(const char *folder, const sl_model_weights *weights)
{
    char expected[160], given[160];
    for (int i = 0; i < sl_param_list_count(weights->params); i++) {
        const sl_param_info *param = sl_param_list_at(weights->params, i);
        const sl_tensor_entry *entry = weights->entries[i];
        if (!sl_shape_equal(&param->shape, &entry->shape))
            return sl_fail(SL_ERR_SHAPE, "%s: '%s' is %s, the model needs %s", folder, entry->name,
                           sl_shape_text(&entry->shape, given, sizeof given),
                           sl_shape_text(&param->shape, expected, sizeof expected));
        if (entry->dtype != SL_F32 && entry->dtype != SL_BF16 && entry->dtype != SL_F16)
            return sl_fail(SL_ERR_UNSUPPORTED, "%s: '%s' has the dtype %s; weights are f32, bf16 or f16", folder,
                           entry->name, sl_dtype_name(entry->dtype));
    }
    return SL_OK;
}

sl_status sl_model_weights_open(const sl_model *model, const char *folder, sl_model_weights **out)
{
    sl_status status = SL_OK;
    sl_model_weights *weights = NULL;

    SL_TRY(SL_NEW(weights));
    SL_TRY(sl_model_params(model, &weights->params));
    SL_TRY(sl_weights_open(folder, &weights->files));
    SL_TRY(SL_NEW_ARRAY(weights->entries, sl_param_list_count(weights->params)));
    SL_TRY(match(model, folder, weights));
    SL_TRY(check_superfluous(model, folder, weights));
    SL_TRY(check_shapes(folder, weights));
    *out = weights;
    weights = NULL;
done:
    sl_model_weights_close(weights);
    return status;
}

void sl_model_weights_close(sl_model_weights *weights)
{
    if (!weights)
        return;
    sl_free(weights->entries);
    sl_weights_close(weights->files);
    sl_param_list_destroy(weights->params);
    sl_free(weights);
}

const sl_tensor_entry *sl_model_weights_find(const sl_model_weights *weights, const char *param)
{
    int index = sl_param_list_find(weights->params, param);
    return index < 0 ? NULL : weights->entries[index];
}

sl_status sl_model_weights_read(const sl_model_weights *weights, const char *param, int64_t first, int64_t count,
                                float *out)
{
    const sl_tensor_entry *entry = sl_model_weights_find(weights, param);
    if (!entry)
        return sl_fail(SL_ERR_ARGUMENT, "the model has no parameter '%s'", param);
    return sl_tensor_entry_read_f32(entry, first, count, out);
}

/* ---- Saving ---------------------------------------------------------------------------------- */

/* The entries in the order of the parameters; each must be there, with its shape, in f32. */
static sl_status arrange(const sl_param_list *params, const sl_tensor_entry *entries, int count,
                         sl_tensor_entry *sorted)
{
    name_list missing = { .text = "" };
    for (int i = 0; i < count; i++) {
        int at = sl_param_list_find(params, entries[i].name);
        if (at < 0)
            return sl_fail(SL_ERR_ARGUMENT, "the model has no parameter '%s' to save", entries[i].name);
        const sl_param_info *param = sl_param_list_at(params, at);
        if (!sl_shape_equal(&entries[i].shape, &param->shape) || entries[i].dtype != SL_F32) {
            char expected[160], given[160];
            return sl_fail(SL_ERR_SHAPE, "'%s' is %s %s, the model has f32 %s", param->name,
                           sl_dtype_name(entries[i].dtype), sl_shape_text(&entries[i].shape, given, sizeof given),
                           sl_shape_text(&param->shape, expected, sizeof expected));
        }
        sorted[at] = entries[i];
    }
    for (int i = 0; i < sl_param_list_count(params); i++) {
        if (!sorted[i].name)
            name_add(&missing, sl_param_list_at(params, i)->name);
    }
    return missing.count ? name_fail("weights to save", "missing", &missing) : SL_OK;
}

/* Elements of f32, from memory or from a file, as another dtype. */
static sl_status convert_one(const sl_tensor_entry *entry, int64_t elements, sl_dtype dtype, char *to)
{
    sl_status status = SL_OK;
    enum { BLOCK = 4096 };
    float block[BLOCK];
    if (entry->data || !entry->file)
        return sl_f32_convert(entry->data, elements, dtype, to);
    for (int64_t at = 0; at < elements; at += BLOCK) {
        int64_t count = elements - at < BLOCK ? elements - at : BLOCK;
        SL_TRY(sl_tensor_entry_read_f32(entry, at, count, block));
        SL_TRY(sl_f32_convert(block, count, dtype, to + (size_t)at * sl_dtype_size(dtype)));
    }
done:
    return status;
}

/* Replaces the entries by copies of another dtype in *buffer. */
static sl_status convert(sl_tensor_entry *entries, int count, sl_dtype dtype, void **buffer)
{
    sl_status status = SL_OK;
    size_t total = 0, at = 0;
    int64_t elements;

    for (int i = 0; i < count; i++) {
        SL_TRY(sl_shape_count(&entries[i].shape, &elements));
        total += (size_t)elements * sl_dtype_size(dtype);
    }
    SL_TRY(sl_alloc(total, 1, buffer));
    for (int i = 0; i < count; i++) {
        char *to = (char *)*buffer + at;
        SL_TRY(sl_shape_count(&entries[i].shape, &elements));
        SL_TRY(convert_one(&entries[i], elements, dtype, to));
        entries[i].data = to;
        entries[i].file = NULL;
        entries[i].dtype = dtype;
        at += (size_t)elements * sl_dtype_size(dtype);
    }
done:
    return status;
}

static bool is_of_a_model(const char *name)
{
    return strcmp(name, CONFIG) == 0 || sl_weights_is_file(name);
}

sl_status sl_model_save(const sl_model *model, const sl_tensor_entry *entries, int count, sl_dtype dtype,
                        size_t shard_bytes, const char *folder)
{
    static const char *const marks[] = { WEIGHTS_INDEX, WEIGHTS_SINGLE, CONFIG, NULL };
    sl_status status = SL_OK;
    sl_param_list *params = NULL;
    sl_tensor_entry *sorted = NULL;
    void *buffer = NULL;
    char *draft = NULL;

    SL_TRY(sl_model_params(model, &params));
    int param_count = sl_param_list_count(params);
    SL_TRY(SL_NEW_ARRAY(sorted, param_count));
    SL_TRY(arrange(params, entries, count, sorted));
    if (dtype != SL_F32)
        SL_TRY(convert(sorted, param_count, dtype, &buffer));
    SL_TRY(sl_folder_make(folder));
    SL_TRY(sl_draft_begin(folder, &draft));
    SL_TRY(sl_model_save_config(model, dtype, draft));
    SL_TRY(sl_weights_save(draft, sorted, param_count, shard_bytes));
    SL_TRY(sl_draft_publish(draft, folder, marks, is_of_a_model));
done:
    if (status != SL_OK)
        sl_folder_discard(draft);
    sl_free(draft);
    sl_free(buffer);
    sl_free(sorted);
    sl_param_list_destroy(params);
    return status;
}
