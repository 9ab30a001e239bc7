/* Failures of code that is not ours: callbacks need not leave a message. */
#ifndef SL_BASE_STATUS_H
#define SL_BASE_STATUS_H

#include <sluice/base.h>

/* Messages that this thread has left so far. */
uint64_t sl_fail_count(void);

/* What a callback's status becomes: one that exists and has a message. count is sl_fail_count() from before the call,
 * what names the callback ("forward"). */
sl_status sl_fail_callback(sl_status returned, uint64_t count, const char *what);

#endif
