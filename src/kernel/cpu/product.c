/* Our own matrix product. Blocks of A and B are packed into panels and multiplied a register tile at a time. Threads pack
 * a block of B together, unless it was packed before; then each packs rows of A and multiplies a part of C of its own,
 * unit by unit, and helps others when it is done. While the last units of a block are multiplied, those who are done pack
 * the next block. An element of C is added up in the same order whoever does it, so the number of threads changes no
 * bit. */
#include "kernel/cpu/gemm.h"

#include "kernel/cpu/isa.h"

#include <stdatomic.h>
#include <string.h>

/* Columns of B and rows of A that are packed at once. A block of A stays in the second-level cache; that of B is shared by
 * the threads. */
enum { BLOCK_COLUMNS = 2304, BLOCK_ROWS = 240, BLOCK_BYTES = 800 << 10, LARGEST_TILE = 32 * 32, PIECED_TILES = 8 };

/* Columns of C that a thread takes at once, in whole panels: long enough that taking them costs nothing, short enough that
 * nobody waits long for the last ones. */
enum { UNIT_COLUMNS = 96 };

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

static int64_t round_up(int64_t value, int64_t unit)
{
    return divide_up(value, unit) * unit;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static const sl_tile *tile_of(const sl_gemm *g)
{
    return sl_isa_tile(g->a.dtype == SL_BF16 && g->b.dtype == SL_BF16);
}

/* A number that several threads change, on a cache line of its own. */
typedef struct shared_count {
    _Alignas(64) atomic_int value;
} shared_count;

/* How far a block of B is. After it lies a count for each thread's share of C: the unit that nobody has taken. */
typedef struct block_progress {
    shared_count next_panels; /* that nobody has taken to pack */
    shared_count unpacked;    /* panels */
    shared_count unfinished;  /* units of C */
} block_progress;

/* C cut into rows x columns parts, one a thread; threads may be left over. */
typedef struct grid {
    int rows, columns;
} grid;

typedef struct sizes {
    int64_t columns, rows;   /* of a block */
    int blocks, buffers;     /* blocks of B; how many of them have room at once */
    grid grid;               /* of the threads' shares */
    int64_t unit_panels;     /* of B that belong to a unit of C */
    int64_t units;           /* of the largest share */
    size_t b_bytes, a_bytes; /* of a packed block; of A for each thread */
    size_t progress_bytes;   /* of a block */
    size_t sums_bytes;       /* all of C's block in f32, if it needs that */
    size_t left_bytes;       /* of the units' counts */
    size_t total_bytes;      /* everything for some threads */
} sizes;

/* The run of l that is packed at once: blocks along k are as few as the tile takes, and about alike. */
static int64_t block_k(const sl_gemm *g, const sl_tile *tile)
{
    enum { UNIT = 32 };
    int64_t blocks = divide_up(g->k, tile->block_k);
    return blocks > 1 ? round_up(divide_up(g->k, blocks), UNIT) : round_up(g->k, tile->depth);
}

/* C is not f32 and there is more than one block along k: sums must not be rounded in between. */
static bool needs_sums(const sl_gemm *g, const sl_tile *tile)
{
    return g->c_dtype != SL_F32 && g->k > block_k(g, tile);
}

/* Rows of A that are packed at once: they stay in the second-level cache. */
static int64_t block_rows(const sl_gemm *g, const sl_tile *tile)
{
    int64_t fitting = BLOCK_BYTES / (block_k(g, tile) * tile->size) / tile->rows * tile->rows;
    return least(round_up(least(g->m, BLOCK_ROWS), tile->rows), fitting);
}

/* What the slowest thread does, in multiplications of two panels: packing a panel of A takes as long as about a quarter
 * of one, and reading a panel of B that another thread packed, for each block of A, as long as half of one. */
static double grid_cost(grid cut, int64_t a_panels, int64_t b_panels, int64_t block_panels)
{
    int64_t a = divide_up(a_panels, cut.rows), b = divide_up(b_panels, cut.columns);
    return (double)(a * b) + 0.25 * (double)a + 0.5 * (double)(b * divide_up(a, block_panels));
}

static grid choose_grid(int64_t a_panels, int64_t b_panels, int64_t block_panels, int threads)
{
    grid best = { 1, 1 };
    for (int rows = threads; rows >= 1; rows--) {
        grid cut = { .rows = rows, .columns = threads / rows };
        if (grid_cost(cut, a_panels, b_panels, block_panels) < grid_cost(best, a_panels, b_panels, block_panels))
            best = cut;
    }
    return best;
}

static sizes sizes_of(const sl_gemm *g, const sl_tile *tile, int parts)
{
    int64_t blocks = divide_up(g->n, BLOCK_COLUMNS), k = block_k(g, tile);
    sizes s = { .columns = round_up(divide_up(g->n, blocks), tile->columns), .rows = block_rows(g, tile) };
    s.blocks = (int)(divide_up(g->n, s.columns) * divide_up(g->k, k));
    s.buffers = parts > 1 && s.blocks > 1 ? 2 : 1;
    s.b_bytes = (size_t)round_up(s.columns * k * tile->size, 64);
    s.a_bytes = (size_t)round_up(s.rows * k * tile->size, 64);
    s.sums_bytes = needs_sums(g, tile) ? (size_t)round_up(round_up(g->m, tile->rows) * s.columns * 4, 64) : 0;
    s.progress_bytes = sizeof(block_progress) + (size_t)parts * sizeof(shared_count);
    int64_t a_panels = divide_up(g->m, tile->rows), b_panels = s.columns / tile->columns;
    s.grid = choose_grid(a_panels, b_panels, s.rows / tile->rows, parts);
    s.unit_panels = divide_up(UNIT_COLUMNS, tile->columns);
    s.units = divide_up(divide_up(a_panels, s.grid.rows) * tile->rows, s.rows) *
              divide_up(divide_up(b_panels, s.grid.columns), s.unit_panels);
    s.left_bytes = (size_t)round_up((int64_t)parts * s.units * (int64_t)sizeof(atomic_int), 64);
    s.total_bytes = (size_t)s.buffers * s.b_bytes + s.sums_bytes + (size_t)parts * s.a_bytes +
                    (size_t)s.blocks * s.progress_bytes + s.left_bytes;
    return s;
}

size_t sl_product_scratch(const sl_gemm *g, int parts)
{
    return g->m == 0 || g->n == 0 || g->k == 0 ? 0 : sizes_of(g, tile_of(g), parts).total_bytes;
}

/* ---- One block of B -------------------------------------------------------------------------- */

typedef struct product {
    sl_pool *pool; /* NULL: the calling thread alone */
    const sl_simd *simd;
    const sl_gemm *g;
    const sl_tile *tile;
    sizes sizes;
    int parts;
    bool as_it_lies;  /* A is multiplied without being packed, but for a last panel that is not whole */
    char *b;          /* room for packed blocks of B; NULL if nothing is multiplied */
    float *sums;      /* NULL if C takes the sums itself */
    char *a;          /* a_bytes of each thread: its block of A */
    char *progress;   /* of each block */
    atomic_int *left; /* (parts, units) blocks of B that are still to be added to a unit of C */
} product;

/* A block of B. */
typedef struct block {
    int index;
    int64_t column, columns; /* columns of C ... */
    int64_t l, k;            /* ... and the run along the sum */
    const char *b;           /* packed */
} block;

static int64_t panel_bytes(const product *p, const block *at, int width)
{
    return width * round_up(at->k, p->tile->depth) * p->tile->size;
}

static int64_t block_panels(const product *p, const block *at)
{
    return divide_up(at->columns, p->tile->columns);
}

static sl_factor factor_at(const sl_factor *factor, int64_t i, int64_t l)
{
    sl_factor moved = *factor;
    int64_t offset = i * factor->row + l * factor->column;
    moved.data = (const char *)factor->data + offset * (int64_t)sl_dtype_size(factor->dtype);
    return moved;
}

/* Rows of A that begin a line each and do not crowd into few lines of the first-level cache. */
static bool takes_as_it_lies(const sl_gemm *g, const sl_tile *tile)
{
    enum { LINE = 64, CROWDED = 16 };
    int64_t row_bytes = g->a.row * tile->size;
    return tile->multiply_rows && g->a.column == 1 && g->k % tile->depth == 0 && (uintptr_t)g->a.data % LINE == 0 &&
           row_bytes % LINE == 0 && row_bytes / LINE % CROWDED != 0;
}

/* Panels of `width` rows of A or columns of B from first.. of `count`, k elements of each. If they lie side by side, all
 * panels get a short run of l before the next: a panel alone reads parts of lines, and lines that are gone when its
 * neighbor needs those beside them. */
static void pack_panels(const sl_factor *from, void (*pack)(const sl_factor *, int64_t, int64_t, void *), int64_t width,
                        int64_t first, int64_t count, int64_t k, int64_t bytes, int64_t size, char *to)
{
    enum { RUN = 64 }; /* a multiple of every tile's depth */
    int64_t run = from->row == 1 && from->column != 1 ? RUN : k;
    for (int64_t l = 0; l < k; l += run) {
        for (int64_t i = first; i < count; i += width) {
            sl_factor part = factor_at(from, i, l);
            pack(&part, least(count - i, width), least(k - l, run), to + i / width * bytes + l * width * size);
        }
    }
}

/* Panels begin..end of the block of B, which gets its room at `to`. */
static void pack_b(const product *p, const block *at, int64_t begin, int64_t end, char *to)
{
    const sl_tile *tile = p->tile;
    const sl_factor from = factor_at(&p->g->b, at->column, at->l);
    pack_panels(&from, tile->pack_b, tile->columns, begin * tile->columns, least(at->columns, end * tile->columns),
                at->k, panel_bytes(p, at, tile->columns), tile->size, to);
}

static void pack_a(const product *p, const block *at, int64_t row, int64_t rows, char *to)
{
    const sl_tile *tile = p->tile;
    const sl_factor from = factor_at(&p->g->a, row, at->l);
    pack_panels(&from, tile->pack_a, tile->rows, p->as_it_lies ? rows / tile->rows * tile->rows : 0, rows, at->k,
                panel_bytes(p, at, tile->rows), tile->size, to);
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
                              .rows = least(g->m - row, p->tile->rows),
                              .columns = least(g->n - column, p->tile->columns),
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
    enum { LINE = 64 };
    int64_t size = (int64_t)sl_dtype_size(dtype), offset = (int64_t)((uintptr_t)data % LINE);
    return (sl_tile_lines){ .at = (const char *)data - offset,
                            .step = row * size,
                            .rows = (int)rows,
                            .lines = (int)divide_up(offset + columns * size, LINE) };
}

/* What the tile of C at `row` and column b_column of the block adds to and writes. */
static void fetch_sums(const product *p, const block *at, int64_t row, int64_t b_column, sl_tile_fetch *fetch)
{
    const sl_gemm *g = p->g;
    int64_t column = at->column + b_column;
    int64_t rows = least(g->m - row, p->tile->rows), columns = least(g->n - column, p->tile->columns);
    if (p->sums)
        fetch->writes[0] =
            lines_of(p->sums + row * p->sizes.columns + b_column, p->sizes.columns, rows, columns, SL_F32);
    if (!p->sums || at->l + at->k == g->k) {
        const char *c = (const char *)g->c + (row * g->c_row + column) * (int64_t)sl_dtype_size(g->c_dtype);
        fetch->writes[1] = lines_of(c, g->c_row, rows, columns, g->c_dtype);
    }
}

/* The tile behind that of rows n and panel i. */
static void fetch_next(const product *p, const block *at, int64_t row, int64_t tiles, int64_t n, int64_t i,
                       sl_tile_fetch *fetch)
{
    if (n + 1 < tiles)
        fetch_sums(p, at, row + (n + 1) * p->tile->rows, i * p->tile->columns, fetch);
    else if (i + 1 < block_panels(p, at))
        fetch_sums(p, at, row, (i + 1) * p->tile->columns, fetch);
}

/* Rows row..row+rows of C, which are packed at a, against panels begin..end of B. Meanwhile the panel of B behind each
 * comes closer, and so does the next tile of C. */
static void multiply_panels(const product *p, const block *at, int64_t row, int64_t rows, int64_t begin, int64_t end,
                            const char *a)
{
    _Alignas(64) float own[LARGEST_TILE];
    const sl_tile *tile = p->tile;
    int64_t a_bytes = panel_bytes(p, at, tile->rows), b_bytes = panel_bytes(p, at, tile->columns);
    int64_t piece = 16 * at->k, panels = block_panels(p, at), tiles = divide_up(rows, tile->rows);
    for (int64_t i = begin; i < end; i++) {
        const char *b = at->b + i * b_bytes;
        for (int64_t n = 0; n < tiles; n++) {
            bool fetches_b = i + 1 < panels && (n + 1) * piece <= b_bytes;
            sl_tile_fetch fetch = { .panel = fetches_b ? b + b_bytes + n * piece : NULL };
            fetch_next(p, at, row, tiles, n, i, &fetch);
            multiply_tile(p, at, a + n * a_bytes, b, row + n * tile->rows, i * tile->columns, own, &fetch);
        }
    }
}

/* Sums that are rounded in the end, of too many elements for a panel of B to stay in the first-level cache. */
static bool goes_in_pieces(const product *p, const block *at, int64_t tiles)
{
    return p->tile->piece_k > 0 && at->k > p->tile->piece_k && !p->sums && p->g->c_dtype != SL_F32 &&
           tiles <= PIECED_TILES;
}

/* The same with pieces of panels: all rows are multiplied by a piece of a panel of B, then by the next one. The bits are
 * those of whole panels. */
static void multiply_pieces(const product *p, const block *at, int64_t row, int64_t rows, int64_t begin, int64_t end,
                            const char *a)
{
    _Alignas(64) float own[PIECED_TILES][LARGEST_TILE];
    const sl_tile *tile = p->tile;
    int64_t a_bytes = panel_bytes(p, at, tile->rows), b_bytes = panel_bytes(p, at, tile->columns);
    int64_t tiles = divide_up(rows, tile->rows), pieces = divide_up(at->k, tile->piece_k);
    int64_t piece = round_up(divide_up(at->k, pieces), tile->depth);
    for (int64_t i = begin; i < end; i++) {
        const char *b = at->b + i * b_bytes, *ahead = b + b_bytes;
        for (int64_t l = 0; l < at->k; l += piece) {
            block part = *at;
            part.l = at->l + l;
            part.k = least(piece, at->k - l);
            bool last = l + part.k == at->k;
            for (int64_t n = 0; n < tiles; n++) {
                bool fetches_b = i + 1 < block_panels(p, at) && ahead + 16 * part.k <= b + 2 * b_bytes;
                sl_tile_fetch fetch = { .panel = fetches_b ? ahead : NULL };
                ahead += 16 * part.k;
                if (last)
                    fetch_next(p, at, row, tiles, n, i, &fetch);
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
    const grid cut = p->sizes.grid;
    int64_t start, length, count;
    share s = { .units = 0 };
    if (part >= cut.rows * cut.columns)
        return s;
    sl_chunk_range(divide_up(p->g->m, tile->rows), cut.rows, part / cut.columns, &start, &length);
    sl_chunk_range(p->sizes.columns / tile->columns, cut.columns, part % cut.columns, &s.first, &count);
    s.row = start * tile->rows;
    s.rows = least(p->g->m - s.row, length * tile->rows);
    s.end = s.first + count;
    s.units_a_row = (int)divide_up(count, p->sizes.unit_panels);
    s.units = s.rows > 0 ? s.units_a_row * (int)divide_up(s.rows, p->sizes.rows) : 0;
    return s;
}

static block_progress *progress_of(const product *p, int index)
{
    return (block_progress *)(void *)(p->progress + (size_t)index * p->sizes.progress_bytes);
}

static atomic_int *next_unit(const product *p, const block *at, int part)
{
    return &((shared_count *)(void *)(progress_of(p, at->index) + 1))[part].value;
}

/* Takes the next number below `end`; end if none is left. */
static int take(atomic_int *next, int end)
{
    if (atomic_load_explicit(next, memory_order_relaxed) >= end)
        return end;
    int taken = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return taken < end ? taken : end;
}

/* Waits for all panels of a block, or for all units. Blocks before the first count as done. */
static void await_packed(const product *p, const block *at)
{
    if (!p->g->packed_b)
        sl_pool_await(p->pool, &progress_of(p, at->index)->unpacked.value, 0);
}

static void await_finished(const product *p, int index)
{
    if (index >= 0)
        sl_pool_await(p->pool, &progress_of(p, index)->unfinished.value, 0);
}

static atomic_int *blocks_left(const product *p, int part, int unit)
{
    return p->left + part * p->sizes.units + unit;
}

/* The block of A that a thread has packed. */
typedef struct packed_rows {
    char *data;
    int64_t row, l; /* where it begins; row -1: none */
} packed_rows;

static void multiply_unit(const product *p, const block *at, const share *s, int unit, packed_rows *a)
{
    int64_t row = s->row + unit / s->units_a_row * p->sizes.rows, rows = least(s->row + s->rows - row, p->sizes.rows);
    int64_t begin = s->first + unit % s->units_a_row * p->sizes.unit_panels;
    int64_t end = least(least(begin + p->sizes.unit_panels, s->end), block_panels(p, at));
    if (begin >= end)
        return;
    if (a->row != row || a->l != at->l)
        pack_a(p, at, row, rows, a->data);
    a->row = row;
    a->l = at->l;
    bool pieces = goes_in_pieces(p, at, divide_up(rows, p->tile->rows));
    (pieces ? multiply_pieces : multiply_panels)(p, at, row, rows, begin, end, a->data);
}

/* The units of a part's share that nobody has taken. Another thread may still be adding the block before to a unit. */
static void multiply_share(const product *p, const block *at, int part, packed_rows *a)
{
    const share s = share_of(p, part);
    for (int unit = take(next_unit(p, at, part), s.units); unit < s.units;
         unit = take(next_unit(p, at, part), s.units)) {
        await_packed(p, at);
        if (at->index > 0)
            sl_pool_await(p->pool, blocks_left(p, part, unit), p->sizes.blocks - at->index);
        multiply_unit(p, at, &s, unit, a);
        atomic_fetch_sub_explicit(blocks_left(p, part, unit), 1, memory_order_release);
        atomic_fetch_sub_explicit(&progress_of(p, at->index)->unfinished.value, 1, memory_order_release);
    }
}

/* Panels of B that a thread packs together: fewer if there would be none for some of the threads. */
static int64_t panels_at_once(const product *p, int64_t panels)
{
    enum { MOST = 8 };
    int64_t some = p->parts > 1 ? panels / ((int64_t)2 * p->parts) : MOST;
    return some < 1 ? 1 : least(some, MOST);
}

/* The panels of a block of B that nobody has taken. Its room was that of a block before. */
static void pack_block(const product *p, const block *at)
{
    int64_t panels = block_panels(p, at), some = panels_at_once(p, panels);
    int takes = (int)divide_up(panels, some);
    block_progress *state = progress_of(p, at->index);
    for (int i = take(&state->next_panels.value, takes); i < takes; i = take(&state->next_panels.value, takes)) {
        int64_t begin = i * some, end = least(panels, begin + some);
        await_finished(p, at->index - p->sizes.buffers);
        pack_b(p, at, begin, end, (char *)(uintptr_t)at->b);
        atomic_fetch_sub_explicit(&state->unpacked.value, (int)(end - begin), memory_order_release);
    }
}

/* ---- All blocks of B ------------------------------------------------------------------------- */

static int64_t block_bytes(const product *p, const block *at)
{
    return block_panels(p, at) * panel_bytes(p, at, p->tile->columns);
}

static block block_at(const product *p, int index, int64_t column, int64_t l, const char *packed)
{
    const char *own = p->b ? p->b + (size_t)(index % p->sizes.buffers) * p->sizes.b_bytes : NULL;
    return (block){ .index = index,
                    .column = column,
                    .columns = least(p->g->n - column, p->sizes.columns),
                    .l = l,
                    .k = least(p->g->k - l, block_k(p->g, p->tile)),
                    .b = packed ? packed : own };
}

/* The first block, then the next, as long as index < blocks. Blocks that are packed beforehand lie one after the other. */
static block first_block(const product *p)
{
    return block_at(p, 0, 0, 0, p->g->packed_b);
}

static block next_block(const product *p, const block *at)
{
    bool ends = at->l + at->k == p->g->k;
    return block_at(p, at->index + 1, ends ? at->column + at->columns : at->column, ends ? 0 : at->l + at->k,
                    p->g->packed_b ? at->b + block_bytes(p, at) : NULL);
}

/* In each block first the thread's own share, then what is left of the others'. */
static void run_part(void *context, int part, int parts)
{
    const product *p = context;
    packed_rows a = { .data = p->a + (size_t)part * p->sizes.a_bytes, .row = -1 };
    sl_tile_begin(p->tile);
    for (block at = first_block(p); at.index < p->sizes.blocks; at = next_block(p, &at)) {
        if (!p->g->packed_b)
            pack_block(p, &at);
        for (int i = 0; i < parts; i++)
            multiply_share(p, &at, (part + i) % parts, &a);
    }
    sl_tile_end(p->tile);
}

static void init_progress(const product *p, const block *at)
{
    block_progress *state = progress_of(p, at->index);
    int units = 0;
    for (int i = 0; i < p->parts; i++) {
        units += share_of(p, i).units;
        atomic_init(next_unit(p, at, i), 0);
    }
    atomic_init(&state->next_panels.value, 0);
    atomic_init(&state->unpacked.value, (int)block_panels(p, at));
    atomic_init(&state->unfinished.value, units);
}

/* pool: NULL for the calling thread alone. */
static void run(sl_pool *pool, int parts, const sl_simd *simd, const sl_gemm *g, void *scratch)
{
    const sl_tile *tile = tile_of(g);
    product p = { .pool = pool,
                  .simd = simd,
                  .g = g,
                  .tile = tile,
                  .sizes = sizes_of(g, tile, parts),
                  .parts = parts,
                  .as_it_lies = takes_as_it_lies(g, tile),
                  .b = scratch };
    char *sums = p.b + (size_t)p.sizes.buffers * p.sizes.b_bytes;
    p.sums = p.sizes.sums_bytes ? (float *)(void *)sums : NULL;
    p.a = sums + p.sizes.sums_bytes;
    p.progress = p.a + (size_t)parts * p.sizes.a_bytes;
    p.left = (atomic_int *)(void *)(p.progress + (size_t)p.sizes.blocks * p.sizes.progress_bytes);
    for (int64_t i = 0; i < parts * p.sizes.units; i++)
        atomic_init(&p.left[i], p.sizes.blocks);
    for (block at = first_block(&p); at.index < p.sizes.blocks; at = next_block(&p, &at))
        init_progress(&p, &at);
    if (pool)
        sl_pool_run(pool, parts, run_part, &p);
    else
        run_part(&p, 0, 1);
}

/* ---- B packed beforehand --------------------------------------------------------------------- */

size_t sl_product_packed_bytes(const sl_gemm *g)
{
    const sl_tile *tile = tile_of(g);
    if (g->n == 0 || g->k == 0)
        return 0;
    product p = { .g = g, .tile = tile, .sizes = sizes_of(g, tile, 1) };
    int64_t bytes = 0;
    for (block at = first_block(&p); at.index < p.sizes.blocks; at = next_block(&p, &at))
        bytes += block_bytes(&p, &at);
    return (size_t)round_up(bytes, SL_DEVICE_ALIGNMENT);
}

/* Where the block of B that is packed goes. */
typedef struct packing {
    product product;
    char *to;
} packing;

static void pack_all_part(void *context, int part, int parts)
{
    const packing *job = context;
    const product *p = &job->product;
    char *to = job->to;
    for (block at = first_block(p); at.index < p->sizes.blocks; at = next_block(p, &at)) {
        int64_t first, count;
        sl_chunk_range(block_panels(p, &at), parts, part, &first, &count);
        pack_b(p, &at, first, first + count, to);
        to += block_bytes(p, &at);
    }
}

void sl_product_pack(sl_pool *pool, const sl_gemm *g, void *to)
{
    const sl_tile *tile = tile_of(g);
    packing job = { .product = { .g = g, .tile = tile, .sizes = sizes_of(g, tile, 1) }, .to = to };
    sl_pool_run(pool, sl_pool_threads(pool), pack_all_part, &job);
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
                                  .columns = least(g->n - column, WIDTH),
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
