/* Initial weights: every element is a function of seed, parameter name and place, whoever computes it. */
#include <sluice/nn.h>

#include "kernel/philox.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK = 4 }; /* elements that one call of the generator makes */

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

void sl_param_init(const sl_param_info *param, uint64_t seed, int64_t first, int64_t count, float *out)
{
    const sl_init *init = &param->init;
    if (init->kind == SL_INIT_ZEROS || init->kind == SL_INIT_ONES) {
        for (int64_t i = 0; i < count; i++)
            out[i] = init->kind == SL_INIT_ONES ? 1 : 0;
        return;
    }
    uint64_t key = XXH64(param->name, strlen(param->name), seed);
    int64_t done = 0;
    while (done < count) {
        float drawn[BLOCK];
        int64_t place = first + done;
        draw(key, (uint64_t)place / BLOCK, init->kind, drawn);
        for (int64_t i = place % BLOCK; i < BLOCK && done < count; i++)
            out[done++] = (float)init->scale * drawn[i];
    }
}
