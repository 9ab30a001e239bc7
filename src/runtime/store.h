/* The memory of parameters and gradients. Stages own it together; a runtime has it while it exists, so that the next
 * runtime of the same stages finds their values. */
#ifndef SL_RUNTIME_STORE_H
#define SL_RUNTIME_STORE_H

#include <sluice/runtime.h>

typedef struct sl_param_store {
    sl_device *device;
    void *data, *grads; /* one block each; NULL if empty */
    size_t data_bytes, grad_bytes;
    bool grads_partial; /* the last step was: the gradients are sums that are not complete */
    int users;          /* stages and runtimes */
} sl_param_store;

/* The store of the runtime's stages if they have one and it is laid out as the runtime needs it; else a new one, into
 * which their values are copied. Sets runtime->store and the blocks of weights and gradients; stages keep what they have
 * until sl_store_commit. */
SL_MUST_CHECK sl_status sl_store_open(sl_runtime *runtime);
/* Once the weights have their places: values of an earlier store are copied, new gradients are zero. */
SL_MUST_CHECK sl_status sl_store_fill(sl_runtime *runtime);
/* The runtime is complete: its stages have the store from now on. */
void sl_store_commit(sl_runtime *runtime);
void sl_store_release(sl_param_store *store); /* one user less; NULL is fine */

#endif
