/* The description of an op: all that graph, kernels, cost model and autodiff know about it. One row of data and a few
 * functions on shapes, in the file of the op's family; adding an op adds a description (docs/graph.md has the recipe). */
#ifndef SL_OP_OP_H
#define SL_OP_OP_H

#include <sluice/op.h>

typedef struct sl_op_use sl_op_use;
typedef struct sl_gradient_rule sl_gradient_rule; /* op/gradient.h */

/* ---- Arguments ------------------------------------------------------------------------------- */

/* The element types that an argument may have. As an output, DATA, FLOAT and STATISTIC may be any floating dtype; what
 * is said here is the dtype that the output gets in a graph. */
typedef enum sl_arg_kind {
    SL_ARG_DATA,      /* floating; the same in all DATA inputs of a call; output: that of the data */
    SL_ARG_FLOAT,     /* any floating dtype of its own */
    SL_ARG_STATISTIC, /* likewise; output: that of the data, f32 if the data is bf16 or f16 */
    SL_ARG_F64,
    SL_ARG_INDEX,    /* i32 or i64 */
    SL_ARG_POSITION, /* i32 */
    SL_ARG_MOVED,    /* any dtype; the same in all MOVED arguments of a call */
    SL_ARG_ANY       /* any dtype of its own */
} sl_arg_kind;

enum {
    SL_ARG_OPTIONAL = 1u << 0,
    SL_ARG_INPLACE = 1u << 1,      /* input: output 0 may lie exactly on it (same shape, strides, dtype; not adding) */
    SL_ARG_CONSTANT = 1u << 2,     /* floating input without a gradient: a value that is trained is refused */
    SL_ARG_WRITTEN = 1u << 3,      /* input that the kernel writes, a state of the graph */
    SL_ARG_LIST = 1u << 4,         /* the last input, any number of times (at least once) */
    SL_ARG_TRANSPOSABLE = 1u << 5, /* a matrix that may be given transposed if attrs.transpose_w is turned with it */
    SL_ARG_FREE_GRADIENT = 1u << 6 /* the gradient rule can write this input's term to any strides */
};

typedef struct sl_op_arg {
    const char *name; /* in messages; NULL ends the list */
    sl_arg_kind kind;
    uint32_t flags;
} sl_op_arg;

/* ---- Layout ---------------------------------------------------------------------------------- */

/* The strides with which a kernel runs fast and gives the bits that it gives for contiguous tensors. A cut makes
 * contiguous what is a view in the uncut graph, so the two must not differ: the graph copies what does not fit. */
typedef enum sl_op_layout {
    SL_LAYOUT_ANY,       /* elementwise ops */
    SL_LAYOUT_HEADS,     /* the last dim is contiguous */
    SL_LAYOUT_ROWS,      /* ... and the others lie like one: a matrix with padded rows */
    SL_LAYOUT_CONTIGUOUS /* reductions, whose order of additions would change */
} sl_op_layout;

bool sl_layout_fits(const sl_meta *meta, sl_op_layout needed);

/* ---- Description ----------------------------------------------------------------------------- */

/* Attributes that an op reads; for dumps and checks. */
enum {
    SL_ATTR_TRANSPOSE_W = 1u << 0,
    SL_ATTR_TRANSPOSE_AB = 1u << 1,
    SL_ATTR_CAUSAL = 1u << 2,
    SL_ATTR_DIM = 1u << 3,
    SL_ATTR_DIMS = 1u << 4,
    SL_ATTR_EPS = 1u << 5,
    SL_ATTR_SCALE = 1u << 6,
    SL_ATTR_ALPHA_BETA = 1u << 7,
    SL_ATTR_DROPOUT = 1u << 8, /* p and key */
    SL_ATTR_IGNORE_INDEX = 1u << 9,
    SL_ATTR_WINDOW = 1u << 10,
    SL_ATTR_SOFTCAP = 1u << 11
};

enum { SL_OP_INPUTS = 7, SL_OP_OUTPUTS = 4 }; /* at most, lists apart */

