/* Our own matrix product. Blocks of A and B are packed into panels and multiplied a register tile at a time. Threads pack
 * a block of B together, unless it was packed before; then each packs rows of A and multiplies a part of C of its own,
 * unit by unit, and helps others when it is done. An element of C is added up in the same order whoever does it, so the
 * number of threads changes no bit. */
#include "kernel/cpu/gemm.h"

#include "kernel/cpu/isa.h"

#include <stdatomic.h>
#include <string.h>

/* Columns of B and rows of A that are packed at once. A block of A, of up to 720 KB, stays in the second-level cache;
 * that of B is shared by the threads. */
enum { BLOCK_COLUMNS = 2304, BLOCK_ROWS = 240, LARGEST_TILE = 32 * 32 };

/* Panels of B that a thread takes at once. */
enum { GROUP_PANELS = 4 };

static int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
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

/* How far a thread's share of C is; on a cache line of its own, since others help. */
typedef struct cursor {
    _Alignas(64) atomic_int next; /* unit that nobody has taken */
} cursor;

typedef struct sizes {
    int64_t columns, rows;          /* of a block */
    size_t b_bytes, a_bytes;        /* of a packed block */
    size_t part_bytes;              /* all that a thread needs */
    size_t sums_bytes, total_bytes; /* all of C's block in f32, if it needs that; everything for some threads */
} sizes;

/* C is not f32 and there is more than one block along k: sums must not be rounded in between. */
static bool needs_sums(const sl_gemm *g, const sl_tile *tile)
{
    return g->c_dtype != SL_F32 && g->k > tile->block_k;
}

