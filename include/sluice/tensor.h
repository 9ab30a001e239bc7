/* Tensors: metadata (dtype, shape, strides), plain views of memory for kernels, and trees of them. */
#ifndef SLUICE_TENSOR_H
#define SLUICE_TENSOR_H

#include <sluice/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Metadata -------------------------------------------------------------------------------- */

/* Plain data. Strides count elements and may be 0 (expanded dim), never negative. */
typedef struct sl_meta {
    sl_dtype dtype;
    sl_shape shape;
    int64_t strides[SL_MAX_DIMS];
} sl_meta;

/* A meta with row-major strides; the shape must be one that sl_shape_count accepts. */
SL_API sl_meta sl_meta_contiguous(sl_dtype dtype, const sl_shape *shape);
/* Short form: sl_meta_make(SL_F32, 2, (int64_t[]){ 3, 5 }). rank 0 takes NULL. */
SL_API sl_meta sl_meta_make(sl_dtype dtype, int rank, const int64_t *dims);
SL_API int64_t sl_meta_count(const sl_meta *meta); /* elements; the shape was checked before */
SL_API size_t sl_meta_bytes(const sl_meta *meta);  /* of a contiguous tensor of this shape and dtype */
SL_API bool sl_meta_is_contiguous(const sl_meta *meta);
SL_API bool sl_meta_equal(const sl_meta *a, const sl_meta *b); /* strides of dims with size 0 or 1 do not count */
/* Writes "f32 [2, 3] strides [3, 1]" (strides only if not contiguous) into text and returns it. */
SL_API char *sl_meta_text(const sl_meta *meta, char *text, size_t size);

/* Views of metadata; *out is set only on success. None of them copies data. */

/* One dim of shape may be -1. Fails if the strides do not allow it without a copy. */
SL_API SL_MUST_CHECK sl_status sl_meta_reshape(const sl_meta *meta, const sl_shape *shape, sl_meta *out);
/* Dim i of the result is dim order[i] of meta; order has rank entries. */
SL_API SL_MUST_CHECK sl_status sl_meta_permute(const sl_meta *meta, const int *order, sl_meta *out);
SL_API SL_MUST_CHECK sl_status sl_meta_transpose(const sl_meta *meta, int dim_a, int dim_b, sl_meta *out);
/* Elements start <= i < stop of one dim, every step-th; *offset (elements) is what the data pointer moves by. */
SL_API SL_MUST_CHECK sl_status sl_meta_slice(const sl_meta *meta, int dim, int64_t start, int64_t stop, int64_t step,
                                             sl_meta *out, int64_t *offset);
/* Dims of size 1 and missing leading dims stretch to shape (stride 0). */
SL_API SL_MUST_CHECK sl_status sl_meta_expand(const sl_meta *meta, const sl_shape *shape, sl_meta *out);

/* Shape, then dtype, then stride: the first that differs is the error, with both values; what names the tensor. */
SL_API SL_MUST_CHECK sl_status sl_meta_check(const char *what, const sl_meta *expected, const sl_meta *given);
/* The same, and strides of dims with size 0 or 1 count, too. */
SL_API SL_MUST_CHECK sl_status sl_meta_check_exact(const char *what, const sl_meta *expected, const sl_meta *given);
/* The counts first, then each value as "WHAT: value I". */
SL_API SL_MUST_CHECK sl_status sl_meta_check_list(const char *what, const sl_meta *expected, int expected_count,
                                                  const sl_meta *given, int given_count);

/* The part that chunk `index` of `chunks` takes of `size` elements: the first size % chunks parts get one more. */
SL_API void sl_chunk_range(int64_t size, int64_t chunks, int64_t index, int64_t *start, int64_t *length);

/* Shape that two shapes broadcast to (numpy's rule); fails naming both. */
SL_API SL_MUST_CHECK sl_status sl_shape_broadcast(const sl_shape *a, const sl_shape *b, sl_shape *out);

/* ---- Views ----------------------------------------------------------------------------------- */

/* What kernels work on: memory of the call's device, borrowed for the call. */
typedef struct sl_view {
    void *data;
    sl_meta meta;
} sl_view;

/* Stands for an optional argument that is absent. */
SL_API sl_view sl_view_none(void);
SL_API bool sl_view_is_none(const sl_view *view); /* shape.rank < 0 */

/* ---- Trees: nested arguments ------------------------------------------------------------------- */

/* Lists and dicts hold leaves: tensors, numbers, texts, pointers. A leaf has a path, such as "mask.0" or "kv.key". A
 * pipeline works on leaves; trees are flattened before it and put together again after it. */

typedef enum sl_leaf_kind { SL_LEAF_TENSOR, SL_LEAF_INT, SL_LEAF_REAL, SL_LEAF_TEXT, SL_LEAF_POINTER } sl_leaf_kind;

/* A plain value. Memory of tensors and what pointers point to is the caller's. */
typedef struct sl_leaf {
    sl_leaf_kind kind;
    union {
        sl_view tensor;
        int64_t integer;
        double real;
        const char *text;
        void *pointer;
    } as;
} sl_leaf;

