/* Threads of the library's own. */
#ifndef SL_BASE_THREAD_H
#define SL_BASE_THREAD_H

#include <sluice/base.h>

#include <pthread.h>

/* Starts a thread that gets no signals but those of its own faults and a profiler's: they are for the program's own
 * threads. what names it in the message. The caller joins *out. */
SL_MUST_CHECK sl_status sl_thread_start(const char *what, void *(*run)(void *), void *user, pthread_t *out);

#endif
