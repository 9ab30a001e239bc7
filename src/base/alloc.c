/* Checked allocation that tests can make fail and count. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_llong alloc_count;
static atomic_llong fail_after = -1;

void sl_alloc_fail_after(int64_t n)
{
    atomic_store(&fail_after, n);
}

int64_t sl_alloc_count(void)
{
    return atomic_load(&alloc_count);
}

/* True if a test asked this allocation to fail. */
static bool refused(void)
{
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    long long left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    if (left < 0)
        return false;
    if (left > 0)
        atomic_fetch_sub(&fail_after, 1);
    return left == 0;
}

static sl_status out_of_memory(size_t count, size_t size)
{
    return sl_fail(SL_ERR_MEMORY, "out of memory: %zu x %zu bytes", count, size);
}

sl_status sl_alloc(size_t count, size_t size, void **out)
{
    if (count == 0 || size == 0)
        count = size = 1;
    void *block = size > SIZE_MAX / count || refused() ? NULL : calloc(count, size);
    if (!block)
        return out_of_memory(count, size);
    *out = block;
    return SL_OK;
}

sl_status sl_realloc(void **block, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || refused())
        return out_of_memory(count, size);
    void *moved = realloc(*block, bytes ? bytes : 1);
    if (!moved)
        return out_of_memory(count, size);
    *block = moved;
    return SL_OK;
}

sl_status sl_grow(void **block, size_t *capacity, size_t needed, size_t size)
{
    if (needed <= *capacity)
        return SL_OK;
    size_t grown = *capacity < 8 ? 8 : *capacity;
    while (grown < needed)
        grown = grown > SIZE_MAX / 2 ? needed : grown * 2;
    sl_status status = sl_realloc(block, grown, size);
    if (status == SL_OK)
        *capacity = grown;
    return status;
}

sl_status sl_strdup(const char *text, char **out)
{
    size_t bytes = strlen(text) + 1;
    void *copy = NULL;
    sl_status status = sl_alloc(bytes, 1, &copy);
    if (status == SL_OK)
        *out = memcpy(copy, text, bytes);
    return status;
}

sl_status sl_alloc_aligned(size_t bytes, size_t alignment, void **out)
{
    void *block = NULL;
    if (refused() || posix_memalign(&block, alignment, bytes ? bytes : 1) != 0)
        return out_of_memory(1, bytes);
    *out = block;
    return SL_OK;
}

void sl_free(void *block)
{
    free(block);
}
