/* Our own matrix product. Blocks of A and B are packed into panels and multiplied a register tile at a time. Each thread
 * packs what it multiplies in room of its own, both the rows of A and the columns of B of its part of C: memory that others
 * have read is slow to write again. It does its part unit by unit, and helps others when it is done. An element of C is
 * added up in the same order whoever does it, so the number of threads changes no bit. */
#include "kernel/cpu/gemm.h"

#include "kernel/cpu/isa.h"
#include "kernel/cpu/product_sizes.h"

#include <stdatomic.h>
#include <string.h>

enum { LARGEST_TILE = 32 * 32, PIECED_TILES = 8, LINE = SL_PRODUCT_LINE };

static const sl_tile *tile_of(const sl_gemm *g)
{
    return sl_isa_tile(g->a.dtype == SL_BF16 && g->b.dtype == SL_BF16);
}

size_t sl_product_scratch(const sl_gemm *g, int parts)
{
    return g->m == 0 || g->n == 0 || g->k == 0 ? 0 : sl_product_sizes_of(g, tile_of(g), parts).total_bytes;
}

/* ---- One block of B -------------------------------------------------------------------------- */

typedef struct product {
    sl_pool *pool; /* NULL: the calling thread alone */
    const sl_simd *simd;
    const sl_gemm *g;
    const sl_tile *tile;
    sl_product_sizes sizes;
    int parts;
    bool as_it_lies;        /* A is multiplied without being packed, but for a last panel that is not whole */
    float *sums;            /* NULL if C takes the sums itself */
    char *own;              /* room of each thread: a_bytes, then b_bytes */
    sl_shared_count *taken; /* (blocks, parts) units of each thread's share of C that somebody has taken */
    atomic_int *left;       /* (parts, units) blocks of B that are still to be added to a unit of C */
} product;

/* A block of B. */
typedef struct block {
    int index;
    int64_t column, columns; /* columns of C ... */
    int64_t l, k;            /* ... and the run along the sum */
} block;

/* Panels first..end of a block, which are packed at `data`. */
typedef struct packed_columns {
    char *data;
    int64_t first, end;
} packed_columns;

static int64_t panel_bytes(const product *p, const block *at, int width)
{
    return width * sl_round_up_to(at->k, p->tile->depth) * p->tile->size;
}

static int64_t block_panels(const product *p, const block *at)
{
    return sl_divide_up(at->columns, p->tile->columns);
}

static sl_factor factor_at(const sl_factor *factor, int64_t i, int64_t l)
{
    sl_factor moved = *factor;
    int64_t offset = i * factor->row + l * factor->column;
    moved.data = (const char *)factor->data + offset * (int64_t)sl_dtype_size(factor->dtype);
    return moved;
}

/* Rows l..end of elements that lie side by side, first..count of each. The processor does not see them coming. */
static void fetch_across(const sl_factor *from, int64_t first, int64_t count, int64_t l, int64_t end)
{
    int64_t bytes = (count - first) * (int64_t)sl_dtype_size(from->dtype);
    for (; l < end; l++) {
        const char *row = factor_at(from, first, l).data;
        for (int64_t i = 0; i < bytes; i += LINE)
            __builtin_prefetch(row + i);
    }
}

/* Rows of A or columns of B from first.. of `count` as panels, k elements of each. If they lie side by side, all panels get
 * a short run of l before the next: a panel alone reads parts of lines, and lines that are gone when its neighbor needs those
 * beside them. A share of the next run comes closer with each panel. */
