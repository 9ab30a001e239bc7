/* Memory that the devices of several ranks of one machine reach, and words in it that streams write and wait for. */
#ifndef SL_DEVICE_SHARE_H
#define SL_DEVICE_SHARE_H

#include "device/backend.h"

/* Takes a block, zeroed, and says how others find it. It is freed when its owner has given it up and all that share this
 * process have detached. Not part of sl_device_get_memory. The device must have queues. */
SL_MUST_CHECK sl_status sl_device_share(sl_device *device, size_t bytes, sl_device_handle *handle, void **out);
void sl_device_unshare(sl_device *device, void *block); /* NULL is fine */

/* The block behind a handle, at an address for this device's streams. Fails if the device cannot reach it. */
SL_MUST_CHECK sl_status sl_device_attach(sl_device *device, const sl_device_handle *handle, void **out);
void sl_device_detach(sl_device *device, void *block); /* NULL is fine */

bool sl_device_has_words(const sl_device *device);
/* In stream order, one after the other: writes a word, or waits until it is odd. All that the stream did before a
 * write is visible to whoever has seen it. The words lie in shared or attached blocks, or in host memory of the device
 * (sl_device_alloc_host). */
SL_MUST_CHECK sl_status sl_stream_use_words(sl_stream *stream, const sl_word_use *uses, int count);

#endif
