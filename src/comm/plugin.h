/* Transports in libraries of their own, loaded at run time, so that the library needs none of what they need. */
#ifndef SL_COMM_PLUGIN_H
#define SL_COMM_PLUGIN_H

#include "comm/transport.h"

/* What a plugin gets from the library: it uses none of its symbols, so it loads into programs that link libsluice
 * either way. */
typedef struct SL_NAMED_FIELDS sl_plugin_host {
    uint32_t version; /* SL_PLUGIN_VERSION */
    sl_status (*fail)(sl_status code, const char *format, ...) SL_PRINTF(2, 3);
    sl_status (*alloc)(size_t count, size_t size, void **out);              /* zeroed */
    sl_status (*alloc_aligned)(size_t bytes, size_t alignment, void **out); /* not zeroed */
    void (*free)(void *block);
    double (*now)(void);
    void (*log)(sl_log_level level, const char *format, ...) SL_PRINTF(2, 3);
    char *(*wait_text)(const sl_wait *wait, char *text, size_t size);
} sl_plugin_host;

/* Grows with every change of sl_transport or sl_plugin_host. */
#define SL_PLUGIN_VERSION 3u

/* The one symbol of a plugin; NULL if the host's version is not its own. The table lives as long as the process. */
#define SL_PLUGIN_SYMBOL "sluice_plugin_transport"
typedef const sl_transport *sl_plugin_function(const sl_plugin_host *host);

/* Loads the MPI transport for the MPI that started this process. */
sl_status sl_plugin_load_mpi(const sl_transport **out);

#endif
