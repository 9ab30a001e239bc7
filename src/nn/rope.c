/* Rotary position embedding: frequencies with their scalings, in f32 as PyTorch's models compute them. */
#include "nn/rope.h"

#include <math.h>

/* Llama 3 keeps the fast frequencies, slows the slow ones by the factor and blends those between. */
static float scale_llama3(const sl_rope_config *config, float frequency)
{
    const float two_pi = 6.2831853071795864769f;
    float context = (float)config->original_max_position_embeddings, wavelength = two_pi / frequency;
    float low = (float)config->low_freq_factor, high = (float)config->high_freq_factor, factor = (float)config->factor;
    if (wavelength > context / low)
        return frequency / factor;
    if (wavelength < context / high)
        return frequency;
    float smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

void sl_nn_rope_fill(const sl_rope_config *config, int64_t head_dim, int64_t places, float *cos, float *sin)
{
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float frequency = 1.0f / powf((float)config->theta, (float)(2 * i) / (float)head_dim);
        if (config->kind == SL_ROPE_LINEAR)
            frequency /= (float)config->factor;
        else if (config->kind == SL_ROPE_LLAMA3)
            frequency = scale_llama3(config, frequency);
        for (int64_t p = 0; p < places; p++) {
            float angle = (float)p * frequency;
            cos[p * half + i] = cosf(angle);
            sin[p * half + i] = sinf(angle);
        }
    }
}
