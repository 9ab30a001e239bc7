/* Packing: plain values and strings into one block of bytes, to be gathered from all ranks, and back. */
#ifndef SL_RUNTIME_PACK_H
#define SL_RUNTIME_PACK_H

#include <sluice/base.h>

typedef struct sl_pack {
    char *data; /* owned; sl_pack_free */
    size_t size, capacity;
} sl_pack;

SL_MUST_CHECK sl_status sl_pack_put(sl_pack *pack, const void *value, size_t bytes);
SL_MUST_CHECK sl_status sl_pack_int(sl_pack *pack, int64_t value);
SL_MUST_CHECK sl_status sl_pack_text(sl_pack *pack, const char *text);
void sl_pack_free(sl_pack *pack);

/* Reads what was packed, in the same order. Past the end it gives zeros and sets broken. */
typedef struct sl_unpack {
    const char *at, *end;
    bool broken;
} sl_unpack;

void sl_unpack_get(sl_unpack *unpack, void *value, size_t bytes);
int64_t sl_unpack_int(sl_unpack *unpack);
const char *sl_unpack_text(sl_unpack *unpack); /* borrowed from the packed bytes */

#endif
