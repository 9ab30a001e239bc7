/* Status names and the message of this thread's last failure. */
#include <sluice/base.h>

#include "base/locale.h"

#include <stdio.h>
#include <string.h>

#define MESSAGE_SIZE 2048

static _Thread_local char message[MESSAGE_SIZE];

static const struct {
    const char *name;
    const char *text;
} statuses[] = {
#define ROW(name, text) { #name, text },
    SL_STATUS_LIST(ROW)
#undef ROW
};

static size_t row_of(sl_status status)
{
    size_t row = (size_t)status;
    return row < sizeof statuses / sizeof *statuses ? row : SL_ERR_INTERNAL;
}

const char *sl_status_name(sl_status status)
{
    return statuses[row_of(status)].name;
}

const char *sl_status_text(sl_status status)
{
    return statuses[row_of(status)].text;
}

sl_status sl_fail_v(sl_status code, const char *format, va_list args)
{
    char fresh[MESSAGE_SIZE]; /* the arguments may point into the old message */
    locale_t previous = sl_locale_begin();
    vsnprintf(fresh, sizeof fresh, format, args);
    sl_locale_end(previous);
    memcpy(message, fresh, sizeof message);
    return code;
}

sl_status sl_fail(sl_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    sl_fail_v(code, format, args);
    va_end(args);
    return code;
}

sl_status sl_fail_context(sl_status code, const char *format, ...)
{
    char old[MESSAGE_SIZE];
    memcpy(old, message, sizeof old);
    va_list args;
    va_start(args, format);
    sl_fail_v(code, format, args);
    va_end(args);
    return sl_fail(code, "%s: %s", message, old);
}

const char *sl_error_message(void)
{
    return message;
}
