/* run.out: lock, metrics, events. */
#include "train/output.h"

#include "base/alloc.h"
#include "base/file.h"
#include "shard/checkpoint.h"
#include "train/attributes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Before the start ------------------------------------------------------------------------ */

/* Steps of the checkpoints that the folder of the run holds, newest first; the caller frees *steps. */
static sl_status list_steps(const sl_train_config *config, int64_t **steps, int *count)
{
    char *folder = NULL;
    sl_status status = sl_path_join(config->run.out, "checkpoints", &folder);
    if (status == SL_OK)
        status = sl_checkpoint_list(folder, steps, count);
    sl_free(folder);
    return status;
}

sl_status sl_output_check_unused(const sl_train_config *config)
{
    int64_t *steps = NULL;
    int count = 0;
    sl_status status = list_steps(config, &steps, &count);
    if (status == SL_OK && count > 0)
        status = sl_train_config_fail(config, "run.out",
                                      "%s holds a run (checkpoint of step %" PRId64
                                      "): continue it with --resume, replace it with --overwrite, or choose another "
                                      "folder",
                                      config->run.out, steps[0]);
    sl_free(steps);
    return status;
}

/* The newest checkpoint fits the plan. One that cannot be opened is left to the run, which says why. */
static sl_status check_newest(const sl_train_plan *plan)
{
    sl_status status = SL_OK;
    char *folder = NULL, *path = NULL;
    int64_t *steps = NULL;
    int count = 0;
    sl_checkpoint *checkpoint = NULL;
    SL_TRY(list_steps(plan->config, &steps, &count));
    if (count == 0)
        goto done;
    SL_TRY(sl_path_join(plan->config->run.out, "checkpoints", &folder));
    SL_TRY(sl_checkpoint_make_path(folder, steps[0], NULL, &path));
    if (sl_checkpoint_open(path, false, &checkpoint) == SL_OK)
        SL_TRY(sl_attributes_check(plan, checkpoint));
done:
    sl_checkpoint_close(checkpoint);
    sl_free(steps);
    sl_free(path);
    sl_free(folder);
    return status;
}

sl_status sl_train_check_output(const sl_train_plan *plan, const sl_train_options *options)
{
    const sl_train_config *config = plan->config;
    sl_status status = sl_folder_make(config->run.out);
    if (status != SL_OK)
        return sl_train_config_context(config, "run.out", status);
    if (access(config->run.out, W_OK | X_OK) != 0)
        return sl_train_config_context(
            config, "run.out", sl_fail(SL_ERR_IO, "%s cannot be written: %s", config->run.out, strerror(errno)));
    if (options && options->resume)
        return check_newest(plan);
    return options && options->overwrite ? SL_OK : sl_output_check_unused(config);
}

sl_status sl_output_clear(const sl_train_config *config)
{
    static const char *const files[] = { "trace.json", "trace.svg", "plan.json", "metrics.jsonl" };
    static const char *const folders[] = { "tokenizer", "tensorboard" };
    sl_status status = SL_OK;
    char *path = NULL;
    SL_TRY(sl_path_join(config->run.out, "checkpoints", &path));
    SL_TRY(sl_checkpoint_prune(path, 0, -1));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        sl_free(path);
        path = NULL;
        SL_TRY(sl_path_join(config->run.out, files[i], &path));
        if (unlink(path) != 0 && errno != ENOENT)
            SL_TRY(sl_fail(SL_ERR_IO, "remove %s: %s", path, strerror(errno)));
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        sl_free(path);
        path = NULL;
        SL_TRY(sl_path_join(config->run.out, folders[i], &path));
        SL_TRY(sl_folder_remove(path));
    }
done:
    sl_free(path);
    return status;
}

/* ---- The lock -------------------------------------------------------------------------------- */

/* Whoever can open the file can hold the lock, so that only those may who can write to the folder. */
static sl_status open_lock(const char *folder, const char *path, int *out)
{
    struct stat about, lock;
    if (stat(folder, &about) != 0)
        return sl_fail(SL_ERR_IO, "stat %s: %s", folder, strerror(errno));
    mode_t mode = S_IRUSR | S_IWUSR | (about.st_mode & S_IWGRP ? S_IRGRP | S_IWGRP : 0);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    if (fstat(fd, &lock) == 0 && (lock.st_mode & 0777) != mode && lock.st_uid == geteuid())
        fchmod(fd, mode); /* of an older version, or another umask */
    *out = fd;
    return SL_OK;
}

sl_status sl_output_lock(sl_output_folder *output, const sl_train_config *config)
{
    sl_status status = SL_OK;
    char *path = NULL;
    int fd = -1;
    SL_TRY(sl_folder_make(config->run.out));
    SL_TRY(sl_path_join(config->run.out, "lock", &path));
    SL_TRY(open_lock(config->run.out, path, &fd));
    output->lock = fd + 1;
    for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            SL_TRY(sl_fail(SL_ERR_IO, "lock %s: %s", path, strerror(errno)));
        if (tries == 50)
            SL_TRY(sl_fail(SL_ERR_IO, "%s: another run is writing to this folder", config->run.out));
        usleep(100 * 1000);
    }
done:
    sl_free(path);
    return status;
}

/* ---- Files ----------------------------------------------------------------------------------- */

sl_status sl_output_open(sl_output_folder *output, const sl_train_config *config, int64_t step)
{
    sl_status status = SL_OK;
    char *path = NULL, *board = NULL;
    SL_TRY(sl_path_join(config->run.out, "metrics.jsonl", &path));
    SL_TRY(sl_metrics_open(path, step, &output->metrics));
    if (config->log.tensorboard) {
        SL_TRY(sl_path_join(config->run.out, "tensorboard", &board));
        SL_TRY(sl_folder_make(board));
        SL_TRY(sl_tensorboard_open(board, &output->tensorboard));
    }
    SL_TRY(sl_folder_sync(config->run.out));
done:
    sl_free(board);
    sl_free(path);
    return status;
}

sl_status sl_output_write(sl_output_folder *output, const sl_step_report *report)
{
    sl_status status = SL_OK;
    SL_TRY(sl_metrics_write(output->metrics, report));
    if (output->tensorboard)
        SL_TRY(sl_tensorboard_write(output->tensorboard, report));
done:
    return status;
}

void sl_output_close(sl_output_folder *output)
{
    sl_metrics_close(output->metrics);
    sl_tensorboard_close(output->tensorboard);
    if (output->lock > 0)
        close(output->lock - 1); /* gives the lock back */
    *output = (sl_output_folder){ .lock = 0 };
}
