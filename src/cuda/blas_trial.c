/* Trials of the algorithms that a product may take. Those that give the bits of the first are timed, and time and tiles decide
 * which is taken: about speed and never about results. */
#include "cuda/blas_problem.h"

#include "cuda/device.h"

#include <string.h>

/* The first round leaves the STARTERS, all within share_of_best. */
enum { STARTERS = 16, ROUNDS = 3, RUNS = 2 };
static const double share_of_best = 1.10;

/* At its power limit a GPU lowers its clock, and a product takes as long as its energy, not as its cycles. About a tenth of
 * that goes into what tiles read from memory nearby, which is 1/m + 1/n for each result of a tile of m x n. So of the
 * algorithms that are nearly as fast as the fastest, large products take the one that reads least. On an H200 steps of a
 * Llama of 1.1 B took 0.5 % less time with 11 % fewer reads and 2 % more cycles, 0.7 % less with as many cycles. */
static const double close_share = 1.03;

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Memory to try algorithms in, beside that of the program. */
typedef struct blas_trial {
    blas_problem problem; /* with operands of its own */
    void *a, *b, *d, *first, *bias, *workspace;
    int32_t *different;
    size_t d_bytes, workspace_bytes;
    cudaEvent_t begin, end;
} blas_trial;

static size_t span(const blas_operand *operand, int32_t batches, int32_t dtype)
{
    int64_t one = (operand->columns - 1) * operand->leading + operand->rows;
    return (size_t)((batches - 1) * operand->batch + one) * sl_dtype_size((sl_dtype)dtype);
}

