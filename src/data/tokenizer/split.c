/* Splitting normalized text into pieces: step after step, each on what the one before it gave. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/text.h"
#include "base/thread.h"

#include <string.h>

/* Below this, a part of a text is not worth a thread. */
enum { PART_MIN = 1 << 15, PARTS_MAX = 256, MARKS = 4096 };

/* A place at which a piece begins, and how many ids came before it. */
typedef struct piece_mark {
    size_t at, ids;
} piece_mark;

/* What lies before a match, and the match. */
typedef struct split_match {
    size_t start, end;
} split_match;

static sl_status split_from(text_encoder *encoder, int step, const unsigned char *text, size_t size, bool first,
                            id_list *list);

/* The next match at or after a place; empty at the end of the text if there is none. */
static sl_status next_match(const text_encoder *encoder, const split_step *step, const unsigned char *text, size_t size,
                            size_t at, split_match *out)
{
    int found = pcre2_match(step->pattern, text, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, encoder->match, NULL);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        return sl_fail(SL_ERR_FORMAT, "%s: the pattern fails (PCRE2 error %d) at byte %zu of a text",
                       encoder->tokenizer->path, found, at);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(encoder->match);
    *out = found < 0 ? (split_match){ size, size } : (split_match){ place[0], place[1] };
    return SL_OK;
}

/* ---- Patterns -------------------------------------------------------------------------------- */

/* Whether where a piece ends depends on nothing but where it begins. */
static bool is_simple(const split_step *step)
{
    return step->kind == SPLIT_PATTERN && (step->behavior == SPLIT_ISOLATED || step->behavior == SPLIT_REMOVED);
}

/* Pieces from *at on: what lies before the next match, and the match. */
static sl_status add_next(text_encoder *encoder, int number, const unsigned char *text, size_t size, bool first,
                          size_t *at, id_list *list)
{
    sl_status status = SL_OK;
    const split_step *step = &encoder->tokenizer->split[number];
    bool keep_gap = step->behavior == SPLIT_ISOLATED || !step->invert;
    bool keep_match = step->behavior == SPLIT_ISOLATED || step->invert;
    split_match match = { 0 };
    SL_TRY(next_match(encoder, step, text, size, *at, &match));
    if (match.start > *at && keep_gap)
        SL_TRY(split_from(encoder, number + 1, text + *at, match.start - *at, first && *at == 0, list));
    if (match.end > match.start && keep_match)
        SL_TRY(split_from(encoder, number + 1, text + match.start, match.end - match.start, first && match.start == 0,
                          list));
    *at = match.end;
done:
    return status;
}

/* Matches join what is beside them. All pieces must be known before the first goes on: WITH_NEXT looks ahead. */
static sl_status split_joined(text_encoder *encoder, int number, const unsigned char *text, size_t size, bool first,
                              id_list *list)
{
    sl_status status = SL_OK;
    const split_step *step = &encoder->tokenizer->split[number];
    size_t begin = 0; /* of the piece at hand */
    int before = -1;  /* whether what came before is a match; -1: nothing came */
    for (size_t at = 0; at < size;) {
        split_match match = { 0 };
        SL_TRY(next_match(encoder, step, text, size, at, &match));
        for (int part = 0; part < 2; part++) { /* the gap, then the match */
            size_t start = part ? match.start : at, end = part ? match.end : match.start;
            if (end == start)
                continue;
            int is_match = (part == 1) != step->invert;
            bool joins = (step->behavior == SPLIT_CONTIGUOUS && before == is_match) ||
                         (step->behavior == SPLIT_WITH_PREVIOUS && is_match && before == 0) ||
                         (step->behavior == SPLIT_WITH_NEXT && !is_match && before == 1);
            if (before >= 0 && !joins) {
                SL_TRY(split_from(encoder, number + 1, text + begin, start - begin, first && begin == 0, list));
                begin = start;
            }
            before = is_match;
        }
        at = match.end;
    }
    if (size > begin)
        SL_TRY(split_from(encoder, number + 1, text + begin, size - begin, first && begin == 0, list));
done:
    return status;
}

