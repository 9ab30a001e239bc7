/* Descriptions of the things Sluice reads and writes. */
#include "info.h"

#include "base/alloc.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ---- Lines ----------------------------------------------------------------------------------- */

/* The brace comes with the first line, so that what cannot be opened prints nothing. */
static void begin_line(info_writer *out)
{
    if (out->as_json && !out->begun)
        sl_json_begin(&out->json, '{');
    out->begun = true;
}

void info_end(info_writer *out)
{
    if (!out->as_json)
        return;
    sl_json_end(&out->json, '}');
    putchar('\n');
}

/* Values come from files: nothing in them may reach a terminal as a command. */
static void print_line(const char *key, const char *value)
{
    char text[4096];
    snprintf(text, sizeof text, "%s", value);
    printf("%-13s %s\n", key, sl_text_clean(text));
}

void info_text(info_writer *out, const char *key, const char *value)
{
    begin_line(out);
    if (out->as_json)
        sl_json_put_string(&out->json, key, value);
    else
        print_line(key, value);
}

void info_int(info_writer *out, const char *key, int64_t value)
{
    begin_line(out);
    if (out->as_json)
        sl_json_put_int(&out->json, key, value);
    else
        printf("%-13s %" PRId64 "\n", key, value);
}

/* ---- Tensors and models ---------------------------------------------------------------------- */

/* A table of tensors; next gives them one by one and NULL at the end. */
static void list_tensors(info_writer *out, const void *from, int count, const sl_tensor_entry *(*at)(const void *, int))
{
    int64_t elements = 0, bytes = 0;
    for (int i = 0; i < count; i++) {
        elements += at(from, i)->count;
        bytes += (int64_t)at(from, i)->bytes;
    }
    info_int(out, "tensors", count);
    info_int(out, "elements", elements);
    info_int(out, "tensor_bytes", bytes);
    if (out->as_json) {
        sl_json_key(&out->json, "list");
        sl_json_begin(&out->json, '[');
    }
    for (int i = 0; i < count; i++) {
        const sl_tensor_entry *entry = at(from, i);
        char shape[128];
        sl_shape_text(&entry->shape, shape, sizeof shape);
        if (!out->as_json) {
            char name[1024];
            snprintf(name, sizeof name, "%s", entry->name);
            printf("  %-4s %-16s %s\n", sl_dtype_name(entry->dtype), shape, sl_text_clean(name));
            continue;
        }
        sl_json_newline(&out->json);
        sl_json_begin(&out->json, '{');
        sl_json_put_string(&out->json, "name", entry->name);
        sl_json_put_string(&out->json, "dtype", sl_dtype_name(entry->dtype));
        sl_json_put_string(&out->json, "shape", shape);
        sl_json_end(&out->json, '}');
    }
    if (out->as_json)
        sl_json_end(&out->json, ']');
}

static const sl_tensor_entry *at_safetensors(const void *from, int i)
{
    return sl_safetensors_at(from, i);
}

static const sl_tensor_entry *at_checkpoint(const void *from, int i)
{
    return sl_checkpoint_at(from, i);
}

static const sl_tensor_entry *at_weights(const void *from, int i)
{
    return sl_weights_at(from, i);
}

static sl_status describe_model(const sl_model *model, info_writer *out)
{
    sl_param_list *params = NULL;
    sl_status status = sl_model_params(model, &params);
    if (status != SL_OK)
        return status;
    info_text(out, "family", model->family->name);
    info_int(out, "layers", sl_model_layers(model));
    info_int(out, "vocabulary", sl_model_vocab(model));
    info_int(out, "positions", sl_model_positions(model));
    info_int(out, "parameters", sl_param_list_elements(params));
    sl_param_list_destroy(params);
    return SL_OK;
}

sl_status info_safetensors(const char *path, info_writer *out)
{
    sl_safetensors *file = NULL;
    sl_status status = sl_safetensors_open(path, &file);
    if (status != SL_OK)
        return status;
    info_text(out, "kind", "safetensors");
    info_text(out, "path", path);
    list_tensors(out, file, sl_safetensors_count(file), at_safetensors);
    sl_safetensors_close(file);
    return SL_OK;
}

sl_status info_model_folder(const char *path, info_writer *out)
{
    sl_status status = SL_OK;
    sl_model model;
    sl_weights *weights = NULL;
    SL_TRY(sl_model_load_config(path, &model));
    SL_TRY(sl_weights_open(path, &weights));
    info_text(out, "kind", "Hugging Face folder");
    info_text(out, "path", path);
    SL_TRY(describe_model(&model, out));
    list_tensors(out, weights, sl_weights_count(weights), at_weights);
done:
    sl_weights_close(weights);
    return status;
}

/* ---- Checkpoints and runs -------------------------------------------------------------------- */

