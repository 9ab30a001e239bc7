/* The watchdog: a thread that looks whether the running action comes to an end, on the host and in the stream of kernels. */
#include "runtime/watchdog.h"

#include "base/alloc.h"
#include "base/stack.h"
#include "base/thread.h"
#include "comm/group.h"
#include "runtime/runtime.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* From the report of a hanging action to the end of its process: time in which it may come back, and the other ranks
 * hear of it. */
#define LAST_SECONDS 0.5

struct sl_watchdog {
    const sl_runtime *runtime;
    double seconds;  /* that an action may take */
    double interval; /* between two looks */
    int stop_fd;     /* eventfd */
    pthread_t thread;

    /* Written by the thread that runs the actions. */
    _Atomic uint64_t count; /* of actions begun */
    _Atomic(const sl_program_action *) action;
    _Atomic int64_t step; /* as in messages */
    _Atomic pthread_t runner;
};

void sl_watchdog_note(sl_watchdog *watchdog, const sl_program_action *action)
{
    atomic_store_explicit(&watchdog->runner, pthread_self(), memory_order_relaxed);
    atomic_store_explicit(&watchdog->step, sl_runtime_step_label(watchdog->runtime), memory_order_relaxed);
    atomic_store_explicit(&watchdog->action, action, memory_order_relaxed);
    uint64_t count = atomic_load_explicit(&watchdog->count, memory_order_relaxed);
    atomic_store_explicit(&watchdog->count, count + 1, memory_order_release);
}

/* False once it is to stop. */
static bool sleep_for(const sl_watchdog *watchdog, double seconds)
{
    struct pollfd stop = { .fd = watchdog->stop_fd, .events = POLLIN };
    return poll(&stop, 1, (int)(seconds * 1000)) == 0;
}

/* What a look finds. */
typedef struct sight {
    uint64_t count;                    /* of actions begun */
    const sl_program_action *host;     /* the action that the host is in; NULL: none, or it waits for another rank */
    const sl_program_action *streamed; /* that the stream is in; NULL: none, or it may wait for another rank */
    uint32_t passed;                   /* by the stream */
} sight;

static sight look(const sl_watchdog *watchdog)
{
    const sl_runtime *runtime = watchdog->runtime;
    sight seen = { .count = atomic_load_explicit(&watchdog->count, memory_order_acquire) };
    if (!sl_group_is_waiting(runtime->group))
        seen.host = atomic_load(&watchdog->action);
    if (!atomic_load(&runtime->lanes.may_be_held_up))
        seen.streamed = sl_phases_find_busy(runtime, &seen.passed);
    return seen;
}

static bool host_stays(const sight *before, const sight *now)
{
    return now->host && now->count == before->count;
}

static bool stream_stays(const sight *before, const sight *now)
{
    return now->streamed && now->streamed == before->streamed && now->passed == before->passed;
}

/* Tells all ranks and ends the process unless what was seen to stay goes on meanwhile. */
static void report(sl_watchdog *watchdog, const sight *seen, const sl_program_action *action, bool by_host)
{
    const sl_runtime *runtime = watchdog->runtime;
    char place[256], stack[800], text[SL_FAILURE_TEXT];
    void *frames[SL_STACK_FRAMES];
    int found = by_host ? sl_stack_capture(atomic_load(&watchdog->runner), frames) : 0;
    sl_runtime_describe_action(runtime, atomic_load(&watchdog->step), action, place, sizeof place);
    snprintf(text, sizeof text, "rank %d has been in one action for more than %g s: %s%s%s",
             sl_group_world_rank(runtime->group, runtime->rank), watchdog->seconds, place, found ? "; stack: " : "",
             sl_stack_text(frames, found, stack, sizeof stack));
    if (sl_group_claim_report(runtime->group, SL_ERR_TIMEOUT))
        fprintf(stderr, "sluice: %s\n", text); /* the last chance to say why: the process ends here */
    sl_group_fail_text(runtime->group, SL_ERR_TIMEOUT, text);
    if (!sleep_for(watchdog, LAST_SECONDS))
        return;
    sight now = look(watchdog);
    if (by_host ? now.count == seen->count : stream_stays(seen, &now))
        _exit(SL_EXIT_AGAIN); /* nobody else can: the thread that would does not come back */
}

static void *watch(void *user)
{
    sl_watchdog *watchdog = user;
    sight last = { .count = 0 };
    double on_host = 0, in_stream = 0, looked = sl_now();
    while (sleep_for(watchdog, watchdog->interval)) {
        double now = sl_now(), passed = now - looked;
        sight seen = look(watchdog);
        looked = now;
        if (passed > 2 * watchdog->interval)
            passed = 2 * watchdog->interval; /* a process that was stopped did not run */
        on_host = host_stays(&last, &seen) ? on_host + passed : 0;
        in_stream = stream_stays(&last, &seen) ? in_stream + passed : 0;
        last = seen;
        if (on_host > watchdog->seconds || in_stream > watchdog->seconds) {
            /* A host that waits for its stream is at the last action that it has given to it. */
            report(watchdog, &seen, in_stream > 0 ? seen.streamed : seen.host, on_host > watchdog->seconds);
            on_host = in_stream = 0;
        }
    }
    return NULL;
}

sl_status sl_watchdog_start(const sl_runtime *runtime, double seconds, sl_watchdog **out)
{
    sl_status status = SL_OK;
    sl_watchdog *watchdog = NULL;
    SL_TRY(SL_NEW(watchdog));
    watchdog->runtime = runtime;
    watchdog->seconds = seconds;
    watchdog->interval = seconds > 8 ? 1 : seconds < 0.08 ? 0.01 : seconds / 8;
    watchdog->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (watchdog->stop_fd < 0)
        SL_TRY(sl_fail(SL_ERR_IO, "eventfd: %s", strerror(errno)));
    sl_stack_prepare();
    SL_TRY(sl_thread_start("the watchdog thread", watch, watchdog, &watchdog->thread));
    *out = watchdog;
    watchdog = NULL; /* now the caller's */
done:
    if (watchdog && watchdog->stop_fd >= 0)
        close(watchdog->stop_fd);
    sl_free(watchdog);
    return status;
}

void sl_watchdog_stop(sl_watchdog *watchdog)
{
    if (!watchdog)
        return;
    uint64_t one = 1;
    ssize_t written = write(watchdog->stop_fd, &one, sizeof one);
    (void)written; /* an eventfd at 0 takes it */
    pthread_join(watchdog->thread, NULL);
    close(watchdog->stop_fd);
    sl_free(watchdog);
}
