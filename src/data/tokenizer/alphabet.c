/* GPT-2's printable alphabet. */
#include "data/tokenizer/tokenizer.h"

#include "base/text.h"

/* Bytes that stand for themselves: printable in Latin-1. The others are numbered from 256 in their order. */
static bool is_plain(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The byte that a character stands for, or -1. */
static int byte_of(uint32_t character)
{
    if (character < 256)
        return is_plain(character) ? (int)character : -1;
    uint32_t number = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        if (!is_plain(byte) && number++ == character)
            return (int)byte;
    }
    return -1;
}

bool sl_alphabet_decode(const void *text, size_t left, unsigned char *out, size_t *length)
{
    const unsigned char *from = text;
    size_t used = 0;
    while (left > 0) {
        size_t size = sl_utf8_length(from, left);
        if (size == 0 || size > 2) /* the alphabet ends below U+0800 */
            return false;
        int byte = byte_of(size == 1 ? from[0] : (from[0] & 0x1fu) << 6 | (from[1] & 0x3fu));
        if (byte < 0)
            return false;
        out[used++] = (unsigned char)byte;
        from += size;
        left -= size;
    }
    *length = used;
    return true;
}

void sl_alphabet_encode(unsigned char byte, char out[3])
{
    uint32_t character = 256;
    for (unsigned before = 0; before < byte; before++)
        character += !is_plain(before);
    if (is_plain(byte))
        character = byte;
    size_t used = 0;
    if (character < 128) {
        out[used++] = (char)character;
    } else {
        out[used++] = (char)(0xc0u | character >> 6);
        out[used++] = (char)(0x80u | (character & 0x3fu));
    }
    out[used] = '\0';
}

sl_status sl_alphabet_spell(const unsigned char *bytes, size_t size, byte_list *out)
{
    sl_status status = SL_OK;
    for (size_t i = 0; i < size; i++) {
        char text[3];
        sl_alphabet_encode(bytes[i], text);
        SL_TRY(sl_byte_list_add(out, text, text[1] ? 2 : 1));
    }
done:
    return status;
}
