/* The steps of a tokenizer.json: normalizer, pre_tokenizer, post_processor and decoder. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"

#include <string.h>
#include <utf8proc.h>

/* How GPT-2 cuts text into pieces before merging. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Characters that are punctuation to BERT: ASCII's symbols, too. */
#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~]"
#define CJK                                                                                                            \
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b73f}\\x{2b740}-\\x{2b81f}"           \
    "\\x{2b920}-\\x{2ceaf}\\x{f900}-\\x{faff}\\x{2f800}-\\x{2fa1f}]"

typedef struct step_reader {
    sl_tokenizer *tokenizer;
    const char *path;
} step_reader;

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static bool is(const json_t *object, const char *type)
{
    return strcmp(type_of(object), type) == 0;
}

static bool flag(const json_t *object, const char *key, bool if_missing)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : if_missing;
}

static const char *string(const json_t *object, const char *key, const char *if_missing)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : if_missing;
}

static sl_status keep(const step_reader *reader, const char *text, const char **out)
{
    char *copy = NULL;
    sl_status status = sl_arena_strdup(reader->tokenizer->arena, text, &copy);
    if (status == SL_OK)
        *out = copy;
    return status;
}

static sl_status unknown(const step_reader *reader, const char *what, const json_t *object)
{
    return sl_fail(SL_ERR_UNSUPPORTED, "%s: the %s '%.60s' is not known", reader->path, what, type_of(object));
}

static sl_status too_many(const step_reader *reader, const char *what)
{
    return sl_fail(SL_ERR_UNSUPPORTED, "%s: the %s has more than %d steps", reader->path, what, STEPS_MAX);
}

/* {"String": ...} or {"Regex": ...} */
static sl_status compile(const step_reader *reader, const json_t *pattern, pcre2_code **out)
{
    sl_status status = SL_OK;
    char *quoted = NULL;
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *text = json_string_value(json_is_string(pattern) ? pattern : json_object_get(pattern, "String"));
    if (!regex && !text)
        return sl_fail(SL_ERR_FORMAT, "%s: a step has no pattern", reader->path);
    if (!regex)
        SL_TRY(sl_pattern_quote(text, &quoted));
    SL_TRY(sl_pattern_compile(reader->path, regex ? regex : quoted, out));
done:
    sl_free(quoted);
    return status;
}

/* Calls read for the object, or for each element of a Sequence's list. */
static sl_status read_sequence(step_reader *reader, const json_t *object, const char *list,
                               sl_status (*read)(step_reader *, const json_t *))
{
    sl_status status = SL_OK;
    size_t index;
    json_t *each;
    if (!object || json_is_null(object))
        return SL_OK;
    if (!is(object, "Sequence"))
        return read(reader, object);
    json_array_foreach(json_object_get(object, list), index, each) SL_TRY(read_sequence(reader, each, list, read));
done:
    return status;
}

/* ---- Normalizer ------------------------------------------------------------------------------ */

static sl_status add_normal(step_reader *reader, normal_step step)
{
    if (reader->tokenizer->normal_count == STEPS_MAX)
        return too_many(reader, "normalizer");
    reader->tokenizer->normal[reader->tokenizer->normal_count++] = step;
    return SL_OK;
}

static sl_status add_replace(step_reader *reader, const char *pattern, const char *text, bool template)
{
    sl_status status = SL_OK;
    normal_step step = { .kind = NORMAL_REPLACE, .text = text, .template = template };
    SL_TRY(sl_pattern_compile(reader->path, pattern, &step.pattern));
    SL_TRY(add_normal(reader, step));
done:
    return status;
}

static sl_status add_form(step_reader *reader, int form)
{
    return add_normal(reader, (normal_step){ .kind = NORMAL_FORM, .form = UTF8PROC_STABLE | form });
}

