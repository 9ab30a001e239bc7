/* Any bytes as a configuration file: read or refused with a message that begins with the file's name, nothing leaks. */
#include "train/config_keys.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_train_config *config = NULL;
    if (sl_config_new(&config) != SL_OK)
        abort();
    if (sl_config_parse_yaml(config, "fuzz", (const char *)data, size) != SL_OK &&
        strncmp(sl_error_message(), "fuzz:", 5) != 0)
        abort();
    sl_train_config_destroy(config);
    return 0;
}
