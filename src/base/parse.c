/* Numbers from text; the whole text must be the number. */
#include <sluice/base.h>

#include "base/locale.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    double value = sl_text_to_double(text, &end);
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
