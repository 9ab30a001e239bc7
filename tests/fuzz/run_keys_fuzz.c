/* Any lines as keys of a run, as the command line gives them (section.key=value): read or refused with a message; what
 * was read is within its limits, and is the same when it is read again. */
#include <sluice/train.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_KEYS = 64 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check(const sl_train_config *config)
{
    require(config->run.steps >= 1 && config->batch.size >= 1 && config->batch.seq >= 1);
    require(config->batch.microbatches >= 1 && config->batch.microbatches <= config->batch.size);
    require(config->parallel.pp >= 1 && config->parallel.dp >= 1 && config->parallel.threads >= 1);
    require(config->batch.size % config->parallel.dp == 0);
    require(config->optimizer.lr >= 0 && config->optimizer.eps >= 0 && config->checkpoint.keep >= 1);
    require((config->data.text.count > 0) != (config->data.tokens.count > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size + 1);
    const char *keys[MOST_KEYS];
    int count = 0;
    sl_train_config *config = NULL, *again = NULL;
    require(copy != NULL);
    memcpy(copy, data, size);
    copy[size] = '\0';
    for (char *line = copy; line && count < MOST_KEYS;) {
        keys[count++] = line;
        line = strchr(line, '\n');
        if (line)
            *line++ = '\0';
    }
    sl_status status = sl_train_config_load(NULL, keys, count, &config);
    require(status == SL_OK || sl_error_message()[0] != '\0');
    require(sl_train_config_load(NULL, keys, count, &again) == status);
    if (status == SL_OK) {
        check(config);
        require(config->run.seed == again->run.seed && config->optimizer.lr == again->optimizer.lr);
    }
    sl_train_config_destroy(again);
    sl_train_config_destroy(config);
    free(copy);
    return 0;
}
