/* Which bytes are a UTF-8 character, and which of them a terminal would obey. */
#include "base/utf8.h"

#include <stdbool.h>

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
