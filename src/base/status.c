/* Status names and the message of this thread's last failure. */
#include <sluice/base.h>

#include "base/text.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#define MESSAGE_SIZE 2048

static _Thread_local char message[MESSAGE_SIZE];
static _Thread_local uint64_t failures; /* messages that this thread has left */

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
    memcpy(message, sl_text_clean(fresh), sizeof message);
    failures++;
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

uint64_t sl_fail_count(void)
{
    return failures;
}

sl_status sl_fail_callback(sl_status returned, uint64_t count, const char *what)
{
    if (returned == SL_OK)
        return SL_OK;
    if ((size_t)returned >= sizeof statuses / sizeof *statuses)
        return sl_fail(SL_ERR_STAGE, "%s returned %d, which is no status", what, (int)returned);
    if (failures == count)
        return sl_fail(returned, "%s returned %s (%s) and left no message", what, sl_status_name(returned),
                       sl_status_text(returned));
    return returned;
}

const char *sl_error_message(void)
{
    return message;
}
