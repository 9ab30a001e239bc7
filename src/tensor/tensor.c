/* Tensors: a view and a share in refcounted storage. */
#include <sluice/tensor.h>

#include "base/alloc.h"

#include <stdatomic.h>

typedef struct storage {
    atomic_int owners;
    sl_device *device;
    void *data;
    bool borrowed; /* the memory is the caller's */
} storage;

struct sl_tensor {
    atomic_int owners;
    storage *storage;
    sl_view view;
};

sl_view sl_view_none(void)
{
    return (sl_view){ .meta = { .shape = { .rank = -1 } } };
}

bool sl_view_is_none(const sl_view *view)
{
    return view->meta.shape.rank < 0;
}

static void storage_release(storage *block)
{
    if (!block || atomic_fetch_sub(&block->owners, 1) > 1)
        return;
    if (!block->borrowed)
        sl_device_free(block->device, block->data);
    sl_free(block);
}

/* Takes over one share of block, also where it fails. */
static sl_status make_tensor(storage *block, void *data, const sl_meta *meta, sl_tensor **out)
{
    sl_tensor *tensor = NULL;
    sl_status status = SL_NEW(tensor);
    if (status != SL_OK) {
        storage_release(block);
        return status;
    }
    atomic_init(&tensor->owners, 1);
    tensor->storage = block;
    tensor->view = (sl_view){ .data = data, .meta = *meta };
    *out = tensor;
    return SL_OK;
}

/* Checks what create and wrap are given; the byte count must fit too. */
static sl_status check_meta(sl_dtype dtype, const sl_shape *shape, size_t *bytes)
{
    char text[128];
    int64_t count;
    size_t size = sl_dtype_size(dtype);
    if (size == 0)
        return sl_fail(SL_ERR_ARGUMENT, "tensor: dtype %d does not exist", (int)dtype);
    sl_status status = sl_shape_count(shape, &count);
    if (status != SL_OK)
        return sl_fail_context(status, "tensor");
    if (__builtin_mul_overflow((size_t)count, size, bytes))
        return sl_fail(SL_ERR_SHAPE, "tensor: %s %s is too large", sl_dtype_name(dtype),
                       sl_shape_text(shape, text, sizeof text));
    return SL_OK;
}

static sl_status make_storage(sl_device *device, void *data, bool borrowed, storage **out)
{
    storage *block = NULL;
    sl_status status = SL_NEW(block);
    if (status != SL_OK)
        return status;
    atomic_init(&block->owners, 1);
    block->device = device;
    block->data = data;
    block->borrowed = borrowed;
    *out = block;
    return SL_OK;
}

sl_status sl_tensor_create(sl_device *device, sl_dtype dtype, const sl_shape *shape, sl_tensor **out)
{
    sl_status status = SL_OK;
    storage *block = NULL;
    void *data = NULL;
    size_t bytes = 0;

    SL_TRY(check_meta(dtype, shape, &bytes));
    sl_meta meta = sl_meta_contiguous(dtype, shape);
    SL_TRY(sl_device_alloc(device, bytes, &data));
    SL_TRY(make_storage(device, data, false, &block));
    void *start = data;
    data = NULL; /* now the storage's */
    SL_TRY(make_tensor(block, start, &meta, out));
done:
    sl_device_free(device, data);
    return status;
}

sl_status sl_tensor_wrap(sl_device *device, void *data, const sl_meta *meta, sl_tensor **out)
{
    sl_status status = SL_OK;
    storage *block = NULL;
    size_t bytes = 0;

    SL_TRY(check_meta(meta->dtype, &meta->shape, &bytes));
    SL_TRY(make_storage(device, data, true, &block));
    SL_TRY(make_tensor(block, data, meta, out));
done:
    return status;
}

sl_tensor *sl_tensor_retain(sl_tensor *tensor)
{
    atomic_fetch_add(&tensor->owners, 1);
    return tensor;
}

void sl_tensor_release(sl_tensor *tensor)
{
    if (!tensor || atomic_fetch_sub(&tensor->owners, 1) > 1)
        return;
    storage_release(tensor->storage);
    sl_free(tensor);
}

sl_device *sl_tensor_device(const sl_tensor *tensor)
{
    return tensor->storage->device;
}

