/* One stage's forward program with its memory, for evaluation and generation. */
#ifndef SL_TRAIN_INFER_H
#define SL_TRAIN_INFER_H

#include <sluice/train.h>

typedef struct sl_infer {
    sl_stream *stream; /* borrowed */
    sl_stage_program *program;
    const sl_program_info *info;
    const struct sl_infer *shares; /* whose parameters are used; NULL: our own */
    void **params, **inputs, **outputs;
    void *constants, *scratch, *saved_i, *saved_w, *kept;
} sl_infer;

/* Makes the program and its buffers. shares (or NULL) is the same stage of the same model built for another sequence
 * length; it must outlive this one. Parameters of our own are read from the source. */
SL_MUST_CHECK sl_status sl_infer_create(const sl_partition *partition, int stage, sl_stream *stream,
                                        const sl_model_source *source, const sl_infer *shares, sl_infer **out);
void sl_infer_destroy(sl_infer *infer); /* NULL is fine */

/* Fills the input of that name from host memory; does nothing where the stage has none. */
SL_MUST_CHECK sl_status sl_infer_set(sl_infer *infer, const char *name, const void *host);
/* Copies an output to host memory. */
SL_MUST_CHECK sl_status sl_infer_get(sl_infer *infer, const char *name, void *host);
/* states: one for each of the program's; NULL where it has none. */
SL_MUST_CHECK sl_status sl_infer_run(sl_infer *infer, void *const *states);

/* Device memory for each port, zeroed; freed by sl_infer_free_ports. */
SL_MUST_CHECK sl_status sl_infer_alloc_ports(sl_stream *stream, const sl_port *ports, int count, void ***out);
void sl_infer_free_ports(sl_device *device, void **blocks, int count);

/* The model as it is built for inference: a tied head is the embedding's parameter, in one process and across stages.
 * Cuts: NULL with stages for equal costs. */
SL_MUST_CHECK sl_status sl_infer_partition(const sl_model *model, sl_model_mode mode, const sl_model_shape *shape,
                                           int stages, const sl_partition *like, sl_partition **out);

#endif
