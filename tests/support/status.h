/* What a call of the library gave: that it is well, or that it failed and why. */
#ifndef TESTS_SUPPORT_STATUS_H
#define TESTS_SUPPORT_STATUS_H

#include <sluice/base.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static inline void ok(sl_status status)
{
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
}

static inline void says(sl_status status, const char *text)
{
    assert_int_not_equal(status, SL_OK);
    if (!strstr(sl_error_message(), text))
        fail_msg("expected '%s', the message is: %s", text, sl_error_message());
}

#endif
