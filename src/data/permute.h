/* Permutations of 0..size-1 that are computed element by element. */
#ifndef SL_DATA_PERMUTE_H
#define SL_DATA_PERMUTE_H

#include <stdint.h>

/* Where index < size goes in the permutation that seed and round choose; a bijection for each. */
uint64_t sl_permute_index(uint64_t index, uint64_t size, uint64_t seed, uint64_t round);

#endif
