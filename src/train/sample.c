/* Sampling with temperature, top-k and top-p. */
#include "train/sample.h"

#include <math.h>
#include <stdlib.h>

/* A number in [0, 1) from a counter: splitmix64's finalizer over the mixed words. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static double uniform(uint64_t seed, uint64_t sample, uint64_t position)
{
    return (double)(mix(mix(mix(seed) ^ sample) ^ position) >> 11) * 0x1p-53;
}

/* Likeliest first; equal ones by token, so that the order is fixed. */
static int likelier(const void *a, const void *b)
{
    const sl_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

static int32_t likeliest(const float *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

int32_t sl_sample(const float *logits, int64_t vocab, const sl_sample_options *options, uint64_t sample,
                  uint64_t position, sl_candidate *scratch)
{
    if (options->temperature <= 0)
        return likeliest(logits, vocab);
    for (int64_t i = 0; i < vocab; i++)
        scratch[i] = (sl_candidate){ .logit = logits[i], .token = (int32_t)i };
    qsort(scratch, (size_t)vocab, sizeof *scratch, likelier);
    int64_t count = options->top_k > 0 && options->top_k < vocab ? options->top_k : vocab;
    double total = 0, kept = 0;
    for (int64_t i = 0; i < count; i++)
        total += exp(((double)scratch[i].logit - (double)scratch[0].logit) / options->temperature);
    if (options->top_p > 0 && options->top_p < 1) {
        int64_t within = 0;
        while (within < count && kept < options->top_p * total)
            kept += exp(((double)scratch[within++].logit - (double)scratch[0].logit) / options->temperature);
        count = within;
        total = kept;
    }
    double target = uniform(options->seed, sample, position) * total, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += exp(((double)scratch[i].logit - (double)scratch[0].logit) / options->temperature);
        if (target < sum)
            return scratch[i].token;
    }
    return scratch[count - 1].token;
}
