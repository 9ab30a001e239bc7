/* Any bytes as a configuration file: read or refused with a message that begins with the file's name, nothing leaks. */
#include "train/config_keys.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_train_config config;
    memset(&config, 0, sizeof config);
    if (SL_NEW(config.own) != SL_OK || sl_arena_create(&config.own->arena) != SL_OK)
        abort();
    if (sl_config_parse_yaml(&config, "fuzz", (const char *)data, size) != SL_OK &&
        strncmp(sl_error_message(), "fuzz:", 5) != 0)
        abort();
    sl_train_config_destroy(&config);
    return 0;
}
