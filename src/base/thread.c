/* Starting threads. */
#include "base/thread.h"

#include <signal.h>
#include <string.h>

sl_status sl_thread_start(const char *what, void *(*run)(void *), void *user, pthread_t *out)
{
    static const int its_own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF };
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof its_own / sizeof *its_own; i++)
        sigdelset(&others, its_own[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    int failed = pthread_create(out, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? sl_fail(SL_ERR_MEMORY, "start %s: %s", what, strerror(failed)) : SL_OK;
}
