/* Any bytes: config.json's reader refuses them or gives a model that passes the check. */
#include <sluice/nn.h>

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_model model;
    if (sl_model_parse_config("fuzz", (const char *)data, size, &model) == SL_OK && sl_model_check(&model) != SL_OK)
        abort();
    return 0;
}
