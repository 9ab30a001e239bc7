/* Nodes of a captured graph that clear memory. Each takes as long as starting a copy engine, and nothing runs beside it.
 * cuBLASLt puts one before most products, for a word that counts tiles: here every product of a capture gets other words, and
 * one node clears them all as the graph begins. Kernels take the place of the rest. */
#ifndef SL_CUDA_CLEARS_H
#define SL_CUDA_CLEARS_H

#include "cuda/device.h"

/* For the capture of the stream that has just begun. Several may be under way on a device, each with clears of its own. */
void cuda_clears_begin(cuda_device *device, cudaStream_t stream);
/* Those of the capture that the stream began last, which now belong to the caller; NULL: it has none. */
cuda_clears *cuda_clears_end(cuda_device *device, cudaStream_t stream);
void cuda_clears_destroy(cuda_clears *clears); /* NULL is fine; the graph no longer runs */
void cuda_clears_close(cuda_device *device);

/* Memory for a call whose library clears what it needs of it; no other call of the capture has it. NULL: the stream does not
 * belong to a capture, or there is no memory, or so much is asked for that the call had better take its scratch. */
void *cuda_clears_take(cuda_device *device, cudaStream_t stream, size_t bytes);

/* Changes the nodes of the captured graph. The memory must live as long as the graph is launched. clears may be NULL. */
sl_status cuda_clears_join(const cuda_clears *clears, cudaGraph_t graph);

#endif
