/* Loads OpenBLAS by hand. Its own detection falls back to SSE3 on processors it does not know, five times slower, and
 * cannot be corrected once the library is in memory: so the core is chosen before, from what the processor can do. */
#include "kernel/cpu/blas.h"

#include "base/alloc.h"
#include "base/text.h"
#include "kernel/cpu/isa.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static sl_cblas_sgemm sgemm;
static char name[128] = "own products";
static atomic_int wanted = -1; /* 0, 1: as a test says; -1: by the machine */

/* OpenBLAS maps a buffer for every thread that is in a product, and keeps it. */
static struct {
    void *(*take)(int);
    void (*give_back)(void *);
    pthread_mutex_t lock;
    atomic_int count; /* threads that have one, or need none */
} buffers = { .lock = PTHREAD_MUTEX_INITIALIZER };

enum { BUFFER_MIB = 136 }; /* 128 and some room around it, more than any build takes */

/* Value for OPENBLAS_CORETYPE; NULL if its own detection will do. */
static const char *core_for_this_machine(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool wide = sl_isa_best() >= SL_ISA_AVX512;
    if (sl_isa_best() < SL_ISA_AVX2 || !__get_cpuid(1, &a, &b, &c, &d))
        return NULL;
    unsigned family = (a >> 8 & 15) + (a >> 20 & 255);
    if (__builtin_cpu_is("amd"))
        return family < 0x1a ? "ZEN" : wide ? "SKYLAKEX" : "ZEN"; /* up to Zen 4 the wide core gains nothing */
    return wide ? "SKYLAKEX" : "HASWELL";
#else
    return NULL;
#endif
}

/* Cores written for AVX2 or better. */
static bool is_fast_core(const char *core)
{
    static const char *const fast[] = { "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids" };
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++) {
        if (sl_case_compare(core, fast[i], SIZE_MAX) == 0)
            return true;
    }
    return false;
}

/* Sets a variable for the time of loading; returns whether it was unset before and must be taken away again. */
static bool set_if_unset(const char *variable, const char *value)
{
    return value && !getenv(variable) && setenv(variable, value, 1) == 0;
}

static void *open_library(void)
{
    static const char *const usual[] = { "libopenblas.so.0", "libopenblas.so" };
    const char *path = getenv("SLUICE_BLAS");
    bool named = path && *path;
    void *library = NULL;
    if (named && strcmp(path, "none") == 0)
        return NULL;
    bool core = set_if_unset("OPENBLAS_CORETYPE", core_for_this_machine());
    bool threads = set_if_unset("OPENBLAS_NUM_THREADS", "1"); /* else it starts a thread per core at once */
    if (named)
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; !named && !library && i < sizeof usual / sizeof *usual; i++)
        library = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    if (core)
        unsetenv("OPENBLAS_CORETYPE");
    if (threads)
        unsetenv("OPENBLAS_NUM_THREADS");
    if (!library)
        sl_log(named ? SL_LOG_WARN : SL_LOG_INFO, "%s; using our own products", dlerror());
    return library;
}

/* dlsym gives an object pointer; POSIX wants it copied into a function pointer. */
static bool find(void *library, const char *symbol, void *function)
{
    void *address = dlsym(library, symbol);
    if (address)
        memcpy(function, &address, sizeof address);
    return address != NULL;
}

/* Sets the name and returns the core, or NULL if it is not OpenBLAS. */
static const char *describe(void *library)
{
    char *(*get_config)(void) = NULL, *(*get_core)(void) = NULL;
    if (!find(library, "openblas_get_config", &get_config) || !find(library, "openblas_get_corename", &get_core)) {
        snprintf(name, sizeof name, "BLAS from SLUICE_BLAS");
        return NULL;
    }
    const char *version = get_config(), *core = get_core(); /* "OpenBLAS 0.3.21 NO_LAPACKE ..." */
    int words = (int)strcspn(version, " ");
    words += version[words] ? 1 + (int)strcspn(version + words + 1, " ") : 0;
    snprintf(name, sizeof name, "%.*s %s", words, version, core);
    return core;
}

/* Whether OpenBLAS is worth using. It may be in memory already, loaded by another library before us: then its core is
 * what it chose itself. A core that the user asked for is the user's business. */
