/* Three digits and a unit. */
#include "base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

char *sl_duration_text(double seconds, char *text, size_t size)
{
    int64_t whole = isfinite(seconds) && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;
    if (whole < 60)
        snprintf(text, size, "%" PRId64 "s", whole);
    else if (whole < 3600)
        snprintf(text, size, "%" PRId64 "m%02" PRId64 "s", whole / 60, whole % 60);
    else if (whole < 86400)
        snprintf(text, size, "%" PRId64 "h%02" PRId64 "m", whole / 3600, whole / 60 % 60);
    else
        snprintf(text, size, "%" PRId64 "d%02" PRId64 "h", whole / 86400, whole / 3600 % 24);
    return text;
}

/* Digits after the point, so that there are three in all. */
static int decimals_of(double value)
{
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

char *sl_seconds_text(double seconds, char *text, size_t size)
{
    static const struct {
        double per_second;
        const char *name;
    } units[] = { { 1e6, "us" }, { 1e3, "ms" }, { 1, "s" } };
    if (!(seconds < 59.95))
        return sl_duration_text(seconds, text, size);
    int unit = 0;
    while (unit < 2 && seconds * units[unit].per_second >= 999.5)
        unit++;
    double value = seconds * units[unit].per_second;
    snprintf(text, size, "%.*f %s", decimals_of(value), value, units[unit].name);
    return text;
}

/* Three digits and the power of 1000 that fits. */
static char *scaled(double value, const char *blank, const char *unit, char *text, size_t size)
{
    static const char *const prefixes[] = { "", "k", "M", "G", "T", "P" };
    int power = 0;
    for (; fabs(value) >= 999.5 && power < 5; power++)
        value /= 1000;
    int decimals = power == 0 && value == floor(value) ? 0 : decimals_of(value);
    snprintf(text, size, "%.*f%s%s%s", decimals, value, blank, prefixes[power], unit);
    return text;
}

char *sl_count_text(double value, char *text, size_t size)
{
    return scaled(value, "", "", text, size);
}

char *sl_bytes_text(double bytes, char *text, size_t size)
{
    return scaled(bytes, " ", "B", text, size);
}

sl_status sl_parse_memory(const char *what, const char *text, double *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = { { "KiB", 0x1p10 }, { "MiB", 0x1p20 }, { "GiB", 0x1p30 }, { "TiB", 0x1p40 }, { "kB", 1e3 },
                  { "MB", 1e6 },     { "GB", 1e9 },     { "TB", 1e12 },    { "B", 1 } };
    char number[64];
    double unit = 1, value;
    size_t length = strlen(text);
    if (length >= sizeof number)
        return sl_fail(SL_ERR_ARGUMENT, "%s: '%.60s...' is not an amount of memory", what, text);
    snprintf(number, sizeof number, "%s", text);
    for (size_t n = 0; n < sizeof units / sizeof *units; n++) {
        size_t end = strlen(units[n].name);
        if (length > end && strcmp(text + length - end, units[n].name) == 0) {
            number[length - end] = '\0';
            unit = units[n].bytes;
            break;
        }
    }
    sl_status status = sl_parse_double(what, number, 0, 1e300, &value);
    if (status != SL_OK)
        return status;
    if (value <= 0)
        return sl_fail(SL_ERR_ARGUMENT, "%s: 0 is no memory", what);
    *out = value * unit;
    return SL_OK;
}
