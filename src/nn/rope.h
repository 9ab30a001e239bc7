/* Rotary position embedding: the angles. */
#ifndef SL_NN_ROPE_H
#define SL_NN_ROPE_H

#include <sluice/nn.h>

/* cos and sin are [places, head_dim / 2]: of the angle by which pair i is turned at each position. */
void sl_nn_rope_fill(const sl_rope_config *config, int64_t head_dim, int64_t places, float *cos, float *sin);

#endif
