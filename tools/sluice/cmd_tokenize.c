/* sluice tokenize: a text file to a token file, and back. */
#include "command.h"
#include "options.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/units.h"

#include <sluice/data.h>

#include <inttypes.h>
#include <stdio.h>

static const cli_usage usage = {
    .command = "tokenize",
    .synopsis = "--tokenizer PATH --output FILE [OPTIONS] INPUT",
    .description =
        "Turns a text file into a file of token ids for training, by the byte-pair encoding of GPT-2 and Llama 3.\n"
        "PATH is a folder in Hugging Face's form with tokenizer.json, or with vocab.json and merges.txt; or a "
        "tokenizer.json. No token is put before the text.\n"
        "With --decode, INPUT is a token file and its text is written, to standard output where no file is given.",
    .examples = "sluice tokenize --tokenizer gpt2/ -o train.bin book.txt\n"
                "sluice tokenize --tokenizer gpt2/ --decode train.bin",
    .min_operands = 1,
    .max_operands = 1,
};

typedef struct request {
    const char *tokenizer, *input, *output;
    int format; /* place in FORMATS */
    bool special, end, decode;
} request;

#define FORMATS "nanogpt|llmc|llmc-u32"
static const sl_token_format formats[] = { SL_TOKENS_NANOGPT, SL_TOKENS_LLMC, SL_TOKENS_LLMC_U32 };

static const char end_of_text[] = "<|endoftext|>";

static sl_status append(int32_t **ids, int64_t *count, int32_t id)
{
    size_t capacity = (size_t)*count;
    sl_status status = SL_GROW(*ids, &capacity, *count + 1);
    if (status == SL_OK)
        (*ids)[(*count)++] = id;
    return status;
}

static sl_status encode(const request *what, sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    sl_file_bytes text = { 0 };
    int32_t *ids = NULL;
    int64_t count = 0;

    SL_TRY(sl_file_read(what->input, &text));
    SL_TRY(sl_tokenizer_encode(tokenizer, text.data ? (const void *)text.data : "", text.size, what->special, &ids,
                               &count));
    if (what->end) {
        int32_t id = sl_tokenizer_special(tokenizer, end_of_text);
        if (id < 0) {
            status = sl_fail(SL_ERR_ARGUMENT, "--end: %s has no token %s", what->tokenizer, end_of_text);
            goto done;
        }
        SL_TRY(append(&ids, &count, id));
    }
    SL_TRY(sl_tokens_save(what->output, formats[what->format], ids, count));
    printf("%zu byte%s, %" PRId64 " token%s: %s\n", text.size, sl_plural((int64_t)text.size), count, sl_plural(count),
           what->output);
done:
    sl_free(ids);
    sl_file_bytes_free(&text);
    return status;
}

static sl_status write_text(const char *output, const char *text, size_t bytes)
{
    if (output)
        return sl_file_replace(output, text, bytes);
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return sl_fail(SL_ERR_IO, "standard output cannot be written");
    return SL_OK;
}

static sl_status decode(const request *what, const sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    sl_tokens *tokens = NULL;
    int32_t *ids = NULL;
    char *text = NULL;
    size_t bytes = 0;

    SL_TRY(sl_tokens_open(what->input, SL_TOKENS_AUTO, &tokens));
    SL_TRY(SL_NEW_ARRAY(ids, sl_tokens_count(tokens)));
    SL_TRY(sl_tokens_read(tokens, 0, sl_tokens_count(tokens), ids));
    SL_TRY(sl_tokenizer_decode(tokenizer, ids, sl_tokens_count(tokens), &text, &bytes));
    SL_TRY(write_text(what->output, text, bytes));
done:
    sl_free(text);
    sl_free(ids);
    sl_tokens_close(tokens);
    return status;
}

int cmd_tokenize(int argc, char **argv)
{
    sl_status status = SL_OK;
    sl_tokenizer *tokenizer = NULL;
    request what = { .format = 0 };
    const cli_option options[] = {
        { .name = "tokenizer",
          .letter = 't',
          .value = "PATH",
          .text = &what.tokenizer,
          .required = true,
          .help = "Folder of the tokenizer, or its tokenizer.json." },
        { .name = "output", .letter = 'o', .value = "FILE", .text = &what.output, .help = "File to write." },
        { .name = "format",
          .letter = 'f',
          .value = "FORMAT",
          .words = FORMATS,
          .choice = &what.format,
          .help = "Form of the token file: raw 16-bit ids (the default), or with llm.c's header, 16-bit or 32-bit." },
        { .name = "special",
          .flag = &what.special,
          .help = "Texts of special tokens, such as <|endoftext|>, become those tokens." },
        { .name = "end", .flag = &what.end, .help = "Put <|endoftext|> after the text." },
        { .name = "decode", .letter = 'd', .flag = &what.decode, .help = "From tokens to text." },
        { .name = NULL },
    };
    int code;
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    what.input = argv[1];
    if (!what.output && !what.decode)
        return usage_error("tokenize", "--output is missing");
    if (what.decode && (what.special || what.end))
        return usage_error("tokenize", "--decode goes with neither --special nor --end");
    SL_TRY(sl_tokenizer_open(what.tokenizer, &tokenizer));
    SL_TRY(what.decode ? decode(&what, tokenizer) : encode(&what, tokenizer));
done:
    sl_tokenizer_close(tokenizer);
    if (status == SL_OK)
        return EXIT_OK;
    return what.decode ? failure("tokenize") : refusal("tokenize", status); /* a file's tokens are no argument */
}
