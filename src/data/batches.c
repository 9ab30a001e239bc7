/* Which window of the tokens each row of each step reads. The order is computed, not stored, so a step is a position.
 */
#include <sluice/data.h>

#include "base/alloc.h"
#include "base/units.h"

#include <inttypes.h>
#include <math.h>

/* ---- A permutation of [0, size) without a table ------------------------------------------------ */

enum { ROUNDS = 6 };

/* splitmix64's finalizer: every bit of the result depends on every bit of x. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Where index goes: a Feistel network over the next power of four, walked until it lands below size. */
static uint64_t permute(uint64_t index, uint64_t size, uint64_t seed, uint64_t round)
{
    int half = 1; /* bits of one side */
    while (half < 32 && (size - 1) >> (2 * half) != 0)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = mix(mix(seed) + round);
    do { /* each step is a bijection of [0, 4^half); the orbit of an index below size comes back below size */
        uint64_t left = index >> half, right = index & mask;
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t next = left ^ (mix(key + (uint64_t)i * 0x632be59bd9b4e019u + right) & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= size);
    return index;
}

/* ---- One source ------------------------------------------------------------------------------ */

/* The windows of one source, in the order of its epochs. */
typedef struct window_source {
    const sl_tokens *tokens;
    int64_t first; /* token at which the part that is used begins */
    int64_t seq;
    int64_t windows; /* of an epoch */
    int64_t shifts;  /* how many places the first window of an epoch may start at; 1: only at 0 */
    bool shuffled;
    uint64_t seed;
    uint64_t cumulated; /* weights of the sources up to this one, in whole numbers */
} window_source;

/* Shuffled epochs start at different tokens, so that the same text is cut differently every time: a window fewer leaves
 * room for any shift below seq. */
static void choose_windows(window_source *source, int64_t count)
{
    int64_t seq = source->seq;
    source->windows = (count - 1) / seq;
    source->shifts = 1;
    if (!source->shuffled)
        return;
    if (source->windows > 1)
        source->windows = (count - seq) / seq;
    int64_t spare = count - 1 - source->windows * seq;
    source->shifts = spare < seq ? spare + 1 : seq;
}

/* The first token of the source's row of this number. */
static int64_t window_start(const window_source *source, uint64_t number)
{
    uint64_t windows = (uint64_t)source->windows, epoch = number / windows, window = number % windows, shift = 0;
    if (source->shuffled) {
        window = permute(window, windows, source->seed, epoch);
        shift = permute(0, (uint64_t)source->shifts, ~source->seed, epoch);
    }
    return source->first + (int64_t)(window * (uint64_t)source->seq + shift);
}

static sl_status make_source(const sl_batch_source *from, const sl_batch_options *options, int index,
                             window_source *out)
{
    if (!from->tokens)
        return sl_fail(SL_ERR_ARGUMENT, "batches need tokens: NULL was given");
    const char *path = sl_tokens_path(from->tokens);
    int64_t all = sl_tokens_count(from->tokens), count = from->count ? from->count : all - from->first;
    if (from->first < 0 || from->first > all || count < 0 || count > all - from->first)
        return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " tokens; %" PRId64 " from token %" PRId64 " are not there",
                       path, all, count, from->first);
    if (count <= options->seq)
        return sl_fail(SL_ERR_ARGUMENT,
                       "%s has %" PRId64 " token%s%s; a sequence of %" PRId64 " needs one more than its length", path,
                       count, sl_plural(count), count < all ? " in this part" : "", options->seq);
    if (!(from->weight > 0 && isfinite(from->weight)))
        return sl_fail(SL_ERR_ARGUMENT, "%s has the weight %g; a weight is a number above 0", path, from->weight);
    *out = (window_source){ .tokens = from->tokens,
                            .first = from->first,
                            .seq = options->seq,
                            .shuffled = options->shuffled,
                            .seed = options->seed + (uint64_t)index };
    choose_windows(out, count);
    return SL_OK;
}

/* ---- Batches --------------------------------------------------------------------------------- */

struct sl_batches {
    sl_batch_options options;
    window_source *sources;
    int source_count;
    int64_t windows; /* until a source begins a new epoch */
};

/* Which of a source's rows is which row of all. */
typedef struct row_place {
    int source;
    uint64_t number; /* among the rows of the source */
} row_place;

__extension__ typedef unsigned __int128 wide_product;

/* How many of the first rows of the sources up to i are of those before i: their share, rounded down. So the shares
 * hold for every number of rows, and where a row comes from needs no table. */
static uint64_t rows_before(const window_source *sources, int i, uint64_t rows)
{
    return (uint64_t)((wide_product)rows * sources[i - 1].cumulated / sources[i].cumulated);
}

static row_place place_of(const sl_batches *batches, uint64_t number)
{
    for (int i = batches->source_count - 1; i > 0; i--) {
        uint64_t before = rows_before(batches->sources, i, number);
        if (rows_before(batches->sources, i, number + 1) == before)
            return (row_place){ .source = i, .number = number - before };
        number = before;
    }
    return (row_place){ .source = 0, .number = number };
}

int64_t sl_batches_rows_of(const sl_batches *batches, int source, int64_t rows)
{
    uint64_t left = (uint64_t)rows;
    for (int i = batches->source_count - 1; i > 0; i--) {
        uint64_t before = rows_before(batches->sources, i, left);
        if (i == source)
            return (int64_t)(left - before);
        left = before;
    }
    return (int64_t)left;
}

/* The row of a step among all rows. Several sources give a step's rows in turn: shuffled, they have no fixed place. */
static row_place find_row(const sl_batches *batches, int64_t step, int64_t row)
{
    uint64_t batch = (uint64_t)batches->options.batch, place = (uint64_t)row;
    if (batches->options.shuffled && batches->source_count > 1)
        place = permute(place, batch, batches->options.seed, (uint64_t)step);
    return place_of(batches, (uint64_t)step * batch + place);
}

