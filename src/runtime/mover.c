/* See mover.h. It sleeps while nothing is posted. While something is, it looks for what can go on, more and more rarely if
 * nothing does: then another rank has not come so far. The rank's own thread makes moves only while it waits. */
#include "runtime/mover.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "comm/group.h"
#include "comm/request.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS_BEFORE_SLEEP = 1000, SLEEP_NS = 20000 };

struct sl_mover {
    sl_link *link;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t posted;
    bool has_work; /* with the mutex */
    _Atomic bool stop;
    _Atomic unsigned rounds; /* in which something moved */
};

bool sl_mover_is_wanted(sl_helper choice, sl_group *group, const sl_device *device)
{
    const sl_link *link = group->link;
    cpu_set_t own;
    int threads = sl_device_threads(device);
    if (choice != SL_HELPER_AUTO || link->one_thread)
        return choice == SL_HELPER_ON && !link->one_thread;
    if (sched_getaffinity(0, sizeof own, &own) != 0 || CPU_COUNT(&own) <= threads)
        return false;
    return sysconf(_SC_NPROCESSORS_ONLN) > (long)link->local_size * threads;
}

/* Waits for work; false once it is to stop. */
static bool wait_for_work(sl_mover *mover)
{
    pthread_mutex_lock(&mover->mutex);
    while (!mover->has_work && !mover->stop)
        pthread_cond_wait(&mover->posted, &mover->mutex);
    mover->has_work = false;
    bool goes_on = !mover->stop;
    pthread_mutex_unlock(&mover->mutex);
    return goes_on;
}

/* Until nothing is posted any more. What the rank itself waits for may have come with it. */
static void move_all(sl_mover *mover)
{
    sl_link *link = mover->link;
    int looks = 0;
    while (atomic_load(&link->busy) && !atomic_load(&mover->stop)) {
        if (sl_link_progress(link)) {
            atomic_fetch_add(&mover->rounds, 1); /* orders: who does not sleep yet sees what is done */
            if (link->transport->wake)
                link->transport->wake(link);
            looks = 0;
        } else if (++looks > LOOKS_BEFORE_SLEEP) {
            nanosleep(&(struct timespec){ .tv_nsec = SLEEP_NS }, NULL);
        } else {
            sched_yield();
        }
    }
}

static void *run(void *user)
{
    sl_mover *mover = user;
    while (wait_for_work(mover))
        move_all(mover);
    return NULL;
}

sl_status sl_mover_start(sl_group *group, sl_mover **out)
{
    sl_status status = SL_OK;
    sl_mover *mover = NULL;
    SL_TRY(SL_NEW(mover));
    mover->link = group->link;
    pthread_mutex_init(&mover->mutex, NULL);
    pthread_cond_init(&mover->posted, NULL);
    SL_TRY(sl_thread_start("a thread for collectives", run, mover, &mover->thread));
    atomic_fetch_add(&mover->link->movers, 1);
    *out = mover;
    return SL_OK;
done:
    sl_free(mover);
    return status;
}

void sl_mover_wake(sl_mover *mover)
{
    if (!mover)
        return;
    pthread_mutex_lock(&mover->mutex);
    mover->has_work = true;
    pthread_cond_signal(&mover->posted);
    pthread_mutex_unlock(&mover->mutex);
}

void sl_mover_stop(sl_mover *mover)
{
    if (!mover)
        return;
    atomic_fetch_sub(&mover->link->movers, 1);
    pthread_mutex_lock(&mover->mutex);
    atomic_store(&mover->stop, true);
    pthread_cond_signal(&mover->posted);
    pthread_mutex_unlock(&mover->mutex);
    pthread_join(mover->thread, NULL);
    pthread_cond_destroy(&mover->posted);
    pthread_mutex_destroy(&mover->mutex);
    sl_free(mover);
}