const sl_meta *sl_tensor_meta(const sl_tensor *tensor)
{
    return &tensor->view.meta;
}

sl_view sl_tensor_view(const sl_tensor *tensor)
{
    return tensor->view;
}

/* ---- Views ----------------------------------------------------------------------------------- */

static sl_status share(sl_tensor *tensor, const sl_meta *meta, int64_t offset, sl_tensor **out)
{
    char *data = (char *)tensor->view.data + (size_t)offset * sl_dtype_size(meta->dtype);
    atomic_fetch_add(&tensor->storage->owners, 1);
    return make_tensor(tensor->storage, data, meta, out);
}

sl_status sl_tensor_reshape(sl_tensor *tensor, const sl_shape *shape, sl_tensor **out)
{
    sl_meta meta;
    sl_status status = sl_meta_reshape(&tensor->view.meta, shape, &meta);
    return status == SL_OK ? share(tensor, &meta, 0, out) : status;
}

sl_status sl_tensor_permute(sl_tensor *tensor, const int *order, sl_tensor **out)
{
    sl_meta meta;
    sl_status status = sl_meta_permute(&tensor->view.meta, order, &meta);
    return status == SL_OK ? share(tensor, &meta, 0, out) : status;
}

sl_status sl_tensor_transpose(sl_tensor *tensor, int dim_a, int dim_b, sl_tensor **out)
{
    sl_meta meta;
    sl_status status = sl_meta_transpose(&tensor->view.meta, dim_a, dim_b, &meta);
    return status == SL_OK ? share(tensor, &meta, 0, out) : status;
}

sl_status sl_tensor_slice(sl_tensor *tensor, int dim, int64_t start, int64_t stop, int64_t step, sl_tensor **out)
{
    sl_meta meta;
    int64_t offset = 0;
    sl_status status = sl_meta_slice(&tensor->view.meta, dim, start, stop, step, &meta, &offset);
    return status == SL_OK ? share(tensor, &meta, offset, out) : status;
}

sl_status sl_tensor_expand(sl_tensor *tensor, const sl_shape *shape, sl_tensor **out)
{
    sl_meta meta;
    sl_status status = sl_meta_expand(&tensor->view.meta, shape, &meta);
    return status == SL_OK ? share(tensor, &meta, 0, out) : status;
}

sl_status sl_tensor_chunk(sl_tensor *tensor, int dim, int64_t chunks, int64_t index, sl_tensor **out)
{
    const sl_meta *meta = &tensor->view.meta;
    int64_t start = 0, length = 0;
    if (chunks < 1 || index < 0 || index >= chunks)
        return sl_fail(SL_ERR_ARGUMENT, "chunk: there is no chunk %lld of %lld", (long long)index, (long long)chunks);
    if (dim >= 0 && dim < meta->shape.rank)
        sl_chunk_range(meta->shape.dims[dim], chunks, index, &start, &length);
    return sl_tensor_slice(tensor, dim, start, start + length, 1, out);
}

/* ---- Contents -------------------------------------------------------------------------------- */

static sl_status check_contents(const char *what, const sl_tensor *tensor, size_t bytes)
{
    char text[256];
    const sl_meta *meta = &tensor->view.meta;
    if (!sl_meta_is_contiguous(meta))
        return sl_fail(SL_ERR_ARGUMENT, "%s: the tensor (%s) is not contiguous", what,
                       sl_meta_text(meta, text, sizeof text));
    if (bytes != sl_meta_bytes(meta))
        return sl_fail(SL_ERR_ARGUMENT, "%s: %s has %zu bytes, given %zu", what, sl_meta_text(meta, text, sizeof text),
                       sl_meta_bytes(meta), bytes);
    return SL_OK;
}

sl_status sl_tensor_read(const sl_tensor *tensor, sl_stream *stream, void *host, size_t bytes)
{
    sl_status status = SL_OK;
    SL_TRY(check_contents("read", tensor, bytes));
    SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, host, tensor->view.data, bytes));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

sl_status sl_tensor_write(sl_tensor *tensor, sl_stream *stream, const void *host, size_t bytes)
{
    sl_status status = SL_OK;
    SL_TRY(check_contents("write", tensor, bytes));
    SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, tensor->view.data, host, bytes));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}