static sl_status read_bert(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    bool lowercase = flag(object, "lowercase", true);
    if (flag(object, "clean_text", true)) {
        SL_TRY(add_replace(reader, "[\\x{0}\\x{fffd}]|(?![\\t\\n\\r])[\\p{Cc}\\p{Cf}\\p{Co}]", "", false));
        SL_TRY(add_replace(reader, "\\s", " ", false));
    }
    if (flag(object, "handle_chinese_chars", true))
        SL_TRY(add_replace(reader, CJK, " $0 ", true));
    if (flag(object, "strip_accents", lowercase)) {
        SL_TRY(add_form(reader, UTF8PROC_DECOMPOSE));
        SL_TRY(add_replace(reader, "\\p{Mn}", "", false));
    }
    if (lowercase)
        SL_TRY(add_normal(reader, (normal_step){ .kind = NORMAL_LOWERCASE }));
done:
    return status;
}

static sl_status read_strip(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    if (flag(object, "strip_left", true))
        SL_TRY(add_replace(reader, "\\A\\s+", "", false));
    if (flag(object, "strip_right", true))
        SL_TRY(add_replace(reader, "\\s+\\z", "", false));
done:
    return status;
}

static sl_status read_nmt(step_reader *reader)
{
    sl_status status = SL_OK;
    SL_TRY(add_replace(reader, "[\\x{1}-\\x{8}\\x{b}\\x{e}-\\x{1f}\\x{7f}\\x{8f}\\x{9f}]", "", false));
    SL_TRY(add_replace(
        reader, "[\\t\\n\\f\\r\\x{1680}\\x{200b}-\\x{200f}\\x{2028}\\x{2029}\\x{2581}\\x{feff}\\x{fffd}]", " ", false));
done:
    return status;
}

static int value_of_base64(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *place = c ? strchr(digits, c) : NULL;
    return place ? (int)(place - digits) : -1;
}

static sl_status read_charsmap(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    byte_list blob = { 0 };
    normal_step step = { .kind = NORMAL_CHARSMAP };
    const char *text = string(object, "precompiled_charsmap", NULL);
    if (!text || !*text)
        return SL_OK; /* a table without entries */
    unsigned bits = 0;
    int held = 0;
    for (; *text && *text != '='; text++) {
        int value = value_of_base64(*text);
        if (value < 0) {
            status = sl_fail(SL_ERR_FORMAT, "%s: precompiled_charsmap is not in base 64", reader->path);
            goto done;
        }
        bits = bits << 6 | (unsigned)value;
        held += 6;
        if (held < 8)
            continue;
        held -= 8;
        SL_TRY(sl_byte_list_add(&blob, &(unsigned char){ (unsigned char)(bits >> held) }, 1));
    }
    SL_TRY(sl_charsmap_create(reader->path, blob.data, blob.count, &step.map));
    status = add_normal(reader, step);
    if (status != SL_OK)
        sl_charsmap_destroy(step.map);
done:
    sl_free(blob.data);
    return status;
}

static sl_status read_replace(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    normal_step step = { .kind = NORMAL_REPLACE };
    SL_TRY(keep(reader, string(object, "content", ""), &step.text));
    SL_TRY(compile(reader, json_object_get(object, "pattern"), &step.pattern));
    SL_TRY(add_normal(reader, step));
done:
    return status;
}

