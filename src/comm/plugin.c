/* Finds and loads the MPI plugin: libsluice_mpi_openmpi.so or libsluice_mpi_mpich.so. */
#include "comm/plugin.h"
#include "comm/environment.h"
#include "comm/wait.h"
#include "base/alloc.h"
#include "base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static const sl_plugin_host host = {
    .version = SL_PLUGIN_VERSION,
    .fail = sl_fail,
    .alloc = sl_alloc,
    .alloc_aligned = sl_alloc_aligned,
    .free = sl_free,
    .now = sl_now,
    .log = sl_log,
    .wait_text = sl_wait_text,
};

/* *out stays NULL if the plugin is not there. */
static sl_status load(const char *flavour, const sl_transport **out)
{
    char file[64];
    void *library = NULL;
    snprintf(file, sizeof file, "libsluice_mpi_%s.so", flavour);
    sl_status status =
        sl_library_load(file, RTLD_NOW | RTLD_GLOBAL, &library); /* an MPI's own plugins look for symbols */
    if (status != SL_OK || !library)
        return status;
    sl_plugin_function *function = NULL;
    *(void **)&function = dlsym(library, SL_PLUGIN_SYMBOL);
    const sl_transport *transport = function ? function(&host) : NULL;
    if (!transport)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s is not of this version of sluice", file);
    *out = transport;
    return SL_OK;
}

/* The MPIs that may have started this process, the likelier one first. */
static void likely_flavours(const sl_environment *environment, const char *flavours[2])
{
    bool mpich = environment->started_by == SL_STARTED_BY_MPICH ||
                 (environment->started_by == SL_STARTED_BY_SLURM && !getenv("PMIX_RANK"));
    bool sure = environment->started_by == SL_STARTED_BY_MPICH || environment->started_by == SL_STARTED_BY_OPENMPI;
    flavours[0] = mpich ? "mpich" : "openmpi";
    flavours[1] = sure ? NULL : mpich ? "openmpi" : "mpich";
}

sl_status sl_plugin_load_mpi(const sl_transport **out)
{
    sl_status status = SL_OK;
    sl_environment environment;
    const char *flavours[2];
    const sl_transport *found = NULL;
    SL_TRY(sl_environment_read(&environment));
    likely_flavours(&environment, flavours);
    for (int i = 0; i < 2 && flavours[i] && !found; i++)
        SL_TRY(load(flavours[i], &found));
    if (!found) {
        status =
            sl_fail(SL_ERR_UNSUPPORTED,
                    "transport mpi: libsluice_mpi_%s.so is neither in SLUICE_PLUGIN_PATH nor beside the program nor "
                    "in its lib/sluice; it is built if %s is installed (on one machine `sluice launch` needs no "
                    "MPI)",
                    flavours[0], flavours[0]);
        goto done;
    }
    *out = found;
done:
    return status;
}
