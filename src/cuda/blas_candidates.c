/* Algorithms of cuBLASLt that a product may take: what its heuristics propose for the product, what they propose for
 * products like it, and these with other tiles. */
#include "cuda/blas_problem.h"

#include <stdio.h>
#include <string.h>

enum { PROPOSALS = 8 };

static sl_status propose(const cuda_blas *blas, const blas_problem *problem, size_t workspace,
                         cublasLtMatmulHeuristicResult_t found[PROPOSALS], int *count)
{
    sl_status status = SL_OK;
    cublasLtMatmulPreference_t preference = NULL;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* parts in the workspace, added in order */
    uint32_t alignment = problem->shape.aligned ? 16 : (uint32_t)sl_dtype_size((sl_dtype)problem->shape.dtype);
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES };
    SL_TRY(cuda_blas_check(cublasLtMatmulPreferenceCreate(&preference), "ask for algorithms"));
    SL_TRY(cuda_blas_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                                &workspace, sizeof workspace),
                           "ask for algorithms"));
    SL_TRY(cuda_blas_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                                &reduction, sizeof reduction),
                           "ask for algorithms"));
    for (int i = 0; i < 4; i++)
        SL_TRY(cuda_blas_check(
            cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment),
            "ask for algorithms"));
    if (cublasLtMatmulAlgoGetHeuristic(blas->handle, problem->description, problem->layouts[0], problem->layouts[1],
                                       problem->layouts[2], problem->layouts[2], preference, PROPOSALS, found,
                                       count) != CUBLAS_STATUS_SUCCESS)
        *count = 0; /* none: not an error */
done:
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

bool cuda_blas_is_sound(const cuda_blas *blas, const blas_problem *problem, const cublasLtMatmulAlgo_t *algorithm,
                        size_t bytes)
{
    cublasLtMatmulHeuristicResult_t result;
    uint32_t reduction = 0;
    size_t written = 0;
    return cublasLtMatmulAlgoCheck(blas->handle, problem->description, problem->layouts[0], problem->layouts[1],
                                   problem->layouts[2], problem->layouts[2], algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= bytes &&
           cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                sizeof reduction, &written) == CUBLAS_STATUS_SUCCESS &&
           (reduction == CUBLASLT_REDUCTION_SCHEME_NONE || reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

/* The same product with other numbers of rows and columns; only its sizes count. */
static blas_problem resized(const blas_problem *problem, int64_t m, int64_t n)
{
    blas_problem other = *problem;
    const int64_t k = problem->shape.k;
    const bool a = problem->shape.transpose_a, b = problem->shape.transpose_b;
    other.description = NULL;
    memset(other.layouts, 0, sizeof other.layouts);
    other.shape.m = m;
    other.shape.n = n;
    other.a = (blas_operand){ problem->a.data, a ? k : m, a ? m : k, a ? k : m, m * k };
    other.b = (blas_operand){ problem->b.data, b ? n : k, b ? k : n, b ? n : k, n * k };
    other.d = (blas_operand){ problem->d.data, m, n, m, m * n };
    return other;
}

static void add_candidate(const cublasLtMatmulAlgo_t *algorithm, blas_candidates *all)
{
    for (int i = 0; i < all->count; i++) {
        if (memcmp(&all->items[i].algorithm, algorithm, sizeof *algorithm) == 0)
            return;
    }
    if (all->count < BLAS_CANDIDATES)
        all->items[all->count++] = (blas_candidate){ .algorithm = *algorithm };
}

/* What heuristics propose for the problem. The first sets the bits of the others. */
static sl_status collect(const cuda_blas *blas, const blas_problem *problem, size_t bytes, blas_candidates *all)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    int count = 0;
    sl_status status = propose(blas, problem, bytes, found, &count);
    for (int i = 0; i < count && status == SL_OK; i++)
        add_candidate(&found[i].algo, all);
    return status;
}

/* What they propose for fewer rows and columns: other tiles, of which some fill the GPU better. */
static sl_status collect_more(const cuda_blas *blas, const blas_problem *problem, size_t bytes, blas_candidates *all)
{
    static const int64_t parts[] = { 1, 2, 4 };
    enum { PARTS = sizeof parts / sizeof *parts, SMALLEST = 512 };
    sl_status status = SL_OK;
    blas_problem other = { 0 };
    for (int i = 1; i < PARTS * PARTS; i++) {
        cublasLtMatmulHeuristicResult_t found[PROPOSALS];
        int count = 0;
        other = resized(problem, problem->shape.m / parts[i / PARTS], problem->shape.n / parts[i % PARTS]);
        if (other.shape.m < SMALLEST || other.shape.n < SMALLEST)
            continue;
        SL_TRY(cuda_blas_describe(&other));
        SL_TRY(propose(blas, &other, bytes, found, &count));
        for (int k = 0; k < count; k++) {
            if (cuda_blas_is_sound(blas, problem, &found[k].algo, bytes))
                add_candidate(&found[k].algo, all);
        }
        cuda_blas_forget(&other);
    }
done:
    cuda_blas_forget(&other);
    return status;
}

typedef struct blas_tile {
    uint32_t id;
    int32_t m, n;
} blas_tile;

/* Tiles that products may have: the first TRIED are tried besides those that heuristics like. */
enum { TRIED = 18 };
#define TILE(m, n)                                                                                                     \
    {                                                                                                                  \
        CUBLASLT_MATMUL_TILE_##m##x##n, m, n                                                                           \
    }
static const blas_tile tiles[] = {
    TILE(192, 192), TILE(256, 144), TILE(256, 136), TILE(128, 256), TILE(256, 128), TILE(192, 176), TILE(192, 168),
    TILE(128, 240), TILE(128, 232), TILE(128, 224), TILE(128, 192), TILE(192, 128), TILE(128, 176), TILE(176, 128),
    TILE(128, 168), TILE(168, 128), TILE(128, 160), TILE(128, 128), /* and those that are only known: */
    TILE(192, 184), TILE(192, 160), TILE(192, 152), TILE(192, 144), TILE(192, 136), TILE(128, 248), TILE(128, 216),
    TILE(128, 208), TILE(128, 200), TILE(128, 184), TILE(184, 128), TILE(160, 128), TILE(128, 152), TILE(152, 128),
    TILE(128, 144), TILE(144, 128), TILE(128, 136), TILE(136, 128), TILE(256, 120), TILE(256, 112), TILE(256, 104),
    TILE(256, 96),  TILE(128, 96),  TILE(256, 64),  TILE(64, 256),  TILE(128, 64),  TILE(64, 128),
};
#undef TILE

/* The share of the multiprocessors' time that goes into the result: the last tiles may leave many idle. */
static double fill_of(const blas_shape *shape, const blas_tile *tile, int multiprocessors)
{
    int64_t count = ((shape->m + tile->m - 1) / tile->m) * ((shape->n + tile->n - 1) / tile->n);
    int64_t waves = (count + multiprocessors - 1) / multiprocessors;
    return (double)(shape->m * shape->n) / (double)(waves * multiprocessors * tile->m * tile->n);
}

static uint32_t config_of(const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoConfigAttributes_t name)
{
    uint32_t value = 0;
    size_t bytes = name == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? sizeof(uint16_t) : sizeof value, written;
    (void)cublasLtMatmulAlgoConfigGetAttribute(algorithm, name, &value, bytes, &written);
    return value;
}

static bool set_tile(const blas_tile *tile, uint16_t cluster, cublasLtMatmulAlgo_t *algorithm)
{
    return cublasLtMatmulAlgoConfigSetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile->id, sizeof tile->id) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                                sizeof cluster) == CUBLAS_STATUS_SUCCESS;
}

