/* Shared blocks and their words: what every backend has in common. */
#include "device/share.h"

sl_status sl_device_share(sl_device *device, size_t bytes, sl_device_handle *handle, void **out)
{
    return device->backend->share(device, bytes, handle, out);
}

void sl_device_unshare(sl_device *device, void *block)
{
    if (block)
        device->backend->unshare(device, block);
}

sl_status sl_device_attach(sl_device *device, const sl_device_handle *handle, void **out)
{
    return device->backend->attach(device, handle, out);
}

void sl_device_detach(sl_device *device, void *block)
{
    if (block)
        device->backend->detach(device, block);
}

bool sl_device_has_words(const sl_device *device)
{
    return device->backend->use_words != NULL;
}

sl_status sl_stream_use_words(sl_stream *stream, const sl_word_use *uses, int count)
{
    return count > 0 ? stream->device->backend->use_words(stream, uses, count) : SL_OK;
}
