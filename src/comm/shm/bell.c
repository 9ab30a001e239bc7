/* Waiting in shared memory: a bounded busy wait, then sleep on the rank's bell, a futex that every event for the rank
 * rings if the rank sleeps. */
#include "comm/shm/link.h"
#include "comm/wait.h"

#include <limits.h>
#include <sched.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A sleeper looks again after this long, in case a process died between an event and its bell. */
#define SLEEP_LIMIT_NS 250000000L
#define WAITS_PER_MOVE 64
/* With more ranks than cores a wait sleeps after it has yielded this often: others need the core. */
#define CROWDED_YIELDS 4
#define SPINS_PER_LOOK 16 /* a look at the clock and the peer's core costs as much as a few spins */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void sl_shm_ring(sl_shm_rank *rank)
{
    atomic_fetch_add(&rank->bell, 1);
    syscall(SYS_futex, &rank->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sl_shm_ring_all(sl_shm *shm)
{
    for (uint32_t r = 0; r < shm->control->size; r++)
        sl_shm_ring(&shm->control->ranks[r]);
}

/* Only a warning, unless ranks wait for each other: the one it waits for may compute for hours. If that one is caught in a
 * loop, its own watchdog ends it. */
static void look_at_long_wait(const sl_shm_link *link, sl_pause *pause)
{
    const sl_shm_control *control = link->shm->control;
    char waiting[256], doing[320] = "";
    if (control->hang_timeout <= 0 || sl_now() - pause->slept < control->hang_timeout)
        return;
    sl_shm_set_wait(link->me, &pause->wait, pause->slept); /* another thread's wait may have been written over it */
    if (pause->warned) {                                   /* and the caller has looked again since */
        sl_shm_confirm_wait(link->me);
        sl_shm_fail_circle(link->shm, link->base.rank);
        return;
    }
    pause->warned = true;
    if (pause->wait.peer >= 0 && pause->wait.peer < (int)control->size)
        sl_shm_describe(&control->ranks[pause->wait.peer], doing, sizeof doing);
    sl_log(SL_LOG_WARN, "rank %d has been waiting for %g s %s; rank %d: %s", link->base.rank, control->hang_timeout,
           sl_wait_text(&pause->wait, waiting, sizeof waiting), pause->wait.peer, doing);
}

/* Counted from 1. A load: glibc reads the number from memory that the kernel keeps up to date. */
static uint32_t this_core(void)
{
    return (uint32_t)(sched_getcpu() + 1);
}

void sl_shm_note_core(sl_shm_rank *rank)
{
    uint32_t core = this_core();
    if (atomic_load_explicit(&rank->core, memory_order_relaxed) != core)
        atomic_store_explicit(&rank->core, core, memory_order_relaxed);
}

/* Whether this wait keeps the rank that it waits for from running: that one was last seen on this very core, or there are
 * more ranks than cores and it may be waiting for any. */
static bool must_yield(const sl_shm_link *link, const sl_wait *wait)
{
    const sl_shm_control *control = link->shm->control;
    if (control->size > control->cores)
        return true;
    if (wait->peer < 0 || wait->peer >= (int)control->size || wait->peer == link->base.rank)
        return false;
    return atomic_load_explicit(&control->ranks[wait->peer].core, memory_order_relaxed) == this_core();
}

/* Two ranks that only yield to each other stay on their core until the kernel balances its load, some milliseconds. One
 * that sleeps now and then wakes up on a core that is idle, if there is one. */
static bool must_move(sl_shm_link *link, const sl_pause *pause)
{
    const sl_shm_control *control = link->shm->control;
    return pause->yields && control->size <= control->cores &&
           atomic_fetch_add_explicit(&link->crowded, 1, memory_order_relaxed) % WAITS_PER_MOVE == WAITS_PER_MOVE - 1;
}

/* Passes a moment of the busy wait; false once it is over. */
static bool wait_busily(sl_shm_link *link, sl_pause *pause)
{
    if (pause->spins++ == 0) {
        sl_shm_note_core(link->me);
        pause->yields = must_yield(link, &pause->wait);
        if (must_move(link, pause))
            return false;
    }
    if (!pause->yields) {
        relax();
        if (pause->spins % SPINS_PER_LOOK)
            return true;
    }
    if (link->shm->control->size > link->shm->control->cores && pause->spins > CROWDED_YIELDS)
        return false;
    double now = sl_now();
    if (pause->until <= 0)
        pause->until = now + link->spin_seconds;
    if (now >= pause->until)
        return false;
    pause->yields = must_yield(link, &pause->wait);
    if (pause->yields)
        sched_yield();
    return true;
}

sl_status sl_shm_pause(sl_link *base, sl_pause *pause)
{
    sl_shm_link *link = (sl_shm_link *)base;
    sl_shm_rank *me = link->me;
    if (pause->armed) {
        const struct timespec limit = { .tv_nsec = SLEEP_LIMIT_NS };
        syscall(SYS_futex, &me->bell, FUTEX_WAIT, pause->ticket, &limit, NULL, 0);
        pause->ticket = atomic_load(&me->bell);
        look_at_long_wait(link, pause);
        return SL_OK;
    }
    if (link->spin_seconds > 0 && wait_busily(link, pause))
        return SL_OK;
    atomic_fetch_add(&base->waiting, 1);
    atomic_fetch_add(&me->sleepers, 1);
    pause->ticket = atomic_load(&me->bell);
    pause->armed = true;
    pause->slept = sl_now();
    sl_shm_set_wait(me, &pause->wait, pause->slept);
    return SL_OK;
}

void sl_shm_resume(sl_link *base, sl_pause *pause)
{
    sl_shm_link *link = (sl_shm_link *)base;
    atomic_fetch_sub(&base->waiting, 1);
    atomic_fetch_sub(&link->me->sleepers, 1);
    sl_shm_set_wait(link->me, &(sl_wait){ .kind = SL_WAIT_NOTHING }, 0);
    pause->armed = false;
}
