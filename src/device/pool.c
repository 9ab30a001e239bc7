/* The thread pool: workers spin for a short while between kernels, then sleep on a condition variable. */
#include "device/pool.h"

#include "base/alloc.h"
#include "base/thread.h"

#include <sched.h>
#include <stdatomic.h>

/* A few hundred microseconds: the gap between two kernels, and how much longer the slowest thread may take. A thread that
 * sleeps wakes up to 100 microseconds late. With fewer cores than threads spinning keeps others from working. */
enum { SPINS = 10000, SPINS_WITHOUT_CORES = 200 };

typedef struct worker {
    sl_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct sl_pool {
    int threads;
    int spins;
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
    for (int i = 0; i < pool->spins; i++) {
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

/* Cores that this process may use; 0 if the system does not say. */
static int usable_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

sl_status sl_pool_create(int threads, sl_pool **out)
{
    sl_status status = SL_OK;
    sl_pool *pool = NULL;

    SL_TRY(SL_NEW(pool));
    pool->threads = threads;
    pool->spins = threads <= usable_cores() ? SPINS : SPINS_WITHOUT_CORES;
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

void sl_pool_await(const sl_pool *pool, const atomic_int *count, int most)
{
    for (int i = 0; atomic_load_explicit(count, memory_order_acquire) > most; i++) {
        if (i < pool->spins)
            pause_briefly();
        else
            sched_yield(); /* more threads than cores: let the others have this one */
    }
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
    if (parts > 1)
        sl_pool_await(pool, &pool->pending, 0);
}
