/* Tokens: one file, or several that are read as one, each after the one before. */
#include "data/token_file.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

struct sl_tokens {
    token_file *files;
    int64_t *ends; /* of each file among all tokens */
    int file_count;
    char *label; /* the path, or "a.bin and 7 more files" */
};

/* So many files stay open; those past them are opened for each read, as a process may have only so many. */
enum { KEPT_OPEN = 64 };

const char *sl_token_format_name(sl_token_format format)
{
    return (unsigned)format < TOKEN_FORM_COUNT ? sl_token_forms[format].name : "?";
}

sl_status sl_token_format_parse(const char *text, sl_token_format *out)
{
    for (int i = 0; i < TOKEN_FORM_COUNT; i++) {
        if (i != SL_TOKENS_TEXT && strcmp(text, sl_token_forms[i].name) == 0) {
            *out = (sl_token_format)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "unknown token format '%.40s'; there are nanogpt, llmc, llmc-u32, npy and bytes",
                   text);
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Tokens of different types come from different tokenizers, or from a file that is no token file. */
static sl_status check_types(const sl_tokens *tokens)
{
    for (int i = 1; i < tokens->file_count; i++) {
        const token_file *first = &tokens->files[0], *file = &tokens->files[i];
        if (file->type != first->type)
            return sl_fail(SL_ERR_FORMAT,
                           "%s has tokens of the type %s, %s has %s; files that are read together have one type",
                           file->path, sl_token_type_name(file->type), first->path, sl_token_type_name(first->type));
    }
    return SL_OK;
}

static sl_status make_label(sl_tokens *tokens)
{
    char *first = tokens->files[0].path;
    int more = tokens->file_count - 1;
    if (more == 0)
        return sl_strdup(first, &tokens->label);
    size_t size = strlen(first) + 64;
    sl_status status = SL_NEW_ARRAY(tokens->label, size);
    if (status == SL_OK)
        snprintf(tokens->label, size, "%s and %d more file%s", first, more, more == 1 ? "" : "s");
    return status;
}

/* With a tokenizer the files are text. */
static sl_status open_files(const token_paths *paths, sl_token_format format, const sl_tokenizer *tokenizer,
                            sl_tokens **out)
{
    sl_status status = SL_OK;
    sl_tokens *tokens = NULL;
    int64_t count = 0;
    SL_TRY(SL_NEW(tokens));
    SL_TRY(SL_NEW_ARRAY(tokens->files, paths->count));
    SL_TRY(SL_NEW_ARRAY(tokens->ends, paths->count));
    for (size_t i = 0; i < paths->count; i++) {
        token_file *file = &tokens->files[i];
        SL_TRY(tokenizer ? sl_token_file_encode(paths->items[i], tokenizer, file)
                         : sl_token_file_open(paths->items[i], format, i >= KEPT_OPEN, file));
        tokens->file_count++;
        count += file->count;
        tokens->ends[i] = count;
    }
    SL_TRY(check_types(tokens));
    SL_TRY(make_label(tokens));
    *out = tokens;
    tokens = NULL;
done:
    sl_tokens_close(tokens);
    return status;
}

static sl_status open_paths(const char *const *paths, int count, sl_token_format format, const sl_tokenizer *tokenizer,
                            sl_tokens **out)
{
    sl_status status = SL_OK;
    token_paths files = { .items = NULL };
    if (count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "no file of tokens is given");
    for (int i = 0; i < count; i++)
        SL_TRY(sl_token_paths_add(&files, paths[i], tokenizer || format == SL_TOKENS_BYTES));
    SL_TRY(open_files(&files, format, tokenizer, out));
done:
    sl_token_paths_free(&files);
    return status;
}

sl_status sl_tokens_open_all(const char *const *paths, int count, sl_token_format format, sl_tokens **out)
{
    if ((unsigned)format >= TOKEN_FORM_COUNT || format == SL_TOKENS_TEXT)
        return sl_fail(SL_ERR_ARGUMENT, "there is no token format %d for files", (int)format);
    return open_paths(paths, count, format, NULL, out);
}

sl_status sl_tokens_open(const char *path, sl_token_format format, sl_tokens **out)
{
    return sl_tokens_open_all(&path, 1, format, out);
}

sl_status sl_tokens_encode_all(const char *const *paths, int count, const sl_tokenizer *tokenizer, sl_tokens **out)
{
    return open_paths(paths, count, SL_TOKENS_TEXT, tokenizer, out);
}

sl_status sl_tokens_encode(const char *path, const sl_tokenizer *tokenizer, sl_tokens **out)
{
    return sl_tokens_encode_all(&path, 1, tokenizer, out);
}

void sl_tokens_close(sl_tokens *tokens)
{
    if (!tokens)
        return;
    for (int i = 0; i < tokens->file_count; i++)
        sl_token_file_close(&tokens->files[i]);
    sl_free(tokens->files);
    sl_free(tokens->ends);
    sl_free(tokens->label);
    sl_free(tokens);
}

int64_t sl_tokens_count(const sl_tokens *tokens)
{
    return tokens->ends[tokens->file_count - 1];
}

int sl_tokens_files(const sl_tokens *tokens)
{
    return tokens->file_count;
}

sl_token_format sl_tokens_format(const sl_tokens *tokens)
{
    return tokens->files[0].format;
}

const char *sl_tokens_type(const sl_tokens *tokens)
{
    return sl_token_type_name(tokens->files[0].type);
}

const char *sl_tokens_path(const sl_tokens *tokens)
{
    return tokens->label;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* The file that holds a token. */
static int file_of(const sl_tokens *tokens, int64_t token)
{
    int low = 0, high = tokens->file_count - 1;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (tokens->ends[middle] <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A run of tokens that lies in one file and one block. */
typedef struct token_run {
    const token_file *file;
    int64_t first, count; /* in the file */
} token_run;

/* The run that begins at a token, at most `count` long. */
static token_run run_at(const sl_tokens *tokens, int64_t token, int64_t count)
{
    int i = file_of(tokens, token);
    const token_file *file = &tokens->files[i];
    token_run run = { .file = file, .first = token - (tokens->ends[i] - file->count), .count = count };
    run.count = run.count < tokens->ends[i] - token ? run.count : tokens->ends[i] - token;
    run.count = run.count < TOKEN_BLOCK ? run.count : TOKEN_BLOCK;
    return run;
}

static sl_status check_range(const sl_tokens *tokens, int64_t first, int64_t count)
{
    if (first < 0 || count < 0 || count > sl_tokens_count(tokens) - first)
        return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " tokens; %" PRId64 " from token %" PRId64 " are not there",
                       tokens->label, sl_tokens_count(tokens), count, first);
    return SL_OK;
}

/* Largest token of a block, as a number without sign. */
static uint32_t max_of(const int32_t *tokens, int64_t count)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++)
        most = (uint32_t)tokens[i] > most ? (uint32_t)tokens[i] : most;
    return most;
}

sl_status sl_tokens_check(const sl_tokens *tokens, int64_t first, int64_t count, int64_t vocab)
{
    int32_t block[TOKEN_BLOCK];
    token_run run;
    sl_status status = check_range(tokens, first, count);
    for (int64_t done = 0; status == SL_OK && done < count; done += run.count) {
        run = run_at(tokens, first + done, count - done);
        status = sl_token_file_block(run.file, run.first, run.count, block);
        if (status != SL_OK || (int64_t)max_of(block, run.count) < vocab)
            continue;
        int64_t bad = 0;
        while ((int64_t)(uint32_t)block[bad] < vocab)
            bad++;
        return sl_token_file_fail(run.file, run.first + bad, vocab);
    }
    return status;
}

sl_status sl_tokens_max(const sl_tokens *tokens, int64_t *out)
{
    int32_t block[TOKEN_BLOCK];
    sl_status status = SL_OK;
    uint32_t most = 0;
    token_run run;
    for (int64_t done = 0, count = sl_tokens_count(tokens); done < count; done += run.count) {
        run = run_at(tokens, done, count - done);
        SL_TRY(sl_token_file_block(run.file, run.first, run.count, block));
        most = max_of(block, run.count) > most ? max_of(block, run.count) : most;
    }
    *out = most;
done:
    return status;
}

sl_status sl_tokens_read(const sl_tokens *tokens, int64_t first, int64_t count, int32_t *out)
{
    token_run run;
    sl_status status = check_range(tokens, first, count);
    for (int64_t done = 0; status == SL_OK && done < count; done += run.count) {
        run = run_at(tokens, first + done, count - done);
        status = sl_token_file_block(run.file, run.first, run.count, out + done);
    }
    return status;
}

/* ---- Identity -------------------------------------------------------------------------------- */

sl_status sl_tokens_hash(const sl_tokens *tokens, uint64_t *out)
{
    const uint64_t hashed = 1 << 30, least = 1 << 20;
    sl_status status = SL_OK;
    uint64_t *each = NULL, share = hashed / (uint64_t)tokens->file_count;
    SL_TRY(SL_NEW_ARRAY(each, tokens->file_count));
    for (int i = 0; i < tokens->file_count; i++)
        SL_TRY(sl_token_file_hash(&tokens->files[i], share > least ? share : least, &each[i]));
    *out = tokens->file_count == 1 ? each[0] : XXH3_64bits(each, (size_t)tokens->file_count * sizeof *each);
done:
    sl_free(each);
    return status;
}
