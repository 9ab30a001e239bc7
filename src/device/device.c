/* Devices by name, and the calls that go straight to the backend. */
#include "device/backend.h"
#include "device/cpu.h"
#include "device/module.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

enum { MAX_INDEX = 1023 };

static const sl_device_backend *backends[] = { &sl_device_cpu, NULL }; /* NULL: the place of an extra one */

enum { BACKEND_COUNT = sizeof backends / sizeof *backends };

void sl_device_set_extra_backend(const sl_device_backend *backend)
{
    backends[BACKEND_COUNT - 1] = backend;
}

/* The backend called the first `length` characters of spec; *out stays NULL if there is none. */
static sl_status named_backend(const char *spec, size_t length, const sl_device_backend **out)
{
    for (int i = 0; i < BACKEND_COUNT && backends[i]; i++) {
        if (strlen(backends[i]->name) == length && strncmp(spec, backends[i]->name, length) == 0) {
            *out = backends[i];
            return SL_OK;
        }
    }
    if (length != strlen("cuda") || strncmp(spec, "cuda", length) != 0)
        return SL_OK;
    const sl_device_module *module = NULL;
    sl_status status = sl_module_load_cuda(&module);
    if (status == SL_OK)
        *out = module->backend;
    return status;
}

static const char *model_names(char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; sl_gpu_model_get(i); i++) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", sl_gpu_model_get(i)->name);
    }
    return text;
}

static sl_status find_backend(const char *spec, const sl_device_backend **out, int *index)
{
    char names[256];
    const char *colon = strchr(spec, ':');
    int64_t number = -1;
    const sl_device_backend *found = NULL;
    if (strcmp(spec, SL_DEVICE_ANY_CPU) == 0) {
        *out = &sl_device_cpu;
        *index = SL_DEVICE_ANY_CPU_INDEX;
        return SL_OK;
    }
    sl_status status = named_backend(spec, colon ? (size_t)(colon - spec) : strlen(spec), &found);
    if (status == SL_OK && found && colon)
        status = sl_parse_int("device index", colon + 1, 0, MAX_INDEX, &number);
    if (status != SL_OK)
        return sl_fail_context(status, "device %s", spec);
    for (int i = 0; !found && sl_gpu_model_get(i); i++) {
        if (strcmp(spec, sl_gpu_model_get(i)->name) == 0) {
            found = &sl_device_described;
            number = i;
        }
    }
    if (found) {
        *out = found;
        *index = (int)number;
        return SL_OK;
    }
    return sl_fail(SL_ERR_ARGUMENT,
                   "device %s: there are cpu, cuda, cuda:INDEX and auto, and for plans GPUs by name: %s", spec,
                   model_names(names, sizeof names));
}

/* "auto": the GPU if there is one that can be used, else the processor. */
static const char *choose_device(void)
{
    const sl_device_module *module = NULL;
    if (sl_module_load_cuda(&module) != SL_OK) {
        sl_log(SL_LOG_DEBUG, "device auto: %s", sl_error_message());
        return sl_device_cpu.name;
    }
    return module->count() > 0 ? module->backend->name : sl_device_cpu.name;
}

sl_status sl_device_find_kind(const char *spec, sl_device_kind *out)
{
    const sl_device_backend *backend = NULL;
    int index = -1;
    sl_status status = find_backend(strcmp(spec, "auto") == 0 ? choose_device() : spec, &backend, &index);
    if (status == SL_OK)
        *out = backend->kind;
    return status;
}

sl_status sl_device_open(const char *spec, const sl_device_options *options, sl_device **out)
{
    static const sl_device_options defaults = { .threads = 0 };
    const sl_device_backend *backend = NULL;
    int index = -1;
    sl_status status = SL_OK;
    sl_device *device = NULL;

    if (strcmp(spec, "auto") == 0)
        spec = choose_device();
    SL_TRY(find_backend(spec, &backend, &index));
    SL_TRY(backend->open(index, options ? options : &defaults, &device));
    device->backend = backend;
    pthread_mutex_init(&device->lock, NULL);
    if (device->name[0] == '\0')
        snprintf(device->name, sizeof device->name, "%s", spec);
    *out = device;
done:
    return status;
}

void sl_device_close(sl_device *device)
{
    if (!device)
        return;
    sl_device_drop_reserves(device);
    pthread_mutex_destroy(&device->lock);
    device->backend->close(device);
}

