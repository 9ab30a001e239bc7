/* One table of config.json's keys a family: reading, writing and checking go through it. */
#ifndef SL_NN_CONFIG_H
#define SL_NN_CONFIG_H

#include <sluice/nn.h>

typedef enum config_kind {
    CONFIG_INT,
    CONFIG_INT_OR_NULL, /* null stands for the least value */
    CONFIG_TOKENS,      /* an id, a list of them, or null for none */
    CONFIG_REAL,
    CONFIG_BOOL,
    CONFIG_ACTIVATION
} config_kind;

typedef struct config_field {
    const char *key;
    config_kind kind;
    size_t offset;   /* in the family's struct */
    double min, max; /* CONFIG_INT and CONFIG_REAL, both allowed */
} config_field;

/* A key that Hugging Face's model looks at and that must have this value here. */
typedef struct config_fixed {
    const char *key;
    bool value;
} config_fixed;

typedef struct config_family {
    const char *model_type;   /* NULL: the family has no config.json */
    const char *architecture; /* Hugging Face's class */
    const config_field *fields;
    int field_count;
    const config_fixed *fixed;
    int fixed_count;
    sl_status (*check)(const sl_model *model); /* how the values fit together */
} config_family;

const config_family *sl_nn_family(sl_model_family family); /* NULL for a value out of range */

/* "gelu_new" and the like; the first name of an activation is the one that is written. */
sl_status sl_nn_parse_activation(const char *text, sl_activation *out);
const char *sl_nn_activation_name(sl_activation activation);

#endif
