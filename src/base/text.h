/* Text: numbers and words that read the same in every locale of the program around the library, and UTF-8. */
#ifndef SL_BASE_TEXT_H
#define SL_BASE_TEXT_H

#include <locale.h>
#include <stddef.h>

/* Until the end this thread prints and reads as in the locale "C"; begin returns what it had. May be nested. */
locale_t sl_locale_begin(void);
void sl_locale_end(locale_t previous);

/* Writes the shortest text that reads back as the same finite number; 32 bytes are enough. Returns text. */
char *sl_double_text(double value, char *text, size_t size);

/* strncasecmp and tolower of ASCII. */
int sl_case_compare(const char *a, const char *b, size_t most);
int sl_case_lower(char letter);

/* Bytes (1 to 4) of the character that the size bytes begin with; 0 if there is none: no overlong forms, no
 * surrogates, nothing past U+10FFFF. */
size_t sl_utf8_length(const void *bytes, size_t size);

/* Puts '?' in place of control characters, line breaks and tabs excepted: names from files end up on terminals. */
char *sl_text_clean(char *text); /* returns text */

#endif
