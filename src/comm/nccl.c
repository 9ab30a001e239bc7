/* Finds and loads the NCCL module: libsluice_nccl.so. */
#include "comm/nccl.h"

#include "base/alloc.h"
#include "base/library.h"

#include <sluice/comm.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static const sl_nccl_host host = {
    .version = SL_NCCL_MODULE_VERSION,
    .fail = sl_fail,
    .alloc = sl_alloc,
    .free = sl_free,
    .stream_native = sl_stream_native,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for both below */
static const sl_nccl *loaded, *extra;

static sl_status load(const sl_nccl **out)
{
    void *library = NULL;
    sl_status status = sl_library_load("libsluice_nccl.so", RTLD_NOW | RTLD_LOCAL, &library);
    if (status != SL_OK)
        return status;
    if (!library)
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "libsluice_nccl.so is neither in SLUICE_PLUGIN_PATH nor beside the program nor in its "
                       "lib/sluice; it is built if nccl.h is installed");
    sl_nccl_module_function *function = NULL;
    *(void **)&function = dlsym(library, SL_NCCL_MODULE_SYMBOL);
    if (!function)
        return sl_fail(SL_ERR_UNSUPPORTED, "libsluice_nccl.so is not of this version of sluice");
    return function(&host, out);
}

sl_status sl_nccl_load(const sl_nccl **out)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&lock);
    if (!extra && !loaded)
        status = load(&loaded);
    if (status == SL_OK)
        *out = extra ? extra : loaded;
    pthread_mutex_unlock(&lock);
    return status;
}

char *sl_nccl_describe(char *text, size_t size)
{
    const sl_nccl *nccl = NULL;
    sl_status status = sl_nccl_load(&nccl);
    snprintf(text, size, "%s", status == SL_OK ? nccl->carrier.version : sl_error_message());
    return text;
}

void sl_nccl_set_extra(const sl_nccl *nccl)
{
    pthread_mutex_lock(&lock);
    extra = nccl;
    pthread_mutex_unlock(&lock);
}
