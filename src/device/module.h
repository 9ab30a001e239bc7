/* A device in a library of its own, loaded when it is first asked for: CUDA. Nothing else needs what it needs, and one
 * installed program serves machines with and without a GPU. */
#ifndef SL_DEVICE_MODULE_H
#define SL_DEVICE_MODULE_H

#include "device/backend.h"
#include "device/choices.h"

/* What a module gets from the library: it uses none of its symbols, so it loads into programs that link libsluice
 * either way. */
typedef struct SL_NAMED_FIELDS sl_module_host {
    uint32_t version; /* SL_MODULE_VERSION */
    sl_status (*fail)(sl_status code, const char *format, ...) SL_PRINTF(2, 3);
    sl_status (*fail_context)(sl_status code, const char *format, ...) SL_PRINTF(2, 3);
    sl_status (*alloc)(size_t count, size_t size, void **out); /* zeroed */
    void (*free)(void *block);
    void (*log)(sl_log_level level, const char *format, ...) SL_PRINTF(2, 3);
    void (*count_bytes)(sl_device *device, size_t taken, size_t given);
    sl_status (*choices_open)(const char *scope, sl_choices **out);
    void (*choices_close)(sl_choices *choices);
    const char *(*choices_get)(const sl_choices *choices, const char *key);
    void (*choices_put)(sl_choices *choices, const char *key, const char *value);
} sl_module_host;

/* Lives as long as the process. */
typedef struct SL_NAMED_FIELDS sl_device_module {
    const sl_device_backend *backend;
    const struct sl_kernel_table *kernels; /* kernel/table.h */
    int (*count)(void);                    /* devices that can be opened; 0 also if there is no driver */
} sl_device_module;

/* Grows with every change of what a module and the library know of each other, kernel calls and tables included. */
#define SL_MODULE_VERSION 9u

/* The one symbol of a module; NULL if the host's version is not its own. */
#define SL_MODULE_SYMBOL "sluice_cuda_module"
typedef const sl_device_module *(*sl_module_function)(const sl_module_host *host);

/* Loads the module; fails if it is not installed, each time. */
SL_MUST_CHECK sl_status sl_module_load_cuda(const sl_device_module **out);

#endif
