/* Text that reads the same everywhere. A program may have set a locale (setlocale) in which a comma in a number would
 * break files, so numbers are written and read in the locale "C" for the time of a call. */
#include "base/text.h"

#include <sluice/base.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Locale ---------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain;

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* static in the C library: nothing to free, nothing to fail */
}

locale_t sl_locale_begin(void)
{
    pthread_once(&once, make_plain);
    return uselocale(plain);
}

void sl_locale_end(locale_t previous)
{
    uselocale(previous);
}

static double to_double(const char *text, char **end)
{
    locale_t previous = sl_locale_begin();
    double value = strtod(text, end);
    sl_locale_end(previous);
    return value;
}

char *sl_double_text(double value, char *text, size_t size)
{
    locale_t previous = sl_locale_begin();
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    sl_locale_end(previous);
    return text;
}

int sl_case_lower(char letter)
{
    return letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : (unsigned char)letter;
}

int sl_case_compare(const char *a, const char *b, size_t most)
{
    for (size_t i = 0; i < most; i++) {
        int difference = sl_case_lower(a[i]) - sl_case_lower(b[i]);
        if (difference != 0 || a[i] == '\0')
            return difference;
    }
    return 0;
}

/* ---- Numbers: the whole text must be the number ---------------------------------------------- */

sl_status sl_parse_int(const char *what, const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool digits = isdigit((unsigned char)text[0]) || (text[0] == '-' && isdigit((unsigned char)text[1]));
    if (!digits || *end != '\0')
        return sl_fail(SL_ERR_ARGUMENT, "%s: '%.100s' is not a whole number", what, text);
    if (errno == ERANGE || value < min || value > max)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %.100s is outside %" PRId64 " to %" PRId64, what, text, min, max);
    *out = value;
    return SL_OK;
}

sl_status sl_parse_double(const char *what, const char *text, double min, double max, double *out)
{
    char *end = NULL;
    double value = to_double(text, &end);
    if (text[0] == '\0' || isspace((unsigned char)text[0]) || *end != '\0' || isnan(value))
        return sl_fail(SL_ERR_ARGUMENT, "%s: '%.100s' is not a number", what, text);
    if (value < min || value > max)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %.100s is outside %.9g to %.9g", what, text, min, max);
    *out = value;
    return SL_OK;
}

sl_status sl_parse_bool(const char *what, const char *text, bool *out)
{
    static const char *const words[] = { "false", "true", "no", "yes", "0", "1", "off", "on" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (sl_case_compare(text, words[i], SIZE_MAX) == 0) {
            *out = i % 2 == 1;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "%s: '%.100s' is neither true nor false", what, text);
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

size_t sl_utf8_length(const void *bytes, size_t size)
{
    const unsigned char *text = bytes;
    if (size == 0)
        return 0;
    unsigned first = text[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                    : (first & 0xf0) == 0xe0         ? 3
                    : first >= 0xf0 && first <= 0xf4 ? 4
                                                     : 0;
    if (length == 0 || size < length)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    bool overlong = (first == 0xe0 && text[1] < 0xa0) || (first == 0xf0 && text[1] < 0x90);
    bool beyond = (first == 0xed && text[1] >= 0xa0) || (first == 0xf4 && text[1] >= 0x90); /* surrogates, > 10ffff */
    return overlong || beyond ? 0 : length;
}

char *sl_text_clean(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if ((*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f)
            *c = '?';
        else if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f) /* U+0080 to U+009F */
            c[0] = c[1] = '?';
    }
    return text;
}
