/* Attention and its gradient through a tile of 32 x 32: bf16 with AMX, or by AVX512-BF16 on panels of the same form, and f32
 * with AMX. Queries, keys, values and gradients are factors as they are. Weights and gradients of scores are f32. In f32 the
 * tile takes them, too; among bf16 each goes into products as the sum of two bf16 numbers, which keeps 16 of its bits, so
 * that a result is what f32 gives, rounded once. */
#include "kernel/cpu/attention.h"

#include "kernel/cpu/isa.h"

#include <math.h>
#include <string.h>

/* The tile multiplies SIDE rows and SIDE columns, SIDE elements of the sum in each step. A step of a panel of A of bf16 is
 * [row][32], one of B [2][16 pairs of l][16 columns][2]; of f32 they are the tile's own. */
enum { SIDE = 32, HALF = SIDE / 2, STEP = SIDE * SIDE, QUERIES = 2 * SIDE, SCORES = QUERIES * SL_KEYS };

/* Fewer queries do not fill a tile. In f32, multiply-adds are as fast if half of it is empty, or half of each step. */
enum { LEAST_QUERIES = HALF, LEAST_QUERIES_F32 = SIDE, LEAST_WIDTH_F32 = HALF + 1 };

static int64_t whole_panels(int64_t value)
{
    return sl_round_up_to(value, SIDE);
}

static bool all_are(const sl_attention *j, sl_dtype dtype)
{
    const sl_view *views[] = { j->q, j->k, j->v, j->o, j->d_o, j->dq, j->dk, j->dv };
    int count = j->d_o ? 8 : 4;
    for (int i = 0; i < count; i++) {
        if (views[i]->meta.dtype != dtype)
            return false;
    }
    return true;
}

const sl_tile *sl_attention_tile(const sl_attention *j)
{
    bool bf16 = j->q->meta.dtype == SL_BF16;
    const sl_tile *tile = sl_isa_tile(bf16);
#if defined(__x86_64__)
    if (tile == &sl_tile_dot)
        tile = &sl_tile_dot_square;
#endif
    bool fits = tile->rows == SIDE && tile->columns == SIDE && tile->depth == SIDE;
    if (bf16)
        fits = fits && tile->size == sizeof(uint16_t) && j->t_size >= LEAST_QUERIES && j->d_size > 0;
    else
        fits = fits && tile->pack_square && j->t_size >= LEAST_QUERIES_F32 && j->d_size >= LEAST_WIDTH_F32;
    return fits && j->keys > 0 && all_are(j, bf16 ? SL_BF16 : SL_F32) ? tile : NULL;
}

/* Weights are two bf16 numbers each: what they are multiplied with has each step of its panels twice. */
static bool weights_are_split(const sl_attention *j)
{
    return j->q->meta.dtype == SL_BF16;
}

static int64_t parts_of_weights(const sl_attention *j)
{
    return weights_are_split(j) ? 2 : 1;
}

/* Bytes of a step of a panel, and of all parts of one with weights. */
static int64_t step_bytes(const sl_attention *j)
{
    return (int64_t)STEP * j->tile->size;
}

static int64_t weights_step_bytes(const sl_attention *j)
{
    return parts_of_weights(j) * step_bytes(j);
}

/* Of panels with a sum over D, over all keys, over the keys of a block, and over the queries of a block. */
static int64_t head_panel_bytes(const sl_attention *j)
{
    return sl_divide_up(j->d_size, SIDE) * step_bytes(j);
}

static int64_t along_keys_bytes(const sl_attention *j)
{
    return sl_divide_up(j->k->meta.shape.dims[1], SIDE) * weights_step_bytes(j);
}

static int64_t left_panel_bytes(const sl_attention *j)
{
    return SL_KEYS / SIDE * weights_step_bytes(j);
}

