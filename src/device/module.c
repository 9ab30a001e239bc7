/* Loads the CUDA module: libsluice_cuda.so. */
#include "device/module.h"

#include "base/alloc.h"
#include "base/library.h"

#include <dlfcn.h>
#include <pthread.h>

static const sl_module_host host = {
    .version = SL_MODULE_VERSION,
    .fail = sl_fail,
    .fail_context = sl_fail_context,
    .alloc = sl_alloc,
    .free = sl_free,
    .log = sl_log,
    .count_bytes = sl_device_count_bytes,
    .choices_open = sl_choices_open,
    .choices_close = sl_choices_close,
    .choices_get = sl_choices_get,
    .choices_put = sl_choices_put,
};

static sl_status load(const sl_device_module **out)
{
    void *library = NULL;
    sl_status status = sl_library_load("libsluice_cuda.so", RTLD_NOW | RTLD_LOCAL, &library);
    if (status != SL_OK)
        return status;
    if (!library)
        return sl_fail(SL_ERR_UNSUPPORTED,
                       "libsluice_cuda.so is neither in SLUICE_PLUGIN_PATH nor beside the program nor in its "
                       "lib/sluice; it is built if CUDA's compiler is installed");
    sl_module_function function = NULL;
    *(void **)&function = dlsym(library, SL_MODULE_SYMBOL);
    const sl_device_module *module = function ? function(&host) : NULL;
    if (!module)
        return sl_fail(SL_ERR_UNSUPPORTED, "libsluice_cuda.so is not of this version of sluice");
    *out = module;
    return SL_OK;
}

sl_status sl_module_load_cuda(const sl_device_module **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const sl_device_module *loaded;
    sl_status status = SL_OK;
    pthread_mutex_lock(&lock);
    if (!loaded)
        status = load(&loaded);
    if (status == SL_OK)
        *out = loaded;
    pthread_mutex_unlock(&lock);
    return status;
}
