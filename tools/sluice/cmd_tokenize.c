/* sluice tokenize: text to a token file, and back. */
#include "command.h"
#include "options.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/units.h"

#include <sluice/data.h>

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const cli_usage usage = {
    .command = "tokenize",
    .synopsis = "--tokenizer PATH --output FILE [OPTIONS] INPUT...",
    .description =
        "Turns text into a file of token ids for training, with the model's own tokenizer.\n"
        "PATH is a folder in Hugging Face's form with tokenizer.json, with vocab.json and merges.txt, or with "
        "tokenizer.model; a tokenizer.json; or SentencePiece's .model. INPUT is a text file, a folder (its files in "
        "the "
        "order of their names) or - for standard input; each file is a document unless --lines or --json say "
        "otherwise. No token is put before a text unless --frame is given.\n"
        "With --decode, INPUT is a token file and its text is written, to standard output if no file is given.",
    .examples = "sluice tokenize --tokenizer gpt2/ -o train.bin book.txt\n"
                "sluice tokenize --tokenizer llama/ --end --json text -o train.bin corpus/*.jsonl\n"
                "sluice tokenize --tokenizer gpt2/ --decode train.bin",
    .min_operands = 1,
    .max_operands = 1 << 20,
};

typedef struct request {
    const char *tokenizer, *output, *json;
    char **inputs;
    int input_count;
    int format; /* place in FORMATS */
    int threads;
    bool special, frame, end, lines, decode;
} request;

#define FORMATS "nanogpt|llmc|llmc-u32"
static const sl_token_format formats[] = { SL_TOKENS_NANOGPT, SL_TOKENS_LLMC, SL_TOKENS_LLMC_U32 };

enum { BATCH_BYTES = 32 << 20 };

/* ---- Documents ------------------------------------------------------------------------------- */

/* Documents that are encoded together. */
typedef struct document_batch {
    const request *what;
    sl_tokenizer *tokenizer;
    sl_token_writer *writer;
    int32_t end; /* -1: none */
    char *bytes; /* of all documents */
    size_t used, capacity;
    size_t *stops; /* where each ends */
    size_t count, stop_capacity;
    uint64_t read, documents; /* in all */
    double started, shown;
} document_batch;

static void show_progress(document_batch *batch, bool last)
{
    double now = sl_now(), passed = now - batch->started;
    if (!isatty(STDERR_FILENO) || (!last && now - batch->shown < 0.5))
        return;
    batch->shown = now;
    fprintf(stderr, "\r%.1f MiB, %" PRId64 " tokens, %.1f MiB/s ", (double)batch->read / (1 << 20),
            sl_token_writer_count(batch->writer), passed > 0 ? (double)batch->read / (1 << 20) / passed : 0);
    if (last)
        fprintf(stderr, "\r\033[K");
}

static sl_status write_batch(document_batch *batch)
{
    sl_status status = SL_OK;
    sl_text *texts = NULL;
    int64_t *ends = NULL;
    int32_t *ids = NULL;
    const sl_encode_options options = { .special = batch->what->special,
                                        .frame = batch->what->frame,
                                        .threads = batch->what->threads };
    if (batch->count == 0)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(texts, batch->count));
    SL_TRY(SL_NEW_ARRAY(ends, batch->count));
    for (size_t i = 0, from = 0; i < batch->count; from = batch->stops[i++])
        texts[i] = (sl_text){ batch->bytes + from, batch->stops[i] - from };
    SL_TRY(sl_tokenizer_encode_all(batch->tokenizer, texts, (int64_t)batch->count, &options, &ids, ends));
    for (size_t i = 0; i < batch->count; i++) {
        int64_t from = i ? ends[i - 1] : 0;
        SL_TRY(sl_token_writer_add(batch->writer, ids + from, ends[i] - from));
        if (batch->end >= 0)
            SL_TRY(sl_token_writer_add(batch->writer, &batch->end, 1));
    }
    batch->documents += batch->count;
    batch->read += batch->used;
    batch->used = batch->count = 0;
    show_progress(batch, false);