SL_API sl_leaf sl_leaf_tensor(void *data, const sl_meta *meta);
SL_API sl_leaf sl_leaf_int(int64_t value);
SL_API sl_leaf sl_leaf_real(double value);
SL_API sl_leaf sl_leaf_text(const char *text);
SL_API sl_leaf sl_leaf_pointer(void *pointer);

/* The leaf as a view: a tensor's own; of another kind one scalar that lies in the leaf: i64 for an integer, f64 for a
 * real number, i64 with the address for a text or pointer. So every leaf can be an argument of a pipeline. */
SL_API sl_view sl_leaf_view(const sl_leaf *leaf);

typedef enum sl_tree_kind { SL_TREE_NONE, SL_TREE_LEAF, SL_TREE_LIST, SL_TREE_DICT } sl_tree_kind;

typedef struct sl_tree sl_tree;

/* Texts are copied into the tree. */
SL_API SL_MUST_CHECK sl_status sl_tree_leaf(sl_leaf leaf, sl_tree **out);
SL_API SL_MUST_CHECK sl_status sl_tree_none(sl_tree **out); /* a value that is absent: a node without leaves */
SL_API SL_MUST_CHECK sl_status sl_tree_list(sl_tree **out);
SL_API SL_MUST_CHECK sl_status sl_tree_dict(sl_tree **out);
SL_API void sl_tree_destroy(sl_tree *tree); /* with all that is in it; NULL is fine */

/* Both take the child over, also if they fail; it may still be filled through the caller's pointer. A dict keeps its
 * children in the order of their keys, so that equal dicts flatten alike; a key is not empty, has no '.', and is there
 * once. */
SL_API SL_MUST_CHECK sl_status sl_tree_append(sl_tree *list, sl_tree *child);
SL_API SL_MUST_CHECK sl_status sl_tree_put(sl_tree *dict, const char *key, sl_tree *child);
/* The same with a new leaf. */
SL_API SL_MUST_CHECK sl_status sl_tree_append_leaf(sl_tree *list, sl_leaf leaf);
SL_API SL_MUST_CHECK sl_status sl_tree_put_leaf(sl_tree *dict, const char *key, sl_leaf leaf);

SL_API sl_tree_kind sl_tree_get_kind(const sl_tree *tree);
SL_API int sl_tree_count(const sl_tree *tree);                    /* children of a list or dict; else 0 */
SL_API const sl_tree *sl_tree_at(const sl_tree *tree, int index); /* child; NULL out of range */
SL_API const char *sl_tree_key(const sl_tree *tree, int index);   /* of a dict's child; NULL if there is none */
/* The node at the path, "" being the tree itself; NULL if there is none. */
SL_API const sl_tree *sl_tree_find(const sl_tree *tree, const char *path);
/* The leaf at the path; NULL if there is none or the node is no leaf. */
SL_API const sl_leaf *sl_tree_find_leaf(const sl_tree *tree, const char *path);

/* A leaf with its path. */
typedef struct sl_tree_item {
    const char *path;
    const sl_leaf *leaf; /* borrowed from the tree */
} sl_tree_item;

/* All leaves in order. Paths start with the prefix (may be NULL) and a '.'; that of a tree which is a leaf is the prefix
 * alone. The caller frees *out, and with it the paths, with one sl_free. */
SL_API SL_MUST_CHECK sl_status sl_tree_flatten(const sl_tree *tree, const char *prefix, sl_tree_item **out, int *count);
/* A new tree of the same structure with these leaves, in the order of sl_tree_flatten. */
SL_API SL_MUST_CHECK sl_status sl_tree_unflatten(const sl_tree *structure, const sl_leaf *leaves, int count,
                                                 sl_tree **out);
/* Gives the leaves of the tree, in order, what the views hold (the reverse of sl_leaf_view): host memory, except that a
 * tensor's is only passed on. Nothing is allocated, so a stage may call it for its tree in every phase. A text lies
 * where the view says, as long as its owner keeps it. A leaf that is no tensor and gets a view without data, such as the
 * gradient that it does not have, stays as it is. */
SL_API SL_MUST_CHECK sl_status sl_tree_bind(sl_tree *tree, const sl_view *views, int count);

/* The same structure: kinds of nodes, lengths, keys and kinds of leaves. The first path that differs is the error; what
 * names the tree. */
SL_API SL_MUST_CHECK sl_status sl_tree_check(const char *what, const sl_tree *expected, const sl_tree *given);
/* Further the metadata of all tensors. */
SL_API SL_MUST_CHECK sl_status sl_tree_check_metas(const char *what, const sl_tree *expected, const sl_tree *given);

/* ---- Half precision -------------------------------------------------------------------------- */

/* Round to nearest even; NaN stays NaN. */
SL_API uint16_t sl_bf16_from_f32(float value);
SL_API float sl_bf16_to_f32(uint16_t bits);
SL_API uint16_t sl_f16_from_f32(float value);
SL_API float sl_f16_to_f32(uint16_t bits);

#ifdef __cplusplus
}
#endif
#endif
