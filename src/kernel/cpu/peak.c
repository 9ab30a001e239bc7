/* What the processor can do at best: multiply-adds in registers, and a register tile whose panels stay in the first-level
 * cache. */
#include "kernel/cpu/cpu.h"

#include "base/alloc.h"
#include "device/cpu.h"
#include "kernel/cpu/isa.h"

#include <string.h>
#include <time.h>

enum { RUNS = 32, FMA_ROUNDS = 100000, TILES = 400, TILE_K = 128, LARGEST = 32 };

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
    double *best;        /* rate of each thread so far, in operations a second */
} peak_job;

static void run_tiles(const sl_tile *tile)
{
    _Alignas(64) uint16_t a[LARGEST * TILE_K], b[LARGEST * TILE_K];
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
    double work, start = thread_seconds();
    (void)parts;
    if (job->tile) {
        run_tiles(job->tile);
        work = 2.0 * TILES * TILE_K * job->tile->rows * job->tile->columns;
    } else {
        (void)job->simd->fma_rounds(FMA_ROUNDS);
        work = (double)FMA_ROUNDS * job->simd->fma_flops;
    }
    double rate = work / (thread_seconds() - start);
    job->best[part] = rate > job->best[part] ? rate : job->best[part];
}

/* Each thread's best of many short runs, by its own time: what else the machine does must not lower the peak. */
static double measure(sl_device *device, const sl_tile *tile)
{
    sl_pool *pool = sl_device_cpu_pool(device);
    peak_job job = { .simd = sl_isa_simd(), .tile = tile };
    int threads = sl_pool_threads(pool);
    double sum = 0;
    if (!job.simd || SL_NEW_ARRAY(job.best, threads) != SL_OK)
        return 0;
    for (int i = 0; i < RUNS; i++)
        sl_pool_run(pool, threads, run_part, &job);
    for (int i = 0; i < threads; i++)
        sum += job.best[i];
    sl_free(job.best);
    return sum;
}

double sl_cpu_measure_peak(sl_device *device)
{
    return measure(device, NULL);
}

double sl_cpu_measure_product_peak(sl_device *device, sl_dtype dtype)
{
    const sl_simd *simd = sl_isa_simd();
    const sl_tile *tile = simd && dtype == SL_BF16 ? sl_isa_tile(true) : NULL;
    return measure(device, tile && tile->size == sizeof(uint16_t) ? tile : NULL);
}
