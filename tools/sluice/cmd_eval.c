/* sluice eval: loss and perplexity of a model over a token file. */
#include "command.h"
#include "options.h"

#include <sluice/train.h>

#include "base/json.h"
#include "base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME "eval"

static const cli_usage usage = {
    .command = NAME,
    .synopsis = "--model DIR (--tokens FILE | --text FILE) [--batch B] [--seq T] [--steps N] [--tokenizer DIR] "
                "[--boundary ID] [--logits FILE] [--dtype bf16] [--format json]",
    .description =
        "Runs a model over a token file in sequential order and prints the mean loss over all tokens and its "
        "exponential, the perplexity. The model is a Hugging Face folder, a checkpoint, or the folder of a "
        "run, of which the newest checkpoint is taken.",
    .examples = "sluice eval --model out --text book.txt\n"
                "sluice eval --model gpt2 --tokens val.bin --batch 4 --seq 1024 --steps 10 --format json",
};

static void print_json(const sl_eval_result *result)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_double(&json, "loss", result->loss);
    sl_json_put_double(&json, "perplexity", result->perplexity);
    sl_json_put_int(&json, "steps", result->steps);
    sl_json_put_int(&json, "tokens", result->tokens);
    sl_json_put_double(&json, "seconds", result->seconds);
    sl_json_end(&json, '}');
    putchar('\n');
}

/* What the model is run over: a token file, or a text. */
typedef struct eval_data {
    const char *tokens, *text;
    const char *tokenizer; /* NULL: the model's */
} eval_data;

static sl_status open_data(const eval_data *data, const sl_model_source *source, sl_tokens **out)
{
    sl_tokenizer *tokenizer = NULL;
    const char *path = data->tokenizer ? data->tokenizer : sl_model_source_tokenizer(source);
    if (data->tokens)
        return sl_tokens_open(data->tokens, SL_TOKENS_AUTO, out);
    if (path[0] == '\0')
        sl_log(SL_LOG_WARN, "the model has no tokenizer beside it: a token is taken for a byte");
    if (path[0] == '\0' || strcmp(path, "bytes") == 0)
        return sl_tokens_open(data->text, SL_TOKENS_BYTES, out);
    sl_status status = sl_tokenizer_open(path, &tokenizer);
    if (status == SL_OK)
        status = sl_tokens_encode(data->text, tokenizer, out);
    sl_tokenizer_close(tokenizer);
    return status;
}

/* What the options leave open: rows as long as the model was made for, as many as the file has for one batch. */
static void fill_sizes(const sl_model_source *source, const sl_tokens *tokens, sl_eval_options *options)
{
    enum { MOST_SEQ = 1024, MOST_ROWS = 8 };
    int64_t positions = sl_model_positions(sl_model_source_model(source)), count = sl_tokens_count(tokens) - 1;
    if (options->seq == 0) {
        options->seq = positions < MOST_SEQ ? positions : MOST_SEQ;
        options->seq = count > 0 && count < options->seq ? count : options->seq;
    }
    if (options->batch == 0) {
        int64_t rows = count / options->seq;
        options->batch = rows < 1 ? 1 : rows < MOST_ROWS ? rows : MOST_ROWS;
    }
}

static int evaluate(const char *model, const eval_data *data, sl_eval_options *options, bool as_json)
{
    int code = EXIT_OK;
    sl_model_source *source = NULL;
    sl_tokens *tokens = NULL;
    sl_eval_result result;
    char time[32];
    sl_status status = sl_model_source_open(model, &source);
    if (status == SL_OK)
        status = open_data(data, source, &tokens);
    if (status == SL_OK)
        fill_sizes(source, tokens, options);
    if (status != SL_OK) {
        code = refusal(NAME, status);
    } else if (options->seq > sl_model_positions(sl_model_source_model(source))) {
        code = usage_error(NAME, "--seq %" PRId64 ": the model has %" PRId64 " positions", options->seq,
                           sl_model_positions(sl_model_source_model(source)));
    } else {
        options->tokens = tokens;
        status = sl_model_evaluate(source, options, &result);
        if (status != SL_OK)
            code = refusal(NAME, status);
        else if (as_json)
            print_json(&result);
        else
            printf("loss %.6f  perplexity %.4f  (%" PRId64 " batch%s, %" PRId64 " token%s, %s)\n", result.loss,
                   result.perplexity, result.steps, result.steps == 1 ? "" : "es", result.tokens,
                   sl_plural(result.tokens), sl_seconds_text(result.seconds, time, sizeof time));
    }
    sl_model_source_close(source);
    sl_tokens_close(tokens);
    return code;
}

int cmd_eval(int argc, char **argv)
{
    const char *model = NULL, *tokens = NULL, *text = NULL, *tokenizer = NULL;
    sl_eval_options options = { .threads = 1 };
    int format = 0, dtype = SL_F32, boundary = -1, code;
    const cli_option table[] = {
        { .name = "model",
          .letter = 'm',
          .value = "DIR",
          .text = &model,
          .required = true,
          .help = "Hugging Face folder, checkpoint, or folder of a run." },
        { .name = "tokens", .value = "FILE", .text = &tokens, .help = "Token file (nanoGPT's or llm.c's format)." },
        { .name = "text",
          .value = "FILE",
          .text = &text,
          .help = "Plain text instead, in tokens of the model's tokenizer; without one, one token a byte." },
        { .name = "tokenizer",
          .value = "DIR",
          .text = &tokenizer,
          .help = "Folder with the tokenizer's files, or 'bytes'; by default what lies beside the model." },
        { .name = "batch",
          .letter = 'b',
          .value = "B",
          .wide = &options.batch,
          .min = 1,
          .max = 1 << 20,
          .help = "Rows of a batch; 8 by default, or as many as the file has." },
        { .name = "seq",
          .letter = 't',
          .value = "T",
          .wide = &options.seq,
          .min = 1,
          .max = 1 << 24,
          .help = "Tokens of a row; by default as many as the model has positions, but no more than 1024." },
        { .name = "steps",
          .value = "N",
          .wide = &options.steps,
          .min = 1,
          .max = INT64_MAX,
          .help = "Batches; by default all whole ones of the file." },
        { .name = "boundary",
          .value = "ID",
          .integer = &boundary,
          .min = 0,
          .max = INT32_MAX,
          .help = "Keep the documents of a row apart, as data.documents does in training: this token ends one." },
        { .name = "logits",
          .value = "FILE",
          .text = &options.logits,
          .help = "Write the logits and the loss of the first batch as safetensors." },
        DEVICE_OPTION_ROW(options.device),
        { .name = "threads",
          .value = "N",
          .integer = &options.threads,
          .min = 1,
          .max = 1024,
          .help = "Threads (1 by default)." },
        DTYPE_OPTION_ROW(dtype),
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    log_to_stderr(NAME);
    if (!options_parse(&usage, table, &argc, argv, &code))
        return code;
    if (!tokens == !text)
        return usage_error(NAME, "give either --tokens or --text");
    if (tokenizer && !text)
        return usage_error(NAME, "--tokenizer goes with --text alone: tokens need none");
    options.dtype = (sl_dtype)dtype;
    options.documents = boundary >= 0;
    options.boundary = boundary;
    const eval_data data = { .tokens = tokens, .text = text, .tokenizer = tokenizer };
    return evaluate(model, &data, &options, format == FORMAT_JSON);
}
