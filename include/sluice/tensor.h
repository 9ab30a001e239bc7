/* Tensors: metadata (dtype, shape, strides) and plain views of memory for kernels. */
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
