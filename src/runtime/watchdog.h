/* A thread that looks whether the running action comes to an end, on the host and in the stream of kernels: one that does not
 * is reported with its place and the stack of the thread that runs it, and the process is ended. Waits for other ranks do
 * not count. */
#ifndef SL_RUNTIME_WATCHDOG_H
#define SL_RUNTIME_WATCHDOG_H

#include "runtime/program.h"

typedef struct sl_watchdog sl_watchdog;
typedef struct sl_runtime sl_runtime;

/* Watches the runtime's actions, each of which may take that many seconds. The caller stops it before the runtime's
 * group closes. */
SL_MUST_CHECK sl_status sl_watchdog_start(const sl_runtime *runtime, double seconds, sl_watchdog **out);
void sl_watchdog_stop(sl_watchdog *watchdog); /* NULL is fine */

/* The calling thread begins this action; NULL: it runs none. */
void sl_watchdog_note(sl_watchdog *watchdog, const sl_program_action *action);

#endif
