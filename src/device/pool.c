/* The thread pool: workers spin for a short while between kernels, then sleep on a condition variable. */
#include "device/pool.h"

#include "base/alloc.h"
#include "base/thread.h"

#include <sched.h>
#include <stdatomic.h>

enum { SPINS = 2000 }; /* a few tens of microseconds: about the gap between two kernels */

typedef struct worker {
    sl_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct sl_pool {
    int threads;
    worker *workers; /* threads - 1 of them; worker i runs part i + 1 */
    int started;     /* workers that exist */

    /* The job: written by the caller before `round` moves on. */
    sl_pool_task task;
    void *context;
    int parts;
    atomic_uint round;  /* one more per job */
    atomic_int pending; /* workers that have not finished the job */
    atomic_bool stop;

    pthread_mutex_t mutex;
    pthread_cond_t work;
    atomic_int sleeping;
};

static inline void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for_round(sl_pool *pool, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->round, memory_order_acquire) != seen)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleeping, 1);
    while (atomic_load(&pool->round) == seen)
        pthread_cond_wait(&pool->work, &pool->mutex);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *work(void *argument)
{
    worker *self = argument;
    sl_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_round(pool, seen);
        seen++;
        if (atomic_load(&pool->stop))
            return NULL;
        int part = self->index + 1;
        if (part < pool->parts)
            pool->task(pool->context, part, pool->parts);
        atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_release);
    }
}

/* Publishes the next job; sleepers take the mutex, so none can miss it. */
static void start_round(sl_pool *pool)
{
    atomic_fetch_add(&pool->round, 1);
    if (atomic_load(&pool->sleeping) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->mutex);
    }
}

sl_status sl_pool_create(int threads, sl_pool **out)
{
    sl_status status = SL_OK;
    sl_pool *pool = NULL;

    SL_TRY(SL_NEW(pool));
    pool->threads = threads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    SL_TRY(SL_NEW_ARRAY(pool->workers, threads - 1));
    for (int i = 0; i < threads - 1; i++) {
        pool->workers[i] = (worker){ .pool = pool, .index = i };
        SL_TRY(sl_thread_start("a thread of the cpu", work, &pool->workers[i], &pool->workers[i].thread));
        pool->started++;
    }
    *out = pool;
    pool = NULL;
done:
    sl_pool_destroy(pool);
    return status;
}

void sl_pool_destroy(sl_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    start_round(pool);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    sl_free(pool->workers);
    sl_free(pool);
}

int sl_pool_threads(const sl_pool *pool)
{
    return pool->threads;
}

void sl_pool_run(sl_pool *pool, int parts, sl_pool_task task, void *context)
{
    if (parts > 1) {
        pool->task = task;
        pool->context = context;
        pool->parts = parts;
        atomic_store(&pool->pending, pool->started);
        start_round(pool);
    }
    task(context, 0, parts);
    for (int i = 0; parts > 1 && atomic_load_explicit(&pool->pending, memory_order_acquire) > 0; i++) {
        if (i < SPINS)
            pause_briefly();
        else
            sched_yield(); /* more threads than cores: let the workers have this one */
    }
}
