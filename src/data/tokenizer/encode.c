/* From text to ids: added tokens are cut out, what lies between them goes through the steps. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"
#include "base/thread.h"

#include <string.h>
#include <utf8proc.h>

/* ---- Memory of a thread ---------------------------------------------------------------------- */

static sl_status create_encoder(const sl_tokenizer *tokenizer, text_encoder **out)
{
    sl_status status = SL_OK;
    text_encoder *made = NULL;
    SL_TRY(SL_NEW(made));
    made->tokenizer = tokenizer;
    SL_TRY(SL_NEW_ARRAY(made->known, KNOWN_PIECES));
    SL_TRY(sl_bpe_work_create(&made->work));
    made->match = pcre2_match_data_create(1, NULL);
    if (!made->match)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "%s: no memory for matching", tokenizer->path));
    *out = made;
    made = NULL;
done:
    sl_encoder_destroy(made);
    return status;
}

void sl_encoder_destroy(text_encoder *encoder)
{
    if (!encoder)
        return;
    pcre2_match_data_free(encoder->match);
    sl_bpe_work_destroy(encoder->work);
    sl_free(encoder->known);
    sl_free(encoder->spelled.data);
    for (int i = 0; i < 2; i++)
        sl_free(encoder->normal[i].data);
    for (int i = 0; i < STEPS_MAX; i++)
        sl_free(encoder->split[i].data);
    sl_free(encoder->found.ids);
    sl_free(encoder->best);
    sl_free(encoder->from);
    sl_free(encoder);
}

sl_status sl_encoder_take(const sl_tokenizer *tokenizer, text_encoder **out)
{
    sl_tokenizer *shared = (sl_tokenizer *)tokenizer; /* the list of idle encoders is all that ever changes */
    pthread_mutex_lock(&shared->lock);
    text_encoder *idle = shared->idle;
    if (idle)
        shared->idle = idle->next;
    pthread_mutex_unlock(&shared->lock);
    if (!idle)
        return create_encoder(tokenizer, out);
    *out = idle;
    return SL_OK;
}

void sl_encoder_give_back(text_encoder *encoder)
{
    if (!encoder)
        return;
    sl_tokenizer *shared = (sl_tokenizer *)encoder->tokenizer;
    pthread_mutex_lock(&shared->lock);
    encoder->next = shared->idle;
    shared->idle = encoder;
    pthread_mutex_unlock(&shared->lock);
}

/* ---- Added tokens ---------------------------------------------------------------------------- */

/* The first of the tokens [low, high) whose byte `at` is not below the value. They are sorted, and equal before that
 * byte. */
static size_t first_not_below(const added_set *set, size_t low, size_t high, size_t at, unsigned value)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->tokens[middle].bytes[at] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest added token that begins here, or NULL. Byte after byte fewer of them are left, so that their number
 * hardly matters. */
static const added_token *added_at(const added_set *set, const unsigned char *text, size_t size)
{
    const added_token *best = NULL;
    size_t low = 0, high = set->count;
    for (size_t at = 0; low < high; at++) {
        while (low < high && set->tokens[low].length == at) {
            if (!best || best->length < at)
                best = &set->tokens[low];
            low++;
        }
        if (at == size)
            break;
        low = first_not_below(set, low, high, at, text[at]);
        high = first_not_below(set, low, high, at, text[at] + 1u);
    }
    return best;
}

/* The character that ends before a place; its bytes are *length. */
static utf8proc_int32_t character_before(const unsigned char *text, size_t at, size_t *length)
{
    utf8proc_int32_t character = -1;
    size_t start = at;
    while (start > 0 && at - start < 4 && (start == at || (text[start] & 0xc0) == 0x80))
        start--;
    *length = at - start;
    if (at > start)
        utf8proc_iterate(text + start, (utf8proc_ssize_t)(at - start), &character);
    return character;
}

static utf8proc_int32_t character_at(const unsigned char *text, size_t size, size_t at, size_t *length)
{
    utf8proc_int32_t character = -1;
    utf8proc_ssize_t found = at < size ? utf8proc_iterate(text + at, (utf8proc_ssize_t)(size - at), &character) : 0;
    *length = found > 0 ? (size_t)found : 0;
    return character;
}

static bool is_blank(utf8proc_int32_t c)
{
    utf8proc_category_t category = c < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c);
    return (c >= 9 && c <= 13) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

/* A letter, digit, mark or connector. */
static bool is_of_word(utf8proc_int32_t c)
{
    utf8proc_category_t category = c < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
}

