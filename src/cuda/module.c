/* The module's one symbol, and what it takes from the library that loads it. */
#include "cuda/device.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>

const sl_module_host *cuda_host;

/* ---- The library's functions under their own names, for the files that are compiled into both ---- */

sl_status sl_fail(sl_status code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return cuda_host->fail(code, "%s", text);
}

sl_status sl_fail_context(sl_status code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return cuda_host->fail_context(code, "%s", text);
}

sl_status sl_alloc(size_t count, size_t size, void **out)
{
    return cuda_host->alloc(count, size, out);
}

void sl_free(void *block)
{
    cuda_host->free(block);
}

/* ---- The module ------------------------------------------------------------------------------ */

SL_API const sl_device_module *sluice_cuda_module(const sl_module_host *host);

const sl_device_module *sluice_cuda_module(const sl_module_host *host)
{
    static const sl_device_module module = { .backend = &cuda_backend, .kernels = &cuda_kernels, .count = cuda_count };
    if (host->version != SL_MODULE_VERSION)
        return NULL;
    cuda_host = host;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* as many as there are; CUDA reads it when it is first used */
    return &module;
}
