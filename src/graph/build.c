/* Checks and messages that the op builders share. */
#include "graph/build.h"

#include <stdio.h>
#include <string.h>

const char *sl_node_op_name(int op)
{
    static const char *const views[] = { "reshape", "permute", "slice", "split", "expand" };
    static const char *const kernels[] = {
#define ROW(name, text, min_inputs, max_inputs, outputs, inplace, accumulates) text,
        SL_OP_LIST(ROW)
#undef ROW
    };
    if (op < 0 || op >= SL_NODE_OP_COUNT)
        return "?";
    return op < SL_OP_COUNT ? kernels[op] : views[op - SL_OP_COUNT];
}

bool sl_dtype_is_floating(sl_dtype dtype)
{
    return dtype == SL_F32 || dtype == SL_F64 || dtype == SL_BF16 || dtype == SL_F16;
}

const sl_graph_value *sl_build_input(const sl_build *build, int i)
{
    return &build->graph->values[build->inputs[i].id];
}

/* Writes "x f32 [2, 3], w f32 [4]" for the arguments that are there. */
static void describe_inputs(const sl_build *build, char *text, size_t size)
{
    const char *name = build->names;
    char shape[128];
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < build->count && used < size; i++) {
        int length = (int)strcspn(name, " ");
        const sl_graph_value *value = sl_build_input(build, i);
        if (build->inputs[i].id > 0)
            used += (size_t)snprintf(text + used, size - used, "%s%.*s %s %s", used ? ", " : "", length, name,
                                     sl_dtype_name(value->dtype), sl_shape_text(&value->shape, shape, sizeof shape));
        if (name[length] == ' ') /* a list of values repeats the last name */
            name += length + 1;
    }
}

sl_value sl_build_refuse(const sl_build *build, const char *format, ...)
{
    char inputs[512], why[256];
    const char *name = sl_graph_next_name(build->graph, build->op);
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    describe_inputs(build, inputs, sizeof inputs);
    return sl_graph_refuse(build->graph, SL_ERR_SHAPE, "%s(%s): %s", name ? name : sl_node_op_name(build->op), inputs,
                           why);
}

bool sl_build_begin(const sl_build *build, uint32_t optional)
{
    if (!sl_graph_accepts(build->graph, build->op, build->inputs, build->count, optional))
        return false;
    sl_dtype dtype = SL_DTYPE_COUNT;
    for (int i = 0; i < build->count; i++) {
        const sl_graph_value *value = sl_build_input(build, i);
        if (build->inputs[i].id == 0 || !sl_dtype_is_floating(value->dtype))
            continue;
        if (dtype != SL_DTYPE_COUNT && dtype != value->dtype) {
            sl_build_refuse(build, "the arguments' element types differ");
            return false;
        }
        dtype = value->dtype;
    }
    return true;
}

bool sl_build_has_rank(const sl_build *build, int i, int rank)
{
    if (sl_build_input(build, i)->shape.rank == rank)
        return true;
    sl_build_refuse(build, "argument %d must have %d dims", i, rank);
    return false;
}

bool sl_build_is_floating(const sl_build *build, int i)
{
    if (sl_dtype_is_floating(sl_build_input(build, i)->dtype))
        return true;
    sl_build_refuse(build, "argument %d must be floating", i);
    return false;
}

bool sl_build_dim(const sl_build *build, int i, int dim, int *out)
{
    int rank = sl_build_input(build, i)->shape.rank;
    if (dim < -rank || dim >= rank) {
        sl_build_refuse(build, "dim %d is out of range", dim);
        return false;
    }
    *out = dim < 0 ? dim + rank : dim;
    return true;
}

sl_value sl_build_add_several(const sl_build *build, const sl_op_attrs *attrs, int output_count, const sl_dtype *dtypes,
                              const sl_shape *shapes)
{
    sl_value outputs[SL_NODE_MAX_OUTPUTS];
    for (int i = 0; i < output_count; i++) {
        int64_t count;
        if (sl_shape_count(&shapes[i], &count) != SL_OK)
            return sl_build_refuse(build, "%s", sl_error_message());
    }
    sl_node_draft draft = { .op = build->op,
                            .inputs = build->inputs,
                            .input_count = build->count,
                            .output_count = output_count,
                            .dtypes = dtypes,
                            .shapes = shapes };
    if (attrs)
        draft.attrs = *attrs;
    sl_graph_add(build->graph, &draft, outputs);
    return outputs[0];
}

sl_value sl_build_add(const sl_build *build, const sl_op_attrs *attrs, sl_dtype dtype, const sl_shape *shape)
{
    const sl_shape copy = *shape; /* it may be that of a value, and those move while the node is added */
    return sl_build_add_several(build, attrs, 1, &dtype, &copy);
}
