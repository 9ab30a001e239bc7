/* Which algorithm of cuBLASLt a product takes. Of those that its heuristics propose, those are timed once that give the
 * bits of the first, and the fastest is kept: so time decides about speed and never about results. A choice is kept for
 * the next start, too. */
#include "cuda/blas_problem.h"

#include "cuda/device.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CANDIDATES = 8, ROUNDS = 8, RUNS = 2, ALGORITHM_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

/* ---- Proposals ------------------------------------------------------------------------------- */

static sl_status propose(const cuda_blas *blas, const blas_problem *problem, size_t workspace,
                         cublasLtMatmulHeuristicResult_t found[CANDIDATES], int *count)
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
                                       problem->layouts[2], problem->layouts[2], preference, CANDIDATES, found,
                                       count) != CUBLAS_STATUS_SUCCESS)
        *count = 0; /* none: not an error */
done:
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

/* ---- Trials ---------------------------------------------------------------------------------- */

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
                             cudaStream_t stream)
{
    float milliseconds = 0;
    cudaEventRecord(trial->begin, stream);
    for (int run = 0; run < RUNS; run++)
        start_trial(blas, trial, algorithm, stream);
    cudaEventRecord(trial->end, stream);
    if (cudaStreamSynchronize(stream) != cudaSuccess)
        return -1;
    cudaEventElapsedTime(&milliseconds, trial->begin, trial->end);
    return (double)milliseconds * 1e-3 / RUNS;
}

static void print_choice(const blas_shape *shape, int same, int count, int chosen, double best, double first)
{
    cuda_host->log(SL_LOG_DEBUG,
                   "product %lld x %lld x %lld %s -> %s%s%s: %d of %d algorithms with the same bits, number %d "
                   "takes %.1f us (the first %.1f), %.0f TFLOP/s",
                   (long long)shape->m, (long long)shape->n, (long long)shape->k, sl_dtype_name((sl_dtype)shape->dtype),
                   sl_dtype_name((sl_dtype)shape->d_dtype), shape->bias ? ", bias" : "", shape->adds ? ", adding" : "",
                   same, count, chosen + 1, best * 1e6, first * 1e6,
                   2e-12 * (double)shape->m * (double)shape->n * (double)shape->k / best);
}

/* The number of the candidate to take; -1 if there is no memory to try them in. The rounds go through all candidates, so
 * that a clock that changes meanwhile favors none. */
static int fastest(const cuda_blas *blas, const blas_problem *problem, const cublasLtMatmulHeuristicResult_t *found,
                   int count, size_t bytes, cudaStream_t stream)
{
    blas_trial trial = { 0 };
    int chosen = -1, same = 0;
    bool takes_part[CANDIDATES] = { false };
    double best[CANDIDATES] = { 0 };
    bool opened = open_trial(problem, bytes, stream, &trial);
    for (int i = 0; i < count && opened; i++) {
        takes_part[i] = is_candidate(blas, &trial, &found[i].algo, i == 0, stream);
        same += takes_part[i];
    }
    for (int t = 0; t < ROUNDS * count && opened; t++) {
        int i = t % count;
        double seconds = takes_part[i] ? time_candidate(blas, &trial, &found[i].algo, stream) : -1;
        takes_part[i] = seconds > 0;
        if (seconds > 0 && (best[i] == 0 || seconds < best[i]))
            best[i] = seconds;
    }
    for (int i = 0; i < count && opened; i++) {
        if (takes_part[i] && (chosen < 0 || best[i] < best[chosen]))
            chosen = i;
    }
    if (chosen >= 0)
        print_choice(&problem->shape, same, count, chosen, best[chosen], best[0]);
    (void)cudaGetLastError();
    close_trial(&trial);
    return chosen;
}

/* ---- Saved choices --------------------------------------------------------------------------- */

enum { KEY_BYTES = 160, VALUE_BYTES = 17 * ALGORITHM_WORDS + 1 };

static char *key_of(const blas_shape *shape, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%" PRId64 "x%" PRId64 "x%" PRId64 " %c%c %s->%s bias %d adds %d aligned %d batches %d",
             shape->m, shape->n, shape->k, shape->transpose_a ? 't' : 'n', shape->transpose_b ? 't' : 'n',
             sl_dtype_name((sl_dtype)shape->dtype), sl_dtype_name((sl_dtype)shape->d_dtype), shape->bias, shape->adds,
             shape->aligned, shape->batches);
    return key;
}