done:
    sl_free(texts);
    sl_free(ends);
    sl_free(ids);
    return status;
}

static sl_status add_document(document_batch *batch, const void *text, size_t size)
{
    sl_status status = SL_OK;
    SL_TRY(SL_GROW(batch->bytes, &batch->capacity, batch->used + size + 1));
    SL_TRY(SL_GROW(batch->stops, &batch->stop_capacity, batch->count + 1));
    memcpy(batch->bytes + batch->used, text, size);
    batch->used += size;
    batch->stops[batch->count++] = batch->used;
    if (batch->used > BATCH_BYTES)
        SL_TRY(write_batch(batch));
done:
    return status;
}

static sl_status add_json(document_batch *batch, const char *path, int64_t number, const char *line, size_t size)
{
    sl_status status = SL_OK;
    json_error_t error;
    json_t *root = json_loadb(line, size, JSON_ALLOW_NUL, &error);
    const json_t *text = json_object_get(root, batch->what->json);
    if (!root)
        status = sl_fail(SL_ERR_FORMAT, "%s, line %" PRId64 ": %s", path, number, error.text);
    else if (!json_is_string(text))
        status = sl_fail(SL_ERR_FORMAT, "%s, line %" PRId64 " has no text '%s'", path, number, batch->what->json);
    else
        status = add_document(batch, json_string_value(text), json_string_length(text));
    json_decref(root);
    return status;
}

static sl_status add_lines(document_batch *batch, const char *path, FILE *file)
{
    sl_status status = SL_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    for (int64_t number = 1; (size = getline(&line, &room, file)) >= 0; number++) {
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
            size--;
        if (size == 0)
            continue;
        if (batch->what->json)
            SL_TRY(add_json(batch, path, number, line, (size_t)size));
        else
            SL_TRY(add_document(batch, line, (size_t)size));
    }
    if (ferror(file))
        status = sl_fail(SL_ERR_IO, "%s cannot be read", path);
done:
    free(line);
    return status;
}

static sl_status add_whole(document_batch *batch, const char *path, FILE *file)
{
    sl_status status = SL_OK;
    char *text = NULL;
    size_t used = 0, room = 0, got;
    do {
        SL_TRY(SL_GROW(text, &room, used + (1 << 20)));
        got = fread(text + used, 1, room - used, file);
        used += got;
    } while (got > 0);
    if (ferror(file))
        SL_TRY(sl_fail(SL_ERR_IO, "%s cannot be read", path));
    SL_TRY(add_document(batch, text, used));
done:
    sl_free(text);
    return status;
}

static sl_status add_file(document_batch *batch, const char *path)
{
    sl_status status = SL_OK;
    FILE *file = NULL;
    SL_TRY(sl_file_open_stream(strcmp(path, "-") == 0 ? "/dev/stdin" : path, &file));
    if (batch->what->lines || batch->what->json)
        SL_TRY(add_lines(batch, path, file));
    else
        SL_TRY(add_whole(batch, path, file));
done:
    if (file)
        fclose(file);
    return status;
}

/* A folder's files; hidden ones and folders in it are left out. */
static sl_status add_folder(document_batch *batch, const char *path)
{
    sl_status status = SL_OK;
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, NULL, alphasort), files = 0;
    if (count < 0)
        return sl_fail(SL_ERR_IO, "%s cannot be listed", path);
    for (int i = 0; i < count && status == SL_OK; i++) {
        char *name = NULL;
        struct stat info;
        if (entries[i]->d_name[0] == '.')
            continue;
        status = sl_path_join(path, entries[i]->d_name, &name);
        if (status == SL_OK && stat(name, &info) == 0 && S_ISREG(info.st_mode)) {
            status = add_file(batch, name);
            files++;
        }
        sl_free(name);
    }
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return status == SL_OK && files == 0 ? sl_fail(SL_ERR_ARGUMENT, "the folder %s has no file", path) : status;
}

/* ---- The command ----------------------------------------------------------------------------- */

