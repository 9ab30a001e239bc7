/* Finds and loads the MPI plugin: libsluice_mpi_openmpi.so or libsluice_mpi_mpich.so. */
#include "comm/plugin.h"
#include "comm/environment.h"
#include "comm/wait.h"
#include "base/alloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* The folder of a path: what comes before its last slash. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

/* A file or folder that only its owner can change, and the owner is root, this user, or who owns `neighbour` and could
 * as well have changed that one. In a sticky folder others can add files, but not replace these. */
static bool is_trusted(const struct stat *what, const struct stat *neighbour)
{
    bool owned = what->st_uid == 0 || what->st_uid == geteuid() || what->st_uid == neighbour->st_uid;
    return owned && (!(what->st_mode & S_IWOTH) || (S_ISDIR(what->st_mode) && (what->st_mode & S_ISVTX)));
}

/* Code that is found only because it lies beside the program must not be somebody else's. */
static sl_status check_owner(const char *path, const char *neighbour)
{
    char folder[PATH_MAX];
    struct stat found, around, trusted;
    snprintf(folder, sizeof folder, "%.*s", (int)folder_length(path), path);
    if (stat(path, &found) != 0 || stat(folder, &around) != 0 || stat(neighbour, &trusted) != 0)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s is not loaded: %s", path, strerror(errno));
    if (is_trusted(&found, &trusted) && is_trusted(&around, &trusted))
        return SL_OK;
    return sl_fail(SL_ERR_UNSUPPORTED,
                   "%s is not loaded: user %u or anybody can change it; if that is right, name its folder in "
                   "SLUICE_PLUGIN_PATH",
                   path, (unsigned)(is_trusted(&found, &trusted) ? around.st_uid : found.st_uid));
}

/* Tries one folder; *out stays NULL if the plugin is not there. neighbour is the file whose place led here, NULL if the
 * user named the folder. */
static sl_status try_folder(const char *folder, size_t length, const char *below, const char *neighbour,
                            const char *flavour, const sl_transport **out)
{
    char path[PATH_MAX];
    int used = snprintf(path, sizeof path, "%.*s%s/libsluice_mpi_%s.so", (int)length, folder, below, flavour);
    if (length == 0 || used < 0 || (size_t)used >= sizeof path || access(path, F_OK) != 0)
        return SL_OK;
    sl_status status = neighbour ? check_owner(path, neighbour) : SL_OK;
    if (status != SL_OK)
        return status;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* an MPI's own plugins look for its symbols */
    if (!library)
        return sl_fail(SL_ERR_UNSUPPORTED, "load %s: %s", path, dlerror());
    sl_plugin_function *function = NULL;
    *(void **)&function = dlsym(library, SL_PLUGIN_SYMBOL);
    const sl_transport *transport = function ? function(&host) : NULL;
    if (!transport)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s is not of this version of sluice", path);
    *out = transport; /* never unloaded: MPI keeps threads and handlers */
    return SL_OK;
}

/* Where plugins may be: SLUICE_PLUGIN_PATH, beside the program, where the program or the library is installed. */
static sl_status search(const char *flavour, const sl_transport **out)
{
    sl_status status = SL_OK;
    const char *list = secure_getenv("SLUICE_PLUGIN_PATH");
    while (list && *list && !*out) {
        size_t length = strcspn(list, ":");
        SL_TRY(try_folder(list, length, "", NULL, flavour, out));
        list += length + (list[length] == ':');
    }
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0 && !*out) {
        program[length] = 0;
        SL_TRY(try_folder(program, folder_length(program), "", program, flavour, out));
        if (!*out)
            SL_TRY(try_folder(program, folder_length(program), "/../" SLUICE_LIBDIR "/sluice", program, flavour, out));
    }
    Dl_info info;
    if (!*out && dladdr(&host, &info) && info.dli_fname) {
        SL_TRY(try_folder(info.dli_fname, folder_length(info.dli_fname), "/sluice", info.dli_fname, flavour, out));
        if (!*out)
            SL_TRY(try_folder(info.dli_fname, folder_length(info.dli_fname), "", info.dli_fname, flavour, out));
    }
done:
    return status;
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
        SL_TRY(search(flavours[i], &found));
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
