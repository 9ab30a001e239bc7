/* Hugging Face's tokenizer files: vocab.json with merges.txt, or tokenizer.json. */
#include "data/tokenizer.h"

#include "base/alloc.h"
#include "base/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* How GPT-2 cuts text into pieces before merging. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static sl_status read_json(const char *path, json_t **out)
{
    sl_status status = SL_OK;
    sl_file_bytes file = { 0 };
    json_error_t error;

    SL_TRY(sl_file_read(path, &file));
    json_t *root = json_loadb(file.data ? (const char *)file.data : "", file.size, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        status = sl_fail(SL_ERR_FORMAT, "%s, line %d: %s", path, error.line, error.text);
    else
        *out = root;
done:
    sl_file_bytes_free(&file);
    return status;
}

static sl_status read_vocab(sl_tokenizer *tokenizer, const char *path, json_t *vocab)
{
    sl_status status = SL_OK;
    const char *text;
    json_t *id;

    if (!json_is_object(vocab))
        return sl_fail(SL_ERR_FORMAT, "%s: the vocabulary is not an object", path);
    json_object_foreach(vocab, text, id)
    {
        if (!json_is_integer(id))
            return sl_fail(SL_ERR_FORMAT, "%s: token '%.100s' has an id that is no whole number", path, text);
        status = sl_tokenizer_add_token(tokenizer, text, json_integer_value(id));
        if (status != SL_OK)
            return sl_fail_context(status, "%s", path);
    }
    return SL_OK;
}

static int32_t find_id(const json_t *vocab, const char *text)
{
    const json_t *id = json_object_get(vocab, text);
    return id ? (int32_t)json_integer_value(id) : NO_TOKEN;
}

/* One merge, number `rank`; where is the line or the element for messages. */
static sl_status add_merge(sl_tokenizer *tokenizer, const json_t *vocab, const char *where, int rank, const char *left,
                           const char *right)
{
    char *joined = NULL;
    size_t size = strlen(left) + strlen(right) + 1;
    sl_status status = SL_NEW_ARRAY(joined, size);
    if (status != SL_OK)
        return status;
    snprintf(joined, size, "%s%s", left, right);
    int32_t left_id = find_id(vocab, left), right_id = find_id(vocab, right), joined_id = find_id(vocab, joined);
    const char *unknown = left_id < 0 ? left : right_id < 0 ? right : joined_id < 0 ? joined : NULL;
    if (unknown)
        status = sl_fail(SL_ERR_FORMAT, "%s %d: merge '%.60s %.60s': '%.100s' is not in the vocabulary", where,
                         rank + 1, left, right, unknown);
    else
        status = sl_bpe_add(tokenizer->merges, left_id, right_id, rank, joined_id);
    sl_free(joined);
    return status;
}

/* "left right": one blank, which is no character of the alphabet. */
static sl_status add_merge_line(sl_tokenizer *tokenizer, const json_t *vocab, const char *where, int rank, char *line)
{
    char *blank = strchr(line, ' ');
    if (!blank || blank == line || blank[1] == '\0' || strchr(blank + 1, ' '))
        return sl_fail(SL_ERR_FORMAT, "%s %d: '%.100s' is not two tokens", where, rank + 1, line);
    *blank = '\0';
    return add_merge(tokenizer, vocab, where, rank, line, blank + 1);
}

static sl_status read_merges_text(sl_tokenizer *tokenizer, const char *path, const json_t *vocab)
{
    sl_status status = SL_OK;
    sl_file_bytes file = { 0 };
    char *text = NULL, *where = NULL;
    int number = 0;

    SL_TRY(sl_file_read(path, &file));
    SL_TRY(SL_NEW_ARRAY(text, file.size + 1));
    if (file.size > 0)
        memcpy(text, file.data, file.size);
    SL_TRY(sl_arena_printf(tokenizer->arena, &where, "%s, line", path));
    for (char *line = text, *next; line && *line; line = next, number++) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        size_t length = strcspn(line, "\r");
        line[length] = '\0';
        if (length == 0 || (number == 0 && strncmp(line, "#version", 8) == 0))
            continue;
        SL_TRY(add_merge_line(tokenizer, vocab, where, number, line));
    }
done:
    sl_free(text);
    sl_file_bytes_free(&file);
    return status;
}