static void pack_panels(const sl_tile *tile, const sl_factor *from, bool is_a, int64_t first, int64_t count, int64_t k,
                        int64_t bytes, char *to)
{
    enum { WIDE_RUN = 64, NARROW_RUN = 16, FETCHED_BYTES = 768 << 10 }; /* which stay in the second-level cache */
    int64_t width = is_a ? tile->rows : tile->columns;
    bool across = from->row == 1 && from->column != 1;
    int64_t run = across ? sl_round_up_to(tile->size == 4 ? WIDE_RUN : NARROW_RUN, tile->depth) : k;
    bool fetches = across && (count - first) * run * (int64_t)sl_dtype_size(from->dtype) <= FETCHED_BYTES;
    for (int64_t l = 0; l < k; l += run) {
        int64_t next = sl_least(l + run, k), end = fetches ? sl_least(next + run, k) : next;
        for (int64_t i = first; i < count; i += width) {
            int64_t fetched = sl_least(next + sl_divide_up((end - next) * width, count - i), end);
            const sl_factor part = factor_at(from, i, l);
            fetch_across(from, first, count, next, fetched);
            next = fetched;
            (is_a ? tile->pack_a : tile->pack_b)(&part, sl_least(count - i, width), sl_least(k - l, run),
                                                 to + i / width * bytes + l * width * tile->size);
        }
    }
}

static void pack_b(const product *p, const block *at, const packed_columns *b)
{
    const sl_tile *tile = p->tile;
    const sl_factor from = factor_at(&p->g->b, at->column + b->first * tile->columns, at->l);
    int64_t columns = sl_least(at->columns, b->end * tile->columns) - b->first * tile->columns;
    pack_panels(tile, &from, false, 0, columns, at->k, panel_bytes(p, at, tile->columns), b->data);
}

static void pack_a(const product *p, const block *at, int64_t row, int64_t rows, char *to)
{
    const sl_tile *tile = p->tile;
    const sl_factor from = factor_at(&p->g->a, row, at->l);
    pack_panels(tile, &from, true, p->as_it_lies ? rows / tile->rows * tile->rows : 0, rows, at->k,
                panel_bytes(p, at, tile->rows), to);
}

static const float *bias_at(const product *p, int64_t column)
{
    return p->g->bias ? p->g->bias + column : NULL;
}

/* The sums of a tile are done: they go where they belong. */
static void finish(const product *p, const float *sums, int64_t sums_row, int64_t row, int64_t column, bool first)
{
    const sl_gemm *g = p->g;
    int64_t offset = row * g->c_row + column;
    sl_tile_result result = { .sums = sums,
                              .sums_row = sums_row,
                              .rows = sl_least(g->m - row, p->tile->rows),
                              .columns = sl_least(g->n - column, p->tile->columns),
                              .bias = first ? bias_at(p, column) : NULL,
                              .c = (char *)g->c + offset * (int64_t)sl_dtype_size(g->c_dtype),
                              .dtype = g->c_dtype,
                              .c_row = g->c_row,
                              .add = g->add || !first };
    bool whole = result.rows == p->tile->rows && result.columns == p->tile->columns;
    if (!p->tile->put || !whole || g->c_dtype != SL_BF16 || result.add || !p->tile->put(&result))
        p->simd->put_tile(&result);
}

/* A panel of A, which begins at `row`, times one of B. */
static void multiply(const product *p, const block *at, const char *a, const char *b, int64_t row, float *c,
                     int64_t c_row, bool add, const sl_tile_fetch *fetch)
{
    if (p->as_it_lies && row + p->tile->rows <= p->g->m) {
        const sl_factor from = factor_at(&p->g->a, row, at->l);
        p->tile->multiply_rows(at->k, from.data, from.row, b, c, c_row, add, fetch);
    } else {
        p->tile->multiply(at->k, a, b, c, c_row, add, fetch);
    }
}

/* The tile of C at `row` and column b_column of the block gets the products of this block. own: room for its sums. */
static void multiply_tile(const product *p, const block *at, const char *a, const char *b, int64_t row,
                          int64_t b_column, float *own, const sl_tile_fetch *fetch)
{
    const sl_gemm *g = p->g;
    const sl_tile *tile = p->tile;
    int64_t column = at->column + b_column;
    bool first = at->l == 0, last = at->l + at->k == g->k;
    bool whole = row + tile->rows <= g->m && column + tile->columns <= g->n;
    if (p->sums) {
        float *sums = p->sums + row * p->sizes.columns + b_column;
        multiply(p, at, a, b, row, sums, p->sizes.columns, !first, fetch);
        if (last)
            finish(p, sums, p->sizes.columns, row, column, true);
    } else if (whole && g->c_dtype == SL_F32 && !(first && g->bias)) {
        float *c = (float *)g->c + row * g->c_row + column;
        multiply(p, at, a, b, row, c, g->c_row, g->add || !first, fetch);
    } else {
        multiply(p, at, a, b, row, own, tile->columns, false, fetch);
        finish(p, own, tile->columns, row, column, first);
    }
}

