/* Text that reads the same wherever the program around the library comes from: a point in numbers, ASCII in words,
 * whatever locale that program has set. */
#ifndef SL_BASE_LOCALE_H
#define SL_BASE_LOCALE_H

#include <locale.h>
#include <stddef.h>

/* Until the end this thread prints and reads as in the locale "C"; begin returns what it had. May be nested. */
locale_t sl_locale_begin(void);
void sl_locale_end(locale_t previous);

/* strtod in "C". */
double sl_text_to_double(const char *text, char **end);
/* Writes the shortest text that reads back as the same finite number; 32 bytes are enough. Returns text. */
char *sl_double_text(double value, char *text, size_t size);

/* strncasecmp and tolower of ASCII. */
int sl_case_compare(const char *a, const char *b, size_t most);
int sl_case_lower(char letter);

#endif