static int64_t weights_panel_bytes(const sl_attention *j)
{
    return QUERIES / SIDE * weights_step_bytes(j);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* A thread's memory. Panels "of weights", and what is multiplied with them, have a step for each part of a weight. */
typedef struct memory {
    char *base; /* NULL: bytes are only counted */
    size_t used;
    char *keys, *values;               /* B: columns are keys, the sum is over D */
    char *keys_along, *values_along;   /* B: columns are D, the sum is over keys; with weights */
    char *queries, *d_out;             /* A: a block of them, the sum is over D */
    char *queries_along, *d_out_along; /* A: rows are D, the sum is over the queries of a block; with weights */
    char *left;                        /* A: weights or gradients of scores, the sum is over the keys of a block */
    char *weights, *d_weights;         /* B: columns are the keys of a block, the sum is over queries; of weights */
    float *scores, *d_scores;          /* [QUERIES][SL_KEYS] */
    float *out;                        /* [QUERIES][D] */
    float *dq;                         /* [T][D] */
    float *dk, *dv, *rows;             /* [D][keys]; one of them as [keys][D] */
    float *delta;                      /* [QUERIES] */
} memory;

static void *take(memory *m, int64_t bytes)
{
    size_t unit = SL_DEVICE_ALIGNMENT;
    void *taken = m->base ? m->base + m->used : NULL;
    m->used += ((size_t)bytes + unit - 1) / unit * unit;
    return taken;
}

/* Panels for `count` rows or columns. */
static char *take_panels(memory *m, int64_t count, int64_t panel_bytes)
{
    return take(m, sl_divide_up(count, SIDE) * panel_bytes);
}

static float *take_floats(memory *m, int64_t count)
{
    return take(m, count * (int64_t)sizeof(float));
}

/* Floats from one row of [D][keys] to the next: not a power of 2, since rows of a tile would share lines of the cache. */
static int64_t keys_row(const sl_attention *j)
{
    return whole_panels(j->k->meta.shape.dims[1]) + HALF;
}

size_t sl_attention_tile_dq_bytes(const sl_attention *j)
{
    return (size_t)(whole_panels(j->t_size) * whole_panels(j->d_size)) * sizeof(float);
}

static memory lay_out(const sl_attention *j, char *base)
{
    memory m = { .base = base };
    int64_t keys = j->k->meta.shape.dims[1], d = j->d_size, wide = whole_panels(d);
    m.keys = take_panels(&m, keys, head_panel_bytes(j));
    m.queries = take_panels(&m, QUERIES, head_panel_bytes(j));
    m.left = take_panels(&m, QUERIES, left_panel_bytes(j));
    m.scores = take_floats(&m, SCORES);
    if (!j->d_o) {
        m.values_along = take_panels(&m, d, along_keys_bytes(j));
        m.out = take_floats(&m, QUERIES * wide);
        return m;
    }
    m.values = take_panels(&m, keys, head_panel_bytes(j));
    m.keys_along = take_panels(&m, d, along_keys_bytes(j));
    m.d_out = take_panels(&m, QUERIES, head_panel_bytes(j));
    m.queries_along = take_panels(&m, d, weights_panel_bytes(j));
    m.d_out_along = take_panels(&m, d, weights_panel_bytes(j));
    m.weights = take_panels(&m, SL_KEYS, weights_panel_bytes(j));
    m.d_weights = take_panels(&m, SL_KEYS, weights_panel_bytes(j));
    m.d_scores = take_floats(&m, SCORES);
    m.dq = take(&m, (int64_t)sl_attention_tile_dq_bytes(j));
    m.dk = take_floats(&m, wide * keys_row(j));
    m.dv = take_floats(&m, wide * keys_row(j));
    m.rows = take_floats(&m, whole_panels(keys) * wide);
    m.delta = take_floats(&m, QUERIES);
    return m;
}

size_t sl_attention_tile_bytes(const sl_attention *j)
{
    return lay_out(j, NULL).used;
}

/* ---- Panels ---------------------------------------------------------------------------------- */

/* Rows of a head: element (t, d). */
static sl_factor rows_of_head(const sl_view *view, int64_t b, int64_t h, int64_t t)
{
    const int64_t *strides = view->meta.strides;
    int64_t offset = b * strides[0] + t * strides[1] + h * strides[2];
    return (sl_factor){ .data = (const char *)view->data + offset * (int64_t)sl_dtype_size(view->meta.dtype),
                        .dtype = view->meta.dtype,
                        .row = strides[1],
                        .column = 1 };
}

/* Those from element (t, d) on. */
static sl_factor rows_from(sl_factor rows, int64_t t, int64_t d)
{
    rows.data = (const char *)rows.data + (t * rows.row + d) * (int64_t)sl_dtype_size(rows.dtype);
    return rows;
}

static void fetch_rows_to_write(const sl_attention *j, sl_factor to, int64_t count)
{
    enum { LINE = 64 };
    int64_t size = (int64_t)sl_dtype_size(to.dtype), bytes = j->d_size * size;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t at = 0; at < bytes; at += LINE)
            sl_fetch_to_write((const char *)to.data + i * to.row * size + at);
    }
}