static bool is_whole_word(const unsigned char *text, size_t size, size_t start, size_t end)
{
    size_t length;
    return !is_of_word(character_before(text, start, &length)) && !is_of_word(character_at(text, size, end, &length));
}

/* Takes the blanks along that the token wants; not those before `begin`. */
static void widen(const added_token *added, const unsigned char *text, size_t size, size_t begin, size_t *start,
                  size_t *end)
{
    size_t length;
    while (added->left && *start > begin && is_blank(character_before(text, *start, &length)) && length > 0)
        *start -= length;
    if (*start < begin)
        *start = begin;
    while (added->right && is_blank(character_at(text, size, *end, &length)) && length > 0)
        *end += length;
}

/* Where a text goes that lies between added tokens. first: it is the beginning of the whole text. */
typedef struct text_job text_job;
typedef sl_status (*text_handler)(text_job *job, const unsigned char *text, size_t size, bool first);

struct text_job {
    text_encoder *encoder;
    bool special;
    int threads;
    id_list *list;
};

static sl_status cut_added(text_job *job, const added_set *set, const unsigned char *text, size_t size, bool first,
                           text_handler handle)
{
    sl_status status = SL_OK;
    size_t begin = 0;
    for (size_t at = 0; set->count > 0 && at < size;) {
        const added_token *added = set->first[text[at]] ? added_at(set, text + at, size - at) : NULL;
        if (!added) {
            at++;
            continue;
        }
        size_t start = at, end = at + added->length;
        at = end;
        if ((added->special && !job->special) || (added->word && !is_whole_word(text, size, start, end)))
            continue; /* text like any other */
        widen(added, text, size, begin, &start, &end);
        if (start > begin)
            SL_TRY(handle(job, text + begin, start - begin, first && begin == 0));
        SL_TRY(sl_id_list_add(job->list, added->id));
        begin = at = end;
    }
    if (size > begin)
        SL_TRY(handle(job, text + begin, size - begin, first && begin == 0));
done:
    return status;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static sl_status add_normalized(text_job *job, const unsigned char *text, size_t size, bool first)
{
    return sl_tokenizer_add_text(job->encoder, text, size, first, job->threads, job->list);
}

/* Bytes at the beginning of text that are UTF-8. */
static size_t valid_length(const unsigned char *text, size_t size)
{
    size_t at = 0, length;
    for (;;) {
        uint64_t eight;
        while (size - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (eight & 0x8080808080808080u)
                break;
            at += sizeof eight;
        }
        length = sl_utf8_length(text + at, size - at);
        if (length == 0)
            return at;
        at += length;
    }
}

/* Any bytes: runs of valid UTF-8 as text, every other byte on its own. */
static sl_status add_raw(text_job *job, const unsigned char *text, size_t size, bool first)
{
    sl_status status = SL_OK;
    for (size_t at = 0; at < size;) {
        const unsigned char *normal;
        size_t length = valid_length(text + at, size - at), normal_size;
        if (length > 0) {
            SL_TRY(sl_tokenizer_normalize(job->encoder, text + at, length, &normal, &normal_size));
            SL_TRY(cut_added(job, &job->encoder->tokenizer->normalized, normal, normal_size, first && at == 0,
                             add_normalized));
        }
        at += length;
        if (at < size)
            SL_TRY(sl_tokenizer_add_byte(job->encoder->tokenizer, text[at++], job->list));
    }
done:
    return status;
}

static sl_status add_ids(id_list *list, const id_list *more)
{
    sl_status status = SL_OK;
    for (size_t i = 0; i < more->count && status == SL_OK; i++)
        status = sl_id_list_add(list, more->ids[i]);
    return status;
}

/* Adds a text's ids. */
static sl_status encode_text(text_encoder *encoder, const sl_text *text, const sl_encode_options *options, int threads,
                             id_list *list)
{
    sl_status status = SL_OK;
    const sl_tokenizer *tokenizer = encoder->tokenizer;
    text_job job = { .encoder = encoder, .special = options->special, .threads = threads, .list = list };
    if (options->frame)
        SL_TRY(add_ids(list, &tokenizer->before));
    if (text->bytes > 0)
        SL_TRY(cut_added(&job, &tokenizer->raw, text->data, text->bytes, true, add_raw));
    if (options->frame)
        SL_TRY(add_ids(list, &tokenizer->after));
done:
    return status;
}

static const sl_encode_options plain_options = { .threads = 1 };

sl_status sl_tokenizer_encode(const sl_tokenizer *tokenizer, const void *text, size_t bytes,
                              const sl_encode_options *options, int32_t **out, int64_t *count)
{
    sl_status status = SL_OK;
    id_list list = { 0 };
    text_encoder *encoder = NULL;

    if (!options)
        options = &plain_options;
    SL_TRY(sl_encoder_take(tokenizer, &encoder));
    SL_TRY(SL_GROW(list.ids, &list.capacity, bytes / 4 + 8)); /* an empty text has a list, too */
    SL_TRY(
        encode_text(encoder, &(sl_text){ text, bytes }, options, options->threads > 1 ? options->threads : 1, &list));
    *out = list.ids;
    *count = (int64_t)list.count;
    list.ids = NULL;
done:
    sl_encoder_give_back(encoder);
    sl_free(list.ids);
    return status;
}

/* ---- Several texts --------------------------------------------------------------------------- */

/* A thread's share: texts one after the other, of about as many bytes as any other's. */
typedef struct text_share {
    const sl_tokenizer *tokenizer;
    const sl_encode_options *options;
    const sl_text *texts;
    int64_t first, count;
    int64_t *ends; /* of these texts, counted from the share's first id */
    id_list list;
    sl_status status;
    char message[512];
    pthread_t thread;
    bool started;
} text_share;

static sl_status encode_share(text_share *share)
{
    sl_status status = SL_OK;
    text_encoder *encoder = NULL;
    SL_TRY(sl_encoder_take(share->tokenizer, &encoder));
    for (int64_t i = 0; i < share->count; i++) {
        SL_TRY(encode_text(encoder, &share->texts[share->first + i], share->options, 1, &share->list));
        share->ends[share->first + i] = (int64_t)share->list.count;
    }
done:
    sl_encoder_give_back(encoder);
    return status;
}

static void *share_main(void *user)
{
    text_share *share = user;
    share->status = encode_share(share);
    if (share->status != SL_OK)
        snprintf(share->message, sizeof share->message, "%s", sl_error_message());
    return NULL;
}

static sl_status run_shares(text_share *shares, int count)
{
    sl_status status = SL_OK;
    for (int i = 1; i < count && status == SL_OK; i++) {
        status = sl_thread_start("a tokenizer's thread", share_main, &shares[i], &shares[i].thread);
        shares[i].started = status == SL_OK;
    }
    if (status == SL_OK)
        share_main(&shares[0]);
    for (int i = 1; i < count; i++) {
        if (shares[i].started)
            pthread_join(shares[i].thread, NULL);
    }
    for (int i = 0; i < count && status == SL_OK; i++) {
        if (shares[i].status != SL_OK)
            status = sl_fail(shares[i].status, "%s", shares[i].message);
    }
    return status;
}

/* Puts the shares' ids one after the other. */
static sl_status join_shares(const text_share *shares, int count, int64_t *ends, int32_t **out)
{
    int32_t *ids = NULL;
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += shares[i].list.count;
    sl_status status = SL_NEW_ARRAY(ids, total + 1);
    if (status != SL_OK)
        return status;
    total = 0;
    for (int i = 0; i < count; i++) {
        for (int64_t t = shares[i].first; t < shares[i].first + shares[i].count; t++)
            ends[t] += (int64_t)total;
        if (shares[i].list.count > 0)
            memcpy(ids + total, shares[i].list.ids, shares[i].list.count * sizeof *ids);
        total += shares[i].list.count;
    }
    *out = ids;
    return SL_OK;
}

sl_status sl_tokenizer_encode_all(const sl_tokenizer *tokenizer, const sl_text *texts, int64_t count,
                                  const sl_encode_options *options, int32_t **out, int64_t *ends)
{
    sl_status status = SL_OK;
    text_share *shares = NULL;
    size_t total = 0, passed = 0;
    if (!options)
        options = &plain_options;
    if (count == 1)
        return sl_tokenizer_encode(tokenizer, texts[0].data, texts[0].bytes, options, out, ends);
    int threads = options->threads > 1 ? options->threads : 1;
    SL_TRY(SL_NEW_ARRAY(shares, threads));
    for (int64_t i = 0; i < count; i++)
        total += texts[i].bytes + 1;
    int64_t next = 0;
    for (int i = 0; i < threads; i++) {
        shares[i] =
            (text_share){ .tokenizer = tokenizer, .options = options, .texts = texts, .first = next, .ends = ends };
        while (next < count && (i + 1 == threads || passed < total / (size_t)threads * (size_t)(i + 1)))
            passed += texts[next++].bytes + 1;
        shares[i].count = next - shares[i].first;
    }
    SL_TRY(run_shares(shares, threads));
    SL_TRY(join_shares(shares, threads, ends, out));
done:
    for (int i = 0; shares && i < threads; i++)
        sl_free(shares[i].list.ids);
    sl_free(shares);
    return status;
}
