/* The tokenizer: opening, its vocabulary, closing. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- Vocabulary ------------------------------------------------------------------------------ */

/* Makes room for the id and returns its token, empty if it is new. */
static sl_status take_id(sl_tokenizer *tokenizer, const void *text, int64_t id, token **out)
{
    if (id < 0 || id >= TOKEN_ID_MAX)
        return sl_fail(SL_ERR_FORMAT, "token '%.100s' has the id %" PRId64 "; 0 to %d are possible", (const char *)text,
                       id, TOKEN_ID_MAX - 1);
    sl_status status = SL_GROW(tokenizer->tokens, &tokenizer->token_capacity, id + 1);
    if (status != SL_OK)
        return status;
    for (; tokenizer->vocab <= id; tokenizer->vocab++)
        tokenizer->tokens[tokenizer->vocab] = (token){ 0 };
    *out = &tokenizer->tokens[id];
    return SL_OK;
}

sl_status sl_tokenizer_add_token(sl_tokenizer *tokenizer, const void *text, size_t length, int64_t id)
{
    sl_status status = SL_OK;
    token *entry = NULL;
    unsigned char *bytes;

    SL_TRY(take_id(tokenizer, text, id, &entry));
    if (entry->bytes)
        return sl_fail(SL_ERR_FORMAT, "tokens '%.100s' and another have the id %" PRId64, (const char *)text, id);
    SL_TRY(sl_arena_copy(tokenizer->arena, text, length + 1, (void **)&bytes));
    size_t decoded = 0;
    if (tokenizer->model.byte_level && sl_alphabet_decode(text, length, bytes, &decoded))
        length = decoded;
    else
        memcpy(bytes, text, length + 1); /* outside the alphabet: stands for itself */
    *entry = (token){ .bytes = bytes, .length = (uint32_t)length };
    if (tokenizer->model.byte_level && length == 1)
        tokenizer->model.byte_ids[bytes[0]] = (int32_t)id;
done:
    return status;
}

/* Whether a token of the vocabulary has this text: added tokens may stand in both lists. */
static bool has_text(const token *entry, const added_token *what)
{
    unsigned char decoded[ADDED_LENGTH_MAX];
    size_t length = what->length;
    if (entry->length == length && memcmp(entry->bytes, what->bytes, length) == 0)
        return true;
    return sl_alphabet_decode(what->bytes, length, decoded, &length) && entry->length == length &&
           memcmp(entry->bytes, decoded, length) == 0;
}

sl_status sl_tokenizer_add_added(sl_tokenizer *tokenizer, const added_token *what)
{
    sl_status status = SL_OK;
    token *entry = NULL;
    added_token copy = *what;
    added_set *set = what->normalized ? &tokenizer->normalized : &tokenizer->raw;
    void *bytes;

    if (what->length > ADDED_LENGTH_MAX)
        return sl_fail(SL_ERR_FORMAT, "added token '%.40s...' has %u bytes; %d are possible", (const char *)what->bytes,
                       what->length, ADDED_LENGTH_MAX);
    SL_TRY(take_id(tokenizer, what->bytes, what->id, &entry));
    if (entry->bytes && !has_text(entry, what))
        return sl_fail(SL_ERR_FORMAT, "added token '%.100s' has the id %" PRId32 " of another token",
                       (const char *)what->bytes, what->id);
    SL_TRY(sl_arena_copy(tokenizer->arena, what->bytes, what->length + 1, &bytes));
    copy.bytes = bytes;
    *entry = (token){ .bytes = bytes, .length = what->length, .added = true, .special = what->special };
    SL_TRY(SL_GROW(set->tokens, &set->capacity, set->count + 1));
    set->tokens[set->count++] = copy;
done:
    return status;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static int compare_added(const void *a, const void *b)
{
    const added_token *x = a, *y = b;
    size_t shorter = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->bytes, y->bytes, shorter);
    if (order == 0)
        order = (x->length > y->length) - (x->length < y->length);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static void sort_added(added_set *set)
{
    if (set->count > 1)
        qsort(set->tokens, set->count, sizeof *set->tokens, compare_added);
    for (size_t i = 0; i < set->count; i++)
        set->first[set->tokens[i].bytes[0]] = true;
}

/* Tokens that are looked for in normalized text are normalized, too. Those that vanish are never found. */
static sl_status normalize_added(sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    text_encoder *encoder = NULL;
    added_set *set = &tokenizer->normalized;
    size_t kept = 0;
    if (tokenizer->normal_count == 0 || tokenizer->normal[0].kind == NORMAL_PIECES)
        return SL_OK; /* SentencePiece's symbols are as they come out */
    SL_TRY(sl_encoder_take(tokenizer, &encoder));
    for (size_t i = 0; i < set->count; i++) {
        added_token each = set->tokens[i];
        const unsigned char *text;
        size_t size;
        void *bytes;
        SL_TRY(sl_tokenizer_normalize(encoder, each.bytes, each.length, &text, &size));
        if (size == 0 || size > ADDED_LENGTH_MAX)
            continue;
        SL_TRY(sl_arena_copy(tokenizer->arena, text, size, &bytes));
        each.bytes = bytes;
        each.length = (uint32_t)size;
        set->tokens[kept++] = each;
    }
    set->count = kept;
done:
    sl_encoder_give_back(encoder);
    return status;
}

static sl_status fill_map(sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    size_t slots = 1024;
    while (slots < 2 * (size_t)tokenizer->vocab)
        slots *= 2;
    SL_TRY(SL_NEW_ARRAY(tokenizer->map, slots));
    tokenizer->map_slots = slots;
    for (size_t i = 0; i < slots; i++)
        tokenizer->map[i] = NO_TOKEN;
    for (int32_t id = 0; id < tokenizer->vocab; id++) {
        const token *entry = &tokenizer->tokens[id];
        if (!entry->bytes || (tokenizer->model.byte_level && entry->special))
            continue; /* a piece of bytes is never a special token */
        size_t at = XXH3_64bits(entry->bytes, entry->length) & (slots - 1);
        while (tokenizer->map[at] != NO_TOKEN)
            at = (at + 1) & (slots - 1);
        tokenizer->map[at] = id;
    }
done:
    return status;
}

static void find_fallback(sl_tokenizer *tokenizer)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        tokenizer->model.byte_ids[byte] = sl_tokenizer_find(tokenizer, text, strlen(text));
    }
}

