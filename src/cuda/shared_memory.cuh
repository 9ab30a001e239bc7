// Shared memory beyond the 48 KiB that every launch may have.
#ifndef SL_CUDA_SHARED_MEMORY_CUH
#define SL_CUDA_SHARED_MEMORY_CUH

#include <cuda_runtime.h>

#include <stddef.h>

static inline size_t most_shared(void)
{
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return 0;
    return (size_t)most;
}

// Lets a kernel have that much. The limit belongs to the kernel, not to a launch: if a launch asked for less than an earlier
// one, perhaps of a rank in another thread, a graph with the earlier one could not be made any more. So all ask for the
// same: whatever the device has.
template <class Kernel> static cudaError_t allow_shared(Kernel kernel, size_t bytes)
{
    cudaFuncAttributes attributes;
    if (bytes <= 48 << 10)
        return cudaSuccess;
    cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)kernel);
    size_t most = most_shared();
    if (error != cudaSuccess)
        return error;
    if (attributes.sharedSizeBytes + bytes > most)
        return cudaErrorInvalidValue;
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(most - attributes.sharedSizeBytes));
}

#endif
