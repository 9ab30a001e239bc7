/* One stage of a model in a runtime that runs forward only, for evaluation and generation. */
#ifndef SL_TRAIN_INFER_H
#define SL_TRAIN_INFER_H

#include <sluice/train.h>

typedef struct sl_infer {
    sl_partition *partition; /* one stage for each rank */
    sl_stage *stage;         /* this rank's */
    sl_runtime *runtime;
} sl_infer;

typedef struct SL_NAMED_FIELDS sl_infer_options {
    sl_group *group;
    sl_device *device;
    sl_model_mode mode;
    sl_model_shape shape;
    /* The same model on the same group, made for another sequence length: this one is cut like it and uses its
     * parameters. It must outlive this one. NULL: parameters are read from the source. */
    const sl_infer *shares;
} sl_infer_options;

/* A tensor in host memory, of the shape that the stage declares. */
typedef struct sl_infer_input {
    const char *name;
    const void *data;
} sl_infer_input;

/* Collective over the group. In these modes a tied head is the embedding's parameter, in one process and across
 * stages. */
SL_MUST_CHECK sl_status sl_infer_create(const sl_model_source *source, const sl_infer_options *options, sl_infer **out);
void sl_infer_destroy(sl_infer *infer); /* NULL is fine */

/* One step; number as in sl_step. Inputs that the stage does not have are left out. logits: NULL, or host memory for the
 * output of that name. result may be NULL. */
SL_MUST_CHECK sl_status sl_infer_run(sl_infer *infer, int64_t number, const sl_infer_input *inputs, int input_count,
                                     float *logits, sl_step_result *result);

#endif
