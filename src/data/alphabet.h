/* GPT-2's printable alphabet: each byte is written as one Unicode character in vocabulary files. */
#ifndef SL_DATA_ALPHABET_H
#define SL_DATA_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>

/* Turns a token as it stands in a file (UTF-8) into its bytes, at most as many as text has; out may be text. False
 * where a character is not of the alphabet: then nothing is said about out. */
bool sl_alphabet_decode(const char *text, unsigned char *out, size_t *length);

/* The character that stands for the byte, as UTF-8 with a NUL: at most 3 bytes. */
void sl_alphabet_encode(unsigned char byte, char out[3]);

#endif
