/* Keys of the configuration as options of a command. */
#include "config_options.h"

#include <sluice/train.h>

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

sl_status config_options_take(const char *what, const char *text, void *self)
{
    config_options *options = self;
    size_t size = strlen(what) + strlen(text) + 2;
    char *override = NULL;
    if (options->count == CONFIG_OPTION_LIMIT)
        return sl_fail(SL_ERR_ARGUMENT, "%s: more than %d keys are given", what, CONFIG_OPTION_LIMIT);
    sl_status status = SL_NEW_ARRAY(override, size);
    if (status != SL_OK)
        return status;
    snprintf(override, size, "%s=%s", what + 2, text);
    options->overrides[options->count++] = override;
    return SL_OK;
}

void config_options_add(config_options *self, cli_option *options, int used)
{
    sl_config_key_info key;
    int i = 0;
    for (; sl_train_config_key(i, &key) && used + i < CONFIG_OPTION_LIMIT; i++) {
        snprintf(self->names[i], sizeof self->names[i], "%s.%s", key.section, key.key);
        snprintf(self->helps[i], sizeof self->helps[i], "%s%s%s%s", key.help, key.default_value[0] ? " (" : "",
                 key.default_value, key.default_value[0] ? ")" : "");
        options[used + i] = (cli_option){ .name = self->names[i],
                                          .value = strchr(key.type, '|')        ? "WORD"
                                                   : strstr(key.type, "number") ? "N"
                                                                                : "TEXT",
                                          .words = strchr(key.type, '|') ? key.type : NULL,
                                          .help = self->helps[i],
                                          .read = config_options_take,
                                          .target = self };
    }
    options[used + i] = (cli_option){ .name = NULL };
}

void config_options_clear(config_options *self)
{
    for (; self->count > 0; self->count--)
        sl_free(self->overrides[self->count - 1]);
}
