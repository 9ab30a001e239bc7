/* Which bytes are a UTF-8 character: no overlong forms, no surrogates, nothing past U+10FFFF. */
#include "base/utf8.h"

#include <stddef.h>

int sl_utf8_length(const char *text)
{
    const unsigned char *bytes = (const unsigned char *)text;
    static const struct {
        unsigned char mask, lead, low, high; /* low and high bound the second byte: no overlong form, no surrogate */
        int length;
    } forms[] = {
        { 0x80, 0x00, 0, 0, 1 },       { 0xe0, 0xc0, 0x80, 0xbf, 2 }, { 0xff, 0xe0, 0xa0, 0xbf, 3 },
        { 0xff, 0xed, 0x80, 0x9f, 3 }, { 0xf0, 0xe0, 0x80, 0xbf, 3 }, { 0xff, 0xf0, 0x90, 0xbf, 4 },
        { 0xff, 0xf4, 0x80, 0x8f, 4 }, { 0xfc, 0xf0, 0x80, 0xbf, 4 },
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if ((bytes[0] & forms[i].mask) != forms[i].lead)
            continue;
        if (forms[i].length == 1)
            return 1;
        if (bytes[0] < 0xc2 || bytes[1] < forms[i].low || bytes[1] > forms[i].high)
            return 0;
        for (int j = 2; j < forms[i].length; j++) {
            if ((bytes[j] & 0xc0) != 0x80)
                return 0;
        }
        return forms[i].length;
    }
    return 0;
}