static void close_trial(blas_trial *trial)
{
    void *const blocks[] = {
        trial->a, trial->b, trial->d, trial->first, trial->bias, trial->workspace, trial->different
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        cudaFree(blocks[i]);
    if (trial->begin)
        cudaEventDestroy(trial->begin);
    if (trial->end)
        cudaEventDestroy(trial->end);
    cuda_blas_forget(&trial->problem);
}

/* A block with numbers of the type; false if there is no memory. */
static bool make_operand(cudaStream_t stream, int32_t dtype, size_t bytes, void **out)
{
    if (cudaMalloc(out, bytes) != cudaSuccess)
        return false;
    cuda_fill_random(stream, *out, dtype, (int64_t)(bytes / sl_dtype_size((sl_dtype)dtype)));
    return true;
}

static bool open_trial(const blas_problem *problem, size_t workspace, cudaStream_t stream, blas_trial *trial)
{
    const blas_shape *shape = &problem->shape;
    trial->problem = *problem;
    trial->problem.description = NULL;
    memset(trial->problem.layouts, 0, sizeof trial->problem.layouts);
    trial->d_bytes = span(&problem->d, shape->batches, shape->d_dtype);
    trial->workspace_bytes = workspace;
    size_t bias_bytes = (size_t)shape->m * sl_dtype_size((sl_dtype)shape->d_dtype);
    if (!make_operand(stream, shape->dtype, span(&problem->a, shape->batches, shape->dtype), &trial->a) ||
        !make_operand(stream, shape->dtype, span(&problem->b, shape->batches, shape->dtype), &trial->b) ||
        !make_operand(stream, shape->d_dtype, bias_bytes, &trial->bias) ||
        cudaMalloc(&trial->d, trial->d_bytes) != cudaSuccess ||
        cudaMalloc(&trial->first, trial->d_bytes) != cudaSuccess ||
        cudaMalloc(&trial->workspace, workspace) != cudaSuccess ||
        cudaMalloc((void **)&trial->different, sizeof(int32_t)) != cudaSuccess ||
        cudaEventCreate(&trial->begin) != cudaSuccess || cudaEventCreate(&trial->end) != cudaSuccess)
        return false;
    trial->problem.a.data = trial->a;
    trial->problem.b.data = trial->b;
    trial->problem.d.data = trial->d;
    trial->problem.bias = problem->bias ? trial->bias : NULL;
    return cuda_blas_describe(&trial->problem) == SL_OK;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static cublasStatus_t start_trial(const cuda_blas *blas, const blas_trial *trial, const cublasLtMatmulAlgo_t *algorithm,
                                  cudaStream_t stream)
{
    return cuda_blas_start(blas->handle, &trial->problem, algorithm, trial->workspace, trial->workspace_bytes, stream);
}

/* Whether a candidate runs and gives the bits of the first, which sets them. */
static bool is_candidate(const cuda_blas *blas, const blas_trial *trial, const cublasLtMatmulAlgo_t *algorithm,
                         bool first, cudaStream_t stream)
{
    int32_t different = 0;
    cudaMemsetAsync(trial->d, 0, trial->d_bytes, stream);
    if (start_trial(blas, trial, algorithm, stream) != CUBLAS_STATUS_SUCCESS)
        return false;
    if (first) {
        cudaMemcpyAsync(trial->first, trial->d, trial->d_bytes, cudaMemcpyDeviceToDevice, stream);
    } else {
        cudaMemsetAsync(trial->different, 0, sizeof different, stream);
        cuda_count_different(stream, trial->first, trial->d, (int64_t)trial->d_bytes, trial->different);
        cudaMemcpyAsync(&different, trial->different, sizeof different, cudaMemcpyDeviceToHost, stream);
    }
    return cudaStreamSynchronize(stream) == cudaSuccess && different == 0;
}

/* Seconds of a candidate, with all that it does beside the product; negative if it fails. */
static double time_candidate(const cuda_blas *blas, const blas_trial *trial, const cublasLtMatmulAlgo_t *algorithm,
                             int runs, cudaStream_t stream)
{
    float milliseconds = 0;
    cudaEventRecord(trial->begin, stream);
    for (int run = 0; run < runs; run++)
        start_trial(blas, trial, algorithm, stream);
    cudaEventRecord(trial->end, stream);
    if (cudaStreamSynchronize(stream) != cudaSuccess)
        return -1;
    cudaEventElapsedTime(&milliseconds, trial->begin, trial->end);
    return (double)milliseconds * 1e-3 / runs;
}

/* Shortens the times of the candidates that take part to those of another round. */
static void time_round(const cuda_blas *blas, const blas_trial *trial, int runs, cudaStream_t stream,
                       blas_candidates *all)
{
    for (int i = 0; i < all->count; i++) {
        blas_candidate *candidate = &all->items[i];
        double seconds = candidate->takes_part ? time_candidate(blas, trial, &candidate->algorithm, runs, stream) : -1;
        candidate->takes_part = seconds > 0;
        if (seconds > 0 && (candidate->seconds == 0 || seconds < candidate->seconds))
            candidate->seconds = seconds;
    }
}

/* ---- The choice ------------------------------------------------------------------------------ */

/* The number of the fastest that takes part; -1: there is none. */
static int fastest_of(const blas_candidates *all)
{
    int chosen = -1;
    for (int i = 0; i < all->count; i++) {
        if (all->items[i].takes_part && (chosen < 0 || all->items[i].seconds < all->items[chosen].seconds))
            chosen = i;
    }
    return chosen;
}

/* Leaves the STARTERS. */
static void keep_starters(blas_candidates *all)
{
    int best = fastest_of(all);
    for (int i = 0; i < all->count && best >= 0; i++) {
        int faster = 0;
        for (int k = 0; k < all->count; k++)
            faster += all->items[k].takes_part && all->items[k].seconds < all->items[i].seconds;
        if (faster >= STARTERS || all->items[i].seconds > share_of_best * all->items[best].seconds)
            all->items[i].takes_part = false;
    }
}

/* Of those that are close to the fastest, the number of the one whose tiles read least; of equal ones, of the fastest. */
static int least_reads_of(const blas_candidates *all)
{
    int fastest = fastest_of(all), chosen = fastest;
    for (int i = 0; i < all->count && fastest >= 0; i++) {
        const blas_candidate *own = &all->items[i], *best = &all->items[chosen];
        double reads = cuda_blas_reads_of(&own->algorithm), least = cuda_blas_reads_of(&best->algorithm);
        if (own->takes_part && own->seconds <= close_share * all->items[fastest].seconds &&
            (reads < least || (reads == least && own->seconds < best->seconds)))
            chosen = i;
    }
    return chosen;
}

static double flops_of(const blas_shape *shape)
{
    return 2.0 * (double)shape->m * (double)shape->n * (double)shape->k * (double)shape->batches;
}

static void print_trial(const blas_shape *shape, int same, int chosen, const blas_candidates *all)
{
    char text[BLAS_ALGORITHM_TEXT];
    cuda_host->log(SL_LOG_DEBUG, "product %lld x %lld x %lld %s -> %s%s%s: %d of %d algorithms with the same bits",
                   (long long)shape->m, (long long)shape->n, (long long)shape->k, sl_dtype_name((sl_dtype)shape->dtype),
                   sl_dtype_name((sl_dtype)shape->d_dtype), shape->bias ? ", bias" : "", shape->adds ? ", adding" : "",
                   same, all->count);
    for (int i = 0; i < all->count; i++) {
        const blas_candidate *candidate = &all->items[i];
        if (candidate->takes_part)
            cuda_host->log(SL_LOG_DEBUG, "  %s %8.1f us, %4.0f TFLOP/s, reads %.4f: %s",
                           i == chosen ? "takes" : "     ", candidate->seconds * 1e6,
                           1e-12 * flops_of(shape) / candidate->seconds, cuda_blas_reads_of(&candidate->algorithm),
                           cuda_blas_algorithm_text(&candidate->algorithm, text));
    }
}

int cuda_blas_try(const cuda_blas *blas, const blas_problem *problem, size_t bytes, cudaStream_t stream,
                  blas_candidates *all)
{
    blas_trial trial = { 0 };
    int chosen = -1, same = 0;
    if (open_trial(problem, bytes, stream, &trial)) {
        for (int i = 0; i < all->count; i++) {
            all->items[i].takes_part = is_candidate(blas, &trial, &all->items[i].algorithm, i == 0, stream);
            same += all->items[i].takes_part;
        }
        time_round(blas, &trial, 1, stream, all);
        keep_starters(all);
        for (int round = 0; round < ROUNDS; round++)
            time_round(blas, &trial, RUNS, stream, all);
        chosen = cuda_blas_is_large(&problem->shape) ? least_reads_of(all) : fastest_of(all);
        print_trial(&problem->shape, same, chosen, all);
    }
    (void)cudaGetLastError();
    close_trial(&trial);
    return chosen;
}
