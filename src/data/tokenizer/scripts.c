/* The pattern of the pre-tokenizer UnicodeScripts: runs of characters of one script. Japanese and Chinese are one script;
 * a blank, and what has no script, belongs to the run that it follows. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"

#include <string.h>

/* Those of Unicode 9, as in Hugging Face's table, in the order in which they are tried. Common and Han are apart. */
static const char scripts[] =
    "Latn Cyrl Arab Hang Zinh Grek Hebr Deva Thai Beng Taml Telu Armn Geor Gujr Guru Knda Mlym Sinh Laoo Tibt Mymr "
    "Ethi "
    "Khmr Mong Adlm Aghb Ahom Armi Avst Bali Bamu Bass Batk Bhks Bopo Brah Brai Bugi Buhd Cakm Cans Cari Cham Cher "
    "Copt "
    "Cprt Dsrt Dupl Egyp Elba Glag Goth Gran Hano Hatr Hluw Hmng Hung Ital Java Kali Khar Khoj Kthi Lana Lepc Limb "
    "Lina "
    "Linb Lisu Lyci Lydi Mahj Mand Mani Marc Mend Merc Mero Modi Mroo Mtei Mult Narb Nbat Newa Nkoo Ogam Olck Orkh "
    "Orya "
    "Osge Osma Palm Pauc Perm Phag Phli Phlp Phnx Plrd Prti Rjng Runr Samr Sarb Saur Sgnw Shaw Shrd Sidd Sind Sora "
    "Sund "
    "Sylo Syrc Tagb Takr Tale Talu Tang Tavt Tfng Tglg Thaa Tirh Ugar Vaii Wara Xpeo Xsux Yiii";

#define LONG_VOWEL "\\x{30fc}" /* Han here, Common in Unicode */
#define HAN "\\p{Hani}\\p{Hira}\\p{Kana}" LONG_VOWEL

static sl_status add(byte_list *list, const char *text)
{
    return sl_byte_list_add(list, text, strlen(text));
}

/* \p{NAME} for each script, with texts before, between and after the two mentions of it. */
static sl_status add_each(byte_list *list, const char *before, const char *between, const char *after)
{
    sl_status status = SL_OK;
    for (const char *name = scripts; *name; name += name[4] ? 5 : 4) {
        SL_TRY(add(list, before));
        SL_TRY(add(list, "\\p{"));
        SL_TRY(sl_byte_list_add(list, name, 4));
        SL_TRY(add(list, "}"));
        if (!between)
            continue;
        SL_TRY(add(list, between));
        SL_TRY(sl_byte_list_add(list, name, 4));
        SL_TRY(add(list, after));
    }
done:
    return status;
}

sl_status sl_pattern_scripts(char **out)
{
    sl_status status = SL_OK;
    byte_list list = { 0 };
    SL_TRY(add(&list, "(?(DEFINE)(?<any>[ ]|[^\\p{Zyyy}" HAN));
    SL_TRY(add_each(&list, "", NULL, NULL));
    SL_TRY(add(&list, "]))(?:"));
    SL_TRY(add(&list, "(?![ " LONG_VOWEL "])\\p{Zyyy}(?:(?!" LONG_VOWEL ")\\p{Zyyy}|(?&any))*+"));
    SL_TRY(add(&list, "|[" HAN "](?:[" HAN "]|(?&any))*+"));
    SL_TRY(add_each(&list, "|", "(?:\\p{", "}|(?&any))*+"));
    SL_TRY(sl_byte_list_add(&list, ")", 2));
    *out = (char *)list.data;
    list.data = NULL;
done:
    sl_free(list.data);
    return status;
}
