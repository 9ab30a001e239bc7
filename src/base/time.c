/* Clock and version. */
#include <sluice/base.h>

#include <time.h>

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
