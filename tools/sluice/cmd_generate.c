/* sluice generate: samples text from a trained model. */
#include "command.h"
#include "options.h"
#include "ranks.h"

#include <sluice/train.h>

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "generate"
enum { DEFAULT_TOKENS = 100 };

static const cli_usage usage = {
    .command = NAME,
    .synopsis = "--model DIR [--prompt TEXT | --prompt-tokens LIST] [--tokens N] [--temperature T] [--top-k K] "
                "[--top-p P] [--seed S] [--samples M] [--ignore-eos] [--dtype bf16] [-n RANKS]",
    .description = "Continues a prompt, token by token, with a key/value cache. The model is a Hugging Face folder, a "
                   "checkpoint, or the folder of a run. With several ranks the model is cut into as many stages; the "
                   "text does not depend on their number.",
    .examples = "sluice generate --model out --prompt 'The river' --tokens 200\n"
                "sluice generate --model gpt2 --prompt 'Once' --temperature 0.8 --top-k 40 --seed 7 --samples 4 -n 2",
};

typedef struct generate_arguments {
    const char *model, *prompt, *prompt_tokens, *tokenizer;
    int ranks;
    int64_t seed;
    sl_generate_text_options options;
} generate_arguments;

/* What turns tokens into text. */
typedef struct text_codec {
    bool bytes;              /* a token is a byte */
    sl_tokenizer *tokenizer; /* or this; else tokens are printed as numbers */
    sl_token_ids ends;       /* tokens that end the text */
} text_codec;

/* ---- Prompt ---------------------------------------------------------------------------------- */

static sl_status open_codec(const generate_arguments *arguments, const sl_model_source *source, text_codec *codec)
{
    const char *path = arguments->tokenizer ? arguments->tokenizer : sl_model_source_tokenizer(source);
    if (strcmp(path, "bytes") == 0) {
        codec->bytes = true;
        return SL_OK;
    }
    return path[0] ? sl_tokenizer_open(path, &codec->tokenizer) : SL_OK;
}

/* "15,27" into tokens; the caller frees *out. */
static sl_status parse_tokens(const char *text, int32_t **out, int64_t *count)
{
    sl_status status = SL_OK;
    int32_t *tokens = NULL;
    size_t capacity = 0, used = 0;
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char word[32];
        int64_t token = 0;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        SL_TRY(sl_parse_int("--prompt-tokens", word, 0, INT32_MAX, &token));
        SL_TRY(SL_GROW(tokens, &capacity, used + 1));
        tokens[used++] = (int32_t)token;
    }
    *out = tokens;
    *count = (int64_t)used;
    tokens = NULL;
done:
    sl_free(tokens);
    return status;
}

/* The caller frees *out with sl_free. */
static sl_status encode(const text_codec *codec, const char *text, int32_t **out, int64_t *count)
{
    sl_status status = SL_OK;
    int32_t *encoded = NULL, *tokens = NULL;
    size_t length = strlen(text);
    const sl_encode_options options = { .special = true, .frame = true };
    if (!codec->bytes && !codec->tokenizer)
        return sl_fail(
            SL_ERR_ARGUMENT,
            "the model has no tokenizer beside it: give --tokenizer (bytes if a token is a byte) or --prompt-tokens");
    *count = (int64_t)length;
    if (codec->tokenizer)
        SL_TRY(sl_tokenizer_encode(codec->tokenizer, text, length, &options, &encoded, count));
    SL_TRY(SL_NEW_ARRAY(tokens, *count));
    for (int64_t i = 0; i < *count; i++)
        tokens[i] = encoded ? encoded[i] : (unsigned char)text[i];
    *out = tokens;
done:
    sl_free(encoded);
    return status;
}

/* ---- Output ---------------------------------------------------------------------------------- */

