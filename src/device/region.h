/* A range of addresses that is given out in blocks. Never touches the memory itself. */
#ifndef SL_DEVICE_REGION_H
#define SL_DEVICE_REGION_H

#include <sluice/base.h>

enum { SL_REGION_ALIGNMENT = 256 }; /* of each block, if the range starts on such a boundary */

typedef struct sl_region sl_region; /* used by one thread at a time */

/* The range is borrowed and must outlive the region. */
SL_MUST_CHECK sl_status sl_region_create(void *start, size_t bytes, sl_region **out);
void sl_region_destroy(sl_region *region); /* NULL is fine */
void *sl_region_start(const sl_region *region);

/* The first gap that is large enough; *out stays NULL if there is none. Fails only if the host has no memory. */
SL_MUST_CHECK sl_status sl_region_take(sl_region *region, size_t bytes, void **out);
/* Gives a block back; false if it is none of the region. *bytes: what it was asked with. */
bool sl_region_give(sl_region *region, const void *block, size_t *bytes);

size_t sl_region_free_bytes(const sl_region *region);
bool sl_region_is_empty(const sl_region *region); /* no block is given out */

#endif