static sl_status find_end(const request *what, const sl_tokenizer *tokenizer, int32_t *out)
{
    *out = what->end ? sl_tokenizer_end_token(tokenizer) : -1;
    if (what->end && *out < 0)
        return sl_fail(SL_ERR_ARGUMENT, "--end: %s has no token that ends a text, such as <|endoftext|>",
                       what->tokenizer);
    return SL_OK;
}

static sl_status encode(const request *what, sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    document_batch batch = { .what = what, .tokenizer = tokenizer, .started = sl_now() };
    struct stat info;
    SL_TRY(find_end(what, tokenizer, &batch.end));
    SL_TRY(sl_token_writer_create(what->output, formats[what->format], &batch.writer));
    for (int i = 0; i < what->input_count; i++) {
        bool folder = stat(what->inputs[i], &info) == 0 && S_ISDIR(info.st_mode);
        SL_TRY(folder ? add_folder(&batch, what->inputs[i]) : add_file(&batch, what->inputs[i]));
    }
    SL_TRY(write_batch(&batch));
    show_progress(&batch, true);
    SL_TRY(sl_token_writer_finish(batch.writer));
    int64_t count = sl_token_writer_count(batch.writer);
    printf("%" PRIu64 " byte%s, ", batch.read, sl_plural((int64_t)batch.read));
    if (batch.documents != 1)
        printf("%" PRIu64 " documents, ", batch.documents);
    printf("%" PRId64 " token%s: %s\n", count, sl_plural(count), what->output);
done:
    sl_token_writer_destroy(batch.writer);
    sl_free(batch.bytes);
    sl_free(batch.stops);
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

    SL_TRY(sl_tokens_open(what->inputs[0], SL_TOKENS_AUTO, &tokens));
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

/* What does not go together; NULL if all does. */
static const char *find_clash(const request *what)
{
    if (!what->output && !what->decode)
        return "--output is missing";
    if (what->decode && (what->special || what->end || what->frame || what->lines || what->json))
        return "--decode goes with none of --special, --end, --frame, --lines and --json";
    if (what->decode && what->input_count > 1)
        return "--decode takes one file";
    if (what->lines && what->json)
        return "--lines and --json do not go together";
    return NULL;
}

int cmd_tokenize(int argc, char **argv)
{
    sl_status status = SL_OK;
    sl_tokenizer *tokenizer = NULL;
    request what = { .threads = (int)sysconf(_SC_NPROCESSORS_ONLN) };
    const cli_option options[] = {
        { .name = "tokenizer",
          .letter = 't',
          .value = "PATH",
          .text = &what.tokenizer,
          .required = true,
          .help = "Folder of the tokenizer, its tokenizer.json, or SentencePiece's .model." },
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
        { .name = "frame",
          .flag = &what.frame,
          .help = "Put the tokens around each document that the model expects, such as <s> before it." },
        { .name = "end",
          .flag = &what.end,
          .help = "Put the token that ends a text, such as <|endoftext|>, after each "
                  "document." },
        { .name = "lines", .flag = &what.lines, .help = "Each line is a document." },
        { .name = "json",
          .value = "KEY",
          .text = &what.json,
          .help = "Each line is a JSON object whose text KEY is a document." },
        { .name = "threads",
          .value = "N",
          .integer = &what.threads,
          .min = 1,
          .max = 1024,
          .help = "Threads that encode (default: one a core)." },
        { .name = "decode", .letter = 'd', .flag = &what.decode, .help = "From tokens to text." },
        { .name = NULL },
    };
    int code;
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    what.inputs = argv + 1;
    what.input_count = argc - 1;
    const char *clash = find_clash(&what);
    if (clash)
        return usage_error("tokenize", "%s", clash);
    SL_TRY(sl_tokenizer_open(what.tokenizer, &tokenizer));
    SL_TRY(what.decode ? decode(&what, tokenizer) : encode(&what, tokenizer));
done:
    sl_tokenizer_close(tokenizer);
    if (status == SL_OK)
        return EXIT_OK;
    return what.decode ? failure("tokenize") : refusal("tokenize", status); /* a file's tokens are no argument */
}
