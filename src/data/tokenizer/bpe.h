/* Byte-pair merging: from the symbols of a piece of text to token ids. */
#ifndef SL_DATA_BPE_H
#define SL_DATA_BPE_H

#include <sluice/base.h>

typedef struct bpe bpe;           /* the merges; threads may share them once all are added */
typedef struct bpe_work bpe_work; /* memory of one thread that merges */

SL_MUST_CHECK sl_status sl_bpe_create(bpe **out);
void sl_bpe_destroy(bpe *merges); /* NULL is fine */
SL_MUST_CHECK sl_status sl_bpe_work_create(bpe_work **out);
void sl_bpe_work_destroy(bpe_work *work); /* NULL is fine */

/* Adjacent tokens left and right become `merged`; the lower the rank, the earlier. The first of equal pairs counts. */
SL_MUST_CHECK sl_status sl_bpe_add(bpe *merges, int32_t left, int32_t right, int32_t rank, int32_t merged);

/* Merges ids[0..count) in place until no pair is left that merges; returns how many ids remain. */
SL_MUST_CHECK sl_status sl_bpe_merge(const bpe *merges, bpe_work *work, int32_t *ids, size_t count, size_t *out);

#endif