/* `rows` rows of `columns` elements at `data`, `row` elements apart. */
static sl_tile_lines lines_of(const void *data, int64_t row, int64_t rows, int64_t columns, sl_dtype dtype)
{
    int64_t size = (int64_t)sl_dtype_size(dtype), offset = (int64_t)((uintptr_t)data % LINE);
    return (sl_tile_lines){ .at = (const char *)data - offset,
                            .step = row * size,
                            .rows = (int)rows,
                            .lines = (int)sl_divide_up(offset + columns * size, LINE) };
}

/* What the tile of C at `row` and column b_column of the block adds to and writes. */
static void fetch_sums(const product *p, const block *at, int64_t row, int64_t b_column, sl_tile_fetch *fetch)
{
    const sl_gemm *g = p->g;
    int64_t column = at->column + b_column;
    int64_t rows = sl_least(g->m - row, p->tile->rows), columns = sl_least(g->n - column, p->tile->columns);
    if (p->sums)
        fetch->writes[0] =
            lines_of(p->sums + row * p->sizes.columns + b_column, p->sizes.columns, rows, columns, SL_F32);
    if (!p->sums || at->l + at->k == g->k) {
        const char *c = (const char *)g->c + (row * g->c_row + column) * (int64_t)sl_dtype_size(g->c_dtype);
        fetch->writes[1] = lines_of(c, g->c_row, rows, columns, g->c_dtype);
    }
}

/* The tile behind that of rows n and panel i. */
static void fetch_next(const product *p, const block *at, int64_t row, int64_t tiles, int64_t n, int64_t i, int64_t end,
                       sl_tile_fetch *fetch)
{
    if (n + 1 < tiles)
        fetch_sums(p, at, row + (n + 1) * p->tile->rows, i * p->tile->columns, fetch);
    else if (i + 1 < end)
        fetch_sums(p, at, row, (i + 1) * p->tile->columns, fetch);
}

/* Rows row..row+rows of C, which are packed at a, against panels begin..end of B. Meanwhile the panel of B behind each
 * comes closer, and so does the next tile of C. */
static void multiply_panels(const product *p, const block *at, int64_t row, int64_t rows, int64_t begin, int64_t end,
                            const char *a, const packed_columns *packed)
{
    _Alignas(LINE) float own[LARGEST_TILE];
    const sl_tile *tile = p->tile;
    int64_t a_bytes = panel_bytes(p, at, tile->rows), b_bytes = panel_bytes(p, at, tile->columns);
    int64_t piece = tile->fetched_bytes * at->k, tiles = sl_divide_up(rows, tile->rows);
    for (int64_t i = begin; i < end; i++) {
        const char *b = packed->data + (i - packed->first) * b_bytes;
        for (int64_t n = 0; n < tiles; n++) {
            bool fetches_b = i + 1 < packed->end && (n + 1) * piece <= b_bytes;
            sl_tile_fetch fetch = { .panel = fetches_b ? b + b_bytes + n * piece : NULL };
            fetch_next(p, at, row, tiles, n, i, packed->end, &fetch);
            multiply_tile(p, at, a + n * a_bytes, b, row + n * tile->rows, i * tile->columns, own, &fetch);
        }
    }
}

/* Sums that are rounded as soon as the block is done, of too many elements for a panel of B to stay in the first-level
 * cache. */
static bool goes_in_pieces(const product *p, const block *at, int64_t tiles)
{
    return p->tile->piece_k > 0 && at->k > p->tile->piece_k && !p->sums && p->g->c_dtype != SL_F32 &&
           tiles <= PIECED_TILES;
}

/* The same with pieces of panels: all rows are multiplied by a piece of a panel of B, then by the next one. The bits are
 * those of whole panels. */
