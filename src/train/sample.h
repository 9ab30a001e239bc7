/* Choosing the next token. */
#ifndef SL_TRAIN_SAMPLE_H
#define SL_TRAIN_SAMPLE_H

#include <sluice/base.h>

typedef struct SL_NAMED_FIELDS sl_sample_options {
    double temperature; /* 0: the likeliest token, the first of equals */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 0: all */
    uint64_t seed;
} sl_sample_options;

/* A candidate; scratch of sl_sample has one for each token. */
typedef struct sl_candidate {
    float logit;
    int32_t token;
} sl_candidate;

/* The token after `position` of sample number `sample`: depends on these, the seed and the logits alone. */
int32_t sl_sample(const float *logits, int64_t vocab, const sl_sample_options *options, uint64_t sample,
                  uint64_t position, sl_candidate *scratch);

#endif
