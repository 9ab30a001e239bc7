/* What the safetensors reader and writer share. */
#ifndef SL_SHARD_SAFETENSORS_H
#define SL_SHARD_SAFETENSORS_H

#include <sluice/shard.h>

#include "base/file.h"

enum { SAFETENSORS_HEADER_MAX = 16 << 20 }; /* bytes; a hundred thousand tensors fit */

/* The weights of a Hugging Face folder. */
#define WEIGHTS_SINGLE "model.safetensors"
#define WEIGHTS_INDEX "model.safetensors.index.json"

bool sl_weights_is_file(const char *name); /* whether sl_weights_save may have written it */

const char *sl_safetensors_dtype_name(sl_dtype dtype); /* "F32" */

/* For reads of bytes that are counted from the beginning of the file; fails if it is no longer the one that was opened.
 * The caller closes *out. */
SL_MUST_CHECK sl_status sl_safetensors_open_reader(const sl_safetensors *file, sl_file_reader *out);

/* sl_safetensors_save that also gives the size and the XXH3 64 of the file, computed from the bytes in memory before
 * they are written: what the disk makes of them later has another hash. */
SL_MUST_CHECK sl_status sl_safetensors_save_hashed(const char *path, const sl_tensor_entry *entries, int count,
                                                   const char *const *metadata, uint64_t *hash, int64_t *bytes);

#endif
