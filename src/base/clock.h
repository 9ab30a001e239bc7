/* A clock for time stamps that are taken by the thousand: the processor's counter if the kernel trusts it, else
 * nanoseconds of the clock behind sl_now(). Ticks become seconds of sl_now() only when somebody reads them. */
#ifndef SL_BASE_CLOCK_H
#define SL_BASE_CLOCK_H

#include <sluice/base.h>

#include <stdint.h>

typedef struct sl_clock {
    bool counter; /* ticks are the processor's */
    uint64_t ticks;
    double seconds; /* sl_now() at those ticks */
} sl_clock;

/* Chooses what to count and remembers the moment. */
void sl_clock_start(sl_clock *clock);

uint64_t sl_clock_nanoseconds(void);

static inline uint64_t sl_clock_ticks(const sl_clock *clock)
{
#if defined(__x86_64__)
    if (clock->counter)
        return __builtin_ia32_rdtsc(); /* of both compilers; the header of intrinsics is 60,000 lines */
#endif
    (void)clock;
    return sl_clock_nanoseconds();
}

/* Seconds of sl_now() = seconds + (ticks - ticks of `at`) * rate. */
typedef struct sl_clock_scale {
    uint64_t ticks;
    double seconds;
    double rate; /* seconds a tick */
} sl_clock_scale;

/* Anchored at the moment of the call; the rate is the mean since sl_clock_start. */
sl_clock_scale sl_clock_measure(const sl_clock *clock);

static inline double sl_clock_seconds(const sl_clock_scale *scale, uint64_t ticks)
{
    return scale->seconds + (double)(int64_t)(ticks - scale->ticks) * scale->rate;
}

#endif
