/* Checked allocation. All memory of the library comes through here, so that tests can make it fail and count it. */
#ifndef SL_BASE_ALLOC_H
#define SL_BASE_ALLOC_H

#include <sluice/base.h>

/* Zeroed memory for count elements; *out is set only on success. count or size 0 gives a unique pointer. */
SL_MUST_CHECK sl_status sl_alloc(size_t count, size_t size, void **out);

/* Grows or shrinks *block; on failure it stays as it was. New bytes are not zeroed. */
SL_MUST_CHECK sl_status sl_realloc(void **block, size_t count, size_t size);

/* Makes *block hold at least `needed` elements by doubling *capacity. */
SL_MUST_CHECK sl_status sl_grow(void **block, size_t *capacity, size_t needed, size_t size);

SL_MUST_CHECK sl_status sl_strdup(const char *text, char **out);
SL_MUST_CHECK sl_status sl_alloc_aligned(size_t bytes, size_t alignment, void **out); /* not zeroed; sl_free frees it */

#define SL_NEW(pointer) sl_alloc(1, sizeof *(pointer), (void **)&(pointer))
#define SL_NEW_ARRAY(pointer, count) sl_alloc((size_t)(count), sizeof *(pointer), (void **)&(pointer))
#define SL_GROW(pointer, capacity, needed) sl_grow((void **)&(pointer), (capacity), (size_t)(needed), sizeof *(pointer))

/* For tests: the n-th allocation from now (0 = the next) and all after it fail; negative ends this. */
void sl_alloc_fail_after(int64_t n);
/* For tests: allocations of the process so far. */
int64_t sl_alloc_count(void);

#endif
