/* Tensors of files in tests. */
#ifndef TESTS_SUPPORT_TENSORS_H
#define TESTS_SUPPORT_TENSORS_H

#include <sluice/shard.h>

#include <stdlib.h>
#include <string.h>

/* The bytes of a tensor; the caller frees them. */
static inline void *tensor_bytes(const sl_tensor_entry *entry)
{
    void *bytes = malloc(entry->bytes + 1);
    if (!bytes || sl_tensor_entry_read(entry, 0, entry->bytes, bytes) != SL_OK)
        abort();
    return bytes;
}

/* Whether the tensor has exactly these bytes. */
static inline bool tensor_is(const sl_tensor_entry *entry, const void *data, size_t bytes)
{
    void *own = tensor_bytes(entry);
    bool same = entry->bytes == bytes && memcmp(own, data, bytes) == 0;
    free(own);
    return same;
}

#define assert_holds(entry, data, bytes) assert_true(tensor_is(entry, data, bytes))

#endif
