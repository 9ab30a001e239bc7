/* What follows from the descriptions: whether a use of an op is well formed, what its results are, what it costs. */
#include "op/op.h"

#include <stdio.h>

static const sl_op_info *const infos[SL_OP_COUNT] = {
#define ROW(name, description) [SL_OP_##name] = &sl_op_##description,
    SL_OP_LIST(ROW)
#undef ROW
};

const sl_op_info *sl_op_get_info(sl_op op)
{
    return (unsigned)op < SL_OP_COUNT ? infos[op] : NULL;
}

const char *sl_op_name(sl_op op)
{
    const sl_op_info *info = sl_op_get_info(op);
    return info ? info->name : "?";
}

const sl_op_arg *sl_op_input_arg(const sl_op_info *info, int input)
{
    int i = 0;
    while (i < input && !(info->inputs[i].flags & SL_ARG_LIST))
        i++;
    return &info->inputs[i];
}

int sl_op_output_count(const sl_op_info *info)
{
    int count = 0;
    while (info->outputs[count].name)
        count++;
    return count;
}

bool sl_op_is_differentiable(const sl_op_info *info, int input)
{
    const sl_op_arg *arg = sl_op_input_arg(info, input);
    bool index = arg->kind == SL_ARG_INDEX || arg->kind == SL_ARG_POSITION;
    return info->gradient && !index && !(arg->flags & SL_ARG_CONSTANT);
}

bool sl_dtype_is_floating(sl_dtype dtype)
{
    return dtype == SL_F32 || dtype == SL_F64 || dtype == SL_BF16 || dtype == SL_F16;
}

/* ---- Arguments of a use ---------------------------------------------------------------------- */

static const sl_meta absent = { .shape = { .rank = -1 } };

static inline const sl_meta *meta_at(const sl_meta_list *list, int i)
{
    if (!list->first || i >= list->count)
        return &absent;
    return (const sl_meta *)(const void *)((const char *)list->first + (size_t)i * list->stride);
}

const sl_meta *sl_use_input(const sl_op_use *use, int i)
{
    return meta_at(&use->inputs, i);
}

const sl_meta *sl_use_output(const sl_op_use *use, int i)
{
    return meta_at(&use->outputs, i);
}

/* Writes "x f32 [2, 3], w f32 [4]" for the arguments that are there. */
static void describe(const sl_op_arg *args, const sl_meta_list *list, char *text, size_t size)
{
    char meta[256];
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < list->count && used < size && list->first; i++) {
        if (meta_at(list, i)->shape.rank >= 0)
            used += (size_t)snprintf(text + used, size - used, "%s%s %s", used ? ", " : "",
                                     args->name ? args->name : "?", sl_meta_text(meta_at(list, i), meta, sizeof meta));
        args += args->name && !(args->flags & SL_ARG_LIST);
    }
}

sl_status sl_use_refuse(const sl_op_use *use, const char *format, ...)
{
    const sl_op_info *info = infos[use->op];
    char inputs[512], outputs[256], why[256];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    describe(info->inputs, &use->inputs, inputs, sizeof inputs);
    describe(info->outputs, &use->outputs, outputs, sizeof outputs);
    return sl_fail(SL_ERR_SHAPE, "%s(%s)%s%s: %s", use->name ? use->name : info->name, inputs, *outputs ? " -> " : "",
                   outputs, why);
}

sl_status sl_use_want(const sl_op_use *use, int i, const sl_shape *shape)
{
    char text[128];
    const sl_op_arg *arg = sl_op_input_arg(infos[use->op], i);
    if (sl_shape_equal(SL_IN(i), shape) || (!sl_use_has(use, i) && (arg->flags & SL_ARG_OPTIONAL)))
        return SL_OK;
    return sl_use_refuse(use, "%s must be %s", arg->name, sl_shape_text(shape, text, sizeof text));
}

sl_status sl_use_want_rank(const sl_op_use *use, int i, int rank)
{
    if (SL_IN(i)->rank == rank)
        return SL_OK;
    return sl_use_refuse(use, "%s must have %d dims", sl_op_input_arg(infos[use->op], i)->name, rank);
}

sl_status sl_use_want_dims(const sl_op_use *use, int i, int least)
{
    if (SL_IN(i)->rank >= least)
        return SL_OK;
    return sl_use_refuse(use, "%s must have at least %d dim%s", sl_op_input_arg(infos[use->op], i)->name, least,
                         least == 1 ? "" : "s");
}

sl_status sl_use_give(sl_op_use *use, int i, const sl_shape *shape)
{
    char text[128];
    const sl_op_arg *arg = &infos[use->op]->outputs[i];
    if (!use->outputs.first) {
        use->shapes[i] = *shape;
        return SL_OK;
    }
    if (sl_shape_equal(SL_OUT(i), shape) || (SL_OUT(i)->rank < 0 && (arg->flags & SL_ARG_OPTIONAL)))
        return SL_OK;
    return sl_use_refuse(use, "%s must be %s", arg->name, sl_shape_text(shape, text, sizeof text));
}