/* What a token adds to the text after the token before it: a decoder may join the two. */
static sl_status write_text(const sl_tokenizer *tokenizer, int32_t before, int32_t token)
{
    sl_status status = SL_OK;
    const int32_t pair[2] = { before, token };
    char *old = NULL, *text = NULL;
    size_t old_bytes = 0, bytes = 0;
    SL_TRY(sl_tokenizer_decode(tokenizer, pair, 1, &old, &old_bytes));
    SL_TRY(sl_tokenizer_decode(tokenizer, pair, 2, &text, &bytes));
    size_t shared = 0;
    while (shared < old_bytes && shared < bytes && old[shared] == text[shared])
        shared++;
    fwrite(text + shared, 1, bytes - shared, stdout);
done:
    sl_free(old);
    sl_free(text);
    return status;
}

/* A token that ends the text is no part of it. */
static void print_token(const text_codec *codec, int32_t before, int32_t token)
{
    for (int64_t i = 0; i < codec->ends.count; i++) {
        if (codec->ends.ids[i] == token)
            return;
    }
    if (codec->bytes)
        putchar((unsigned char)token);
    else if (!codec->tokenizer || write_text(codec->tokenizer, before, token) != SL_OK)
        printf(" %" PRId32, token);
}

/* One sample is shown as it comes, after the prompt. */
typedef struct token_stream {
    const text_codec *codec;
    const char *prompt;
    int32_t before; /* the token before the next one */
} token_stream;

static void show_token(void *user, int sample, int64_t index, int32_t token)
{
    (void)sample;
    token_stream *stream = user;
    if (index == 0)
        fputs(stream->prompt, stdout);
    print_token(stream->codec, stream->before, token);
    stream->before = token;
    fflush(stdout);
}

static void print_samples(const generate_arguments *arguments, const token_stream *stream, const int32_t *tokens)
{
    for (int s = 0; s < arguments->options.samples; s++) {
        printf("--- sample %d ---\n%s", s + 1, stream->prompt);
        const int32_t *sample = tokens + s * arguments->options.new_tokens;
        for (int64_t i = 0; i < arguments->options.new_tokens && sample[i] >= 0; i++)
            print_token(stream->codec, i ? sample[i - 1] : stream->before, sample[i]);
        putchar('\n');
    }
}

/* ---- Running --------------------------------------------------------------------------------- */

static sl_status generate(generate_arguments *arguments, sl_group *group)
{
    sl_status status = SL_OK;
    sl_model_source *source = NULL;
    text_codec codec = { .bytes = false };
    int32_t *prompt = NULL, *tokens = NULL;
    sl_generate_text_options *options = &arguments->options;
    token_stream stream = { .codec = &codec,
                            .prompt = arguments->prompt_tokens ? arguments->prompt_tokens : arguments->prompt };
    bool leads = sl_group_rank(group) == 0, streams = options->samples == 1;
    SL_TRY(sl_model_source_open(arguments->model, &source));
    SL_TRY(open_codec(arguments, source, &codec));
    if (!options->ignore_end)
        codec.ends = sl_model_end_tokens(sl_model_source_model(source));
    SL_TRY(arguments->prompt_tokens ? parse_tokens(arguments->prompt_tokens, &prompt, &options->prompt_count)
                                    : encode(&codec, arguments->prompt, &prompt, &options->prompt_count));
    options->prompt = prompt;
    stream.before = options->prompt_count > 0 ? prompt[options->prompt_count - 1] : -1;
    if (options->new_tokens == 0) {
        int64_t left = sl_model_positions(sl_model_source_model(source)) - options->prompt_count;
        options->new_tokens = left < 1 ? 1 : left < DEFAULT_TOKENS ? left : DEFAULT_TOKENS;
    }
    SL_TRY(SL_NEW_ARRAY(tokens, options->samples * options->new_tokens));
    if (leads && streams) {
        options->token = show_token;
        options->user = &stream;
    }
    SL_TRY(sl_model_generate(source, group, options, tokens));
    if (leads && streams)
        putchar('\n');
    else if (leads)
        print_samples(arguments, &stream, tokens);
done:
    sl_free(tokens);
    sl_free(prompt);
    sl_tokenizer_close(codec.tokenizer);
    sl_model_source_close(source);
    return status;
}

