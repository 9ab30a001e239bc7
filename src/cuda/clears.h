/* Nodes of a captured graph that clear memory. Each takes as long as starting a copy engine, and nothing runs beside it.
 * cuBLASLt puts one before most products, for a word that counts tiles: here every product of a capture gets other words, and
 * one node clears them all as the graph begins. Kernels take the place of the rest. */
#ifndef SL_CUDA_CLEARS_H
#define SL_CUDA_CLEARS_H

#include "cuda/cuda.h"

/* For the capture of the stream that has just begun; NULL if there is no memory for it. */
cuda_clears *cuda_clears_create(cudaStream_t stream);
void cuda_clears_destroy(cuda_clears *clears); /* NULL is fine */

/* Memory for a call whose library clears what it needs of it; no other call of the capture has it. NULL: the stream does not
 * belong to the capture, or there is no memory, or so much is asked for that the call had better take its scratch. */
void *cuda_clears_take(cuda_clears *clears, cudaStream_t stream, size_t bytes);

/* Changes the nodes of the captured graph. The memory must live as long as the graph is launched. clears may be NULL. */
sl_status cuda_clears_join(const cuda_clears *clears, cudaGraph_t graph);

#endif
