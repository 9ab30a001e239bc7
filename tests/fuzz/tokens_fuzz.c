/* Any bytes as a token file, in the format that the first byte says: refused, or every token can be read, and checks,
 * reads and the largest token agree. */
#include <sluice/data.h>

#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_tokens *tokens = NULL;
    if (size == 0 || sl_tokens_open(as_file(data + 1, size - 1), (sl_token_format)(data[0] % 7), &tokens) != SL_OK)
        return 0;
    int64_t count = sl_tokens_count(tokens), largest = -1;
    require(count > 0 && (size_t)count <= size);
    int32_t *values = malloc((size_t)count * sizeof *values);
    require(values && sl_tokens_read(tokens, 0, count, values) == SL_OK);
    require(sl_tokens_max(tokens, &largest) == SL_OK);
    for (int64_t i = 0; i < count; i++)
        require((int64_t)(uint32_t)values[i] <= largest);
    require(sl_tokens_check(tokens, 0, count, largest + 1) == SL_OK);
    require(sl_tokens_check(tokens, 0, count, largest) != SL_OK);
    require(sl_tokens_read(tokens, 1, count, values) != SL_OK);
    uint64_t hash = 0;
    require(sl_tokens_hash(tokens, &hash) == SL_OK);
    free(values);
    sl_tokens_close(tokens);
    return 0;
}
