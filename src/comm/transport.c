/* The list of transports. */
#include "comm/transport.h"
#include "comm/plugin.h"

#include <string.h>

static const sl_transport *const transports[] = { &sl_transport_self, &sl_transport_threads, &sl_transport_local };

sl_status sl_transport_find(const char *name, const sl_transport **out)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        if (strcmp(transports[i]->name, name) == 0) {
            *out = transports[i];
            return SL_OK;
        }
    }
    if (strcmp(name, "mpi") == 0)
        return sl_plugin_load_mpi(out);
    return sl_fail(SL_ERR_ARGUMENT, "there is no transport '%s'; self, local and mpi are possible", name);
}
