/* What the safetensors reader and writer share. */
#ifndef SL_SHARD_SAFETENSORS_H
#define SL_SHARD_SAFETENSORS_H

#include <sluice/shard.h>

enum { SAFETENSORS_HEADER_MAX = 16 << 20 }; /* bytes; a hundred thousand tensors fit */

/* The weights of a Hugging Face folder. */
#define WEIGHTS_SINGLE "model.safetensors"
#define WEIGHTS_INDEX "model.safetensors.index.json"

const char *sl_safetensors_dtype_name(sl_dtype dtype); /* "F32" */

#endif
