/* Actions: kinds, values and the text form of one cell. */
#include "schedule/schedule.h"

#include <ctype.h>
#include <string.h>

static const struct {
    const char *name;
    sl_kind_class class_;
} kinds[] = {
#define ROW(name, class_) { #name, SL_CLASS_##class_ },
    SL_KIND_LIST(ROW)
#undef ROW
};

const char *sl_kind_name(sl_kind kind)
{
    return (unsigned)kind < SL_KIND_COUNT ? kinds[kind].name : "?";
}

sl_kind_class sl_kind_class_of(sl_kind kind)
{
    return (unsigned)kind < SL_KIND_COUNT ? kinds[kind].class_ : SL_CLASS_WEIGHTS;
}

/* A stage that no schedule can have must not wrap around to one that it can. */
static int place_of(int stage)
{
    return stage >= 0 && stage < SL_MAX_STAGES ? stage : SL_MAX_STAGES;
}

sl_action sl_action_make(sl_kind kind, int stage, int microbatch)
{
    return sl_make((unsigned)kind < SL_KIND_COUNT ? kind : SL_KIND_COUNT, place_of(stage), microbatch);
}

sl_action sl_action_overlap(int f_stage, int f_microbatch, int b_stage, int b_microbatch)
{
    return (sl_action){
        .kind = SL_KIND_OVERLAP_F_B,
        .stage = (uint16_t)place_of(f_stage),
        .microbatch = f_microbatch,
        .b_stage = (uint16_t)place_of(b_stage),
        .b_microbatch = b_microbatch,
    };
}

bool sl_action_equal(sl_action a, sl_action b)
{
    return a.kind == b.kind && a.stage == b.stage && a.microbatch == b.microbatch && a.b_stage == b.b_stage &&
           a.b_microbatch == b.b_microbatch;
}

int sl_action_parts(sl_action action, sl_action parts[2])
{
    return sl_parts(action, parts);
}

