/* NCCL as a carrier. It is in a module of its own, libsluice_nccl.so, which is loaded when it is first asked for, so that
 * nothing else needs NCCL. */
#ifndef SL_COMM_NCCL_H
#define SL_COMM_NCCL_H

#include "comm/carrier.h"
#include "device/backend.h"

/* What the module gets from the library: it uses none of its symbols. */
typedef struct SL_NAMED_FIELDS sl_nccl_host {
    uint32_t version; /* SL_NCCL_MODULE_VERSION */
    sl_status (*fail)(sl_status code, const char *format, ...) SL_PRINTF(2, 3);
    sl_status (*alloc)(size_t count, size_t size, void **out); /* zeroed */
    void (*free)(void *block);
    void *(*stream_native)(const sl_stream *stream);
} sl_nccl_host;

/* What the module provides. */
typedef struct SL_NAMED_FIELDS sl_nccl {
    sl_device_kind device_kind; /* whose memory and streams it takes */
    sl_carrier carrier;
} sl_nccl;

/* Grows with every change of the two structs or of what they point to. */
#define SL_NCCL_MODULE_VERSION 3u

/* The one symbol of the module. *out is set only on success; SL_ERR_UNSUPPORTED if NCCL itself is not installed or the
 * host's version is another. */
#define SL_NCCL_MODULE_SYMBOL "sluice_nccl_module"
typedef sl_status sl_nccl_module_function(const sl_nccl_host *host, const sl_nccl **out);

/* Loads the module; fails, each time, if it or NCCL is not installed. */
SL_MUST_CHECK sl_status sl_nccl_load(const sl_nccl **out);
/* For tests: stands in for the module; NULL takes it away. */
void sl_nccl_set_extra(const sl_nccl *nccl);

#endif
