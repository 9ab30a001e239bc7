/* The locale "C" for the time of a call: a program may have set another (setlocale), and a comma in a number breaks
 * files. */
#include "base/locale.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

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

double sl_text_to_double(const char *text, char **end)
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