sl_status sl_tokenizer_read_pair(sl_tokenizer *tokenizer, const char *vocab_path, const char *merges_path)
{
    static const char end_of_text[] = "<|endoftext|>"; /* these files do not say which tokens are special */
    sl_status status = SL_OK;
    json_t *vocab = NULL;

    SL_TRY(read_json(vocab_path, &vocab));
    SL_TRY(read_vocab(tokenizer, vocab_path, vocab));
    SL_TRY(read_merges_text(tokenizer, merges_path, vocab));
    SL_TRY(sl_tokenizer_set_pattern(tokenizer, gpt2_pattern));
    if (json_object_get(vocab, end_of_text))
        SL_TRY(sl_tokenizer_add_special(tokenizer, end_of_text, find_id(vocab, end_of_text)));
done:
    json_decref(vocab);
    return status;
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static sl_status read_merges_json(sl_tokenizer *tokenizer, const char *path, const json_t *vocab, const json_t *merges)
{
    sl_status status = SL_OK;
    char *where = NULL, *copy = NULL;
    size_t index;
    json_t *merge;

    if (!json_is_array(merges))
        return sl_fail(SL_ERR_FORMAT, "%s: model.merges is not a list", path);
    SL_TRY(sl_arena_printf(tokenizer->arena, &where, "%s, merge", path));
    json_array_foreach(merges, index, merge)
    {
        const char *left = json_string_value(json_array_get(merge, 0));
        const char *right = json_string_value(json_array_get(merge, 1));
        if (left && right && json_array_size(merge) == 2) {
            SL_TRY(add_merge(tokenizer, vocab, where, (int)index, left, right));
        } else if (json_is_string(merge)) {
            SL_TRY(sl_strdup(json_string_value(merge), &copy));
            SL_TRY(add_merge_line(tokenizer, vocab, where, (int)index, copy));
            sl_free(copy);
            copy = NULL;
        } else {
            status = sl_fail(SL_ERR_FORMAT, "%s %zu is not two tokens", where, index + 1);
            goto done;
        }
    }
done:
    sl_free(copy);
    return status;
}

static bool has_type(const json_t *object, const char *type)
{
    const char *given = json_string_value(json_object_get(object, "type"));
    return given && strcmp(given, type) == 0;
}

/* ByteLevel alone (GPT-2's pattern), or a Split by a pattern before it (Llama 3). */
static sl_status read_pre_tokenizer(sl_tokenizer *tokenizer, const char *path, const json_t *pre)
{
    const char *pattern = gpt2_pattern;
    const json_t *level = pre;
    if (has_type(pre, "Sequence")) {
        const json_t *parts = json_object_get(pre, "pretokenizers"), *split = json_array_get(parts, 0);
        const char *behavior = json_string_value(json_object_get(split, "behavior"));
        pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
        level = json_array_get(parts, 1);
        if (json_array_size(parts) != 2 || !has_type(split, "Split") || !pattern || !behavior ||
            strcmp(behavior, "Isolated") != 0 || json_is_true(json_object_get(split, "invert")) ||
            json_is_true(json_object_get(level, "use_regex")))
            level = NULL;
    } else if (json_is_false(json_object_get(pre, "use_regex"))) {
        level = NULL;
    }
    if (!has_type(level, "ByteLevel"))
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: the pre_tokenizer is not byte-level as in GPT-2 and Llama 3", path);
    tokenizer->prefix_space = json_is_true(json_object_get(level, "add_prefix_space"));
    return sl_tokenizer_set_pattern(tokenizer, pattern);
}

static sl_status read_added(sl_tokenizer *tokenizer, const char *path, const json_t *added)
{
    size_t index;
    json_t *each;
    json_array_foreach(added, index, each)
    {
        const char *content = json_string_value(json_object_get(each, "content"));
        const json_t *id = json_object_get(each, "id");
        if (!content || !content[0] || !json_is_integer(id))
            return sl_fail(SL_ERR_FORMAT, "%s: added token %zu has no content or no id", path, index);
        sl_status status = sl_tokenizer_add_special(tokenizer, content, json_integer_value(id));
        if (status != SL_OK)
            return sl_fail_context(status, "%s", path);
    }
    return SL_OK;
}

sl_status sl_tokenizer_read_json(sl_tokenizer *tokenizer, const char *path)
{
    sl_status status = SL_OK;
    json_t *root = NULL;

    SL_TRY(read_json(path, &root));
    const json_t *model = json_object_get(root, "model"), *normalizer = json_object_get(root, "normalizer");
    json_t *vocab = json_object_get(model, "vocab");
    if (!has_type(model, "BPE") || json_is_true(json_object_get(model, "byte_fallback"))) {
        status = sl_fail(SL_ERR_UNSUPPORTED, "%s: the model is not a byte-level BPE", path);
        goto done;
    }
    if (normalizer && !json_is_null(normalizer)) {
        status = sl_fail(SL_ERR_UNSUPPORTED, "%s: normalizers are not known", path);
        goto done;
    }
    SL_TRY(read_vocab(tokenizer, path, vocab));
    SL_TRY(read_merges_json(tokenizer, path, vocab, json_object_get(model, "merges")));
    SL_TRY(read_pre_tokenizer(tokenizer, path, json_object_get(root, "pre_tokenizer")));
    SL_TRY(read_added(tokenizer, path, json_object_get(root, "added_tokens")));
    tokenizer->whole_pieces = json_is_true(json_object_get(model, "ignore_merges"));
done:
    json_decref(root);
    return status;
}

/* ---- The tokenizer of bytes ------------------------------------------------------------------- */

static json_t *byte_vocab(void)
{
    json_t *vocab = json_object();
    for (int byte = 0; vocab && byte < 256; byte++) {
        char text[3];
        sl_alphabet_encode((unsigned char)byte, text);
        if (json_object_set_new(vocab, text, json_integer(byte)) != 0) {
            json_decref(vocab);
            return NULL;
        }
    }
    return vocab;
}

sl_status sl_tokenizer_save_bytes(const char *path)
{
    sl_status status = SL_OK;
    char *text = NULL;
    json_t *vocab = byte_vocab();
    /* The ByteLevel parts only spell bytes in the alphabet; without merges every byte stays a token. */
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:[], s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b}, "
        "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:O, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor", "decoder", "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "vocab", vocab, "merges");
    text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    SL_TRY(text ? sl_file_replace_text(path, text) : sl_fail(SL_ERR_MEMORY, "%s: no memory for the tokenizer", path));
done:
    free(text);
    json_decref(root);
    json_decref(vocab);
    return status;
}
