/* A Feistel network over the next power of four, walked until it lands below size. */
#include "data/permute.h"

enum { ROUNDS = 6 };

/* splitmix64's finalizer: every bit of the result depends on every bit of x. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t sl_permute_index(uint64_t index, uint64_t size, uint64_t seed, uint64_t round)
{
    int half = 1; /* bits of one side */
    while (half < 32 && (size - 1) >> (2 * half) != 0)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = mix(mix(seed) + round);
    do { /* each step is a bijection of [0, 4^half); the orbit of an index below size comes back below size */
        uint64_t left = index >> half, right = index & mask;
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t next = left ^ (mix(key + (uint64_t)i * 0x632be59bd9b4e019u + right) & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= size);
    return index;
}
