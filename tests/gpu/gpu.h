/* Shared by the tests of a GPU: calls whose tensors lie in host memory run there, on copies with guards around them. */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include "unit/kernel/cases.h"

#include "kernel/cpu/isa.h"
#include "op/op.h"

/* What lies around tensors and in scratch memory: NaN in every element type, so that a result made of it shows. */
enum { GUARD = 256, POISON = 0xFF, SKIPPED = 77 };

static sl_device *gpu;
static sl_stream *gpu_stream;

/* Opens the GPU; false, with the reason printed, if there is none. SLUICE_GPU_TEST, a pattern, chooses among the tests:
 * compute-sanitizer makes them slow. */
HELPER bool open_gpu(void)
{
    cmocka_set_test_filter(getenv("SLUICE_GPU_TEST"));
    if (sl_device_open("cuda", NULL, &gpu) != SL_OK) {
        printf("skipped: %s\n", sl_error_message());
        return false;
    }
    if (sl_stream_create(gpu, &gpu_stream) != SL_OK)
        abort();
    return true;
}

HELPER void close_gpu(void)
{
    sl_stream_destroy(gpu_stream);
    sl_device_close(gpu);
}

/* A tensor of a call, or its scratch memory, and its place in the call's image on the GPU. */
typedef struct far_block {
    char *host;
    size_t bytes, place;
} far_block;

/* All memory of a call: blocks in the order of their places, with guards before, between and behind them. */
typedef struct far_image {
    far_block blocks[2 * MAX_ARGS + 1];
    int count;
    size_t bytes;
} far_image;

HELPER size_t span_bytes(const sl_meta *meta)
{
    int64_t last = 0;
    for (int i = 0; i < meta->shape.rank; i++) {
        if (meta->shape.dims[i] == 0)
            return 0;
        last += (meta->shape.dims[i] - 1) * meta->strides[i];
    }
    return (size_t)(last + 1) * sl_dtype_size(meta->dtype);
}

/* NULL if nothing at that address is in the image. */
HELPER const far_block *find_block(const far_image *image, const void *host)
{
    for (int i = 0; i < image->count; i++) {
        if (image->blocks[i].host == host)
            return &image->blocks[i];
    }
    return NULL;
}

/* As far off an alignment as in host memory. Tensors at one address share a block. */
HELPER void add_block(far_image *image, char *host, size_t bytes)
{
    if (find_block(image, host))
        return;
    size_t place = image->bytes + GUARD + (uintptr_t)host % 64;
    image->blocks[image->count++] = (far_block){ .host = host, .bytes = bytes, .place = place };
    image->bytes = (place + bytes + GUARD - 1) / GUARD * GUARD + GUARD;
}

HELPER void add_views(far_image *image, const sl_view *views, int count)
{
    for (int i = 0; i < count; i++) {
        if (!sl_view_is_none(&views[i]))
            add_block(image, views[i].data, span_bytes(&views[i].meta));
    }
}

/* The views of a call on the GPU, where the image begins at `base`. */
HELPER void place_views(const far_image *image, char *base, const sl_view *views, int count, sl_view *out)
{
    for (int i = 0; i < count; i++) {
        out[i] = views[i];
        if (!sl_view_is_none(&views[i]))
            out[i].data = base + find_block(image, views[i].data)->place;
    }
}

/* One copy to the GPU and one back for all tensors of a call: there are thousands of calls, and under a tool waiting for
 * the GPU is what takes long. */
HELPER void send_image(const far_image *image, char *bytes, char *base)
{
    memset(bytes, POISON, image->bytes);
    for (int i = 0; i < image->count; i++)
        memcpy(bytes + image->blocks[i].place, image->blocks[i].host, image->blocks[i].bytes);
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_HOST_TO_DEVICE, base, bytes, image->bytes), SL_OK);
}

HELPER void fetch_image(const far_image *image, char *bytes, const char *base)
{
    size_t next = 0;
    assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, bytes, base, image->bytes), SL_OK);
    assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
    for (int i = 0; i <= image->count; i++) {
        const far_block *block = i < image->count ? &image->blocks[i] : NULL;
        for (; next < (block ? block->place : image->bytes); next++) {
            if ((unsigned char)bytes[next] != POISON)
                fail_msg("a kernel wrote outside a tensor, at byte %zu of %zu", next, image->bytes);
        }
        if (block) {
            memcpy(block->host, bytes + next, block->bytes);
            next += block->bytes;
        }
    }
}

/* A call whose tensors lie on the GPU, with the scratch that it asks for, no byte more. */
typedef struct far_call {
    far_image image;
    sl_view inputs[MAX_ARGS], outputs[MAX_ARGS];
    sl_kernel_call call;
    char *bytes, *base;
    void *scratch;
} far_call;

HELPER sl_status place_call(const sl_kernel_call *near, far_call *far)
{
    size_t scratch_bytes = 0;
    *far = (far_call){ .call = *near };
    sl_status status = sl_kernel_scratch(gpu, near, &scratch_bytes);
    if (status != SL_OK)
        return status;
    add_views(&far->image, near->inputs, near->input_count);
    add_views(&far->image, near->outputs, near->output_count);
    if (scratch_bytes > 0) {
        assert_int_equal(posix_memalign(&far->scratch, 64, scratch_bytes), 0);
        memset(far->scratch, POISON, scratch_bytes);
        add_block(&far->image, far->scratch, scratch_bytes);
    }
    far->bytes = malloc(far->image.bytes + 1);
    assert_int_equal(sl_device_alloc(gpu, far->image.bytes + 1, (void **)&far->base), SL_OK);
    send_image(&far->image, far->bytes, far->base);
    place_views(&far->image, far->base, near->inputs, near->input_count, far->inputs);
    place_views(&far->image, far->base, near->outputs, near->output_count, far->outputs);
    far->call.inputs = far->inputs;
    far->call.outputs = far->outputs;
    far->call.scratch = far->scratch ? far->base + find_block(&far->image, far->scratch)->place : NULL;
    far->call.scratch_bytes = scratch_bytes;
    return SL_OK;
}

HELPER void free_call(far_call *far)
{
    sl_device_free(gpu, far->base);
    free(far->bytes);
    free(far->scratch);
}

HELPER sl_status run_on_gpu(sl_kernel_call call)
{
    far_call far;
    sl_status status = place_call(&call, &far);
    if (status != SL_OK)
        return status;
    status = sl_kernel_run(gpu_stream, &far.call);
    if (status == SL_OK)
        status = sl_stream_synchronize(gpu_stream); /* what a kernel has found */
    if (status == SL_OK)
        fetch_image(&far.image, far.bytes, far.base);
    free_call(&far);
    return status;
}

#endif
