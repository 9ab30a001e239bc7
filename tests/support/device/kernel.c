/* Kernels of the tests' device: those of the cpu, on the memory behind the addresses. */
#include "support/device/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* What a stream does for one call of a kernel. */
typedef struct kernel_work {
    sl_stream *stream;
    sl_kernel_call call;
    void *pack_to;   /* NULL: the call is run, else its weight is packed */
    sl_view views[]; /* inputs, then outputs; the call has them while it runs */
} kernel_work;

static void run_kernel(const void *args)
{
    const kernel_work *work = args;
    sl_kernel_call call = work->call;
    call.inputs = work->views;
    call.outputs = work->views + call.input_count;
    sl_stream *cpu = test_stream_cpu(work->stream);
    sl_status status = work->pack_to ? sl_kernel_pack(cpu, &call, work->pack_to) : sl_kernel_run(cpu, &call);
    if (status != SL_OK)
        test_stream_fail(work->stream, status);
}

/* The views of a call with the memory behind them. */
static sl_status near_views(const test_device *device, const sl_view *given, int count, sl_view *out)
{
    for (int i = 0; i < count; i++) {
        out[i] = given[i];
        if (!given[i].data)
            continue;
        sl_status status = test_memory_check(device, "argument of a kernel", given[i].data, 0);
        if (status != SL_OK)
            return status;
        out[i].data = test_device_near(given[i].data);
    }
    return SL_OK;
}

static sl_status launch(sl_stream *stream, const sl_kernel_call *call, const void *pack_to)
{
    sl_status status = SL_OK;
    const test_device *device = (const test_device *)stream->device;
    size_t count = (size_t)call->input_count + (size_t)call->output_count;
    size_t bytes = sizeof(kernel_work) + count * sizeof(sl_view);
    kernel_work *work = calloc(1, bytes);
    if (!work)
        abort();
    work->stream = stream;
    work->call = *call;
    SL_TRY(near_views(device, call->inputs, call->input_count, work->views));
    SL_TRY(near_views(device, call->outputs, call->output_count, work->views + call->input_count));
    if (call->scratch_bytes > 0) {
        SL_TRY(test_memory_check(device, "scratch of a kernel", call->scratch, call->scratch_bytes));
        work->call.scratch = test_device_near(call->scratch);
    }
    if (call->step_rng) {
        SL_TRY(test_memory_check(device, "state of the generator", call->step_rng, sizeof *call->step_rng));
        work->call.step_rng = test_device_near(call->step_rng);
    }
    if (call->numbers) {
        SL_TRY(test_memory_check(device, "numbers of the update", call->numbers, sizeof *call->numbers));
        work->call.numbers = test_device_near(call->numbers);
    }
    if (pack_to) {
        SL_TRY(test_memory_check(device, "where a weight is packed", pack_to, 0));
        work->pack_to = test_device_near(pack_to);
    }
    if (call->packed) {
        SL_TRY(test_memory_check(device, "packed weight of a kernel", call->packed, 0));
        work->call.packed = test_device_near(call->packed);
    }
    status = test_device_launch(stream, run_kernel, work, bytes);
done:
    free(work);
    return status;
}

static sl_status test_kernel_run(sl_stream *stream, const sl_kernel_call *call)
{
    return launch(stream, call, NULL);
}

static sl_status test_kernel_pack(sl_stream *stream, const sl_kernel_call *call, void *to)
{
    return launch(stream, call, to);
}

/* Scratch depends on the number of threads alone. */
static sl_status test_kernel_scratch(sl_device *device, const sl_kernel_call *call, size_t *bytes)
{
    sl_device *cpu = NULL;
    sl_device_options options = { .threads = ((test_device *)device)->threads };
    sl_status status = sl_device_open("cpu", &options, &cpu);
    if (status == SL_OK)
        status = sl_kernel_scratch(cpu, call, bytes);
    sl_device_close(cpu);
    return status;
}

static size_t test_kernel_packed_bytes(sl_device *device, const sl_kernel_call *call)
{
    sl_device *cpu = NULL;
    size_t bytes = 0;
    (void)device;
    if (sl_device_open("cpu", NULL, &cpu) != SL_OK || sl_kernel_packed_bytes(cpu, call, &bytes) != SL_OK)
        abort();
    sl_device_close(cpu);
    return bytes;
}

static char *test_kernel_describe(sl_device *device, char *text, size_t size)
{
    (void)device;
    snprintf(text, size, "test device");
    return text;
}

static double test_kernel_measure_peak(sl_device *device)
{
    (void)device;
    return 1e9;
}

const sl_kernel_table test_kernels = {
    .kind = TEST_KIND,
    .run = test_kernel_run,
    .scratch = test_kernel_scratch,
    .packed_bytes = test_kernel_packed_bytes,
    .pack = test_kernel_pack,
    .describe = test_kernel_describe,
    .measure_peak = test_kernel_measure_peak,
};
