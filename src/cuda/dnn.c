/* Attention by cuDNN's backend interface: bf16, causal or not, grouped heads, without dropout. */
#include "cuda/dnn.h"

#if CUDA_HAS_DNN

#include "cuda/dnn_plan.h"

#include "base/alloc.h"
#include "kernel/call.h"
#include "kernel/gpu_scratch.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

cuda_dnn *cuda_dnn_create(void)
{
    cuda_dnn *dnn = NULL;
    void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!library || SL_NEW(dnn) != SL_OK)
        return NULL;
#define LOAD(name) *(void **)&dnn->name = dlsym(library, #name);
    DNN_FUNCTIONS(LOAD)
#undef LOAD
#define MISSING(name) || !dnn->name
    if (false DNN_FUNCTIONS(MISSING) || dnn->cudnnCreate(&dnn->handle) != CUDNN_STATUS_SUCCESS) {
        sl_free(dnn);
        return NULL;
    }
#undef MISSING
    return dnn;
}

void cuda_dnn_destroy(cuda_dnn *dnn)
{
    if (!dnn)
        return;
    while (dnn->plans) {
        dnn_plan *next = dnn->plans->next;
        if (dnn->plans->plan)
            dnn->cudnnBackendDestroyDescriptor(dnn->plans->plan);
        sl_free(dnn->plans);
        dnn->plans = next;
    }
    dnn->cudnnDestroy(dnn->handle);
    sl_free(dnn);
}

