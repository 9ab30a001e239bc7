/* UTF-8: what is a character and what is junk. */
#ifndef SL_BASE_UTF8_H
#define SL_BASE_UTF8_H

#include <stddef.h>

/* Bytes (1 to 4) of the character that the size bytes begin with; 0 where there is none: no overlong forms, no
 * surrogates, nothing past U+10FFFF. */
size_t sl_utf8_length(const void *bytes, size_t size);

/* Puts '?' in place of control characters, line breaks and tabs excepted: names from files end up on terminals. */
char *sl_text_clean(char *text); /* returns text */

#endif
