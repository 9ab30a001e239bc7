/* Which window of the tokens each row of each step reads. The order is computed, not stored, so a step is a position.
 */
#include <sluice/data.h>

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

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

/* ---- Batches --------------------------------------------------------------------------------- */

struct sl_batches {
    const sl_tokens *tokens;
    sl_batch_options options;
    int64_t windows; /* of an epoch */
    int64_t shifts;  /* how many places the first window of an epoch may start at; 1: only at 0 */
};

/* Shuffled epochs start at different tokens, so that the same text is cut differently every time: a window fewer leaves
 * room for any shift below seq. */
static void choose_windows(sl_batches *batches, int64_t count)
{
    int64_t seq = batches->options.seq;
    batches->windows = (count - 1) / seq;
    batches->shifts = 1;
    if (!batches->options.shuffled)
        return;
    if (batches->windows > 1)
        batches->windows = (count - seq) / seq;
    int64_t spare = count - 1 - batches->windows * seq;
    batches->shifts = spare < seq ? spare + 1 : seq;
}

sl_status sl_batches_create(const sl_tokens *tokens, const sl_batch_options *options, sl_batches **out)
{
    sl_batches *batches = NULL;
    if (!tokens || !options)
        return sl_fail(SL_ERR_ARGUMENT, "batches need %s: NULL was given", tokens ? "options" : "tokens");
    if (options->batch < 1 || options->seq < 1)
        return sl_fail(SL_ERR_ARGUMENT, "batch %" PRId64 " and sequence length %" PRId64 " must be at least 1",
                       options->batch, options->seq);
    int64_t all = sl_tokens_count(tokens), count = options->count ? options->count : all - options->first;
    if (options->first < 0 || options->first > all || count < 0 || count > all - options->first)
        return sl_fail(SL_ERR_ARGUMENT, "%s has %" PRId64 " tokens; %" PRId64 " from token %" PRId64 " are not there",
                       sl_tokens_path(tokens), all, count, options->first);
    if (count <= options->seq)
        return sl_fail(SL_ERR_ARGUMENT,
                       "%s has %" PRId64 " tokens%s; a sequence of %" PRId64 " needs one more than its length",
                       sl_tokens_path(tokens), count, count < all ? " in this part" : "", options->seq);
    sl_status status = SL_NEW(batches);
    if (status != SL_OK)
        return status;
    batches->tokens = tokens;
    batches->options = *options;
    choose_windows(batches, count);
    *out = batches;
    return SL_OK;
}

void sl_batches_destroy(sl_batches *batches)
{
    sl_free(batches);
}

int64_t sl_batches_windows(const sl_batches *batches)
{
    return batches->windows;
}

int64_t sl_batches_start(const sl_batches *batches, int64_t step, int64_t row)
{
    uint64_t number = (uint64_t)step * (uint64_t)batches->options.batch + (uint64_t)row;
    uint64_t windows = (uint64_t)batches->windows, epoch = number / windows, window = number % windows;
    uint64_t seed = batches->options.seed, shift = 0;
    if (batches->options.shuffled) {
        window = permute(window, windows, seed, epoch);
        shift = permute(0, (uint64_t)batches->shifts, ~seed, epoch);
    }
    return batches->options.first + (int64_t)(window * (uint64_t)batches->options.seq + shift);
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
        int64_t start = sl_batches_start(batches, step, row + r);
        if (batches->options.vocab > 0)
            SL_TRY(sl_tokens_check(batches->tokens, start, seq + 1, batches->options.vocab));
        SL_TRY(sl_tokens_read(batches->tokens, start, seq, inputs + r * seq));
        SL_TRY(sl_tokens_read(batches->tokens, start + 1, seq, targets + r * seq));
    }
done:
    return status;
}

sl_status sl_batches_check(const sl_batches *batches, int64_t first, int64_t steps)
{
    sl_status status = SL_OK;
    const sl_batch_options *options = &batches->options;
    int64_t rows;

    if (options->vocab <= 0 || steps <= 0)
        return SL_OK;
    if (__builtin_mul_overflow(steps, options->batch, &rows) || rows >= batches->windows)
        return sl_tokens_check(batches->tokens, options->first, batches->windows * options->seq + batches->shifts,
                               options->vocab);
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = sl_batches_start(batches, first, i);
        SL_TRY(sl_tokens_check(batches->tokens, start, options->seq + 1, options->vocab));
    }
done:
    return status;
}