/* `count` rows with the sum over D, panel after panel. */
static void pack_rows(const sl_attention *j, sl_factor from, int64_t count, bool as_b, char *to)
{
    for (int64_t i = 0; i < count; i += SIDE, to += head_panel_bytes(j)) {
        const sl_factor part = rows_from(from, i, 0);
        (as_b ? j->tile->pack_b : j->tile->pack_a)(&part, sl_least(count - i, SIDE), j->d_size, to);
    }
}

/* Rows with the sum over them: element (d, t). */
static sl_factor turned(sl_factor rows)
{
    return (sl_factor){ .data = rows.data, .dtype = rows.dtype, .row = rows.column, .column = rows.row };
}

/* 32 keys and as many columns of bf16, of which `columns` are there. The pairs of a step are those of split_rows: l and
 * l + 16. */
static void join_keys(const sl_attention *j, sl_factor from, int64_t keys, int64_t columns, uint16_t *step)
{
    static const uint16_t zeros[SIDE];
    for (int64_t x = 0; x < SIDE; x += HALF) {
        for (int64_t i = 0; i < HALF; i++) {
            const uint16_t *low = (const uint16_t *)from.data + i * from.row + x;
            j->simd->join_halves(i < keys ? low : zeros, i + HALF < keys ? low + HALF * from.row : zeros,
                                 columns < x ? 0 : sl_least(columns - x, HALF),
                                 (uint32_t *)(void *)(step + x * SIDE + i * SIDE));
        }
    }
    memcpy(step + STEP, step, STEP * sizeof *step);
}

/* Keys or values with the sum over them, as B. The first one is that of a block. */
static void pack_along_keys(const sl_attention *j, sl_factor from, sl_head_rows keys, char *to)
{
    for (int64_t d = 0; d < j->d_size; d += SIDE, to += along_keys_bytes(j)) {
        char *first = to + keys.first / SIDE * weights_step_bytes(j);
        if (weights_are_split(j)) {
            for (int64_t key = keys.first; key < keys.end; key += SIDE, first += weights_step_bytes(j))
                join_keys(j, rows_from(from, key, d), keys.end - key, j->d_size - d, (uint16_t *)(void *)first);
        } else {
            const sl_factor across = turned(rows_from(from, keys.first, d));
            j->tile->pack_b(&across, sl_least(j->d_size - d, SIDE), keys.end - keys.first, first);
        }
    }
}

