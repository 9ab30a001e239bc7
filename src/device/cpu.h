/* What the cpu's kernels may know of their device beyond the public calls. */
#ifndef SL_DEVICE_CPU_H
#define SL_DEVICE_CPU_H

#include "device/pool.h"

#include <sluice/device.h>

/* The device must be a cpu. Borrowed. */
sl_pool *sl_device_cpu_pool(const sl_device *device);
/* It stands for a processor that need not be here: memory is that of any instruction set. */
bool sl_device_cpu_is_any(const sl_device *device);

#define SL_DEVICE_ANY_CPU "any-cpu"
enum { SL_DEVICE_ANY_CPU_INDEX = -2 };

#endif
