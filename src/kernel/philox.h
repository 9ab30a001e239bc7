/* Philox 4x32-10 (Salmon et al. 2011): random bits as a function of a counter and a key, so that dropout depends on the
 * element and never on who computes it. */
#ifndef SL_KERNEL_PHILOX_H
#define SL_KERNEL_PHILOX_H

#include <sluice/kernel.h>

#ifdef __CUDACC__
#define SL_ON_DEVICE __host__ __device__ /* the GPU draws the same bits */
#else
#define SL_ON_DEVICE
#endif

enum { SL_PHILOX_ROUNDS = 10 };
#define SL_PHILOX_M0 0xD2511F53u
#define SL_PHILOX_M1 0xCD9E8D57u
#define SL_PHILOX_W0 0x9E3779B9u
#define SL_PHILOX_W1 0xBB67AE85u

SL_ON_DEVICE static inline void sl_philox(uint32_t counter[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < SL_PHILOX_ROUNDS; round++) {
        uint64_t first = (uint64_t)SL_PHILOX_M0 * counter[0], second = (uint64_t)SL_PHILOX_M1 * counter[2];
        counter[0] = (uint32_t)(second >> 32) ^ counter[1] ^ key0;
        counter[2] = (uint32_t)(first >> 32) ^ counter[3] ^ key1;
        counter[1] = (uint32_t)second;
        counter[3] = (uint32_t)first;
        key0 += SL_PHILOX_W0;
        key1 += SL_PHILOX_W1;
    }
}

/* Elements of the global batch go in groups of 64, which 16 counter blocks serve: element e takes word e / 16 % 4 of
 * block e / 64 * 16 + e % 16, so that 16 neighbors are the same word of 16 blocks whatever the vector width. */
enum { SL_PHILOX_GROUP = 64, SL_PHILOX_BLOCKS = 16 };

/* One call that drops elements: which of them stay, and times what. */
typedef struct sl_dropout_stream {
    uint64_t first; /* global number of the call's element 0 */
    uint64_t step;
    uint32_t key0, key1;
    uint32_t threshold; /* an element is dropped if its word is below */
    double keep;        /* 1 / (1 - p) */
    /* From which sl_dropout_resolve finds first, step and keys if the state of the generator lies on the device. */
    const sl_rng *rng; /* NULL: they are right */
    uint64_t each, key;
    int64_t sample_offset;
} sl_dropout_stream;

static inline bool sl_call_drops(const sl_kernel_call *call)
{
    return call->rng.training && call->attrs.p > 0 && call->op != SL_OP_ATTENTION_CACHED;
}

/* Where the bits of the stream begin if this is the state of the generator. */
SL_ON_DEVICE static inline void sl_dropout_seed(sl_dropout_stream *stream, const sl_rng *rng)
{
    /* Mixes seed and node so that neither can cancel the other (the finalizer of splitmix64). */
    uint64_t mix = rng->seed * 0x9E3779B97F4A7C15u + stream->key;
    mix = (mix ^ mix >> 30) * 0xBF58476D1CE4E5B9u;
    mix = (mix ^ mix >> 27) * 0x94D049BB133111EBu;
    mix ^= mix >> 31;
    stream->first = (uint64_t)(rng->sample_offset + stream->sample_offset) * stream->each;
    stream->step = rng->step;
    stream->key0 = (uint32_t)mix;
    stream->key1 = (uint32_t)(mix >> 32);
}

/* The stream as a kernel uses it: a kernel of a GPU calls this before it draws. */
SL_ON_DEVICE static inline sl_dropout_stream sl_dropout_resolve(const sl_dropout_stream *given)
{
    sl_dropout_stream stream = *given;
    if (stream.rng)
        sl_dropout_seed(&stream, stream.rng);
    return stream;
}

/* `each` elements make a sample. */
static inline sl_dropout_stream sl_dropout_start(const sl_kernel_call *call, uint64_t each)
{
    double threshold = call->attrs.p * 0x1p32;
    sl_dropout_stream stream;
    stream.threshold = threshold >= 0xffffffffu ? 0xffffffffu : (uint32_t)threshold;
    stream.keep = 1 / (1 - call->attrs.p);
    stream.rng = call->step_rng;
    stream.each = each;
    stream.key = call->attrs.key;
    stream.sample_offset = 0;
    sl_dropout_seed(&stream, &call->rng);
    stream.sample_offset = call->rng.sample_offset;
    return stream;
}

/* For DROPOUT, whose samples are dim 0 of its input. */
static inline sl_dropout_stream sl_dropout_of_samples(const sl_kernel_call *call)
{
    int64_t samples = call->inputs[0].meta.shape.dims[0];
    return sl_dropout_start(call, samples > 0 ? (uint64_t)(sl_meta_count(&call->inputs[0].meta) / samples) : 0);
}

/* For ATTENTION and its gradient: the elements are the weights [B,H,T,S], row = (b * H + h) * T + t. */
static inline sl_dropout_stream sl_dropout_of_weights(const sl_kernel_call *call)
{
    const int64_t *q = call->inputs[0].meta.shape.dims, *k = call->inputs[1].meta.shape.dims;
    return sl_dropout_start(call, (uint64_t)q[2] * (uint64_t)q[1] * (uint64_t)k[1]);
}

/* The words of the counter block that serves an element, which is numbered in the global batch. */
SL_ON_DEVICE static inline void sl_dropout_words(const sl_dropout_stream *stream, uint64_t element, uint32_t words[4])
{
    uint64_t block = element / SL_PHILOX_GROUP * SL_PHILOX_BLOCKS + element % SL_PHILOX_BLOCKS;
    words[0] = (uint32_t)block;
    words[1] = (uint32_t)(block >> 32);
    words[2] = (uint32_t)stream->step;
    words[3] = (uint32_t)(stream->step >> 32);
    sl_philox(words, stream->key0, stream->key1);
}

/* 0 if element `index` of the call is dropped, else value * keep. */
SL_ON_DEVICE static inline double sl_dropout_apply(const sl_dropout_stream *stream, uint64_t index, double value)
{
    uint64_t element = stream->first + index;
    uint32_t words[4];
    sl_dropout_words(stream, element, words);
    return words[element / SL_PHILOX_BLOCKS % 4] >= stream->threshold ? value * stream->keep : 0;
}

#endif
