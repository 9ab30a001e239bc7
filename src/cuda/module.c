/* The module's one symbol, and what it takes from the library that loads it. */
#include "cuda/device.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* MOST: of a process whose ranks may be threads. A rank that is a process has streams for 8 (device_words.c), or for 16 if each
 * of its links has a stream of its own (NCCL). More cost time: 4 processes on an H200 took 3.1 s to start and 1.4 s to end with
 * 32, and 0.5 s and 0.3 s with 8.
 * MOST_WITH_MPS: of all ranks of a machine. Under MPS processes share the queues of a GPU, each takes a power of two, and on an
 * H200 the last does not start if they are 128 together. The process that started the ranks may have 32. */
enum { MOST_QUEUES = 32, RANK_QUEUES = 8, NCCL_QUEUES = 16, MOST_WITH_MPS = 64 };

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

/* Ranks that sluice started are on one machine: they use NCCL only if that is wished. */
static long choose_number(void)
{
    const char *links = getenv("SLUICE_DEVICE_LINKS");
    long processes = count_processes(), queues = MOST_QUEUES;
    if (processes > 1 && getenv("SLUICE_SIZE"))
        queues = links && strcmp(links, "nccl") == 0 ? NCCL_QUEUES : RANK_QUEUES;
    while (queues > 1 && processes > 1 && queues * processes > MOST_WITH_MPS && has_mps())
        queues /= 2;
    return queues;
}

void cuda_choose_queues(void)
{
    const char *given = getenv("CUDA_DEVICE_MAX_CONNECTIONS"), *chosen = getenv("SLUICE_QUEUES");
    char text[16];
    if (given && (!chosen || strcmp(given, chosen) != 0))
        return; /* the user's; else what the process chose that started this rank */
    snprintf(text, sizeof text, "%ld", choose_number());
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", text, 1);
    setenv("SLUICE_QUEUES", text, 1);
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
    return &module;
}
