/* Optimizer updates: elementwise, in place. Gradient, parameter and state may have different dtypes. */
#include "op/op.h"

const sl_op_info sl_op_adamw = {
    .name = "adamw",
    .inputs = { { "g", SL_ARG_FLOAT, 0 } },
    .outputs = { { "p", SL_ARG_FLOAT, 0 },
                 { "m", SL_ARG_FLOAT, 0 },
                 { "v", SL_ARG_FLOAT, 0 },
                 { "copy", SL_ARG_FLOAT, SL_ARG_OPTIONAL } },
    .flops_per_element = 8,
};

const sl_op_info sl_op_sgd = {
    .name = "sgd",
    .inputs = { { "g", SL_ARG_FLOAT, 0 } },
    .outputs = { { "p", SL_ARG_FLOAT, 0 },
                 { "m", SL_ARG_FLOAT, SL_ARG_OPTIONAL },
                 { "copy", SL_ARG_FLOAT, SL_ARG_OPTIONAL } },
    .flops_per_element = 1,
};