static char *put_number(char *at, uint32_t value)
{
    char digits[10];
    int count = 0;
    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

/* Stage, kind and, if the kind carries one, microbatch. */
static char *put_simple(char *at, unsigned stage, const char *name, int32_t microbatch)
{
    at = stpcpy(put_number(at, stage), name);
    return microbatch >= 0 ? put_number(at, (uint32_t)microbatch) : at;
}

/* By hand, not with printf: files have millions of cells. */
char *sl_action_text(sl_action action, char *text, size_t size)
{
    char whole[SL_ACTION_TEXT_SIZE];
    char *at = whole;
    if (action.kind == SL_KIND_OVERLAP_F_B) {
        *at++ = '(';
        at = put_simple(at, action.stage, "F", action.microbatch);
        *at++ = ';';
        at = put_simple(at, action.b_stage, "B", action.b_microbatch);
        *at++ = ')';
        at = stpcpy(at, sl_kind_name((sl_kind)action.kind));
    } else {
        at = put_simple(at, action.stage, sl_kind_name((sl_kind)action.kind), action.microbatch);
    }
    size_t length = (size_t)(at - whole);
    if (size > 0) {
        size_t fits = length < size ? length : size - 1;
        memcpy(text, whole, fits);
        text[fits] = '\0';
    }
    return text;
}

/* What is left of the text of a cell. */
typedef struct action_reader {
    const char *at;
    const char *end;
} action_reader;

static bool at_digit(const action_reader *cell)
{
    return cell->at < cell->end && isdigit((unsigned char)*cell->at);
}

/* Reads digits; false if there are none. A value past max stays at max + 1. */
static bool read_number(action_reader *cell, int64_t max, int64_t *out)
{
    if (!at_digit(cell))
        return false;
    int64_t value = 0;
    for (; at_digit(cell); cell->at++) {
        if (value <= max)
            value = value * 10 + (*cell->at - '0');
    }
    *out = value <= max ? value : max + 1;
    return true;
}

static bool read_char(action_reader *cell, char wanted)
{
    if (cell->at == cell->end || *cell->at != wanted)
        return false;
    cell->at++;
    return true;
}

/* Reads the run of capital letters and underscores and finds the kind of exactly that name. */
static bool read_kind(action_reader *cell, sl_kind *out)
{
    const char *start = cell->at;
    while (cell->at < cell->end && (*cell->at == '_' || isupper((unsigned char)*cell->at)))
        cell->at++;
    size_t length = (size_t)(cell->at - start);
    for (int kind = 0; kind < SL_KIND_COUNT; kind++) {
        if (strlen(kinds[kind].name) == length && memcmp(kinds[kind].name, start, length) == 0) {
            *out = (sl_kind)kind;
            return true;
        }
    }
    return false;
}

/* Reads stage, kind and, if the kind carries one, microbatch. Returns NULL or what is wrong. */
static const char *read_simple(action_reader *cell, sl_action *out)
{
    int64_t stage;
    int64_t microbatch = -1;
    sl_kind kind;
    if (!read_number(cell, SL_MAX_STAGES - 1, &stage))
        return "it does not start with a stage number";
    if (!read_kind(cell, &kind) || kind == SL_KIND_OVERLAP_F_B)
        return "its kind is not known";
    bool numbered = read_number(cell, SL_MAX_MICROBATCHES - 1, &microbatch);
    bool weights = kinds[kind].class_ == SL_CLASS_WEIGHTS;
    if (weights && numbered)
        return "its kind takes no microbatch number";
    if (!weights && !numbered)
        return "its microbatch number is missing";
    if (stage >= SL_MAX_STAGES)
        return "its stage number is beyond 65534";
    if (microbatch >= SL_MAX_MICROBATCHES)
        return "its microbatch number is beyond 2147483646";
    *out = sl_action_make(kind, (int)stage, (int)microbatch);
    return NULL;
}

/* Reads "(0F3;3B1)OVERLAP_F_B". Returns NULL or what is wrong. */
static const char *read_overlap(action_reader *cell, sl_action *out)
{
    sl_action f;
    sl_action b;
    sl_kind kind;
    read_char(cell, '(');
    const char *wrong = read_simple(cell, &f);
    if (!wrong && !read_char(cell, ';'))
        wrong = "a ';' is missing between its parts";
    if (!wrong)
        wrong = read_simple(cell, &b);
    if (wrong)
        return wrong;
    if (!read_char(cell, ')'))
        return "its ')' is missing";
    if (!read_kind(cell, &kind) || kind != SL_KIND_OVERLAP_F_B)
        return "only OVERLAP_F_B has parts in brackets";
    if (f.kind != SL_KIND_F || b.kind != SL_KIND_B)
        return "its parts are not an F and a B";
    *out = sl_action_overlap(f.stage, f.microbatch, b.stage, b.microbatch);
    return NULL;
}

/* The text with what cannot be printed as \xNN, cut to what fits. */
static const char *printable(const char *text, size_t length, char *out, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < length && used + sizeof "\\xNN" <= size; i++) {
        unsigned char c = (unsigned char)text[i];
        used += (size_t)snprintf(out + used, size - used, isprint(c) ? "%c" : "\\x%02X", c);
    }
    out[used] = '\0';
    return out;
}

sl_status sl_action_parse(const char *text, size_t length, sl_action *out)
{
    action_reader cell = { text, text + length };
    sl_action action = { 0 };
    bool overlap = length > 0 && text[0] == '(';
    const char *wrong = overlap ? read_overlap(&cell, &action) : read_simple(&cell, &action);
    if (!wrong && cell.at != cell.end)
        wrong = "something follows it";
    if (wrong) {
        char shown[SL_ACTION_TEXT_SIZE];
        return sl_fail(SL_ERR_FORMAT, "'%s' is no action: %s", printable(text, length, shown, sizeof shown), wrong);
    }
    *out = action;
    return SL_OK;
}
