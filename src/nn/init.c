/* Initial weights: every element is a function of seed, parameter name and place, whoever computes it. So all cores of
 * the machine draw a large parameter together. */
#include <sluice/nn.h>

#include "device/pool.h"
#include "kernel/philox.h"

#include <math.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    BLOCK = 4,                  /* elements that one call of the generator makes */
    ELEMENTS_A_THREAD = 100000, /* a few milliseconds of work: less is not worth a thread */
    MOST_THREADS = 64
};

/* Elements first .. first + count of a parameter. */
typedef struct drawing {
    uint64_t key;
    sl_init init;
    int64_t first, count;
    float *out;
} drawing;

/* In (0, 1): never 0, for the logarithm. */
static double unit(uint32_t word)
{
    return ((double)word + 0.5) * 0x1p-32;
}

/* Two normal deviates from two words, after Box and Muller. */
static void normal_pair(const uint32_t words[2], float out[2])
{
    const double two_pi = 6.28318530717958647692;
    float radius = sqrtf(-2 * logf((float)unit(words[0]))), angle = (float)(two_pi * unit(words[1]));
    out[0] = radius * cosf(angle);
    out[1] = radius * sinf(angle);
}

/* Elements block * BLOCK + 0, 1, .. of a parameter: standard normal, or uniform in -1..1. */
static void draw(uint64_t key, uint64_t block, sl_init_kind kind, float out[BLOCK])
{
    uint32_t words[BLOCK] = { (uint32_t)block, (uint32_t)(block >> 32), 0, 0 };
    sl_philox(words, (uint32_t)key, (uint32_t)(key >> 32));
    if (kind == SL_INIT_NORMAL) {
        normal_pair(words, out);
        normal_pair(words + 2, out + 2);
        return;
    }
    for (int i = 0; i < BLOCK; i++)
        out[i] = (float)(2 * unit(words[i]) - 1);
}

static void draw_range(const drawing *what, int64_t begin, int64_t end)
{
    while (begin < end) {
        float drawn[BLOCK];
        int64_t place = what->first + begin;
        draw(what->key, (uint64_t)place / BLOCK, what->init.kind, drawn);
        for (int64_t i = place % BLOCK; i < BLOCK && begin < end; i++)
            what->out[begin++] = (float)what->init.scale * drawn[i];
    }
}

static void draw_part(void *context, int part, int parts)
{
    const drawing *what = context;
    int64_t each = (what->count + parts - 1) / parts, begin = part * each, end = begin + each;
    draw_range(what, begin, end < what->count ? end : what->count);
}

static int threads_for(int64_t count)
{
    int64_t threads = count / ELEMENTS_A_THREAD, cores = sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads < cores ? threads : cores;
    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    return threads > 1 ? (int)threads : 1;
}

void sl_param_init(const sl_param_info *param, uint64_t seed, int64_t first, int64_t count, float *out)
{
    const sl_init *init = &param->init;
    if (init->kind == SL_INIT_ZEROS || init->kind == SL_INIT_ONES) {
        for (int64_t i = 0; i < count; i++)
            out[i] = init->kind == SL_INIT_ONES ? 1 : 0;
        return;
    }
    drawing what = {
        .key = XXH64(param->name, strlen(param->name), seed), .init = *init, .first = first, .count = count, .out = out
    };
    int threads = threads_for(count);
    sl_pool *pool = NULL;
    if (threads == 1 || sl_pool_create(threads, &pool) != SL_OK) {
        draw_range(&what, 0, count); /* slower, with the same bits */
        return;
    }
    sl_pool_run(pool, threads, draw_part, &what);
    sl_pool_destroy(pool);
}