/* ---- Steps that change the text -------------------------------------------------------------- */

static sl_status mark_spaces(const split_step *step, const unsigned char *text, size_t size, bool first, byte_list *out)
{
    sl_status status = SL_OK;
    size_t mark = strlen(step->mark);
    bool begins = (size >= mark && memcmp(text, step->mark, mark) == 0) || (size > 0 && text[0] == ' ');
    if (!begins && (step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && first)))
        SL_TRY(sl_byte_list_add(out, step->mark, mark));
    for (size_t i = 0; i < size; i++)
        SL_TRY(sl_byte_list_add(out, text[i] == ' ' ? step->mark : (const char *)text + i, text[i] == ' ' ? mark : 1));
done:
    return status;
}

/* Applies steps that change the text as a whole, from *step on; the text is then in *text. */
static sl_status change_text(text_encoder *encoder, int *step, const unsigned char **text, size_t *size, bool first)
{
    sl_status status = SL_OK;
    for (; *step < encoder->tokenizer->split_count; (*step)++) {
        const split_step *what = &encoder->tokenizer->split[*step];
        byte_list *out = &encoder->split[*step];
        out->count = 0;
        if (what->kind == SPLIT_PATTERN)
            break;
        if (what->kind == SPLIT_PREFIX && (*size == 0 || **text == ' '))
            continue;
        if (what->kind == SPLIT_BYTES && encoder->tokenizer->model.byte_level)
            continue;
        if (what->kind == SPLIT_PREFIX)
            SL_TRY(sl_byte_list_add(out, " ", 1));
        if (what->kind == SPLIT_PREFIX)
            SL_TRY(sl_byte_list_add(out, *text, *size));
        else if (what->kind == SPLIT_SPACES)
            SL_TRY(mark_spaces(what, *text, *size, first, out));
        else
            SL_TRY(sl_alphabet_spell(*text, *size, out));
        *text = out->data;
        *size = out->count;
    }
done:
    return status;
}

static sl_status split_from(text_encoder *encoder, int step, const unsigned char *text, size_t size, bool first,
                            id_list *list)
{
    sl_status status = SL_OK;
    SL_TRY(change_text(encoder, &step, &text, &size, first));
    if (step == encoder->tokenizer->split_count)
        return size > 0 ? sl_tokenizer_add_piece(encoder, text, size, list) : SL_OK;
    if (!is_simple(&encoder->tokenizer->split[step]))
        return split_joined(encoder, step, text, size, first, list);
    for (size_t at = 0; at < size;)
        SL_TRY(add_next(encoder, step, text, size, first, &at, list));
done:
    return status;
}

/* ---- Several threads ------------------------------------------------------------------------- */

/* A part of a text. It begins anywhere; where a piece of the whole text begins shows when the part before it is done:
 * from the first place on at which both begin a piece, they give the same pieces. */
typedef struct text_part {
    const sl_tokenizer *tokenizer;
    text_encoder *encoder;
    int step;
    const unsigned char *text;
    size_t size, begin, end;
    bool first;
    size_t at; /* where it has arrived */
    id_list list;
    piece_mark *marks; /* its first pieces */
    size_t mark_count;
    sl_status status;
    char message[512];
    pthread_t thread;
    bool started;
} text_part;

static sl_status encode_part(text_part *part)
{
    sl_status status = SL_OK;
    for (part->at = part->begin; part->at < part->end;) {
        if (part->mark_count < MARKS)
            part->marks[part->mark_count++] = (piece_mark){ part->at, part->list.count };
        SL_TRY(add_next(part->encoder, part->step, part->text, part->size, part->first, &part->at, &part->list));
    }
done:
    return status;
}

static void *part_main(void *user)
{
    text_part *part = user;
    part->status = encode_part(part);
    if (part->status != SL_OK)
        snprintf(part->message, sizeof part->message, "%s", sl_error_message());
    return NULL;
}

