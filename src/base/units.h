/* Quantities as text for people: three digits and the unit that fits. Each writes into text and returns it. */
#ifndef SL_BASE_UNITS_H
#define SL_BASE_UNITS_H

#include <sluice/base.h>

#include <stddef.h>
#include <stdint.h>

/* "1m05s", "2h03m", "3d04h", "12s": how long something still takes */
char *sl_duration_text(double seconds, char *text, size_t size);
/* "431 us", "9.25 ms", "1.23 s", and from a minute on as sl_duration_text: how long something took */
char *sl_seconds_text(double seconds, char *text, size_t size);
/* "12", "12.3k", "4.56M" */
char *sl_count_text(double value, char *text, size_t size);
/* "1.23 GB", "45.6 MB" (powers of 1000) */
char *sl_bytes_text(double bytes, char *text, size_t size);

/* The reverse: a number above 0, or one with a unit of bytes after it ("80GB", "12GiB"). what opens the message. */
SL_MUST_CHECK sl_status sl_parse_memory(const char *what, const char *text, double *out);

/* The s of "3 layers". */
static inline const char *sl_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
