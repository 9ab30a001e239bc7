/* Starting threads. */
#include "base/thread.h"

#include <signal.h>
#include <string.h>

sl_status sl_thread_start(const char *what, void *(*run)(void *), void *user, pthread_t *out)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(out, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? sl_fail(SL_ERR_MEMORY, "start %s: %s", what, strerror(failed)) : SL_OK;
}
