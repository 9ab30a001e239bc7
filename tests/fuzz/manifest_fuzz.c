/* Any bytes as a manifest, as they are and with a right seal: refused, or one with a step; a checkpoint that it makes
 * opens or is refused, and reads nothing outside its folder. */
#include "shard/checkpoint.h"

#include "fuzz_file.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const float values[] = { 1, 2 };
    const sl_tensor_entry entry = { .name = "w", .dtype = SL_F32, .shape = { 1, { 2 } }, .data = values };
    (void)argc, (void)argv;
    sl_log_set_callback(ignore_log, NULL);
    require(sl_safetensors_save(fuzz_path("a"), &entry, 1, NULL) == SL_OK);
    return 0;
}

static void parse(const char *text, size_t length)
{
    json_t *manifest = NULL;
    if (sl_checkpoint_parse_manifest("fuzz", text, length, &manifest) != SL_OK)
        return;
    require(json_integer_value(json_object_get(manifest, "step")) >= 0);
    json_decref(manifest);
    fuzz_write(fuzz_path("manifest.json"), text, length);
    sl_checkpoint *checkpoint = NULL;
    if (sl_checkpoint_open(fuzz_folder(), true, &checkpoint) == SL_OK) {
        for (int i = 0; i < sl_checkpoint_count(checkpoint); i++) {
            float values[2];
            require(sl_tensor_entry_read(sl_checkpoint_at(checkpoint, i), 0, sizeof values, values) == SL_OK);
        }
        sl_checkpoint_attribute(checkpoint, "model");
        sl_checkpoint_close(checkpoint);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *sealed = malloc(size + 64);
    require(sealed != NULL);
    parse((const char *)data, size);
    if (size > 0)
        memcpy(sealed, data, size);
    int seal = snprintf(sealed + size, 64, ",\"xxh3\":\"%016" PRIx64 "\"}\n", (uint64_t)XXH3_64bits(data, size));
    parse(sealed, size + (size_t)seal);
    free(sealed);
    return 0;
}
