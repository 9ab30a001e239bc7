/* Patterns of tokenizer files. They are written for Oniguruma; PCRE2 reads them with small changes: what a blank and a
 * letter of a word are, and names of properties. */
#include "data/tokenizer/tokenizer.h"

#include "base/alloc.h"

#include <string.h>

#define BLANKS "\\t-\\r\\x{85}\\p{Z}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

/* Names that PCRE2 does not know. */
static const struct property_name {
    const char *given, *known;
} property_names[] = {
    { "Letter", "L" },
    { "Mark", "M" },
    { "Number", "N" },
    { "Punctuation", "P" },
    { "Symbol", "S" },
    { "Separator", "Z" },
    { "Other", "C" },
    { "Alpha", "Alphabetic" },
    { "Digit", "Nd" },
    { "Lower", "Lowercase" },
    { "Upper", "Uppercase" },
    { "Punct", "P" },
    { "Space", "White_Space" },
    { "Uppercase_Letter", "Lu" },
    { "Lowercase_Letter", "Ll" },
    { "Decimal_Number", "Nd" },
};

/* Properties that are no script, of those with three letters or more. */
static const char *const binary_names[] = { "Alphabetic", "Lowercase", "Uppercase",   "White_Space",       "Any",
                                            "Emoji",      "ASCII",     "Ideographic", "Emoji_Presentation" };

static sl_status add(byte_list *list, const char *text)
{
    return sl_byte_list_add(list, text, strlen(text));
}

/* The name between the braces of \p{^Name}: what PCRE2 calls it. A script means the script alone, not also the
 * characters that it shares with others. */
static sl_status add_property(byte_list *list, const char *name, size_t length)
{
    sl_status status = SL_OK;
    bool script = length > 2;
    const char *known = NULL;
    if (length > 0 && *name == '^') {
        SL_TRY(add(list, "^"));
        name++;
        length--;
    }
    for (size_t i = 0; i < sizeof property_names / sizeof *property_names; i++) {
        if (strlen(property_names[i].given) == length && memcmp(property_names[i].given, name, length) == 0)
            known = property_names[i].known;
    }
    if (known)
        return add(list, known);
    for (size_t i = 0; i < sizeof binary_names / sizeof *binary_names; i++) {
        if (strlen(binary_names[i]) == length && memcmp(binary_names[i], name, length) == 0)
            script = false;
    }
    if (script)
        SL_TRY(add(list, "sc:"));
    SL_TRY(sl_byte_list_add(list, name, length));
done:
    return status;
}

/* What stands for the escape in PCRE2; NULL if it is the same. */
static const char *translate(char escape, bool in_class)
{
    switch (escape) {
    case 's':
        return in_class ? BLANKS : "[" BLANKS "]";
    case 'w':
        return in_class ? WORD : "[" WORD "]";
    case 'h':
        return in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
    case 'S':
        return in_class ? NULL : "[^" BLANKS "]";
    case 'W':
        return in_class ? NULL : "[^" WORD "]";
    default:
        return NULL;
    }
}

static sl_status rewrite(const char *pattern, byte_list *out)
{
    sl_status status = SL_OK;
    int depth = 0; /* of classes */
    for (const char *at = pattern; *at; at++) {
        const char *other = *at == '\\' ? translate(at[1], depth > 0) : NULL;
        if (other) {
            SL_TRY(add(out, other));
            at++;
        } else if (*at == '\\' && (at[1] == 'p' || at[1] == 'P') && at[2] == '{') {
            size_t length = strcspn(at + 3, "}");
            SL_TRY(sl_byte_list_add(out, at, 3));
            SL_TRY(add_property(out, at + 3, length));
            at += 2 + length;
        } else if (*at == '\\' && at[1]) {
            SL_TRY(sl_byte_list_add(out, at++, 2));
        } else {
            if (*at == '[')
                depth = 1;
            else if (*at == ']')
                depth = 0;
            SL_TRY(sl_byte_list_add(out, at, 1));
        }
    }
    SL_TRY(sl_byte_list_add(out, "", 1));
done:
    return status;
}

sl_status sl_pattern_compile(const char *where, const char *pattern, pcre2_code **out)
{
    sl_status status = SL_OK;
    int error;
    PCRE2_SIZE offset;
    byte_list text = { 0 };
    SL_TRY(rewrite(pattern, &text));
    pcre2_code *code = pcre2_compile(text.data, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);
    if (!code) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(error, reason, sizeof reason);
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: pattern '%.100s', character %zu: %s", where, (const char *)text.data,
                       (size_t)offset, (const char *)reason));
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it the interpreter matches */
    *out = code;
done:
    sl_free(text.data);
    return status;
}

sl_status sl_pattern_quote(const char *text, char **out)
{
    sl_status status = SL_OK;
    byte_list list = { 0 };
    for (; *text; text++) {
        if (strchr("\\^$.[]|()?*+{}-#&~", *text))
            SL_TRY(add(&list, "\\"));
        SL_TRY(sl_byte_list_add(&list, text, 1));
    }
    SL_TRY(sl_byte_list_add(&list, "", 1));
    *out = (char *)list.data;
    list.data = NULL;
done:
    sl_free(list.data);
    return status;
}
