/* Runtimes by key: made once, found again, the least recently used dropped if there are too many. */
#include <sluice/runtime.h>

#include "base/alloc.h"
#include "base/status.h"

typedef struct cached {
    int64_t key;
    int64_t used; /* when it was last asked for */
    sl_runtime *runtime;
} cached;

struct sl_runtime_cache {
    sl_runtime_cache_options options;
    cached *entries;
    int count;
    int64_t clock;
};

sl_status sl_runtime_cache_create(const sl_runtime_cache_options *options, sl_runtime_cache **out)
{
    sl_status status = SL_OK;
    sl_runtime_cache *cache = NULL;
    if (!options || !options->make)
        return sl_fail(SL_ERR_ARGUMENT, "a cache of runtimes needs a function that makes them");
    if (options->capacity < 0)
        return sl_fail(SL_ERR_ARGUMENT, "a cache of %d runtimes", options->capacity);
    SL_TRY(SL_NEW(cache));
    cache->options = *options;
    cache->options.capacity = options->capacity ? options->capacity : 8;
    SL_TRY(SL_NEW_ARRAY(cache->entries, cache->options.capacity));
    *out = cache;
    cache = NULL;
done:
    sl_runtime_cache_destroy(cache);
    return status;
}

static void drop(const sl_runtime_cache *cache, const cached *entry)
{
    if (cache->options.drop)
        cache->options.drop(cache->options.user, entry->key, entry->runtime);
    else
        sl_runtime_destroy(entry->runtime);
}

void sl_runtime_cache_destroy(sl_runtime_cache *cache)
{
    if (!cache)
        return;
    for (int i = cache->count - 1; i >= 0; i--) /* those that share come before those that they share with */
        drop(cache, &cache->entries[i]);
    sl_free(cache->entries);
    sl_free(cache);
}

static cached *least_recent(const sl_runtime_cache *cache)
{
    cached *oldest = &cache->entries[0];
    for (int i = 1; i < cache->count; i++) {
        if (cache->entries[i].used < oldest->used)
            oldest = &cache->entries[i];
    }
    return oldest;
}

sl_status sl_runtime_cache_get(sl_runtime_cache *cache, int64_t key, sl_runtime **out)
{
    sl_status status = SL_OK;
    cached made = { .key = key, .used = ++cache->clock };
    for (int i = 0; i < cache->count; i++) {
        if (cache->entries[i].key != key)
            continue;
        cache->entries[i].used = made.used;
        *out = cache->entries[i].runtime;
        return SL_OK;
    }
    uint64_t failures = sl_fail_count();
    SL_TRY(sl_fail_callback(cache->options.make(cache->options.user, key, &made.runtime), failures, "make"));
    cached *place = &cache->entries[cache->count];
    if (cache->count < cache->options.capacity) {
        cache->count++;
    } else {
        place = least_recent(cache);
        drop(cache, place);
    }
    *place = made;
    *out = made.runtime;
done:
    return status;
}
