/* Hugging Face's tokenizer files: vocab.json with merges.txt, or tokenizer.json. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/file.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

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
        status = sl_tokenizer_add_token(tokenizer, text, strlen(text), json_integer_value(id));
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
    const char *prefix = tokenizer->model.prefix; /* of what continues a word: it stays once */
    bool continues = *prefix && strncmp(right, prefix, strlen(prefix)) == 0;
    snprintf(joined, size, "%s%s", left, continues ? right + strlen(prefix) : right);
    int32_t left_id = find_id(vocab, left), right_id = find_id(vocab, right), joined_id = find_id(vocab, joined);
    const char *unknown = left_id < 0 ? left : right_id < 0 ? right : joined_id < 0 ? joined : NULL;
    if (unknown)
        status = sl_fail(SL_ERR_FORMAT, "%s %d: merge '%.60s %.60s': '%.100s' is not in the vocabulary", where,
                         rank + 1, left, right, unknown);
    else
        status = sl_bpe_add(tokenizer->model.merges, left_id, right_id, rank, joined_id);
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

    tokenizer->model.byte_level = true;
    SL_TRY(read_json(vocab_path, &vocab));
    SL_TRY(read_vocab(tokenizer, vocab_path, vocab));
    SL_TRY(read_merges_text(tokenizer, merges_path, vocab));
    SL_TRY(sl_tokenizer_add_gpt2_split(tokenizer, vocab_path, false));
    tokenizer->decode[tokenizer->decode_count++] = (decode_step){ .kind = DECODE_BYTES };
    if (json_object_get(vocab, end_of_text))
        SL_TRY(sl_tokenizer_add_added(tokenizer, &(added_token){ .bytes = (const unsigned char *)end_of_text,
                                                                 .length = sizeof end_of_text - 1,
                                                                 .id = find_id(vocab, end_of_text),
                                                                 .special = true }));
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

static const char *text_or(const json_t *object, const char *key, const char *if_missing)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : if_missing;
}

static bool flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

static sl_status read_added(sl_tokenizer *tokenizer, const char *path, const json_t *added)
{
    size_t index;
    json_t *each;
    json_array_foreach(added, index, each)
    {
        const char *content = json_string_value(json_object_get(each, "content"));
        const json_t *id = json_object_get(each, "id");
        if (!content || !content[0] || !json_is_integer(id) || json_integer_value(id) >= TOKEN_ID_MAX)
            return sl_fail(SL_ERR_FORMAT, "%s: added token %zu has no content or no id", path, index);
        bool special = flag(each, "special");
        const json_t *normalized = json_object_get(each, "normalized");
        added_token what = { .bytes = (const unsigned char *)content,
                             .length = (uint32_t)strlen(content),
                             .id = (int32_t)json_integer_value(id),
                             .special = special,
                             .normalized = json_is_boolean(normalized) ? json_is_true(normalized) : !special,
                             .left = flag(each, "lstrip"),
                             .right = flag(each, "rstrip"),
                             .word = flag(each, "single_word") };
        sl_status status = sl_tokenizer_add_added(tokenizer, &what);
        if (status != SL_OK)
            return sl_fail_context(status, "%s", path);
    }
    return SL_OK;
}

/* [["piece", score], ...]; the id is the place in the list. */
static sl_status read_scores(sl_tokenizer *tokenizer, const char *path, const json_t *vocab)
{
    sl_status status = SL_OK;
    size_t index;
    json_t *each;
    if (!json_is_array(vocab))
        return sl_fail(SL_ERR_FORMAT, "%s: the vocabulary is not a list", path);
    SL_TRY(SL_NEW_ARRAY(tokenizer->model.scores, json_array_size(vocab) + 1));
    json_array_foreach(vocab, index, each)
    {
        const json_t *text = json_array_get(each, 0), *score = json_array_get(each, 1);
        if (!json_is_string(text) || !json_is_number(score))
            return sl_fail(SL_ERR_FORMAT, "%s: entry %zu of the vocabulary is not a text and a score", path, index);
        tokenizer->model.scores[index] = json_number_value(score);
        SL_TRY(sl_tokenizer_add_token(tokenizer, json_string_value(text), json_string_length(text), (int64_t)index));
    }
done:
    return status;
}

/* Added tokens come after the scores; they are never a part of a way. */
static sl_status extend_scores(sl_tokenizer *tokenizer, size_t count)
{
    sl_status status =
        sl_realloc((void **)&tokenizer->model.scores, (size_t)tokenizer->vocab + 1, sizeof *tokenizer->model.scores);
    for (size_t id = count; status == SL_OK && id < (size_t)tokenizer->vocab; id++)
        tokenizer->model.scores[id] = -DBL_MAX;
    return status;
}

