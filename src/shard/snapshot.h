/* Tensors in sealed memory: a snapshot that other processes of the same program read, and that nobody can change. */
#ifndef SL_SHARD_SNAPSHOT_H
#define SL_SHARD_SNAPSHOT_H

#include <sluice/shard.h>

/* ---- Writing --------------------------------------------------------------------------------- */

typedef struct sl_snapshot_writer sl_snapshot_writer;

/* Lays out the entries; their data is not looked at. */
SL_MUST_CHECK sl_status sl_snapshot_writer_create(const sl_tensor_entry *entries, int count, sl_snapshot_writer **out);
/* All bytes of entry i, from host memory. Each entry is to be written once. */
SL_MUST_CHECK sl_status sl_snapshot_writer_write(sl_snapshot_writer *writer, int i, const void *data);
/* Seals the memory once all entries are written. *memory is a descriptor that the caller closes. */
SL_MUST_CHECK sl_status sl_snapshot_writer_seal(sl_snapshot_writer *writer, int *memory);
void sl_snapshot_writer_destroy(sl_snapshot_writer *writer); /* NULL is fine */

/* ---- Reading --------------------------------------------------------------------------------- */

/* One or several pieces of memory that hold what writers sealed; immutable. */
typedef struct sl_snapshot sl_snapshot;

/* The memory is borrowed until the close, aligned as mmap aligns it. */
SL_MUST_CHECK sl_status sl_snapshot_open(void *const *data, const size_t *bytes, int count, sl_snapshot **out);
void sl_snapshot_close(sl_snapshot *snapshot); /* NULL is fine */
/* Borrowed from the snapshot; NULL if there is none of that name. */
const sl_tensor_entry *sl_snapshot_find(const sl_snapshot *snapshot, const char *name);

#endif