/* If no token has a mark behind another character, no merge reaches over the place before a mark: a text that is not
 * split at all may be split there. */
static sl_status split_at_marks(sl_tokenizer *tokenizer)
{
    static const char mark[] = "\xe2\x96\x81";
    if (tokenizer->model.kind != MODEL_BPE || tokenizer->split_count > 0 || tokenizer->model.byte_level ||
        tokenizer->model.whole_pieces || *tokenizer->model.prefix || *tokenizer->model.suffix ||
        sl_tokenizer_find(tokenizer, mark, 3) == NO_TOKEN)
        return SL_OK;
    for (int64_t id = 0; id < tokenizer->vocab; id++) {
        const token *entry = &tokenizer->tokens[id];
        for (uint32_t i = 1; entry->bytes && !entry->added && i + 3 <= entry->length; i++) {
            bool after_mark = i >= 3 && memcmp(entry->bytes + i - 3, mark, 3) == 0;
            if (memcmp(entry->bytes + i, mark, 3) == 0 && !after_mark)
                return SL_OK;
        }
    }
    split_step *step = &tokenizer->split[tokenizer->split_count++];
    *step = (split_step){ .kind = SPLIT_PATTERN, .behavior = SPLIT_ISOLATED };
    return sl_pattern_compile(tokenizer->path, "\xe2\x96\x81*[^\xe2\x96\x81]+|\xe2\x96\x81+", &step->pattern);
}