static sl_status find_kind(const char *path, const json_t *model, model_kind *out)
{
    static const char *const names[] = { "BPE", "WordPiece", "WordLevel", "Unigram" };
    const char *type = text_or(model, "type", NULL);
    if (!type) /* files from before the models had a name */
        type = json_object_get(model, "merges")                     ? "BPE"
               : json_is_array(json_object_get(model, "vocab"))     ? "Unigram"
               : json_object_get(model, "max_input_chars_per_word") ? "WordPiece"
                                                                    : "WordLevel";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(type, names[i]) == 0) {
            *out = (model_kind)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_UNSUPPORTED, "%s: the model '%.60s' is not known", path, type);
}

/* Bytes are worked on as they are if the last step spells them, and nothing else sees the spelling. */
static bool works_on_bytes(const sl_tokenizer *tokenizer)
{
    const token_model *model = &tokenizer->model;
    if (model->kind != MODEL_BPE || *model->prefix || *model->suffix || tokenizer->split_count == 0 ||
        tokenizer->split[tokenizer->split_count - 1].kind != SPLIT_BYTES)
        return false;
    for (int i = 0; i + 1 < tokenizer->split_count; i++) {
        if (tokenizer->split[i].kind == SPLIT_BYTES)
            return false;
    }
    for (int i = 0; i < tokenizer->normal_count; i++) {
        if (tokenizer->normal[i].kind == NORMAL_BYTES)
            return false;
    }
    return tokenizer->decode_count == 1 && tokenizer->decode[0].kind == DECODE_BYTES;
}

static sl_status read_model(sl_tokenizer *tokenizer, const char *path, const json_t *given)
{
    sl_status status = SL_OK;
    token_model *model = &tokenizer->model;
    json_t *vocab = json_object_get(given, "vocab");
    char *prefix = NULL, *suffix = NULL;
    SL_TRY(find_kind(path, given, &model->kind));
    SL_TRY(sl_arena_strdup(tokenizer->arena, text_or(given, "continuing_subword_prefix", ""), &prefix));
    SL_TRY(sl_arena_strdup(tokenizer->arena, text_or(given, "end_of_word_suffix", ""), &suffix));
    model->prefix = prefix;
    model->suffix = suffix;
    model->byte_fallback = flag(given, "byte_fallback");
    model->fuse_unknown = flag(given, "fuse_unk");
    model->whole_pieces = flag(given, "ignore_merges");
    const json_t *limit = json_object_get(given, "max_input_chars_per_word");
    model->word_limit = json_is_integer(limit) ? json_integer_value(limit) : 100;
    if (json_real_value(json_object_get(given, "dropout")) > 0)
        SL_TRY(sl_fail(SL_ERR_UNSUPPORTED, "%s: the model drops merges at random (dropout)", path));
    model->byte_level = works_on_bytes(tokenizer);
    if (model->kind == MODEL_UNIGRAM) {
        const json_t *unknown = json_object_get(given, "unk_id");
        model->unknown = json_is_integer(unknown) ? (int32_t)json_integer_value(unknown) : NO_TOKEN;
        SL_TRY(read_scores(tokenizer, path, vocab));
        if (model->unknown >= tokenizer->vocab)
            SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: unk_id is past the vocabulary", path));
        return SL_OK;
    }
    SL_TRY(read_vocab(tokenizer, path, vocab));
    const char *unknown = text_or(given, "unk_token", NULL);
    model->unknown = unknown ? find_id(vocab, unknown) : NO_TOKEN;
    if (model->kind == MODEL_BPE)
        SL_TRY(read_merges_json(tokenizer, path, vocab, json_object_get(given, "merges")));
done:
    return status;
}

/* A frame's ids come from the file as they are. */
static sl_status check_frame(const sl_tokenizer *tokenizer, const char *path, const id_list *frame)
{
    for (size_t i = 0; i < frame->count; i++) {
        if (frame->ids[i] < 0 || frame->ids[i] >= tokenizer->vocab)
            return sl_fail(SL_ERR_FORMAT, "%s: the post_processor adds the id %d, which is not in the vocabulary", path,
                           frame->ids[i]);
    }
    return SL_OK;
}

sl_status sl_tokenizer_read_json(sl_tokenizer *tokenizer, const char *path)
{
    sl_status status = SL_OK;
    json_t *root = NULL;

    SL_TRY(read_json(path, &root));
    SL_TRY(sl_tokenizer_read_steps(tokenizer, path, root));
    SL_TRY(read_model(tokenizer, path, json_object_get(root, "model")));
    size_t scored = (size_t)tokenizer->vocab;
    SL_TRY(read_added(tokenizer, path, json_object_get(root, "added_tokens")));
    if (tokenizer->model.kind == MODEL_UNIGRAM)
        SL_TRY(extend_scores(tokenizer, scored));
    SL_TRY(check_frame(tokenizer, path, &tokenizer->before));
    SL_TRY(check_frame(tokenizer, path, &tokenizer->after));
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
