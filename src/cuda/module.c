/* The module's one symbol, and what it takes from the library that loads it. */
#include "cuda/device.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

/* ---- Queues ----------------------------------------------------------------------------------
 * CUDA_DEVICE_MAX_CONNECTIONS is the number of queues from this process to a GPU, which CUDA reads when it is first used. */

/* MOST: of a process. ALL_WITH_MPS: of all processes that share a GPU through MPS, which takes powers of two; with 128 on an
 * H200 the last process does not start. */
enum { MOST_QUEUES = 32, ALL_WITH_MPS = 96 };

/* CUDA looks for the daemon here, too. */
static bool has_mps(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];
    snprintf(path, sizeof path, "%s/control", folder && *folder ? folder : "/tmp/nvidia-mps");
    return access(path, F_OK) == 0;
}

/* Processes of this run on this machine, as whoever started them says. */
static long count_processes(void)
{
    static const char *const sizes[] = { "SLUICE_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                         "LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE" };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *size = getenv(sizes[i]);
        if (size && atol(size) > 0)
            return atol(size);
    }
    return 1;
}

static void choose_queues(void)
{
    long queues = MOST_QUEUES, processes = has_mps() ? count_processes() : 1;
    char text[16];
    while (queues > 1 && queues * processes > ALL_WITH_MPS)
        queues /= 2;
    snprintf(text, sizeof text, "%ld", queues);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", text, 0);
}

int cuda_queues(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    long queues = text ? atol(text) : 0;
    return queues < 1 ? 1 : queues > MOST_QUEUES ? MOST_QUEUES : (int)queues;
}

/* ---- The module ------------------------------------------------------------------------------ */

SL_API const sl_device_module *sluice_cuda_module(const sl_module_host *host);

const sl_device_module *sluice_cuda_module(const sl_module_host *host)
{
    static const sl_device_module module = { .backend = &cuda_backend, .kernels = &cuda_kernels, .count = cuda_count };
    if (host->version != SL_MODULE_VERSION)
        return NULL;
    cuda_host = host;
    choose_queues();
    return &module;
}
