/* Initial weights: every element is a function of seed, parameter name and place, whoever computes it. */
#include <sluice/nn.h>

#include "kernel/philox.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* Four random words for elements 4 * block .. 4 * block + 3. */
static void draw(uint64_t key, uint64_t block, uint32_t words[4])
{
    words[0] = (uint32_t)block;
    words[1] = (uint32_t)(block >> 32);
    words[2] = words[3] = 0;
    sl_philox(words, (uint32_t)key, (uint32_t)(key >> 32));
}

/* In (0, 1): never 0, for the logarithm. */
static double unit(uint32_t word)
{
    return ((double)word + 0.5) * 0x1p-32;
}

/* Box and Muller: words 0, 1 give elements 0, 1 of the block, words 2, 3 the others. */
static double normal(const uint32_t words[4], int element)
{
    const double two_pi = 6.28318530717958647692;
    const uint32_t *pair = words + (element & 2);
    double radius = sqrt(-2 * log(unit(pair[0]))), angle = two_pi * unit(pair[1]);
    return element & 1 ? radius * sin(angle) : radius * cos(angle);
}

void sl_param_init(const sl_param_info *param, uint64_t seed, int64_t first, int64_t count, float *out)
{
    const sl_init *init = &param->init;
    if (init->kind == SL_INIT_ZEROS || init->kind == SL_INIT_ONES) {
        for (int64_t i = 0; i < count; i++)
            out[i] = init->kind == SL_INIT_ONES ? 1 : 0;
        return;
    }
    uint64_t key = XXH64(param->name, strlen(param->name), seed), drawn = UINT64_MAX;
    uint32_t words[4] = { 0 };
    for (int64_t i = 0; i < count; i++) {
        uint64_t place = (uint64_t)(first + i);
        if (place / 4 != drawn) {
            drawn = place / 4;
            draw(key, drawn, words);
        }
        int element = (int)(place % 4);
        double value = init->kind == SL_INIT_NORMAL ? normal(words, element) : 2 * unit(words[element]) - 1;
        out[i] = (float)(init->scale * value);
    }
}
