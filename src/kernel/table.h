/* The kernels of one kind of device. */
#ifndef SL_KERNEL_TABLE_H
#define SL_KERNEL_TABLE_H

#include <sluice/kernel.h>

/* Every entry is required unless it is marked optional. The call was checked before. */
typedef struct SL_NAMED_FIELDS sl_kernel_table {
    sl_device_kind kind;
    sl_status (*run)(sl_stream *stream, const sl_kernel_call *call);
    /* Optional, as sl_kernel_run_many; NULL: one after the other. */
    sl_status (*run_many)(sl_stream *stream, const sl_kernel_call *calls, int count);
    sl_status (*scratch)(sl_device *device, const sl_kernel_call *call, size_t *bytes);
    /* Optional, both or none: as sl_kernel_packed_bytes and sl_kernel_pack. */
    size_t (*packed_bytes)(sl_device *device, const sl_kernel_call *call);
    sl_status (*pack)(sl_stream *stream, const sl_kernel_call *call, void *to);
    char *(*describe)(sl_device *device, char *text, size_t size);
    double (*measure_peak)(sl_device *device);
    double (*measure_product_peak)(sl_device *device, sl_dtype dtype); /* optional; NULL: no dtype is faster than f32 */
} sl_kernel_table;

extern const sl_kernel_table sl_kernels_cpu;
extern const sl_kernel_table sl_kernels_described; /* of a device that is known by its data sheet alone */

/* One more table than those of the list; NULL takes it away. For tests, as sl_device_set_extra_backend. */
void sl_kernel_set_extra_table(const sl_kernel_table *table);

#endif
