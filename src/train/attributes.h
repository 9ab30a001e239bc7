/* What a checkpoint says of its run beside the tensors. */
#ifndef SL_TRAIN_ATTRIBUTES_H
#define SL_TRAIN_ATTRIBUTES_H

#include "train/plan.h"

/* For sl_checkpoint_writer_commit. Keys: "model" (config.json's text), "config" (section.key=value a line), "tokens"
 * (how many the data has), "data" (the hash of the data, see sl_tokens_hash), "order" (of the microbatches in which
 * gradients are added), "tokenizer" (see tokenizer_files.h), "version", "precision" and "mesh" (of the run, as the plan
 * prints them), "documents" (the token that ends one, if they were kept apart). */
typedef struct sl_attributes {
    const char *pairs[22];
    char *model;
    sl_arena *arena;
} sl_attributes;

SL_MUST_CHECK sl_status sl_attributes_make(const sl_train_plan *plan, uint64_t data_hash, sl_attributes *out);
void sl_attributes_free(sl_attributes *attributes); /* a zeroed one is fine */

/* Refuses a checkpoint whose tensors do not fit: of another model or optimizer. */
SL_MUST_CHECK sl_status sl_attributes_check(const sl_train_plan *plan, const sl_checkpoint *checkpoint);
/* Whether the parameter was frozen in the run that made the checkpoint. */
bool sl_attributes_froze(const sl_train_plan *plan, const sl_checkpoint *checkpoint, const char *param);
/* Warns of settings with which the run goes on otherwise than it would have. */
SL_MUST_CHECK sl_status sl_attributes_warn(const sl_train_plan *plan, uint64_t data_hash,
                                           const sl_checkpoint *checkpoint);

#endif