static sl_status describe_checkpoint(const sl_checkpoint *checkpoint, info_writer *out)
{
    sl_status status = SL_OK;
    sl_model model;
    const char *text = sl_checkpoint_attribute(checkpoint, "model");
    info_int(out, "step", sl_checkpoint_step(checkpoint));
    info_int(out, "files", sl_checkpoint_file_count(checkpoint));
    info_int(out, "bytes", sl_checkpoint_bytes(checkpoint));
    if (text) {
        SL_TRY(sl_model_parse_config(sl_checkpoint_path(checkpoint), text, strlen(text), &model));
        SL_TRY(describe_model(&model, out));
    }
    if (sl_checkpoint_attribute(checkpoint, "mesh"))
        info_text(out, "mesh", sl_checkpoint_attribute(checkpoint, "mesh"));
    if (sl_checkpoint_attribute(checkpoint, "precision"))
        info_text(out, "precision", sl_checkpoint_attribute(checkpoint, "precision"));
    if (sl_checkpoint_attribute(checkpoint, "documents"))
        info_text(out, "boundary", sl_checkpoint_attribute(checkpoint, "documents"));
    if (sl_checkpoint_attribute(checkpoint, "tokenizer"))
        info_text(out, "tokenizer", sl_checkpoint_attribute(checkpoint, "tokenizer"));
done:
    return status;
}

sl_status info_checkpoint(const char *path, bool verify, info_writer *out)
{
    sl_status status = SL_OK;
    sl_checkpoint *checkpoint = NULL;
    SL_TRY(sl_checkpoint_open(path, verify, &checkpoint));
    info_text(out, "kind", "checkpoint");
    info_text(out, "path", path);
    SL_TRY(describe_checkpoint(checkpoint, out));
    if (verify)
        info_text(out, "verified", "every file has the bytes that were written");
    list_tensors(out, checkpoint, sl_checkpoint_count(checkpoint), at_checkpoint);
done:
    sl_checkpoint_close(checkpoint);
    return status;
}

/* A run that has no checkpoint yet: its plan says what its ranks are. */
static void describe_plan(const char *path, info_writer *out)
{
    char file[4096];
    snprintf(file, sizeof file, "%s/plan.json", path);
    json_t *plan = json_load_file(file, 0, NULL);
    const char *mesh = json_string_value(json_object_get(plan, "mesh"));
    if (mesh)
        info_text(out, "mesh", mesh);
    json_decref(plan);
}

sl_status info_run(const char *path, bool verify, info_writer *out)
{
    (void)verify; /* the newest whole checkpoint is found by verifying */
    sl_status status = SL_OK;
    sl_checkpoint *checkpoint = NULL;
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/checkpoints", path);
    SL_TRY(sl_checkpoint_open_newest(folder, &checkpoint));
    info_text(out, "kind", "run");
    info_text(out, "path", path);
    info_text(out, "checkpoint", checkpoint ? sl_checkpoint_path(checkpoint) : "none");
    if (checkpoint)
        SL_TRY(describe_checkpoint(checkpoint, out));
    else
        describe_plan(path, out);
done:
    sl_checkpoint_close(checkpoint);
    return status;
}

/* ---- Data and schedules ---------------------------------------------------------------------- */

static sl_status describe_tokens(const char *kind, const sl_tokens *tokens, info_writer *out)
{
    int64_t largest = 0;
    sl_status status = sl_tokens_max(tokens, &largest);
    if (status != SL_OK)
        return status;
    info_text(out, "kind", kind);
    info_text(out, "path", sl_tokens_path(tokens));
    info_text(out, "format", sl_token_format_name(sl_tokens_format(tokens)));
    info_int(out, "tokens", sl_tokens_count(tokens));
    info_int(out, "largest_token", largest);
    return SL_OK;
}

sl_status info_text_file(const char *path, info_writer *out)
{
    sl_tokens *tokens = NULL;
    sl_status status = sl_tokens_open(path, SL_TOKENS_BYTES, &tokens);
    if (status == SL_OK)
        describe_tokens("text", tokens, out);
    sl_tokens_close(tokens);
    return status;
}

sl_status info_tokens(const char *path, bool named, info_writer *out)
{
    sl_status status = SL_OK;
    sl_tokens *tokens = NULL;
    SL_TRY(sl_tokens_open(path, SL_TOKENS_AUTO, &tokens));
    if (sl_tokens_format(tokens) == SL_TOKENS_NANOGPT && !named)
        SL_TRY(sl_fail(SL_ERR_FORMAT,
                       "%s: it is neither safetensors nor a schedule nor text; a token file without a header must have "
                       "a name that ends in .bin",
                       path));
    describe_tokens("token file", tokens, out);
done:
    sl_tokens_close(tokens);
    return status;
}

sl_status info_schedule(const char *path, info_writer *out)
{
    sl_status status = SL_OK;
    sl_schedule *schedule = NULL;
    sl_violation violation = { .rank = -1 };
    SL_TRY(sl_schedule_load_csv(path, &schedule));
    info_text(out, "kind", "schedule");
    info_text(out, "path", path);
    info_int(out, "ranks", sl_schedule_ranks(schedule));
    info_int(out, "stages", sl_schedule_stages(schedule));
    info_int(out, "microbatches", sl_schedule_microbatches(schedule));
    info_int(out, "actions", sl_schedule_size(schedule));
    info_text(out, "messages", sl_schedule_has_messages(schedule) ? "yes" : "no");
    sl_status checked = sl_schedule_check(schedule, NULL, &violation);
    if (checked == SL_ERR_SCHEDULE) {
        char place[512];
        snprintf(place, sizeof place, "no: rank %d, cell %" PRId64 " %s: %s", violation.rank, violation.cell,
                 violation.text, violation.reason);
        info_text(out, "correct", place);
    } else {
        SL_TRY(checked);
        info_text(out, "correct", "yes");
    }
done:
    sl_schedule_destroy(schedule);
    return status;
}