const char *sl_device_name(const sl_device *device)
{
    return device->name;
}

sl_device_kind sl_device_get_kind(const sl_device *device)
{
    return device->backend->kind;
}

int sl_device_threads(const sl_device *device)
{
    return device->backend->threads(device);
}

const sl_gpu_model *sl_device_get_model(const sl_device *device)
{
    return device->model;
}

bool sl_device_is_host(const sl_device *device)
{
    return device->backend->is_host;
}

/* ---- Streams and events ---------------------------------------------------------------------- */

sl_status sl_stream_create(sl_device *device, sl_stream **out)
{
    return device->backend->stream_create(device, out);
}

void sl_stream_destroy(sl_stream *stream)
{
    if (!stream)
        return;
    sl_device *device = stream->device;
    void *staging = stream->staging;
    device->backend->stream_destroy(stream);
    sl_device_free_host(device, staging);
}

sl_status sl_stream_get_staging(sl_stream *stream, void **out)
{
    sl_status status = SL_OK;
    if (!stream->staging)
        SL_TRY(sl_device_alloc_host(stream->device, SL_STREAM_STAGING, &stream->staging));
    *out = stream->staging;
done:
    return status;
}

sl_device *sl_stream_device(const sl_stream *stream)
{
    return stream->device;
}

void *sl_stream_native(const sl_stream *stream)
{
    return stream->device->backend->stream_native ? stream->device->backend->stream_native(stream) : NULL;
}

sl_status sl_stream_synchronize(sl_stream *stream)
{
    return stream->device->backend->stream_synchronize(stream);
}

sl_status sl_stream_copy(sl_stream *stream, sl_copy_kind kind, void *to, const void *from, size_t bytes)
{
    return bytes == 0 ? SL_OK : stream->device->backend->copy(stream, kind, to, from, bytes);
}

sl_status sl_stream_memset(sl_stream *stream, void *to, int byte, size_t bytes)
{
    return bytes == 0 ? SL_OK : stream->device->backend->set(stream, to, byte, bytes);
}

sl_status sl_stream_call(sl_stream *stream, sl_host_fn fn, void *arg)
{
    return stream->device->backend->call(stream, fn, arg);
}

sl_status sl_event_create(sl_device *device, sl_event **out)
{
    return device->backend->event_create(device, out);
}

void sl_event_destroy(sl_event *event)
{
    if (event)
        event->device->backend->event_destroy(event);
}

sl_status sl_event_record(sl_event *event, sl_stream *stream)
{
    return event->device->backend->event_record(event, stream);
}

sl_status sl_event_stamp(sl_event *event, sl_stream *stream)
{
    const sl_device_backend *backend = event->device->backend;
    return backend->event_stamp ? backend->event_stamp(event, stream) : backend->event_record(event, stream);
}

sl_status sl_stream_wait(sl_stream *stream, sl_event *event)
{
    return stream->device->backend->event_wait(stream, event);
}

sl_status sl_event_synchronize(sl_event *event)
{
    return event->device->backend->event_synchronize(event);
}

sl_status sl_event_query(sl_event *event, bool *done)
{
    return event->device->backend->event_query(event, done);
}

sl_status sl_event_elapsed(sl_event *from, sl_event *to, double *seconds)
{
    return from->device->backend->event_elapsed(from, to, seconds);
}

/* ---- Captures -------------------------------------------------------------------------------- */

bool sl_device_can_capture(const sl_device *device)
{
    return device->backend->capture_begin != NULL;
}

sl_status sl_stream_begin_capture(sl_stream *stream)
{
    if (!sl_device_can_capture(stream->device))
        return sl_fail(SL_ERR_UNSUPPORTED, "device %s: its streams cannot be captured", stream->device->name);
    return stream->device->backend->capture_begin(stream);
}

sl_status sl_stream_end_capture(sl_stream *stream, sl_capture **out)
{
    if (!sl_device_can_capture(stream->device))
        return sl_fail(SL_ERR_UNSUPPORTED, "device %s: its streams cannot be captured", stream->device->name);
    return stream->device->backend->capture_end(stream, out);
}

sl_status sl_capture_launch(sl_capture *capture)
{
    return capture->stream->device->backend->capture_launch(capture);
}

void sl_capture_destroy(sl_capture *capture)
{
    if (capture)
        capture->stream->device->backend->capture_destroy(capture);
}
