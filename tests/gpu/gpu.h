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

/* A tensor's memory on the GPU: from its first element to its last, guards before and after. */
typedef struct far_block {
    char *host, *device;
    size_t bytes, shift; /* shift: how far the data is off an alignment of 256 */
} far_block;

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

HELPER void copy_block(const far_block *block, bool to_device)
{
    size_t all = block->bytes + block->shift + 2 * GUARD;
    char *image = malloc(all);
    memset(image, POISON, all);
    if (to_device) {
        memcpy(image + GUARD + block->shift, block->host, block->bytes);
        assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_HOST_TO_DEVICE, block->device, image, all), SL_OK);
        assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
    } else {
        assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, image, block->device, all), SL_OK);
        assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
        for (size_t i = 0; i < all; i++) {
            bool inside = i >= GUARD + block->shift && i < GUARD + block->shift + block->bytes;
            if (!inside && (unsigned char)image[i] != POISON)
                fail_msg("a kernel wrote outside a tensor, at byte %zu of %zu", i, all);
        }
        memcpy(block->host, image + GUARD + block->shift, block->bytes);
    }
    free(image);
}

/* The views of a call on the GPU; tensors at one address share one block. */
HELPER void send_views(const sl_view *views, int count, sl_view *out, far_block *blocks, int *block_count)
{
    for (int i = 0; i < count; i++) {
        out[i] = views[i];
        if (sl_view_is_none(&views[i]))
            continue;
        far_block *found = NULL;
        for (int b = 0; b < *block_count && !found; b++)
            found = blocks[b].host == views[i].data ? &blocks[b] : NULL;
        if (!found) {
            found = &blocks[(*block_count)++];
            *found = (far_block){ .host = views[i].data,
                                  .bytes = span_bytes(&views[i].meta),
                                  .shift = (uintptr_t)views[i].data % 64 };
            size_t all = found->bytes + found->shift + 2 * GUARD;
            assert_int_equal(sl_device_alloc(gpu, all, (void **)&found->device), SL_OK);
            copy_block(found, true);
        }
        out[i].data = found->device + GUARD + found->shift;
    }
}

/* Runs the call on the GPU with the scratch that it asks for, no byte more. */
HELPER sl_status run_on_gpu(sl_kernel_call call)
{
    sl_view inputs[MAX_ARGS], outputs[MAX_ARGS];
    far_block blocks[2 * MAX_ARGS], scratch = { 0 };
    int count = 0;
    size_t bytes = 0;
    sl_status status = sl_kernel_scratch(gpu, &call, &bytes);
    if (status != SL_OK)
        return status;
    send_views(call.inputs, call.input_count, inputs, blocks, &count);
    send_views(call.outputs, call.output_count, outputs, blocks, &count);
    call.inputs = inputs;
    call.outputs = outputs;
    if (bytes > 0) {
        scratch = (far_block){ .host = malloc(bytes), .bytes = bytes };
        memset(scratch.host, POISON, bytes);
        assert_int_equal(sl_device_alloc(gpu, bytes + 2 * GUARD, (void **)&scratch.device), SL_OK);
        copy_block(&scratch, true);
        call.scratch = scratch.device + GUARD;
        call.scratch_bytes = bytes;
    }
    status = sl_kernel_run(gpu_stream, &call);
    if (status == SL_OK)
        status = sl_stream_synchronize(gpu_stream);
    for (int i = 0; i < count; i++) {
        if (status == SL_OK)
            copy_block(&blocks[i], false);
        sl_device_free(gpu, blocks[i].device);
    }
    if (scratch.device && status == SL_OK)
        copy_block(&scratch, false);
    sl_device_free(gpu, scratch.device);
    free(scratch.host);
    return status;
}

#endif
