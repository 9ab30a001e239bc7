/* Any bytes: the safetensors reader refuses them or hands out entries that lie inside them. */
#include <sluice/shard.h>

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_safetensors *file = NULL;
    if (sl_safetensors_open_memory("fuzz", data, size, &file) != SL_OK)
        return 0;
    size_t covered = 0;
    for (int i = 0; i < sl_safetensors_count(file); i++) {
        const sl_tensor_entry *entry = sl_safetensors_at(file, i);
        const uint8_t *begin = entry->data;
        if (begin < data || entry->bytes > size - (size_t)(begin - data))
            abort();
        if (sl_safetensors_find(file, entry->name) != entry)
            abort();
        covered += entry->bytes;
        float value;
        if (entry->count > 0 && sl_tensor_entry_read_f32(entry, entry->count - 1, 1, &value) != SL_OK &&
            sl_dtype_size(entry->dtype) == 0)
            abort();
    }
    if (covered > size)
        abort();
    sl_safetensors_close(file);
    return 0;
}