/* The mark of the part at a place, or NULL. */
static const piece_mark *find_mark(const text_part *part, size_t at)
{
    for (size_t low = 0, high = part->mark_count; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (part->marks[middle].at == at)
            return &part->marks[middle];
        if (part->marks[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static sl_status join_parts(text_part *parts, int count, id_list *list)
{
    sl_status status = SL_OK;
    size_t at = 0; /* all before it is in the list */
    for (int i = 0; i < count; i++) {
        text_part *part = &parts[i];
        const piece_mark *mark = find_mark(part, at);
        while (!mark && at < part->end) { /* the pieces of the part before it go on until the two meet */
            SL_TRY(add_next(part->encoder, part->step, part->text, part->size, part->first, &at, list));
            mark = find_mark(part, at);
        }
        if (!mark)
            continue;
        size_t more = part->list.count - mark->ids;
        SL_TRY(SL_GROW(list->ids, &list->capacity, list->count + more));
        if (more > 0)
            memcpy(list->ids + list->count, part->list.ids + mark->ids, more * sizeof *list->ids);
        list->count += more;
        at = part->at;
    }
done:
    return status;
}

static sl_status run_parts(text_part *parts, int count)
{
    sl_status status = SL_OK;
    for (int i = 1; i < count && status == SL_OK; i++) {
        status = sl_thread_start("a tokenizer's thread", part_main, &parts[i], &parts[i].thread);
        parts[i].started = status == SL_OK;
    }
    if (status == SL_OK)
        part_main(&parts[0]);
    for (int i = 1; i < count; i++) {
        if (parts[i].started)
            pthread_join(parts[i].thread, NULL);
    }
    for (int i = 0; i < count && status == SL_OK; i++) {
        if (parts[i].status != SL_OK)
            status = sl_fail(parts[i].status, "%s", parts[i].message);
    }
    return status;
}

static sl_status split_in_parts(const sl_tokenizer *tokenizer, int step, const unsigned char *text, size_t size,
                                bool first, int count, id_list *list)
{
    sl_status status = SL_OK;
    text_part *parts = NULL;
    SL_TRY(SL_NEW_ARRAY(parts, count));
    for (int i = 0; i < count; i++) {
        text_part *part = &parts[i];
        *part = (text_part){ .tokenizer = tokenizer, .step = step, .text = text, .size = size, .first = first };
        part->begin = i ? parts[i - 1].end : 0;
        part->end = size / (size_t)count * (size_t)(i + 1);
        while (i + 1 < count && (text[part->end] & 0xc0) == 0x80)
            part->end++;
        if (i + 1 == count)
            part->end = size;
        SL_TRY(SL_NEW_ARRAY(part->marks, MARKS));
        SL_TRY(sl_encoder_take(tokenizer, &part->encoder));
    }
    SL_TRY(run_parts(parts, count));
    SL_TRY(join_parts(parts, count, list));
done:
    for (int i = 0; parts && i < count; i++) {
        sl_encoder_give_back(parts[i].encoder);
        sl_free(parts[i].list.ids);
        sl_free(parts[i].marks);
    }
    sl_free(parts);
    return status;
}

sl_status sl_tokenizer_add_text(text_encoder *encoder, const unsigned char *text, size_t size, bool first, int threads,
                                id_list *list)
{
    sl_status status = SL_OK;
    int step = 0;
    size_t parts = size / PART_MIN;
    if (parts > (size_t)threads)
        parts = (size_t)threads;
    if (parts > PARTS_MAX)
        parts = PARTS_MAX;
    if (parts < 2)
        return split_from(encoder, 0, text, size, first, list);
    SL_TRY(change_text(encoder, &step, &text, &size, first));
    if (step < encoder->tokenizer->split_count && is_simple(&encoder->tokenizer->split[step]))
        return split_in_parts(encoder->tokenizer, step, text, size, first, (int)parts, list);
    return split_from(encoder, step, text, size, first, list);
done:
    return status;
}
