/* What a step tells: lines of metrics.jsonl, TensorBoard events, the progress line. */
#ifndef SL_TRAIN_METRICS_H
#define SL_TRAIN_METRICS_H

#include <sluice/train.h>

#include <stdio.h>

/* ---- metrics.jsonl --------------------------------------------------------------------------- */

typedef struct sl_metrics sl_metrics;

/* Opens the file for appending; lines of steps after `step`, and a line that a crash tore, are taken out first. */
SL_MUST_CHECK sl_status sl_metrics_open(const char *path, int64_t step, sl_metrics **out);
/* What the validations so far have shown. */
typedef struct sl_validation {
    double best;       /* loss; NAN before the first */
    int64_t best_step; /* after which it was measured */
    int64_t since;     /* validations since then */
} sl_validation;
bool sl_validation_add(sl_validation *validation, int64_t step, double loss); /* whether it is the best so far */
/* Of all lines that the file has. */
SL_MUST_CHECK sl_status sl_metrics_read_validation(const sl_metrics *metrics, sl_validation *out);

/* One line, handed to the system at once. */
SL_MUST_CHECK sl_status sl_metrics_write(sl_metrics *metrics, const sl_step_report *report);
/* A line that says from where a run that was started again goes on; it stays as long as the step does. */
typedef struct sl_restart_report {
    int64_t step;
    int restart;      /* 1 for the first */
    const char *from; /* "memory", "checkpoint", "start" */
    int ranks;
    const char *reason; /* "" if nobody said */
} sl_restart_report;
SL_MUST_CHECK sl_status sl_metrics_write_restart(sl_metrics *metrics, const sl_restart_report *report);
SL_MUST_CHECK sl_status sl_metrics_sync(sl_metrics *metrics); /* what was written is on disk */
void sl_metrics_close(sl_metrics *metrics);                   /* NULL is fine */

/* ---- TensorBoard ----------------------------------------------------------------------------- */

typedef struct sl_tensorboard sl_tensorboard;

/* Makes folder/events.out.tfevents.TIME.HOST. */
SL_MUST_CHECK sl_status sl_tensorboard_open(const char *folder, sl_tensorboard **out);
SL_MUST_CHECK sl_status sl_tensorboard_write(sl_tensorboard *board, const sl_step_report *report);
void sl_tensorboard_close(sl_tensorboard *board); /* NULL is fine */

/* CRC-32C of the bytes, as TensorBoard's records carry it (before masking). */
uint32_t sl_crc32c(const void *data, size_t bytes);

/* ---- Progress -------------------------------------------------------------------------------- */

/* How progress looks on a stream; plain data. */
typedef struct sl_progress {
    FILE *stream;
    bool in_place; /* a terminal: the line is rewritten */
    bool color;
    bool off;
    int64_t every;         /* steps between lines if not in place */
    const char *precision; /* "bf16"; empty for f32; static */
    double seconds;        /* smoothed time of a step */
    double val_loss;       /* of the last validation; NAN before the first */
    bool line_open;        /* the terminal line has no newline yet */
    sl_step_report last;
    bool last_shown; /* whether the line is that of `last` */
    double shown;    /* when the line was last written */
} sl_progress;

void sl_progress_begin(sl_progress *progress, FILE *stream, const sl_train_config *config);
void sl_progress_step(sl_progress *progress, const sl_step_report *report);
void sl_progress_end(sl_progress *progress); /* ends the line on a terminal */

#endif