sl_status sl_use_needs_output(const sl_op_use *use, int i)
{
    return SL_OUT(i)->rank >= 0 ? SL_OK : sl_use_refuse(use, "%s is missing", infos[use->op]->outputs[i].name);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

#define BIT(dtype) (1u << SL_##dtype)
enum {
    FLOATING = BIT(F32) | BIT(BF16) | BIT(F16) | BIT(F64),
    EVERY = (1u << SL_DTYPE_COUNT) - 1,
};

/* The element types of each kind of argument, as bits. */
static const uint32_t allowed[] = {
    [SL_ARG_DATA] = FLOATING,
    [SL_ARG_FLOAT] = FLOATING,
    [SL_ARG_STATISTIC] = FLOATING,
    [SL_ARG_F64] = BIT(F64),
    [SL_ARG_INDEX] = BIT(I32) | BIT(I64),
    [SL_ARG_POSITION] = BIT(I32),
    [SL_ARG_MOVED] = EVERY,
    [SL_ARG_ANY] = EVERY,
};

static const char *expected_dtype(sl_arg_kind kind)
{
    switch (kind) {
    case SL_ARG_INDEX:
        return "i32 or i64";
    case SL_ARG_POSITION:
        return "i32";
    case SL_ARG_F64:
        return "f64";
    default:
        return "floating";
    }
}

/* The dtype that DATA or MOVED arguments of a use share, and the name of the first of them. */
typedef struct shared_dtype {
    sl_dtype dtype; /* SL_DTYPE_COUNT: none was met yet */
    const char *name;
} shared_dtype;

static sl_status check_argument(const sl_op_use *use, const sl_op_arg *arg, const sl_meta *meta,
                                const shared_dtype *shared)
{
    if (meta->shape.rank < 0)
        return arg->flags & SL_ARG_OPTIONAL ? SL_OK : sl_use_refuse(use, "%s is missing", arg->name);
    if ((unsigned)meta->dtype >= SL_DTYPE_COUNT || !(allowed[arg->kind] >> meta->dtype & 1u))
        return sl_use_refuse(use, "%s must be %s", arg->name, expected_dtype(arg->kind));
    if (shared && shared->dtype != SL_DTYPE_COUNT && meta->dtype != shared->dtype)
        return sl_use_refuse(use, "%s must be %s like %s", arg->name, sl_dtype_name(shared->dtype), shared->name);
    return SL_OK;
}

static sl_status wrong_count(const sl_op_use *use, const sl_op_info *info)
{
    int most = 0, least = 0;
    bool list = false;
    for (const sl_op_arg *arg = info->inputs; arg->name; arg++) {
        most++;
        least = arg->flags & SL_ARG_OPTIONAL ? least : most;
        list = arg->flags & SL_ARG_LIST;
    }
    const char *name = use->name ? use->name : info->name;
    if (list)
        return sl_fail(SL_ERR_ARGUMENT, "%s: takes at least %d input, given %d", name, least, use->inputs.count);
    return sl_fail(SL_ERR_ARGUMENT, "%s: takes %d to %d inputs, given %d", name, least, most, use->inputs.count);
}

static sl_status check_inputs(const sl_op_use *use, const sl_op_info *info, shared_dtype *shared)
{
    sl_status status = SL_OK;
    const sl_op_arg *arg = info->inputs;
    for (int i = 0; i < use->inputs.count; i++) {
        const sl_meta *meta = meta_at(&use->inputs, i);
        bool shares = arg->kind == SL_ARG_DATA || arg->kind == SL_ARG_MOVED;
        if (!arg->name)
            return wrong_count(use, info);
        SL_TRY(check_argument(use, arg, meta, shares ? shared : NULL));
        if (shares && meta->shape.rank >= 0 && shared->dtype == SL_DTYPE_COUNT)
            *shared = (shared_dtype){ meta->dtype, arg->name };
        arg += !(arg->flags & SL_ARG_LIST);
    }
    for (; arg->name && !(arg->flags & SL_ARG_LIST && use->inputs.count > 0); arg++) {
        if (!(arg->flags & SL_ARG_OPTIONAL))
            return wrong_count(use, info);
    }
done:
    return status;
}

static sl_dtype result_dtype(sl_arg_kind kind, sl_dtype data, sl_dtype asked)
{
    switch (kind) {
    case SL_ARG_STATISTIC:
        return data == SL_BF16 || data == SL_F16 ? SL_F32 : data;
    case SL_ARG_F64:
        return SL_F64;
    case SL_ARG_ANY:
        return asked;
    default:
        return data;
    }
}

/* A stretched tensor can be read, not written. */
static bool has_one_address_each(const sl_meta *meta)
{
    for (int d = 0; d < meta->shape.rank; d++) {
        if (meta->shape.dims[d] > 1 && meta->strides[d] == 0)
            return false;
    }
    return true;
}

static sl_status check_outputs(sl_op_use *use, const sl_op_info *info, const shared_dtype *shared)
{
    sl_status status = SL_OK;
    int count = 0;
    for (const sl_op_arg *arg = info->outputs; arg->name; arg++, count++) {
        const sl_meta *meta = meta_at(&use->outputs, count);
        if (!use->outputs.first) {
            use->dtypes[count] = result_dtype(arg->kind, shared->dtype, use->dtypes[count]);
            continue;
        }
        SL_TRY(check_argument(use, arg, meta, arg->kind == SL_ARG_MOVED ? shared : NULL));
        if (!has_one_address_each(meta))
            return sl_use_refuse(use, "%s has several elements at one address", arg->name);
    }
    if (use->outputs.count > count)
        return sl_fail(SL_ERR_ARGUMENT, "%s: has %d outputs, given %d", info->name, count, use->outputs.count);
done:
    return status;
}

/* Every argument has the shape of the first one there is. */
static sl_status check_same_shapes(sl_op_use *use)
{
    sl_status status = SL_OK;
    const sl_shape *shape = use->inputs.count > 0 ? SL_IN(0) : SL_OUT(0);
    if (use->inputs.count == 0)
        SL_TRY(sl_use_needs_output(use, 0));
    for (int i = 1; i < use->inputs.count; i++)
        SL_TRY(sl_use_want(use, i, shape));
    for (int i = 0; infos[use->op]->outputs[i].name; i++)
        SL_TRY(sl_use_give(use, i, shape));
done:
    return status;
}

sl_status sl_op_check(sl_op_use *use)
{
    sl_status status = SL_OK;
    const sl_op_info *info = sl_op_get_info(use->op);
    shared_dtype shared = { .dtype = SL_DTYPE_COUNT };
    if (!info)
        return sl_fail(SL_ERR_ARGUMENT, "there is no op %d", (int)use->op);
    SL_TRY(check_inputs(use, info, &shared));
    SL_TRY(check_outputs(use, info, &shared));
    SL_TRY(info->shapes ? info->shapes(use) : check_same_shapes(use));
    if ((info->attrs & SL_ATTR_DROPOUT) && !(use->attrs->p >= 0 && use->attrs->p < 1))
        return sl_use_refuse(use, "p is %g, not in [0, 1)", use->attrs->p);
done:
    return status;
}

/* ---- Costs and layouts ----------------------------------------------------------------------- */

sl_cost sl_op_cost(const sl_op_use *use)
{
    const sl_op_info *info = infos[use->op];
    sl_cost cost = { 0, 0 };
    double largest = 0;
    for (int i = 0; i < use->inputs.count + use->outputs.count; i++) {
        const sl_meta *meta = i < use->inputs.count ? sl_use_input(use, i) : sl_use_output(use, i - use->inputs.count);
        double count = sl_shape_elements(&meta->shape);
        largest = count > largest ? count : largest;
        cost.bytes += count * (double)sl_dtype_size(meta->dtype);
    }
    cost.flops = info->flops_per_element * largest;
    if (info->cost)
        info->cost(use, &cost);
    return cost;
}

/* Whether all dims but the last can be walked with one stride. */
static bool leading_dims_merge(const sl_meta *meta)
{
    int64_t next = -1; /* stride times size of the dim after, among those that count */
    for (int i = meta->shape.rank - 2; i >= 0; i--) {
        if (meta->shape.dims[i] == 1)
            continue;
        if (next >= 0 && meta->strides[i] != next)
            return false;
        next = meta->strides[i] * meta->shape.dims[i];
    }
    return true;
}

bool sl_layout_fits(const sl_meta *meta, sl_op_layout needed)
{
    int last = meta->shape.rank - 1;
    if (needed == SL_LAYOUT_ANY || last < 0 || !sl_dtype_is_floating(meta->dtype))
        return true;
    if (needed == SL_LAYOUT_CONTIGUOUS)
        return sl_meta_is_contiguous(meta);
    if (meta->shape.dims[last] > 1 && meta->strides[last] != 1)
        return false;
    return needed == SL_LAYOUT_HEADS || leading_dims_merge(meta);
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

double sl_shape_elements(const sl_shape *shape)
{
    double count = shape->rank < 0 ? 0 : 1;
    for (int i = 0; i < shape->rank; i++)
        count *= (double)shape->dims[i];
    return count;
}

sl_shape sl_shape_vector(int64_t size)
{
    return (sl_shape){ .rank = 1, .dims = { size } };
}

sl_shape sl_shape_matrix(int64_t rows, int64_t columns)
{
    return (sl_shape){ .rank = 2, .dims = { rows, columns } };
}

sl_shape sl_shape_without_last(const sl_shape *shape)
{
    sl_shape result = *shape;
    result.rank--;
    return result;
}

sl_shape sl_shape_with_last(const sl_shape *shape, int64_t last)
{
    sl_shape result = *shape;
    result.dims[result.rank - 1] = last;
    return result;
}