char *cuda_dnn_version(const cuda_dnn *dnn, char *text, size_t size)
{
    size_t version = dnn ? dnn->cudnnGetVersion() : 0;
    if (dnn)
        snprintf(text, size, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    else
        snprintf(text, size, "no cuDNN");
    return text;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static void set_strides(const sl_view *view, int64_t strides[3])
{
    memcpy(strides, view->meta.strides, 3 * sizeof *strides);
}

static dnn_shape shape_of(const sl_kernel_call *call)
{
    const int64_t *q = call->inputs[0].meta.shape.dims, *k = call->inputs[1].meta.shape.dims;
    bool backward = call->op == SL_OP_ATTENTION_GRAD;
    dnn_shape shape;
    memset(&shape, 0, sizeof shape); /* plans are found by all of its bytes */
    shape.backward = backward;
    shape.causal = call->attrs.causal;
    shape.batch = q[0];
    shape.length = q[1];
    shape.heads = q[2];
    shape.groups = k[2];
    shape.width = q[3];
    float scale = (float)call->attrs.scale;
    memcpy(&shape.scale, &scale, sizeof scale);
    for (int i = 0; i < 3; i++)
        set_strides(&call->inputs[i], shape.strides[AT_Q + i]);
    set_strides(backward ? &call->inputs[3] : &call->outputs[0], shape.strides[AT_O]);
    if (backward)
        set_strides(&call->inputs[5], shape.strides[AT_DO]);
    for (int i = 0; i < 3 && backward; i++)
        set_strides(&call->outputs[i], shape.strides[AT_DQ + i]);
    return shape;
}

static dnn_plan *find_plan(cuda_dnn *dnn, const sl_kernel_call *call)
{
    dnn_plan *plan = NULL;
    if (!dnn || !sl_gpu_dnn_fits(call))
        return NULL;
    const dnn_shape shape = shape_of(call);
    for (plan = dnn->plans; plan; plan = plan->next) {
        if (memcmp(&plan->shape, &shape, sizeof shape) == 0)
            return plan->usable ? plan : NULL;
    }
    if (SL_NEW(plan) != SL_OK)
        return NULL;
    plan->shape = shape;
    cuda_dnn_build(dnn, plan);
    plan->next = dnn->plans;
    dnn->plans = plan;
    return plan->usable ? plan : NULL;
}

size_t cuda_dnn_scratch(cuda_dnn *dnn, const sl_kernel_call *call)
{
    const dnn_plan *plan = find_plan(dnn, call);
    return plan ? plan->delta_bytes + 2 * plan->full_bytes + plan->workspace + 256 : 0;
}

/* Ids and addresses of all that the plan touches; false if one is not aligned. */
static bool bind(const dnn_plan *plan, const sl_kernel_call *call, char *scratch, int64_t *ids, void **pointers,
                 int *count)
{
    bool backward = plan->shape.backward;
    void *places[AT_COUNT] = {
        [AT_Q] = call->inputs[0].data,
        [AT_K] = call->inputs[1].data,
        [AT_V] = call->inputs[2].data,
        [AT_O] = backward ? call->inputs[3].data : call->outputs[0].data,
        [AT_LSE] = backward ? call->inputs[4].data : call->outputs[1].data,
        [AT_DO] = backward ? call->inputs[5].data : NULL,
        [AT_DQ] = backward ? call->outputs[0].data : NULL,
        [AT_DK] = backward ? call->outputs[1].data : NULL,
        [AT_DV] = backward ? call->outputs[2].data : NULL,
        [AT_DELTA] = scratch,
        [AT_FULL_DK] = scratch + plan->delta_bytes,
        [AT_FULL_DV] = scratch + plan->delta_bytes + plan->full_bytes,
    };
    for (int i = 0; i < AT_COUNT; i++) {
        if (plan->ids[i] == 0)
            continue;
        if ((uintptr_t)places[i] % 16 != 0)
            return false;
        ids[*count] = plan->ids[i];
        pointers[(*count)++] = places[i];
    }
    for (int i = 0; i < plan->scalar_count; i++) {
        ids[*count] = plan->scalar_ids[i];
        pointers[(*count)++] = (void *)&plan->scalars[i];
    }
    return true;
}

sl_status cuda_dnn_attention(const cuda_run *run, bool *done)
{
    const sl_kernel_call *call = run->call;
    cuda_dnn *dnn = run->dnn;
    const dnn_plan *plan = find_plan(dnn, call);
    int64_t ids[AT_COUNT + MOST_SCALARS];
    void *pointers[AT_COUNT + MOST_SCALARS];
    int count = 0;
    char *scratch = (char *)(((uintptr_t)call->scratch + 255) / 256 * 256);
    dnn_descriptor pack = NULL;
    if (!plan || !bind(plan, call, scratch, ids, pointers, &count))
        return SL_OK;
    void *workspace = scratch + plan->delta_bytes + 2 * plan->full_bytes;
    bool good =
        dnn->cudnnSetStream(dnn->handle, run->stream) == CUDNN_STATUS_SUCCESS &&
        dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack) == CUDNN_STATUS_SUCCESS &&
        dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids) ==
            CUDNN_STATUS_SUCCESS &&
        dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                                      pointers) == CUDNN_STATUS_SUCCESS &&
        dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace) ==
            CUDNN_STATUS_SUCCESS &&
        dnn->cudnnBackendFinalize(pack) == CUDNN_STATUS_SUCCESS &&
        dnn->cudnnBackendExecute(dnn->handle, plan->plan, pack) == CUDNN_STATUS_SUCCESS;
    if (pack)
        dnn->cudnnBackendDestroyDescriptor(pack);
    if (!good)
        return sl_fail(SL_ERR_STAGE, "cuDNN: attention could not be started");
    *done = true;
    return SL_OK;
}

#else /* built without cuDNN's headers */

#include <stdio.h>

cuda_dnn *cuda_dnn_create(void)
{
    return NULL;
}

void cuda_dnn_destroy(cuda_dnn *dnn)
{
    (void)dnn;
}

char *cuda_dnn_version(const cuda_dnn *dnn, char *text, size_t size)
{
    (void)dnn;
    snprintf(text, size, "no cuDNN");
    return text;
}

size_t cuda_dnn_scratch(cuda_dnn *dnn, const sl_kernel_call *call)
{
    (void)dnn;
    (void)call;
    return 0;
}

sl_status cuda_dnn_attention(const cuda_run *run, bool *done)
{
    (void)run;
    (void)done;
    return SL_OK;
}

#endif