/* Once everything is read: the tables that encoding needs. */
static sl_status fill_tables(sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    SL_TRY(fill_map(tokenizer));
    if (!tokenizer->model.byte_level)
        find_fallback(tokenizer);
    if (tokenizer->model.kind == MODEL_UNIGRAM)
        SL_TRY(sl_unigram_finish(tokenizer));
    SL_TRY(split_at_marks(tokenizer));
    SL_TRY(normalize_added(tokenizer));
    sort_added(&tokenizer->raw);
    sort_added(&tokenizer->normalized);
done:
    return status;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* The path of a file in the folder, which the caller frees; NULL if the folder does not have it. */
static sl_status look_for(const char *folder, const char *name, char **out)
{
    char *path = NULL;
    sl_status status = sl_path_join(folder, name, &path);
    if (status == SL_OK && access(path, F_OK) == 0)
        *out = path;
    else
        sl_free(path);
    return status;
}

static sl_status read_files(sl_tokenizer *tokenizer)
{
    sl_status status = SL_OK;
    const char *path = tokenizer->path;
    char *json = NULL, *vocab = NULL, *merges = NULL, *pieces = NULL;
    struct stat info;

    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return ends_with(path, ".model") ? sl_tokenizer_read_pieces(tokenizer, path)
                                         : sl_tokenizer_read_json(tokenizer, path);
    SL_TRY(look_for(path, "tokenizer.json", &json));
    SL_TRY(look_for(path, "vocab.json", &vocab));
    SL_TRY(look_for(path, "merges.txt", &merges));
    SL_TRY(look_for(path, "tokenizer.model", &pieces));
    if (json)
        SL_TRY(sl_tokenizer_read_json(tokenizer, json));
    else if (vocab && merges)
        SL_TRY(sl_tokenizer_read_pair(tokenizer, vocab, merges));
    else if (pieces)
        SL_TRY(sl_tokenizer_read_pieces(tokenizer, pieces));
    else
        status =
            sl_fail(SL_ERR_IO, "%s has neither tokenizer.json nor vocab.json and merges.txt nor tokenizer.model", path);
done:
    sl_free(json);
    sl_free(vocab);
    sl_free(merges);
    sl_free(pieces);
    return status;
}

sl_status sl_tokenizer_open(const char *path, sl_tokenizer **out)
{
    sl_status status = SL_OK;
    sl_tokenizer *tokenizer = NULL;

    if (!path)
        return sl_fail(SL_ERR_ARGUMENT, "a tokenizer needs a path: NULL was given");
    SL_TRY(SL_NEW(tokenizer));
    pthread_mutex_init(&tokenizer->lock, NULL);
    for (int byte = 0; byte < 256; byte++)
        tokenizer->model.byte_ids[byte] = NO_TOKEN;
    tokenizer->model.unknown = NO_TOKEN;
    tokenizer->model.prefix = tokenizer->model.suffix = "";
    SL_TRY(sl_strdup(path, &tokenizer->path));
    SL_TRY(sl_arena_create(&tokenizer->arena));
    SL_TRY(sl_bpe_create(&tokenizer->model.merges));
    SL_TRY(read_files(tokenizer));
    SL_TRY(fill_tables(tokenizer));
    *out = tokenizer;
    tokenizer = NULL;
done:
    sl_tokenizer_close(tokenizer);
    return status;
}

static void free_steps(sl_tokenizer *tokenizer)
{
    for (int i = 0; i < tokenizer->normal_count; i++) {
        pcre2_code_free(tokenizer->normal[i].pattern);
        sl_charsmap_destroy(tokenizer->normal[i].map);
    }
    for (int i = 0; i < tokenizer->split_count; i++)
        pcre2_code_free(tokenizer->split[i].pattern);
    for (int i = 0; i < tokenizer->decode_count; i++)
        pcre2_code_free(tokenizer->decode[i].pattern);
}

void sl_tokenizer_close(sl_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    while (tokenizer->idle) {
        text_encoder *next = tokenizer->idle->next;
        sl_encoder_destroy(tokenizer->idle);
        tokenizer->idle = next;
    }
    free_steps(tokenizer);
    sl_bpe_destroy(tokenizer->model.merges);
    sl_free(tokenizer->model.scores);
    sl_free(tokenizer->model.sorted);
    sl_arena_destroy(tokenizer->arena);
    sl_free(tokenizer->tokens);
    sl_free(tokenizer->map);
    sl_free(tokenizer->raw.tokens);
    sl_free(tokenizer->normalized.tokens);
    sl_free(tokenizer->before.ids);
    sl_free(tokenizer->after.ids);
    sl_free(tokenizer->path);
    pthread_mutex_destroy(&tokenizer->lock);
    sl_free(tokenizer);
}

int64_t sl_tokenizer_vocab(const sl_tokenizer *tokenizer)
{
    return tokenizer->vocab;
}

int32_t sl_tokenizer_special(const sl_tokenizer *tokenizer, const char *text)
{
    size_t length = strlen(text);
    for (int32_t id = 0; id < tokenizer->vocab; id++) {
        const token *entry = &tokenizer->tokens[id];
        if (entry->added && entry->length == length && memcmp(entry->bytes, text, length) == 0)
            return id;
    }
    return NO_TOKEN;
}

int32_t sl_tokenizer_end_token(const sl_tokenizer *tokenizer)
{
    static const char *const texts[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]" };
    int32_t id = NO_TOKEN;
    for (size_t i = 0; id == NO_TOKEN && i < sizeof texts / sizeof *texts; i++)
        id = sl_tokenizer_special(tokenizer, texts[i]);
    return id;
}
