/* Threads that share the work of one kernel. Part i always runs on thread i, so a split gives the same bits each time.
 */
#ifndef SL_DEVICE_POOL_H
#define SL_DEVICE_POOL_H

#include <sluice/base.h>

#include <stdatomic.h>

typedef struct sl_pool sl_pool;

/* Does part `part` of `parts`; must not fail and must not call sl_pool_run on the same pool. */
typedef void (*sl_pool_task)(void *context, int part, int parts);

/* threads >= 1, the caller of sl_pool_run being one of them. */
SL_MUST_CHECK sl_status sl_pool_create(int threads, sl_pool **out);
void sl_pool_destroy(sl_pool *pool); /* NULL is fine */
int sl_pool_threads(const sl_pool *pool);

/* Runs parts 0..parts-1 (1 <= parts <= threads) and returns when all are done. One caller at a time. */
void sl_pool_run(sl_pool *pool, int parts, sl_pool_task task, void *context);

/* For parts of one job that depend on each other: returns when others have counted down to `most`, and what they did before
 * is visible then. Part i must wait for nothing but work that another part has begun. */
void sl_pool_await(const sl_pool *pool, const atomic_int *count, int most);

#endif
