/* The module's one symbol, and what it takes from the library that loads it. */
#include "cuda/device.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* How many queues to a GPU the process asks for. All 32 if its ranks may be threads (SHARE_LIMIT in device.c). A rank that is
 * a process gets along with the 8 that are usual, or 16 if each of its links has a stream (NCCL, 8 links at most). More cost
 * time: 4 processes on an H200 took 3.1 s to start and 1.4 s to end with 32, and 0.5 s and 0.3 s with 8. */
static const char *choose_queues(void)
{
    const char *size = getenv("SLUICE_SIZE"), *links = getenv("SLUICE_DEVICE_LINKS");
    if (!size || strtol(size, NULL, 10) < 2)
        return "32";
    return links && strcmp(links, "nccl") == 0 ? "16" : "8";
}

const sl_device_module *sluice_cuda_module(const sl_module_host *host)
{
    static const sl_device_module module = { .backend = &cuda_backend, .kernels = &cuda_kernels, .count = cuda_count };
    if (host->version != SL_MODULE_VERSION)
        return NULL;
    cuda_host = host;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", choose_queues(), 0); /* CUDA reads it when it is first used */
    return &module;
}
