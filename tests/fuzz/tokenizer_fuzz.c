/* Any bytes as a tokenizer.json, as a SentencePiece model (after the byte 0x0a that such a file begins with), or as
 * vocab.json and merges.txt with a zero byte between them: refused, or what it encodes it decodes. With the pair of files
 * that gives the same bytes. */
#include <sluice/data.h>

#include "base/alloc.h"

#include "fuzz_file.h"

#include <string.h>

static void goes_around(const char *path, bool same)
{
    static const char text[] = "Once there was<|endoftext|> a t\xc3\xa4le\xff, 12 times.\n";
    sl_tokenizer *tokenizer = NULL;
    if (sl_tokenizer_open(path, &tokenizer) != SL_OK)
        return;
    for (int special = 0; special < 2; special++) {
        int32_t *ids = NULL;
        int64_t count = 0;
        sl_encode_options options = { .special = special };
        if (sl_tokenizer_encode(tokenizer, text, sizeof text - 1, &options, &ids, &count) == SL_OK) {
            char *back = NULL;
            size_t bytes = 0;
            require(sl_tokenizer_decode(tokenizer, ids, count, &back, &bytes) == SL_OK);
            require(!same || (bytes == sizeof text - 1 && memcmp(back, text, bytes) == 0));
            sl_free(back);
        }
        sl_free(ids);
    }
    sl_tokenizer_close(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    if (size > 0 && data[0] == '\n') {
        fuzz_write(fuzz_path("any.model"), data, size);
        goes_around(fuzz_path("any.model"), false);
        return 0;
    }
    if (!zero) {
        goes_around(as_file(data, size), false);
        return 0;
    }
    fuzz_write(fuzz_path("vocab.json"), data, (size_t)(zero - data));
    fuzz_write(fuzz_path("merges.txt"), zero + 1, size - (size_t)(zero - data) - 1);
    goes_around(fuzz_folder(), true);
    return 0;
}