typedef struct sl_op_info {
    const char *name;
    sl_op_arg inputs[SL_OP_INPUTS + 1], outputs[SL_OP_OUTPUTS + 1];
    bool accumulates;       /* outputs can be added to */
    uint32_t attrs;         /* SL_ATTR_* */
    sl_op_layout layout;    /* of the floating tensors */
    sl_op_layout dy_layout; /* of the gradient of output 0, for the gradient rule */

    /* Shapes: checks those of the inputs and gives those of the outputs (sl_op_give). NULL: all have the same. */
    sl_status (*shapes)(sl_op_use *use);

    /* Costs: operations on each element of the largest tensor; rough, since such ops are bound by memory. Or a function
     * that sets flops, and corrects bytes if not all of every tensor is read and written. */
    double flops_per_element;
    void (*cost)(const sl_op_use *use, sl_cost *cost);
    /* Work of the gradients, in forwards: for each large input that needs one, or (whole) for all together. 0: 1.5 for
     * all together. */
    double gradient_work_per_input, gradient_work;

    /* Adds the terms of the inputs' gradients, given that of output 0. NULL: the op has no gradient. */
    sl_status (*gradient)(const sl_gradient_rule *rule);
} sl_op_info;

#define SL_OP_DECLARE(name, description) extern const sl_op_info sl_op_##description;
SL_OP_LIST(SL_OP_DECLARE)
#undef SL_OP_DECLARE

const sl_op_info *sl_op_get_info(sl_op op); /* NULL for a value out of range */
/* Whether the op stands for several plain ones (kernel/fused.h says which). */
static inline bool sl_op_is_fused(sl_op op)
{
    return op > SL_OP_SQUARE_SUM;
}
const sl_op_arg *sl_op_input_arg(const sl_op_info *info, int input);
int sl_op_output_count(const sl_op_info *info);
/* Whether gradients flow from the outputs to this input. */
bool sl_op_is_differentiable(const sl_op_info *info, int input);

bool sl_dtype_is_floating(sl_dtype dtype);

/* ---- Uses ------------------------------------------------------------------------------------ */

/* Metadata that lies in some array, one every `stride` bytes. */
typedef struct sl_meta_list {
    const sl_meta *first;
    size_t stride;
    int count;
} sl_meta_list;

/* One use of an op, without memory: a kernel call, or a node that is being added to a graph. */
struct sl_op_use {
    sl_op op;
    const sl_op_attrs *attrs;
    const char *name; /* of the node, for messages; NULL: the op's */
    sl_meta_list inputs;
    sl_meta_list outputs;           /* first is NULL if the outputs are not known yet ... */
    sl_shape shapes[SL_OP_OUTPUTS]; /* ... then sl_op_check fills these */
    sl_dtype dtypes[SL_OP_OUTPUTS]; /* likewise; what an ANY output is to be, the caller says here */
};

/* Counts, element types, shapes, attributes: after it no kernel can step outside its arguments' metadata. */
SL_MUST_CHECK sl_status sl_op_check(sl_op_use *use);
/* Of a use that was checked and whose outputs are known. */
sl_cost sl_op_cost(const sl_op_use *use);

/* ---- For shape rules and cost functions ------------------------------------------------------ */

/* An input or output; one of rank -1 if it is absent (outputs also if not known yet). */
const sl_meta *sl_use_input(const sl_op_use *use, int i);
const sl_meta *sl_use_output(const sl_op_use *use, int i);
static inline bool sl_use_has(const sl_op_use *use, int i)
{
    return sl_use_input(use, i)->shape.rank >= 0;
}

/* The error "NODE(x f32 [2, 3], w f32 [4]): WHY", with the outputs if they are known. */
sl_status sl_use_refuse(const sl_op_use *use, const char *format, ...) SL_PRINTF(2, 3);
/* Input i must have this shape, or be absent if it is optional. */
SL_MUST_CHECK sl_status sl_use_want(const sl_op_use *use, int i, const sl_shape *shape);
SL_MUST_CHECK sl_status sl_use_want_rank(const sl_op_use *use, int i, int rank);
SL_MUST_CHECK sl_status sl_use_want_dims(const sl_op_use *use, int i, int least);
/* Output i has this shape. */
SL_MUST_CHECK sl_status sl_use_give(sl_op_use *use, int i, const sl_shape *shape);
/* The shape of output i does not follow from the inputs: the caller has to know it. */
SL_MUST_CHECK sl_status sl_use_needs_output(const sl_op_use *use, int i);

double sl_shape_elements(const sl_shape *shape); /* 0 for an absent tensor */
sl_shape sl_shape_vector(int64_t size);
sl_shape sl_shape_matrix(int64_t rows, int64_t columns);
sl_shape sl_shape_without_last(const sl_shape *shape);
sl_shape sl_shape_with_last(const sl_shape *shape, int64_t last);
static inline int64_t sl_shape_last(const sl_shape *shape)
{
    return shape->dims[shape->rank - 1];
}

#define SL_IN(i) (&sl_use_input(use, i)->shape)
#define SL_OUT(i) (&sl_use_output(use, i)->shape)

#endif