/* Whether an earlier one is the same but for tile and cluster. */
static bool has_twin(const blas_candidates *all, int place)
{
    const cublasLtMatmulAlgo_t *own = &all->items[place].algorithm;
    for (int i = 0; i < place; i++) {
        const cublasLtMatmulAlgo_t *other = &all->items[i].algorithm;
        if (config_of(own, CUBLASLT_ALGO_CONFIG_ID) == config_of(other, CUBLASLT_ALGO_CONFIG_ID) &&
            config_of(own, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) == config_of(other, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION))
            return true;
    }
    return false;
}

/* The proposals with other tiles and clusters: tiles that leave hardly a multiprocessor idle. */
static void collect_tiles(const cuda_blas *blas, const blas_problem *problem, int proposals, size_t bytes,
                          blas_candidates *all)
{
    static const uint16_t clusters[] = { CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1 };
    enum { CLUSTERS = sizeof clusters / sizeof *clusters };
    for (size_t t = 0; t < TRIED && problem->shape.batches == 1; t++) {
        if (fill_of(&problem->shape, &tiles[t], blas->multiprocessors) < 0.9)
            continue;
        for (int i = 0; i < CLUSTERS * proposals; i++) {
            cublasLtMatmulAlgo_t algorithm = all->items[i / CLUSTERS].algorithm;
            if (!has_twin(all, i / CLUSTERS) && set_tile(&tiles[t], clusters[i % CLUSTERS], &algorithm) &&
                cuda_blas_is_sound(blas, problem, &algorithm, bytes))
                add_candidate(&algorithm, all);
        }
    }
}

bool cuda_blas_is_large(const blas_shape *shape)
{
    return 2.0 * (double)shape->m * (double)shape->n * (double)shape->k * (double)shape->batches >= 5e10;
}

/* NULL: not one of ours. */
static const blas_tile *tile_of(const cublasLtMatmulAlgo_t *algorithm)
{
    uint32_t id = config_of(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID);
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        if (tiles[t].id == id)
            return &tiles[t];
    }
    return NULL;
}

double cuda_blas_reads_of(const cublasLtMatmulAlgo_t *algorithm)
{
    const blas_tile *tile = tile_of(algorithm);
    return tile ? 1.0 / tile->m + 1.0 / tile->n : 1;
}

char *cuda_blas_algorithm_text(const cublasLtMatmulAlgo_t *algorithm, char text[BLAS_ALGORITHM_TEXT])
{
    const blas_tile *tile = tile_of(algorithm);
    snprintf(text, BLAS_ALGORITHM_TEXT, "algorithm %u, tile %u (%d x %d), cluster %u, stages %u, option %u, %u parts",
             config_of(algorithm, CUBLASLT_ALGO_CONFIG_ID), config_of(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
             tile ? tile->m : 0, tile ? tile->n : 0, config_of(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
             config_of(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             config_of(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
             config_of(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
    return text;
}

sl_status cuda_blas_collect(const cuda_blas *blas, const blas_problem *problem, size_t bytes, bool more,
                            blas_candidates *out)
{
    sl_status status = SL_OK;
    SL_TRY(collect(blas, problem, bytes, out));
    if (more && cuda_blas_is_large(&problem->shape)) {
        SL_TRY(collect_more(blas, problem, bytes, out));
        collect_tiles(blas, problem, out->count, bytes, out);
    }
done:
    return status;
}
