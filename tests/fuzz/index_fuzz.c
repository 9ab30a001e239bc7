/* Any bytes as model.safetensors.index.json beside two shards: refused, or every tensor is found and can be read. */
#include <sluice/shard.h>

#include "fuzz_file.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const float values[] = { 1, 2 };
    const sl_tensor_entry a = { .name = "a", .dtype = SL_F32, .shape = { 1, { 2 } }, .data = values };
    const sl_tensor_entry b = { .name = "b", .dtype = SL_F32, .shape = { 1, { 2 } }, .data = values };
    (void)argc, (void)argv;
    require(sl_safetensors_save(fuzz_path("1.safetensors"), &a, 1, NULL) == SL_OK);
    require(sl_safetensors_save(fuzz_path("2.safetensors"), &b, 1, NULL) == SL_OK);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_weights *weights = NULL;
    fuzz_write(fuzz_path("model.safetensors.index.json"), data, size);
    if (sl_weights_open(fuzz_folder(), &weights) != SL_OK)
        return 0;
    for (int i = 0; i < sl_weights_count(weights); i++) {
        const sl_tensor_entry *entry = sl_weights_at(weights, i);
        float values[2];
        require(sl_weights_find(weights, entry->name) != NULL);
        require(sl_tensor_entry_read_f32(entry, 0, 2, values) == SL_OK);
        require(values[0] == 1 && values[1] == 2);
    }
    sl_weights_close(weights);
    return 0;
}
