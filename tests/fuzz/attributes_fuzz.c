/* Any bytes as the attributes of a checkpoint (model, config, tokens, data, order; a zero byte between them): the check
 * before a resume accepts or refuses them, and only the plan's own model is accepted. */
#include "shard/checkpoint.h"
#include "train/attributes.h"

#include "fuzz_file.h"

#include <string.h>

static sl_train_config *config;
static sl_train_plan *plan;
static sl_checkpoint_writer *writer;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char text[64], data[160], out[160];
    (void)argc, (void)argv;
    sl_log_set_callback(ignore_log, NULL);
    snprintf(text, sizeof text, "%s", fuzz_path("text"));
    fuzz_write(text, "Once there was a text of some length, but not much of it.", 57);
    snprintf(data, sizeof data, "data.text=%s", text);
    snprintf(out, sizeof out, "run.out=%s", fuzz_path("run"));
    const char *const overrides[] = {
        data, out, "model.n_layer=1", "model.n_embd=8", "model.n_head=2", "batch.seq=8", "batch.size=2"
    };
    require(sl_train_config_load(NULL, overrides, 7, &config) == SL_OK);
    require(sl_train_plan_create(config, NULL, &plan) == SL_OK);
    require(sl_checkpoint_writer_create(fuzz_path("run"), 0, &writer) == SL_OK);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = { "model", "config", "tokens", "data", "order" };
    static int64_t step;
    const char *pairs[11] = { NULL };
    char *copy = malloc(size + 1);
    require(copy != NULL);
    if (size > 0)
        memcpy(copy, data, size);
    copy[size] = '\0';
    char *part = copy;
    for (int i = 0; i < 5 && part <= copy + size; i++, part += strlen(part) + 1) {
        pairs[2 * i] = keys[i];
        pairs[2 * i + 1] = part;
    }
    const float value = 1;
    const sl_tensor_entry entry = {
        .name = "w", .dtype = SL_F32, .shape = { 0 }, .count = 1, .data = &value, .bytes = 4
    };
    sl_checkpoint_part written;
    require(sl_checkpoint_writer_begin(writer, ++step, &entry, 1) == SL_OK);
    require(sl_checkpoint_writer_wait(writer, &written) == SL_OK);
    require(sl_checkpoint_writer_commit(writer, &written, 1, 1, pairs) == SL_OK);
    require(sl_checkpoint_writer_wait(writer, NULL) == SL_OK);
    sl_checkpoint *checkpoint = NULL;
    if (sl_checkpoint_open_newest(fuzz_path("run"), &checkpoint) == SL_OK) {
        require(checkpoint != NULL);
        if (sl_attributes_check(plan, checkpoint) == SL_OK)
            require(sl_attributes_warn(plan, 7, checkpoint) == SL_OK);
        sl_checkpoint_close(checkpoint);
    }
    free(copy);
    return 0;
}
