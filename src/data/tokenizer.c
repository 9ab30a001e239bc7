/* The tokenizer: opening, its vocabulary, and from ids back to bytes. */
#include "data/tokenizer.h"

#include "base/alloc.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Vocabulary ------------------------------------------------------------------------------ */

/* Makes room for the id and returns its token, empty where it is new. */
static sl_status take_id(sl_tokenizer *tokenizer, const char *text, int64_t id, token **out)
{
    if (id < 0 || id >= TOKEN_ID_MAX)
        return sl_fail(SL_ERR_FORMAT, "token '%.100s' has the id %" PRId64 "; 0 to %d are possible", text, id,
                       TOKEN_ID_MAX - 1);
    sl_status status = SL_GROW(tokenizer->tokens, &tokenizer->token_capacity, id + 1);
    if (status != SL_OK)
        return status;
    for (; tokenizer->vocab <= id; tokenizer->vocab++)
        tokenizer->tokens[tokenizer->vocab] = (token){ 0 };
    *out = &tokenizer->tokens[id];
    return SL_OK;
}

sl_status sl_tokenizer_add_token(sl_tokenizer *tokenizer, const char *text, int64_t id)
{
    sl_status status = SL_OK;
    token *entry = NULL;
    unsigned char *bytes;
    size_t length = strlen(text);

    SL_TRY(take_id(tokenizer, text, id, &entry));
    if (entry->bytes)
        return sl_fail(SL_ERR_FORMAT, "tokens '%.100s' and another have the id %" PRId64, text, id);
    SL_TRY(sl_arena_copy(tokenizer->arena, text, length + 1, (void **)&bytes));
    if (!sl_alphabet_decode(text, bytes, &length)) { /* outside the alphabet: stands for itself */
        length = strlen(text);
        memcpy(bytes, text, length + 1);
    }
    *entry = (token){ .bytes = bytes, .length = (uint32_t)length };
    if (length == 1)
        tokenizer->byte_ids[bytes[0]] = (int32_t)id;
done:
    return status;
}

/* Whether a token of the vocabulary has this text: special tokens may stand in both lists. */
static bool has_text(const token *entry, const char *text)
{
    unsigned char decoded[SPECIAL_LENGTH_MAX];
    size_t length = strlen(text);
    if (entry->length == length && memcmp(entry->bytes, text, length) == 0)
        return true;
    return sl_alphabet_decode(text, decoded, &length) && entry->length == length &&
           memcmp(entry->bytes, decoded, length) == 0;
}

sl_status sl_tokenizer_add_special(sl_tokenizer *tokenizer, const char *text, int64_t id)
{
    sl_status status = SL_OK;
    token *entry = NULL;
    size_t length = strlen(text);
    void *bytes;

    if (length > SPECIAL_LENGTH_MAX)
        return sl_fail(SL_ERR_FORMAT, "special token '%.40s...' has %zu bytes; %d are possible", text, length,
                       SPECIAL_LENGTH_MAX);
    SL_TRY(take_id(tokenizer, text, id, &entry));
    if (entry->bytes && !has_text(entry, text))
        return sl_fail(SL_ERR_FORMAT, "special token '%.100s' has the id %" PRId64 " of another token", text, id);
    SL_TRY(sl_arena_copy(tokenizer->arena, text, length + 1, &bytes));
    SL_TRY(SL_GROW(tokenizer->special, &tokenizer->special_capacity, tokenizer->special_count + 1));
    *entry = (token){ .bytes = bytes, .length = (uint32_t)length, .special = true };
    tokenizer->special[tokenizer->special_count++] = (int32_t)id;
    tokenizer->special_first[(unsigned char)text[0]] = true;
done:
    return status;
}

sl_status sl_tokenizer_set_pattern(sl_tokenizer *tokenizer, const char *pattern)
{
    int error;
    PCRE2_SIZE offset;
    tokenizer->pattern =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);
    if (!tokenizer->pattern) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(error, text, sizeof text);
        return sl_fail(SL_ERR_FORMAT, "%s: pattern '%.100s', character %zu: %s", tokenizer->path, pattern,
                       (size_t)offset, (const char *)text);
    }
    pcre2_jit_compile(tokenizer->pattern, PCRE2_JIT_COMPLETE); /* where it cannot, the interpreter matches */
    tokenizer->match = pcre2_match_data_create_from_pattern(tokenizer->pattern, NULL);
    return tokenizer->match ? SL_OK : sl_fail(SL_ERR_MEMORY, "%s: no memory for matching", tokenizer->path);
}

