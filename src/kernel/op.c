/* The list of operations as data. */
#include <sluice/kernel.h>

static const sl_op_info infos[SL_OP_COUNT] = {
#define INFO(name, text, min_inputs, max_inputs, outputs, inplace, accumulates)                                        \
    [SL_OP_##name] = { text, min_inputs, max_inputs, outputs, inplace, accumulates },
    SL_OP_LIST(INFO)
#undef INFO
};

const sl_op_info *sl_op_get_info(sl_op op)
{
    return (unsigned)op < SL_OP_COUNT ? &infos[op] : NULL;
}