static void multiply_pieces(const product *p, const block *at, int64_t row, int64_t rows, int64_t begin, int64_t end,
                            const char *a, const packed_columns *packed)
{
    _Alignas(LINE) float own[PIECED_TILES][LARGEST_TILE];
    const sl_tile *tile = p->tile;
    int64_t a_bytes = panel_bytes(p, at, tile->rows), b_bytes = panel_bytes(p, at, tile->columns);
    int64_t tiles = sl_divide_up(rows, tile->rows), pieces = sl_divide_up(at->k, tile->piece_k);
    int64_t piece = sl_round_up_to(sl_divide_up(at->k, pieces), tile->depth);
    for (int64_t i = begin; i < end; i++) {
        const char *b = packed->data + (i - packed->first) * b_bytes, *ahead = b + b_bytes;
        for (int64_t l = 0; l < at->k; l += piece) {
            block part = *at;
            part.l = at->l + l;
            part.k = sl_least(piece, at->k - l);
            bool last = l + part.k == at->k;
            for (int64_t n = 0; n < tiles; n++) {
                bool fetches_b = i + 1 < packed->end && ahead + tile->fetched_bytes * part.k <= b + 2 * b_bytes;
                sl_tile_fetch fetch = { .panel = fetches_b ? ahead : NULL };
                ahead += tile->fetched_bytes * part.k;
                if (last)
                    fetch_next(p, at, row, tiles, n, i, packed->end, &fetch);
                multiply(p, &part, a + n * a_bytes + l * tile->rows * tile->size, b + l * tile->columns * tile->size,
                         row + n * tile->rows, own[n], tile->columns, l > 0, &fetch);
                if (last)
                    finish(p, own[n], tile->columns, row + n * tile->rows, at->column + i * tile->columns, at->l == 0);
            }
        }
    }
}

/* A thread's share of C: rows, and panels first..end of B, the same in every block. It is done in units: the rows of one
 * block of A, and a few panels. The last block of columns may lack some of the panels, and so some units be empty. */
typedef struct share {
    int64_t row, rows, first, end;
    int units_a_row, units;
} share;

static share share_of(const product *p, int part)
{
    const sl_tile *tile = p->tile;
    const sl_product_grid cut = p->sizes.grid;
    int64_t start, length, count;
    share s = { .units = 0 };
    if (part >= cut.rows * cut.columns)
        return s;
    sl_chunk_range(sl_divide_up(p->g->m, tile->rows), cut.rows, part / cut.columns, &start, &length);
    sl_chunk_range(p->sizes.columns / tile->columns, cut.columns, part % cut.columns, &s.first, &count);
    s.row = start * tile->rows;
    s.rows = sl_least(p->g->m - s.row, length * tile->rows);
    s.end = s.first + count;
    s.units_a_row = (int)sl_divide_up(count, p->sizes.unit_panels);
    s.units = s.rows > 0 ? s.units_a_row * (int)sl_divide_up(s.rows, p->sizes.rows) : 0;
    return s;
}

static atomic_int *units_taken(const product *p, const block *at, int part)
{
    return &p->taken[at->index * p->parts + part].value;
}

/* Takes the next number below `end`; end if none is left. */
static int take(atomic_int *next, int end)
{
    if (atomic_load_explicit(next, memory_order_relaxed) >= end)
        return end;
    int taken = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return taken < end ? taken : end;
}

static atomic_int *blocks_left(const product *p, int part, int unit)
{
    return p->left + part * p->sizes.units + unit;
}

/* What a thread has packed in its room. */
typedef struct held {
    int part;
    char *a;
    int64_t row, l;   /* where its rows of A begin; row -1: none */
    int block;        /* of its columns of B */
    packed_columns b; /* end 0: none */
} held;

static held nothing_held(const product *p, int part)
{
    char *room = p->own + (size_t)part * (p->sizes.a_bytes + p->sizes.b_bytes);
    return (held){ .part = part, .a = room, .row = -1, .b = { .data = room + p->sizes.a_bytes } };
}

