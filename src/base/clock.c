/* Ticks: which counter to use, and what a tick of it is worth. */
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t sl_clock_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#if defined(__x86_64__)
/* The kernel keeps time by the counter only if it runs at one speed and is the same on all cores. */
static bool counter_is_trusted(void)
{
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (!file)
        return false;
    bool trusted = fgets(name, sizeof name, file) && strcmp(name, "tsc\n") == 0;
    fclose(file);
    return trusted;
}
#endif

/* Both clocks at one moment: the closest of a few tries, in case the thread is interrupted between them. */
static void read_both(const sl_clock *clock, uint64_t *ticks, double *seconds)
{
    uint64_t closest = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t before = sl_clock_ticks(clock);
        double now = sl_now();
        uint64_t took = sl_clock_ticks(clock) - before;
        if (took >= closest)
            continue;
        closest = took;
        *ticks = before + took / 2;
        *seconds = now;
    }
}

void sl_clock_start(sl_clock *clock)
{
#if defined(__x86_64__)
    clock->counter = counter_is_trusted();
#else
    clock->counter = false;
#endif
    read_both(clock, &clock->ticks, &clock->seconds);
}

sl_clock_scale sl_clock_measure(const sl_clock *clock)
{
    sl_clock_scale scale = { 0, 0, 1e-9 };
    read_both(clock, &scale.ticks, &scale.seconds);
    if (clock->counter && scale.ticks > clock->ticks)
        scale.rate = (scale.seconds - clock->seconds) / (double)(scale.ticks - clock->ticks);
    return scale;
}

double sl_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *sl_version(void)
{
    return SLUICE_VERSION;
}
