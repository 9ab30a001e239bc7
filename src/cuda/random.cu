// Dropout, with the bits that the processor draws; numbers for the comparison of algorithms.
#include "cuda/element.cuh"

#include "kernel/call.h"
#include "kernel/philox.h"

__global__ void drop(const __grid_constant__ tensor_view x, const __grid_constant__ tensor_view y, int64_t count, const __grid_constant__ sl_dropout_stream given, bool drops, bool add)
{
    const sl_dropout_stream stream = sl_dropout_resolve(&given);
    FOR_EACH_ELEMENT (i, count) {
        double value = load<double>(x.data, x.dtype, x.offset(i));
        if (drops)
            value = sl_dropout_apply(&stream, (uint64_t)i, value);
        store<double>(y.data, y.dtype, y.offset(i), value, add);
    }
}

sl_status cuda_dropout(const cuda_run *run)
{
    const sl_kernel_call *call = run->call;
    const sl_view *x = sl_call_input(call, 0);
    int64_t count = sl_meta_count(&x->meta);
    if (count == 0)
        return SL_OK;
    drop<<<element_blocks(count), BLOCK, 0, run->stream>>>(merged(x, 0), merged(sl_call_output(call, 0), 0), count,
                                                           sl_dropout_of_samples(call), sl_call_drops(call),
                                                           sl_call_accumulates(call, 0));
    return launched("dropout kernel");
}

__global__ void fill_random(void *data, int dtype, int64_t count)
{
    FOR_EACH_ELEMENT (i, count) {
        uint32_t counter[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, 0 };
        sl_philox(counter, 17, 0);
        store<float>(data, dtype, i, (float)(int32_t)counter[0] * 0x1p-31f, false);
    }
}

void cuda_fill_random(cudaStream_t stream, void *data, int32_t dtype, int64_t count)
{
    fill_random<<<element_blocks(count), BLOCK, 0, stream>>>(data, dtype, count);
}

__global__ void count_different(const uint16_t *a, const uint16_t *b, int64_t count, int32_t *different)
{
    FOR_EACH_ELEMENT (i, count) {
        if (a[i] != b[i])
            atomicAdd(different, 1);
    }
}

void cuda_count_different(cudaStream_t stream, const void *a, const void *b, int64_t bytes, int32_t *count)
{
    count_different<<<element_blocks(bytes / 2), BLOCK, 0, stream>>>((const uint16_t *)a, (const uint16_t *)b, bytes / 2,
                                                                     count);
}