static int compare_bytes(const void *a, const void *b, void *tokens)
{
    const token *x = &((const token *)tokens)[*(const int32_t *)a], *y = &((const token *)tokens)[*(const int32_t *)b];
    size_t shorter = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->bytes, y->bytes, shorter);
    if (order == 0)
        order = (x->length > y->length) - (x->length < y->length);
    return order ? order : (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

static sl_status sort_tokens(sl_tokenizer *tokenizer)
{
    sl_status status = SL_NEW_ARRAY(tokenizer->by_bytes, tokenizer->vocab);
    if (status != SL_OK)
        return status;
    for (int64_t id = 0; id < tokenizer->vocab; id++) {
        if (tokenizer->tokens[id].bytes && !tokenizer->tokens[id].special)
            tokenizer->by_bytes[tokenizer->by_bytes_count++] = (int32_t)id;
    }
    qsort_r(tokenizer->by_bytes, (size_t)tokenizer->by_bytes_count, sizeof *tokenizer->by_bytes, compare_bytes,
            tokenizer->tokens);
    return SL_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Whether the folder has this file; *path is its name, to be freed. */
static sl_status look_for(const char *folder, const char *name, char **path, bool *found)
{
    sl_status status = sl_path_join(folder, name, path);
    if (status == SL_OK)
        *found = access(*path, F_OK) == 0;
    return status;
}

static sl_status read_files(sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    char *json = NULL, *vocab = NULL, *merges = NULL;
    bool has_json = false, has_vocab = false, has_merges = false;
    struct stat info;

    if (stat(tokenizer->path, &info) == 0 && !S_ISDIR(info.st_mode))
        return sl_tokenizer_read_json(tokenizer, tokenizer->path);
    SL_TRY(look_for(tokenizer->path, "tokenizer.json", &json, &has_json));
    SL_TRY(look_for(tokenizer->path, "vocab.json", &vocab, &has_vocab));
    SL_TRY(look_for(tokenizer->path, "merges.txt", &merges, &has_merges));
    if (has_json)
        SL_TRY(sl_tokenizer_read_json(tokenizer, json));
    else if (has_vocab && has_merges)
        SL_TRY(sl_tokenizer_read_pair(tokenizer, vocab, merges));
    else
        status = sl_fail(SL_ERR_IO, "%s has neither tokenizer.json nor vocab.json and merges.txt", tokenizer->path);
done:
    sl_free(json);
    sl_free(vocab);
    sl_free(merges);
    return status;
}

sl_status sl_tokenizer_open(const char *path, sl_tokenizer **out)
{
    sl_status status = SL_OK;
    sl_tokenizer *tokenizer = NULL;

    if (!path)
        return sl_fail(SL_ERR_ARGUMENT, "a tokenizer needs a path: NULL was given");
    SL_TRY(SL_NEW(tokenizer));
    for (int byte = 0; byte < 256; byte++)
        tokenizer->byte_ids[byte] = NO_TOKEN;
    SL_TRY(sl_strdup(path, &tokenizer->path));
    SL_TRY(sl_arena_create(&tokenizer->arena));
    SL_TRY(sl_bpe_create(&tokenizer->merges));
    SL_TRY(read_files(tokenizer));
    if (tokenizer->special_count > 1)
        qsort_r(tokenizer->special, (size_t)tokenizer->special_count, sizeof *tokenizer->special, compare_bytes,
                tokenizer->tokens);
    if (tokenizer->whole_pieces)
        SL_TRY(sort_tokens(tokenizer));
    *out = tokenizer;
    tokenizer = NULL;
done:
    sl_tokenizer_close(tokenizer);
    return status;
}

void sl_tokenizer_close(sl_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    pcre2_match_data_free(tokenizer->match);
    pcre2_code_free(tokenizer->pattern);
    sl_bpe_destroy(tokenizer->merges);
    sl_arena_destroy(tokenizer->arena);
    sl_free(tokenizer->tokens);
    sl_free(tokenizer->by_bytes);
    sl_free(tokenizer->special);
    sl_free(tokenizer->path);
    sl_free(tokenizer);
}

int64_t sl_tokenizer_vocab(const sl_tokenizer *tokenizer)
{
    return tokenizer->vocab;
}

int32_t sl_tokenizer_special(const sl_tokenizer *tokenizer, const char *text)
{
    for (int i = 0; i < tokenizer->special_count; i++) {
        if (strcmp((const char *)tokenizer->tokens[tokenizer->special[i]].bytes, text) == 0)
            return tokenizer->special[i];
    }
    return NO_TOKEN;
}

/* ---- Decoding -------------------------------------------------------------------------------- */

sl_status sl_tokenizer_decode(const sl_tokenizer *tokenizer, const int32_t *ids, int64_t count, char **out,
                              size_t *bytes)
{
    size_t total = 0, at = 0;
    char *text = NULL;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer->vocab || !tokenizer->tokens[ids[i]].bytes)
            return sl_fail(SL_ERR_ARGUMENT,
                           "token %" PRId64 " is %" PRId32 ", which the vocabulary of %s does not have", i, ids[i],
                           tokenizer->path);
        total += tokenizer->tokens[ids[i]].length;
    }
    sl_status status = SL_NEW_ARRAY(text, total + 1);
    if (status != SL_OK)
        return status;
    for (int64_t i = 0; i < count; i++) {
        const token *entry = &tokenizer->tokens[ids[i]];
        memcpy(text + at, entry->bytes, entry->length);
        at += entry->length;
    }
    *out = text;
    *bytes = total;
    return SL_OK;
}
