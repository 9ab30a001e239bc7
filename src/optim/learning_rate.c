/* The learning rate over time, and clipping. */
#include <sluice/optim.h>

#include <math.h>

double sl_lr_at(const sl_lr_schedule *schedule, int64_t step)
{
    const double pi = 3.14159265358979323846;
    if (step < schedule->warmup)
        return schedule->lr * (double)(step + 1) / (double)schedule->warmup;
    int64_t length = schedule->steps - schedule->warmup;
    double past = length > 0 ? (double)(step - schedule->warmup) / (double)length : 1; /* share of the fall */
    past = past > 1 ? 1 : past;
    double range = schedule->lr - schedule->min_lr;
    switch (schedule->decay) {
    case SL_DECAY_COSINE:
        return schedule->min_lr + range * 0.5 * (1 + cos(pi * past));
    case SL_DECAY_LINEAR:
        return schedule->min_lr + range * (1 - past);
    default:
        return schedule->lr;
    }
}

double sl_grad_norm(const double *square_sums, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += square_sums[i];
    return sqrt(sum);
}

double sl_clip_scale(double norm, double clip)
{
    if (clip <= 0)
        return 1;
    double scale = clip / (norm + 1e-6);
    return scale < 1 ? scale : 1;
}
