/* Attention by cuDNN, which is loaded when a device is opened if it is installed. */
#ifndef SL_CUDA_DNN_H
#define SL_CUDA_DNN_H

#include "cuda/cuda.h"

/* NULL if cuDNN is not there. */
cuda_dnn *cuda_dnn_create(void);
void cuda_dnn_destroy(cuda_dnn *dnn); /* NULL is fine */
char *cuda_dnn_version(const cuda_dnn *dnn, char *text, size_t size);

/* Bytes of scratch with which cuDNN can run the call, ATTENTION or ATTENTION_GRAD; 0 if it cannot. The first call of a
 * shape compiles a plan, which takes up to a second. */
size_t cuda_dnn_scratch(cuda_dnn *dnn, const sl_kernel_call *call);

/* Gives the call to the stream and sets *done, or leaves it false if cuDNN cannot do it. */
sl_status cuda_dnn_attention(const cuda_run *run, bool *done);

#endif