static sl_status read_normalizer(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    normal_step prepend = { .kind = NORMAL_PREPEND };
    if (is(object, "NFC"))
        return add_form(reader, UTF8PROC_COMPOSE);
    if (is(object, "NFD"))
        return add_form(reader, UTF8PROC_DECOMPOSE);
    if (is(object, "NFKC"))
        return add_form(reader, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    if (is(object, "NFKD"))
        return add_form(reader, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    if (is(object, "Lowercase"))
        return add_normal(reader, (normal_step){ .kind = NORMAL_LOWERCASE });
    if (is(object, "ByteLevel"))
        return add_normal(reader, (normal_step){ .kind = NORMAL_BYTES });
    if (is(object, "StripAccents"))
        return add_replace(reader, "\\p{M}", "", false);
    if (is(object, "BertNormalizer"))
        return read_bert(reader, object);
    if (is(object, "Strip"))
        return read_strip(reader, object);
    if (is(object, "Nmt"))
        return read_nmt(reader);
    if (is(object, "Precompiled"))
        return read_charsmap(reader, object);
    if (is(object, "Replace"))
        return read_replace(reader, object);
    if (!is(object, "Prepend"))
        return unknown(reader, "normalizer", object);
    SL_TRY(keep(reader, string(object, "prepend", ""), &prepend.text));
    SL_TRY(add_normal(reader, prepend));
done:
    return status;
}

/* ---- Pre-tokenizer --------------------------------------------------------------------------- */

static sl_status add_split(step_reader *reader, split_step step)
{
    if (reader->tokenizer->split_count == STEPS_MAX)
        return too_many(reader, "pre_tokenizer");
    reader->tokenizer->split[reader->tokenizer->split_count++] = step;
    return SL_OK;
}

static sl_status add_pattern(step_reader *reader, const char *pattern, split_behavior behavior, bool invert)
{
    sl_status status = SL_OK;
    split_step step = { .kind = SPLIT_PATTERN, .behavior = behavior, .invert = invert };
    SL_TRY(sl_pattern_compile(reader->path, pattern, &step.pattern));
    SL_TRY(add_split(reader, step));
done:
    return status;
}

sl_status sl_tokenizer_add_gpt2_split(sl_tokenizer *tokenizer, const char *where, bool prefix)
{
    sl_status status = SL_OK;
    step_reader reader = { tokenizer, where };
    if (prefix)
        SL_TRY(add_split(&reader, (split_step){ .kind = SPLIT_PREFIX }));
    SL_TRY(add_pattern(&reader, gpt2_pattern, SPLIT_ISOLATED, false));
    SL_TRY(add_split(&reader, (split_step){ .kind = SPLIT_BYTES }));
done:
    return status;
}

static sl_status read_behavior(const step_reader *reader, const json_t *object, split_behavior if_missing,
                               split_behavior *out)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const char *given = string(object, "behavior", NULL);
    *out = if_missing;
    for (size_t i = 0; given && i < sizeof names / sizeof *names; i++) {
        if (strcmp(given, names[i]) == 0) {
            *out = (split_behavior)i;
            return SL_OK;
        }
    }
    return given ? sl_fail(SL_ERR_UNSUPPORTED, "%s: the behavior '%.60s' is not known", reader->path, given) : SL_OK;
}

static sl_status read_split(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    split_step step = { .kind = SPLIT_PATTERN, .invert = flag(object, "invert", false) };
    SL_TRY(read_behavior(reader, object, SPLIT_ISOLATED, &step.behavior));
    SL_TRY(compile(reader, json_object_get(object, "pattern"), &step.pattern));
    status = add_split(reader, step);
    if (status != SL_OK)
        pcre2_code_free(step.pattern);
done:
    return status;
}

static prepend_scheme scheme_of(const json_t *object)
{
    const char *scheme = string(object, "prepend_scheme", NULL);
    if (!scheme)
        return flag(object, "add_prefix_space", true) ? PREPEND_ALWAYS : PREPEND_NEVER;
    return strcmp(scheme, "never") == 0 ? PREPEND_NEVER : strcmp(scheme, "first") == 0 ? PREPEND_FIRST : PREPEND_ALWAYS;
}

/* Pieces begin with the mark. */
static sl_status read_metaspace(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    split_step step = { .kind = SPLIT_SPACES, .scheme = scheme_of(object) };
    char *quoted = NULL, pattern[64];
    SL_TRY(keep(reader, string(object, "replacement", "\xe2\x96\x81"), &step.mark));
    if (!*step.mark || strlen(step.mark) > 4)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: the replacement of Metaspace is no character", reader->path));
    SL_TRY(add_split(reader, step));
    if (!flag(object, "split", true))
        goto done;
    SL_TRY(sl_pattern_quote(step.mark, &quoted));
    snprintf(pattern, sizeof pattern, "%s[^%s]*|[^%s]+", quoted, quoted, quoted);
    SL_TRY(add_pattern(reader, pattern, SPLIT_ISOLATED, false));
done:
    sl_free(quoted);
    return status;
}

static sl_status read_byte_level(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    bool prefix = flag(object, "add_prefix_space", true);
    if (flag(object, "use_regex", true))
        return sl_tokenizer_add_gpt2_split(reader->tokenizer, reader->path, prefix);
    if (prefix)
        SL_TRY(add_split(reader, (split_step){ .kind = SPLIT_PREFIX }));
    SL_TRY(add_split(reader, (split_step){ .kind = SPLIT_BYTES }));
done:
    return status;
}

static sl_status read_delimiter(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    char *quoted = NULL;
    SL_TRY(sl_pattern_quote(string(object, "delimiter", ""), &quoted));
    SL_TRY(add_pattern(reader, quoted, SPLIT_REMOVED, false));
done:
    sl_free(quoted);
    return status;
}

/* What comes before the first character of a script is left out. */
static sl_status read_scripts(step_reader *reader)
{
    sl_status status = SL_OK;
    char *pattern = NULL;
    SL_TRY(sl_pattern_scripts(&pattern));
    SL_TRY(add_pattern(reader, pattern, SPLIT_REMOVED, true));
done:
    sl_free(pattern);
    return status;
}

static sl_status read_pre_tokenizer(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    split_behavior behavior;
    char pattern[64];
    if (is(object, "ByteLevel"))
        return read_byte_level(reader, object);
    if (is(object, "Split"))
        return read_split(reader, object);
    if (is(object, "Metaspace"))
        return read_metaspace(reader, object);
    if (is(object, "Digits"))
        return add_pattern(reader, "\\p{N}",
                           flag(object, "individual_digits", false) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false);
    if (is(object, "Whitespace"))
        return add_pattern(reader, "[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+", SPLIT_REMOVED, true);
    if (is(object, "WhitespaceSplit"))
        return add_pattern(reader, "\\s", SPLIT_REMOVED, false);
    if (is(object, "UnicodeScripts"))
        return read_scripts(reader);
    if (is(object, "CharDelimiterSplit"))
        return read_delimiter(reader, object);
    if (is(object, "FixedLength")) {
        long long length = json_integer_value(json_object_get(object, "length"));
        snprintf(pattern, sizeof pattern, "(?s).{1,%lld}", length > 0 ? length : 5);
        return add_pattern(reader, pattern, SPLIT_ISOLATED, false);
    }
    if (is(object, "BertPreTokenizer")) {
        SL_TRY(add_pattern(reader, "\\s", SPLIT_REMOVED, false));
        return add_pattern(reader, PUNCTUATION, SPLIT_ISOLATED, false);
    }
    if (!is(object, "Punctuation"))
        return unknown(reader, "pre_tokenizer", object);
    SL_TRY(read_behavior(reader, object, SPLIT_ISOLATED, &behavior));
    SL_TRY(add_pattern(reader, PUNCTUATION, behavior, false));
done:
    return status;
}

/* ---- Post-processor -------------------------------------------------------------------------- */

static sl_status add_frame_token(step_reader *reader, const json_t *specials, const char *name, bool after)
{
    sl_status status = SL_OK;
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    size_t index;
    json_t *id;
    if (!json_is_array(ids))
        return sl_fail(SL_ERR_FORMAT, "%s: the template's token '%.60s' has no ids", reader->path, name);
    json_array_foreach(ids, index, id) SL_TRY(sl_id_list_add(
        after ? &reader->tokenizer->after : &reader->tokenizer->before, (int32_t)json_integer_value(id)));
done:
    return status;
}

static sl_status read_template(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    const json_t *specials = json_object_get(object, "special_tokens");
    bool after = false;
    size_t index;
    json_t *each;
    json_array_foreach(json_object_get(object, "single"), index, each)
    {
        const char *name = json_string_value(json_object_get(json_object_get(each, "SpecialToken"), "id"));
        if (name)
            SL_TRY(add_frame_token(reader, specials, name, after));
        else
            after = true; /* the text itself */
    }
done:
    return status;
}

static sl_status read_post_processor(step_reader *reader, const json_t *object)
{
    sl_status status = SL_OK;
    if (is(object, "ByteLevel"))
        return SL_OK;
    if (is(object, "TemplateProcessing"))
        return read_template(reader, object);
    if (!is(object, "BertProcessing") && !is(object, "RobertaProcessing"))
        return unknown(reader, "post_processor", object);
    const json_t *first = json_array_get(json_object_get(object, "cls"), 1);
    const json_t *last = json_array_get(json_object_get(object, "sep"), 1);
    SL_TRY(sl_id_list_add(&reader->tokenizer->before, (int32_t)json_integer_value(first)));
    SL_TRY(sl_id_list_add(&reader->tokenizer->after, (int32_t)json_integer_value(last)));
done:
    return status;
}

/* ---- Decoder --------------------------------------------------------------------------------- */

static sl_status read_decoder(step_reader *reader, const json_t *object)
{
    static const struct decoder_name {
        const char *type;
        decode_kind kind;
        const char *text, *if_missing;
    } names[] = {
        { "ByteLevel", DECODE_BYTES, NULL, "" },        { "Metaspace", DECODE_SPACES, "replacement", "\xe2\x96\x81" },
        { "WordPiece", DECODE_PREFIX, "prefix", "##" }, { "BPEDecoder", DECODE_SUFFIX, "suffix", "</w>" },
        { "ByteFallback", DECODE_FALLBACK, NULL, "" },  { "Fuse", DECODE_FUSE, NULL, "" },
        { "Strip", DECODE_STRIP, "content", " " },      { "Replace", DECODE_REPLACE, NULL, "" },
        { "CTC", DECODE_CTC, "pad_token", "<pad>" },
    };
    sl_status status = SL_OK;
    decode_step step = { .scheme = scheme_of(object), .cleanup = flag(object, "cleanup", true) };
    const struct decoder_name *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        name = is(object, names[i].type) ? &names[i] : name;
    if (!name)
        return unknown(reader, "decoder", object);
    if (reader->tokenizer->decode_count == STEPS_MAX)
        return too_many(reader, "decoder");
    step.kind = name->kind;
    step.start = json_integer_value(json_object_get(object, "start"));
    step.stop = json_integer_value(json_object_get(object, "stop"));
    SL_TRY(keep(reader, name->text ? string(object, name->text, name->if_missing) : "", &step.text));
    SL_TRY(
        keep(reader, string(object, step.kind == DECODE_CTC ? "word_delimiter_token" : "content", "|"), &step.second));
    if (step.kind == DECODE_REPLACE)
        SL_TRY(compile(reader, json_object_get(object, "pattern"), &step.pattern));
    reader->tokenizer->decode[reader->tokenizer->decode_count++] = step;
done:
    return status;
}

sl_status sl_tokenizer_read_steps(sl_tokenizer *tokenizer, const char *path, const json_t *root)
{
    sl_status status = SL_OK;
    step_reader reader = { tokenizer, path };
    SL_TRY(read_sequence(&reader, json_object_get(root, "normalizer"), "normalizers", read_normalizer));
    SL_TRY(read_sequence(&reader, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer));
    SL_TRY(read_sequence(&reader, json_object_get(root, "post_processor"), "processors", read_post_processor));
    SL_TRY(read_sequence(&reader, json_object_get(root, "decoder"), "decoders", read_decoder));
    bool bytes = tokenizer->split_count > 0 && tokenizer->split[tokenizer->split_count - 1].kind == SPLIT_BYTES;
    if (tokenizer->decode_count == 0 && bytes) /* a file that does not say so */
        tokenizer->decode[tokenizer->decode_count++] = (decode_step){ .kind = DECODE_BYTES };
    tokenizer->spaced = tokenizer->decode_count == 0;
done:
    return status;
}
