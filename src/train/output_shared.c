/* That all ranks write to one folder: on several machines run.out has to be one that they share. */
#include "train/output.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { TRIES = 50, MICROSECONDS_A_TRY = 100 * 1000 }; /* a network file system may need a moment to show a change */

/* What each rank found; plain data. */
typedef struct folder_view {
    int32_t sees_it;
    char host[64];
} folder_view;

/* Rank 0, which holds the lock, leaves the run's number in it. */
static sl_status write_mark(const char *path, uint64_t run_id)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    bool written = dprintf(fd, "%016" PRIx64 "\n", run_id) > 0 && (fsync(fd) == 0 || errno == EINVAL);
    int error = errno;
    close(fd);
    return written ? SL_OK : sl_fail(SL_ERR_IO, "write %s: %s", path, strerror(error));
}

static bool has_mark(const char *path, uint64_t run_id)
{
    char expected[32], found[32] = { 0 };
    int length = snprintf(expected, sizeof expected, "%016" PRIx64 "\n", run_id);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, found, sizeof found - 1) : -1;
    if (fd >= 0)
        close(fd);
    return got == length && strcmp(found, expected) == 0;
}

/* Only the first rank that does not see the folder fails; the others hear of it. */
static sl_status check_views(const folder_view *views, sl_group *group, const sl_train_config *config)
{
    int rank = sl_group_rank(group);
    for (int r = 0; r < rank; r++) {
        if (!views[r].sees_it)
            return SL_OK;
    }
    if (views[rank].sees_it)
        return SL_OK;
    return sl_train_config_fail(
        config, "run.out",
        "rank %d on %s does not see what rank 0 on %s writes to this folder: all machines have to "
        "share it",
        rank, views[rank].host, views[0].host);
}

sl_status sl_output_check_shared(sl_group *group, const sl_train_config *config)
{
    sl_status status = SL_OK;
    char *path = NULL;
    folder_view own = { .sees_it = 1 }, *views = NULL;
    uint64_t run_id = sl_group_run_id(group);
    int rank = sl_group_rank(group);
    SL_TRY(SL_NEW_ARRAY(views, sl_group_size(group)));
    SL_TRY(sl_path_join(config->run.out, "lock", &path));
    if (rank == 0)
        SL_TRY(write_mark(path, run_id));
    SL_TRY(sl_group_barrier(group));
    for (int tries = 0; rank > 0 && !(own.sees_it = has_mark(path, run_id)) && tries < TRIES; tries++)
        usleep(MICROSECONDS_A_TRY);
    gethostname(own.host, sizeof own.host - 1);
    SL_TRY(sl_group_all_gather(group, &own, sizeof own, views));
    SL_TRY(check_views(views, group, config));
    SL_TRY(sl_group_barrier(group)); /* nobody goes on if one does not */
done:
    sl_free(path);
    sl_free(views);
    return status;
}