/* All that was packed beforehand lies run by run along the sum. */
static packed_columns packed_before(const product *p, const block *at)
{
    const sl_tile *tile = p->tile;
    int64_t before = sl_round_up_to(p->g->n, tile->columns) * at->l * tile->size;
    return (packed_columns){ .data = (char *)(uintptr_t)p->g->packed_b + before +
                                     at->column / tile->columns * panel_bytes(p, at, tile->columns),
                             .end = block_panels(p, at) };
}

/* Panels begin..end of B, packed: with all others of the thread's share, or alone if the share is another thread's. */
static packed_columns hold_columns(const product *p, const block *at, const share *s, bool shares, int64_t begin,
                                   int64_t end, held *own)
{
    if (p->g->packed_b)
        return packed_before(p, at);
    if (own->block != at->index || begin < own->b.first || end > own->b.end) {
        own->block = at->index;
        own->b.first = shares ? begin : s->first;
        own->b.end = shares ? end : sl_least(s->end, block_panels(p, at));
        pack_b(p, at, &own->b);
    }
    return own->b;
}

static void hold_rows(const product *p, const block *at, int64_t row, int64_t rows, held *own)
{
    if (own->row != row || own->l != at->l)
        pack_a(p, at, row, rows, own->a);
    own->row = row;
    own->l = at->l;
}

/* A unit of the share of `part`. */
static void multiply_unit(const product *p, const block *at, const share *s, int part, int unit, held *own)
{
    int64_t row = s->row + unit / s->units_a_row * p->sizes.rows,
            rows = sl_least(s->row + s->rows - row, p->sizes.rows);
    int64_t begin = s->first + unit % s->units_a_row * p->sizes.unit_panels;
    int64_t end = sl_least(sl_least(begin + p->sizes.unit_panels, s->end), block_panels(p, at));
    if (begin >= end)
        return;
    const packed_columns b = hold_columns(p, at, s, part != own->part, begin, end, own);
    hold_rows(p, at, row, rows, own);
    bool pieces = goes_in_pieces(p, at, sl_divide_up(rows, p->tile->rows));
    (pieces ? multiply_pieces : multiply_panels)(p, at, row, rows, begin, end, own->a, &b);
}

/* The units of a part's share that nobody has taken. Another thread may still be adding the block before to a unit. */
static void multiply_share(const product *p, const block *at, int part, held *own)
{
    const share s = share_of(p, part);
    for (int unit = take(units_taken(p, at, part), s.units); unit < s.units;
         unit = take(units_taken(p, at, part), s.units)) {
        if (at->index > 0)
            sl_pool_await(p->pool, blocks_left(p, part, unit), p->sizes.blocks - at->index);
        multiply_unit(p, at, &s, part, unit, own);
        atomic_fetch_sub_explicit(blocks_left(p, part, unit), 1, memory_order_release);
    }
}

/* ---- All blocks of B ------------------------------------------------------------------------- */

static block block_at(const product *p, int index, int64_t column, int64_t l)
{
    return (block){ .index = index,
                    .column = column,
                    .columns = sl_least(p->g->n - column, p->sizes.columns),
                    .l = l,
                    .k = sl_least(p->g->k - l, sl_product_block_k(p->g, p->tile)) };
}

/* The block after: the next one along the sum, then the next columns. There are `blocks`. */
static block next_block(const product *p, const block *at)
{
    bool ends = at->l + at->k == p->g->k;
    return block_at(p, at->index + 1, ends ? at->column + at->columns : at->column, ends ? 0 : at->l + at->k);
}

/* In each block first the thread's own share, then what is left of the others'. */
static void run_part(void *context, int part, int parts)
{
    const product *p = context;
    held own = nothing_held(p, part);
    sl_tile_begin(p->tile);
    for (block at = block_at(p, 0, 0, 0); at.index < p->sizes.blocks; at = next_block(p, &at)) {
        for (int i = 0; i < parts; i++)
            multiply_share(p, &at, (part + i) % parts, &own);
    }
    sl_tile_end(p->tile);
}

