#include "kernel/cpu/product_sizes.h"

/* Columns of B and rows of A that are packed at once, by one thread and by each of several. A block of A stays in the
 * second-level cache. */
enum { BLOCK_COLUMNS = 2304, OWN_COLUMNS = 768, BLOCK_ROWS = 240, BLOCK_BYTES = 800 << 10 };

/* Columns of C that a thread takes at once, in whole panels: long enough that taking them costs nothing, short enough that
 * nobody waits long for the last ones. */
enum { UNIT_COLUMNS = 96 };

int64_t sl_product_block_k(const sl_gemm *g, const sl_tile *tile)
{
    enum { UNIT = 32 };
    int64_t blocks = sl_divide_up(g->k, tile->block_k);
    return blocks > 1 ? sl_round_up_to(sl_divide_up(g->k, blocks), UNIT) : sl_round_up_to(g->k, tile->depth);
}

/* C is not f32 and there is more than one block along k: sums must not be rounded in between. */
static bool needs_sums(const sl_gemm *g, const sl_tile *tile)
{
    return g->c_dtype != SL_F32 && g->k > sl_product_block_k(g, tile);
}

/* Rows of A that are packed at once: they stay in the second-level cache. */
static int64_t block_rows(const sl_gemm *g, const sl_tile *tile)
{
    int64_t fitting = BLOCK_BYTES / (sl_product_block_k(g, tile) * tile->size) / tile->rows * tile->rows;
    return sl_least(sl_round_up_to(sl_least(g->m, BLOCK_ROWS), tile->rows), fitting);
}

/* Panels of A and of B in all, and how many of each are packed at once. */
typedef struct panel_counts {
    int64_t a, b, block_a, block_b;
} panel_counts;

bool sl_product_lies_well(const sl_gemm *g, const sl_tile *tile)
{
    int64_t row_bytes = g->a.row * tile->size;
    return tile->multiply_rows && g->a.column == 1 && (int64_t)sl_dtype_size(g->a.dtype) == tile->size &&
           g->k % tile->depth == 0 && row_bytes % SL_PRODUCT_LINE == 0 && row_bytes % tile->crowded != 0;
}

/* What the slowest thread does for each l, in multiply-adds: it multiplies, packs panels of B, and packs panels of A for
 * each block of B. Reading A as it lies takes about half as long. */
static double grid_cost(const sl_tile *tile, sl_product_grid cut, const panel_counts *all, bool as_it_lies)
{
    int64_t a = sl_divide_up(all->a, cut.rows), b = sl_divide_up(all->b, cut.columns);
    double packed_rows = (double)(a * sl_divide_up(b, all->block_b) * tile->rows) * (as_it_lies ? 0.5 : 1);
    return (double)(a * b * tile->rows * tile->columns) +
           tile->pack_cost * tile->size * (packed_rows + (double)(b * tile->columns));
}

static sl_product_grid choose_grid(const sl_tile *tile, const panel_counts *all, bool as_it_lies, int threads)
{
    sl_product_grid best = { 1, 1 };
    for (int rows = threads; rows >= 1; rows--) {
        sl_product_grid cut = { .rows = rows, .columns = threads / rows };
        if (grid_cost(tile, cut, all, as_it_lies) < grid_cost(tile, best, all, as_it_lies))
            best = cut;
    }
    return best;
}

/* Columns of a block of B, in whole panels: all blocks have about as many. */
static int64_t block_columns(const sl_gemm *g, const sl_tile *tile, const panel_counts *all, sl_product_grid cut)
{
    int64_t most = cut.columns * all->block_b;
    if (needs_sums(g, tile))
        most = sl_least(most, sl_divide_up(BLOCK_COLUMNS, tile->columns));
    return sl_divide_up(all->b, sl_divide_up(all->b, most)) * tile->columns;
}

sl_product_sizes sl_product_sizes_of(const sl_gemm *g, const sl_tile *tile, int parts)
{
    int64_t k = sl_product_block_k(g, tile);
    sl_product_sizes s = { .rows = block_rows(g, tile), .unit_panels = sl_divide_up(UNIT_COLUMNS, tile->columns) };
    const panel_counts all = { .a = sl_divide_up(g->m, tile->rows),
                               .b = sl_divide_up(g->n, tile->columns),
                               .block_a = s.rows / tile->rows,
                               .block_b = sl_divide_up(parts > 1 ? OWN_COLUMNS : BLOCK_COLUMNS, tile->columns) };
    s.grid = choose_grid(tile, &all, sl_product_lies_well(g, tile), parts);
    s.columns = block_columns(g, tile, &all, s.grid);
    s.blocks = (int)(sl_divide_up(g->n, s.columns) * sl_divide_up(g->k, k));
    int64_t share = sl_divide_up(s.columns / tile->columns, s.grid.columns);
    s.units = sl_divide_up(sl_divide_up(all.a, s.grid.rows), all.block_a) * sl_divide_up(share, s.unit_panels);
    s.b_bytes = (size_t)sl_round_up_to(share * tile->columns * k * tile->size, SL_PRODUCT_LINE);
    s.a_bytes = (size_t)sl_round_up_to(s.rows * k * tile->size, SL_PRODUCT_LINE);
    s.sums_bytes =
        needs_sums(g, tile) ? (size_t)sl_round_up_to(all.a * tile->rows * s.columns * 4, SL_PRODUCT_LINE) : 0;
    s.taken_bytes = (size_t)s.blocks * (size_t)parts * sizeof(sl_shared_count);
    s.left_bytes = (size_t)sl_round_up_to((int64_t)parts * s.units * (int64_t)sizeof(atomic_int), SL_PRODUCT_LINE);
    s.total_bytes = (size_t)parts * (s.a_bytes + s.b_bytes) + s.sums_bytes + s.taken_bytes + s.left_bytes;
    return s;
}
