/* The cpu's table of kernels. */
#include "kernel/reference/reference.h"
#include "kernel/table.h"

static sl_status cpu_run(sl_stream *stream, const sl_kernel_call *call)
{
    (void)stream;
    return sl_reference_get(call->op)(call);
}

static sl_status cpu_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    (void)device;
    (void)call;
    *bytes = 0;
    return SL_OK;
}

static const char *cpu_describe(sl_device *device)
{
    (void)device;
    return "cpu: reference kernels";
}

const sl_kernel_table sl_kernels_cpu = {
    .kind = SL_DEVICE_CPU,
    .run = cpu_run,
    .scratch = cpu_scratch,
    .describe = cpu_describe,
};
