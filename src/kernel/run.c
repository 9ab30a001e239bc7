/* From a call to the kernel of its device. The op's description says whether the call is well formed. */
#include "kernel/call.h"
#include "kernel/table.h"
#include "device/module.h"
#include "op/op.h"

#include <stdio.h>

static const sl_kernel_table *tables[] = { &sl_kernels_cpu, NULL }; /* NULL: the place of an extra one */

enum { TABLE_COUNT = sizeof tables / sizeof *tables };

void sl_kernel_set_extra_table(const sl_kernel_table *table)
{
    tables[TABLE_COUNT - 1] = table;
}

static sl_status find_table(const sl_device *device, const sl_kernel_table **out)
{
    if (sl_device_get_model(device)) {
        *out = &sl_kernels_described;
        return SL_OK;
    }
    for (int i = 0; i < TABLE_COUNT && tables[i]; i++) {
        if (tables[i]->kind == sl_device_get_kind(device)) {
            *out = tables[i];
            return SL_OK;
        }
    }
    const sl_device_module *module = NULL; /* is loaded if a device of it is open */
    if (sl_device_get_kind(device) == SL_DEVICE_CUDA && sl_module_load_cuda(&module) == SL_OK) {
        *out = module->kernels;
        return SL_OK;
    }
    return sl_fail(SL_ERR_UNSUPPORTED, "device %s has no kernels in this build", sl_device_name(device));
}

static sl_meta_list metas_of(const sl_view *views, int count)
{
    static const sl_meta none; /* a list of nothing, not one that is unknown */
    return (sl_meta_list){ .first = count > 0 ? &views->meta : &none, .stride = sizeof *views, .count = count };
}

static sl_status check_call(const sl_kernel_call *call)
{
    sl_op_use use = { .op = call->op,
                      .attrs = &call->attrs,
                      .inputs = metas_of(call->inputs, call->input_count),
                      .outputs = metas_of(call->outputs, call->output_count) };
    sl_status status = sl_op_check(&use);
    if (status == SL_OK && call->accumulate && !sl_op_get_info(call->op)->accumulates)
        return sl_fail(SL_ERR_ARGUMENT, "%s: cannot accumulate", sl_op_name(call->op));
    return status;
}

sl_status sl_kernel_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    sl_status status = SL_OK;
    const sl_kernel_table *table = NULL;
    SL_TRY(find_table(device, &table));
    SL_TRY(check_call(call));
    SL_TRY(table->scratch(device, call, bytes));
done:
    return status;
}

sl_status sl_kernel_run(sl_stream *stream, const sl_kernel_call *call)
{
    sl_status status = check_call(call);
    return status == SL_OK ? sl_kernel_run_checked(stream, call) : status;
}

sl_status sl_kernel_run_checked(sl_stream *stream, const sl_kernel_call *call)
{
    const sl_kernel_table *table = NULL;
    sl_status status = find_table(sl_stream_device(stream), &table);
    return status == SL_OK ? table->run(stream, call) : status;
}

sl_status sl_kernel_run_many(sl_stream *stream, const sl_kernel_call *calls, int count)
{
    sl_status status = SL_OK;
    const sl_kernel_table *table = NULL;
    SL_TRY(find_table(sl_stream_device(stream), &table));
    for (int i = 0; i < count; i++)
        SL_TRY(check_call(&calls[i]));
    if (table->run_many)
        return table->run_many(stream, calls, count);
    for (int i = 0; i < count; i++)
        SL_TRY(table->run(stream, &calls[i]));
done:
    return status;
}

sl_status sl_kernel_packed_bytes(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    sl_status status = SL_OK;
    const sl_kernel_table *table = NULL;
    SL_TRY(find_table(device, &table));
    SL_TRY(check_call(call));
    *bytes = table->packed_bytes ? table->packed_bytes(device, call) : 0;
done:
    return status;
}

sl_status sl_kernel_pack(sl_stream *stream, const sl_kernel_call *call, void *to)
{
    sl_status status = SL_OK;
    const sl_kernel_table *table = NULL;
    SL_TRY(find_table(sl_stream_device(stream), &table));
    SL_TRY(check_call(call));
    if (!table->pack)
        return sl_fail(SL_ERR_ARGUMENT, "%s: device %s packs no weights", sl_op_name(call->op),
                       sl_device_name(sl_stream_device(stream)));
    SL_TRY(table->pack(stream, call, to));
done:
    return status;
}

char *sl_kernel_describe(sl_device *device, char *text, size_t size)
{
    const sl_kernel_table *table = NULL;
    if (find_table(device, &table) == SL_OK)
        return table->describe(device, text, size);
    snprintf(text, size, "%s: no kernels", sl_device_name(device));
    return text;
}

double sl_kernel_measure_product_peak(sl_device *device, sl_dtype dtype)
{
    const sl_kernel_table *table = NULL;
    if (find_table(device, &table) == SL_OK && table->measure_product_peak)
        return table->measure_product_peak(device, dtype);
    return sl_kernel_measure_peak(device);
}

double sl_kernel_measure_peak(sl_device *device)
{
    const sl_kernel_table *table = NULL;
    return find_table(device, &table) == SL_OK ? table->measure_peak(device) : 0;
}