static bool read_algorithm(const char *value, cublasLtMatmulAlgo_t *out)
{
    int used = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < ALGORITHM_WORDS; i++) {
        if (sscanf(value, " %16" SCNx64 "%n", &out->data[i], &used) != 1)
            return false;
        value += used;
    }
    return *value == '\0';
}

/* A saved algorithm runs the problem in the workspace, and adds up parts in order if it has any. */
static bool is_sound(const cuda_blas *blas, const blas_problem *problem, const cublasLtMatmulAlgo_t *algorithm,
                     size_t bytes, size_t *needed)
{
    cublasLtMatmulHeuristicResult_t result;
    uint32_t reduction = 0;
    size_t written = 0;
    if (cublasLtMatmulAlgoCheck(blas->handle, problem->description, problem->layouts[0], problem->layouts[1],
                                problem->layouts[2], problem->layouts[2], algorithm, &result) != CUBLAS_STATUS_SUCCESS)
        return false;
    *needed = result.workspaceSize;
    return result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= bytes &&
           cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                sizeof reduction, &written) == CUBLAS_STATUS_SUCCESS &&
           (reduction == CUBLASLT_REDUCTION_SCHEME_NONE || reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

static bool take_saved(const cuda_blas *blas, const blas_problem *problem, size_t bytes, blas_choice *choice)
{
    char key[KEY_BYTES];
    const char *value = cuda_host->choices_get(blas->saved, key_of(&problem->shape, key));
    if (!value)
        return false;
    choice->usable = read_algorithm(value, &choice->algorithm) &&
                     is_sound(blas, problem, &choice->algorithm, bytes, &choice->workspace);
    cuda_host->log(choice->usable ? SL_LOG_DEBUG : SL_LOG_WARN, "product %s: the saved algorithm is %s", key,
                   choice->usable ? "taken" : "not one of this cuBLASLt, and ignored");
    return choice->usable;
}

static void save_choice(const cuda_blas *blas, const blas_choice *choice)
{
    char key[KEY_BYTES], value[VALUE_BYTES];
    int used = 0;
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        used += snprintf(value + used, sizeof value - (size_t)used, "%s%016" PRIx64, i ? " " : "",
                         choice->algorithm.data[i]);
    cuda_host->choices_put(blas->saved, key_of(&choice->shape, key), value);
}

/* ---- Choices --------------------------------------------------------------------------------- */

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone;
}

static sl_status find_algorithm(cuda_blas *blas, const blas_problem *problem, size_t bytes, cudaStream_t stream,
                                blas_choice *choice)
{
    sl_status status = SL_OK;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count = 0, chosen = 0;
    bool tries = bytes > 0 && blas->tries;
    bool timed = tries && !is_captured(stream); /* nothing can be tried while a graph is recorded */
    if (tries && take_saved(blas, problem, bytes, choice))
        return SL_OK;
    SL_TRY(propose(blas, problem, bytes, found, &count));
    if (count == 0)
        return SL_OK;
    if (timed)
        chosen = fastest(blas, problem, found, count, bytes, stream);
    choice->algorithm = found[chosen < 0 ? 0 : chosen].algo;
    choice->workspace = found[chosen < 0 ? 0 : chosen].workspaceSize;
    choice->usable = true;
    if (timed && chosen >= 0)
        save_choice(blas, choice);
done:
    return status;
}

sl_status cuda_blas_choose(cuda_blas *blas, const blas_problem *problem, size_t bytes, cudaStream_t stream,
                           const blas_choice **out)
{
    sl_status status = SL_OK;
    blas_choice *choice = NULL;
    for (const blas_choice *known = blas->choices; known; known = known->next) {
        if (memcmp(&known->shape, &problem->shape, sizeof known->shape) == 0) {
            *out = known;
            return SL_OK;
        }
    }
    SL_TRY(SL_NEW(choice));
    choice->shape = problem->shape;
    SL_TRY(find_algorithm(blas, problem, bytes, stream, choice));
    choice->next = blas->choices;
    blas->choices = choice;
    *out = choice;
    choice = NULL;
done:
    sl_free(choice);
    return status;
}
