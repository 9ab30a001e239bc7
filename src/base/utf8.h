/* UTF-8: what is a character and what is junk. */
#ifndef SL_BASE_UTF8_H
#define SL_BASE_UTF8_H

/* Bytes (1 to 4) of the character at text, which ends in NUL; 0 where the bytes there are no UTF-8. */
int sl_utf8_length(const char *text);

#endif