/* Rows of queries or their gradients as A with rows D and the sum over them. */
static void pack_along_queries(const sl_attention *j, sl_factor from, int64_t count, char *to)
{
    int64_t bytes = step_bytes(j);
    for (int64_t d = 0; d < j->d_size; d += SIDE) {
        for (int64_t i = 0; i < count; i += SIDE, to += weights_step_bytes(j)) {
            const sl_factor across = turned(rows_from(from, i, d));
            j->tile->pack_a(&across, sl_least(j->d_size - d, SIDE), sl_least(count - i, SIDE), to);
            if (weights_are_split(j))
                memcpy(to + bytes, to, (size_t)bytes);
        }
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Panels, `size` bytes from one to the next. */
typedef struct panel_run {
    const char *data;
    int64_t size;
} panel_run;

/* C (+)= A B with a sum of k elements; C has room for whole tiles. */
static void multiply(const sl_attention *j, panel_run a, panel_run b, int64_t rows, int64_t columns, int64_t k,
                     float *c, int64_t c_row, bool add)
{
    for (int64_t x = 0; x * SIDE < columns; x++) {
        for (int64_t y = 0; y * SIDE < rows; y++)
            j->tile->multiply(k, a.data + y * a.size, b.data + x * b.size, c + y * SIDE * c_row + x * SIDE, c_row, add,
                              NULL);
    }
}

/* Queries and keys that meet: `count` from `first` on, n from `key` on. */
typedef struct score_block {
    int64_t first, count, key, n;
} score_block;

static int64_t query_tiles(const score_block *at)
{
    return sl_divide_up(at->count, SIDE);
}

/* How many of the keys, in whole steps, some query of tile y sees: those behind need no products. */
static int64_t seen_by_tile(const sl_attention *j, const score_block *at, int64_t y)
{
    int64_t end = at->first + sl_least(at->count, (y + 1) * SIDE);
    return whole_panels(sl_attention_seen(j, end - 1, at->key, at->n));
}

/* scores = rows of a block times those of its keys, where a query sees a key. */
static void score(const sl_attention *j, const score_block *at, const char *left, const char *right, float *scores)
{
    int64_t size = head_panel_bytes(j);
    for (int64_t y = 0; y < query_tiles(at); y++)
        multiply(j, (panel_run){ left + y * size, size }, (panel_run){ right + at->key / SIDE * size, size }, SIDE,
                 seen_by_tile(j, at, y), j->d_size, scores + y * SIDE * SL_KEYS, SL_KEYS, false);
}

/* out[count][D] += left times the keys. */
static void add_over_keys(const sl_attention *j, const memory *m, const score_block *at, const char *along, float *out)
{
    int64_t wide = whole_panels(j->d_size), left = left_panel_bytes(j);
    const panel_run keys = { along + at->key / SIDE * weights_step_bytes(j), along_keys_bytes(j) };
    for (int64_t y = 0; y < query_tiles(at); y++) {
        int64_t seen = seen_by_tile(j, at, y);
        if (seen > 0)
            multiply(j, (panel_run){ m->left + y * left, left }, keys, SIDE, j->d_size, parts_of_weights(j) * seen,
                     out + y * SIDE * wide, wide, true);
    }
}

/* sums[D][n] += rows of D times weights of the block's queries, of those tiles that see the keys. */
static void add_over_queries(const sl_attention *j, const score_block *at, const char *along, const char *weights,
                             float *sums)
{
    int64_t tiles = query_tiles(at), blind = 0, step = weights_step_bytes(j), panel = weights_panel_bytes(j);
    for (int64_t x = 0; x * SIDE < at->n; x++) {
        while (blind < tiles && seen_by_tile(j, at, blind) <= x * SIDE)
            blind++;
        if (blind < tiles)
            multiply(j, (panel_run){ along + blind * step, tiles * step },
                     (panel_run){ weights + x * panel + blind * step, panel }, j->d_size, SIDE,
                     (tiles - blind) * parts_of_weights(j) * SIDE, sums + x * SIDE, keys_row(j), true);
    }
}

/* Row i of A: n numbers (whole steps) in two parts. */
static void split_row(const sl_attention *j, const float *from, int64_t i, int64_t n, uint16_t *to)
{
    uint16_t *at = to + i * SIDE;
    j->simd->split_rows(from, from + HALF, n / SIDE, (uint32_t *)(void *)at, (uint32_t *)(void *)(at + STEP), STEP);
}

/* Rows i and i + 1 of the sum of B: n numbers (whole steps) of each in two parts. */
static void split_row_pair(const sl_attention *j, const float *from, int64_t i, int64_t n, uint16_t *to)
{
    int64_t panel = weights_panel_bytes(j) / (int64_t)sizeof(uint32_t);
    uint16_t *at = to + i * HALF;
    for (int64_t x = 0; x < SIDE; x += HALF, at += STEP / 2)
        j->simd->split_rows(from + x, from + SL_KEYS + x, n / SIDE, (uint32_t *)(void *)at,
                            (uint32_t *)(void *)(at + STEP), panel);
}

/* Rows of weights that become panels at once: the fewest that a panel can take. */
static int64_t rows_at_once(const sl_attention *j)
{
    return weights_are_split(j) ? 2 : SIDE;
}

/* So many rows of a block from row i on, n weights of each (whole steps), become a part of a panel of A and of the sum of
 * panels of B. Each may be NULL. */
static void pack_weights(const sl_attention *j, const float *weights, int64_t i, int64_t n, char *left, char *right)
{
    const float *rows = weights + i * SL_KEYS;
    char *a = left ? left + i / SIDE * left_panel_bytes(j) : NULL;
    char *b = right ? right + i / SIDE * weights_step_bytes(j) : NULL;
    if (!weights_are_split(j)) {
        j->tile->pack_square(rows, SL_KEYS, n, a, b, weights_panel_bytes(j));
        return;
    }
    for (int64_t row = 0; a && row < 2; row++)
        split_row(j, rows + row * SL_KEYS, i % SIDE + row, n, (uint16_t *)(void *)a);
    if (b)
        split_row_pair(j, rows, i % SIDE, n, (uint16_t *)(void *)b);
}

/* Rows first.. of a head become the `count` rows at `from`, or these are added to them. */
static void write_rows(const sl_attention *j, const sl_view *view, int64_t b, int64_t h, int64_t first, int64_t count,
                       const float *from, bool add)
{
    const int64_t *strides = view->meta.strides;
    int64_t offset = b * strides[0] + first * strides[1] + h * strides[2];
    sl_tile_result result = { .sums = from,
                              .sums_row = whole_panels(j->d_size),
                              .rows = count,
                              .columns = j->d_size,
                              .c = (char *)view->data + offset * (int64_t)sl_dtype_size(view->meta.dtype),
                              .dtype = view->meta.dtype,
                              .c_row = strides[1],
                              .add = add };
    j->simd->put_tile(&result);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Queries first..first+count of a head against all keys they see. */
static void attend_block(const sl_attention *j, const memory *m, int64_t b, int64_t h, int64_t first, int64_t count)
{
    sl_running r[QUERIES];
    int64_t wide = whole_panels(j->d_size), top = (b * j->h_size + h) * j->t_size + first, at_once = rows_at_once(j);
    int64_t limit = sl_attention_seen(j, first + count - 1, 0, j->keys);
    for (int64_t i = 0; i < count; i++)
        r[i] = (sl_running){ .max = -INFINITY };
    memset(m->out, 0, (size_t)(QUERIES * wide) * sizeof(float));
    pack_rows(j, rows_of_head(j->q, b, h, first), count, false, m->queries);
    sl_attention_fetch_queries(j, b, h, first + QUERIES, QUERIES);
    fetch_rows_to_write(j, rows_of_head(j->o, b, h, first), count);
    for (int64_t key = sl_attention_begin(j, b, first, count) / SL_KEYS * SL_KEYS; key < limit; key += SL_KEYS) {
        const score_block at = { first, count, key, sl_least(limit - key, SL_KEYS) };
        score(j, &at, m->queries, m->keys, m->scores);
        for (int64_t i = 0; i < count; i++) {
            int64_t seen = sl_attention_seen(j, first + i, key, at.n);
            int64_t from = sl_attention_before(j, b, first + i, key, seen);
            sl_attention_raise_row(j, &r[i], m->scores + i * SL_KEYS, from, seen, m->out + i * wide);
        }
        for (int64_t i = 0; i < count; i++) {
            float *row = m->scores + i * SL_KEYS;
            int64_t n = seen_by_tile(j, &at, i / SIDE), seen = sl_attention_seen(j, first + i, key, at.n);
            int64_t from = sl_attention_before(j, b, first + i, key, seen);
            sl_attention_weigh_row(j, &r[i], row, from, seen, n);
            sl_attention_drop(j, top + i, key + from, seen - from, row + from);
            if ((i + 1) % at_once == 0 || i == count - 1)
                pack_weights(j, m->scores, i / at_once * at_once, n, m->left, NULL);
        }
        add_over_keys(j, m, &at, m->values_along, m->out);
    }
    for (int64_t i = 0; i < count; i++)
        sl_attention_finish_row(j, &r[i], top + i, m->out + i * wide);
    write_rows(j, j->o, b, h, first, count, m->out, false);
}

void sl_attend_tiles_part(void *context, int part, int parts)
{
    const sl_attention *j = context;
    int64_t group = j->h_size / j->kv_size;
    sl_head_unit unit;
    memory m = lay_out(j, sl_scratch_part(j->scratch, part, j->part_bytes));
    sl_tile_begin(j->tile);
    while (sl_attention_take(j, &unit)) {
        int64_t b = unit.b, g = unit.g, shares = group * sl_divide_up(j->t_size, QUERIES), share = 0;
        sl_head_rows queries = sl_head_piece(j->t_size, QUERIES, unit.pieces - 1 - unit.piece, unit.pieces);
        sl_head_rows seen = { .end = sl_attention_seen(j, queries.end - 1, 0, j->keys) };
        sl_factor k = rows_of_head(j->k, b, g, 0), v = rows_of_head(j->v, b, g, 0);
        sl_head_fetch(j->k, b, g, seen);
        sl_head_fetch(j->v, b, g, seen);
        pack_rows(j, k, seen.end, true, m.keys);
        pack_along_keys(j, v, seen, m.values_along);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            for (int64_t first = queries.first; first < queries.end; first += QUERIES) {
                sl_attention_fetch_next(j, &unit, parts, share++, shares, QUERIES);
                attend_block(j, &m, b, h, first, sl_least(queries.end - first, QUERIES));
            }
        }
    }
    sl_tile_end(j->tile);
}

/* ---- Gradient -------------------------------------------------------------------------------- */

/* delta[i] is the product of the rows first + i of o and its gradient. */
static void find_deltas(const sl_attention *j, const memory *m, int64_t b, int64_t h, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const void *o = rows_of_head(j->o, b, h, first + i).data, *d_o = rows_of_head(j->d_o, b, h, first + i).data;
        m->delta[i] = weights_are_split(j) ? j->simd->dot_bf16(d_o, o, j->d_size) : j->simd->dot(d_o, o, j->d_size);
    }
}

/* Weights and gradients of scores of a block, as panels. */
static void find_weights(const sl_attention *j, const memory *m, int64_t b, int64_t h, const score_block *at)
{
    int64_t top = (b * j->h_size + h) * j->t_size + at->first, at_once = rows_at_once(j);
    for (int64_t i = 0; i < whole_panels(at->count); i++) {
        float *p = m->scores + i * SL_KEYS, *ds = m->d_scores + i * SL_KEYS;
        int64_t n = seen_by_tile(j, at, i / SIDE);
        int64_t seen = i < at->count ? sl_attention_seen(j, at->first + i, at->key, at->n) : 0;
        int64_t from = i < at->count ? sl_attention_before(j, b, at->first + i, at->key, seen) : 0;
        sl_attention_row_weights(j, top + i, at->key, from, seen, n, m->delta[i], p, ds);
        if ((i + 1) % at_once == 0) {
            pack_weights(j, m->scores, i + 1 - at_once, n, NULL, m->weights);
            pack_weights(j, m->d_scores, i + 1 - at_once, n, m->left, m->d_weights);
        }
    }
}

/* Queries first..first+count against those of the keys that they see; those of the next block come closer meanwhile. dq:
 * their rows. */
static void grad_block(const sl_attention *j, const memory *m, int64_t b, int64_t h, int64_t first, int64_t count,
                       sl_head_rows keys, float *dq)
{
    int64_t limit = sl_least(sl_attention_seen(j, first + count - 1, 0, j->keys), keys.end);
    int64_t begin = sl_attention_begin(j, b, first, count) / SL_KEYS * SL_KEYS;
    begin = begin > keys.first ? begin : keys.first;
    if (begin >= limit)
        return;
    sl_factor q = rows_of_head(j->q, b, h, first), d_o = rows_of_head(j->d_o, b, h, first);
    pack_rows(j, q, count, false, m->queries);
    pack_rows(j, d_o, count, false, m->d_out);
    pack_along_queries(j, q, count, m->queries_along);
    pack_along_queries(j, d_o, count, m->d_out_along);
    find_deltas(j, m, b, h, first, count);
    sl_attention_fetch_queries(j, b, h, first + QUERIES, QUERIES);
    for (int64_t key = begin; key < limit; key += SL_KEYS) {
        const score_block at = { first, count, key, sl_least(limit - key, SL_KEYS) };
        score(j, &at, m->queries, m->keys, m->scores);
        score(j, &at, m->d_out, m->values, m->d_scores);
        find_weights(j, m, b, h, &at);
        add_over_queries(j, &at, m->d_out_along, m->weights, m->dv + key);
        add_over_queries(j, &at, m->queries_along, m->d_weights, m->dk + key);
        add_over_keys(j, m, &at, m->keys_along, dq);
    }
}

/* One query head against the keys of a unit. The first piece of a head clears dq, the last one writes it. */
static void grad_head(const sl_attention *j, const memory *m, const sl_head_unit *unit, int parts, int64_t h,
                      sl_head_rows keys)
{
    int64_t wide = whole_panels(j->d_size), group = j->h_size / j->kv_size;
    int64_t blind = j->causal && keys.first > j->before ? keys.first - j->before : 0; /* queries before all the keys */
    float *dq = unit->pieces > 1 ? sl_attention_cut_dq(j, unit, h % group) : m->dq;
    if (unit->piece == 0)
        memset(dq, 0, sl_attention_tile_dq_bytes(j));
    int64_t begin = sl_least(blind, j->t_size) / QUERIES * QUERIES;
    int64_t blocks = sl_divide_up(j->t_size, QUERIES);
    sl_attention_fetch_queries(j, unit->b, h, begin, QUERIES);
    for (int64_t first = begin; first < j->t_size; first += QUERIES) {
        int64_t count = sl_least(j->t_size - first, QUERIES);
        sl_attention_fetch_next(j, unit, parts, h % group * blocks + first / QUERIES, group * blocks, QUERIES);
        if (unit->piece == unit->pieces - 1)
            fetch_rows_to_write(j, rows_of_head(j->dq, unit->b, h, first), count);
        grad_block(j, m, unit->b, h, first, count, keys, dq + first * wide);
    }
    if (unit->piece == unit->pieces - 1)
        write_rows(j, j->dq, unit->b, h, 0, j->t_size, dq, j->add & 1);
}

/* The sums of some keys, [D][keys], go to their rows of dk or dv. */
static void write_sums(const sl_attention *j, const memory *m, const sl_view *view, const sl_head_unit *unit,
                       sl_head_rows keys, const float *sums, bool add)
{
    int64_t count = keys.end - keys.first;
    j->simd->transpose(sums + keys.first, keys_row(j), j->d_size, count, 1, m->rows, whole_panels(j->d_size));
    write_rows(j, view, unit->b, unit->g, keys.first, count, m->rows, add);
}

void sl_attention_grad_tiles_part(void *context, int part, int parts)
{
    const sl_attention *j = context;
    int64_t group = j->h_size / j->kv_size;
    sl_head_unit unit;
    memory m = lay_out(j, sl_scratch_part(j->scratch, part, j->part_bytes));
    size_t sums = (size_t)(whole_panels(j->d_size) * keys_row(j)) * sizeof(float);
    sl_tile_begin(j->tile);
    while (sl_attention_take(j, &unit)) {
        int64_t b = unit.b, g = unit.g;
        sl_head_rows keys = sl_head_piece(j->keys, SL_KEYS, unit.piece, unit.pieces);
        int64_t count = keys.end - keys.first, at = keys.first / SIDE * head_panel_bytes(j);
        sl_factor k = rows_of_head(j->k, b, g, keys.first), v = rows_of_head(j->v, b, g, keys.first);
        sl_head_fetch(j->k, b, g, keys);
        sl_head_fetch(j->v, b, g, keys);
        pack_rows(j, k, count, true, m.keys + at);
        pack_rows(j, v, count, true, m.values + at);
        pack_along_keys(j, rows_of_head(j->k, b, g, 0), keys, m.keys_along);
        memset(m.dk, 0, sums);
        memset(m.dv, 0, sums);
        fetch_rows_to_write(j, rows_of_head(j->dk, b, g, keys.first), count);
        fetch_rows_to_write(j, rows_of_head(j->dv, b, g, keys.first), count);
        sl_attention_await_piece(j, &unit);
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            grad_head(j, &m, &unit, parts, h, keys);
        sl_attention_end_piece(j, &unit);
        write_sums(j, &m, j->dk, &unit, keys, m.dk, j->add & 2);
        write_sums(j, &m, j->dv, &unit, keys, m.dv, j->add & 4);
    }
    sl_tile_end(j->tile);
}
