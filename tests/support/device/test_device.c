/* The tests' device: opening it, and its table of functions. */
#include "support/device/internal.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUES = 384 }; /* its streams are threads: for as many ranks as tests have */

static _Atomic bool is_apart;
static _Atomic uint64_t last_unit;

void test_device_set_apart(bool apart)
{
    is_apart = apart;
}

static sl_status test_open(int index, const sl_device_options *options, sl_device **out)
{
    (void)index;
    test_device *device = calloc(1, sizeof *device);
    if (!device)
        abort();
    device->threads = options->threads ? options->threads : 1;
    device->head.queues = QUEUES;
    device->head.pool = is_apart ? 0 : 1;
    device->head.unit = is_apart ? ++last_unit : 0;
    test_memory_open(device);
    *out = &device->head;
    return SL_OK;
}

static void test_close(sl_device *head)
{
    test_device *device = (test_device *)head;
    test_memory_close(device);
    free(device);
}

static int test_threads(const sl_device *device)
{
    return ((const test_device *)device)->threads;
}

static const sl_device_backend test_backend = {
    .name = "test",
    .kind = TEST_KIND,
    .is_host = false,
    .open = test_open,
    .close = test_close,
    .threads = test_threads,
    .alloc = test_memory_alloc,
    .free = test_memory_free,
    .alloc_host = test_memory_alloc_host,
    .free_host = test_memory_free_host,
    .stream_create = test_stream_create,
    .stream_destroy = test_stream_destroy,
    .stream_synchronize = test_stream_synchronize,
    .copy = test_stream_copy,
    .set = test_stream_set,
    .call = test_stream_call,
    .event_create = test_event_create,
    .event_destroy = test_event_destroy,
    .event_record = test_event_record,
    .event_wait = test_event_wait,
    .event_synchronize = test_event_synchronize,
    .event_query = test_event_query,
    .event_elapsed = test_event_elapsed,
    .share = test_share,
    .unshare = test_leave,
    .attach = test_attach,
    .detach = test_leave,
    .use_words = test_stream_use_words,
    .capture_begin = test_capture_begin,
    .capture_end = test_capture_end,
    .capture_launch = test_capture_launch,
    .capture_destroy = test_capture_destroy,
};

static void install(void)
{
    sl_device_set_extra_backend(&test_backend);
    sl_kernel_set_extra_table(&test_kernels);
    sl_nccl_set_extra(&test_nccl);
    sl_device_mail_set_extra(&test_mail_service);
}

void test_device_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

const char *test_device_spec(void)
{
    const char *spec = getenv("SLUICE_TEST_DEVICE");
    if (!spec)
        return "cpu";
    if (strcmp(spec, "test") == 0)
        test_device_install();
    return spec;
}