/* pool: NULL for the calling thread alone. */
static void run(sl_pool *pool, int parts, const sl_simd *simd, const sl_gemm *g, void *scratch)
{
    const sl_tile *tile = tile_of(g);
    product p = { .pool = pool,
                  .simd = simd,
                  .g = g,
                  .tile = tile,
                  .sizes = sl_product_sizes_of(g, tile, parts),
                  .parts = parts,
                  .as_it_lies = sl_product_lies_well(g, tile) && (uintptr_t)g->a.data % LINE == 0,
                  .own = scratch };
    char *sums = p.own + (size_t)parts * (p.sizes.a_bytes + p.sizes.b_bytes);
    p.sums = p.sizes.sums_bytes ? (float *)(void *)sums : NULL;
    p.taken = (sl_shared_count *)(void *)(sums + p.sizes.sums_bytes);
    p.left = (atomic_int *)(void *)((char *)p.taken + p.sizes.taken_bytes);
    for (int i = 0; i < p.sizes.blocks * parts; i++)
        atomic_init(&p.taken[i].value, 0);
    for (int64_t i = 0; i < parts * p.sizes.units; i++)
        atomic_init(&p.left[i], p.sizes.blocks);
    if (pool)
        sl_pool_run(pool, parts, run_part, &p);
    else
        run_part(&p, 0, 1);
}

/* ---- B packed beforehand --------------------------------------------------------------------- */

size_t sl_product_packed_bytes(const sl_gemm *g)
{
    const sl_tile *tile = tile_of(g);
    return (size_t)sl_round_up_to(sl_round_up_to(g->n, tile->columns) * sl_round_up_to(g->k, tile->depth) * tile->size,
                                  SL_DEVICE_ALIGNMENT);
}

static void pack_all_part(void *context, int part, int parts)
{
    const product *p = context;
    for (int64_t l = 0; l < p->g->k; l += sl_product_block_k(p->g, p->tile)) {
        const block at = { .columns = p->g->n, .l = l, .k = sl_least(p->g->k - l, sl_product_block_k(p->g, p->tile)) };
        packed_columns b = packed_before(p, &at);
        int64_t count;
        sl_chunk_range(b.end, parts, part, &b.first, &count);
        b.end = b.first + count;
        b.data += b.first * panel_bytes(p, &at, p->tile->columns);
        pack_b(p, &at, &b);
    }
}

void sl_product_pack(sl_pool *pool, const sl_gemm *g, void *to)
{
    sl_gemm packed = *g;
    packed.packed_b = to;
    product p = { .g = &packed, .tile = tile_of(g) };
    sl_pool_run(pool, sl_pool_threads(pool), pack_all_part, &p);
}

/* ---- The product ----------------------------------------------------------------------------- */

/* Nothing to sum up: C is the bias, or what it was. */
static void put_nothing(const sl_simd *simd, const sl_gemm *g)
{
    enum { WIDTH = 64 };
    static const float zeros[WIDTH];
    for (int64_t column = 0; column < g->n; column += WIDTH) {
        sl_tile_result result = { .sums = zeros,
                                  .rows = g->m,
                                  .columns = sl_least(g->n - column, WIDTH),
                                  .bias = g->bias ? g->bias + column : NULL,
                                  .c = (char *)g->c + column * (int64_t)sl_dtype_size(g->c_dtype),
                                  .dtype = g->c_dtype,
                                  .c_row = g->c_row,
                                  .add = g->add };
        simd->put_tile(&result);
    }
}

void sl_product_run(sl_pool *pool, int parts, const sl_simd *simd, const sl_gemm *g, void *scratch)
{
    if (g->m == 0 || g->n == 0)
        return;
    if (g->k == 0)
        put_nothing(simd, g);
    else
        run(pool, parts, simd, g, scratch);
}

/* A thread gets at least about 4 million multiplications. */
int sl_product_parts(const sl_cpu *cpu, const sl_gemm *g)
{
    double work = (double)g->m * (double)g->n * (double)g->k / 2e6;
    int threads = sl_pool_threads(cpu->pool);
    return work < 1 ? 1 : work < threads ? (int)work : threads;
}
