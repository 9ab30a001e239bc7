/* Which algorithm of cuBLASLt a product takes: one of this start, one that an earlier start saved, or the one that a trial
 * finds. */
#include "cuda/blas_problem.h"

#include "cuda/device.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Saved choices --------------------------------------------------------------------------- */

enum {
    ALGORITHM_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
    KEY_BYTES = 160,
    VALUE_BYTES = 17 * ALGORITHM_WORDS + 1
};

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

static bool take_saved(const cuda_blas *blas, const blas_problem *problem, size_t bytes, blas_choice *choice)
{
    char key[KEY_BYTES];
    const char *value = cuda_host->choices_get(blas->saved, key_of(&problem->shape, key));
    if (!value)
        return false;
    choice->usable =
        read_algorithm(value, &choice->algorithm) && cuda_blas_is_sound(blas, problem, &choice->algorithm, bytes);
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
    blas_candidates *all = NULL;
    int chosen = 0;
    bool tries = bytes > 0 && blas->tries;
    bool timed = tries && !is_captured(stream); /* nothing can be tried while a graph is recorded */
    if (tries && take_saved(blas, problem, bytes, choice))
        return SL_OK;
    SL_TRY(SL_NEW(all));
    SL_TRY(cuda_blas_collect(blas, problem, bytes, timed, all));
    if (all->count > 0) {
        if (timed)
            chosen = cuda_blas_try(blas, problem, bytes, stream, all);
        choice->algorithm = all->items[chosen < 0 ? 0 : chosen].algorithm;
        choice->usable = true;
        if (timed && chosen >= 0)
            save_choice(blas, choice);
    }
done:
    sl_free(all);
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
