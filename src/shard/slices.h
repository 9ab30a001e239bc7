/* Tensors in slices: what several ranks wrote, put together under the tensors' names. */
#ifndef SL_SHARD_SLICES_H
#define SL_SHARD_SLICES_H

#include <sluice/shard.h>

bool sl_entry_is_slice(const sl_tensor_entry *entry);
/* The name of an entry in its rank's file: NAME, or NAME@16,0 for the slice that begins there. Returns the length, as
 * snprintf does. */
size_t sl_slice_name(const sl_tensor_entry *entry, char *text, size_t size);

/* A slice that is all of its tensor becomes the tensor. False if the entry is a slice without elements: there is nothing
 * to keep of it. */
bool sl_slice_normalize(sl_tensor_entry *entry);

/* An entry and the rank that holds it. */
typedef struct sl_held_entry {
    sl_tensor_entry entry; /* under the tensor's own name, which is borrowed as its data or file is */
    int rank;
} sl_held_entry;

/* Tensors by name; immutable. */
typedef struct sl_tensor_set sl_tensor_set;

/* Puts the slices together. Slices that are not whole tensors, or of different types or shapes, are SL_ERR_FORMAT with the
 * tensor named. If two ranks hold a whole tensor, the first counts. The list is copied. */
SL_MUST_CHECK sl_status sl_tensor_set_create(const char *label, const sl_held_entry *held, int count,
                                             sl_tensor_set **out);
void sl_tensor_set_destroy(sl_tensor_set *set); /* NULL is fine */
int sl_tensor_set_count(const sl_tensor_set *set);
const sl_tensor_entry *sl_tensor_set_at(const sl_tensor_set *set, int i); /* sorted by name; NULL past the end */
const sl_tensor_entry *sl_tensor_set_find(const sl_tensor_set *set, const char *name); /* or NULL */
const sl_sharding *sl_tensor_set_sharding(const sl_tensor_set *set, int i);            /* or NULL past the end */

/* Elements [first, first + count) of the tensor. */
SL_MUST_CHECK sl_status sl_slices_read(const sl_slices *slices, int64_t first, int64_t count, void *out);

#endif