static bool is_worth_using(const char *core)
{
    if (!core || sl_isa_best() < SL_ISA_AVX2 || is_fast_core(core))
        return true;
    if (getenv("OPENBLAS_CORETYPE")) {
        sl_log(SL_LOG_WARN, "OPENBLAS_CORETYPE makes OpenBLAS run its %s kernels, several times slower than %s", core,
               core_for_this_machine());
        return true;
    }
    sl_log(
        SL_LOG_WARN,
        "OpenBLAS was loaded before and runs its %s kernels, several times slower than this processor can: using the "
        "program's own products. OPENBLAS_CORETYPE=%s in the environment cures it",
        core, core_for_this_machine());
    return false;
}

static void load(void)
{
    void *library = open_library();
    sl_cblas_sgemm found = NULL;
    if (!library)
        return;
    if (!find(library, "cblas_sgemm", &found)) {
        sl_log(SL_LOG_WARN, "the BLAS library has no cblas_sgemm; using our own products");
        return;
    }
    void (*set_threads)(int) = NULL; /* the split over threads is ours, so that the bits are */
    if (find(library, "openblas_set_num_threads", &set_threads))
        set_threads(1);
    if (!find(library, "blas_memory_alloc", &buffers.take) || !find(library, "blas_memory_free", &buffers.give_back))
        buffers.take = NULL; /* not OpenBLAS */
    if (is_worth_using(describe(library)))
        sgemm = found;
    sl_log(SL_LOG_DEBUG, "matrix products: %s", sgemm ? name : "own products");
}

/* With AVX2 or better our own product is as fast on one thread and shares its work better among several. */
static bool is_wanted(void)
{
    int choice = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (choice < 0) {
        const char *named = getenv("SLUICE_BLAS");
        choice = (named && *named) || sl_isa_best() < SL_ISA_AVX2;
        atomic_store(&wanted, choice);
    }
    return choice;
}

sl_cblas_sgemm sl_blas_sgemm(void)
{
    if (!is_wanted())
        return NULL;
    pthread_once(&once, load);
    return sgemm;
}

/* Whether so many buffers could be mapped now. */
static bool has_room(int count)
{
    enum { LIMIT = 1024 };
    const size_t bytes = (size_t)BUFFER_MIB << 20;
    void *maps[LIMIT];
    int made = 0;
    while (made < count && made < LIMIT) {
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED)
            break;
        maps[made++] = map;
    }
    bool enough = made == (count < LIMIT ? count : LIMIT);
    while (made > 0)
        munmap(maps[--made], bytes);
    return enough;
}

/* Lets OpenBLAS map its buffers while there is room for them. */
static sl_status map_buffers(int threads)
{
    void **taken = NULL;
    int more = threads - atomic_load(&buffers.count);
    if (!has_room(more))
        return sl_fail(SL_ERR_MEMORY,
                       "OpenBLAS needs %d MiB of address space for its buffers (%d a thread), more than the limit "
                       "(ulimit -v) leaves: raise it, or use the program's own products with SLUICE_BLAS=none",
                       BUFFER_MIB * threads, BUFFER_MIB);
    sl_status status = SL_NEW_ARRAY(taken, threads);
    for (int i = 0; status == SL_OK && i < threads; i++)
        taken[i] = buffers.take(0);
    for (int i = 0; status == SL_OK && i < threads; i++)
        buffers.give_back(taken[i]);
    sl_free(taken);
    return status;
}

sl_status sl_blas_reserve(int threads)
{
    sl_status status = SL_OK;
    struct rlimit limit;
    if (threads <= atomic_load_explicit(&buffers.count, memory_order_acquire) || !sl_blas_sgemm())
        return SL_OK;
    pthread_mutex_lock(&buffers.lock);
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if (limited && buffers.take && threads > atomic_load(&buffers.count))
        status = map_buffers(threads);
    if (status == SL_OK)
        atomic_store_explicit(&buffers.count, threads, memory_order_release);
    pthread_mutex_unlock(&buffers.lock);
    return status;
}

const char *sl_blas_name(void)
{
    return sl_blas_sgemm() ? name : "own products";
}

void sl_blas_enable(bool enabled)
{
    atomic_store(&wanted, enabled);
}