static sizes sizes_of(const sl_gemm *g, const sl_tile *tile, int parts)
{
    int64_t blocks = (g->n + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS, k = round_up(least(g->k, tile->block_k), tile->depth);
    sizes s = { .columns = round_up((g->n + blocks - 1) / blocks, tile->columns),
                .rows = round_up(least(g->m, BLOCK_ROWS), tile->rows) };
    s.b_bytes = (size_t)round_up(s.columns * k * tile->size, 64);
    s.a_bytes = (size_t)round_up(s.rows * k * tile->size, 64);
    s.sums_bytes = needs_sums(g, tile) ? (size_t)round_up(round_up(g->m, tile->rows) * s.columns * 4, 64) : 0;
    s.part_bytes = sizeof(cursor) + s.a_bytes;
    s.total_bytes = s.b_bytes + s.sums_bytes + (size_t)parts * s.part_bytes;
    return s;
}

size_t sl_product_scratch(const sl_gemm *g, int parts)
{
    return g->m == 0 || g->n == 0 || g->k == 0 ? 0 : sizes_of(g, tile_of(g), parts).total_bytes;
}

/* ---- Shares of threads ----------------------------------------------------------------------- */

/* C cut into rows x columns parts, one a thread; threads may be left over. */
typedef struct grid {
    int rows, columns;
} grid;

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
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

/* ---- One block of B -------------------------------------------------------------------------- */

typedef struct product {
    const sl_simd *simd;
    const sl_gemm *g;
    const sl_tile *tile;
    sizes sizes;
    grid grid;
    const char *b;           /* the block of B, packed */
    atomic_int *next_panel;  /* of the block of B: not packed yet, nor taken */
    char *parts;             /* part_bytes of each thread: cursor, block of A */
    float *sums;             /* NULL if C takes the sums itself */
    int64_t column, columns; /* the block of B: columns of C ... */
    int64_t l, k;            /* ... and the run along the sum */
} product;

static int64_t panel_bytes(const product *p, int width)
{
    return width * round_up(p->k, p->tile->depth) * p->tile->size;
}

static sl_factor factor_at(const sl_factor *factor, int64_t i, int64_t l)
{
    sl_factor moved = *factor;
    int64_t offset = i * factor->row + l * factor->column;
    moved.data = (const char *)factor->data + offset * (int64_t)sl_dtype_size(factor->dtype);
    return moved;
}

/* Panels first..first + count of the block of B. */
static void pack_b(const product *p, int64_t first, int64_t count, char *to)
{
    const sl_tile *tile = p->tile;
    for (int64_t i = first; i < first + count; i++) {
        int64_t column = i * tile->columns;
        sl_factor from = factor_at(&p->g->b, p->column + column, p->l);
        tile->pack_b(&from, least(p->columns - column, tile->columns), p->k, to + i * panel_bytes(p, tile->columns));
    }
}

static void pack_a(const product *p, int64_t row, int64_t rows, char *to)
{
    for (int64_t i = 0; i < rows; i += p->tile->rows, to += panel_bytes(p, p->tile->rows)) {
        sl_factor from = factor_at(&p->g->a, row + i, p->l);
        p->tile->pack_a(&from, least(rows - i, p->tile->rows), p->k, to);
    }
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
    p->simd->put_tile(&result);
}

/* One tile of C at `row` and column b_column of the block gets the products of this block. */
static void multiply_tile(const product *p, const char *a, const char *b, int64_t row, int64_t b_column,
                          const char *ahead)
{
    const sl_gemm *g = p->g;
    const sl_tile *tile = p->tile;
    int64_t column = p->column + b_column;
    bool first = p->l == 0, last = p->l + p->k == g->k;
    bool whole = row + tile->rows <= g->m && column + tile->columns <= g->n;
    if (p->sums) {
        float *sums = p->sums + row * p->sizes.columns + b_column;
        tile->multiply(p->k, a, b, sums, p->sizes.columns, !first, ahead);
        if (last)
            finish(p, sums, p->sizes.columns, row, column, true);
    } else if (whole && g->c_dtype == SL_F32 && !(first && g->bias)) {
        float *c = (float *)g->c + row * g->c_row + column;
        tile->multiply(p->k, a, b, c, g->c_row, g->add || !first, ahead);
    } else {
        _Alignas(64) float own[LARGEST_TILE];
        tile->multiply(p->k, a, b, own, tile->columns, false, ahead);
        finish(p, own, tile->columns, row, column, first);
    }
}

/* Rows row..row+rows of C, which are packed at a, against panels begin..end of B. Meanwhile the panel of B behind each
 * comes closer. */
static void multiply_group(const product *p, int64_t row, int64_t rows, int64_t begin, int64_t end, const char *a)
{
    const sl_tile *tile = p->tile;
    int64_t a_bytes = panel_bytes(p, tile->rows), b_bytes = panel_bytes(p, tile->columns);
    int64_t piece = 16 * p->k, panels = divide_up(p->columns, tile->columns);
    for (int64_t i = begin; i < end; i++) {
        const char *b = p->b + i * b_bytes;
        for (int64_t n = 0; n * tile->rows < rows; n++) {
            bool fetch = i + 1 < panels && (n + 1) * piece <= b_bytes;
            multiply_tile(p, a + n * a_bytes, b, row + n * tile->rows, i * tile->columns,
                          fetch ? b + b_bytes + n * piece : NULL);
        }
    }
}

/* A thread's share of C in this block of B: rows, and panels first..end of B. Its columns are the same in every block. It
 * is done in units: the rows of one block of A, and a group of panels. */
typedef struct share {
    int64_t row, rows, first, end;
    int groups, units;
} share;

static share share_of(const product *p, int part)
{
    const sl_tile *tile = p->tile;
    int64_t start, length, first, count, b_panels = divide_up(p->columns, tile->columns);
    share s = { .units = 0 };
    if (part >= p->grid.rows * p->grid.columns)
        return s;
    sl_chunk_range(divide_up(p->g->m, tile->rows), p->grid.rows, part / p->grid.columns, &start, &length);
    sl_chunk_range(p->sizes.columns / tile->columns, p->grid.columns, part % p->grid.columns, &first, &count);
    s.row = start * tile->rows;
    s.rows = least(p->g->m - s.row, length * tile->rows);
    s.first = first;
    s.end = least(first + count, b_panels);
    if (s.rows > 0 && s.end > s.first) {
        s.groups = (int)divide_up(s.end - s.first, GROUP_PANELS);
        s.units = s.groups * (int)divide_up(s.rows, p->sizes.rows);
    }
    return s;
}

static char *part_memory(const product *p, int part)
{
    return p->parts + (size_t)part * p->sizes.part_bytes;
}

static atomic_int *next_unit(const product *p, int part)
{
    return &((cursor *)(void *)part_memory(p, part))->next;
}

/* The units of the share that nobody has taken. `a` is the memory of the thread that takes them, *packed the row of C at
 * which the block of A begins that it holds. */
static void multiply_share(const product *p, int part, char *a, int64_t *packed)
{
    const share s = share_of(p, part);
    atomic_int *next = next_unit(p, part);
    while (atomic_load_explicit(next, memory_order_relaxed) < s.units) {
        int unit = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (unit >= s.units)
            return;
        int64_t row = s.row + unit / s.groups * p->sizes.rows, rows = least(s.row + s.rows - row, p->sizes.rows);
        int64_t begin = s.first + (int64_t)(unit % s.groups) * GROUP_PANELS;
        if (*packed != row)
            pack_a(p, row, rows, a);
        *packed = row;
        multiply_group(p, row, rows, begin, least(begin + GROUP_PANELS, s.end), a);
    }
}

/* ---- All blocks of B ------------------------------------------------------------------------- */

/* Goes to the first block of B, then to the next; false past the last. A block's panels lie one after the other, and so
 * do blocks that are packed beforehand. */
static bool first_block(product *p)
{
    p->column = p->l = 0;
    p->columns = least(p->g->n, p->sizes.columns);
    p->k = least(p->g->k, p->tile->block_k);
    return true;
}

static bool next_block(product *p)
{
    p->l += p->k;
    if (p->l == p->g->k) {
        p->l = 0;
        p->column += p->columns;
    }
    p->columns = least(p->g->n - p->column, p->sizes.columns);
    p->k = least(p->g->k - p->l, p->tile->block_k);
    return p->columns > 0;
}

static int64_t block_bytes(const product *p)
{
    return divide_up(p->columns, p->tile->columns) * panel_bytes(p, p->tile->columns);
}

static void run_task(sl_pool *pool, int parts, sl_pool_task task, product *p)
{
    if (pool)
        sl_pool_run(pool, parts, task, p);
    else
        task(p, 0, 1);
}

/* First the thread's own share, then what is left of the others'. */
static void multiply_part(void *context, int part, int parts)
{
    const product *p = context;
    char *a = part_memory(p, part) + sizeof(cursor);
    int64_t packed = -1;
    sl_tile_begin(p->tile);
    for (int i = 0; i < parts; i++)
        multiply_share(p, (part + i) % parts, a, &packed);
    sl_tile_end(p->tile);
}

static void pack_b_part(void *context, int part, int parts)
{
    const product *p = context;
    int64_t panels = divide_up(p->columns, p->tile->columns);
    (void)part;
    (void)parts;
    for (int64_t i = atomic_fetch_add(p->next_panel, 1); i < panels; i = atomic_fetch_add(p->next_panel, 1))
        pack_b(p, i, 1, (char *)(uintptr_t)p->b);
}

/* pool: NULL for the calling thread alone. */
static void run(sl_pool *pool, int parts, const sl_simd *simd, const sl_gemm *g, void *scratch)
{
    const sl_tile *tile = tile_of(g);
    atomic_int next_panel;
    product p = { .simd = simd, .g = g, .tile = tile, .sizes = sizes_of(g, tile, parts), .next_panel = &next_panel };
    char *sums = (char *)scratch + p.sizes.b_bytes;
    p.grid =
        choose_grid(divide_up(g->m, tile->rows), p.sizes.columns / tile->columns, p.sizes.rows / tile->rows, parts);
    p.sums = p.sizes.sums_bytes ? (float *)(void *)sums : NULL;
    p.parts = sums + p.sizes.sums_bytes;
    p.b = g->packed_b ? g->packed_b : scratch;
    for (bool more = first_block(&p); more; more = next_block(&p)) {
        atomic_init(&next_panel, 0);
        for (int i = 0; i < parts; i++)
            atomic_init(next_unit(&p, i), 0);
        if (!g->packed_b)
            run_task(pool, parts, pack_b_part, &p);
        run_task(pool, parts, multiply_part, &p);
        if (g->packed_b)
            p.b += block_bytes(&p);
    }
}

/* ---- B packed beforehand --------------------------------------------------------------------- */

size_t sl_product_packed_bytes(const sl_gemm *g)
{
    const sl_tile *tile = tile_of(g);
    if (g->n == 0 || g->k == 0)
        return 0;
    product p = { .g = g, .tile = tile, .sizes = sizes_of(g, tile, 1) };
    int64_t bytes = 0;
    for (bool more = first_block(&p); more; more = next_block(&p))
        bytes += block_bytes(&p);
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
    product p = job->product;
    char *to = job->to;
    for (bool more = first_block(&p); more; more = next_block(&p)) {
        int64_t first, count;
        sl_chunk_range(divide_up(p.columns, p.tile->columns), parts, part, &first, &count);
        pack_b(&p, first, count, to);
        to += block_bytes(&p);
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