static int run_rank(generate_arguments *arguments)
{
    sl_group *group = NULL;
    if (sl_group_open(NULL, &group) != SL_OK)
        return failure(NAME);
    int code = EXIT_OK;
    sl_status status = generate(arguments, group);
    if (status != SL_OK) {
        sl_group_fail(group, status);
        code = ranks_failure(NAME, group, status);
    }
    sl_group_close(group);
    return code;
}

int cmd_generate(int argc, char **argv)
{
    generate_arguments arguments = {
        .prompt = "\n", .ranks = 1, .seed = 1, .options = { .samples = 1, .temperature = 1, .threads = 1 }
    };
    sl_generate_text_options *options = &arguments.options;
    int dtype = SL_F32, code, full_argc = argc;
    const cli_option table[] = {
        { .name = "model",
          .letter = 'm',
          .value = "DIR",
          .text = &arguments.model,
          .required = true,
          .help = "Hugging Face folder, checkpoint, or folder of a run." },
        { .name = "prompt",
          .letter = 'p',
          .value = "TEXT",
          .text = &arguments.prompt,
          .help = "Text to continue (a line break by default)." },
        { .name = "prompt-tokens",
          .value = "LIST",
          .text = &arguments.prompt_tokens,
          .help = "The prompt as token numbers, separated by commas." },
        { .name = "tokenizer",
          .value = "DIR",
          .text = &arguments.tokenizer,
          .help = "Folder with the tokenizer's files, or 'bytes'; by default what lies beside the model." },
        { .name = "tokens",
          .value = "N",
          .wide = &options->new_tokens,
          .min = 1,
          .max = 1 << 24,
          .help = "New tokens at most (100 by default, or as many as the model has positions left); a token that ends "
                  "the text ends it before." },
        { .name = "samples",
          .value = "M",
          .integer = &options->samples,
          .min = 1,
          .max = 1024,
          .help = "Continuations of the prompt (1 by default)." },
        { .name = "temperature",
          .value = "T",
          .real = &options->temperature,
          .least = 0,
          .most = 1000,
          .help = "Divides the logits (1 by default); 0 takes the likeliest token always." },
        { .name = "top-k",
          .value = "K",
          .wide = &options->top_k,
          .min = 1,
          .max = 1 << 24,
          .help = "Choose among the K likeliest tokens." },
        { .name = "top-p",
          .value = "P",
          .real = &options->top_p,
          .least = 1e-9,
          .most = 1,
          .help = "Choose among the likeliest tokens whose probabilities add up to P." },
        { .name = "seed",
          .value = "S",
          .wide = &arguments.seed,
          .min = 0,
          .max = INT64_MAX,
          .help = "Seed of the choice (1 by default)." },
        { .name = "ignore-eos",
          .flag = &options->ignore_end,
          .help = "Go on after a token that ends a text (eos_token_id in the model's config.json)." },
        DEVICE_OPTION_ROW(options->device),
        { .name = "threads",
          .value = "N",
          .integer = &options->threads,
          .min = 1,
          .max = 1024,
          .help = "Threads a rank (1 by default)." },
        DTYPE_OPTION_ROW(dtype),
        { .name = "ranks",
          .letter = 'n',
          .value = "N",
          .integer = &arguments.ranks,
          .min = 1,
          .max = 4096,
          .help = "Ranks, each with one stage of the model (1 by default)." },
        { .name = NULL },
    };
    char **line = NULL; /* options_parse moves argv's operands */
    if (SL_NEW_ARRAY(line, argc + 1) != SL_OK)
        return failure(NAME);
    memcpy(line, argv, (size_t)argc * sizeof *line);
    log_to_stderr(NAME);
    if (options_parse(&usage, table, &argc, argv, &code)) {
        options->seed = (uint64_t)arguments.seed;
        options->dtype = (sl_dtype)dtype;
        code = arguments.ranks > 1 && !ranks_started()
                   ? ranks_start(NAME, arguments.ranks, options->threads, 0, full_argc, line, NULL)
                   : run_rank(&arguments);
    }
    sl_free(line);
    return code;
}
