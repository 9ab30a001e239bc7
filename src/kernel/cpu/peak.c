/* What the processor can do at best: multiply-adds in registers, and a register tile whose panels stay in the first-level
 * cache. And its clock. */
#include "kernel/cpu/cpu.h"

#include "base/alloc.h"
#include "device/cpu.h"
#include "kernel/cpu/blas.h"
#include "kernel/cpu/isa.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { RUNS = 32, FMA_ROUNDS = 100000, TILES = 400, TILE_K = 128, LARGEST = 32, LARGEST_SIZE = 6 };

/* Seconds that this thread itself was running. */
static double thread_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

typedef struct peak_job {
    const sl_simd *simd;
    const sl_tile *tile; /* NULL: multiply-adds */
    double end;          /* when to stop; 0: after one run */
    double *best, *work; /* of each thread so far: operations a second in its best run, operations of all runs */
} peak_job;

static void run_tiles(const sl_tile *tile)
{
    _Alignas(64) char a[LARGEST * TILE_K * LARGEST_SIZE], b[LARGEST * TILE_K * LARGEST_SIZE];
    _Alignas(64) float c[LARGEST * LARGEST];
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    sl_tile_begin(tile);
    for (int i = 0; i < TILES; i++)
        tile->multiply(TILE_K, a, b, c, LARGEST, false, NULL);
    sl_tile_end(tile);
}

static void run_part(void *context, int part, int parts)
{
    const peak_job *job = context;
    double work;
    (void)parts;
    do {
        double start = thread_seconds();
        if (job->tile) {
            run_tiles(job->tile);
            work = 2.0 * TILES * TILE_K * job->tile->rows * job->tile->columns;
        } else {
            (void)job->simd->fma_rounds(FMA_ROUNDS);
            work = (double)FMA_ROUNDS * job->simd->fma_flops;
        }
        double rate = work / (thread_seconds() - start);
        job->best[part] = rate > job->best[part] ? rate : job->best[part];
        job->work[part] += work;
    } while (sl_now() < job->end);
}

static double sum_of(const double *values, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* seconds 0: the sum of each thread's best of many short runs, by its own time, so that what else the machine does does
 * not lower it. Else: all threads' operations over so many seconds of the clock. */
static double measure(sl_device *device, const sl_tile *tile, double seconds)
{
    sl_pool *pool = sl_device_cpu_pool(device);
    peak_job job = { .simd = sl_isa_simd(), .tile = tile };
    int threads = sl_pool_threads(pool);
    double rate = 0;
    if (!job.simd || SL_NEW_ARRAY(job.best, 2 * threads) != SL_OK)
        return 0;
    job.work = job.best + threads;
    double start = sl_now();
    job.end = seconds > 0 ? start + seconds : 0;
    for (int i = 0; i < (seconds > 0 ? 1 : RUNS); i++)
        sl_pool_run(pool, threads, run_part, &job);
    rate = seconds > 0 ? sum_of(job.work, threads) / (sl_now() - start) : sum_of(job.best, threads);
    sl_free(job.best);
    return rate;
}

/* NULL if multiply-adds are as fast as products get, or BLAS has them. */
static const sl_tile *product_tile(sl_dtype dtype)
{
    if (dtype == SL_F32 && sl_blas_sgemm())
        return NULL;
    const sl_tile *tile = sl_isa_simd() ? sl_isa_tile(dtype == SL_BF16) : NULL;
    return tile && tile != sl_isa_simd()->tile ? tile : NULL;
}

double sl_cpu_measure_peak(sl_device *device)
{
    return measure(device, NULL, 0);
}

double sl_cpu_measure_product_peak(sl_device *device, sl_dtype dtype)
{
    return measure(device, product_tile(dtype), 0);
}

bool sl_cpu_products_beat_fma(sl_dtype dtype)
{
    return product_tile(dtype) != NULL;
}

double sl_cpu_measure_sustained(sl_device *device, double seconds)
{
    return measure(device, NULL, seconds);
}

double sl_cpu_measure_product_sustained(sl_device *device, sl_dtype dtype, double seconds)
{
    return measure(device, product_tile(dtype), seconds);
}

static void run_chain(void *context, int part, int parts)
{
    enum { TRIES = 4, STEPS = 4000 }; /* a clock changes within milliseconds: the chains take some microseconds */
    double *best = context;
    uint64_t x = 3;
    (void)parts;
    for (int i = 0; i < TRIES; i++) {
        double start = sl_now();
        for (int step = 0; step < STEPS; step++) {
            x *= x;
            __asm__ volatile("" : "+r"(x)); /* a step needs the result of the one before */
        }
        best[part] = fmax(best[part], STEPS / (sl_now() - start));
    }
}

double sl_cpu_measure_clock(sl_device *device)
{
    sl_pool *pool = sl_device_cpu_pool(device);
    int threads = sl_pool_threads(pool);
    double *best = NULL;
    if (SL_NEW_ARRAY(best, threads) != SL_OK)
        return 0;
    sl_pool_run(pool, threads, run_chain, best);
    double mean = sum_of(best, threads) / threads;
    sl_free(best);
    return mean;
}