/* The most rows of which no source has more than its windows. */
static int64_t count_windows(const sl_batches *batches)
{
    int64_t low = 0, high = 0;
    for (int i = 0; i < batches->source_count; i++)
        high += batches->sources[i].windows;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        bool fits = true;
        for (int i = 0; i < batches->source_count; i++)
            fits = fits && sl_batches_rows_of(batches, i, middle) <= batches->sources[i].windows;
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Weights as whole numbers whose ratios are exact from here on. */
static void cumulate_weights(sl_batches *batches, const sl_batch_source *sources)
{
    const double whole = (double)((uint64_t)1 << 40);
    double sum = 0;
    uint64_t so_far = 0;
    for (int i = 0; i < batches->source_count; i++)
        sum += sources[i].weight;
    for (int i = 0; i < batches->source_count; i++) {
        uint64_t weight = (uint64_t)(sources[i].weight / sum * whole + 0.5);
        so_far += weight > 0 ? weight : 1;
        batches->sources[i].cumulated = so_far;
    }
}

sl_status sl_batches_create_mixed(const sl_batch_source *sources, int count, const sl_batch_options *options,
                                  sl_batches **out)
{
    sl_status status = SL_OK;
    sl_batches *batches = NULL;
    if (!options || !sources || count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "batches need %s: %s was given", options ? "sources" : "options",
                       options && sources ? "none" : "NULL");
    if (options->batch < 1 || options->seq < 1)
        return sl_fail(SL_ERR_ARGUMENT, "batch %" PRId64 " and sequence length %" PRId64 " must be at least 1",
                       options->batch, options->seq);
    SL_TRY(SL_NEW(batches));
    SL_TRY(SL_NEW_ARRAY(batches->sources, count));
    batches->options = *options;
    batches->source_count = count;
    for (int i = 0; i < count; i++)
        SL_TRY(make_source(&sources[i], options, i, &batches->sources[i]));
    cumulate_weights(batches, sources);
    batches->windows = count_windows(batches);
    *out = batches;
    batches = NULL;
done:
    sl_batches_destroy(batches);
    return status;
}

sl_status sl_batches_create(const sl_tokens *tokens, const sl_batch_options *options, sl_batches **out)
{
    const sl_batch_source source = { .tokens = tokens, .weight = 1 };
    if (!tokens)
        return sl_fail(SL_ERR_ARGUMENT, "batches need tokens: NULL was given");
    return sl_batches_create_mixed(&source, 1, options, out);
}

void sl_batches_destroy(sl_batches *batches)
{
    if (!batches)
        return;
    sl_free(batches->sources);
    sl_free(batches);
}

int64_t sl_batches_windows(const sl_batches *batches)
{
    return batches->windows;
}

int64_t sl_batches_windows_of(const sl_batches *batches, int source)
{
    return batches->sources[source].windows;
}

int sl_batches_source(const sl_batches *batches, int64_t step, int64_t row)
{
    return find_row(batches, step, row).source;
}

int64_t sl_batches_start(const sl_batches *batches, int64_t step, int64_t row)
{
    row_place place = find_row(batches, step, row);
    return window_start(&batches->sources[place.source], place.number);
}

sl_status sl_batches_read(const sl_batches *batches, int64_t step, int64_t row, int64_t rows, int32_t *inputs,
                          int32_t *targets)
{
    sl_status status = SL_OK;
    int64_t seq = batches->options.seq;

    if (step < 0 || row < 0 || rows < 0 || rows > batches->options.batch - row)
        return sl_fail(SL_ERR_ARGUMENT,
                       "rows %" PRId64 " + %" PRId64 " of step %" PRId64 " are not in a batch of %" PRId64, row, rows,
                       step, batches->options.batch);
    for (int64_t r = 0; r < rows; r++) {
        row_place place = find_row(batches, step, row + r);
        const window_source *source = &batches->sources[place.source];
        int64_t start = window_start(source, place.number);
        if (batches->options.vocab > 0)
            SL_TRY(sl_tokens_check(source->tokens, start, seq + 1, batches->options.vocab));
        SL_TRY(sl_tokens_read(source->tokens, start, seq, inputs + r * seq));
        SL_TRY(sl_tokens_read(source->tokens, start + 1, seq, targets + r * seq));
    }
done:
    return status;
}

/* Rows [first, last) of a source. */
static sl_status check_source(const window_source *source, int64_t first, int64_t last, int64_t vocab)
{
    sl_status status = SL_OK;
    if (last - first >= source->windows)
        return sl_tokens_check(source->tokens, source->first, source->windows * source->seq + source->shifts, vocab);
    for (int64_t i = first; i < last; i++)
        SL_TRY(sl_tokens_check(source->tokens, window_start(source, (uint64_t)i), source->seq + 1, vocab));
done:
    return status;
}

sl_status sl_batches_check(const sl_batches *batches, int64_t first, int64_t steps)
{
    sl_status status = SL_OK;
    const sl_batch_options *options = &batches->options;
    int64_t begin, end;

    if (options->vocab <= 0 || steps <= 0)
        return SL_OK;
    if (__builtin_add_overflow(first, steps, &end) || __builtin_mul_overflow(end, options->batch, &end))
        end = INT64_MAX;
    if (__builtin_mul_overflow(first, options->batch, &begin))
        begin = end;
    for (int i = 0; i < batches->source_count; i++)
        SL_TRY(check_source(&batches->sources[i], sl_batches_rows_of(batches, i, begin),
                            sl_batches_rows_of(batches, i, end), options->vocab));
done:
    return status;
}
