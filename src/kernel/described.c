/* The kernels of a GPU that is not here: what scratch memory they would need, and their rates by the data sheet. */
#include "kernel/gpu_scratch.h"
#include "kernel/table.h"

#include <stdio.h>

static sl_status run_nothing(sl_stream *stream, const sl_kernel_call *call)
{
    (void)call;
    return sl_fail(SL_ERR_UNSUPPORTED, "device %s can be planned for, not used",
                   sl_device_name(sl_stream_device(stream)));
}

static sl_status scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    bool wgmma = sl_device_get_model(device)->capability == 90 && sl_gpu_wgmma_fits(call);
    size_t plain = sl_gpu_scratch(call);
    size_t fast = wgmma ? sl_gpu_wgmma_scratch(call) : sl_gpu_dnn_fits(call) ? sl_gpu_dnn_scratch(call) : 0;
    *bytes = fast > plain ? fast : plain;
    return SL_OK;
}

static char *describe(sl_device *device, char *text, size_t size)
{
    const sl_gpu_model *model = sl_device_get_model(device);
    snprintf(text, size, "%s: %s, %.1f GiB, by its data sheet", model->name, model->title,
             model->memory / (1024.0 * 1024 * 1024));
    return text;
}

static double peak(sl_device *device)
{
    return sl_device_get_model(device)->f32_flops;
}

static double product_peak(sl_device *device, sl_dtype dtype)
{
    return dtype == SL_BF16 ? sl_device_get_model(device)->bf16_flops : peak(device);
}

const sl_kernel_table sl_kernels_described = {
    .kind = SL_DEVICE_CUDA,
    .run = run_nothing,
    .scratch = scratch,
    .describe = describe,
    .measure_peak = peak,
    .measure_product_peak = product_peak,
};
